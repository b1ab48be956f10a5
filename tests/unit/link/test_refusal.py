"""Peers that are not admitted: refused, rejected, or not required."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from zlinkpy.link import (
    Admitted,
    CloseLane,
    Dial,
    Ended,
    Expectation,
    FailureReason,
    LivenessOwner,
    NotReady,
    PairPhase,
    Ready,
    Send,
    roles_not_required,
)
from zlinkpy.wire import (
    Admit,
    Close,
    CloseReason,
    Hello,
    Lane,
    ObjectRole,
    Reject,
    RejectReason,
    RuntimeState,
)

from .harness import (
    APP,
    COMPLETION,
    DIALLING_ROLES,
    MESH_ROLES,
    PAIR_ID,
    ROLES,
    Node,
    admission,
    lanes_of,
    link,
    object_client,
    own,
    ready_link,
    ready_node,
    said,
)

COMPLETE = Expectation(rid="node-p", security_identity="key-of-node-p", generation=7)
each_role = pytest.mark.parametrize("role", ROLES)
mesh_role = pytest.mark.parametrize("role", MESH_ROLES)


# -- refusals ----------------------------------------------------------------------------------------------------------

MISMATCHES = [
    ({"rid": "node-x", "security": "key-of-node-p"}, FailureReason.IDENTITY_MISMATCH, RejectReason.IDENTITY_MISMATCH),
    ({"generation": 6}, FailureReason.GENERATION_MISMATCH, RejectReason.LIFECYCLE_GENERATION_STALE),
    ({"generation": 8}, FailureReason.GENERATION_MISMATCH, RejectReason.LIFECYCLE_GENERATION_STALE),
    ({"security": "forged"}, FailureReason.SECURITY_MISMATCH, RejectReason.SECURITY_IDENTITY_MISMATCH),
]
# A ClientServer client has a security identity and nothing else that could be another one.
each_mismatch = pytest.mark.parametrize(
    ("role", "changes", "reason", "reject"),
    [(role, *row) for role in ROLES for row in (MISMATCHES[3:] if role == "server" else MISMATCHES)],
)


@each_mismatch
@pytest.mark.contract("LV-22", "LV-132")
def test_another_identity_than_expected_is_never_ready_and_closes_with_its_reason(
    role: str, changes: dict[str, Any], reason: FailureReason, reject: RejectReason
) -> None:
    node = Node(role, expected=COMPLETE)
    actions = node.admit_application(1.0, said(role, **({"rid": "node-p"} | changes)))
    word = Send(APP, Close(CloseReason.ORDERLY) if node.dials else Reject(reject))
    assert actions[:2] == [word, CloseLane(APP, linger=True)]
    assert node.end.failure is not None
    assert node.end.failure.reason is reason
    assert node.end.reject is reject
    assert node.pair.failure == node.end.failure
    assert node.actions(Ready) == node.actions(Admitted) == node.actions(NotReady) == []
    assert node.pair.phase is PairPhase.ENDED


@mesh_role
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


@each_mismatch
@pytest.mark.parametrize("intent", [Expectation(), Expectation(rid="node-p", generation=0)])
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
    intruder.admit_application(1.0, said(role, **({"rid": "node-p"} | changes)))
    assert intruder.end.failure.reason is reason
    assert intruder.actions(Admitted) == []
    assert owner.is_ready("current")
    assert current.actions(NotReady) == current.actions(Ended) == []
    assert current.pair.liveness.deadline == 15.0


@pytest.mark.parametrize("reason", [reason for reason in RejectReason if reason is not RejectReason.NOT_REQUIRED])
@pytest.mark.parametrize(("role", "lane"), [(role, lane) for role in DIALLING_ROLES for lane in lanes_of(role)])
def test_a_reject_ends_the_attempt_with_its_reason(role: str, reason: RejectReason, lane: Lane) -> None:
    node = Node(role)
    if lane is APP:
        node.connect(0.0)
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
    assert (actions[0] == Send(APP, Reject(reason))) is not node.dials
    assert node.actions(Admitted) == []


@each_role
def test_the_owner_is_not_asked_about_a_peer_that_failed_a_check(role: str) -> None:
    def judge(remote: Any) -> None:
        raise AssertionError("asked")

    node = Node(role, expected=COMPLETE, judge=judge)
    node.admit_application(0.0, said(role, "node-p", security="forged"))
    assert node.end.reject is RejectReason.SECURITY_IDENTITY_MISMATCH


# -- ClientServer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["client", "server"])
def test_another_channel_is_refused(role: str) -> None:
    node = Node(role)
    actions = node.admit_application(0.0, said(role, channel="other"))
    reject = RejectReason.CHANNEL_MISMATCH
    assert actions[0] == Send(APP, Close(CloseReason.ORDERLY) if node.dials else Reject(reject))
    assert (node.end.reject, node.end.failure.reason) == (reject, FailureReason.REJECTED)
    assert node.actions(Ready) == []


def test_a_server_that_is_leaving_takes_no_new_client_and_says_so() -> None:
    states = (RuntimeState.RELOCATING, RuntimeState.RELOCATED, RuntimeState.DRAINING, RuntimeState.STOPPED)
    for state in (*states, RuntimeState.ERROR):
        server = Node("server", local=own("server", state=state))
        reject = Reject(RejectReason.RUNTIME_NOT_SERVING)
        assert server.admit_application(0.0)[0] == Send(APP, reject)
        client = Node("client")
        client.connect(0.0)
        client.receive(APP, reject, 0.1)
        for node in (server, client):
            assert node.end.failure.reason is FailureReason.HOST_NOT_SERVING
    for state in (RuntimeState.PREPARING, RuntimeState.SERVING):
        server = Node("server", local=own("server", state=state))
        server.admit_application(0.0)
        assert server.pair.ready


def test_an_expectation_is_read_at_the_moment_of_the_check() -> None:
    node = Node("dialling", expected=None)
    node.start(0.0)
    node.opened(APP, 0.0)
    node.expected = attrs.evolve(COMPLETE, generation=9)
    node.receive(APP, Admit(node.peer, APP, PAIR_ID), 0.5)
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
