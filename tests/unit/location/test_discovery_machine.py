"""Corners of the discovery machine that need an answer at an exact step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.location_hosts import others
from tests.location_kinds import Subject, every_kind
from zlinkpy.location import LocationOptions
from zlinkpy.location.discovery_machine import DiscoveryMachine
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Found, Item, Missing, StoreCorruption

OPTIONS = LocationOptions()


def item(subject: Subject, rid: str) -> Item:
    return Item(subject.key(rid), subject.kind.encode(subject.describe(rid).signed(1, rid, 1), 0), "v", None)


def lease(owner: str) -> Found:
    return Found(LeaseRow(owner, 1).encode(), "v", 15_000, 0)


def polled(machine: DiscoveryMachine[Any], *items: Item, now: float, gone: tuple[str, ...] = ()) -> list[str]:
    """One whole poll; returns whose leases were asked for."""
    machine.begin(now)
    owners = machine.listed(items)
    for owner in owners:
        machine.lease_read(owner, Missing(0) if owner in gone else lease(owner), now)
    machine.complete(now)
    return owners


def rids(machine: DiscoveryMachine[Any]) -> list[str]:
    return [candidate.rid for candidate in machine.snapshot.candidates]


def started(subject: Subject) -> DiscoveryMachine[Any]:
    """It has seen its own row and that of `x`."""
    machine = DiscoveryMachine(OPTIONS, others(subject.describe("me")), "me")
    assert polled(machine, item(subject, "me"), item(subject, "x"), now=0.0) == ["x"]
    assert rids(machine) == ["x"]
    return machine


@pytest.mark.contract("LO-190")
@every_kind
def test_the_own_lease_is_asked_for_only_when_a_target_has_vanished(subject: Subject) -> None:
    machine = started(subject)
    assert polled(machine, item(subject, "me"), item(subject, "x"), now=1.0) == []
    assert polled(machine, item(subject, "me"), now=2.0) == ["me"]
    assert rids(machine) == []
    assert polled(machine, item(subject, "me"), now=3.0) == []


@pytest.mark.contract("LO-192")
@every_kind
def test_an_own_row_that_is_gone_is_an_emptied_store_although_the_lease_is_there(subject: Subject) -> None:
    machine = started(subject)
    polled(machine, now=1.0)
    assert rids(machine) == ["x"]
    polled(machine, item(subject, "me"), now=15.9)
    assert rids(machine) == ["x"]
    polled(machine, item(subject, "me"), now=16.0)
    assert rids(machine) == []


@pytest.mark.contract("LO-192")
@every_kind
def test_while_the_own_lease_is_gone_the_time_of_the_recovery_has_not_begun(subject: Subject) -> None:
    machine = started(subject)
    polled(machine, item(subject, "me"), now=1.0, gone=("me",))
    polled(machine, item(subject, "me"), now=20.0, gone=("me",))
    assert rids(machine) == ["x"]
    polled(machine, item(subject, "me"), now=34.9)
    assert rids(machine) == ["x"]
    polled(machine, item(subject, "me"), now=35.0)
    assert rids(machine) == []


@every_kind
def test_an_own_lease_that_cannot_be_read_is_no_reason_to_stop(subject: Subject) -> None:
    machine = started(subject)
    machine.begin(1.0)
    assert machine.listed([item(subject, "me")]) == ["me"]
    machine.lease_read("me", Found(b"{}", "v", None, 0), 1.0)
    machine.complete(1.0)
    assert rids(machine) == []


@every_kind
def test_a_list_with_a_row_under_another_key_is_refused_whole(subject: Subject) -> None:
    machine = started(subject)
    machine.begin(1.0)
    moved = item(subject, "y")
    with pytest.raises(StoreCorruption, match="another key"):
        machine.listed([item(subject, "me"), Item(subject.key("z"), moved.value, "v", None)])
    assert rids(machine) == ["x"]
