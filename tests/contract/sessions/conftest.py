"""The session stores of both providers behind one bench, so that every `[all]` item runs against each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest
import trio

from tests.gate import Gate
from tests.location_server import TestServer, valkey, valkey_session  # noqa: F401
from zlinkpy.sessions.backends import SessionStores, memory_session_stores, open_session_stores
from zlinkpy.sessions.memory_backend import EPOCH_MS
from zlinkpy.sessions.memory_inbox import MemoryInbox
from zlinkpy.sessions.types import Priority

PREFIX = "t"


class Bench(Protocol):
    """A provider and what a test may do to the world around it."""

    name: str
    stores: SessionStores

    @property
    def peer(self) -> SessionStores:
        """The same rows as another process sees them."""

    async def pass_time(self, seconds: float) -> None:
        """Let the store's clock go on, as far as rows can tell."""

    def go_down(self) -> None:
        """Refuse every call from now on."""

    def lose_answer(self) -> None:
        """The next call takes effect and its answer is lost."""

    def insert_raw(self, session_id: str, priority: Priority, payload: bytes) -> None:
        """Put bytes into an inbox as a stranger would."""


class MemoryBench:
    name = "memory"

    def __init__(self) -> None:
        self.now = EPOCH_MS
        self.stores = memory_session_stores(clock=lambda: self.now)

    @property
    def peer(self) -> SessionStores:
        return self.stores

    async def pass_time(self, seconds: float) -> None:
        self.now += round(seconds * 1000)
        await trio.lowlevel.checkpoint()

    def go_down(self) -> None:
        self.stores.backend.plan("before", times=None, applied="no")  # type: ignore[union-attr]

    def lose_answer(self) -> None:
        self.stores.backend.plan("after")  # type: ignore[union-attr]

    def insert_raw(self, session_id: str, priority: Priority, payload: bytes) -> None:
        assert isinstance(self.stores.inbox, MemoryInbox)
        self.stores.inbox.insert_raw(session_id, priority, payload)


class RedisBench:
    name = "redis"

    def __init__(self, server: TestServer) -> None:
        self.server = server
        self.gate = Gate(server.socket_path)
        self.others: list[SessionStores] = []
        self.stores = open_session_stores(self.gate.url, prefix=PREFIX)
        self._peer: SessionStores | None = None

    @property
    def peer(self) -> SessionStores:
        if self._peer is None:
            self._peer = self.open()
        return self._peer

    def open(self, url: str | None = None, **options: Any) -> SessionStores:
        stores = open_session_stores(url or self.server.url, prefix=PREFIX, **options)
        self.others.append(stores)
        return stores

    def command(self, *arguments: object) -> Any:
        return self.server.command(*arguments)

    def server_ms(self) -> int:
        seconds, micros = self.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def pass_time(self, seconds: float) -> None:
        """Make every row older instead of waiting: expiries come nearer, stored instants move back."""
        ms = round(seconds * 1000)
        client = self.server.client()
        try:
            for key in client.keys(f"{PREFIX}:*"):
                left = client.pttl(key)
                if 0 <= left <= ms:
                    client.delete(key)
                    continue
                if left > 0:
                    client.pexpire(key, left - ms)
                kind = client.type(key)
                if kind == b"hash" and b":idem:" in key:
                    client.hincrby(key, "t", -ms)
                    client.hincrby(key, "c", -ms)
                elif kind == b"zset":
                    for member in client.zrange(key, 0, -1):
                        client.zincrby(key, -ms, member)
        finally:
            client.close()
        await trio.lowlevel.checkpoint()

    def go_down(self) -> None:
        self.gate.refuse()

    def lose_answer(self) -> None:
        self.gate.swallow(cut=True)

    def insert_raw(self, session_id: str, priority: Priority, payload: bytes) -> None:
        self.command("XADD", f"{PREFIX}:{{{session_id}}}:in:{int(priority)}", "*", "p", payload)

    async def aclose(self) -> None:
        self.server.resume()
        self.server.start()
        self.gate.heal()
        for stores in (self.stores, *self.others):
            await stores.aclose()
        self.gate.close()


@pytest.fixture
async def redis_bench(valkey: TestServer) -> AsyncIterator[RedisBench]:  # noqa: F811
    bench = RedisBench(valkey)
    yield bench
    await bench.aclose()


@pytest.fixture
def memory_bench() -> MemoryBench:
    return MemoryBench()


@pytest.fixture(params=["memory", "redis"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "memory":
        yield MemoryBench()
    else:
        redis = RedisBench(request.getfixturevalue("valkey"))
        yield redis
        await redis.aclose()


@pytest.fixture
def stores(bench: Bench) -> SessionStores:
    return bench.stores
