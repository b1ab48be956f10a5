"""From the dial to ready: order of the lanes, preparation, deadlines, revisions that overlap."""

from __future__ import annotations

from typing import Any

import pytest

from zlinkpy.link import (
    DIAL_DEADLINE,
    Admitted,
    CloseLane,
    Dial,
    Ended,
    Expectation,
    Failure,
    FailureReason,
    LivenessOwner,
    NotReady,
    PairPhase,
    Ready,
    Send,
    Updated,
)
from zlinkpy.wire import (
    Admit,
    FlowState,
    Hello,
    Lane,
    ReceiveFlow,
    RuntimeState,
    Update,
)

from .harness import (
    APP,
    COMPLETION,
    DIALLING_ROLES,
    LINKS,
    MESH_ROLES,
    PAIR_ID,
    ROLES,
    Node,
    admission,
    own,
    ready_link,
    ready_node,
)

COMPLETE = Expectation(rid="node-p", security_identity="key-of-node-p", generation=7)
each_role = pytest.mark.parametrize("role", ROLES)
mesh_role = pytest.mark.parametrize("role", MESH_ROLES)
dialling_role = pytest.mark.parametrize("role", DIALLING_ROLES)
each_link = pytest.mark.parametrize("topology", LINKS)


# -- the way to ready --------------------------------------------------------------------------------------------------


@dialling_role
@pytest.mark.contract("LV-20")
def test_a_dial_that_was_accepted_locally_is_connecting_and_not_ready(role: str) -> None:
    node = Node(role)
    assert node.start(0.0) == [Dial(APP)]
    node.run_until(4.999)
    assert node.pair.phase is PairPhase.CONNECTING
    assert not node.pair.ready
    assert not node.owner.is_ready("pair")
    assert node.actions(Send) == []


@dialling_role
@pytest.mark.contract("LV-21")
def test_a_connected_peer_that_never_answers_hello_has_no_probe_and_no_peer_deadline(role: str) -> None:
    node = Node(role)
    node.start(0.0)
    (hello,) = node.opened(APP, 0.5)
    assert hello == Send(APP, Hello(node.local) if role == "client" else Hello(node.local, APP, PAIR_ID))
    for now in (0.6, 1.0, 4.9):
        node.tick(now)
        assert node.pair.phase is PairPhase.CONNECTING
        assert not node.pair.ready
        assert node.pair.liveness.deadline is None
        assert node.pair.liveness.next_deadline() is None
    assert node.probes == []


@pytest.mark.contract("LV-57")
def test_the_completion_lane_is_dialled_after_the_application_lane_was_admitted_with_the_same_pair_id() -> None:
    node = Node("dialling")
    node.start(0.0)
    node.opened(APP, 0.1)
    assert node.actions(Dial) == [Dial(APP)]
    assert node.receive(APP, Admit(node.peer, APP, PAIR_ID), 0.2) == [Admitted(node.peer), Dial(COMPLETION)]
    assert node.pair.phase is PairPhase.ADMITTED
    assert node.opened(COMPLETION, 0.3) == [Send(COMPLETION, Hello(node.local, COMPLETION, PAIR_ID))]
    assert not node.pair.ready
    node.receive(COMPLETION, Admit(node.peer, COMPLETION, PAIR_ID), 0.4)
    assert node.pair.ready
    assert node.actions(Dial) == [Dial(APP), Dial(COMPLETION)]


@pytest.mark.contract("LV-59")
@pytest.mark.parametrize("role", ["client", "server"])
def test_a_service_link_is_ready_with_its_one_connection(role: str) -> None:
    node = Node(role)
    actions = node.admit_application(0.2)
    admit = [] if node.dials else [Send(APP, Admit(node.local))]
    assert actions == [*admit, Admitted(node.peer), Send(APP, ReceiveFlow(FlowState.RUNNING)), Ready()]
    assert node.actions(Dial) == ([Dial(APP)] if node.dials else [])
    assert node.pair.phase is PairPhase.READY
    assert node.pair.next_deadline() == 5.2
    assert {action.lane for action in node.actions(Send)} == {APP}


@each_link
@pytest.mark.contract("LV-57", "LV-59", "LV-48")
def test_two_nodes_become_ready_over_exactly_their_connections_and_both_probe(topology: str) -> None:
    wire = ready_link(topology, latency=(0.05, 0.02))
    assert set(wire.connections) == ({APP, COMPLETION} if topology == "RouteMesh" else {APP})
    for node in wire.nodes:
        assert len(node.actions(Ready)) == 1
    start = [next(at for at, action in node.log if isinstance(action, Ready)) for node in wire.nodes]
    wire.run_until(20.0)
    for node, ready_at in zip(wire.nodes, start, strict=True):
        assert [at for at, _ in node.probes] == pytest.approx([ready_at + 5, ready_at + 10, ready_at + 15])
        assert node.pair.ready


@each_role
@pytest.mark.parametrize("flow", list(FlowState))
def test_the_flow_state_is_sent_once_and_before_ready(role: str, flow: FlowState) -> None:
    node = Node(role, flow=flow)
    node.connect(0.0)
    assert node.sent(ReceiveFlow) == []
    actions = node.admit(0.0, last=1.0)
    assert actions[-2:] == [Send(APP, ReceiveFlow(flow)), Ready()]
    assert [command.state for _, command in node.sent(ReceiveFlow)] == [flow]


@each_role
@pytest.mark.contract("LV-23")
def test_without_prepared_handlers_the_peer_stays_admitted_for_a_minute(role: str) -> None:
    node = Node(role, prepared=False)
    node.admit(0.0, last=1.0)
    for now in range(1, 62):
        node.tick(float(now))
        assert node.pair.phase is PairPhase.ADMITTED
        assert not node.pair.ready
        assert not node.pair.selectable
        assert not node.owner.is_ready("pair")
        assert not node.evident
    assert node.actions(Ready) == node.actions(Ended) == node.probes == []
    assert node.pair.next_deadline() is None


@each_role
@pytest.mark.contract("LV-24")
def test_finished_preparation_makes_ready_in_that_instant_with_a_fresh_deadline(role: str) -> None:
    node = Node(role, prepared=False)
    node.admit(0.0, last=1.0)
    actions = node.take(node.pair.prepare(61.0), 61.0)
    assert actions == [Send(APP, ReceiveFlow(FlowState.RUNNING)), Ready()]
    assert node.pair.ready
    assert node.pair.phase is PairPhase.READY
    assert node.pair.liveness.deadline == 76.0
    assert node.owner.is_ready("pair")
    assert node.pair.prepare(62.0) == []
    assert node.pair.liveness.deadline == 76.0


@each_role
def test_preparation_that_finishes_before_the_handshake_makes_nothing_ready(role: str) -> None:
    node = Node(role, prepared=False)
    node.take(node.pair.prepare(0.0), 0.0)
    node.connect(0.0)
    assert not node.pair.ready
    node.admit(0.0, last=1.0)
    assert node.pair.ready


@mesh_role
@pytest.mark.contract("LV-27")
def test_ready_needs_both_lanes(role: str) -> None:
    node = Node(role)
    node.admit_application(0.0)
    assert node.pair.phase is PairPhase.ADMITTED
    assert not node.pair.ready
    assert not node.owner.is_ready("pair")
    node.admit_completion(1.0)
    assert node.pair.ready


@each_role
@pytest.mark.contract("LV-27", "LV-120")
def test_losing_the_application_lane_ends_ready_at_once_and_closes_what_else_there_is(role: str) -> None:
    node = ready_node(role)
    actions = node.lost(APP, 3.0, "connection reset")
    assert [type(action) for action in actions] == [NotReady, *[CloseLane] * (len(node.lanes) - 1), Ended]
    assert node.actions(CloseLane) == [CloseLane(lane, linger=False) for lane in node.lanes[1:]]
    assert node.end.failure == actions[0].failure
    assert node.end.failure.reason is FailureReason.TRANSPORT_ERROR
    assert "connection reset" in node.end.failure.detail
    assert not node.pair.ready
    assert not node.owner.is_ready("pair")
    assert not node.evident


@each_role
@pytest.mark.contract("LV-26")
def test_readiness_of_one_connection_says_nothing_of_another_to_the_same_peer(role: str) -> None:
    owner: LivenessOwner[str, Any] = LivenessOwner()
    first = ready_node(role, owner=owner, key="first")
    second = Node(role, owner=owner, key="second", pair_id=b"\x09" * 8)
    second.connect(0.0)
    assert (owner.is_ready("first"), owner.is_ready("second")) == (True, False)
    second.admit(1.0, last=2.0)
    assert (owner.is_ready("first"), owner.is_ready("second")) == (True, True)
    assert second.pair.liveness.deadline == 17.0
    assert first.pair.liveness.deadline == 15.0
    first.lost(APP, 3.0)
    assert (owner.is_ready("first"), owner.is_ready("second")) == (False, True)
    assert second.evident


# -- deadlines of the handshake ----------------------------------------------------------------------------------------


@dialling_role
@pytest.mark.contract("LV-176")
@pytest.mark.parametrize("transport", [False, True], ids=["no transport", "no admit"])
def test_a_dial_without_admit_ends_as_a_transport_error(role: str, transport: bool) -> None:
    node = Node(role)
    node.start(10.0)
    if transport:
        node.opened(APP, 11.0)
    node.run_until(10.0 + DIAL_DEADLINE - 0.001)
    assert node.actions(Ended) == []
    node.run_until(10.0 + DIAL_DEADLINE)
    failure = node.end.failure
    assert failure == Failure(FailureReason.TRANSPORT_ERROR, failure.detail, 15.0)
    assert f"{'connection' if role == 'client' else 'application lane'} within 5 s" in failure.detail
    assert node.closed_lanes == {APP}
    assert node.owner.next_deadline() is None


@mesh_role
@pytest.mark.contract("LV-176")
def test_a_completion_lane_that_is_not_admitted_in_time_ends_the_pair(role: str) -> None:
    node = Node(role)
    node.admit_application(3.0)
    node.run_until(7.999)
    assert node.actions(Ended) == []
    node.run_until(8.0)
    assert node.end.failure.reason is FailureReason.TRANSPORT_ERROR
    assert "completion lane within 5 s" in node.end.failure.detail
    assert APP in node.closed_lanes
    assert node.actions(NotReady) == []


@each_role
@pytest.mark.contract("LV-176")
def test_an_answer_read_at_the_deadline_comes_too_late(role: str) -> None:
    node = Node(role)
    node.connect(0.0)
    node.receive(APP, node.repeated_handshake(), 5.0)
    assert node.end.failure.reason is FailureReason.TRANSPORT_ERROR
    assert node.actions(Admitted) == []


@pytest.mark.contract("LV-176")
@pytest.mark.parametrize(("topology", "lane"), [("RouteMesh", APP), ("RouteMesh", COMPLETION), ("ClientServer", APP)])
def test_a_refused_dial_ends_at_once(topology: str, lane: Lane) -> None:
    wire = LINKS[topology]()
    wire.refused.add(lane)
    wire.start()
    wire.run_until(0.0)
    failure = wire.nodes[0].end.failure
    assert failure.reason is FailureReason.TRANSPORT_ERROR
    assert "connection refused" in failure.detail
    assert wire.nodes[0].actions(Ready) == wire.nodes[1].actions(Ready) == []
    wire.run_until(20.0)
    assert wire.nodes[1].end.failure.reason is FailureReason.TRANSPORT_ERROR


@each_role
def test_an_accepted_connection_without_hello_and_a_dial_have_the_same_deadline(role: str) -> None:
    node = Node(role)
    node.start(2.0)
    assert node.pair.next_deadline() == 7.0


# -- revisions that overlap the handshake ------------------------------------------------------------------------------


def test_a_revision_that_grew_while_hello_was_under_way_follows_the_admission() -> None:
    node = Node("dialling")
    node.start(0.0)
    node.opened(APP, 0.0)
    node.local = admission("node-n", revision=2, weight=7)
    assert node.take(node.pair.announce(0.5), 0.5) == []
    actions = node.receive(APP, Admit(node.peer, APP, PAIR_ID), 1.0)
    assert actions == [Admitted(node.peer), Send(APP, Update(node.local)), Dial(COMPLETION)]
    assert node.take(node.pair.announce(1.5), 1.5) == []


@pytest.mark.parametrize("role", [*MESH_ROLES, "server"])
def test_a_new_revision_is_told_once(role: str) -> None:
    node = ready_node(role)
    node.local = own(role, revision=4, state=RuntimeState.DRAINING)
    assert node.take(node.pair.announce(1.0), 1.0) == [Send(APP, Update(node.local))]
    assert node.take(node.pair.announce(2.0), 2.0) == []


def test_a_completion_hello_that_an_update_overtook_is_no_violation() -> None:
    """Two lanes are two connections: the hello of revision 1 may be read after the update to revision 2."""
    node = Node("accepting")
    node.admit_application(0.0)
    newer = admission("node-p", revision=2, weight=7)
    assert node.receive(APP, Update(newer), 0.1) == [Updated(newer)]
    actions = node.admit_completion(0.2, node.peer)
    assert actions[0] == Send(COMPLETION, Admit(node.local, COMPLETION, PAIR_ID))
    assert node.pair.ready
    assert node.pair.remote == newer


@mesh_role
def test_a_completion_handshake_never_moves_the_revision(role: str) -> None:
    node = Node(role)
    node.admit_application(0.0)
    node.admit_completion(0.2, admission("node-p", revision=2, weight=7))
    assert node.pair.ready
    assert node.pair.remote == node.peer
    newer = admission("node-p", revision=2, weight=7)
    assert node.receive(APP, Update(newer), 0.3) == [Updated(newer)]


@mesh_role
def test_a_completion_handshake_that_contradicts_the_application_lane_is_a_violation(role: str) -> None:
    node = Node(role)
    node.admit_application(0.0)
    node.admit_completion(0.2, admission("node-p", weight=7))
    assert node.end.failure.reason is FailureReason.PROTOCOL_ERROR
    assert "body.admission.ext.placementWeight" in node.end.failure.detail


@mesh_role
def test_the_description_of_a_pair_tells_where_it_stands(role: str) -> None:
    node = Node(role)
    assert "connecting" in repr(node.pair)
    node.admit_application(0.0)
    assert "node-p admitted application=admitted" in repr(node.pair)
    node.admit_completion(0.0)
    assert "node-p ready application=admitted completion=admitted" in repr(node.pair)
