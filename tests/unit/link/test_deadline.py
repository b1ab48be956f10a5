"""What each input does to the deadline, and what expiry does (LV §6)."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any

import pytest

from zlinkpy.link import Action, CloseLane, Ended, FailureReason, LivenessOwner, NotReady, PairPhase
from zlinkpy.wire import COMMANDS, Direction, FlowState, Lane, LivenessAck, LivenessProbe, ReceiveFlow, Topology, Update

from .harness import (
    APP,
    COMPLETION,
    LINK_COMMANDS,
    MESH_ROLES,
    ROLES,
    SERVICE_ROLES,
    Node,
    lanes_of,
    probed_node,
    ready_node,
    said,
)

each_role = pytest.mark.parametrize("role", ROLES)
each_lane = pytest.mark.parametrize(("role", "lane"), [(role, lane) for role in ROLES for lane in lanes_of(role)])
VECTORS = Path(__file__).parents[3] / "conformance" / "vectors"


def judgement(node: Node) -> tuple[float | None, int | None]:
    return node.pair.liveness.deadline, node.pair.liveness.outstanding


@each_role
@pytest.mark.contract("LV-64", "LV-65")
def test_the_first_ack_moves_the_deadline_and_a_second_does_not(role: str) -> None:
    node, x = probed_node(role)
    assert judgement(node) == (15.0, x)
    node.receive(APP, LivenessAck(x), 7.0)
    assert judgement(node) == (22.0, None)
    node.receive(APP, LivenessAck(x), 8.0)
    assert judgement(node) == (22.0, None)
    node.run_until(9.999)
    assert len(node.probes) == 1


@each_role
@pytest.mark.contract("LV-66")
def test_an_ack_of_an_earlier_probe_changes_nothing(role: str) -> None:
    node, x = probed_node(role)
    node.receive(APP, LivenessAck(x), 7.0)
    node.run_until(10.0)
    y = node.probes[-1][1]
    node.receive(APP, LivenessAck(x), 12.0)
    assert judgement(node) == (22.0, y)


@each_role
@pytest.mark.contract("LV-67")
def test_an_ack_nobody_waits_for_changes_nothing(role: str) -> None:
    node, x = probed_node(role)
    node.receive(APP, LivenessAck(x + 1000), 6.0)
    assert judgement(node) == (15.0, x)
    node.receive(APP, LivenessAck(x), 7.0)
    node.receive(APP, LivenessAck(x + 1000), 8.0)
    assert judgement(node) == (22.0, None)
    fresh = ready_node(role)
    fresh.receive(APP, LivenessAck(1), 1.0)
    assert judgement(fresh) == (15.0, None)
    assert node.actions(Ended) == fresh.actions(Ended) == []


@each_lane
@pytest.mark.contract("LV-69")
def test_a_message_moves_the_diagnostic_time_only(role: str, lane: Lane) -> None:
    node, x = probed_node(role)
    assert node.pair.touch(8.0, lane) == []
    assert node.pair.last_receive == 8.0
    assert judgement(node) == (15.0, x)


INFRASTRUCTURE = ["handshake", "completion handshake", "update", "same update", "probe", "flow"]
# A ClientServer connection has no completion lane, and its client has nothing to update.
MEANINGLESS = {"client": {"completion handshake"}, "server": {"completion handshake", "update", "same update"}}


@pytest.mark.contract("LV-70")
@pytest.mark.parametrize(
    ("role", "what"),
    [(role, what) for role in ROLES for what in INFRASTRUCTURE if what not in MEANINGLESS.get(role, ())],
)
def test_infrastructure_records_do_not_move_the_deadline(role: str, what: str) -> None:
    node, x = probed_node(role)
    record: Any = {
        "handshake": node.repeated_handshake(),
        "completion handshake": node.repeated_handshake(COMPLETION),
        "update": Update(said(role, **({} if role == "server" else {"revision": 2, "weight": 3}))),
        "same update": Update(node.peer),
        "probe": LivenessProbe(77),
        "flow": ReceiveFlow(FlowState.PAUSED),
    }[what]
    node.receive(COMPLETION if what == "completion handshake" else APP, record, 8.0)
    assert judgement(node) == (15.0, x)
    assert node.pair.last_receive == 8.0
    node.run_until(20.0)
    assert node.end.failure.at == 15.0


DIRECTIONS = {"client": Direction.TO_CLIENT, "server": Direction.TO_SERVER}


def others(role: str) -> list[str]:
    """Everything the peer of `role` may send besides the link's own commands."""
    topology = Topology.CLIENT_SERVER if role in SERVICE_ROLES else Topology.ROUTE_MESH
    return [
        spec.name
        for spec in COMMANDS.values()
        if topology in spec.bodies and not issubclass(spec.cls, LINK_COMMANDS)
        if role in MESH_ROLES or DIRECTIONS[role] in spec.directions
    ]


def vector_of(role: str, command: str) -> tuple[Lane, list[bytes]]:
    """A valid record of `command` from the conformance vectors, and the lane it is sent on."""
    (path,) = VECTORS.glob(f"*-{command}.json")
    vectors = json.loads(path.read_text(encoding="utf-8"))
    topology = "clientServer" if role in SERVICE_ROLES else "routeMesh"
    vector = next(each for each in vectors if each["valid"] and each["topology"] == topology)
    lane = APP if role in SERVICE_ROLES else Lane[vector["lane"].upper()]
    return lane, [bytes.fromhex(frame) for frame in vector["frames"]]


@pytest.mark.contract("LV-70")
@pytest.mark.parametrize(("role", "command"), [(role, command) for role in ROLES for command in others(role)])
def test_no_other_command_moves_the_deadline(role: str, command: str) -> None:
    node, x = probed_node(role)
    lane, frames = vector_of(role, command)
    assert node.deliver(lane, frames, 8.0) == []
    assert len(node.handled) == 1
    assert judgement(node) == (15.0, x)
    assert node.pair.last_receive == 8.0


@each_lane
@pytest.mark.contract("LV-71")
def test_a_repeated_handshake_with_the_same_descriptor_is_a_no_op(role: str, lane: Lane) -> None:
    node, x = probed_node(role)
    identity, remote = node.pair.identity, node.pair.remote
    before = list(node.log)
    assert node.receive(lane, node.repeated_handshake(lane), 7.5) == []
    assert node.log == before
    assert judgement(node) == (15.0, x)
    assert (node.pair.identity, node.pair.remote) == (identity, remote)
    assert node.pair.next_deadline() == 10.0
    node.run_until(10.0)
    assert node.probes == [(5.0, x), (10.0, x)]


@each_role
def test_a_repeated_handshake_during_admission_restarts_no_deadline(role: str) -> None:
    node = Node(role, prepared=role in MESH_ROLES)
    node.admit_application(0.0)
    due = node.pair.next_deadline()
    assert node.receive(APP, node.repeated_handshake(), 4.0) == []
    assert node.pair.phase is PairPhase.ADMITTED
    assert node.pair.next_deadline() == due == (5.0 if role in MESH_ROLES else None)


@each_role
@pytest.mark.contract("LV-72")
def test_inbound_traffic_does_not_save_a_connection_whose_acks_are_lost(role: str) -> None:
    node = ready_node(role)
    for step in range(1, 1500):
        now = step / 100
        node.run_until(now)
        node.pair.touch(now)
        if step % 100 == 0:
            node.receive(APP, LivenessProbe(step), now)
    assert node.pair.ready
    node.run_until(15.0)
    assert not node.pair.ready
    assert node.end.failure.reason is FailureReason.PEER_DEADLINE
    assert node.end.failure.at == 15.0


@each_role
@pytest.mark.contract("LV-73")
def test_answered_at_once_for_ten_minutes_the_deadline_follows_the_last_ack(role: str) -> None:
    node = ready_node(role)
    for step in range(1, 121):
        now = 5.0 * step
        node.run_until(now)
        node.receive(APP, LivenessAck(node.probes[-1][1]), now)
    assert len(node.probes) == 120
    assert len({probe_id for _, probe_id in node.probes}) == 120
    assert node.pair.ready
    assert judgement(node) == (615.0, None)


@each_role
@pytest.mark.contract("LV-74")
def test_without_ack_ready_ends_exactly_at_the_deadline(role: str) -> None:
    node = ready_node(role, 1000.0)
    node.run_until(1014.999)
    node.tick(1014.999)
    assert node.pair.ready
    assert node.owner.is_ready("pair")
    actions = node.tick(1015.0)
    assert not node.pair.ready
    assert node.pair.phase is PairPhase.ENDED
    assert [type(action) for action in actions] == [NotReady, *[CloseLane] * len(node.lanes), Ended]
    assert node.end.failure.reason is FailureReason.PEER_DEADLINE
    assert [at for at, _ in node.probes] == [1005.0, 1010.0]
    assert node.closed_lanes == set(node.lanes)
    assert not any(action.linger for action in node.actions(CloseLane))


@each_role
@pytest.mark.contract("LV-76")
def test_expiry_is_visible_everywhere_in_the_tick_that_decides_it(role: str) -> None:
    owner: LivenessOwner[str, Action] = LivenessOwner()
    node = ready_node(role, owner=owner)
    node.run_until(14.0)
    ((key, actions),) = owner.tick(15.0)
    # Nothing has been performed yet: no socket is closed, no other task has run.
    assert key == "pair"
    assert not owner.is_ready("pair")
    assert not node.evident
    assert not node.pair.ready
    assert not node.pair.selectable
    assert node.pair.failure is not None
    assert node.pair.failure.reason is FailureReason.PEER_DEADLINE
    assert actions.index(NotReady(node.pair.failure)) < min(
        index for index, action in enumerate(actions) if isinstance(action, CloseLane)
    )


@each_role
@pytest.mark.contract("LV-77")
@pytest.mark.parametrize("reconnected", [False, True])
def test_an_ack_after_expiry_changes_nothing(role: str, reconnected: bool) -> None:
    owner: LivenessOwner[str, Action] = LivenessOwner()
    node, x = probed_node(role, owner=owner)
    node.run_until(15.0)
    ended = node.end
    fresh = ready_node(role, 15.5, owner=owner, key="fresh", pair_id=b"\x09" * 8) if reconnected else None
    assert node.receive(APP, LivenessAck(x), 16.0) == []
    assert not node.pair.ready
    assert node.end == ended
    assert role == "server" or owner.evidence("node-p") is reconnected
    if fresh is not None:
        assert judgement(fresh) == (30.5, None)


@each_role
@pytest.mark.contract("LV-77")
def test_an_ack_read_at_the_deadline_before_the_tick_does_not_revive(role: str) -> None:
    node, x = probed_node(role)
    actions = node.receive(APP, LivenessAck(x), 15.0)
    assert [type(action) for action in actions] == [NotReady, *[CloseLane] * len(node.lanes), Ended]
    assert node.end.failure.reason is FailureReason.PEER_DEADLINE


@each_role
@pytest.mark.contract("LV-07")
def test_moving_the_wall_clock_moves_nothing(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = [1_700_000_000.0]

    class Moved(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime.datetime:
            return cls.fromtimestamp(wall[0], tz)

    monkeypatch.setattr(time, "time", lambda: wall[0])
    monkeypatch.setattr(time, "time_ns", lambda: int(wall[0] * 1e9))
    monkeypatch.setattr(datetime, "datetime", Moved)
    moved, still = (probed_node(role)[0] for _ in range(2))
    for step, shift in ((6.0, 3600.0), (8.0, -7200.0), (11.0, 3600.0)):
        wall[0] += shift
        moved.run_until(step)
        assert judgement(moved) == (15.0, 1)
        assert moved.pair.ready
        assert moved.pair.next_deadline() == (10.0 if step < 10 else 15.0)
    wall[0] -= 7200.0
    moved.run_until(20.0)
    still.run_until(20.0)
    assert moved.log == still.log
    assert [at for at, _ in moved.probes] == [5.0, 10.0]
    assert moved.end.failure.at == 15.0
