"""LO section 6 and 7 over a bad network: a fault proxy between a host's lease and a real server, in real time.

The lease renews on a thread whose sockets know no other clock, and the server counts its TTL, so the leases are short.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import define, field

from tests.fault_proxy import DOWN, UP, Direction, FaultProxy
from tests.location_hosts import stored_lease, until
from tests.location_server import TestServer, valkey, valkey_session  # noqa: F401
from zlinkpy.entropy import SystemEntropy
from zlinkpy.location import (
    LeaseEvent,
    LeaseEventKind,
    LeaseState,
    LocationOptions,
    OwnerLease,
    open_store,
)
from zlinkpy.location.lease_machine import LEASE_CONFIRMED
from zlinkpy.location.store import LocationStore

OPTIONS = LocationOptions(
    owner_lease_renew_interval=0.4,
    owner_lease_ttl=2.5,
    owner_lease_renew_timeout=0.8,
    owner_lease_fencing_margin=0.5,
    polling_interval=0.1,
).validate()
TRUSTED = OPTIONS.owner_lease_ttl - OPTIONS.owner_lease_fencing_margin
"""How long after a request a confirmed lease is valid."""
TICK = 0.002
"""The store counts in milliseconds."""


@define(eq=False)
class Leased:
    """One host's lease behind a proxy, what happened to it, and an undisturbed look at the store."""

    lease: OwnerLease
    proxy: FaultProxy
    direct: LocationStore
    events: list[LeaseEvent] = field(factory=list)

    @property
    def is_valid(self) -> bool:
        return self.lease.is_valid(trio.current_time())

    def kinds(self) -> list[LeaseEventKind]:
        return [event.kind for event in self.events]

    async def confirmed(self, times: int = 1) -> None:
        """Wait for so many renewals from now; the lease must be valid all the time."""
        seen = len(self.events)

        def enough() -> bool:
            assert self.is_valid
            return sum(event.kind in LEASE_CONFIRMED for event in self.events[seen:]) >= times

        await until(enough, 3 * OPTIONS.owner_lease_ttl)

    async def version(self) -> str:
        """The version of the lease row as it is in the store."""
        stored = await stored_lease(self.direct, self.lease.owner_id)  # type: ignore[arg-type]
        assert stored is not None
        return stored[1].version


@asynccontextmanager
async def leased(server: TestServer) -> AsyncIterator[Leased]:
    """A held lease that has been renewed once."""
    async with FaultProxy(f"unix://{server.socket_path}") as proxy:
        direct, store = open_store(server.url), open_store(f"redis://127.0.0.1:{proxy.port}")
        try:
            async with OwnerLease(store, OPTIONS, SystemEntropy()) as lease:
                assert lease.state is LeaseState.HELD
                host = Leased(lease, proxy, direct)
                lease.on_change(host.events.append)
                await host.confirmed()
                try:
                    yield host
                finally:
                    proxy.heal()
                    proxy.cut()
                    # A release goes out once: on a connection that is known to work again.
                    seen = len(host.events)
                    with trio.move_on_after(OPTIONS.owner_lease_ttl):
                        while not any(event.kind in LEASE_CONFIRMED for event in host.events[seen:]):  # noqa: ASYNC110
                            await trio.sleep(0.01)
            assert await stored_lease(direct, lease.owner_id) is None  # type: ignore[arg-type]
        finally:
            await store.aclose()
            await direct.aclose()


@pytest.mark.contract("LO-120", "LO-107", "LO-125")
@pytest.mark.parametrize("fault", ["delay", "throttle"])
@pytest.mark.slow
@pytest.mark.alone
async def test_a_slow_network_makes_the_own_deadline_earlier_and_nothing_else(
    valkey: TestServer,  # noqa: F811
    fault: str,
) -> None:
    async with leased(valkey) as host:
        if fault == "delay":
            host.proxy.delay(0.1)
        else:
            host.proxy.throttle(1500)
        slowest = 0.2 if fault == "delay" else 0.1
        await host.confirmed()
        host.events.clear()
        await host.confirmed(4)
        assert set(host.kinds()) == {LeaseEventKind.RENEWED}
        for event in host.events:
            # Counted from before the request was sent, which is at least one round trip before the answer.
            assert event.own_deadline is not None
            assert event.own_deadline <= event.at - slowest + TRUSTED + TICK
        assert host.lease.epoch == 0


@pytest.mark.contract("LO-109", "LO-125", "LO-180")
@pytest.mark.parametrize("hole", [UP, DOWN], ids=["request lost", "answer lost"])
async def test_a_black_holed_connection_costs_one_renewal_at_most(
    valkey: TestServer,  # noqa: F811
    hole: Direction,
) -> None:
    async with leased(valkey) as host:
        generation, version = host.lease.lease_generation, await host.version()
        host.events.clear()
        for connection in host.proxy.connections:
            connection.swallow(hole)
        await host.proxy.until(lambda: any(way.swallowed for way in host.proxy.ways(hole)))
        await host.confirmed(2)
        assert host.kinds().count(LeaseEventKind.FAILED) <= 1
        assert set(host.kinds()) <= {LeaseEventKind.FAILED, LeaseEventKind.RENEWED}
        assert (host.lease.lease_generation, host.lease.epoch) == (generation, 0)
        assert await host.version() != version


CUTS: dict[str, Callable[[FaultProxy], None]] = {
    "black hole": lambda proxy: proxy.swallow(),
    "requests lost": lambda proxy: proxy.swallow(UP),
    "answers lost": lambda proxy: proxy.swallow(DOWN),
    "refused": lambda proxy: (proxy.refuse(), proxy.cut())[0],
    "ignored": lambda proxy: (proxy.ignore(), proxy.cut())[0],
}


@pytest.mark.contract("LO-110", "LO-120", "LO-121")
@pytest.mark.parametrize("cut", CUTS)
async def test_a_host_without_its_store_stops_at_its_own_deadline_and_comes_back_the_same(
    valkey: TestServer,  # noqa: F811
    cut: str,
) -> None:
    async with leased(valkey) as host:
        owner, generation = host.lease.owner_id, host.lease.lease_generation
        CUTS[cut](host.proxy)
        deadline = host.lease.own_deadline
        assert deadline is not None
        while trio.current_time() < deadline - 0.05:
            assert host.is_valid
            await trio.sleep(0.02)
        await trio.sleep_until(deadline)
        # A renewal whose answer was on its way at the cut is one more, and the only one.
        assert host.lease.own_deadline == deadline
        assert not host.is_valid
        await until(lambda: LeaseEventKind.EXPIRED in host.kinds(), 2)
        assert LeaseEventKind.RENEWED not in host.kinds()[host.kinds().index(LeaseEventKind.EXPIRED) :]
        # The store forgets the row later than the host has stopped.
        while await stored_lease(host.direct, owner) is not None:  # type: ignore[arg-type]
            assert not host.is_valid
            await trio.sleep(0.05)
        host.proxy.heal()
        host.proxy.cut()
        await until(lambda: host.lease.epoch == 1, 5)
        assert host.is_valid
        assert (host.lease.owner_id, host.lease.lease_generation) == (owner, generation)
        stored = await stored_lease(host.direct, owner)  # type: ignore[arg-type]
        assert stored is not None
        assert (stored[0].owner_id, stored[0].lease_generation) == (owner, generation)


@pytest.mark.contract("LO-109", "LO-180", "LO-107")
@pytest.mark.parametrize("reset", [True, False], ids=["RST", "FIN"])
@pytest.mark.parametrize("where", [UP, DOWN], ids=["before it arrived", "before the answer"])
@pytest.mark.slow
@pytest.mark.alone
async def test_a_cut_in_the_middle_of_a_renewal_leaves_the_lease_as_it_was(
    valkey: TestServer,  # noqa: F811
    where: Direction,
    reset: bool,
) -> None:
    async with leased(valkey) as host:
        generation = host.lease.lease_generation
        for _ in range(3):
            version = await host.version()
            host.proxy.hold(where)
            await host.proxy.until(lambda: any(way.kept for way in host.proxy.ways(where)))
            if where is DOWN:
                assert await host.version() != version  # it has happened; nobody here knows
            host.proxy.cut(reset=reset)
            host.proxy.heal()
            await host.confirmed(2)
        assert set(host.kinds()) <= {LeaseEventKind.FAILED, LeaseEventKind.RENEWED}
        assert (host.lease.lease_generation, host.lease.epoch) == (generation, 0)
