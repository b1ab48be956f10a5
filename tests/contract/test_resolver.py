"""The resolver: one closed result from rows, lease and link evidence, and the routes it keeps (LO section 14)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from attrs import define, evolve, field

from tests.authority_hosts import (
    ENTRY,
    FAR,
    Cluster,
    actor,
    actor_payload,
    cart_payload,
    committed_move,
    order,
    owner,
    room_payload,
    spot,
)
from tests.location_hosts import OPTIONS, Gate, every, put
from zlinkpy.errors import InvalidOperationError
from zlinkpy.location import LocationOptions, MemoryStore
from zlinkpy.location.authority import (
    AuthorityRecord,
    CapacityRow,
    ExecutionMode,
    ObjectKey,
    ObjectState,
    Owner,
    ReleaseCause,
    Released,
    RelocationPhase,
    Reserved,
    Resolver,
    RouteCache,
    SpaceReserved,
    Written,
    resolution,
    unit_slots,
)
from zlinkpy.location.authority.resolution import (
    Closing,
    Creating,
    Lacking,
    Missing,
    Moving,
    Ready,
    Route,
    RouteFence,
    StoreFailure,
    Unavailable,
)
from zlinkpy.location.store import Delete, StoreCorruption

READY, CLOSING = ObjectState.READY, ObjectState.CLOSING
P, Q = owner("p"), owner("q")
RELOCATION = (1).to_bytes(16, "big")


@define
class Links:
    """Link evidence as the test sets it: which runs are connected."""

    ready: set[tuple[str, int]] = field(factory=set)
    asked: int = 0

    def evidence(self, rid: str, generation: int = 0) -> bool:
        self.asked += 1
        return (rid, generation) in self.ready


@define
class Bench:
    cluster: Cluster
    gate: Gate
    links: Links
    cache: RouteCache
    resolver: Resolver
    nodes: dict[str, tuple[str, int]]

    def reads(self) -> list[bytes]:
        return [call.key for call in self.gate.calls if call.operation == "read"]

    async def moved(self, record: AuthorityRecord, to: Owner = Q, **more: Any) -> AuthorityRecord:
        slots = unit_slots(record.row)
        target = self.cluster[to.rid]
        space = await target.reserve_space(to, RELOCATION, slots, self.cluster.descriptors[to.rid], FAR)
        assert space == SpaceReserved()
        written = await target.change_owner(committed_move(record, to, relocation_id=RELOCATION, **more), FAR)
        assert isinstance(written, Written), written
        return written.record


@pytest.fixture
async def bench() -> Bench:
    """The resolver of a node `me`, connected to p and q."""
    cluster = Cluster(MemoryStore())
    for rid in ("p", "q", "me"):
        await cluster.start(rid)
    gate = Gate(cluster.store)
    links, nodes = Links({("p", 7), ("q", 7)}), {"main": ("me", 7)}
    cache = RouteCache(OPTIONS)
    resolver = Resolver(gate, cluster["me"], links, nodes, OPTIONS, cache)
    return Bench(cluster, gate, links, cache, resolver, nodes)


# --- results


@pytest.mark.contract("LO-245")
@pytest.mark.parametrize("where", ["p", "me"])
async def test_a_ready_object_of_a_reachable_owner_is_ready(autojump_clock: object, bench: Bench, where: str) -> None:
    record = await bench.cluster.create(actor(), owner(where))
    if where == "me":
        bench.links.ready.clear()  # one needs no link to oneself
    assert await bench.resolver.resolve(actor()) == Ready(
        Route(
            key=actor(),
            object_kind="actor",
            stable_type="user",
            object_generation=record.row.object_generation,
            owner_generation=record.row.owner_generation,
            owner=owner(where),
            version=record.version,
        )
    )


@pytest.mark.contract("LO-246", "LO-201", "LO-254")
@pytest.mark.parametrize("name", ["nobody", "tcp://10.0.0.1:5501", "main/p/7", "p"])
async def test_an_id_without_a_row_is_missing_whatever_it_looks_like(
    autojump_clock: object, bench: Bench, name: str
) -> None:
    before = await bench.cluster.image()
    assert await bench.resolver.resolve(spot(name)) == Missing()
    assert bench.reads() == [b"authority\0spot\0" + name.encode()]
    assert await bench.cluster.image() == before


async def test_an_id_that_cannot_be_one_is_refused_before_any_read(autojump_clock: object, bench: Bench) -> None:
    with pytest.raises(InvalidOperationError):
        await bench.resolver.resolve(actor("a\0b"))
    assert bench.gate.calls == []


@pytest.mark.contract("LO-247", "LO-213", "LO-343", "LO-115")
@pytest.mark.parametrize("gone", ["missing", "expired", "other generation"])
@pytest.mark.parametrize("kind", ["actor", "cart"])
@pytest.mark.parametrize("state", list(ObjectState))
async def test_an_owner_without_its_lease_makes_the_object_unavailable_and_changes_nothing(
    autojump_clock: object, bench: Bench, gone: str, kind: str, state: ObjectState
) -> None:
    key, payload = (actor(), actor_payload(state)) if kind == "actor" else (spot("cart"), cart_payload(state))
    record = await bench.cluster.create(key, P, payload=payload, **({} if kind == "actor" else {"kind": "cart"}))
    if gone == "missing":
        await bench.cluster.lapse("p")
    elif gone == "expired":
        await put(bench.cluster.store, P.lease_key, bench.cluster.leases["p"].row.encode(), 1_000)
        await trio.sleep(1.0)
    else:
        await bench.cluster.renew("p", generation=2)
    before = await bench.cluster.image()
    bench.gate.calls.clear()
    result = await bench.resolver.resolve(key)
    assert isinstance(result, Unavailable)
    assert result.why is Lacking.LEASE
    assert result.route.version == record.version
    assert bench.reads() == [key.encode(), P.lease_key]
    assert await bench.cluster.image() == before


@pytest.mark.contract("LO-248", "LO-343", "LO-340")
@pytest.mark.parametrize("state", [READY, CLOSING])
async def test_an_owner_that_is_not_connected_makes_it_unavailable_until_it_is(
    autojump_clock: object, bench: Bench, state: ObjectState
) -> None:
    await bench.cluster.create(actor(), P, payload=actor_payload(state))
    before = await bench.cluster.image()
    expected = Ready if state is READY else Closing
    assert isinstance(await bench.resolver.resolve(actor()), expected)
    for evidence in (set(), {("p", 8)}, {("q", 7)}):  # another lifecycle is another process
        bench.links.ready = evidence
        for _ in range(2):
            result = await bench.resolver.resolve(actor())
            assert isinstance(result, Unavailable)
            assert result.why is Lacking.LINK
    bench.links.ready = {("p", 7)}
    assert isinstance(await bench.resolver.resolve(actor()), expected)
    assert await bench.cluster.image() == before
    assert not [call for call in bench.gate.calls if call.operation == "write"]


@pytest.mark.contract("LO-255")
async def test_an_owner_in_a_mesh_this_process_is_not_part_of_is_unavailable(
    autojump_clock: object, bench: Bench
) -> None:
    await bench.cluster.create(actor(), P)
    bench.nodes.clear()
    result = await bench.resolver.resolve(actor())
    assert isinstance(result, Unavailable)
    assert result.why is Lacking.MESH
    bench.nodes["main"] = ("me", 7)
    assert isinstance(await bench.resolver.resolve(actor()), Ready)


@pytest.mark.contract("LO-249")
async def test_a_reservation_is_creating_and_a_closing_object_is_closing(autojump_clock: object, bench: Bench) -> None:
    reserved = await bench.cluster["p"].reserve(order(actor(), P, reservation="r7"), FAR)
    assert isinstance(reserved, Reserved)
    result = await bench.resolver.resolve(actor())
    assert isinstance(result, Creating)
    assert result.reservation_id == "r7"
    assert result.attempt.owner == P
    assert result.attempt.version == reserved.record.version
    assert result.attempt.object_generation == reserved.record.row.object_generation
    closing = await bench.cluster.create(spot("cart"), P, kind="cart", payload=cart_payload(CLOSING))
    assert await bench.resolver.resolve(spot("cart")) == Closing(resolution.route_of(closing))
    born = await bench.cluster["p"].reincarnate(closing, cart_payload(), FAR)
    assert isinstance(born, Written)
    again = await bench.resolver.resolve(spot("cart"))
    assert again == Creating(resolution.route_of(born.record), None)


@pytest.mark.contract("LO-234", "LO-246")
async def test_a_reservation_that_nobody_will_finish_is_released_and_then_missing(
    autojump_clock: object, bench: Bench
) -> None:
    await bench.cluster["p"].reserve(order(actor(), P), FAR)
    await bench.cluster.lapse("p")
    assert await bench.resolver.resolve(actor()) == Missing()
    assert await bench.cluster.raw(actor().encode()) is None
    assert await bench.cluster.capacity(P) == CapacityRow()


@pytest.mark.contract("LO-234")
async def test_a_host_that_may_not_write_does_not_call_a_leftover_missing(autojump_clock: object, bench: Bench) -> None:
    await bench.cluster["p"].reserve(order(actor(), P), FAR)
    await bench.cluster.lapse("p")
    bench.cluster.leases["me"].valid = False
    result = await bench.resolver.resolve(actor())
    assert isinstance(result, Unavailable)
    assert await bench.cluster.raw(actor().encode()) is not None


@pytest.mark.contract("LO-250", "LO-194", "LO-258")
@pytest.mark.parametrize("what", ["refuse", "cut", "hang"])
@pytest.mark.parametrize("which", [b"authority", b"owner-lease"])
async def test_a_read_that_fails_is_not_missing_and_is_remembered_nowhere(
    autojump_clock: object, bench: Bench, what: str, which: bytes
) -> None:
    await bench.cluster.create(actor(), P)
    bench.gate.rule = lambda call: what if call.key.startswith(which) else "pass"
    began = trio.current_time()
    result = await bench.resolver.resolve(actor())
    assert isinstance(result, StoreFailure)
    assert trio.current_time() - began == (3.0 if what == "hang" else 0.0)
    bench.gate.rule = every("pass")
    assert isinstance(await bench.resolver.resolve(actor()), Ready)


@pytest.mark.contract("LO-155", "LO-080")
@pytest.mark.parametrize("spoilt", ["authority", "lease", "lease without expiry"])
async def test_rows_that_cannot_be_understood_give_no_result(autojump_clock: object, bench: Bench, spoilt: str) -> None:
    await bench.cluster.create(actor(), P)
    key = actor().encode() if spoilt == "authority" else P.lease_key
    raw = bench.cluster.leases["p"].row.encode() if spoilt == "lease without expiry" else b"{}"
    await put(bench.cluster.store, key, raw, 60_000 if spoilt == "lease" else None)
    for _ in range(2):
        with pytest.raises(StoreCorruption):
            await bench.resolver.resolve(actor())


@pytest.mark.contract("LO-251")
@pytest.mark.parametrize("phase", [RelocationPhase.COMMITTED, RelocationPhase.ACTIVATING, RelocationPhase.ACTIVATED])
async def test_a_moved_object_is_moving_until_the_target_is_open(
    autojump_clock: object, bench: Bench, phase: RelocationPhase
) -> None:
    record = await bench.moved(await bench.cluster.create(actor(), P), phase=phase)
    opening = phase is not RelocationPhase.ACTIVATED
    expected = (Moving if opening else Ready)(resolution.route_of(record))
    assert record.row.owner == Q
    for reads in (2, 4 if opening else 2):
        assert await bench.resolver.resolve(actor()) == expected
        assert len(bench.reads()) == reads
    opened = await bench.cluster["q"].preserve(record, evolve(record.row.payload, relocation=None), FAR)
    assert isinstance(opened, Written)
    bench.cache.observed(actor(), opened.record.version)
    assert await bench.resolver.resolve(actor()) == Ready(resolution.route_of(opened.record))


@pytest.mark.contract("LO-252")
@pytest.mark.parametrize("mode", list(ExecutionMode))
async def test_the_owner_of_a_member_is_that_of_a_spot_wide_spot_and_its_own_otherwise(
    autojump_clock: object, bench: Bench, mode: ExecutionMode
) -> None:
    room = await bench.cluster.create(spot(), P, mode=mode, payload=room_payload(READY, mode))
    ann = await bench.cluster.join(await bench.cluster.create(actor(), P), room)
    alone = await bench.cluster.create(actor("alone"), P)

    async def where(key: ObjectKey) -> Any:
        bench.cache.clear()
        return await bench.resolver.resolve(key)

    assert (await where(actor())).route.owner == P
    moved = await bench.moved(await bench.cluster.read(spot()), phase=RelocationPhase.COMMITTED)
    wide = mode is ExecutionMode.SPOT_WIDE
    result = await where(actor())
    assert isinstance(result, Moving if wide else Ready)
    assert result.route.owner == (Q if wide else P)
    assert result.route.owner_generation == (moved.row if wide else ann.row).owner_generation
    assert (await where(actor("alone"))).route == resolution.route_of(alone)
    opened = await bench.cluster["q"].preserve(moved, evolve(moved.row.payload, relocation=None), FAR)
    assert isinstance(opened, Written)
    assert isinstance(await where(actor()), Ready)
    if wide:
        left = await bench.cluster["q"].change_membership(ann, ENTRY, FAR)
        assert isinstance(left, Written)
        assert (await where(actor())).route.owner == Q
        # A dead source says nothing about who lives at the target.
        await bench.cluster.lapse("p")
        assert isinstance(await where(actor()), Ready)


@pytest.mark.contract("LO-252")
async def test_a_member_that_leaves_between_two_reads_is_never_found_where_it_was_not(
    autojump_clock: object, bench: Bench
) -> None:
    room = await bench.cluster.create(spot(), P)
    ann = await bench.cluster.join(await bench.cluster.create(actor(), P), room)
    once = True

    async def before(call: Any) -> None:
        nonlocal once
        if call.key == spot().encode() and once:
            once = False
            left = await bench.cluster["p"].change_membership(ann, ENTRY, FAR)
            assert isinstance(left, Written)
            await bench.moved(await bench.cluster.read(spot()))

    bench.gate.before = before
    result = await bench.resolver.resolve(actor())
    assert isinstance(result, Ready)
    assert result.route.owner == P


@pytest.mark.contract("LO-252", "LO-080")
async def test_a_member_of_a_spot_that_is_not_there_is_corruption(autojump_clock: object, bench: Bench) -> None:
    room = await bench.cluster.create(spot(), P)
    await bench.cluster.join(await bench.cluster.create(actor(), P), room)
    await bench.cluster.store.write([], [Delete(spot().encode())])
    with pytest.raises(StoreCorruption):
        await bench.resolver.resolve(actor())


@pytest.mark.contract("LO-253", "LO-291", "LO-246")
async def test_missing_is_given_only_after_the_row_is_gone(autojump_clock: object, bench: Bench) -> None:
    ready = await bench.cluster.create(spot("cart"), P, kind="cart")
    closing = await bench.cluster["p"].preserve(ready, cart_payload(CLOSING), FAR)
    assert isinstance(closing, Written)
    bench.cache.clear()
    for _ in range(3):
        assert isinstance(await bench.resolver.resolve(spot("cart")), Closing)
        await trio.sleep(1)
    await bench.cluster.renew("p")
    assert await bench.cluster["p"].release(closing.record, ReleaseCause.IDLE_EVICTED, FAR) == Released()
    assert await bench.resolver.resolve(spot("cart")) == Missing()


# --- routes that are kept


@pytest.mark.contract("LO-256")
async def test_a_thousand_calls_in_three_seconds_read_once(autojump_clock: object, bench: Bench) -> None:
    await bench.cluster.create(actor(), P)
    for _ in range(1000):
        assert isinstance(await bench.resolver.resolve(actor()), Ready)
        await trio.sleep(0.003)
    assert bench.reads() == [actor().encode(), P.lease_key]


@pytest.mark.contract("LO-257")
@pytest.mark.parametrize(("left_ms", "age"), [(3_600_000, 15.0), (15_000, 10.0), (8_000, 3.0), (5_000, 0.0)])
async def test_a_route_lives_until_its_age_or_the_local_deadline_of_the_lease(
    autojump_clock: object, bench: Bench, left_ms: int, age: float
) -> None:
    await bench.cluster.create(actor(), P)
    await put(bench.cluster.store, P.lease_key, bench.cluster.leases["p"].row.encode(), left_ms)
    bench.gate.delay = 0.25  # counted from before the reads: a late answer makes it shorter
    began = trio.current_time()
    assert isinstance(await bench.resolver.resolve(actor()), Ready)
    assert bench.cache.get(actor(), began + 0.6) is not None or age == 0.0
    end = min(began + 15.0, began + left_ms / 1000 - 5.0)
    if age:
        assert bench.cache.get(actor(), end - 0.001) is not None
        assert bench.cache.get(actor(), end) is None
    else:
        assert len(bench.cache) <= 1
        assert bench.cache.get(actor(), end) is None


@pytest.mark.contract("LO-257")
async def test_an_age_of_zero_keeps_nothing(autojump_clock: object, bench: Bench) -> None:
    options = LocationOptions(route_cache_max_age=0.0)
    cache = RouteCache(options)
    resolver = Resolver(bench.gate, bench.cluster["me"], bench.links, bench.nodes, options, cache)
    await bench.cluster.create(actor(), P)
    for calls in (2, 4, 6):
        assert isinstance(await resolver.resolve(actor()), Ready)
        assert len(bench.reads()) == calls
    assert len(cache) == 0


@pytest.mark.contract("LO-258")
@pytest.mark.parametrize("what", ["missing", "creating", "closing", "moving", "unavailable", "store failure"])
async def test_whatever_is_not_ready_is_read_again_by_the_very_next_call(
    autojump_clock: object, bench: Bench, what: str
) -> None:
    store = bench.cluster.store
    if what == "creating":
        await bench.cluster["p"].reserve(order(actor(), P), FAR)
    elif what == "closing":
        await bench.cluster.create(actor(), P, payload=actor_payload(CLOSING))
    elif what != "missing":
        record = await bench.cluster.create(actor(), P)
        if what == "moving":
            await bench.moved(record)
        if what == "unavailable":
            await bench.cluster.lapse("p")
        if what == "store failure":
            bench.gate.rule = every("refuse")
    first = await bench.resolver.resolve(actor())
    assert type(first).__name__.lower() == what.replace(" ", "")
    assert len(bench.cache) == 0
    bench.gate.rule = every("pass")
    await bench.cluster.renew("p")
    await store.write([], [Delete(actor().encode())])
    fresh = await bench.cluster.create(actor(), Q)
    assert await bench.resolver.resolve(actor()) == Ready(resolution.route_of(fresh))


@pytest.mark.contract("LO-259", "LO-280", "LO-279")
async def test_a_route_that_is_known_to_be_wrong_is_gone_before_the_next_call(
    autojump_clock: object, bench: Bench
) -> None:
    record = await bench.cluster.create(actor(), P)
    other = await bench.cluster.create(actor("other"), Q)
    route = resolution.route_of(record)

    async def kept() -> None:
        for key in (actor(), actor("other")):
            await bench.resolver.resolve(key)
        assert len(bench.cache) == 2

    def now() -> Route | None:
        return bench.cache.get(actor(), trio.current_time())

    await kept()
    bench.cache.observed(actor(), record.version)
    assert now() == route
    bench.cache.observed(actor(), "another")
    assert now() is None
    await kept()
    bench.cache.stale(evolve(route, owner_generation=99))
    assert now() == route
    bench.cache.stale(route)
    assert now() is None
    await kept()
    fence = RouteFence("p", 7, record.row.owner_generation, 1)
    for newer in (
        evolve(fence, rid="q"),
        evolve(fence, lifecycle_generation=8),
        evolve(fence, owner_generation=fence.owner_generation - 1),
        evolve(fence, lease_generation=2),
    ):
        bench.cache.followed(actor(), newer)
        assert now() == route
    bench.cache.followed(actor(), fence)
    assert now() is None
    await kept()
    bench.cache.lapsed("p", 2)
    assert now() == route
    bench.cache.lapsed("p", 1)
    assert now() is None
    assert bench.cache.get(actor("other"), trio.current_time()) == resolution.route_of(other)
    await kept()
    bench.cache.clear()
    assert len(bench.cache) == 0
    # The resolver's own later reads count, too.
    await kept()
    second = await bench.cluster.create(actor("second"), P)
    await bench.cluster.lapse("p")
    assert isinstance(await bench.resolver.resolve(second.key), Unavailable)
    assert now() is None


@pytest.mark.contract("LO-259", "LO-248")
async def test_a_kept_route_to_an_owner_that_is_lost_is_looked_up_again(autojump_clock: object, bench: Bench) -> None:
    record = await bench.cluster.create(actor(), P)
    assert isinstance(await bench.resolver.resolve(actor()), Ready)
    await bench.moved(record, phase=RelocationPhase.ACTIVATED)
    bench.links.ready = {("q", 7)}
    result = await bench.resolver.resolve(actor())
    assert isinstance(result, Ready)
    assert result.route.owner == Q


@pytest.mark.contract("LO-260")
async def test_a_changed_age_counts_for_later_routes_only(autojump_clock: object, bench: Bench) -> None:
    await bench.cluster.create(actor(), P)
    await bench.cluster.create(actor("later"), P)
    began = trio.current_time()
    await bench.resolver.resolve(actor())
    bench.cache.max_age = 60.0
    await bench.resolver.resolve(actor("later"))
    assert bench.cache.get(actor(), began + 15) is None
    assert bench.cache.get(actor("later"), began + 59) is not None
    assert bench.cache.get(actor("later"), began + 60) is None


@pytest.mark.contract("LO-261")
async def test_a_hundred_first_calls_share_one_read(autojump_clock: object, bench: Bench) -> None:
    await bench.cluster.create(actor(), P)
    bench.gate.delay = 0.1
    results: list[Any] = []

    async def call() -> None:
        results.append(await bench.resolver.resolve(actor()))

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(call)
    assert {type(result) for result in results} == {Ready}
    assert len(results) == 100
    assert bench.reads() == [actor().encode(), P.lease_key]


@pytest.mark.contract("LO-261", "LO-258")
async def test_a_call_never_takes_missing_from_a_read_that_is_older_than_itself(
    autojump_clock: object, bench: Bench
) -> None:
    read = trio.Event()
    answered = trio.Event()
    reader = bench.gate.store

    class Slow:
        """Reads at once, answers late: what it says is old when it arrives."""

        async def read(self, key: bytes) -> Any:
            found = await reader.read(key)
            if key == actor().encode() and not read.is_set():
                read.set()
                await answered.wait()
            return found

        async def write(self, conditions: Any, mutations: Any) -> Any:
            return await reader.write(conditions, mutations)

    bench.gate.store = Slow()  # type: ignore[assignment]
    results: dict[str, Any] = {}

    async def call(name: str) -> None:
        results[name] = await bench.resolver.resolve(actor())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, "before")
        await read.wait()
        created = await bench.cluster.create(actor(), P)
        for number in range(5):
            nursery.start_soon(call, f"after {number}")
        await trio.sleep(0.1)
        assert not results
        answered.set()
    assert results.pop("before") == Missing()
    assert set(map(type, results.values())) == {Ready}
    assert {result.route.version for result in results.values()} == {created.version}
    assert bench.reads().count(actor().encode()) == 2  # the five share one of their own


@pytest.mark.contract("LO-261")
async def test_a_shared_read_whose_caller_is_cancelled_leaves_the_others_a_result(
    autojump_clock: object, bench: Bench
) -> None:
    await bench.cluster.create(actor(), P)
    bench.gate.delay = 1.0
    results: list[Any] = []

    async def call(scope: trio.CancelScope) -> None:
        with scope:
            results.append(await bench.resolver.resolve(actor()))

    scopes = [trio.CancelScope() for _ in range(4)]
    async with trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(call, scope)
        await trio.sleep(0.5)
        scopes[0].cancel()
        scopes[1].cancel()
    assert [type(result) for result in results] == [Ready, Ready]
    assert bench.gate.running == 0


@pytest.mark.contract("LO-262")
def test_beyond_its_size_the_least_recently_used_routes_go() -> None:
    cache = RouteCache(OPTIONS)
    template = Route(
        key=actor(),
        object_kind="actor",
        stable_type="user",
        object_generation=1,
        owner_generation=1,
        owner=P,
        version="1",
    )

    def keep(number: int) -> None:
        route = evolve(template, key=actor(str(number)))
        cache.put(route, read_at=0.0, lease_read_at=0.0, lease_seconds=100.0)

    for number in range(65_536):
        keep(number)
    assert len(cache) == 65_536
    assert cache.get(actor("0"), 1.0) is not None
    keep(65_536)
    assert len(cache) == 65_536
    assert cache.get(actor("0"), 1.0) is not None
    assert cache.get(actor("1"), 1.0) is None
