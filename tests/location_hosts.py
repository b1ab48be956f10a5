"""Hosts in virtual time for tests of leases, descriptors and discovery: one memory store, one gate per host.

A gate is one host's way to the store. It records every call with its time, and a rule decides what happens to it:

``pass``     it goes through
``refuse``   it fails at once and changes nothing
``cut``      it fails at once with an unknown outcome and changes nothing
``swallow``  it takes effect and the answer is lost at once
``mute``     it takes effect and no answer ever comes
``hang``     it never arrives and no answer ever comes
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio
from attrs import define, field, frozen

from zlinkpy.entropy import SeededEntropy
from zlinkpy.location import (
    Descriptor,
    DescriptorPublisher,
    Interest,
    LeaseDriver,
    LeaseEvent,
    LeaseEventKind,
    LocationOptions,
    MeshNodeDescriptor,
    OwnerLease,
    ServiceDiscovery,
    Snapshot,
    StoreHealth,
    keys,
    nodes_around,
)
from zlinkpy.location.descriptors import decode_mesh_node
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.rows import LeaseRow, decode_lease
from zlinkpy.location.store import (
    Applied,
    BlockingStore,
    Condition,
    Conflict,
    Expired,
    Found,
    LocationStore,
    Missing,
    Mutation,
    Page,
    Put,
    StoreFailure,
)
from zlinkpy.wire import RuntimeState

OPTIONS = LocationOptions()
MESH = "main"
T = TypeVar("T")
DescriptorT = TypeVar("DescriptorT", bound=Descriptor)


@frozen
class Call:
    """One call that reached the gate."""

    at: float
    operation: str
    key: bytes
    """The key read, the prefix scanned, or the first key a write changes."""
    conditions: tuple[Condition, ...] = ()
    mutations: tuple[Mutation, ...] = ()

    @property
    def written(self) -> set[bytes]:
        return {mutation.key for mutation in self.mutations}


Rule = Callable[[Call], str]


def every(what: str) -> Rule:
    """A rule for all calls."""
    return lambda call: what


def only(what: str, *, operation: str | None = None, key: bytes = b"", times: int = 10**9) -> Rule:
    """A rule for the next `times` calls of `operation` that touch a key beginning with `key`; others pass."""
    left = times

    def rule(call: Call) -> str:
        nonlocal left
        touched = call.written or {call.key}
        if left and operation in (None, call.operation) and any(name.startswith(key) for name in touched):
            left -= 1
            return what
        return "pass"

    return rule


class Gate:
    """See the module. Also counts how many calls run at once."""

    def __init__(self, store: LocationStore) -> None:
        self.store = store
        self.rule: Rule = every("pass")
        self.delay = 0.0
        self.before: Callable[[Call], Awaitable[None]] | None = None
        self.calls: list[Call] = []
        self.running = 0
        self.most_running = 0
        self.closed = 0

    async def read(self, key: bytes) -> Missing | Found:
        return await self._pass(Call(trio.current_time(), "read", key), lambda: self.store.read(key))

    async def write(self, conditions: Sequence[Condition], mutations: Sequence[Mutation]) -> Applied | Conflict:
        call = Call(trio.current_time(), "write", mutations[0].key, tuple(conditions), tuple(mutations))
        return await self._pass(call, lambda: self.store.write(conditions, mutations))

    async def scan(self, prefix: bytes, *, cursor: str | None = None, limit: int = 1000) -> Page | Expired:
        call = Call(trio.current_time(), "scan", prefix)
        return await self._pass(call, lambda: self.store.scan(prefix, cursor=cursor, limit=limit))

    async def aclose(self) -> None:
        self.closed += 1
        await trio.lowlevel.checkpoint()

    async def _pass(self, call: Call, action: Callable[[], Awaitable[T]]) -> T:
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            return await self._decide(call, action)
        finally:
            self.running -= 1

    async def _decide(self, call: Call, action: Callable[[], Awaitable[T]]) -> T:
        if self.before is not None:
            await self.before(call)
        what = self.rule(call)
        unknown = "unknown" if call.operation == "write" else "no"
        if what == "refuse":
            raise StoreFailure("refused by the gate", applied="no", operation=call.operation)
        if what == "cut":
            raise StoreFailure("cut by the gate", applied=unknown, operation=call.operation)
        if what == "hang":
            await trio.sleep_forever()
        result = await action()
        if what == "swallow":
            raise StoreFailure("swallowed by the gate", applied=unknown, operation=call.operation)
        if what == "mute":
            await trio.sleep_forever()
        await trio.sleep(self.delay)
        return result

    def writes(self, prefix: bytes) -> list[Call]:
        """Writes that change a row whose key begins with `prefix`, in order."""
        return [call for call in self.calls if any(key.startswith(prefix) for key in call.written)]

    def reads(self, prefix: bytes) -> list[Call]:
        return [call for call in self.calls if call.operation == "read" and call.key.startswith(prefix)]


def node(rid: str, *, port: int = 0, **fields: Any) -> MeshNodeDescriptor:
    """A serving node of the test mesh on an endpoint of its own."""
    number = port or 5000 + sum(rid.encode())
    return MeshNodeDescriptor(
        **{
            "mesh_name": MESH,
            "rid": rid,
            "lifecycle_generation": 7,
            "endpoint": f"tcp://10.0.0.1:{number}",
            "security_identity": "plain",
            "state": RuntimeState.SERVING,
        }
        | fields
    )


@define
class Host:
    """One host: its gate, its lease, its publisher and what its discovery said."""

    gate: Gate
    lease: OwnerLease
    publisher: DescriptorPublisher
    discovery: ServiceDiscovery[Any]
    health: StoreHealth
    own: Descriptor
    events: list[tuple[float, LeaseEvent]] = field(factory=list)
    snapshots: list[tuple[float, Snapshot[Any]]] = field(factory=list)

    @property
    def snapshot(self) -> Snapshot[Any]:
        return self.discovery.snapshot

    @property
    def rids(self) -> list[str]:
        return [candidate.rid for candidate in self.snapshot.candidates]

    def kinds(self) -> list[LeaseEventKind]:
        return [event.kind for _, event in self.events]


@asynccontextmanager
async def host(
    store: LocationStore,
    rid: str,
    *,
    options: LocationOptions = OPTIONS,
    own: Descriptor | None = None,
    publish: bool = True,
    discover: bool = True,
    gate: Gate | None = None,
) -> AsyncIterator[Host]:
    """Run one host on the loop; leaving stops it in order. It lists the others of the kind that `own` is of."""
    way = gate or Gate(store)
    health = StoreHealth(options.store_failure_grace)
    descriptor: Descriptor = own or node(rid)
    lease = OwnerLease(way, options, SeededEntropy(rid), driver=LeaseDriver.LOOP, health=health)
    events: list[tuple[float, LeaseEvent]] = []
    snapshots: list[tuple[float, Snapshot[Any]]] = []
    lease.on_change(lambda event: events.append((trio.current_time(), event)))
    async with lease, DescriptorPublisher(way, lease, options, health=health) as publisher:
        discovery = ServiceDiscovery(
            way,
            options,
            others(descriptor),
            lambda snapshot: snapshots.append((trio.current_time(), snapshot)),
            lease=lease,
            health=health,
        )
        running = Host(way, lease, publisher, discovery, health, descriptor, events, snapshots)
        if publish:
            await publisher.publish(descriptor)
        async with trio.open_nursery() as nursery:
            if discover:
                await nursery.start(discovery.run)
            yield running
            nursery.cancel_scope.cancel()


async def stored_lease(store: MemoryStore, owner_id: str) -> tuple[LeaseRow, Found] | None:
    """The lease row of one owner as it is in the store."""
    found = await store.read(keys.owner_lease(owner_id))
    return (decode_lease(found.value), found) if isinstance(found, Found) else None


async def stored_node(store: LocationStore, rid: str) -> MeshNodeDescriptor | None:
    """The descriptor row of one node as it is in the store."""
    found = await store.read(keys.mesh_node(MESH, rid))
    return decode_mesh_node(found.value) if isinstance(found, Found) else None


async def put(store: LocationStore, key: bytes, value: bytes, ttl_ms: int | None = None) -> None:
    """Write one row whatever was there."""
    assert isinstance(await store.write([], [Put(key, value, ttl_ms)]), Applied)


async def until(ready: Callable[[], bool], seconds: float) -> None:
    """Look every 0.1 s; more than `seconds` is a failure."""
    with trio.fail_after(seconds):
        while not ready():  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(0.1)


async def plant(
    store: MemoryStore,
    descriptor: DescriptorT,
    *,
    generation: int = 1,
    ttl_ms: int | None = 15_000,
    lease: bool = True,
) -> DescriptorT:
    """A descriptor and its lease as another host would have left them; owner id = rid."""
    row = descriptor.signed(1, descriptor.rid, generation)
    await put(store, row.kind.key_of(row), row.kind.encode(row, 0))
    if lease:
        await put(store, keys.owner_lease(descriptor.rid), LeaseRow(descriptor.rid, generation).encode(), ttl_ms)
    return row


def others(own: Descriptor) -> Interest[Any]:
    """Everybody else of the kind and scope of `own`."""
    if isinstance(own, MeshNodeDescriptor):
        return nodes_around(own)
    return Interest(kind=own.kind, scope=own.scope, own_rid=own.rid)


def discovery(store: object, own: Descriptor | None = None, **more: object) -> ServiceDiscovery[Any]:
    options = more.pop("options", OPTIONS)
    return ServiceDiscovery(store, options, others(own or node("me")), lambda snapshot: None, **more)  # type: ignore[arg-type]


def rids(snapshot: Snapshot[Any]) -> list[str]:
    return [candidate.rid for candidate in snapshot.candidates]


class BlockingGate:
    """A thread-side handle that does to calls what `rule` says; waits by the caller's clock, so give it a short way."""

    def __init__(self, inner: BlockingStore, rule: Callable[[str], str]) -> None:
        self._inner = inner
        self._rule = rule

    def read_blocking(self, key: bytes) -> Missing | Found:
        if self._rule("read") != "pass":
            raise StoreFailure("refused by the gate", applied="no", operation="read")
        return self._inner.read_blocking(key)

    def write_blocking(self, conditions: Sequence[Condition], mutations: Sequence[Mutation]) -> Applied | Conflict:
        what = self._rule("write")
        if what == "refuse":
            raise StoreFailure("refused by the gate", applied="no", operation="write")
        answer = self._inner.write_blocking(conditions, mutations)
        if what == "swallow":
            raise StoreFailure("swallowed by the gate", applied="unknown", operation="write")
        return answer

    def close(self) -> None:
        self._inner.close()


@asynccontextmanager
async def refusing(gate: Gate, seconds: float) -> AsyncIterator[None]:
    """The store behind `gate` refuses every call for so long."""
    gate.rule = every("refuse")

    async def heal() -> None:
        await trio.sleep(seconds)
        gate.rule = every("pass")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(heal)
        yield
