"""Hosts that own objects, for tests of authority rows: descriptors, leases, orders, and repositories of each host.

Owner id = routing id, lease generation 1, lifecycle 7, as `tests.location_hosts.plant` leaves them.
"""

from __future__ import annotations

from typing import Any

from attrs import define, evolve, field

from tests.location_hosts import MESH, OPTIONS, Gate, node, plant, put
from zlinkpy.entropy import SeededEntropy
from zlinkpy.location import MemoryStore, MeshNodeDescriptor, NodeCapacity, Usage, keys
from zlinkpy.location.authority import (
    ACTOR_SLOTS,
    AuthorityRecord,
    AuthorityRepository,
    CapacityRow,
    ExecutionMode,
    Members,
    Membership,
    MoveOrder,
    ObjectKey,
    ObjectState,
    Owner,
    Payload,
    PendingCreation,
    RelocationPhase,
    RelocationState,
    Reserved,
    ReserveOrder,
    SpaceReserved,
    SpotKind,
    Written,
    decode_capacity,
    spot_slots,
    unit_slots,
)
from zlinkpy.location.descriptors import ObjectCapability, SpotTypeUsage
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Delete, Found, LocationStore
from zlinkpy.wire import ObjectRole

LIFECYCLE = 7
ENTRY = Membership("entry-of-everybody", SpotKind.ENTRY)
RELOCATION_ID = bytes(range(16))
FAR = 1e9
"""A deadline that never comes."""


def server(rid: str, *, actors: int = 0, spots: int = 0, rooms: int = 0, **fields: Any) -> MeshNodeDescriptor:
    """A serving object server with these limits (0 = none)."""
    return node(
        rid,
        object_role=ObjectRole.SERVER,
        object_capabilities=(
            ObjectCapability("actor", "user"),
            ObjectCapability("userSpot", "room"),
            ObjectCapability("instanceSpot", "cart"),
        ),
        capacity=NodeCapacity(
            actors=Usage(limit=actors),
            spots=Usage(limit=spots),
            spot_types=(SpotTypeUsage("userSpot", "room", Usage(limit=rooms)),),
        ),
        **fields,
    )


def owner(rid: str, *, generation: int = 1, lifecycle: int = LIFECYCLE) -> Owner:
    return Owner(MESH, rid, lifecycle, rid, generation)


@define
class Lease:
    """A lease that says what the test wants."""

    owner_id: str
    lease_generation: int | None = 1
    valid: bool = True

    def is_valid(self, now: float) -> bool:
        return self.valid

    @property
    def row(self) -> LeaseRow:
        return LeaseRow(self.owner_id, self.lease_generation or 1)


def actor(object_id: str = "ann") -> ObjectKey:
    return ObjectKey("actor", object_id)


def spot(object_id: str = "hall") -> ObjectKey:
    return ObjectKey("spot", object_id)


def actor_payload(state: ObjectState = ObjectState.CREATING, home: Membership = ENTRY) -> Payload:
    return Payload(state=state, member_of=home)


def room_payload(state: ObjectState = ObjectState.CREATING, mode: ExecutionMode = ExecutionMode.SPOT_WIDE) -> Payload:
    return Payload(state=state, kind=SpotKind.USER, mode=mode, members=Members())


def cart_payload(state: ObjectState = ObjectState.CREATING) -> Payload:
    return Payload(state=state, kind=SpotKind.INSTANCE)


def order(
    key: ObjectKey,
    at: Owner,
    *,
    kind: str = "",
    reservation: str = "r1",
    request: bytes = b"please",
    mode: ExecutionMode = ExecutionMode.SPOT_WIDE,
) -> ReserveOrder:
    """An Actor `user` for an Actor key, a Spot `room` or, with ``kind="cart"``, an Instance Spot `cart`."""
    common: dict[str, Any] = {"key": key, "target": at, "pending": PendingCreation.of(reservation, request)}
    if key.kind == "actor":
        return ReserveOrder(
            **common, object_kind="actor", stable_type="user", slots=ACTOR_SLOTS, payload=actor_payload()
        )
    if kind == "cart":
        slots = spot_slots("instanceSpot", "cart")
        return ReserveOrder(
            **common, object_kind="instanceSpot", stable_type="cart", slots=slots, payload=cart_payload()
        )
    slots = spot_slots("userSpot", "room")
    return ReserveOrder(
        **common, object_kind="userSpot", stable_type="room", slots=slots, payload=room_payload(mode=mode)
    )


def committed_move(
    record: AuthorityRecord, to: Owner, *, relocation_id: bytes = RELOCATION_ID, **changes: Any
) -> MoveOrder:
    """The owner change of one object to another node, with nothing else in it."""
    source = changes.pop("source", record.row.owner)
    move = RelocationState(
        relocation_id=relocation_id,
        aggregate_generation=1,
        attempt=1,
        source=source.place,
        target=to.place,
        coordinator=source.place,
        phase=changes.pop("phase", RelocationPhase.COMMITTED),
    )
    payload = evolve(changes.pop("payload", record.row.payload), relocation=move)
    return MoveOrder(held=record, target=to, payload=payload, **changes)


@define
class Cluster:
    """Nodes in one store, each with a repository of its own."""

    store: LocationStore
    descriptors: dict[str, MeshNodeDescriptor] = field(factory=dict)
    leases: dict[str, Lease] = field(factory=dict)
    repositories: dict[str, AuthorityRepository] = field(factory=dict)

    async def start(self, rid: str, *, ttl_ms: int | None = 3_600_000, **fields: Any) -> Owner:
        """A node with a live lease and a descriptor."""
        descriptor = server(rid, **fields)
        self.descriptors[rid] = await plant(self.store, descriptor, ttl_ms=ttl_ms)  # type: ignore[arg-type]
        self.leases[rid] = Lease(rid)
        self.repositories[rid] = AuthorityRepository(self.store, self.leases[rid], OPTIONS, SeededEntropy(rid))
        return owner(rid)

    def __getitem__(self, rid: str) -> AuthorityRepository:
        return self.repositories[rid]

    async def lapse(self, rid: str) -> None:
        """The node's lease is gone from the store."""
        await self.store.write([], [Delete(keys.owner_lease(rid))])

    async def renew(self, rid: str, generation: int = 1) -> None:
        await put(self.store, keys.owner_lease(rid), LeaseRow(rid, generation).encode(), 3_600_000)

    async def create(
        self, key: ObjectKey, at: Owner, *, payload: Payload | None = None, **more: Any
    ) -> AuthorityRecord:
        """An object that is ready at a node."""
        wanted = order(key, at, reservation=f"r-{key.object_id}", **more)
        reserved = await self[at.rid].reserve(wanted, FAR)
        assert isinstance(reserved, Reserved), reserved
        ready = wanted.payload.to(ObjectState.READY) if payload is None else payload
        written = await self[at.rid].commit(reserved.record, ready, FAR)
        assert isinstance(written, Written), written
        return written.record

    async def join(self, record: AuthorityRecord, room: AuthorityRecord) -> AuthorityRecord:
        """An Actor that is in a User Spot from now on."""
        home = Membership(room.key.object_id, SpotKind.USER)
        written = await self[room.row.owner.rid].change_membership(record, home, FAR)
        assert isinstance(written, Written), written
        return written.record

    async def read(self, key: ObjectKey) -> AuthorityRecord:
        found = await next(iter(self.repositories.values())).read(key, FAR)
        assert found is not None
        return found

    async def raw(self, key: bytes) -> tuple[bytes, str] | None:
        """Bytes and version of one row."""
        found = await self.store.read(key)
        return (found.value, found.version) if isinstance(found, Found) else None

    async def capacity(self, at: Owner) -> CapacityRow:
        found = await self.store.read(at.capacity_key)
        return decode_capacity(found.value) if isinstance(found, Found) else CapacityRow()

    async def image(self) -> dict[bytes, tuple[bytes, str]]:
        """Every row with its version."""
        items: dict[bytes, tuple[bytes, str]] = {}
        cursor: str | None = None
        while True:
            page = await self.store.scan(b"", cursor=cursor)
            items |= {item.key: (item.value, item.version) for item in page.items}  # type: ignore[union-attr]
            cursor = page.cursor  # type: ignore[union-attr]
            if cursor is None:
                return items


P, Q = owner("p"), owner("q")
"""The two nodes that most tests have."""


async def reserved(cluster: Cluster, key: ObjectKey | None = None, **more: Any) -> AuthorityRecord:
    """A reservation at p."""
    result = await cluster["p"].reserve(order(key or actor(), P, **more), FAR)
    assert isinstance(result, Reserved), result
    return result.record


async def moved(cluster: Cluster, record: AuthorityRecord, **more: Any) -> Any:
    """`record` moved from p to q, with its space reserved before."""
    slots = unit_slots(record.row)
    space = await cluster["q"].reserve_space(Q, RELOCATION_ID, slots, cluster.descriptors["q"], FAR)
    assert space == SpaceReserved()
    return await cluster["q"].change_owner(committed_move(record, Q, **more), FAR)


class Stage:
    """A cluster whose nodes p and q each reach the store through a gate of their own."""

    def __init__(self) -> None:
        self.cluster = Cluster(MemoryStore())
        self.gates: dict[str, Gate] = {}

    async def open(self) -> Stage:
        for rid in ("p", "q"):
            await self.cluster.start(rid)
            gate = self.gates[rid] = Gate(self.cluster.store)
            self.cluster.repositories[rid] = AuthorityRepository(
                gate, self.cluster.leases[rid], OPTIONS, SeededEntropy(rid)
            )
        return self

    @property
    def p(self) -> AuthorityRepository:
        return self.cluster["p"]

    @property
    def q(self) -> AuthorityRepository:
        return self.cluster["q"]
