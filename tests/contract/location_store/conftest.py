"""Both providers behind one small bench, so that every item of the SPI runs against each (LO section 2, `[all]`)."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

import pytest
import trio

from tests.authority_hosts import Cluster
from tests.gate import Gate
from tests.location_server import TestServer, valkey, valkey_session  # noqa: F401
from zlinkpy.location.memory_store import EPOCH_MS, MemoryStore
from zlinkpy.location.open import open_store
from zlinkpy.location.redis_rows import Layout
from zlinkpy.location.redis_store import RedisStore
from zlinkpy.location.store import LocationStore

PREFIX = "t"


class Bench(Protocol):
    """A provider and what a test may do to the world around it."""

    store: LocationStore

    @property
    def second(self) -> LocationStore:
        """Another reader of the same rows."""

    async def pass_ms(self, milliseconds: int) -> None:
        """Let the store's clock go on by at least this much."""

    def age_snapshots(self, milliseconds: int) -> None:
        """Make open snapshots older without touching rows."""

    def flush(self) -> None: ...

    def calls(self) -> int:
        """How many calls reached the rows so far."""

    def image(self) -> object:
        """Everything stored, comparable."""


class MemoryBench:
    name = "memory"

    def __init__(self) -> None:
        self.now = EPOCH_MS
        self.store = MemoryStore(clock=lambda: self.now)

    @property
    def second(self) -> MemoryStore:
        return self.store

    async def pass_ms(self, milliseconds: int) -> None:
        self.now += milliseconds
        await trio.lowlevel.checkpoint()

    def age_snapshots(self, milliseconds: int) -> None:
        self.now += milliseconds

    def flush(self) -> None:
        self.store.flush()

    def calls(self) -> int:
        return len(self.store.calls)

    def image(self) -> object:
        return (dict(self.store._rows), list(self.store._keys), self.store._sequence)


class RedisBench:
    name = "redis"

    def __init__(self, server: TestServer) -> None:
        self.server = server
        self.layout = Layout(PREFIX)
        self.store = open_store(server.url, prefix=PREFIX)
        self.others: list[RedisStore] = []

    @property
    def second(self) -> RedisStore:
        return self.open()

    def open(self, url: str | None = None, **options: float) -> RedisStore:
        store = open_store(url or self.server.url, prefix=PREFIX, **options)
        assert isinstance(store, RedisStore)
        self.others.append(store)
        return store

    def server_ms(self) -> int:
        seconds, micros = self.server.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def pass_ms(self, milliseconds: int) -> None:
        end = self.server_ms() + milliseconds
        while self.server_ms() < end:
            await trio.lowlevel.checkpoint()

    def age_snapshots(self, milliseconds: int) -> None:
        self._shift(self.layout.ends, milliseconds)

    def age_due(self, milliseconds: int) -> None:
        """Bring the clean-up nearer, as time would."""
        self._shift(self.layout.due, milliseconds)

    def _shift(self, key: bytes, milliseconds: int) -> None:
        for member in self.server.command("ZRANGE", key, 0, -1):
            self.server.command("ZINCRBY", key, -milliseconds, member)

    def flush(self) -> None:
        self.server.command("FLUSHALL")

    def calls(self) -> int:
        return self.server.scripts_run()

    def image(self) -> object:
        return {key: self.server.command("DUMP", key) for key in self.server.command("KEYS", "*")}


@pytest.fixture
async def memory_bench() -> AsyncIterator[MemoryBench]:
    bench = MemoryBench()
    yield bench
    await bench.store.aclose()


@pytest.fixture
async def redis_bench(valkey: TestServer) -> AsyncIterator[RedisBench]:  # noqa: F811
    bench = RedisBench(valkey)
    yield bench
    valkey.resume()
    for store in (bench.store, *bench.others):
        await store.aclose()


@pytest.fixture(params=["memory", "redis"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "memory":
        memory = MemoryBench()
        yield memory
        await memory.store.aclose()
    else:
        server = request.getfixturevalue("valkey")
        redis = RedisBench(server)
        yield redis
        server.resume()
        for store in (redis.store, *redis.others):
            await store.aclose()


@pytest.fixture
def gate(valkey: TestServer) -> Iterator[Gate]:  # noqa: F811
    """A proxy in front of the session's server."""
    gate = Gate(valkey.socket_path)
    yield gate
    gate.close()


def numbered(count: int, prefix: bytes = b"k") -> list[bytes]:
    """`count` keys in byte order."""
    return [prefix + b"%06d" % number for number in itertools.islice(itertools.count(), count)]


@pytest.fixture
async def cluster(bench: Bench) -> Cluster:
    """Nodes p and q in either provider."""
    made = Cluster(bench.store)
    await made.start("p")
    await made.start("q")
    return made
