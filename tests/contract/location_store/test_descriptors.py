"""Descriptors of every kind on both providers: as bytes in the store, and from one process to another (LO §4, §8)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.contract.location_store.conftest import Bench
from tests.location_hosts import others, put, rids
from tests.location_kinds import Subject, every_kind
from zlinkpy.entropy import SystemEntropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.location import DescriptorPublisher, LocationOptions, OwnerLease, ServiceDiscovery, Snapshot, clean_store
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Found, LocationStore, Missing
from zlinkpy.wire import RuntimeState

# Real seconds: a server does not follow a test's clock.
FAST = LocationOptions(
    owner_lease_renew_interval=0.5,
    owner_lease_ttl=3,
    owner_lease_renew_timeout=0.5,
    owner_lease_fencing_margin=1,
    polling_interval=0.05,
).validate()


class Watcher:
    """What another process sees."""

    def __init__(self) -> None:
        self.snapshot: Snapshot[Any] = Snapshot()
        self._changed = trio.Event()

    def take(self, snapshot: Snapshot[Any]) -> None:
        self.snapshot = snapshot
        self._changed.set()
        self._changed = trio.Event()

    async def sees(self, *expected: str, state: RuntimeState = RuntimeState.SERVING) -> None:
        """Wait for exactly these, in this state."""
        with trio.fail_after(10):
            while rids(self.snapshot) != list(expected) or any(
                candidate.descriptor.state is not state for candidate in self.snapshot.candidates
            ):
                await self._changed.wait()


@asynccontextmanager
async def watching(store: LocationStore, subject: Subject) -> AsyncIterator[Watcher]:
    watcher = Watcher()
    finder = ServiceDiscovery(store, FAST, others(subject.describe("watcher")), watcher.take)
    async with trio.open_nursery() as nursery:
        await nursery.start(finder.run)
        yield watcher
        nursery.cancel_scope.cancel()


@pytest.mark.contract("LO-076", "LO-130", "LO-144")
@every_kind
async def test_a_descriptor_goes_from_one_process_to_another_and_away(bench: Bench, subject: Subject) -> None:
    own = subject.describe("a")
    async with watching(bench.second, subject) as watcher:
        async with (
            OwnerLease(bench.store, FAST, SystemEntropy()) as lease,
            DescriptorPublisher(bench.store, lease, FAST) as publisher,
        ):
            assert await publisher.publish(own)
            found = await bench.second.read(subject.key("a"))
            assert isinstance(found, Found)
            assert found.expires_at is None
            row = json.loads(found.value)
            assert [
                type(row[name]) for name in ("recordVersion", "ownerId", "leaseGeneration", "descriptorRevision")
            ] == [
                int,
                str,
                str,
                str,
            ]
            assert subject.kind.decode(found.value) == own.signed(1, lease.owner_id, lease.lease_generation or 0)
            await watcher.sees("a")
            publisher.update(evolve(own, state=RuntimeState.DRAINING))
            assert await publisher.settled()
            await watcher.sees("a", state=RuntimeState.DRAINING)
        await watcher.sees()
    assert isinstance(await bench.second.read(subject.key("a")), Missing)


@pytest.mark.contract("LO-148")
@every_kind
async def test_an_id_in_use_is_refused_and_its_row_stays(bench: Bench, subject: Subject) -> None:
    taken = subject.kind.encode(subject.describe("a", lifecycle_generation=3).signed(4, "other", 9), 0)
    await put(bench.store, subject.key("a"), taken)
    await put(bench.store, b"owner-lease\0other", LeaseRow("other", 9).encode(), 60_000)
    async with (
        OwnerLease(bench.second, FAST, SystemEntropy()) as lease,
        DescriptorPublisher(bench.second, lease, FAST) as publisher,
    ):
        with pytest.raises(ConfigurationError, match="routing id a of"):
            await publisher.publish(subject.describe("a"))
    found = await bench.store.read(subject.key("a"))
    assert isinstance(found, Found)
    assert found.value == taken


@pytest.mark.contract("LO-145", "LO-146", "LO-150")
@every_kind
async def test_what_a_killed_process_left_is_hidden_and_stays_until_it_is_cleaned(
    bench: Bench, subject: Subject
) -> None:
    row = subject.kind.encode(subject.describe("a").signed(1, "killed", 9), 0)
    await put(bench.store, subject.key("a"), row)
    await put(bench.store, b"owner-lease\0killed", LeaseRow("killed", 9).encode(), 60_000)
    async with watching(bench.second, subject) as watcher:
        await watcher.sees("a")
        await put(bench.store, b"owner-lease\0killed", LeaseRow("killed", 9).encode(), 1)
        await bench.pass_ms(2)
        # A live lease read may be used again for a moment; the next read says that it is gone.
        await watcher.sees()
        found = await bench.store.read(subject.key("a"))
        assert isinstance(found, Found)
        assert found.value == row
    assert [(entry.descriptor.kind, entry.rid) for entry in (await clean_store(bench.second)).removed] == [
        (subject.kind, "a")
    ]
    assert isinstance(await bench.store.read(subject.key("a")), Missing)
