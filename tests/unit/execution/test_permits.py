"""Permits: the count, the pressure state, and who gets a returned permit."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from zlinkpy.execution import JobQueueOptions, Permits, Pressure


def permits_of(maximum: int, pause: int = 80, resume: int = 60) -> Permits:
    return Permits(JobQueueOptions(max_queued_application_jobs=maximum, pause_percent=pause, resume_percent=resume))


@pytest.mark.contract("SA-232")
def test_the_pressure_state_has_two_marks_and_reports_each_change_once() -> None:
    permits = permits_of(10)
    seen: list[tuple[int, Pressure]] = []
    permits.on_pressure = lambda state: seen.append((permits.in_use, state))
    for _ in range(10):
        assert permits.try_take()
    for _ in range(3):
        permits.release()
    assert permits.in_use == 7
    assert permits.pressure is Pressure.PAUSED
    assert permits.try_take()
    for _ in range(2):
        permits.release()
    assert permits.try_take()
    assert permits.in_use == 7
    assert permits.pressure is Pressure.RUNNING
    while permits.in_use:
        permits.release()
    assert seen == [(8, Pressure.PAUSED), (6, Pressure.RUNNING)]


@pytest.mark.contract("SA-232")
@pytest.mark.parametrize(
    ("maximum", "pause", "resume", "paused_at", "running_at"),
    [
        (10, 80, 60, 8, 6),
        (7, 80, 60, 6, 4),
        (1, 80, 60, 1, 0),
        (3, 50, 49, 2, 1),
        (128, 1, 0, 2, 0),
        (2**31 - 1, 100, 99, 2**31 - 1, math.floor((2**31 - 1) * 0.99)),
    ],
)
def test_the_pause_mark_rounds_up_and_the_resume_mark_down(
    maximum: int, pause: int, resume: int, paused_at: int, running_at: int
) -> None:
    permits = permits_of(maximum, pause, resume)
    permits.in_use = paused_at - 2
    permits.take_over()
    assert permits.pressure is Pressure.RUNNING
    permits.take_over()
    assert permits.pressure is Pressure.PAUSED
    permits.in_use = running_at + 2
    permits.release()
    assert permits.pressure is Pressure.PAUSED
    permits.release()
    assert permits.pressure is Pressure.RUNNING


def test_the_state_is_in_force_before_it_is_reported() -> None:
    permits = permits_of(1)
    seen: list[bool] = []
    permits.on_pressure = lambda state: seen.append(permits.pressure is state)
    permits.try_take()
    permits.release()
    assert seen == [True, True]


def test_no_permit_beyond_the_maximum_unless_taken_over() -> None:
    permits = permits_of(2)
    assert permits.try_take()
    assert permits.try_take()
    assert not permits.try_take()
    permits.take_over()
    assert permits.in_use == 3
    permits.release()
    assert not permits.try_take()
    permits.release()
    assert permits.try_take()
    statistics = permits.statistics()
    assert (statistics.in_use, statistics.peak, statistics.refused, statistics.maximum) == (2, 3, 2, 2)


def test_returning_a_permit_twice_is_an_error() -> None:
    permits = permits_of(2)
    permits.try_take()
    permits.release()
    with pytest.raises(RuntimeError, match="returned twice"):
        permits.release()
    assert permits.in_use == 0


def test_available_is_told_once_after_a_refusal_and_only_then() -> None:
    permits = permits_of(1)
    calls: list[int] = []
    permits.on_available = lambda: calls.append(permits.in_use)
    permits.try_take()
    permits.release()
    assert calls == []
    permits.try_take()
    assert not permits.try_take()
    assert not permits.try_take()
    permits.release()
    assert calls == [0]
    permits.try_take()
    permits.release()
    assert calls == [0]


def test_available_is_not_told_while_the_maximum_is_still_exceeded() -> None:
    permits = permits_of(1)
    calls: list[int] = []
    permits.on_available = lambda: calls.append(permits.in_use)
    permits.try_take()
    permits.take_over()
    assert not permits.try_take()
    permits.release()
    assert calls == []
    permits.release()
    assert calls == [0]


def test_the_longest_waiting_is_served_first_through_on_available() -> None:
    permits = permits_of(1)
    waiting = deque("abc")
    served: list[str] = []

    def serve() -> None:
        while waiting and permits.try_take():
            served.append(waiting.popleft())

    permits.on_available = serve
    permits.try_take()
    assert not permits.try_take()
    for expected in ("a", "ab", "abc"):
        permits.release()
        assert "".join(served) == expected
    permits.release()
    assert permits.in_use == 0


def test_the_repr_is_an_operators_view() -> None:
    permits = permits_of(2)
    permits.try_take()
    permits.try_take()
    assert repr(permits) == "<Permits 2 of 2 in use, paused>"


class PermitMachine(RuleBasedStateMachine):
    """In use is takes minus releases, the state changes only at its marks, and nobody waits beside a free permit."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = permits_of(5)
        self.permits.on_available = self.serve
        self.permits.on_pressure = self.changed
        self.held = 0
        self.waiting = 0
        self.states = [Pressure.RUNNING]

    def serve(self) -> None:
        while self.waiting and self.permits.try_take():
            self.waiting -= 1
            self.held += 1

    def changed(self, state: Pressure) -> None:
        assert state is not self.states[-1]
        self.states.append(state)

    @rule()
    def take(self) -> None:
        if not self.waiting and self.permits.try_take():
            self.held += 1
        else:
            self.waiting += 1

    @rule()
    def take_over(self) -> None:
        self.permits.take_over()
        self.held += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, self.held))):
            self.held -= 1
            self.permits.release()

    @precondition(lambda self: self.waiting)
    @rule()
    def give_up(self) -> None:
        self.waiting -= 1

    @invariant()
    def consistent(self) -> None:
        assert self.permits.in_use == self.held
        assert self.permits.pressure is self.states[-1]
        if self.held >= 4:
            assert self.permits.pressure is Pressure.PAUSED
        if self.held <= 3:
            assert self.permits.pressure is Pressure.RUNNING
        assert not self.waiting or self.held >= 5


TestPermitMachine = PermitMachine.TestCase


@given(st.integers(1, 2**31 - 1), st.integers(1, 100), st.data())
def test_marks_are_exact_for_any_maximum(maximum: int, pause: int, data: st.DataObject) -> None:
    resume = data.draw(st.integers(0, pause - 1))
    options = JobQueueOptions(max_queued_application_jobs=maximum, pause_percent=pause, resume_percent=resume)
    assert options.pause_at(maximum) == -(-maximum * pause // 100)
    assert options.resume_at(maximum) == maximum * resume // 100
    assert options.resume_at(maximum) < options.pause_at(maximum)
