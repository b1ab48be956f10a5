"""What a full buffer does without (SR-329..335)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.sessions import events as ev
from zlinkpy.sessions.event_streams import grade_of
from zlinkpy.sessions.graded_buffer import GradedBuffer
from zlinkpy.sessions.relay_machine import RELAY_CAPACITY
from zlinkpy.sessions.signal_codec import OUTPUT, STRUCTURAL, TRACE, grade_of_type
from zlinkpy.sessions.types import InterruptReason


def filled(*grades: int) -> GradedBuffer[int]:
    buffer: GradedBuffer[int] = GradedBuffer(len(grades))
    for number, grade in enumerate(grades):
        assert buffer.push(number, grade)
    return buffer


@pytest.mark.contract("SR-329")
def test_a_newcomer_of_the_same_grade_takes_the_place_of_the_oldest() -> None:
    assert RELAY_CAPACITY == 1024
    buffer = filled(*[OUTPUT] * RELAY_CAPACITY)
    assert not buffer.push(-1, OUTPUT)
    assert buffer.items() == [*range(1, RELAY_CAPACITY), -1]
    assert buffer.dropped == 1


@pytest.mark.contract("SR-330")
def test_a_trace_goes_before_output() -> None:
    buffer = filled(OUTPUT, OUTPUT, TRACE, OUTPUT)
    buffer.push(-1, OUTPUT)
    assert buffer.items() == [0, 1, 3, -1]


@pytest.mark.contract("SR-331")
def test_a_trace_displaces_no_output() -> None:
    buffer = filled(OUTPUT, OUTPUT)
    assert not buffer.push(-1, TRACE)
    assert (buffer.items(), buffer.dropped) == ([0, 1], 1)


@pytest.mark.contract("SR-332")
def test_a_structural_frame_displaces_traces_first_then_output() -> None:
    buffer = filled(OUTPUT, TRACE, STRUCTURAL, TRACE, OUTPUT)
    gone = []
    for number in range(-1, -5, -1):
        before = buffer.items()
        buffer.push(number, STRUCTURAL)
        gone += sorted(set(before) - set(buffer.items()))
    assert gone == [1, 3, 0, 4]


@pytest.mark.contract("SR-333")
@pytest.mark.parametrize("grade", [TRACE, OUTPUT])
def test_a_delta_displaces_no_structural_frame(grade: int) -> None:
    buffer = filled(STRUCTURAL, STRUCTURAL)
    assert not buffer.push(-1, grade)
    assert (buffer.items(), buffer.dropped) == ([0, 1], 1)


@pytest.mark.contract("SR-334")
def test_a_structural_frame_displaces_the_oldest_structural_one() -> None:
    buffer = filled(STRUCTURAL, STRUCTURAL)
    buffer.push(-1, STRUCTURAL)
    assert (buffer.items(), buffer.dropped) == ([1, -1], 1)


class Invoice(ev.TurnEvent):
    """An application's own type."""


class LoudOutput(ev.OutputDelta):
    """An application's own type, too."""


@pytest.mark.contract("SR-335")
def test_only_the_two_deltas_can_be_done_without() -> None:
    structural = [
        ev.TurnStarted(),
        ev.StepStarted("s"),
        ev.StepFinished("s"),
        ev.OutputSnapshot("x"),
        ev.TurnCompleted(),
        ev.TurnFailed("x"),
        ev.InterruptedAt(InterruptReason.USER),
        ev.RejectedAt("a", "b"),
        Invoice(),
        LoudOutput("x"),
    ]
    assert {grade_of(event) for event in structural} == {STRUCTURAL}
    assert (grade_of(ev.TraceDelta("x")), grade_of(ev.OutputDelta("x"))) == (TRACE, OUTPUT)
    for event in (*structural, ev.TraceDelta("x"), ev.OutputDelta("x")):
        assert grade_of_type(type(event).__name__) == grade_of(event)
    for odd in (None, 5, "", "Newer", ["TraceDelta"]):
        assert grade_of_type(odd) == STRUCTURAL


@given(
    st.integers(1, 6),
    st.lists(st.one_of(st.tuples(st.just("push"), st.integers(0, 2)), st.just(("pop", 0))), max_size=60),
)
def test_it_does_what_a_search_through_one_list_would_do(capacity: int, steps: list[tuple[str, int]]) -> None:
    buffer: GradedBuffer[int] = GradedBuffer(capacity)
    model: list[tuple[int, int]] = []
    dropped = 0
    for number, (step, grade) in enumerate(steps):
        if step == "pop":
            if model:
                assert buffer.peek() == model[0][0]
                assert buffer.pop() == model.pop(0)[0]
            else:
                with pytest.raises(IndexError):
                    buffer.pop()
            continue
        taken = True
        if len(model) >= capacity:
            dropped += 1
            victims = [each for lower in (0, 1) if lower <= grade for each in model if each[1] == lower]
            if not victims and grade == STRUCTURAL:
                victims = [each for each in model if each[1] == STRUCTURAL]
            if victims:
                model.remove(victims[0])
            else:
                taken = False
        if taken:
            model.append((number, grade))
        buffer.push(number, grade)
        assert buffer.items() == [each[0] for each in model]
        assert (len(buffer), buffer.dropped) == (len(model), dropped)


def test_bytes_count_too_and_one_large_structural_item_is_taken_all_the_same() -> None:
    buffer: GradedBuffer[str] = GradedBuffer(100, 10)
    assert buffer.push("a", OUTPUT, 6)
    assert buffer.push("b", STRUCTURAL, 4)
    assert not buffer.push("c", OUTPUT, 6)
    assert buffer.items() == ["b", "c"]
    assert not buffer.push("d", TRACE, 1)
    assert not buffer.push("whole", STRUCTURAL, 50)
    assert (buffer.items(), buffer.dropped) == (["whole"], 4)
    assert not buffer.push("e", OUTPUT, 1)
    assert buffer.take(5) == ["whole"]
    assert not buffer.push("too large to be worth it", OUTPUT, 11)
    assert len(buffer) == 0


def test_what_is_abandoned_is_counted_and_structural_frames_stay() -> None:
    buffer = filled(TRACE, STRUCTURAL, OUTPUT, OUTPUT, STRUCTURAL)
    assert buffer.abandon() == 3
    assert (buffer.items(), buffer.dropped) == ([1, 4], 3)
    buffer.clear()
    assert (len(buffer), buffer.items(), buffer.dropped) == (0, [], 3)
