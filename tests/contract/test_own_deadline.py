"""LO sections 7 and 22: the own deadline, in virtual time against the memory store."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.location_hosts import (
    MESH,
    OPTIONS,
    Gate,
    every,
    host,
    node,
    only,
    put,
    stored_lease,
)
from zlinkpy.entropy import SeededEntropy
from zlinkpy.errors import UnavailableError
from zlinkpy.location import (
    DescriptorPublisher,
    LeaseDriver,
    LeaseEventKind,
    LeaseState,
    LocationOptions,
    OwnerLease,
    keys,
)
from zlinkpy.location.memory_store import MemoryStore

LEASES = b"owner-lease\0"
NODES = keys.mesh_node_prefix(MESH)


def lease_on(way: Gate | MemoryStore, seed: str = "a", options: LocationOptions = OPTIONS) -> OwnerLease:
    return OwnerLease(way, options, SeededEntropy(seed), driver=LeaseDriver.LOOP)


@pytest.mark.contract("LO-120")
@pytest.mark.parametrize("delay", [0.0, 0.4, 2.9])
async def test_the_own_deadline_counts_from_before_the_request(autojump_clock: object, delay: float) -> None:
    gate = Gate(MemoryStore())
    async with lease_on(gate) as lease:
        assert lease.own_deadline == 10
        gate.delay = delay
        await trio.sleep_until(5 + delay + 0.05)
        assert lease.own_deadline == pytest.approx(5 + 15 - 5)
        assert lease.is_valid(14.999)
        assert not lease.is_valid(15.0)


@pytest.mark.contract("LO-120")
async def test_an_answer_never_moves_the_deadline_back(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with lease_on(gate) as lease:
        # The renewal is lost before it arrives; reading back finds the row as it was, with what little it has left.
        gate.rule = only("cut", operation="write", times=10)
        await trio.sleep_until(6)
        assert lease.own_deadline == 10
        assert [call.operation for call in gate.calls if call.at == 5] == ["write", "read"] * 2


@pytest.mark.contract("LO-373")
async def test_a_store_clock_that_jumps_back_gives_no_more_than_the_ttl(autojump_clock: object) -> None:
    jump = 0

    def clock() -> int:
        return 1_700_000_000_000 + int(trio.current_time() * 1000) + jump

    store = MemoryStore(clock=clock)
    gate = Gate(store)
    async with lease_on(gate) as lease:
        jump = -10_000
        gate.rule = only("swallow", operation="write", times=1)
        await trio.sleep_until(5.5)
        stored = await stored_lease(store, lease.owner_id)
        assert stored is not None
        assert lease.own_deadline == pytest.approx(15)
        gate.rule = only("cut", operation="write", times=2)
        jump = -30_000
        await trio.sleep_until(10.5)
        assert lease.own_deadline is not None
        assert lease.own_deadline <= 10 + 15 - 5


@pytest.mark.contract("LO-374")
async def test_a_store_clock_that_jumps_forward_lapses_the_lease(autojump_clock: object) -> None:
    jump = 0
    store = MemoryStore(clock=lambda: 1_700_000_000_000 + int(trio.current_time() * 1000) + jump)
    async with host(store, "a") as running:
        await trio.sleep_until(4)
        jump = 20_000
        await trio.sleep_until(5.5)
        assert LeaseEventKind.LAPSED in running.kinds()
        assert running.lease.epoch == 1
        stored = await stored_lease(store, running.lease.owner_id)
        assert stored is not None
        assert stored[0].lease_generation == running.lease.lease_generation


@pytest.mark.contract("LO-123")
async def test_one_renewal_serves_everything_of_the_host(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with lease_on(gate) as lease:
        async with (
            DescriptorPublisher(gate, lease, OPTIONS) as one,
            DescriptorPublisher(gate, lease, OPTIONS) as two,
        ):
            await one.publish(node("a"))
            await two.publish(node("b", mesh_name="other"))
            gate.rule = only("refuse", key=LEASES)
            await trio.sleep_until(12)
            one.update(node("a", placement_weight=1))
            two.update(node("b", mesh_name="other", placement_weight=1))
            assert not await one.settled()
            assert not await two.settled()
            gate.rule = every("pass")
            await trio.sleep_until(15.1)
            assert (one.revision, two.revision) == (2, 2)
    assert len([call for call in gate.writes(LEASES) if call.at == 5]) == 1


@pytest.mark.contract("LO-124")
async def test_a_lapsed_lease_stays_lapsed_whatever_else_works(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", gate=gate) as running, host(store, "b"):
        gate.rule = only("refuse", key=LEASES, operation="write")
        await trio.sleep_until(25)
        assert running.rids == ["b"]
        assert running.snapshot.store_ok
        assert not running.lease.is_valid(trio.current_time())
        running.publisher.update(node("a", placement_weight=7))
        seen = len(gate.writes(NODES))
        await trio.sleep(10)
        assert len(gate.writes(NODES)) == seen


async def test_waiting_for_the_lease_ends_when_it_can_never_come(autojump_clock: object) -> None:
    store = MemoryStore()
    async with lease_on(store) as lease:
        await lease.wait_held()
        await put(store, keys.owner_lease(lease.owner_id), b"other", 15_000)
        await trio.sleep_until(6)
        with pytest.raises(UnavailableError):
            await lease.wait_held()


async def test_the_passing_of_the_deadline_is_said_once(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", gate=gate, discover=False) as running:
        gate.rule = every("refuse")
        await trio.sleep_until(40)
        expired = [at for at, event in running.events if event.kind is LeaseEventKind.EXPIRED]
        assert expired == [10]
        gate.rule = every("pass")
        await trio.sleep_until(56)


async def test_a_lease_row_without_expiry_extends_nothing(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with lease_on(gate) as lease:
        row = lease.row or b""
        await put(store, keys.owner_lease(lease.owner_id), row)
        gate.rule = only("cut", operation="write", times=1)
        await trio.sleep_until(6)
        assert lease.own_deadline == 10
        assert lease.state is LeaseState.HELD
