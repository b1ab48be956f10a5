"""Between *not ready any more* and *ended*: what the peer had sent before it left counts (wire.md §12)."""

from __future__ import annotations

import pytest

from zlinkpy.link import CloseLane, Ended, FailureReason, NotReady, PairPhase, Send
from zlinkpy.link.constants import MESSAGES_GRACE, REPLIES_GRACE
from zlinkpy.wire import Close, CloseReason, LivenessProbe

from .harness import APP, COMPLETION, MESH_ROLES, ready_node

mesh_role = pytest.mark.parametrize("role", MESH_ROLES)


@mesh_role
@pytest.mark.contract("LV-27", "LV-120")
def test_losing_the_completion_lane_ends_ready_at_once_and_reads_the_messages_on(role: str) -> None:
    node = ready_node(role)
    actions = node.lost(COMPLETION, 3.0, "connection reset")
    assert actions[0] == Send(APP, Close(CloseReason.ORDERLY)), "a peer that is alive answers with its own close"
    assert [type(action) for action in actions[1:]] == [NotReady]
    assert not node.pair.ready
    assert not node.owner.evidence("node-p")
    assert node.pair.phase is PairPhase.LEAVING
    assert node.closed_lanes == set(), "messages that arrived are still to be read"
    assert node.pair.touch(4.0, APP) == []
    node.receive(APP, Close(CloseReason.ORDERLY), 5.0)
    assert node.end.failure is not None
    assert node.end.failure.reason is FailureReason.ORDERLY_CLOSE
    assert node.closed_lanes == {APP}
    assert len(node.actions(NotReady)) == len(node.actions(Ended)) == 1


@mesh_role
def test_the_end_of_the_lane_that_is_read_ends_the_pair(role: str) -> None:
    node = ready_node(role)
    node.lost(COMPLETION, 3.0, "connection reset")
    node.lost(APP, 4.0, "disconnected")
    assert node.end.failure is not None
    assert node.end.failure.reason is FailureReason.TRANSPORT_ERROR
    assert "connection reset" in node.end.failure.detail, "the first failure is the reason"


@mesh_role
def test_messages_that_still_come_extend_the_grace(role: str) -> None:
    node = ready_node(role)
    node.lost(COMPLETION, 3.0, "connection reset")
    for now in (10.0, 20.0, 30.0):
        node.pair.touch(now, APP)
        node.tick(now)
    assert node.actions(Ended) == []
    node.tick(30.0 + MESSAGES_GRACE - 0.001)
    assert node.actions(Ended) == []
    node.tick(30.0 + MESSAGES_GRACE)
    assert len(node.actions(Ended)) == 1


@mesh_role
def test_after_a_close_replies_are_awaited_for_a_while(role: str) -> None:
    node = ready_node(role)
    actions = node.receive(APP, Close(CloseReason.ORDERLY), 2.0)
    assert actions[-1] == CloseLane(APP, linger=False)
    assert node.pair.awaits_replies
    node.lost(APP, 2.1, "closed here")
    assert node.actions(Ended) == []
    node.tick(2.0 + REPLIES_GRACE - 0.001)
    assert node.actions(Ended) == []
    node.tick(2.0 + REPLIES_GRACE)
    assert len(node.actions(Ended)) == 1
    assert not node.pair.awaits_replies


@mesh_role
def test_a_peer_that_has_left_is_neither_probed_nor_answered(role: str) -> None:
    node = ready_node(role)
    node.lost(COMPLETION, 3.0, "connection reset")
    assert node.receive(APP, LivenessProbe(7), 3.5) == []
    node.tick(5.0)
    node.tick(10.0)
    assert node.sent(LivenessProbe) == []
    assert node.pair.announce(6.0) == []


@mesh_role
def test_closing_it_here_ends_it_at_once(role: str) -> None:
    node = ready_node(role)
    node.lost(COMPLETION, 3.0, "connection reset")
    node.take(node.pair.close(CloseReason.ORDERLY, 3.5), 3.5)
    assert len(node.actions(Ended)) == len(node.actions(NotReady)) == 1


@mesh_role
def test_when_no_reply_is_awaited_any_more_the_pair_is_over(role: str) -> None:
    node = ready_node(role)
    assert node.pair.answered(1.0) == [], "a ready pair does not end because nobody waits for it"
    node.receive(APP, Close(CloseReason.ORDERLY), 2.0)
    node.take(node.pair.answered(2.5), 2.5)
    assert node.end.failure is not None
    assert node.end.failure.reason is FailureReason.ORDERLY_CLOSE
    assert node.closed_lanes == {APP, COMPLETION}
