"""From the dial to ready: order of the lanes, checks, preparation, NotRequired, deadlines."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from zlinkpy.errors import ProtocolError
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
    roles_not_required,
)
from zlinkpy.wire import (
    Admit,
    Close,
    CloseReason,
    FlowState,
    Hello,
    Lane,
    LivenessAck,
    LivenessProbe,
    ObjectRole,
    ReceiveFlow,
    Reject,
    RejectReason,
    RuntimeState,
    Update,
)

from .harness import (
    APP,
    COMPLETION,
    PAIR_ID,
    ROLES,
    Node,
    admission,
    link,
    object_client,
    ready_link,
    ready_node,
)

COMPLETE = Expectation(rid="node-p", security_identity="key-of-node-p", generation=7)
each_role = pytest.mark.parametrize("role", ROLES)


# -- the way to ready --------------------------------------------------------------------------------------------------


@pytest.mark.contract("LV-20")
def test_a_dial_that_was_accepted_locally_is_connecting_and_not_ready() -> None:
    node = Node("dialling")
    assert node.start(0.0) == [Dial(APP)]
    node.run_until(4.999)
    assert node.pair.phase is PairPhase.CONNECTING
    assert not node.pair.ready
    assert not node.owner.is_ready("pair")
    assert node.actions(Send) == []


@pytest.mark.contract("LV-21")
def test_a_connected_peer_that_never_answers_hello_has_no_probe_and_no_peer_deadline() -> None:
    node = Node("dialling")
    node.start(0.0)
    (hello,) = node.opened(APP, 0.5)
    assert hello == Send(APP, Hello(node.local, APP, PAIR_ID))
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


@pytest.mark.contract("LV-57", "LV-48")
def test_two_nodes_become_ready_over_exactly_two_connections_and_both_probe() -> None:
    wire = ready_link(latency=(0.05, 0.02))
    assert set(wire.connections) == {APP, COMPLETION}
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
    node.admit_application(0.0)
    assert node.sent(ReceiveFlow) == []
    actions = node.admit_completion(1.0)
    assert actions[-2:] == [Send(APP, ReceiveFlow(flow)), Ready()]
    assert [command.state for _, command in node.sent(ReceiveFlow)] == [flow]


@each_role
@pytest.mark.contract("LV-23")
def test_without_prepared_handlers_the_peer_stays_admitted_for_a_minute(role: str) -> None:
    node = Node(role, prepared=False)
    node.admit_application(0.0)
    node.admit_completion(1.0)
    for now in range(1, 62):
        node.tick(float(now))
        assert node.pair.phase is PairPhase.ADMITTED
        assert not node.pair.ready
        assert not node.pair.selectable
        assert not node.owner.is_ready("pair")
        assert not node.owner.evidence("node-p")
    assert node.actions(Ready) == node.actions(Ended) == node.probes == []
    assert node.pair.next_deadline() is None


@each_role
@pytest.mark.contract("LV-24")
def test_finished_preparation_makes_ready_in_that_instant_with_a_fresh_deadline(role: str) -> None:
    node = Node(role, prepared=False)
    node.admit_application(0.0)
    node.admit_completion(1.0)
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
    node.admit_application(0.0)
    assert not node.pair.ready
    node.admit_completion(1.0)
    assert node.pair.ready


@each_role
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
@pytest.mark.parametrize("lane", list(Lane))
@pytest.mark.contract("LV-27", "LV-120")
def test_losing_either_lane_ends_ready_at_once_and_closes_the_other(role: str, lane: Lane) -> None:
    node = ready_node(role)
    actions = node.lost(lane, 3.0, "connection reset")
    other = COMPLETION if lane is APP else APP
    assert [type(action) for action in actions] == [NotReady, CloseLane, Ended]
    assert actions[1] == CloseLane(other, linger=False)
    assert node.end.failure == actions[0].failure
    assert node.end.failure.reason is FailureReason.TRANSPORT_ERROR
    assert "connection reset" in node.end.failure.detail
    assert not node.pair.ready
    assert not node.owner.is_ready("pair")
    assert not node.owner.evidence("node-p")


@each_role
@pytest.mark.contract("LV-26")
def test_readiness_of_one_connection_says_nothing_of_another_to_the_same_peer(role: str) -> None:
    owner: LivenessOwner[str, Any] = LivenessOwner()
    first = ready_node(role, owner=owner, key="first")
    second = Node(role, owner=owner, key="second", pair_id=b"\x09" * 8)
    second.start(0.0)
    assert (owner.is_ready("first"), owner.is_ready("second")) == (True, False)
    second.admit_application(1.0)
    assert not owner.is_ready("second")
    second.admit_completion(2.0)
    assert (owner.is_ready("first"), owner.is_ready("second")) == (True, True)
    assert second.pair.liveness.deadline == 17.0
    assert first.pair.liveness.deadline == 15.0
    first.lost(APP, 3.0)
    assert (owner.is_ready("first"), owner.is_ready("second")) == (False, True)
    assert owner.evidence("node-p")


# -- refusals ----------------------------------------------------------------------------------------------------------

MISMATCHES = [
    ({"rid": "node-x", "security": "key-of-node-p"}, FailureReason.IDENTITY_MISMATCH, RejectReason.IDENTITY_MISMATCH),
    ({"generation": 6}, FailureReason.GENERATION_MISMATCH, RejectReason.LIFECYCLE_GENERATION_STALE),
    ({"generation": 8}, FailureReason.GENERATION_MISMATCH, RejectReason.LIFECYCLE_GENERATION_STALE),
    ({"security": "forged"}, FailureReason.SECURITY_MISMATCH, RejectReason.SECURITY_IDENTITY_MISMATCH),
]


@each_role
@pytest.mark.parametrize(("changes", "reason", "reject"), MISMATCHES)
@pytest.mark.contract("LV-22", "LV-132")
def test_another_identity_than_expected_is_never_ready_and_closes_with_its_reason(
    role: str, changes: dict[str, Any], reason: FailureReason, reject: RejectReason
) -> None:
    node = Node(role, expected=COMPLETE)
    actions = node.admit_application(1.0, admission(**({"rid": "node-p"} | changes)))
    word = Send(APP, Reject(reject) if role == "accepting" else Close(CloseReason.ORDERLY))
    assert actions[:2] == [word, CloseLane(APP, linger=True)]
    assert node.end.failure is not None
    assert node.end.failure.reason is reason
    assert node.end.reject is reject
    assert node.pair.failure == node.end.failure
    assert node.actions(Ready) == node.actions(Admitted) == node.actions(NotReady) == []
    assert node.pair.phase is PairPhase.ENDED


@each_role
@pytest.mark.parametrize(("changes", "reason", "reject"), MISMATCHES)
@pytest.mark.contract("LV-22", "LV-132")
def test_a_completion_lane_of_another_run_or_node_is_refused(
    role: str, changes: dict[str, Any], reason: FailureReason, reject: RejectReason
) -> None:
    node = Node(role)
    node.admit_application(0.0)
    actions = node.admit_completion(1.0, admission(**({"rid": "node-p"} | changes)))
    word = Send(COMPLETION, Reject(reject)) if role == "accepting" else Send(APP, Close(CloseReason.ORDERLY))
    other = COMPLETION if word.lane is APP else APP
    assert actions[0] == word
    assert set(actions[1:3]) == {CloseLane(word.lane, linger=True), CloseLane(other, linger=True, after=word.lane)}
    assert (node.end.failure.reason, node.end.reject) == (reason, reject)
    assert node.actions(Ready) == []


def test_a_completion_hello_of_another_pair_is_refused() -> None:
    node = Node("accepting")
    node.admit_application(0.0)
    actions = node.receive(COMPLETION, Hello(node.peer, COMPLETION, b"another!"), 1.0)
    assert actions[0] == Send(COMPLETION, Reject(RejectReason.IDENTITY_MISMATCH))
    assert node.end.failure.reason is FailureReason.IDENTITY_MISMATCH


@each_role
@pytest.mark.parametrize("intent", [Expectation(), Expectation(rid="node-p", generation=0)])
@pytest.mark.parametrize(("changes", "reason", "reject"), MISMATCHES)
@pytest.mark.contract("LV-126", "LV-127")
def test_a_complete_expectation_keeps_the_current_connection_and_no_manual_intent_relaxes_it(
    role: str,
    intent: Expectation,
    changes: dict[str, Any],
    reason: FailureReason,
    reject: RejectReason,
) -> None:
    owner: LivenessOwner[str, Any] = LivenessOwner()
    current = ready_node(role, expected=COMPLETE, owner=owner, key="current")
    intruder = Node(role, expected=COMPLETE.strengthened(intent), owner=owner, key="intruder", pair_id=b"intruder")
    intruder.admit_application(1.0, admission(**({"rid": "node-p"} | changes)))
    assert intruder.end.failure.reason is reason
    assert intruder.actions(Admitted) == []
    assert owner.is_ready("current")
    assert current.actions(NotReady) == current.actions(Ended) == []
    assert current.pair.liveness.deadline == 15.0


@pytest.mark.parametrize("reason", [reason for reason in RejectReason if reason is not RejectReason.NOT_REQUIRED])
@pytest.mark.parametrize("lane", list(Lane))
def test_a_reject_ends_the_attempt_with_its_reason(reason: RejectReason, lane: Lane) -> None:
    node = Node("dialling")
    if lane is APP:
        node.start(0.0)
        node.opened(APP, 0.0)
    else:
        node.admit_application(0.0)
        node.opened(COMPLETION, 0.0)
    actions = node.receive(lane, Reject(reason), 1.0)
    lanes = [APP] if lane is APP else [APP, COMPLETION]
    assert actions == [*[CloseLane(each, linger=False) for each in lanes], node.end]
    assert node.end.reject is reason
    assert node.end.failure.at == 1.0
    assert node.actions(Ready) == []


@each_role
@pytest.mark.parametrize("reason", [RejectReason.DUPLICATE_CONNECTION, RejectReason.RESOURCE_LIMIT])
def test_the_owner_has_the_last_word_before_an_admission(role: str, reason: RejectReason) -> None:
    asked = []

    def judge(remote: Any) -> RejectReason:
        asked.append(remote)
        return reason

    node = Node(role, judge=judge)
    actions = node.admit_application(0.0)
    assert asked == [node.peer]
    assert node.end.reject is reason
    assert node.end.failure.reason is FailureReason.REJECTED
    assert (actions[0] == Send(APP, Reject(reason))) is (role == "accepting")
    assert node.actions(Admitted) == []


@each_role
def test_the_owner_is_not_asked_about_a_peer_that_failed_a_check(role: str) -> None:
    def judge(remote: Any) -> None:
        raise AssertionError("asked")

    node = Node(role, expected=COMPLETE, judge=judge)
    node.admit_application(0.0, admission("node-p", generation=8))
    assert node.end.reject is RejectReason.LIFECYCLE_GENERATION_STALE


# -- NotRequired -------------------------------------------------------------------------------------------------------


@pytest.mark.contract("LV-33", "LV-36", "LV-39")
def test_two_object_clients_end_as_not_required_on_both_sides() -> None:
    wire = link(
        latency=(0.01, 0.01),
        dialler={"local": object_client("node-a")},
        acceptor={"local": object_client("node-b")},
    )
    wire.start()
    wire.run_until(600.0)
    for node in wire.nodes:
        assert node.end == Ended(failure=None, not_required=True, reject=RejectReason.NOT_REQUIRED)
        assert node.pair.failure is None
        assert node.actions(Ready) == node.actions(Admitted) == node.actions(NotReady) == node.probes == []
        assert node.pair.next_deadline() is None
        assert node.owner.next_deadline() is None
        assert node.pair.liveness.deadline is None
        assert len(node.owner) == 0
    dialler, acceptor = wire.nodes
    assert dialler.actions(Dial) == [Dial(APP)]
    assert [command for _, command in acceptor.sent(Reject)] == [Reject(RejectReason.NOT_REQUIRED)]
    assert wire.connections[APP].seen_closed == [True, True]


def test_a_dialler_that_is_admitted_all_the_same_sees_that_the_pair_is_not_required() -> None:
    node = Node("dialling", local=object_client("node-n"), peer=object_client("node-p"))
    node.admit_application(0.0)
    assert node.end == Ended(failure=None, not_required=True, reject=RejectReason.NOT_REQUIRED)
    assert [command for _, command in node.sent(Close)] == [Close(CloseReason.ORDERLY)]


@pytest.mark.parametrize("other", [admission("node-b"), object_client("node-b", channels=(("lobby", 0),))])
def test_an_object_client_connects_with_any_other_kind_of_peer(other: Any) -> None:
    wire = ready_link(dialler={"local": object_client("node-a")}, acceptor={"local": other})
    assert all(node.pair.ready for node in wire.nodes)
    assert not roles_not_required(ObjectRole.CLIENT, False, other.ext.object_role, bool(other.channels))


# -- deadlines of the handshake ----------------------------------------------------------------------------------------


@pytest.mark.contract("LV-176")
@pytest.mark.parametrize("transport", [False, True], ids=["no transport", "no admit"])
def test_a_dial_without_admit_ends_as_a_transport_error(transport: bool) -> None:
    node = Node("dialling")
    node.start(10.0)
    if transport:
        node.opened(APP, 11.0)
    node.run_until(10.0 + DIAL_DEADLINE - 0.001)
    assert node.actions(Ended) == []
    node.run_until(10.0 + DIAL_DEADLINE)
    failure = node.end.failure
    assert failure == Failure(FailureReason.TRANSPORT_ERROR, failure.detail, 15.0)
    assert "application lane within 5 s" in failure.detail
    assert node.closed_lanes == {APP}
    assert node.owner.next_deadline() is None


@each_role
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
    node.start(0.0)
    if role == "dialling":
        node.opened(APP, 0.0)
    node.receive(APP, node.repeated_handshake(), 5.0)
    assert node.end.failure.reason is FailureReason.TRANSPORT_ERROR
    assert node.actions(Admitted) == []


@pytest.mark.contract("LV-176")
@pytest.mark.parametrize("lane", list(Lane))
def test_a_refused_dial_ends_at_once(lane: Lane) -> None:
    wire = link()
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


@each_role
def test_a_new_revision_is_told_once(role: str) -> None:
    node = ready_node(role)
    node.local = admission("node-n", revision=4, state=RuntimeState.DRAINING)
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


@each_role
def test_a_completion_handshake_never_moves_the_revision(role: str) -> None:
    node = Node(role)
    node.admit_application(0.0)
    node.admit_completion(0.2, admission("node-p", revision=2, weight=7))
    assert node.pair.ready
    assert node.pair.remote == node.peer
    newer = admission("node-p", revision=2, weight=7)
    assert node.receive(APP, Update(newer), 0.3) == [Updated(newer)]


@each_role
def test_a_completion_handshake_that_contradicts_the_application_lane_is_a_violation(role: str) -> None:
    node = Node(role)
    node.admit_application(0.0)
    node.admit_completion(0.2, admission("node-p", weight=7))
    assert node.end.failure.reason is FailureReason.PROTOCOL_ERROR
    assert "body.admission.ext.placementWeight" in node.end.failure.detail


# -- records out of place ----------------------------------------------------------------------------------------------


def ends_with_violation(node: Node, field: str) -> None:
    assert node.end.failure.reason is FailureReason.PROTOCOL_ERROR
    ((_, close),) = node.sent(Close)
    assert (close.reason, close.field) == (CloseReason.PROTOCOL_ERROR, field)
    assert close.problem
    assert node.end.failure.detail == f"{close.field}: {close.problem}"


@each_role
@pytest.mark.parametrize("when", ["connecting", "ready"])
def test_a_handshake_record_of_the_wrong_side_is_a_violation(role: str, when: str) -> None:
    node = Node(role)
    node.start(0.0)
    if role == "dialling":
        node.opened(APP, 0.0)
    if when == "ready":
        node = ready_node(role)
    kind = Hello if role == "dialling" else Admit
    node.receive(APP, kind(node.peer, APP, PAIR_ID), 1.0)
    ends_with_violation(node, "prefix.command")
    assert node.sent(LivenessAck) == []


@each_role
def test_a_reject_where_none_can_come_is_a_violation(role: str) -> None:
    node = ready_node(role)
    node.receive(APP, Reject(RejectReason.RESOURCE_LIMIT), 1.0)
    ends_with_violation(node, "prefix.command")


@each_role
def test_a_handshake_record_that_names_another_lane_is_a_violation(role: str) -> None:
    node = Node(role)
    node.start(0.0)
    if role == "dialling":
        node.opened(APP, 0.0)
    kind = Admit if role == "dialling" else Hello
    node.receive(APP, kind(node.peer, COMPLETION, PAIR_ID), 1.0)
    ends_with_violation(node, "body.lane")


@each_role
@pytest.mark.parametrize("admitted", [False, True], ids=["first", "repeated"])
def test_another_pair_id_on_the_application_lane_is_a_violation(role: str, admitted: bool) -> None:
    node = ready_node(role) if admitted else Node(role)
    if not admitted:
        node.start(0.0)
        if role == "dialling":
            node.opened(APP, 0.0)
    kind = Admit if role == "dialling" else Hello
    node.receive(APP, kind(node.peer, APP, b"another!"), 1.0)
    ends_with_violation(node, "body.pairId")


def test_a_completion_admit_that_does_not_echo_the_pair_is_a_violation() -> None:
    node = Node("dialling")
    node.admit_application(0.0)
    node.opened(COMPLETION, 0.0)
    node.receive(COMPLETION, Admit(node.peer, COMPLETION, b"another!"), 1.0)
    ends_with_violation(node, "body.pairId")


def test_a_completion_hello_before_the_application_lane_is_a_violation() -> None:
    node = Node("accepting")
    node.start(0.0)
    node.receive(COMPLETION, Hello(node.peer, COMPLETION, PAIR_ID), 0.0)
    ends_with_violation(node, "prefix.command")
    assert node.closed_lanes == {APP, COMPLETION}


def test_an_admit_nobody_asked_for_is_a_violation() -> None:
    node = Node("dialling")
    node.start(0.0)
    node.receive(APP, Admit(node.peer, APP, PAIR_ID), 0.5)
    assert node.end.failure.reason is FailureReason.PROTOCOL_ERROR
    assert node.actions(Admitted) == []


@each_role
@pytest.mark.parametrize("command", [LivenessProbe(3), LivenessAck(3), ReceiveFlow(FlowState.PAUSED)], ids=repr)
@pytest.mark.contract("LV-55")
def test_liveness_before_admission_is_not_answered_and_closes(role: str, command: Any) -> None:
    node = Node(role)
    node.start(0.0)
    if role == "dialling":
        node.opened(APP, 0.0)
    actions = node.receive(APP, command, 1.0)
    assert [type(action) for action in actions] == [Send, CloseLane, Ended]
    assert node.sent(LivenessAck) == []
    ends_with_violation(node, "prefix.command")


@each_role
def test_an_update_before_admission_is_a_violation(role: str) -> None:
    node = Node(role)
    node.start(0.0)
    if role == "dialling":
        node.opened(APP, 0.0)
    node.receive(APP, Update(node.peer), 1.0)
    ends_with_violation(node, "prefix.command")


@each_role
@pytest.mark.parametrize("lane", list(Lane))
def test_an_application_record_before_admission_is_a_violation(role: str, lane: Lane) -> None:
    node = Node(role)
    node.start(0.0)
    if role == "dialling":
        node.opened(APP, 0.0)
    node.take(node.pair.touch(1.0, lane), 1.0)
    ends_with_violation(node, "prefix.command")
    assert node.pair.last_receive is None


@each_role
def test_an_admitted_peer_may_send_application_records_before_we_are_ready(role: str) -> None:
    node = Node(role, prepared=False)
    node.admit_application(0.0)
    assert node.pair.touch(1.0) == []
    assert node.pair.last_receive == 1.0


@each_role
@pytest.mark.parametrize(
    "command", [LivenessProbe(3), LivenessAck(3), ReceiveFlow(FlowState.PAUSED), Close(CloseReason.ORDERLY)], ids=repr
)
def test_application_lane_commands_on_the_completion_lane_are_violations(role: str, command: Any) -> None:
    node = ready_node(role)
    # Past the codec, which refuses the lane already: the machine does not rely on it.
    node.take(node.pair.receive(COMPLETION, command, 1.0), 1.0)
    ends_with_violation(node, "lane")
    assert node.closed_lanes == {APP, COMPLETION}
    assert node.sent(LivenessAck) == []


@each_role
@pytest.mark.parametrize("lane", list(Lane))
def test_a_violation_is_told_on_the_application_lane_and_closes_both(role: str, lane: Lane) -> None:
    node = ready_node(role)
    error = ProtocolError("must be 5", field="body.corr")
    actions = node.take(node.pair.violated(lane, error, 1.0), 1.0)
    failure = Failure(FailureReason.PROTOCOL_ERROR, "body.corr: must be 5", 1.0)
    assert actions == [
        Send(APP, Close(CloseReason.PROTOCOL_ERROR, "body.corr", "must be 5")),
        NotReady(failure),
        CloseLane(APP, linger=True),
        CloseLane(COMPLETION, linger=True, after=APP),
        Ended(failure),
    ]


@each_role
def test_the_texts_of_a_violation_always_fit_on_the_wire(role: str) -> None:
    node = ready_node(role)
    error = ProtocolError("é" * 400 + "\ud800", field="f" * 400)
    node.take(node.pair.violated(APP, error, 1.0), 1.0)
    ((_, close),) = node.sent(Close)
    assert close.problem == "é" * 128
    assert close.field == "f" * 255
    nameless = ready_node(role)
    nameless.take(nameless.pair.violated(APP, ProtocolError("odd"), 1.0), 1.0)
    assert nameless.sent(Close)[0][1].field == "record"


def test_events_that_do_not_fit_the_lane_are_ignored() -> None:
    node = Node("dialling")
    assert node.opened(APP, 0.0) == []
    assert node.lost(COMPLETION, 0.0) == []
    node.start(0.0)
    node.opened(APP, 0.0)
    assert node.opened(APP, 0.1) == []
    assert node.pair.set_flow(FlowState.PAUSED, 0.2) == []
    assert node.pair.announce(0.2) == []


@each_role
def test_the_description_of_a_pair_tells_where_it_stands(role: str) -> None:
    node = Node(role)
    assert "connecting" in repr(node.pair)
    node.admit_application(0.0)
    assert "node-p admitted application=admitted" in repr(node.pair)
    node.admit_completion(0.0)
    assert "node-p ready application=admitted completion=admitted" in repr(node.pair)


def test_an_expectation_is_read_at_the_moment_of_the_check() -> None:
    node = Node("dialling", expected=None)
    node.start(0.0)
    node.opened(APP, 0.0)
    node.expected = attrs.evolve(COMPLETE, generation=9)
    node.receive(APP, Admit(node.peer, APP, PAIR_ID), 0.5)
    assert node.end.reject is RejectReason.LIFECYCLE_GENERATION_STALE
