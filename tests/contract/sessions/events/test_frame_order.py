"""A subscriber's view of a turn: each event once, in order, holes named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.sessions.events import Gap, OutputDelta, TurnEvent
from zlinkpy.sessions.frame_order_machine import TURNS_KEPT, FrameOrder


def frame(seq: int | None, turn: str | None = "t") -> TurnEvent:
    return OutputDelta(str(seq), turn_id=turn, seq=seq)


def shown(order: FrameOrder, *frames: TurnEvent) -> list[object]:
    """Numbers, and pairs for gaps."""
    return [
        (each.first_seq, each.last_seq) if isinstance(each, Gap) else each.seq
        for event in frames
        for each in order.put(event)
    ]


@pytest.mark.contract("SR-398")
def test_a_hole_is_named_and_a_repetition_is_not_shown() -> None:
    order = FrameOrder()
    assert shown(order, *map(frame, (3, 4, 4, 3, 7, 6, 8))) == [3, 4, (5, 6), 7, 8]


@pytest.mark.contract("SR-398")
def test_only_the_first_turn_may_have_begun_before_the_subscriber_came() -> None:
    order = FrameOrder()
    assert shown(order, frame(9, "t1"), frame(3, "t2"), frame(1, "t3")) == [9, (1, 2), 3, 1]


@pytest.mark.contract("SR-456")
@pytest.mark.parametrize(
    ("kept", "live", "expected"),
    [
        (range(31, 41), [39, 40, 41], [*range(31, 41), 41]),
        (range(29, 34), [34], [31, 32, 33, 34]),
        (range(35, 41), [41], [(31, 34), *range(35, 41), 41]),
        ([], [31], [31]),
        ([], [5, 30, 31], [31]),
        ([], [40], [(31, 39), 40]),
    ],
)
def test_a_replay_begins_where_it_was_asked_to(kept: list[int], live: list[int], expected: list[object]) -> None:
    order = FrameOrder()
    order.start("t", 31)
    assert shown(order, *map(frame, [*kept, *live])) == expected


@pytest.mark.contract("SR-345")
def test_what_belongs_to_no_turn_passes_whatever_came_before() -> None:
    order = FrameOrder()
    order.start("t", 5)
    assert order.put(frame(None, None)) == [frame(None, None)]
    assert order.put(frame(7, None)) == [frame(7, None)]
    assert order.put(frame(None)) == [frame(None)]
    assert shown(order, frame(5)) == [5]


def test_it_does_not_grow_with_the_turns() -> None:
    order = FrameOrder()
    for number in range(1000):
        order.put(frame(1, f"t{number}"))
    assert len(order._next) == TURNS_KEPT


@given(st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)), st.integers(1, 30))
def test_two_ways_together_show_their_union_once(kept: set[int], live: set[int], start: int) -> None:
    """Journal first, live after it: what neither lost comes, in order, and gaps plus numbers count without a hole."""
    order = FrameOrder()
    order.start("t", start)
    out = shown(order, *map(frame, sorted(kept)), *map(frame, sorted(live)))
    numbers = [each for each in out if isinstance(each, int)]
    assert numbers == sorted(set(numbers))
    expected = start
    for each in out:
        first, last = each if isinstance(each, tuple) else (each, each)
        assert first == expected
        expected = last + 1
    reached = max((number for number in kept if number >= start), default=start - 1)
    assert set(numbers) == {n for n in kept if n >= start} | {n for n in live if n > reached}
