"""The routes that the resolver keeps, and reads that calls share (LO section 14)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from attrs import evolve

from tests.authority_hosts import (
    FAR,
    actor,
    actor_payload,
    order,
    owner,
)
from tests.contract.resolver.conftest import Bench
from tests.location_hosts import OPTIONS, every, put
from zlinkpy.location import LocationOptions
from zlinkpy.location.authority import (
    ObjectState,
    RelocationPhase,
    Resolver,
    RouteCache,
    resolution,
)
from zlinkpy.location.authority.resolution import (
    Missing,
    Ready,
    Route,
    RouteFence,
    Unavailable,
)
from zlinkpy.location.store import Delete

READY, CLOSING = ObjectState.READY, ObjectState.CLOSING
P, Q = owner("p"), owner("q")
RELOCATION = (1).to_bytes(16, "big")


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


@pytest.mark.contract("LO-259", "LO-280")
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
