"""LO-046: the memory provider follows its injected clock only, and both providers answer alike."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.location_store.conftest import MemoryBench
from tests.location_server import TestServer
from zlinkpy.entropy import SeededEntropy
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.open import open_store
from zlinkpy.location.store import (
    Applied,
    Conflict,
    Delete,
    Expired,
    Found,
    IfMissing,
    IfValue,
    IfVersion,
    LocationStore,
    Missing,
    Page,
    Put,
    StoreFailure,
)

KEYS = [b"a", b"a\x00", b"a\x00b", b"b", "\u00fc".encode(), b"\x7f"]
VALUES = [b"", b"x", b"y" * 40, bytes(range(256))]
DAY = 86_400_000


class Twin:
    """One provider of the pair. Versions, cursors and times are translated into numbers both can share."""

    def __init__(self, store: LocationStore) -> None:
        self.store = store
        self.versions: dict[str, int] = {}
        self.cursors: list[str] = []

    def version(self, number: int) -> str:
        """The `number`th version this provider issued; one that never existed beyond that."""
        issued = list(self.versions)
        return issued[number % len(issued)] if issued and number >= 0 else "never"

    def plain(self, answer: Any) -> Any:
        match answer:
            case Missing() | Conflict() | Expired():
                return type(answer).__name__
            case Found(value, version, expires_at, store_now):
                return (value, self.versions[version], self._expiry(expires_at, store_now))
            case Applied(versions, _):
                for version in versions.values():
                    assert version not in self.versions
                    self.versions[version] = len(self.versions)
                return [(key, self.versions[version]) for key, version in versions.items()]
            case Page(items, cursor, store_now):
                if cursor is not None:
                    self.cursors.append(cursor)
                rows = [
                    (item.key, item.value, self.versions[item.version], self._expiry(item.expires_at, store_now))
                    for item in items
                ]
                return (rows, cursor is None)
        raise AssertionError(answer)

    @staticmethod
    def _expiry(expires_at: int | None, store_now: int) -> str:
        if expires_at is None:
            return "never"
        assert expires_at > store_now
        return "later"


indexes = st.integers(0, len(KEYS) - 1)
conditions = st.lists(
    st.tuples(indexes, st.sampled_from(["missing", "version", "value"]), st.integers(-1, 12)),
    max_size=3,
    unique_by=lambda entry: entry[0],
)
mutations = st.lists(
    st.tuples(indexes, st.sampled_from(["put", "put", "brief", "day", "delete"]), st.integers(0, len(VALUES) - 1)),
    max_size=4,
    unique_by=lambda entry: entry[0],
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), indexes),
        st.tuples(st.just("write"), conditions, mutations),
        st.tuples(st.just("scan"), st.sampled_from([b"", b"a", b"a\x00", b"\xc3", b"z"]), st.integers(1, 4)),
        st.tuples(st.just("more"), st.sampled_from([b"", b"a"]), st.integers(0, 5), st.integers(1, 4)),
        st.tuples(st.just("time")),
    ),
    min_size=5,
    max_size=30,
)


def condition(twin: Twin, entry: tuple[int, str, int]) -> IfMissing | IfVersion | IfValue:
    at, kind, number = entry
    if kind == "missing":
        return IfMissing(KEYS[at])
    return (
        IfVersion(KEYS[at], twin.version(number))
        if kind == "version"
        else IfValue(KEYS[at], VALUES[number % len(VALUES)])
    )


def mutation(entry: tuple[int, str, int]) -> Put | Delete:
    at, kind, number = entry
    if kind == "delete":
        return Delete(KEYS[at])
    return Put(KEYS[at], VALUES[number], {"put": None, "brief": 1, "day": DAY}[kind])


async def perform(twin: Twin, step: tuple[Any, ...]) -> Any:
    match step:
        case ("read", at):
            return twin.plain(await twin.store.read(KEYS[at]))
        case ("write", checks, changes):
            if not checks and not changes:
                return None
            own = [condition(twin, entry) for entry in checks]
            return twin.plain(await twin.store.write(own, [mutation(entry) for entry in changes]))
        case ("scan", prefix, limit):
            return twin.plain(await twin.store.scan(prefix, limit=limit))
        case ("more", prefix, number, limit):
            cursor = twin.cursors[number % len(twin.cursors)] if twin.cursors else "made up"
            return twin.plain(await twin.store.scan(prefix, cursor=cursor, limit=limit))
    raise AssertionError(step)


@pytest.mark.contract("LO-046")
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=steps, seed=st.integers(0, 2**32))
async def test_both_providers_answer_a_random_sequence_alike(
    valkey: TestServer, script: list[tuple[Any, ...]], seed: int
) -> None:
    """After every step that put a brief row, both clocks pass its expiry; otherwise time stands as good as still."""
    valkey.command("FLUSHALL")
    now = 1_000_000
    memory = Twin(MemoryStore(clock=lambda: now, entropy=SeededEntropy(seed)))
    redis = Twin(open_store(valkey.url, prefix="twin", entropy=SeededEntropy(seed)))
    try:
        for step in script:
            assert step[0] == "time" or await perform(memory, step) == await perform(redis, step), step
            if step[0] == "time" or (step[0] == "write" and any(change[1] == "brief" for change in step[2])):
                now += 2
                await wait_on_server(valkey, 2)
    finally:
        await redis.store.aclose()


async def wait_on_server(server: TestServer, milliseconds: int) -> None:
    client = server.client()
    try:
        seconds, micros = client.time()
        end = seconds * 1_000_000 + micros + milliseconds * 1000 + 1000
        while seconds * 1_000_000 + micros < end:
            seconds, micros = client.time()
            await trio.lowlevel.checkpoint()
    finally:
        client.close()


@pytest.mark.contract("LO-046")
async def test_the_memory_provider_follows_its_injected_clock_only(
    memory_bench: MemoryBench, autojump_clock: trio.testing.MockClock
) -> None:
    await memory_bench.store.write([], [Put(b"a", b"1", 1000), *(Put(b"k%d" % at, b"") for at in range(4))])
    page = await memory_bench.store.scan(b"k", limit=1)
    assert isinstance(page, Page)
    await trio.sleep(3600)
    row = await memory_bench.store.read(b"a")
    assert isinstance(row, Found)
    assert row.store_now == memory_bench.now
    assert isinstance(await memory_bench.store.scan(b"k", cursor=page.cursor), Page)
    memory_bench.now += 999
    assert isinstance(await memory_bench.store.read(b"a"), Found)
    memory_bench.now += 1
    answer = await memory_bench.store.read(b"a")
    assert answer == Missing(memory_bench.now)
    memory_bench.now -= 10_000
    assert isinstance(await memory_bench.store.read(b"a"), Found)


async def test_the_default_clock_of_the_memory_provider_is_trios(autojump_clock: trio.testing.MockClock) -> None:
    store = MemoryStore()
    await store.write([], [Put(b"a", b"1", 15_000)])
    await trio.sleep(14.9)
    assert isinstance(await store.read(b"a"), Found)
    await trio.sleep(0.2)
    assert isinstance(await store.read(b"a"), Missing)


@pytest.mark.contract("LO-044")
async def test_a_memory_write_whose_answer_is_lost_is_unknown_and_readable(
    memory_bench: MemoryBench, autojump_clock: trio.testing.MockClock
) -> None:
    store = memory_bench.store
    store.plan("after", operation="write", delay=2.0)
    started = trio.current_time()
    with pytest.raises(StoreFailure) as lost:
        await store.write([IfMissing(b"a")], [Put(b"a", b"1")])
    assert trio.current_time() - started == 2.0
    assert (lost.value.applied, lost.value.operation) == ("unknown", "write")
    assert isinstance(await store.read(b"a"), Found)
    store.plan("before", key=b"b")
    assert isinstance(await store.read(b"a"), Found)
    with pytest.raises(StoreFailure) as refused:
        await store.write([], [Put(b"b", b"1")])
    assert refused.value.applied == "no"
    assert isinstance(await store.read(b"b"), Missing)
    store.plan("after", operation="write", delay=60.0)
    with trio.move_on_after(1) as scope:
        await store.write([], [Put(b"c", b"1")])
    assert scope.cancelled_caught
    assert isinstance(await store.read(b"c"), Found)
    store.plan(None, delay=5.0, times=None)
    with trio.move_on_after(1) as scope:
        await store.write([], [Put(b"d", b"1")])
    assert scope.cancelled_caught
    store.heal()
    assert isinstance(await store.read(b"d"), Missing)
