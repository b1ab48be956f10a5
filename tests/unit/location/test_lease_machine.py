"""Corners of the lease machine that need an answer at an exact step; the contract tests have its everyday behaviour."""

from __future__ import annotations

import pytest

from zlinkpy.location import LeaseEventKind, LeaseState, LocationOptions, keys
from zlinkpy.location.lease_machine import LeaseMachine
from zlinkpy.location.requests import Batch, Lookup, Request
from zlinkpy.location.store import Applied, Conflict, Found, IfMissing, IfValue, IfVersion, Missing, StoreFailure

KEY = keys.owner_lease("me")
LOST = StoreFailure("lost", applied="unknown", operation="write")
REFUSED = StoreFailure("refused", applied="no", operation="read")


def applied(version: str, *more: bytes) -> Applied:
    return Applied(dict.fromkeys((KEY, *more), version), 0)


def held() -> LeaseMachine:
    """A machine that claimed at 0 without an incident."""
    machine = LeaseMachine(LocationOptions(), "me")
    assert isinstance(machine.poll(0.0), Lookup)
    assert isinstance(machine.settle(Missing(0), 0.0), Batch)
    assert machine.settle(applied("v1", keys.OWNER_COUNTER), 0.0) is None
    assert machine.state is LeaseState.HELD
    return machine


def condition(request: Request | None) -> object:
    assert isinstance(request, Batch)
    return request.conditions[0]


def mine(machine: LeaseMachine, version: str, left: int = 15_000) -> Found:
    return Found(machine.row or b"", version, left, 0)


def kinds(machine: LeaseMachine) -> list[LeaseEventKind]:
    return [event.kind for event in machine.take_events()]


def test_a_put_back_that_may_still_arrive_makes_renewals_watch_the_version() -> None:
    machine = held()
    assert isinstance(condition(machine.poll(5.0)), IfValue)
    machine.settle(Conflict(0), 5.0)
    assert condition(machine.settle(Missing(0), 5.0)) == IfMissing(KEY)
    assert isinstance(machine.settle(LOST, 5.1), Lookup)
    assert condition(machine.settle(Missing(0), 5.1)) == IfMissing(KEY)
    assert machine.settle(applied("v2"), 5.1) is None
    assert (machine.state, machine.epoch) == (LeaseState.HELD, 1)
    machine.take_events()

    # The first put-back is still out there. Had the row gone and come back by it, a renewal by value would succeed.
    assert condition(machine.poll(10.0)) == IfVersion(KEY, "v2")
    assert isinstance(machine.settle(Conflict(0), 10.0), Lookup)
    assert machine.settle(mine(machine, "late"), 10.0) is None
    assert kinds(machine) == [LeaseEventKind.LAPSED, LeaseEventKind.RESTORED]
    assert machine.epoch == 2


def test_where_nothing_is_loose_a_found_renewal_is_a_renewal() -> None:
    machine = held()
    machine.poll(5.0)
    machine.settle(LOST, 5.0)
    machine.take_events()
    assert machine.settle(mine(machine, "v2"), 5.0) is None
    assert kinds(machine) == [LeaseEventKind.RENEWED]
    assert machine.epoch == 0
    assert isinstance(condition(machine.poll(10.0)), IfValue)


def test_a_put_back_that_was_found_is_loose_no_more() -> None:
    machine = held()
    machine.poll(5.0)
    machine.settle(Conflict(0), 5.0)
    machine.settle(Missing(0), 5.0)
    machine.settle(LOST, 5.1)
    assert machine.settle(mine(machine, "v2"), 5.1) is None
    assert machine.epoch == 1
    assert isinstance(condition(machine.poll(10.0)), IfValue)


def test_an_own_claim_that_lands_after_the_store_was_emptied_is_no_foreign_owner() -> None:
    machine = LeaseMachine(LocationOptions(), "me")
    machine.poll(0.0)
    machine.settle(Missing(0), 0.0)
    machine.settle(LOST, 0.1)
    machine.settle(Missing(0), 0.1)
    machine.settle(Found(b"2", "c", None, 0), 0.1)
    assert machine.settle(applied("v1", keys.OWNER_COUNTER), 0.1) is None
    assert machine.lease_generation == 2
    row = machine.row
    machine.poll(5.1)
    machine.settle(Conflict(0), 5.1)
    late = b'{"recordVersion":1,"ownerId":"me","leaseGeneration":"1"}'
    replace = machine.settle(Found(late, "v0", 15_000, 0), 5.1)
    assert condition(replace) == IfValue(KEY, late)
    assert machine.settle(applied("v2"), 5.1) is None
    assert (machine.state, machine.row, machine.epoch) == (LeaseState.HELD, row, 1)


def test_a_found_claim_without_time_left_is_held_but_not_valid() -> None:
    machine = LeaseMachine(LocationOptions(), "me")
    machine.poll(0.0)
    machine.settle(Missing(0), 0.0)
    machine.settle(LOST, 1.5)
    row = b'{"recordVersion":1,"ownerId":"me","leaseGeneration":"1"}'
    machine.settle(Found(row, "v", 2_000, 0), 2.9)
    assert machine.state is LeaseState.HELD
    assert not machine.is_valid(2.9)
    assert machine.own_deadline == 1.5 + 2.0 - 5.0


def test_rounds_end_when_their_time_is_over() -> None:
    machine = held()
    machine.poll(5.0)
    assert machine.settle(LOST, 8.0) is None
    assert kinds(machine)[-1] is LeaseEventKind.FAILED
    assert machine.next_deadline() == 10.0
    machine.poll(10.0)
    machine.settle(LOST, 10.1)
    assert machine.settle(REFUSED, 17.0) is None
    assert machine.next_deadline() == 17.0


def test_a_stopped_machine_finishes_what_is_under_way_and_begins_nothing() -> None:
    machine = held()
    machine.poll(5.0)
    machine.stop()
    assert machine.settle(LOST, 5.1) is None
    assert machine.next_deadline() is None
    assert machine.poll(100.0) is None
    release = machine.release(5.1)
    assert condition(release) == IfValue(KEY, machine.row or b"")
    assert machine.settle(Conflict(0), 5.2) is None
    assert machine.state is LeaseState.RELEASED
    assert machine.release(6.0) is None


def test_an_answer_without_a_request_is_a_defect() -> None:
    with pytest.raises(RuntimeError, match="in flight"):
        held().settle(Missing(0), 1.0)
