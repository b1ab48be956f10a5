"""Servers and publishers publish only, clients and subscribers discover only (LO sections 7, 8, 10, 11)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, evolve, field

from tests.location_hosts import OPTIONS, Gate, every, others, plant, put, stored_lease, until
from tests.location_kinds import CHANNEL, PUBLISHER, SERVER, Subject, channel_kinds, every_kind, publisher, server
from zlinkpy.entropy import SeededEntropy
from zlinkpy.errors import ConfigurationError, InvalidOperationError
from zlinkpy.location import (
    Descriptor,
    Interest,
    LeaseDriver,
    LeaseState,
    MemoryStore,
    OwnerLease,
    Snapshot,
    StoreHealth,
    StoreOperation,
    keys,
    publishers_of,
    servers_of,
)
from zlinkpy.location.store import Delete
from zlinkpy.runtime.discovery import ServiceLocation
from zlinkpy.wire import RuntimeState

LEASES = b"owner-lease\0"


@define(eq=False)
class Process:
    """One process with a lease: a provider, a client, or both."""

    gate: Gate
    lease: OwnerLease
    health: StoreHealth
    location: ServiceLocation[Any]
    own: Any
    snapshots: list[Snapshot[Any]] = field(factory=list)

    @property
    def snapshot(self) -> Snapshot[Any]:
        return self.snapshots[-1] if self.snapshots else Snapshot()

    @property
    def rids(self) -> list[str]:
        return [candidate.rid for candidate in self.snapshot.candidates]

    def change(self, **fields: Any) -> None:
        """Change what this process provides, and tell."""
        self.own = evolve(self.own, **fields)
        self.location.changed()


@asynccontextmanager
async def process(
    store: MemoryStore,
    name: str,
    *,
    own: Descriptor | None = None,
    discover: Interest[Any] | None = None,
    publish: bool = True,
    lease_alone: float = 0.0,
) -> AsyncIterator[Process]:
    """Run one process; `own` is what it publishes at once, unless told otherwise.

    `lease_alone` is how many seconds its lease is there before the rest.
    """
    gate = Gate(store)
    health = StoreHealth(OPTIONS.store_failure_grace)
    lease = OwnerLease(gate, OPTIONS, SeededEntropy(name), driver=LeaseDriver.LOOP, health=health)
    snapshots: list[Snapshot[Any]] = []
    location: ServiceLocation[Any] = ServiceLocation(
        gate,
        lease,
        OPTIONS,
        health,
        publish=None if own is None else lambda: running.own,
        discover=discover,
        on_snapshot=snapshots.append,
    )
    running = Process(gate, lease, health, location, own, snapshots)
    async with lease:
        await trio.sleep(lease_alone)
        async with location:
            if publish:
                await location.publish()
            yield running


def interest(subject: Subject, channel: str = CHANNEL) -> Interest[Any]:
    return servers_of(channel) if subject is SERVER else publishers_of(channel)


@channel_kinds
async def test_a_provider_lists_nobody_and_a_client_writes_nothing(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    async with (
        process(store, "p", own=subject.describe("p")) as provider,
        process(store, "c", discover=interest(subject)) as client,
    ):
        await trio.sleep(3.5)
        assert client.rids == ["p"]
        assert client.snapshot.candidates[0].descriptor == await subject.stored(store, "p")
        assert not [call for call in provider.gate.calls if call.operation == "scan"]
        assert {call.key[: len(LEASES)] for call in client.gate.calls if call.operation == "write"} == {LEASES}
        client.location.changed()
        assert await client.location.settled()
        await client.location.remove()
        provider.location.refresh()
        assert provider.snapshots == []


@channel_kinds
async def test_a_client_sees_a_provider_of_its_own_process(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    async with process(store, "both", own=subject.describe("p"), discover=interest(subject)) as both:
        await until(lambda: both.rids == ["p"], 2)


@pytest.mark.contract("LO-157")
@channel_kinds
async def test_other_channels_and_kinds_are_not_listed_and_harm_nothing(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    await plant(store, subject.describe("good"))
    await plant(store, subject.describe("other", channel_name=CHANNEL + "2"), ttl_ms=None)
    await put(store, subject.kind.key(CHANNEL + "2", "bad"), b"{}")
    stranger = PUBLISHER if subject is SERVER else SERVER
    await put(store, stranger.key("bad"), b"{}")
    async with process(store, "c", discover=interest(subject)) as client:
        await trio.sleep(1)
        assert client.rids == ["good"]
        assert client.snapshot.store_ok


@pytest.mark.contract("LO-172")
async def test_three_publishers_are_three_candidates_and_a_removed_one_goes(autojump_clock: object) -> None:
    store = MemoryStore()
    async with (
        process(store, "a", own=publisher("a")),
        process(store, "b", own=publisher("b")) as leaving,
        process(store, "c", own=publisher("c")),
        process(store, "s", discover=publishers_of(CHANNEL)) as subscriber,
    ):
        await until(lambda: subscriber.rids == ["a", "b", "c"], 2)
        endpoints = {candidate.descriptor.endpoint for candidate in subscriber.snapshot.candidates}
        assert len(endpoints) == 3
        await leaving.location.remove()
        await until(lambda: subscriber.rids == ["a", "c"], 2)


@pytest.mark.contract("LO-175")
@channel_kinds
@pytest.mark.parametrize("state", [RuntimeState.RELOCATING, RuntimeState.RELOCATED, RuntimeState.DRAINING])
async def test_a_leaving_provider_stays_listed_takes_no_connection_and_is_replaced(
    autojump_clock: object, subject: Subject, state: RuntimeState
) -> None:
    store = MemoryStore()
    async with (
        process(store, "a", own=subject.describe("a")) as leaving,
        process(store, "c", discover=interest(subject)) as client,
    ):
        await until(lambda: client.rids == ["a"], 2)
        assert client.snapshot.candidates[0].descriptor.takes_connections
        leaving.change(state=state)
        assert await leaving.location.settled()
        await until(lambda: client.snapshot.candidates[0].descriptor.state is state, 2)
        (candidate,) = client.snapshot.candidates
        assert not candidate.descriptor.takes_connections
        assert not candidate.is_selectable(trio.current_time())
        async with process(store, "b", own=subject.describe("b")):
            await until(lambda: client.rids == ["a", "b"], 2)
            new = client.snapshot.find("b")
            assert new is not None
            assert new.descriptor.takes_connections
            assert new.is_selectable(trio.current_time())


@pytest.mark.contract("LO-133")
async def test_a_weight_change_of_a_server_is_published_at_once(autojump_clock: object) -> None:
    store = MemoryStore()
    async with (
        process(store, "a", own=server("a", weight=100)) as provider,
        process(store, "c", discover=servers_of(CHANNEL)) as client,
    ):
        await until(lambda: client.rids == ["a"], 2)
        provider.change(weight=0)
        await trio.testing.wait_all_tasks_blocked()
        assert [row.weight for row in SERVER.sent(provider.gate)] == [100, 0]
        provider.location.changed()
        await until(lambda: client.snapshot.candidates[0].descriptor.weight == 0, 2)
        assert len(SERVER.sent(provider.gate)) == 2


@pytest.mark.contract("LO-130")
@channel_kinds
async def test_nothing_is_published_before_publish(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    async with process(store, "a", own=subject.describe("a", endpoint="tcp://x:0"), publish=False) as provider:
        provider.change(state=RuntimeState.PREPARING)
        await trio.sleep(3)
        assert provider.gate.writes(subject.prefix) == []
        with pytest.raises(InvalidOperationError):
            await provider.location.settled()
        provider.own = subject.describe("a")
        await provider.location.publish()
        assert await provider.location.settled()
        assert (await subject.stored(store, "a")).endpoint == provider.own.endpoint


@pytest.mark.contract("LO-148")
@channel_kinds
async def test_two_providers_with_one_id_cannot_both_start(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    async with process(store, "first", own=subject.describe("a")):
        before = await store.read(subject.key("a"))
        failures: list[Exception] = []
        async with process(store, "second", own=subject.describe("a", port=9), publish=False) as second:
            second.location.on_failure(failures.append)
            with pytest.raises(ConfigurationError, match=f"routing id a of channel {CHANNEL} is in use"):
                await second.location.publish()
            assert [type(failure) for failure in failures] == [ConfigurationError]
        after = await store.read(subject.key("a"))
        assert evolve(after, store_now=before.store_now) == before


@pytest.mark.contract("LO-110", "LO-192")
@channel_kinds
async def test_a_provider_whose_lease_was_put_back_publishes_the_same_again(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    async with process(store, "a", own=subject.describe("a")) as provider:
        owner, generation = provider.lease.owner_id, provider.lease.lease_generation
        await trio.sleep_until(6)
        provider.gate.rule = every("refuse")
        await trio.sleep_until(26)
        assert not provider.lease.is_valid(trio.current_time())
        store.flush()
        provider.gate.rule = every("pass")
        await until(lambda: provider.lease.epoch > 0, 5.5)
        await trio.sleep(0.2)
        stored = await subject.stored(store, "a")
        assert (stored.owner_id, stored.lease_generation, stored.descriptor_revision) == (owner, generation, 1)


@pytest.mark.contract("LO-111")
@channel_kinds
async def test_a_provider_whose_lease_was_lost_never_writes_again(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    async with process(store, "a", own=subject.describe("a")) as provider:
        await put(store, keys.owner_lease(provider.lease.owner_id), b'{"recordVersion":1}', 15_000)
        await trio.sleep_until(6)
        assert provider.lease.state is LeaseState.LOST
        seen = len(provider.gate.calls)
        provider.change(state=RuntimeState.DRAINING)
        assert not await provider.location.settled()
        await trio.sleep(60)
    assert len(provider.gate.calls) == seen
    assert (await subject.stored(store, "a")).state is RuntimeState.SERVING


@pytest.mark.contract("LO-112", "LO-121")
@channel_kinds
async def test_a_provider_that_slept_puts_its_lease_back_before_it_publishes(
    mock_clock: trio.testing.MockClock, subject: Subject
) -> None:
    store = MemoryStore()
    async with process(store, "a", own=subject.describe("a")) as provider:
        await trio.testing.wait_all_tasks_blocked()
        seen = len(provider.gate.calls)
        mock_clock.jump(30)
        provider.change(state=RuntimeState.DRAINING)
        await trio.testing.wait_all_tasks_blocked()
        assert provider.lease.epoch == 1
        writes = [call for call in provider.gate.calls[seen:] if call.operation == "write"]
        lease_key, row_key = keys.owner_lease(provider.lease.owner_id), subject.key("a")
        assert [sorted(call.written) for call in writes] == [[lease_key], [lease_key], [row_key]]
        assert (await subject.stored(store, "a")).state is RuntimeState.DRAINING


@pytest.mark.contract("LO-124")
@channel_kinds
async def test_a_provider_publishes_nothing_while_its_lease_is_not_valid(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    async with process(store, "a", own=subject.describe("a")) as provider:
        provider.gate.rule = lambda call: "refuse" if call.key.startswith(LEASES) else "pass"
        await trio.sleep_until(25)
        assert not provider.lease.is_valid(trio.current_time())
        seen = len(provider.gate.writes(subject.prefix))
        provider.change(state=RuntimeState.DRAINING)
        assert not await provider.location.settled()
        await trio.sleep(10)
        assert len(provider.gate.writes(subject.prefix)) == seen
        provider.gate.rule = every("pass")
        await trio.sleep(6)
        assert (await subject.stored(store, "a")).state is RuntimeState.DRAINING


@pytest.mark.contract("LO-144", "LO-113")
@channel_kinds
async def test_a_provider_leaves_its_descriptor_first_and_then_its_lease(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    async with process(store, "a", own=subject.describe("a")) as provider:
        await trio.sleep(2)
    assert await subject.stored(store, "a") is None
    assert await stored_lease(store, provider.lease.owner_id) is None
    writes = [call.written for call in provider.gate.calls if call.operation == "write"]
    assert writes[-2:] == [{subject.key("a")}, {keys.owner_lease(provider.lease.owner_id)}]


@pytest.mark.contract("LO-192")
@channel_kinds
@pytest.mark.parametrize("phase", range(12))
async def test_an_emptied_store_costs_a_client_without_a_row_no_target(
    autojump_clock: object, subject: Subject, phase: int
) -> None:
    store = MemoryStore()
    async with (
        process(store, "a", own=subject.describe("a")),
        process(store, "b", own=subject.describe("b")),
    ):
        # The client's lease is renewed at other times than the providers': before or after them, as the phase has it.
        await trio.sleep(2.5)
        async with process(store, "c", discover=interest(subject)) as client:
            await until(lambda: client.rids == ["a", "b"], 2)
            seen = len(client.snapshots)
            await trio.sleep(3 + 0.45 * phase)
            store.flush()
            await trio.sleep(OPTIONS.owner_lease_renew_interval + 2)
            assert await subject.stored(store, "a") is not None
            assert await subject.stored(store, "b") is not None
            await trio.sleep(30)
            for snapshot in client.snapshots[seen:]:
                assert [candidate.rid for candidate in snapshot.candidates] == ["a", "b"]


@pytest.mark.contract("LO-192")
@every_kind
async def test_a_lease_put_back_between_two_lists_tells_that_the_store_was_emptied(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    own = subject.describe("c")
    async with process(store, "a", own=subject.describe("a")):
        await trio.sleep_until(2.5)
        # Lists at .1 of every second, renewals at 7.5 and 12.5; the other process puts its rows back at 10.
        async with process(store, "c", own=own, discover=others(own), lease_alone=0.6) as client:
            await trio.sleep_until(7.3)
            assert client.rids == ["a"]
            seen = len(client.snapshots)
            store.flush()
            await trio.sleep_until(8.3)
            assert client.lease.epoch == 1
            assert await subject.stored(store, "a") is None
            await trio.sleep_until(60)
            for snapshot in client.snapshots[seen:]:
                assert [candidate.rid for candidate in snapshot.candidates] == ["a"]


@pytest.mark.contract("LO-190")
@channel_kinds
async def test_a_target_that_left_goes_at_once_while_the_store_remembers_the_client(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    await plant(store, subject.describe("x"), ttl_ms=3_600_000)
    async with process(store, "c", discover=interest(subject)) as client:
        await trio.sleep(3.5)
        assert client.rids == ["x"]
        await store.write([], [Delete(subject.key("x"))])
        await until(lambda: client.rids == [], 1.1)


@channel_kinds
async def test_a_fresh_list_is_read_when_asked_for_and_failures_are_kept_quiet(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    async with process(store, "c", discover=interest(subject)) as client:
        await trio.sleep(1.2)
        await plant(store, subject.describe("x"))
        client.location.refresh()
        client.location.refresh()
        await trio.testing.wait_all_tasks_blocked()
        assert client.rids == ["x"]
        scans = [call.at for call in client.gate.calls if call.operation == "scan"]
        assert scans[-2:] == [1.0, 1.2]
        client.gate.rule = every("refuse")
        client.location.refresh()
        await trio.testing.wait_all_tasks_blocked()
        assert client.rids == ["x"]
        assert client.snapshot.operation is StoreOperation.DESCRIPTOR_READ
        client.gate.rule = every("pass")
        client.location.refresh()
        await trio.testing.wait_all_tasks_blocked()
        assert client.snapshot.store_ok
    client.location.refresh()
