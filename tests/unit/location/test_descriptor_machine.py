"""Corners of the descriptor machine that need an answer at an exact step."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.location_kinds import NODE, Subject, every_kind
from zlinkpy.location import LocationOptions
from zlinkpy.location.descriptor_machine import DescriptorMachine
from zlinkpy.location.requests import Batch, Lookup, Request
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Applied, Conflict, Found, IfVersion, Missing, Put, StoreFailure

LEASE = LeaseRow("me", 1).encode()
LOST = StoreFailure("lost", applied="unknown", operation="write")


def row_of(request: Request | None, subject: Subject) -> bytes:
    assert isinstance(request, Batch)
    (put,) = [
        mutation for mutation in request.mutations if isinstance(mutation, Put) and mutation.key == subject.key("a")
    ]
    return put.value


def published(subject: Subject) -> tuple[DescriptorMachine, bytes]:
    machine = DescriptorMachine(LocationOptions(), subject.describe("a"), "me")
    row = row_of(machine.poll(0.0, LEASE, 1, 7), subject)
    assert machine.settle(Applied({subject.key("a"): "v1"}, 0), 0.0) is None
    assert machine.is_current
    return machine, row


@pytest.mark.contract("LO-135")
@every_kind
def test_going_back_to_the_old_content_outdates_the_revision_that_may_still_arrive(subject: Subject) -> None:
    machine, first = published(subject)
    machine.want(subject.vary(subject.describe("a"), 1))
    machine.poll(1.0, LEASE, 1, 7)
    machine.want(subject.describe("a"))
    assert isinstance(machine.settle(LOST, 1.1), Lookup)
    machine.settle(Found(first, "v1", None, 0), 1.1)
    assert not machine.is_current
    third = machine.poll(1.1, LEASE, 1, 7)
    assert subject.kind.decode(row_of(third, subject)).descriptor_revision == 3
    assert isinstance(third, Batch)
    assert third.conditions[0] == IfVersion(subject.key("a"), "v1")


@every_kind
def test_the_same_content_goes_out_again_with_the_same_bytes(subject: Subject) -> None:
    machine, _ = published(subject)
    machine.want(subject.vary(subject.describe("a"), 1))
    sent = row_of(machine.poll(1.0, LEASE, 1, 100), subject)
    machine.settle(StoreFailure("refused", applied="no", operation="write"), 1.0)
    assert machine.poll(1.5, LEASE, 1, 200) is None
    assert row_of(machine.poll(2.0, LEASE, 1, 200), subject) == sent


@every_kind
def test_a_lease_put_back_during_a_round_is_verified_after_it(subject: Subject) -> None:
    machine, first = published(subject)
    machine.want(subject.vary(subject.describe("a"), 1))
    machine.poll(1.0, LEASE, 1, 7)
    machine.verify()
    assert machine.settle(Applied({subject.key("a"): "v2"}, 0), 1.0) is None
    assert not machine.is_current
    check = machine.poll(1.0, LEASE, 1, 7)
    assert isinstance(check, Lookup)
    again = machine.settle(Missing(0), 1.0)
    assert subject.kind.decode(row_of(again, subject)).descriptor_revision == 2
    assert subject.kind.decode(first).descriptor_revision == 1


@every_kind
def test_a_removal_that_was_refused_without_a_change_is_given_up(subject: Subject) -> None:
    machine, first = published(subject)
    assert isinstance(machine.remove(1.0), Batch)
    assert isinstance(machine.settle(Conflict(0), 1.0), Lookup)
    assert machine.settle(Found(first, "v1", None, 0), 1.0) is None


@every_kind
def test_a_removal_whose_answer_was_lost_is_repeated_where_the_row_is_still_there(subject: Subject) -> None:
    machine, first = published(subject)
    machine.remove(1.0)
    machine.settle(LOST, 1.1)
    assert isinstance(machine.settle(Found(first, "v1", None, 0), 1.1), Batch)
    assert isinstance(machine.settle(LOST, 1.2), Lookup)
    assert machine.settle(Missing(0), 1.2) is None


@every_kind
def test_nothing_sent_is_nothing_to_remove(subject: Subject) -> None:
    assert DescriptorMachine(LocationOptions(), subject.describe("a"), "me").remove(0.0) is None


@every_kind
def test_a_second_lifecycle_of_one_owner_under_one_key_is_refused(subject: Subject) -> None:
    machine, first = published(subject)
    machine.verify()
    machine.poll(1.0, LEASE, 1, 7)
    other = evolve(subject.kind.decode(first), lifecycle_generation=99)
    machine.settle(Found(subject.kind.encode(other, 0), "v9", None, 0), 1.0)
    assert machine.failure is not None


def test_an_answer_without_a_request_is_a_defect() -> None:
    machine, _ = published(NODE)
    with pytest.raises(RuntimeError, match="in flight"):
        machine.settle(Missing(0), 1.0)
