"""Records out of place end the pair and say why; events out of place do nothing."""

from __future__ import annotations

from typing import Any

import pytest

from zlinkpy.errors import ProtocolError
from zlinkpy.link import (
    Admitted,
    CloseLane,
    Ended,
    Failure,
    FailureReason,
    NotReady,
    Send,
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
    ReceiveFlow,
    Reject,
    RejectReason,
    Update,
)

from .harness import (
    APP,
    COMPLETION,
    MESH_ROLES,
    PAIR_ID,
    ROLES,
    SERVICE_ROLES,
    UPDATED_ROLES,
    Node,
    lanes_of,
    ready_node,
    said,
)

each_role = pytest.mark.parametrize("role", ROLES)
mesh_role = pytest.mark.parametrize("role", MESH_ROLES)
each_lane = pytest.mark.parametrize(("role", "lane"), [(role, lane) for role in ROLES for lane in lanes_of(role)])


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
    node.connect(0.0)
    if when == "ready":
        node = ready_node(role)
    kind = Hello if node.dials else Admit
    wrong = kind(node.peer) if role in SERVICE_ROLES else kind(node.peer, APP, PAIR_ID)
    # Past the codec, which knows the directions of ClientServer: the machine does not rely on it.
    node.take(node.pair.receive(APP, wrong, 1.0), 1.0)
    ends_with_violation(node, "prefix.command")
    assert node.sent(LivenessAck) == []


@each_role
def test_a_reject_where_none_can_come_is_a_violation(role: str) -> None:
    node = ready_node(role)
    node.take(node.pair.receive(APP, Reject(RejectReason.RESOURCE_LIMIT), 1.0), 1.0)
    ends_with_violation(node, "prefix.command")


@mesh_role
def test_a_handshake_record_that_names_another_lane_is_a_violation(role: str) -> None:
    node = Node(role)
    node.start(0.0)
    if role == "dialling":
        node.opened(APP, 0.0)
    kind = Admit if role == "dialling" else Hello
    node.receive(APP, kind(node.peer, COMPLETION, PAIR_ID), 1.0)
    ends_with_violation(node, "body.lane")


@mesh_role
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


@pytest.mark.parametrize("role", ["dialling", "client"])
def test_an_admit_nobody_asked_for_is_a_violation(role: str) -> None:
    node = Node(role)
    node.start(0.0)
    node.receive(APP, node.repeated_handshake(), 0.5)
    assert node.end.failure.reason is FailureReason.PROTOCOL_ERROR
    assert node.actions(Admitted) == []


@each_role
@pytest.mark.parametrize("command", [LivenessProbe(3), LivenessAck(3), ReceiveFlow(FlowState.PAUSED)], ids=repr)
@pytest.mark.contract("LV-55")
def test_liveness_before_admission_is_not_answered_and_closes(role: str, command: Any) -> None:
    node = Node(role)
    node.connect(0.0)
    actions = node.receive(APP, command, 1.0)
    assert [type(action) for action in actions] == [Send, CloseLane, Ended]
    assert node.sent(LivenessAck) == []
    ends_with_violation(node, "prefix.command")


@pytest.mark.parametrize("role", UPDATED_ROLES)
def test_an_update_before_admission_is_a_violation(role: str) -> None:
    node = Node(role)
    node.connect(0.0)
    node.receive(APP, Update(node.peer), 1.0)
    ends_with_violation(node, "prefix.command")


@each_lane
def test_an_application_record_before_admission_is_a_violation(role: str, lane: Lane) -> None:
    node = Node(role)
    node.connect(0.0)
    node.take(node.pair.touch(1.0, lane), 1.0)
    ends_with_violation(node, "prefix.command")
    assert node.pair.last_receive is None


@each_role
def test_an_admitted_peer_may_send_application_records_before_we_are_ready(role: str) -> None:
    node = Node(role, prepared=False)
    node.admit_application(0.0)
    assert node.pair.touch(1.0) == []
    assert node.pair.last_receive == 1.0


@mesh_role
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


@each_lane
def test_a_violation_is_told_on_the_application_lane_and_closes_all(role: str, lane: Lane) -> None:
    node = ready_node(role)
    error = ProtocolError("must be 5", field="body.corr")
    actions = node.take(node.pair.violated(lane, error, 1.0), 1.0)
    failure = Failure(FailureReason.PROTOCOL_ERROR, "body.corr: must be 5", 1.0)
    assert actions == [
        Send(APP, Close(CloseReason.PROTOCOL_ERROR, "body.corr", "must be 5")),
        NotReady(failure),
        CloseLane(APP, linger=True),
        *[CloseLane(other, linger=True, after=APP) for other in node.lanes[1:]],
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


@pytest.mark.parametrize("role", SERVICE_ROLES)
@pytest.mark.parametrize("when", ["connecting", "ready"])
def test_the_admission_of_the_own_role_is_a_violation(role: str, when: str) -> None:
    node = Node(role)
    node.connect(0.0)
    if when == "ready":
        node = ready_node(role)
    kind = Admit if node.dials else Hello
    # Past the codec, which knows who may say what: the machine does not rely on it.
    node.take(node.pair.receive(APP, kind(node.local), 1.0), 1.0)
    ends_with_violation(node, "body.admission")


def test_a_client_has_nothing_to_update() -> None:
    """The codec knows the direction; the machine does not rely on it."""
    node = ready_node("server")
    node.take(node.pair.receive(APP, Update(node.peer), 1.0), 1.0)
    ends_with_violation(node, "prefix.command")


@pytest.mark.parametrize(
    ("changes", "field"), [({"channel": "other"}, "channelName"), ({"limit": 9}, "maxMessageBytes")]
)
def test_a_client_says_the_same_thing_for_the_life_of_its_connection(changes: dict[str, Any], field: str) -> None:
    node = ready_node("server")
    node.receive(APP, Hello(said("server", **changes)), 1.0)
    ends_with_violation(node, f"body.admission.{field}")


def test_events_that_do_not_fit_the_lane_are_ignored() -> None:
    node = Node("dialling")
    assert node.opened(APP, 0.0) == []
    assert node.lost(COMPLETION, 0.0) == []
    node.start(0.0)
    node.opened(APP, 0.0)
    assert node.opened(APP, 0.1) == []
    assert node.pair.set_flow(FlowState.PAUSED, 0.2) == []
    assert node.pair.announce(0.2) == []
