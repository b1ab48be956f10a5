"""The seat of a session, driven by hand: the gate, the marks, and what follows when somebody leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.sessions.gate_machine import YIELD_QUIET, Gate, SeatAction, SessionSeat, Ticket

Seat = SessionSeat[str]


def seat(*, lease: str | None = None, gate: Gate | None = None) -> Seat:
    made: Seat = SessionSeat("s1")
    made.lease, made.gate = lease, gate
    return made


@pytest.mark.contract("SR-148")
@pytest.mark.parametrize("kind", [Gate.TURN, Gate.DRAIN, Gate.DELETE])
def test_a_taken_gate_is_not_given_twice(kind: Gate) -> None:
    one = seat()
    assert one.enter(kind)
    assert not one.enter(Gate.TURN)
    one.leave(0.0, has_handle=True, accepting=True)
    assert one.enter(Gate.TURN)


def test_a_ring_at_a_free_gate_starts_a_pass_and_at_a_taken_one_tells_it() -> None:
    assert seat().ring(0.0, accepting=True) == [SeatAction.DRAIN]
    busy = seat(gate=Gate.TURN)
    assert busy.ring(0.0, accepting=True) == [SeatAction.NOTIFY]
    assert busy.leave(0.0, has_handle=True, accepting=True) == [SeatAction.DRAIN]


@pytest.mark.contract("SR-209")
def test_a_ring_after_the_last_collect_is_answered_by_the_leaver() -> None:
    busy = seat(lease="L", gate=Gate.TURN)
    busy.clear_doorbell()
    busy.ring(1.0, accepting=True)
    assert busy.leave(1.0, has_handle=True, accepting=True) == [SeatAction.DRAIN]


@pytest.mark.contract("SR-157")
def test_a_handle_that_closes_while_the_gate_is_taken_has_its_lease_returned_by_the_leaver() -> None:
    busy = seat(lease="L", gate=Gate.TURN)
    assert busy.handle_closed() == []
    assert busy.leave(0.0, has_handle=False, accepting=True) == [SeatAction.RETURN]
    assert busy.gate is Gate.RETURN


def test_a_lease_stays_when_a_new_handle_took_the_place_of_the_closed_one() -> None:
    busy = seat(lease="L", gate=Gate.TURN)
    busy.handle_closed()
    assert busy.leave(0.0, has_handle=True, accepting=True) == []
    assert busy.lease == "L"
    assert busy.leave(0.0, has_handle=False, accepting=True) == []


def test_an_idle_handle_that_closes_has_its_lease_returned_at_once() -> None:
    idle = seat(lease="L")
    assert idle.handle_closed() == [SeatAction.RETURN]
    assert not idle.enter(Gate.TURN)
    assert seat().handle_closed() == []


def test_every_return_rings_again_when_there_is_a_mark() -> None:
    one = seat(lease="L", gate=Gate.RETURN)
    one.return_begun()
    one.ring(0.0, accepting=True)
    assert one.return_done(1.0, accepting=True) == []
    assert one.leave(1.0, has_handle=False, accepting=True) == [SeatAction.DRAIN]
    other = seat()
    other.returning, other.doorbell = 1, True
    assert other.return_done(1.0, accepting=True) == [SeatAction.DRAIN]


@pytest.mark.contract("SR-439")
def test_after_a_yield_the_doorbell_waits_for_the_asker() -> None:
    one = seat(lease="L", gate=Gate.RETURN)
    assert one.yield_asked() == [SeatAction.EVICT]
    one.return_begun()
    one.return_done(10.0, accepting=True)
    one.leave(10.0, has_handle=False, accepting=True)
    assert not one.yielding
    assert one.ring(10.0, accepting=True) == [SeatAction.WAKE]
    assert one.wake_at() == 10.0 + YIELD_QUIET
    assert one.ring(10.0 + YIELD_QUIET, accepting=True) == [SeatAction.DRAIN]


@pytest.mark.contract("SR-311")
def test_asking_twice_is_asking_once() -> None:
    one = seat(lease="L")
    assert one.yield_asked() == [SeatAction.EVICT]
    assert one.yield_asked() == []
    assert seat().yield_asked() == []


@pytest.mark.contract("SR-291")
def test_a_closing_node_relays_once_and_only_what_it_holds() -> None:
    assert seat().ring(0.0, accepting=False) == []
    one = seat(lease="L")
    assert one.ring(0.0, accepting=False) == [SeatAction.YIELD]
    assert one.ring(0.0, accepting=False) == []
    one.return_begun()
    assert one.return_done(1.0, accepting=False) == [SeatAction.RELAY]
    assert one.leave(1.0, has_handle=False, accepting=False) == []


@pytest.mark.contract("SR-276")
def test_marks_do_not_outlive_the_session() -> None:
    one = seat(gate=Gate.RELEASE)
    one.ring(0.0, accepting=True)
    one.drop_marks()
    assert one.leave(0.0, has_handle=False, accepting=True) == []
    assert one.is_blank


@pytest.mark.contract("SR-433")
def test_a_store_that_does_not_answer_is_asked_again_later() -> None:
    one = seat(lease="L", gate=Gate.TURN)
    one.retry_later(5.0)
    assert one.leave(4.0, has_handle=True, accepting=True) == [SeatAction.WAKE]
    assert one.wake_at() == 5.0
    assert one.ring(5.0, accepting=True) == [SeatAction.DRAIN]


@pytest.mark.contract("SR-441")
def test_who_is_expected_gets_the_gate_before_a_ring_is_answered() -> None:
    one = seat(lease="L", gate=Gate.TURN)
    first, second = Ticket(Gate.RELEASE), Ticket(Gate.DELETE)
    one.expected += [first, second]
    one.ring(0.0, accepting=True)
    assert one.leave(0.0, has_handle=True, accepting=True) == []
    assert (one.gate, first.granted, second.granted) == (Gate.RELEASE, True, False)
    assert one.leave(0.0, has_handle=True, accepting=True) == []
    assert second.granted


STEPS = st.lists(st.sampled_from(["ring", "enter", "leave", "collect", "closed", "returned", "lease"]), max_size=60)


@given(STEPS)
@pytest.mark.contract("SR-208", "SR-209")
def test_no_ring_is_forgotten(steps: list[str]) -> None:
    """Whatever happens in between: a mark that no collect took is answered, or somebody is in there who will see it."""
    one = seat()
    answered = True
    for step in steps:
        actions: list[SeatAction] = []
        if step == "ring":
            answered = False
            actions = one.ring(0.0, accepting=True)
        elif step == "enter":
            one.enter(Gate.TURN)
        elif step == "leave" and one.gate is not None and not one.returning:
            actions = one.leave(0.0, has_handle=False, accepting=True)
        elif step == "collect" and one.gate in (Gate.TURN, Gate.DRAIN):
            one.clear_doorbell()
            answered = True
        elif step == "closed":
            actions = one.handle_closed()
        elif step == "lease" and one.gate in (Gate.TURN, Gate.DRAIN) and one.lease is None:
            one.install("L")
        elif step == "returned" and one.gate is Gate.RETURN and one.lease is not None:
            one.return_begun()
            one.return_done(0.0, accepting=True)
        if SeatAction.DRAIN in actions:
            assert one.enter(Gate.DRAIN)
        assert answered or one.doorbell
        assert not one.doorbell or one.gate is not None
