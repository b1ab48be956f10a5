"""The session stores on a real server that is cut off, paused, killed, restarted, full, or of the wrong kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import trio
from redis.cluster import RedisCluster

from tests.contract.sessions.conftest import RedisBench
from tests.gate import ScriptedServer
from tests.location_server import TestServer
from zlinkpy.errors import ConfigurationError
from zlinkpy.location.redis_target import ClusterTarget
from zlinkpy.sessions.backends import SessionStores, open_session_stores
from zlinkpy.sessions.errors import (
    IdempotencyStoreError,
    SessionBackendError,
    SessionInboxError,
    SessionLeaseError,
    SessionRecordError,
)
from zlinkpy.sessions.redis_backend import RedisBackend
from zlinkpy.sessions.types import InboundMessage, Inserted, Priority, SessionLease, TurnResult, Write

MESSAGE = InboundMessage("s", "h1", "hi")
Call = Callable[[SessionStores], Awaitable[Any]]
CALLS: dict[str, tuple[type[SessionBackendError], bool, Call]] = {
    "try_acquire": (SessionLeaseError, True, lambda st: st.leases.try_acquire("s", "A", 30)),
    "extend": (SessionLeaseError, True, lambda st: st.leases.extend(SessionLease("s", "A", 1, 0, 30), 30)),
    "find_holder": (SessionLeaseError, False, lambda st: st.leases.find_holder("s")),
    "provision": (SessionRecordError, True, lambda st: st.records.provision("s", "h1")),
    "load": (SessionRecordError, False, lambda st: st.records.load("s")),
    "commit": (SessionRecordError, True, lambda st: st.records.commit("s", b"x", {}, 1, "t")),
    "delete": (SessionRecordError, True, lambda st: st.records.delete("s", 1)),
    "deliver": (SessionInboxError, True, lambda st: st.inbox.deliver(MESSAGE, "d")),
    "collect": (SessionInboxError, True, lambda st: st.inbox.collect("s", Priority.LATER, "b")),
    "is_empty": (SessionInboxError, False, lambda st: st.inbox.is_empty("s")),
    "purge": (SessionInboxError, True, lambda st: st.inbox.purge("s")),
    "withdraw": (SessionInboxError, True, lambda st: st.inbox.withdraw("s", "1:1-0")),
    "scan_pending": (SessionInboxError, False, lambda st: st.inbox.scan_pending(1, 10)),
    "put_if_absent": (IdempotencyStoreError, True, lambda st: st.idempotency.put_if_absent("k", "s", "h", "n", 30)),
    "find": (IdempotencyStoreError, False, lambda st: st.idempotency.find("k")),
    "touch": (IdempotencyStoreError, True, lambda st: st.idempotency.touch("k", "n")),
    "release_holder": (IdempotencyStoreError, True, lambda st: st.idempotency.release_holder("k", "n", 30)),
    "acquire_holder": (IdempotencyStoreError, True, lambda st: st.idempotency.acquire_holder("k", "n", 30)),
    "discard": (IdempotencyStoreError, True, lambda st: st.idempotency.discard_reservation("k")),
    "reset": (IdempotencyStoreError, True, lambda st: st.idempotency.compare_and_reset("k", "n")),
    "mark_done": (IdempotencyStoreError, True, lambda st: st.idempotency.mark_done("k", TurnResult(True), "n")),
    "find_stale": (IdempotencyStoreError, True, lambda st: st.idempotency.find_stale_in_flight(1, 10)),
}


@pytest.mark.contract("SR-421")
@pytest.mark.parametrize("name", CALLS)
async def test_a_cut_after_the_script_ran_is_unknown_and_nothing_is_repeated(
    redis_bench: RedisBench, name: str
) -> None:
    family, changes, call = CALLS[name]
    await call(redis_bench.stores)  # the script is known, a connection is open
    before, sent = redis_bench.server.scripts_run(), redis_bench.gate.script_calls
    redis_bench.gate.swallow(cut=True)
    with pytest.raises(family) as caught:
        await call(redis_bench.stores)
    assert caught.value.applied == ("unknown" if changes else "no")
    assert redis_bench.server.scripts_run() == before + 1
    assert redis_bench.gate.script_calls == sent + 1
    assert "session store" in str(caught.value)
    assert "'s'" not in str(caught.value)
    await call(redis_bench.stores)
    redis_bench.gate.refuse()
    with pytest.raises(family) as caught:
        await call(redis_bench.stores)
    assert caught.value.applied == "no"
    assert redis_bench.server.scripts_run() == before + 2


@pytest.mark.contract("SR-421")
async def test_an_answer_that_never_comes_is_unknown_within_the_timeout(redis_bench: RedisBench) -> None:
    stores = redis_bench.open(redis_bench.gate.url, timeout=0.2)
    assert await stores.inbox.is_empty("s")
    redis_bench.gate.swallow()
    start = trio.current_time()
    with pytest.raises(SessionInboxError, match="outcome unknown") as caught:
        await stores.inbox.deliver(MESSAGE, "d")
    assert trio.current_time() - start < 2
    assert caught.value.applied == "unknown"
    assert not await stores.inbox.is_empty("s")
    await stores.inbox.deliver(MESSAGE, "d")
    assert len((await stores.inbox.collect("s", Priority.LATER)).messages) == 1


async def test_a_paused_server_delays_or_fails_and_loses_nothing(redis_bench: RedisBench) -> None:
    stores = redis_bench.open(timeout=0.3)
    lease = await stores.leases.try_acquire("s", "A", 30)
    assert isinstance(lease, SessionLease)
    redis_bench.server.pause()
    for name in ("extend", "deliver", "put_if_absent", "commit"):
        family, _, call = CALLS[name]
        with pytest.raises(family) as caught:
            await call(stores)
        # The first was sent; the others found no connection that could be used.
        assert caught.value.applied == ("unknown" if name == "extend" else "no")
    redis_bench.server.resume()
    assert await stores.leases.extend(lease, 30) is True
    await stores.inbox.deliver(MESSAGE, "d")
    assert len((await stores.inbox.collect("s", Priority.LATER)).messages) == 1


async def test_a_restarted_server_kept_what_it_had_acknowledged(redis_bench: RedisBench) -> None:
    stores = redis_bench.open()
    lease = await stores.leases.try_acquire("s", "A", 30)
    assert isinstance(lease, SessionLease)
    await stores.records.provision("s", "h1", lease.token)
    assert await stores.records.commit("s", b"state", {}, lease.token, "t") is Write.OK
    inbox_id = await stores.inbox.deliver(MESSAGE, "d")
    assert isinstance(await stores.idempotency.put_if_absent("k", "s", "h", "n", 30), Inserted)
    redis_bench.server.kill()
    for name in ("find_holder", "load", "deliver", "find"):
        family, _, call = CALLS[name]
        with pytest.raises(family) as caught:
            await call(stores)
        assert caught.value.applied in ("no", "unknown")
    redis_bench.server.start()
    assert await stores.leases.extend(lease, 30) is True
    record = await stores.records.load("s")
    assert record is not None
    assert record.state == b"state"
    assert await stores.inbox.deliver(MESSAGE, "d") == inbox_id
    assert [found.id for found in (await stores.inbox.collect("s", Priority.LATER)).messages] == [inbox_id]
    assert await stores.idempotency.touch("k", "n") is True
    await stores.leases.release(lease)
    again = await stores.leases.try_acquire("s", "B", 30)
    assert isinstance(again, SessionLease)
    assert again.token > lease.token


async def test_a_full_server_takes_no_new_work_and_lets_running_work_end(redis_bench: RedisBench) -> None:
    stores = redis_bench.open()
    lease = await stores.leases.try_acquire("s", "A", 30)
    assert isinstance(lease, SessionLease)
    await stores.records.provision("s", "h1", lease.token)
    await stores.inbox.deliver(MESSAGE)
    await stores.idempotency.put_if_absent("k", "s", "h", "n", 30)
    redis_bench.command("CONFIG", "SET", "maxmemory", "1")
    try:
        for call in (
            stores.leases.try_acquire("other", "A", 30),
            stores.records.commit("s", b"x", {}, lease.token, "t"),
            stores.inbox.deliver(MESSAGE),
            stores.idempotency.put_if_absent("k2", "s", "h", "n", 30),
        ):
            with pytest.raises(SessionBackendError, match="out of memory") as caught:
                await call
            assert caught.value.applied == "no"
        assert await stores.leases.extend(lease, 30) is True
        assert len((await stores.inbox.collect("s", Priority.LATER, "b")).messages) == 1
        assert await stores.idempotency.touch("k", "n") is True
        assert (await stores.idempotency.mark_done("k", TurnResult(True), "n")).name == "APPLIED"
        assert await stores.idempotency.find_stale_in_flight(1, 10) == []
        await stores.leases.release(lease)
        assert await stores.leases.find_holder("s") is None
    finally:
        redis_bench.command("CONFIG", "SET", "maxmemory", "0")


@pytest.mark.contract("SR-457")
def test_a_cluster_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one primary"):
        open_session_stores("redis+cluster://localhost:7000")
    with pytest.raises(ConfigurationError, match="one primary"):
        RedisBackend(ClusterTarget("x", (("localhost", 7000),), {}, tls=False))
    assert RedisCluster is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("http://x",), "cannot begin with http"),
        (("redis://localhost", {"prefix": "a{b}"}), "prefix"),
        (("redis://localhost", {"prefix": ""}), "prefix"),
        (("redis://localhost", {"timeout": 0}), "timeout"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments: tuple[Any, ...], words: str) -> None:
    url, *options = arguments
    with pytest.raises(ConfigurationError, match=words):
        open_session_stores(url, **(options[0] if options else {}))
    with pytest.raises(ConfigurationError, match="memory://"):
        RedisBackend("memory://")


async def test_refused_credentials_are_an_error_of_the_store(tmp_path_factory: pytest.TempPathFactory) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="zl-") as directory:
        server = TestServer(Path(directory), arguments=("--requirepass", "right"))
        server.start()
        try:
            stores = open_session_stores(server.url)
            with pytest.raises(SessionLeaseError, match="credentials") as caught:
                await stores.leases.try_acquire("s", "A", 30)
            assert caught.value.applied == "no"
            await stores.aclose()
        finally:
            server.stop()


async def test_a_server_that_says_nonsense_is_an_error() -> None:
    answers = iter([b"*1\r\n:7\r\n", b"*0\r\n", b":5\r\n", b"*2\r\n$1\r\nx\r\n$1\r\ny\r\n"] * 3)
    server = ScriptedServer(lambda command: next(answers))
    stores = open_session_stores(server.url)
    try:
        for _ in range(4):
            with pytest.raises(SessionInboxError):
                await stores.inbox.collect("s", Priority.LATER)
        for _ in range(4):
            with pytest.raises(SessionLeaseError):
                await stores.leases.try_acquire("s", "A", 30)
    finally:
        await stores.aclose()
        server.close()


async def test_closed_stores_refuse_calls_and_close_twice(redis_bench: RedisBench) -> None:
    stores = redis_bench.open()
    await stores.inbox.is_empty("s")
    await stores.aclose()
    await stores.aclose()
    for family, _, call in CALLS.values():
        with pytest.raises(family, match="closed"):
            await call(stores)


async def test_a_cancelled_call_leaves_its_effect_to_its_id(redis_bench: RedisBench) -> None:
    redis_bench.gate.hold()
    with trio.move_on_after(0.2):
        await redis_bench.stores.inbox.deliver(MESSAGE, "d")
    redis_bench.gate.release()
    await redis_bench.stores.inbox.deliver(MESSAGE, "d")
    assert len((await redis_bench.stores.inbox.collect("s", Priority.LATER)).messages) == 1


async def test_scripts_the_server_forgot_are_sent_again(redis_bench: RedisBench) -> None:
    for _, _, call in CALLS.values():
        redis_bench.command("SCRIPT", "FLUSH")
        await call(redis_bench.stores)


async def test_the_keys_are_the_documented_ones(redis_bench: RedisBench) -> None:
    stores = redis_bench.stores
    lease = await stores.leases.try_acquire("s", "A", 30)
    assert isinstance(lease, SessionLease)
    await stores.records.provision("s", "h1", lease.token)
    for priority in Priority:
        await stores.inbox.deliver(InboundMessage("s", "h1", "hi", priority), f"d{int(priority)}")
    await stores.inbox.collect("s", Priority.NOW, "b1")
    await stores.idempotency.put_if_absent("k", "s", "h", "n", 30)
    expected = {
        "t:{s}:lease": 30_000,
        "t:{s}:fence": 7 * 86_400_000,
        "t:{s}:rec": -1,
        "t:{s}:in:0": 60_000,
        "t:{s}:in:1": -1,
        "t:{s}:in:2": -1,
        "t:{s}:d:d0": 600_000,
        "t:{s}:d:d1": 600_000,
        "t:{s}:d:d2": 600_000,
        "t:{s}:cb:b1": 300_000,
        "t:in:idx": -1,
        "t:idem:k": 90_000,
        "t:idem:live": -1,
    }
    found = {key.decode(): redis_bench.command("PTTL", key) for key in redis_bench.command("KEYS", "*")}
    assert set(found) == set(expected)
    for key, life in expected.items():
        assert found[key] == life or life - 2000 < found[key] <= life, key
    client = redis_bench.server.client()
    assert isinstance(client, redis.Redis)
    assert set(client.hkeys("t:{s}:rec")) == {b"sid", b"ref", b"fence"}
    assert set(client.hkeys("t:{s}:lease")) == {b"h", b"t", b"a", b"at"}
    assert set(client.hkeys("t:idem:k")) == {b"sid", b"ih", b"st", b"h", b"ep", b"c", b"t", b"ttl"}
    client.close()
