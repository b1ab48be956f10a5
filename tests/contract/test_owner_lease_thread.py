"""LO section 6 on the production driver: a thread with connections of its own, on the memory store and a real server.

Real threads and real sockets, so time runs 10 times faster than the wall and is not jumped; a server counts its TTL in
real time, which is why the leases here are short.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

from tests.gate import Gate, is_script_call
from tests.location_hosts import MESH, BlockingGate, discovery, stored_lease, until
from tests.location_kinds import Subject, every_kind
from tests.location_server import TestServer, valkey, valkey_session  # noqa: F401
from zlinkpy.entropy import SystemEntropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.location import (
    DescriptorPublisher,
    LeaseEvent,
    LeaseEventKind,
    LeaseState,
    LocationOptions,
    OwnerLease,
    keys,
    open_store,
)
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.store import BlockingStore, Found

# Real seconds, small: the server's TTL does not follow a test's clock.
SHORT = LocationOptions(
    owner_lease_renew_interval=0.2,
    owner_lease_ttl=1.2,
    owner_lease_renew_timeout=0.3,
    owner_lease_fencing_margin=0.4,
    polling_interval=0.1,
).validate()


@pytest.fixture
def fast_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(rate=10)


@pytest.fixture
def gate(valkey: TestServer) -> Iterator[Gate]:  # noqa: F811
    proxy = Gate(valkey.socket_path)
    yield proxy
    proxy.close()


def touches(key: bytes) -> Callable[[list[bytes]], bool]:
    """Script calls that name the row of `key`."""
    name = hashlib.sha256(key).hexdigest().encode()
    return lambda command: is_script_call(command) and any(name in word for word in command)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "zlink-owner-lease"]


class Handles(MemoryStore):
    """A memory store whose dedicated handles do what a rule says."""

    def __init__(self) -> None:
        super().__init__()
        self.what = "pass"
        self.asked: list[str] = []

    def dedicated(self, *, timeout: float | None = None) -> BlockingStore:
        def rule(operation: str) -> str:
            self.asked.append(operation)
            return self.what if operation == "write" else "pass"

        return BlockingGate(super().dedicated(timeout=timeout), rule)


@pytest.mark.contract("LO-107", "LO-113")
async def test_the_thread_renews_on_the_grid_and_is_gone_afterwards(fast_clock: object) -> None:
    store = MemoryStore()
    events: list[LeaseEvent] = []
    async with OwnerLease(store, LocationOptions(), SystemEntropy()) as lease:
        lease.on_change(events.append)
        assert lease.state is LeaseState.HELD
        assert threads() == ["zlink-owner-lease"]
        await until(lambda: len(events) >= 3, 60)
        assert {event.kind for event in events} == {LeaseEventKind.RENEWED}
        # Never early; how late a busy machine wakes a thread is not ours. The exact grid is tested in virtual time.
        assert all(later.at - earlier.at > 4.5 for earlier, later in zip(events, events[1:], strict=False))
    assert threads() == []
    assert await stored_lease(store, lease.owner_id) is None


async def test_the_thread_renews_while_the_loop_is_blocked(fast_clock: trio.testing.MockClock) -> None:
    store = MemoryStore()
    async with OwnerLease(store, LocationOptions(), SystemEntropy()) as lease:
        renewals = [call for call in store.calls if call[0] == "write"]
        blocked = threading.Event()
        while trio.current_time() < 30:
            blocked.wait(0.02)  # what a handler does that never awaits
        assert len([call for call in store.calls if call[0] == "write"]) >= len(renewals) + 4
        assert lease.is_valid(trio.current_time())


@pytest.mark.contract("LO-105")
async def test_a_swallowed_claim_is_adopted_on_the_thread_too(fast_clock: object) -> None:
    store = Handles()
    store.what = "swallow"
    async with OwnerLease(store, LocationOptions(), SystemEntropy()) as lease:
        assert lease.state is LeaseState.HELD
        assert store.asked == ["read", "write", "read"]
        found = await store.read(keys.OWNER_COUNTER)
        assert isinstance(found, Found)
        assert found.value == b"2"
        store.what = "pass"


@pytest.mark.contract("LO-106")
async def test_a_cancelled_start_leaves_no_thread_and_no_row(fast_clock: object) -> None:
    store = MemoryStore()
    store.plan(None, operation="write", delay=1.0)
    lease = OwnerLease(store, LocationOptions(), SystemEntropy())
    with trio.move_on_after(0.5) as scope:
        async with lease:
            raise AssertionError("cancelled before")
    assert scope.cancelled_caught
    assert threads() == []
    assert await stored_lease(store, lease.owner_id) is None


async def test_a_defect_on_the_thread_ends_the_block(fast_clock: object) -> None:
    class Broken(MemoryStore):
        def dedicated(self, *, timeout: float | None = None) -> BlockingStore:
            handle = super().dedicated(timeout=timeout)

            class Handle:
                def __getattr__(self, name: str) -> object:
                    return getattr(handle, name)

                def read_blocking(self, key: bytes) -> object:
                    raise ZeroDivisionError

            return Handle()  # type: ignore[return-value]

    with pytest.raises(ZeroDivisionError):
        async with OwnerLease(Broken(), LocationOptions(), SystemEntropy()):
            await trio.sleep_forever()
    assert threads() == []


async def test_a_store_without_dedicated_connections_is_a_configuration_error(fast_clock: object) -> None:
    class Bare:
        def __init__(self) -> None:
            inner = MemoryStore()
            self.read, self.write, self.scan, self.aclose = inner.read, inner.write, inner.scan, inner.aclose

    with pytest.raises(ConfigurationError, match="dedicated"):
        async with OwnerLease(Bare(), LocationOptions(), SystemEntropy()):
            raise AssertionError("must not start")


# Against a real server, in real time.


@pytest.mark.contract("LO-100", "LO-108")
async def test_on_a_server_claim_and_renewal_are_what_they_should_be(valkey: TestServer) -> None:  # noqa: F811
    store = open_store(valkey.url)
    try:
        async with OwnerLease(store, SHORT, SystemEntropy()) as lease:
            first = await stored_lease(store, lease.owner_id)
            assert first is not None
            assert first[0].lease_generation == lease.lease_generation == 1
            deadline = lease.own_deadline or 0.0
            await until(lambda: (lease.own_deadline or 0.0) > deadline, 2)
            second = await stored_lease(store, lease.owner_id)
            assert second is not None
            assert second[1].value == first[1].value
            assert second[1].version != first[1].version
            assert (second[1].expires_at or 0) > (first[1].expires_at or 0)
        assert await stored_lease(store, lease.owner_id) is None
    finally:
        await store.aclose()


@pytest.mark.contract("LO-059", "LO-107")
async def test_renewals_go_out_while_every_other_call_is_stuck(gate: Gate) -> None:
    store = open_store(gate.url)
    try:
        async with OwnerLease(store, SHORT, SystemEntropy()) as lease, trio.open_nursery() as nursery:
            gate.hold(touches(keys.mesh_node(MESH, "x")))
            for _ in range(30):
                nursery.start_soon(_attempt, store)
            end = trio.current_time() + 1.5
            while trio.current_time() < end:
                await trio.sleep(0.05)
                assert lease.is_valid(trio.current_time())
            assert lease.epoch == 0
            nursery.cancel_scope.cancel()
    finally:
        gate.release()
        await store.aclose()


async def _attempt(store: object) -> None:
    await store.read(keys.mesh_node(MESH, "x"))  # type: ignore[attr-defined]


@pytest.mark.contract("LO-105", "LO-180")
@pytest.mark.parametrize("cut", [True, False])
async def test_on_a_server_a_swallowed_claim_is_adopted_within_the_timeout(gate: Gate, cut: bool) -> None:
    store = open_store(gate.url)
    patient = LocationOptions(
        owner_lease_renew_interval=1, owner_lease_ttl=4, owner_lease_renew_timeout=1, owner_lease_fencing_margin=1
    )
    lease = OwnerLease(store, patient, SystemEntropy())
    gate.swallow(cut=cut, match=touches(keys.owner_lease(lease.owner_id)))
    started = trio.current_time()
    try:
        async with lease:
            assert gate.swallowed.is_set()
            assert lease.state is LeaseState.HELD
            assert trio.current_time() - started < patient.owner_lease_renew_timeout
            counter = await store.read(keys.OWNER_COUNTER)
            assert isinstance(counter, Found)
            assert counter.value == b"2"
    finally:
        await store.aclose()


@pytest.mark.contract("LO-104", "LO-110", "LO-192")
@every_kind
async def test_a_paused_and_emptied_server_costs_a_host_nothing_lasting(
    valkey: TestServer,  # noqa: F811
    subject: Subject,
) -> None:
    store = open_store(valkey.url, operation_timeout=0.3)
    valkey.pause()
    try:
        async with OwnerLease(store, SHORT, SystemEntropy()) as lease:
            assert lease.state is LeaseState.UNCLAIMED
            async with DescriptorPublisher(store, lease, SHORT) as publisher, trio.open_nursery() as nursery:
                assert not await publisher.publish(subject.describe("a"))
                finder = discovery(store, subject.describe("b"), options=SHORT)
                nursery.start_soon(finder.run)
                valkey.resume()
                await until(lambda: publisher.is_current, 3)
                await until(lambda: bool(finder.snapshot.candidates), 2)
                generation = lease.lease_generation
                valkey.pause()
                await until(lambda: not lease.is_valid(trio.current_time()), 3)
                valkey.resume()
                valkey.command("FLUSHALL")
                await until(lambda: lease.epoch > 0, 3)
                await until(lambda: publisher.is_current, 3)
                assert lease.lease_generation == generation
                assert await subject.stored(store, "a") is not None
                nursery.cancel_scope.cancel()
    finally:
        valkey.resume()
        await store.aclose()
    assert threads() == []
