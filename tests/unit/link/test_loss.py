"""How ready ends: closes, changed peers, replacement; updates that do not end it (LV §10, §11, §14)."""

from __future__ import annotations

from typing import Any

import pytest

from zlinkpy.errors import ProtocolError
from zlinkpy.link import (
    Action,
    CloseLane,
    Ended,
    Expectation,
    Failure,
    FailureReason,
    LivenessOwner,
    NotReady,
    Pair,
    PairPhase,
    Ready,
    Send,
    ServicePair,
    Updated,
)
from zlinkpy.wire import (
    Close,
    CloseReason,
    Hello,
    Lane,
    LivenessAck,
    LivenessProbe,
    ObjectRole,
    RejectReason,
    RuntimeState,
    Update,
)

from .harness import (
    APP,
    COMPLETION,
    DIALLING_ROLES,
    LINKS,
    MESH_ROLES,
    ROLES,
    SERVICE_ROLES,
    UPDATED_ROLES,
    Node,
    probed_node,
    ready_link,
    ready_node,
    said,
)

each_role = pytest.mark.parametrize("role", ROLES)
dialling_role = pytest.mark.parametrize("role", DIALLING_ROLES)
updated_role = pytest.mark.parametrize("role", UPDATED_ROLES)
each_link = pytest.mark.parametrize("topology", LINKS)


def out_of_the_ready_set(node: Node, reason: FailureReason, at: float) -> NotReady:
    (not_ready,) = node.actions(NotReady)
    assert not_ready.failure.reason is reason
    assert not_ready.failure.at == at
    assert not node.pair.ready
    assert not node.pair.selectable
    assert not node.owner.is_ready("pair")
    assert not node.evident
    return not_ready


def left_the_ready_set(node: Node, reason: FailureReason, at: float) -> None:
    not_ready = out_of_the_ready_set(node, reason, at)
    assert node.end.failure == not_ready.failure == node.pair.failure
    assert node.pair.phase is PairPhase.ENDED
    assert node.pair.next_deadline() is None


# -- the peer's word ---------------------------------------------------------------------------------------------------


@each_role
@pytest.mark.contract("LV-119")
@pytest.mark.parametrize("reason", [CloseReason.ORDERLY, CloseReason.DRAINING])
def test_an_orderly_close_ends_ready_at_once(role: str, reason: CloseReason) -> None:
    node = ready_node(role)
    actions = node.receive(APP, Close(reason), 2.0)
    if role in MESH_ROLES:
        assert [type(action) for action in actions] == [NotReady, CloseLane]
        out_of_the_ready_set(node, FailureReason.ORDERLY_CLOSE, 2.0)
        assert node.closed_lanes == {APP}, "replies may still be under way on the other lane"
        node.lost(COMPLETION, 2.1, "disconnected")
    else:
        assert [type(action) for action in actions] == [NotReady, CloseLane, Ended]
        assert node.sent(Close) == []
    left_the_ready_set(node, FailureReason.ORDERLY_CLOSE, 2.0)


@each_role
@pytest.mark.parametrize(
    ("close", "reason"),
    [
        (Close(CloseReason.REPLACED), FailureReason.REPLACED),
        (Close(CloseReason.PROTOCOL_ERROR, "body.corr", "must not be 0"), FailureReason.PROTOCOL_ERROR),
    ],
    ids=["replaced", "protocol error"],
)
def test_other_closes_end_with_their_reason(role: str, close: Close, reason: FailureReason) -> None:
    node = ready_node(role)
    node.receive(APP, close, 2.0)
    out_of_the_ready_set(node, reason, 2.0)
    if role in MESH_ROLES:
        node.lost(COMPLETION, 2.1, "disconnected")
    left_the_ready_set(node, reason, 2.0)
    if close.field:
        assert "body.corr: must not be 0" in node.end.failure.detail
    assert node.sent(Close) == []


@dialling_role
@pytest.mark.parametrize("reason", [CloseReason.ORDERLY, CloseReason.REPLACED])
def test_a_close_before_admission_ends_the_attempt(role: str, reason: CloseReason) -> None:
    node = Node(role)
    node.connect(0.0)
    node.receive(APP, Close(reason), 1.0)
    assert node.end.failure.reason.value in ("orderly_close", "replaced")
    assert node.actions(NotReady) == []


@each_link
@pytest.mark.contract("LV-119")
@pytest.mark.parametrize("end", [0, 1], ids=["dialler closes", "acceptor closes"])
@pytest.mark.parametrize("slow", [0.1, 0.9], ids=["even lanes", "slow application lane"])
def test_the_peer_reads_the_close_before_it_sees_a_lane_go(topology: str, end: int, slow: float) -> None:
    wire = ready_link(topology, latency=(0.1, 0.1))
    wire.run_until(3.0)
    wire.connections[APP].latency = [slow, slow]
    wire.take(end, wire.nodes[end].pair.close(CloseReason.ORDERLY, wire.now))
    wire.run_until(6.0)
    for node in wire.nodes:
        assert node.end.failure.reason is FailureReason.ORDERLY_CLOSE
    assert all(connection.seen_closed == [True, True] for connection in wire.connections.values())


@pytest.mark.contract("LV-120")
@pytest.mark.parametrize(("topology", "lane"), [("RouteMesh", APP), ("RouteMesh", COMPLETION), ("ClientServer", APP)])
def test_a_broken_connection_ends_ready_on_both_sides_at_once(topology: str, lane: Lane) -> None:
    wire = ready_link(topology, latency=(0.01, 0.01))
    wire.run_until(3.0)
    wire.cut(lane)
    wire.run_until(3.0)
    for node in wire.nodes:
        (not_ready,) = node.actions(NotReady)
        assert not_ready.failure.reason is FailureReason.TRANSPORT_ERROR
        assert not_ready.failure.at == 3.0
    wire.run_until(4.0)
    assert all(connection.seen_closed == [True, True] for connection in wire.connections.values())


@each_link
@pytest.mark.contract("LV-75")
@pytest.mark.parametrize("half", [(True, True), (True, False), (False, True)], ids=["both ways", "out", "in"])
def test_a_black_hole_is_noticed_by_the_deadline_after_two_probes(topology: str, half: tuple[bool, bool]) -> None:
    wire = ready_link(topology)
    wire.connections[APP].swallow = list(half)
    wire.run_until(15.0)
    for node in wire.nodes:
        assert not node.pair.ready
        assert node.end.failure.reason is FailureReason.PEER_DEADLINE
        assert node.end.failure.at == 15.0
        assert [at for at, _ in node.probes] == [5.0, 10.0]


# -- the peer turns into another one -----------------------------------------------------------------------------------

CHANGES = [
    ({"rid": "node-x", "security": "key-of-node-p"}, FailureReason.IDENTITY_MISMATCH, "body.admission.nodeRid"),
    ({"generation": 8}, FailureReason.GENERATION_MISMATCH, "body.admission.lifecycleGeneration"),
    ({"generation": 1}, FailureReason.GENERATION_MISMATCH, "body.admission.lifecycleGeneration"),
    ({"security": "forged"}, FailureReason.SECURITY_MISMATCH, "body.admission.securityIdentity"),
]


HOW = {
    "dialling": ("update", "handshake", "completion handshake"),
    "accepting": ("update", "handshake", "completion handshake"),
    "client": ("update", "handshake"),
}


@pytest.mark.contract("LV-121", "LV-132")
@pytest.mark.parametrize("revision", [1, 2])
@pytest.mark.parametrize(("changes", "reason", "field"), CHANGES)
@pytest.mark.parametrize(("role", "how"), [(role, how) for role in UPDATED_ROLES for how in HOW[role]])
def test_an_admitted_peer_that_speaks_for_another_one_leaves_the_ready_set(
    role: str, changes: dict[str, Any], reason: FailureReason, field: str, revision: int, how: str
) -> None:
    node = ready_node(role)
    other = said(role, **({"rid": "node-p", "revision": revision} | changes))
    lane = COMPLETION if how == "completion handshake" else APP
    node.receive(lane, Update(other) if how == "update" else node.repeated_handshake(lane, other), 3.0)
    left_the_ready_set(node, reason, 3.0)
    ((_, close),) = node.sent(Close)
    if role == "client":
        field = field.replace("nodeRid", "serverRid")
    assert (close.reason, close.field) == (CloseReason.PROTOCOL_ERROR, field)
    assert node.closed_lanes == set(node.lanes)
    assert node.pair.remote == node.peer


@pytest.mark.contract("LV-121")
def test_an_admitted_client_that_shows_another_key_leaves_the_ready_set() -> None:
    node = ready_node("server")
    node.receive(APP, Hello(said("server", security="forged")), 3.0)
    left_the_ready_set(node, FailureReason.SECURITY_MISMATCH, 3.0)
    ((_, close),) = node.sent(Close)
    assert close.field == "body.admission.securityIdentity"
    assert node.pair.remote == node.peer


@each_role
@pytest.mark.contract("LV-121")
@pytest.mark.parametrize(
    "reason",
    [FailureReason.IDENTITY_MISMATCH, FailureReason.GENERATION_MISMATCH, FailureReason.SECURITY_MISMATCH],
)
def test_a_descriptor_that_names_another_run_ends_ready_at_once(role: str, reason: FailureReason) -> None:
    node = ready_node(role)
    actions = node.take(node.pair.fail(reason, "the descriptor says generation 8", 3.0), 3.0)
    assert actions[0] == Send(APP, Close(CloseReason.ORDERLY))
    left_the_ready_set(node, reason, 3.0)
    assert node.end.failure.detail == "the descriptor says generation 8"


@each_role
@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (FailureReason.TRANSPORT_ERROR, None),
        (FailureReason.PEER_DEADLINE, None),
        (FailureReason.REPLACED, CloseReason.REPLACED),
        (FailureReason.HOST_NOT_SERVING, CloseReason.ORDERLY),
    ],
)
def test_what_the_peer_is_told_fits_the_failure(role: str, reason: FailureReason, told: CloseReason | None) -> None:
    node = ready_node(role)
    node.take(node.pair.fail(reason, "because", 3.0), 3.0)
    assert [command.reason for _, command in node.sent(Close)] == ([told] if told is not None else [])
    assert all(action.linger is (told is not None) for action in node.actions(CloseLane))
    left_the_ready_set(node, reason, 3.0)


# -- updates -----------------------------------------------------------------------------------------------------------


@updated_role
@pytest.mark.contract("LV-123")
@pytest.mark.parametrize("state", [RuntimeState.DRAINING, RuntimeState.STOPPED, RuntimeState.ERROR])
def test_a_peer_that_stops_serving_is_not_selectable_at_once(role: str, state: RuntimeState) -> None:
    node = ready_node(role)
    assert node.pair.selectable
    newer = said(role, revision=2, state=state)
    assert node.receive(APP, Update(newer), 2.0) == [Updated(newer)]
    assert not node.pair.selectable


@updated_role
@pytest.mark.contract("LV-174")
@pytest.mark.parametrize("state", [RuntimeState.RELOCATING, RuntimeState.RELOCATED])
def test_a_relocating_peer_is_not_selectable_and_stays_connected(role: str, state: RuntimeState) -> None:
    node, x = probed_node(role)
    newer = said(role, revision=2, state=state)
    assert node.receive(APP, Update(newer), 6.0) == [Updated(newer)]
    assert not node.pair.selectable
    assert node.pair.ready
    assert node.owner.is_ready("pair")
    assert node.evident
    node.receive(APP, LivenessProbe(9), 6.5)
    assert node.sent(LivenessAck) == [(6.5, LivenessAck(9))]
    assert node.pair.touch(6.6, node.lanes[-1]) == []
    node.receive(APP, LivenessAck(x), 7.0)
    assert node.pair.liveness.deadline == 22.0
    node.run_until(21.999)
    assert node.pair.ready
    again = said(role, revision=3)
    node.receive(APP, Update(again), 21.9995)
    assert node.pair.selectable


@updated_role
@pytest.mark.parametrize("state", [state for state in RuntimeState if state is not RuntimeState.SERVING])
def test_a_peer_that_was_admitted_while_not_serving_is_ready_and_not_selectable(role: str, state: RuntimeState) -> None:
    node = ready_node(role, peer=said(role, state=state))
    assert node.pair.ready
    assert not node.pair.selectable


BREACHES = [
    (3, {}, "body.admission.descriptorRevision"),
    (4, {"weight": 3}, "body.admission.ext.placementWeight"),
    (5, {"channels": (("lobby", 1), ("zoo", 1))}, "body.admission.channels"),
    (5, {"endpoint": "tcp://127.0.0.1:9"}, "body.admission.advertisedEndpoint"),
    (5, {"role": ObjectRole.SERVER}, "body.admission.ext.objectRole"),
]
SERVICE_BREACHES = [
    (3, {}, "body.admission.descriptorRevision"),
    (4, {"weight": 3}, "body.admission.weight"),
    (4, {"state": RuntimeState.DRAINING}, "body.admission.runtimeState"),
    (5, {"channel": "other"}, "body.admission.channelName"),
    (5, {"endpoint": "tcp://127.0.0.1:9"}, "body.admission.advertisedEndpoint"),
    (5, {"limit": 5_000}, "body.admission.maxMessageBytes"),
]


@pytest.mark.parametrize(
    ("role", "revision", "changes", "field"),
    [
        *[(role, *row) for role in MESH_ROLES for row in BREACHES],
        *[("client", *row) for row in SERVICE_BREACHES],
    ],
)
def test_an_update_against_the_rules_is_a_protocol_error_and_changes_nothing(
    role: str, revision: int, changes: dict[str, Any], field: str
) -> None:
    current = said(role, revision=4)
    node = ready_node(role, peer=current)
    node.receive(APP, Update(said(role, revision=revision, **changes)), 2.0)
    left_the_ready_set(node, FailureReason.PROTOCOL_ERROR, 2.0)
    assert node.sent(Close)[0][1].field == field
    assert node.actions(Updated) == []
    assert node.pair.remote == current


@updated_role
def test_an_unchanged_update_is_a_no_op(role: str) -> None:
    node = ready_node(role)
    assert node.receive(APP, Update(node.peer), 2.0) == []
    assert node.pair.ready


# -- this side's word --------------------------------------------------------------------------------------------------


@each_role
@pytest.mark.parametrize("reason", [CloseReason.ORDERLY, CloseReason.DRAINING])
def test_closing_says_goodbye_and_records_no_liveness_failure(role: str, reason: CloseReason) -> None:
    node = ready_node(role)
    actions = node.take(node.pair.close(reason, 3.0), 3.0)
    assert [type(action) for action in actions] == [Send, NotReady, *[CloseLane] * len(node.lanes), Ended]
    assert actions[0] == Send(APP, Close(reason))
    left_the_ready_set(node, FailureReason.ORDERLY_CLOSE, 3.0)
    assert all(action.linger for action in node.actions(CloseLane))


@dialling_role
def test_closing_an_attempt_closes_what_there_is(role: str) -> None:
    node = Node(role)
    node.start(0.0)
    actions = node.take(node.pair.close(CloseReason.ORDERLY, 1.0), 1.0)
    assert actions == [CloseLane(APP, linger=False), node.end]
    idle = Node(role)
    assert [type(action) for action in idle.take(idle.pair.close(CloseReason.ORDERLY, 1.0), 1.0)] == [Ended]
    assert idle.start(2.0) == []


@each_role
def test_a_protocol_error_needs_a_field(role: str) -> None:
    node = ready_node(role)
    with pytest.raises(ValueError, match="violated"):
        node.pair.close(CloseReason.PROTOCOL_ERROR, 1.0)
    assert node.pair.ready


@each_role
def test_nothing_happens_after_the_end(role: str) -> None:
    node = ready_node(role)
    node.lost(APP, 1.0)
    before = list(node.log)
    pair = node.pair
    later: list[list[Action]] = [
        pair.start(2.0),
        pair.opened(node.lanes[-1], 2.0),
        pair.receive(APP, LivenessProbe(1), 2.0),
        pair.receive(APP, node.repeated_handshake(), 2.0),
        pair.touch(2.0),
        pair.lost(node.lanes[-1], "late", 2.0),
        pair.violated(APP, ProtocolError("late", field="body"), 2.0),
        pair.prepare(2.0),
        pair.announce(2.0),
        pair.set_flow(node.flow, 2.0),
        pair.close(CloseReason.ORDERLY, 2.0),
        pair.fail(FailureReason.REPLACED, "late", 2.0),
        pair.tick(200.0),
    ]
    assert later == [[]] * len(later)
    assert node.log == before
    assert pair.failure.at == 1.0
    assert pair.ended


# -- replacement and reconnect -----------------------------------------------------------------------------------------


@each_role
@pytest.mark.contract("LV-122")
def test_a_connection_that_was_replaced_leaves_the_ready_set_at_once(role: str) -> None:
    owner: LivenessOwner[str, Action] = LivenessOwner()
    expected = Expectation("node-p", "key-of-node-p", 7)
    old = ready_node(role, owner=owner, expected=expected)

    def admit_and_replace(remote: Any) -> RejectReason | None:
        old.take(old.pair.close(CloseReason.REPLACED, 4.0), 4.0)
        return None

    new = Node(role, owner=owner, key="new", pair_id=b"\x09" * 8, expected=expected, judge=admit_and_replace)
    new.connect(4.0)
    new.receive(APP, new.repeated_handshake(), 4.0)
    (not_ready,) = old.actions(NotReady)
    assert not_ready.failure == Failure(FailureReason.REPLACED, not_ready.failure.detail, 4.0)
    assert [command for _, command in old.sent(Close)] == [Close(CloseReason.REPLACED)]
    assert not owner.is_ready("pair")
    if role in MESH_ROLES:
        new.admit_completion(4.5)
    assert owner.is_ready("new")


@each_link
@pytest.mark.contract("LV-122")
def test_both_ends_of_a_replaced_connection_say_so(topology: str) -> None:
    wire = ready_link(topology, latency=(0.01, 0.01))
    wire.run_until(2.0)
    wire.take(1, wire.nodes[1].pair.close(CloseReason.REPLACED, wire.now))
    wire.run_until(3.0)
    assert [node.end.failure.reason.value for node in wire.nodes] == ["replaced", "replaced"]


@each_role
@pytest.mark.contract("LV-125")
def test_what_is_read_late_from_a_replaced_connection_does_not_touch_its_successor(role: str) -> None:
    owner: LivenessOwner[str, Action] = LivenessOwner()
    old, x = probed_node(role, owner=owner)
    old.take(old.pair.close(CloseReason.REPLACED, 6.0), 6.0)
    new = ready_node(role, 6.0, owner=owner, key="new", pair_id=b"\x09" * 8)
    new.run_until(11.0)
    assert new.pair.liveness.outstanding == x
    log = list(new.log)
    newer = said(role) if role == "server" else said(role, revision=9, state=RuntimeState.DRAINING)
    update = old.repeated_handshake(APP, newer) if role == "server" else Update(newer)
    for late in (LivenessAck(x), LivenessProbe(5), update, Close(CloseReason.ORDERLY)):
        assert old.receive(APP, late, 12.0) == []
    assert old.pair.touch(12.0) == []
    assert old.handled == new.handled == []
    assert new.log == log
    assert (new.pair.liveness.deadline, new.pair.liveness.outstanding) == (21.0, x)
    assert new.pair.selectable is (role != "server")
    assert new.pair.last_receive == 6.0


@each_link
@pytest.mark.contract("LV-145")
def test_a_reconnect_carries_nothing_over(topology: str) -> None:
    wire = ready_link(topology, latency=(0.01, 0.01))
    wire.connections[APP].swallow[1] = True
    wire.run_until(7.0)
    old = wire.nodes[0]
    assert old.pair.liveness.outstanding is not None
    wire.cut(APP)
    wire.run_until(8.0)
    again = LINKS[topology](latency=(0.01, 0.01), dialler={"pair_id": b"\x09" * 8}, acceptor={"pair_id": b"\x09" * 8})
    again.now = 8.0
    again.start()
    fresh = again.nodes[0].pair
    assert not fresh.ready
    assert fresh.phase is PairPhase.CONNECTING
    assert (fresh.liveness.outstanding, fresh.liveness.deadline, fresh.remote, fresh.failure) == (None,) * 4
    assert again.nodes[0].pair_id != old.pair_id
    again.run_until(9.0)
    assert fresh.ready
    assert fresh.liveness.outstanding is None
    (ready_at,) = [at for at, action in again.nodes[0].log if isinstance(action, Ready)]
    assert fresh.liveness.deadline == ready_at + 15


@each_role
@pytest.mark.contract("LV-145")
def test_a_link_is_used_once(role: str) -> None:
    """What could be carried over lives in the link alone, and an ended one cannot start again."""
    node, _ = probed_node(role)
    node.lost(APP, 6.0)
    assert node.pair.start(7.0) == []
    assert isinstance(node.pair, ServicePair if role in SERVICE_ROLES else Pair)
    assert node.pair.phase is PairPhase.ENDED
    assert (node.pair.liveness.outstanding, node.pair.liveness.deadline) == (None, None)
