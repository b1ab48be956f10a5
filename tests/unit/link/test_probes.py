"""Probe and ACK of a pair: when they leave, what is answered, what malformed ones do (LV §4)."""

from __future__ import annotations

import itertools

import pytest

from zlinkpy.link import Action, Ended, FailureReason, LivenessOwner, NotReady, RemoteFlow
from zlinkpy.wire import Close, CloseReason, FlowState, Lane, LivenessAck, LivenessProbe, ReceiveFlow, RuntimeState

from .harness import APP, LINKS, MESH_ROLES, ROLES, Node, own, probed_node, ready_link, ready_node, said

each_role = pytest.mark.parametrize("role", ROLES)
each_link = pytest.mark.parametrize("topology", LINKS)
accepting_role = pytest.mark.parametrize("role", ["accepting", "server"])
PROBE = bytes.fromhex("5a4d010500")
ACK = bytes.fromhex("5a4d010600")


@each_role
@pytest.mark.contract("LV-40", "LV-42")
def test_one_probe_leaves_at_five_seconds_and_none_before(role: str) -> None:
    node = ready_node(role, 100.0)
    node.run_until(104.999)
    assert node.probes == []
    node.run_until(105.0)
    ((at, probe_id),) = node.probes
    assert at == 105.0
    assert 0 < probe_id < 2**63


@each_role
@pytest.mark.contract("LV-43")
def test_an_unanswered_probe_is_repeated_with_the_same_id(role: str) -> None:
    node = ready_node(role)
    node.run_until(10.0)
    first, second = node.sent(LivenessProbe)
    assert (first[0], second[0]) == (5.0, 10.0)
    assert first[1] == second[1]
    assert node.pair.liveness.outstanding == first[1].probe_id


@each_role
@pytest.mark.contract("LV-44")
def test_an_answered_probe_is_followed_by_a_new_id(role: str) -> None:
    node, first = probed_node(role)
    node.receive(APP, LivenessAck(first), 6.0)
    node.run_until(10.0)
    assert [at for at, _ in node.probes] == [5.0, 10.0]
    assert node.probes[1][1] != first


@each_role
@pytest.mark.contract("LV-46", "LV-68")
def test_equal_ids_on_two_connections_are_told_apart(role: str) -> None:
    owner: LivenessOwner[str, Action] = LivenessOwner()
    first = ready_node(role, owner=owner, key="first")
    second = ready_node(role, owner=owner, key="second", pair_id=b"\x09" * 8)
    for key, actions in owner.tick(5.0):
        (first if key == "first" else second).take(actions, 5.0)
    assert first.probes == second.probes
    (_, probe_id) = first.probes[0]
    first.receive(APP, LivenessAck(probe_id), 7.0)
    assert (first.pair.liveness.deadline, first.pair.liveness.outstanding) == (22.0, None)
    assert (second.pair.liveness.deadline, second.pair.liveness.outstanding) == (15.0, probe_id)


@each_role
@pytest.mark.contract("LV-47")
def test_a_thousand_records_a_second_neither_delay_nor_multiply_probes(role: str) -> None:
    node = ready_node(role)
    for step in range(1, 15_001):
        now = step / 1000
        node.take(node.pair.tick(now), now)  # far more often than it is due
        assert node.pair.touch(now) == []
        if node.pair.liveness.outstanding is not None and step % 500 == 0:
            node.receive(APP, LivenessAck(node.pair.liveness.outstanding), now)
    assert [at for at, _ in node.probes] == [5.0, 10.0, 15.0]
    assert len({probe_id for _, probe_id in node.probes}) == 3


@each_role
@pytest.mark.contract("LV-49")
def test_answering_the_peers_probes_is_no_evidence_of_our_own(role: str) -> None:
    node = ready_node(role)
    for now in (4.0, 9.0, 14.0):
        node.run_until(now)
        node.receive(APP, LivenessProbe(int(now)), now)
    node.run_until(20.0)
    assert [at for at, _ in node.sent(LivenessAck)] == [4.0, 9.0, 14.0]
    assert node.end.failure.reason is FailureReason.PEER_DEADLINE
    assert node.end.failure.at == 15.0


@each_role
@pytest.mark.contract("LV-50")
def test_each_probe_is_answered_once_with_its_id(role: str) -> None:
    node = ready_node(role)
    for now, probe_id in ((1.0, 41), (1.5, 41), (2.0, 2**63 - 1)):
        before = len(node.log)
        node.receive(APP, LivenessProbe(probe_id), now)
        assert len(node.log) == before + 1
    assert node.sent(LivenessAck) == [
        (1.0, LivenessAck(41)),
        (1.5, LivenessAck(41)),
        (2.0, LivenessAck(2**63 - 1)),
    ]


@each_role
def test_a_probe_is_answered_by_an_admitted_node_that_is_not_ready_yet(role: str) -> None:
    node = Node(role, prepared=False)
    node.admit_application(0.0)
    node.receive(APP, LivenessProbe(4), 1.0)
    assert node.sent(LivenessAck) == [(1.0, LivenessAck(4))]


@each_role
@pytest.mark.contract("LV-52", "LV-170")
@pytest.mark.parametrize("told", list(FlowState))
def test_flow_in_either_direction_changes_nothing_about_liveness(role: str, told: FlowState) -> None:
    node, probe_id = probed_node(role)
    node.take(node.pair.set_flow(FlowState.PAUSED, 6.0), 6.0)
    node.take(node.pair.set_flow(FlowState.PAUSED, 6.1), 6.1)
    assert node.pair.ready
    node.receive(APP, LivenessProbe(9), 6.5)
    assert node.sent(LivenessAck) == [(6.5, LivenessAck(9))]
    assert node.pair.liveness.deadline == 15.0
    assert node.pair.liveness.outstanding == probe_id
    assert [command.state for _, command in node.sent(ReceiveFlow)] == [FlowState.RUNNING, FlowState.PAUSED]
    node.receive(APP, ReceiveFlow(told), 7.0)
    assert node.pair.remote_flow is told
    assert node.actions(RemoteFlow) == [RemoteFlow(told)]
    assert node.pair.liveness.deadline == 15.0
    assert node.pair.ready


@pytest.mark.contract("LV-52")
@pytest.mark.parametrize("state", [RuntimeState.DRAINING, RuntimeState.RELOCATING])
@pytest.mark.parametrize("role", [*MESH_ROLES, "server"])
def test_a_node_that_takes_no_new_work_still_answers_probes(role: str, state: RuntimeState) -> None:
    node = ready_node(role)
    node.local = own(role, revision=2, state=state)
    node.take(node.pair.announce(1.0), 1.0)
    node.receive(APP, LivenessProbe(9), 2.0)
    assert node.sent(LivenessAck) == [(2.0, LivenessAck(9))]
    assert node.pair.ready


@each_role
@pytest.mark.contract("LV-171")
def test_a_paused_node_expires_a_silent_peer_as_usual(role: str) -> None:
    node = ready_node(role, flow=FlowState.PAUSED)
    node.run_until(14.999)
    assert node.pair.ready
    assert [at for at, _ in node.probes] == [5.0, 10.0]
    node.run_until(15.0)
    assert node.end.failure.reason is FailureReason.PEER_DEADLINE


# Flags, body and further frames that make no probe and no ACK; where a case has room for an id, it is the awaited 1.
MALFORMED = {
    "id 0": (b"\x00", b"\x91\x00", []),
    "id -1": (b"\x00", b"\x91\xff", []),
    "id 2^63": (b"\x00", b"\x91\xcf\x80" + b"\x00" * 7, []),
    "id text": (b"\x00", b"\x91\xa11", []),
    "id nil": (b"\x00", b"\x91\xc0", []),
    "id true": (b"\x00", b"\x91\xc3", []),
    "id float": (b"\x00", b"\x91\xca\x3f\x80\x00\x00", []),
    "empty array": (b"\x00", b"\x90", []),
    "two elements": (b"\x00", b"\x92\x01\x01", []),
    "array missing": (b"\x00", b"\x01", []),
    "no body": (b"\x00", b"", []),
    "trailing byte": (b"\x00", b"\x91\x01\x00", []),
    "flag without frame": (b"\x01", b"\x91\x01", []),
    "flag with metadata frame": (b"\x01", b"\x91\x01", [b"\x92\x01\x90"]),
    "second frame": (b"\x00", b"\x91\x01", [b""]),
}


def malformed(prefix: bytes, case: str) -> list[bytes]:
    flags, body, more = MALFORMED[case]
    return [prefix[:4] + flags + body, *more]


def closes_alone_with_a_protocol_error(node: Node, other: Node, owner: LivenessOwner[str, Action]) -> None:
    assert node.sent(LivenessAck) == []
    assert node.handled == []
    assert node.end.failure.reason is FailureReason.PROTOCOL_ERROR
    ((_, close),) = node.sent(Close)
    assert close.reason is CloseReason.PROTOCOL_ERROR
    assert close.field
    assert node.closed_lanes == set(node.lanes)
    assert len(node.actions(NotReady)) == 1
    assert not owner.is_ready("under test")
    assert owner.is_ready("other")
    assert other.actions(Ended) == []


@each_role
@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.contract("LV-53")
def test_a_malformed_probe_is_not_answered_and_closes_its_connection_only(role: str, case: str) -> None:
    owner: LivenessOwner[str, Action] = LivenessOwner()
    node = ready_node(role, owner=owner, key="under test")
    other = ready_node(role, owner=owner, key="other", peer=said(role, "node-q"))
    node.deliver(APP, malformed(PROBE, case), 1.0)
    closes_alone_with_a_protocol_error(node, other, owner)


@each_role
@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.contract("LV-54")
def test_a_malformed_ack_is_no_evidence_and_closes_its_connection_only(role: str, case: str) -> None:
    owner: LivenessOwner[str, Action] = LivenessOwner()
    node = ready_node(role, owner=owner, key="under test")
    other = ready_node(role, owner=owner, key="other", peer=said(role, "node-q"))
    for key, actions in owner.tick(5.0):
        (node if key == "under test" else other).take(actions, 5.0)
    assert node.pair.liveness.outstanding == 1
    assert node.pair.liveness.deadline == 15.0
    node.deliver(APP, malformed(ACK, case), 6.0)
    assert node.pair.liveness.deadline != 21.0
    closes_alone_with_a_protocol_error(node, other, owner)


@each_role
def test_the_well_formed_records_beside_the_malformed_ones_are_accepted(role: str) -> None:
    """Guards the two tests above: what they send differs from a legal record in one point only."""
    node, probe_id = probed_node(role)
    assert probe_id == 1
    node.deliver(APP, [PROBE + b"\x91\x01"], 6.0)
    node.deliver(APP, [ACK + b"\x91\x01"], 6.0)
    assert node.sent(LivenessAck) == [(6.0, LivenessAck(1))]
    assert node.pair.liveness.deadline == 21.0


@accepting_role
@pytest.mark.contract("LV-55")
@pytest.mark.parametrize("record", [PROBE + b"\x91\x05", ACK + b"\x91\x05"], ids=["probe", "ack"])
def test_the_first_record_of_an_accepted_connection_cannot_be_liveness(role: str, record: bytes) -> None:
    node = Node(role)
    node.start(0.0)
    node.deliver(APP, [record], 0.1)
    assert node.sent(LivenessAck) == []
    assert node.closed_lanes == {APP}
    assert node.end.failure.reason is FailureReason.PROTOCOL_ERROR
    assert node.receive(APP, node.repeated_handshake(), 0.2) == []


@each_link
@pytest.mark.contract("LV-48")
def test_both_ends_probe_whoever_dialled(topology: str) -> None:
    wire = ready_link(topology)
    wire.run_until(12.0)
    for node in wire.nodes:
        assert [at for at, _ in node.probes] == [5.0, 10.0]
        assert [at for at, _ in node.sent(LivenessAck)] == [5.0, 10.0]


def test_a_minute_of_probes_stays_off_the_completion_lane() -> None:
    wire = ready_link(latency=(0.02, 0.03))
    wire.run_until(60.0)
    liveness = [lane for _, _, lane, record in wire.carried if isinstance(record, (LivenessProbe, LivenessAck))]
    assert len(liveness) >= 40
    assert set(liveness) == {Lane.APPLICATION}


@each_role
def test_ids_come_from_the_given_source(role: str) -> None:
    node = ready_node(role, probe_ids=itertools.count(70).__next__)
    node.run_until(5.0)
    assert node.probes == [(5.0, 70)]
