"""What a pass runs next, driven by hand; and what a takeover's verdict means."""

from __future__ import annotations

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.sessions.drain_machine import DrainQueue, DrainStep
from zlinkpy.sessions.takeover_machine import Verdict, plan
from zlinkpy.sessions.types import Priority


@frozen
class Message:
    name: str
    priority: int = Priority.NEXT
    delivered_at: float | None = 0.0
    handler_ref: str = "chat"


def order(queue: DrainQueue[Message]) -> list[str]:
    return [each.name for each in queue.take_all()]


@pytest.mark.contract("SR-184")
def test_priority_first_then_arrival_stable_on_ties() -> None:
    queue: DrainQueue[Message] = DrainQueue()
    queue.merge([Message("late", delivered_at=5), Message("a", delivered_at=3), Message("b", delivered_at=3)])
    queue.merge([Message("c", delivered_at=3), Message("now", Priority.NOW, 9), Message("later", Priority.LATER, 0)])
    assert order(queue) == ["now", "a", "b", "c", "late", "later"]


@given(st.lists(st.tuples(st.sampled_from(Priority), st.integers(0, 3)), max_size=30), st.integers(0, 30))
@pytest.mark.contract("SR-184")
def test_merging_in_pieces_is_merging_at_once(pairs: list[tuple[Priority, int]], cut: int) -> None:
    messages = [Message(str(i), priority, at) for i, (priority, at) in enumerate(pairs)]
    one: DrainQueue[Message] = DrainQueue()
    one.merge(messages)
    two: DrainQueue[Message] = DrainQueue()
    two.merge(messages[:cut])
    two.merge(messages[cut:])
    assert order(one) == order(two)


@pytest.mark.contract("SR-125", "SR-126")
def test_the_own_message_is_behind_what_was_there_and_before_what_comes() -> None:
    queue: DrainQueue[Message] = DrainQueue()
    own = Message("own", delivered_at=None)
    queue.merge([Message("orphan", delivered_at=7), Message("now", Priority.NOW, 9)], own)
    queue.merge([Message("new", delivered_at=8)])
    assert order(queue) == ["now", "orphan", "own", "new"]
    queue.merge([], own)
    queue.merge([Message("new", delivered_at=1)])
    assert order(queue) == ["own", "new"]


@pytest.mark.contract("SR-188")
def test_what_a_turn_did_not_consume_is_next() -> None:
    queue: DrainQueue[Message] = DrainQueue()
    queue.merge([Message("urgent", Priority.NOW, 1)])
    queue.push_front([Message("x", Priority.NOW, 5), Message("y", Priority.NOW, 6)])
    assert order(queue) == ["x", "y", "urgent"]


@pytest.mark.contract("SR-127", "SR-172")
def test_the_steps() -> None:
    queue: DrainQueue[Message] = DrainQueue()
    assert queue.next_step("chat", may_run=True) is DrainStep.END
    assert queue.next_step("chat", may_run=False) is DrainStep.END
    queue.merge([Message("a"), Message("b", handler_ref="other")])
    assert queue.next_step("chat", may_run=True) is DrainStep.RUN
    assert queue.next_step("chat", may_run=False) is DrainStep.PUT_BACK
    queue.take()
    assert queue.next_step("chat", may_run=True) is DrainStep.REJECT
    assert len(queue) == 1


@pytest.mark.contract("SR-194", "SR-196", "SR-198", "SR-200", "SR-201", "SR-202", "SR-403")
@pytest.mark.parametrize(
    ("verdict", "bind", "write", "unheld", "reset", "discard"),
    [
        (Verdict.SELF, False, True, False, True, False),
        (Verdict.KEYLESS, False, False, False, False, False),
        (Verdict.WON, True, True, False, True, False),
        (Verdict.REFUSED, False, False, False, False, False),
        (Verdict.UNKNOWN, True, True, True, True, True),
    ],
)
def test_the_verdicts(verdict: Verdict, bind: bool, write: bool, unheld: bool, reset: bool, discard: bool) -> None:
    found = plan(verdict)
    assert (found.bind, found.write, found.allow_unheld, found.reset, found.discard) == (
        bind,
        write,
        unheld,
        reset,
        discard,
    )
