"""What a failed call means: not applied, unknown, configuration (LO-009, 012, 043, 044, 054, 055, 057, 064, 067)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import trio

from tests.contract.location_store.conftest import RedisBench
from tests.contract.location_store.test_interface import found, put
from tests.gate import Command, Gate, ScriptedServer, is_script_call
from tests.location_server import TestServer
from zlinkpy.errors import ConfigurationError, ErrorKind
from zlinkpy.location.open import open_store
from zlinkpy.location.redis_store import CALL_THREADS, RedisStore
from zlinkpy.location.redis_target import ServerTarget
from zlinkpy.location.store import (
    Applied,
    Conflict,
    Found,
    IfMissing,
    Missing,
    Page,
    Put,
    StoreCorruption,
    StoreFailure,
)

KEY = b"very-secret-key"
HANG = b""


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedServer]]:
    """Make scripted servers that are closed at the end."""
    servers: list[ScriptedServer] = []

    def make(answer: Callable[[Command], bytes | None], *, tcp: bool = False) -> ScriptedServer:
        servers.append(ScriptedServer(answer, tcp=tcp))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def secured() -> Iterator[TestServer]:
    """A server with a password."""
    with tempfile.TemporaryDirectory(prefix="zl-") as directory:
        server = TestServer(Path(directory), arguments=("--requirepass", "right"))
        server.start()
        yield server
        server.stop()


def assert_private(error: BaseException) -> None:
    """No physical or logical key, command or script in what an application can print (LO-067)."""
    context = None if error.__suppress_context__ else error.__context__
    for one in (error, error.__cause__, context):
        text = f"{one} {one!r} {getattr(one, '__notes__', '')}".lower()
        for word in ("opaque", "zlink-location", KEY.decode(), "eval", "lua", "script", "zadd", "hunter2"):
            assert word not in text


async def failed(call: Callable[[], object]) -> StoreFailure:
    with pytest.raises(StoreFailure) as caught:
        await call()  # type: ignore[misc]
    assert caught.value.kind is ErrorKind.UNAVAILABLE
    assert_private(caught.value)
    return caught.value


def error_answer(text: str) -> Callable[[Command], bytes | None]:
    return lambda command: f"-{text}\r\n".encode()


REFUSALS = {
    "LOADING": "LOADING server is loading the dataset in memory",
    "READONLY": "READONLY You can't write against a read only replica. script: 1f2, on @user_script:7.",
    "CLUSTERDOWN": "CLUSTERDOWN Hash slot not served",
    "TRYAGAIN": "TRYAGAIN Multiple keys request during rehashing of slot",
    "OOM": "OOM command not allowed when used memory > 'maxmemory'. script: 1f2, on @user_script:7.",
    "BUSY": "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "NOREPLICAS": "NOREPLICAS Not enough good replicas to write.",
    "MISCONF": "MISCONF Errors writing to the AOF file: No space left on device",
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
}


@pytest.mark.contract("LO-055", "LO-067")
@pytest.mark.parametrize("word", REFUSALS)
async def test_a_refusal_before_execution_is_not_applied(scripted: Callable[..., ScriptedServer], word: str) -> None:
    server = scripted(error_answer(REFUSALS[word]))
    store = open_store(server.url)
    failure = await failed(lambda: store.write([], [Put(KEY, b"hunter2")]))
    assert (failure.applied, failure.operation) == ("no", "write")
    assert server.script_calls == 1
    assert (await failed(lambda: store.read(KEY))).operation == "read"
    assert (await failed(lambda: store.scan(KEY))).operation == "scan"
    await store.aclose()


@pytest.mark.contract("LO-055", "LO-067")
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("cut", None),
        ("hang", HANG),
        ("run-time error", b"-ERR user_script:12: attempt to index a nil value script: 1f2, on @user_script:12.\r\n"),
        ("garbage", b"!what\r\n"),
    ],
)
async def test_an_ending_after_the_command_was_sent_is_unknown(
    scripted: Callable[..., ScriptedServer], name: str, answer: bytes | None
) -> None:
    server = scripted(lambda command: answer)
    store = open_store(server.url, operation_timeout=0.2)
    failure = await failed(lambda: store.write([], [Put(KEY, b"v")]))
    assert (failure.applied, failure.operation) == ("unknown", "write")
    assert server.script_calls == 1
    assert (await failed(lambda: store.read(KEY))).applied == "no"
    await store.aclose()


@pytest.mark.contract("LO-055", "LO-067")
async def test_a_refused_connection_is_not_applied(gate: Gate) -> None:
    gate.refuse()
    store = open_store(gate.url)
    assert (await failed(lambda: store.write([], [Put(KEY, b"v")]))).applied == "no"
    gate.heal()
    assert isinstance(await store.write([IfMissing(KEY)], [Put(KEY, b"v")]), Applied)
    await store.aclose()


@pytest.mark.contract("LO-055", "LO-067")
async def test_a_redirect_to_an_unreachable_node_is_not_applied(scripted: Callable[..., ScriptedServer]) -> None:
    gone = ScriptedServer(lambda command: HANG, tcp=True)
    gone.close()

    def answer(command: Command) -> bytes:
        if command[0] == b"CLUSTER":
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % node.port
        return b"-MOVED 1 127.0.0.1:%d\r\n" % gone.port

    node = scripted(answer, tcp=True)
    store = open_store(f"redis+cluster://127.0.0.1:{node.port}")
    failure = await failed(lambda: store.write([], [Put(KEY, b"v")]))
    assert failure.applied == "no"
    await store.aclose()


@pytest.mark.contract("LO-055")
async def test_a_redirect_from_a_single_server_names_the_right_scheme(scripted: Callable[..., ScriptedServer]) -> None:
    store = open_store(scripted(error_answer("MOVED 1 127.0.0.1:1"), tcp=True).url)
    with pytest.raises(ConfigurationError, match=r"redis\+cluster"):
        await store.read(KEY)
    await store.aclose()


@pytest.mark.contract("LO-055")
async def test_a_full_server_refuses_writes_and_still_answers_reads_and_scans(redis_bench: RedisBench) -> None:
    await put(redis_bench.store, b"a", b"old")
    redis_bench.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        failure = await failed(lambda: redis_bench.store.write([], [Put(b"a", b"new"), Put(b"b", b"new")]))
        assert failure.applied == "no"
        assert (await found(redis_bench.store, b"a")).value == b"old"
        assert isinstance(await redis_bench.store.scan(b""), Page)
    finally:
        redis_bench.server.command("CONFIG", "SET", "maxmemory", "0")
    assert isinstance(await redis_bench.store.read(b"b"), Missing)


@pytest.mark.contract("LO-044", "LO-054")
@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("client", ["url", "client"])
async def test_a_swallowed_answer_is_unknown_and_the_write_was_sent_once(
    redis_bench: RedisBench, gate: Gate, cut: bool, client: str
) -> None:
    # The second kind of store is made from a client whose retries are at the library's defaults: ten.
    own = redis.Redis(unix_socket_path=gate.path, decode_responses=True)
    store = (
        RedisStore(own, prefix="t", operation_timeout=0.4)
        if client == "client"
        else redis_bench.open(gate.url, operation_timeout=0.4)
    )
    await put(store, b"warm")
    gate.commands.clear()
    gate.swallow(cut=cut)
    failure = await failed(lambda: store.write([IfMissing(b"a")], [Put(b"a", b"1")]))
    assert gate.swallowed.is_set()
    assert failure.applied == "unknown"
    assert gate.script_calls == 1
    gate.cut()
    assert (await found(store, b"a")).value == b"1"
    await store.aclose()
    own.close()


@pytest.mark.contract("LO-054")
async def test_a_dedicated_handle_sends_a_write_once_as_well(redis_bench: RedisBench, gate: Gate) -> None:
    store = redis_bench.open(gate.url)
    handle = store.dedicated()
    await trio.to_thread.run_sync(handle.read_blocking, b"a")
    gate.commands.clear()
    gate.swallow(cut=True)
    with pytest.raises(StoreFailure) as caught:
        await trio.to_thread.run_sync(handle.write_blocking, [IfMissing(b"a")], [Put(b"a", b"1")])
    assert caught.value.applied == "unknown"
    assert gate.script_calls == 1
    assert isinstance(await trio.to_thread.run_sync(handle.write_blocking, [IfMissing(b"a")], []), Conflict)
    handle.close()


@pytest.mark.contract("LO-044")
async def test_a_write_cancelled_after_it_was_sent_may_have_happened(redis_bench: RedisBench, gate: Gate) -> None:
    store = redis_bench.open(gate.url)
    await put(store, b"warm")
    gate.swallow()
    result: list[object] = []
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            result.append(await store.write([IfMissing(b"a")], [Put(b"a", b"1")]))

        nursery.start_soon(write)
        await trio.to_thread.run_sync(gate.swallowed.wait)
        nursery.cancel_scope.cancel()
    assert result == []
    gate.cut()
    assert (await found(store, b"a")).value == b"1"


@pytest.mark.contract("LO-043", "LO-055")
@pytest.mark.parametrize("leaves_by", ["timeout", "cancellation"])
async def test_a_call_that_left_before_it_was_sent_is_never_sent(
    redis_bench: RedisBench, gate: Gate, leaves_by: str
) -> None:
    store = redis_bench.open(gate.url, operation_timeout=5.0)
    gate.hold(lambda command: command[0] == b"CLIENT")  # the handshake does not get through
    if leaves_by == "timeout":
        store._timeout = 0.1  # of the call; the socket goes on waiting
        failure = await failed(lambda: store.write([], [Put(b"a", b"1")]))
        assert failure.applied == "no"
    else:
        with trio.move_on_after(0.1) as scope:
            await store.write([], [Put(b"a", b"1")])
        assert scope.cancelled_caught
    gate.release()
    with trio.fail_after(5):
        while store._session._running:
            await trio.lowlevel.checkpoint()
    assert gate.script_calls == 0
    assert isinstance(await redis_bench.store.read(b"a"), Missing)


@pytest.mark.contract("LO-057")
async def test_waiting_for_a_connection_and_the_command_share_one_limit(redis_bench: RedisBench, gate: Gate) -> None:
    store = redis_bench.open(gate.url, operation_timeout=0.5)
    await put(store, b"warm")
    gate.hold()
    times: list[float] = []

    async def stuck() -> None:
        started = trio.current_time()
        failure = await failed(lambda: store.write([], [Put(KEY, b"v")]))
        times.append(trio.current_time() - started)
        applied.append(failure.applied)

    applied: list[str] = []
    async with trio.open_nursery() as nursery:
        for _ in range(CALL_THREADS):
            nursery.start_soon(stuck)
        await trio.to_thread.run_sync(gate.holding.wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(stuck)  # exhausted: no thread and no connection is free
        nursery.start_soon(stuck)
    assert len(times) == CALL_THREADS + 2
    assert all(0.4 <= elapsed <= 0.6 for elapsed in times)
    assert applied.count("unknown") >= CALL_THREADS
    started = trio.current_time()
    await failed(lambda: store.read(KEY))
    assert 0.4 <= trio.current_time() - started <= 0.6
    gate.release()


@pytest.mark.contract("LO-012")
@pytest.mark.parametrize(
    "credentials", ["", "hunter2", "default:hunter2"], ids=["NOAUTH", "WRONGPASS", "WRONGPASS-user"]
)
async def test_refused_credentials_at_the_first_call_are_a_configuration_error(
    secured: TestServer, credentials: str
) -> None:
    user, _, password = credentials.rpartition(":")
    options = {"path": secured.socket_path}
    options |= {"username": user} if user else {}
    options |= {"password": password} if password else {}
    target = ServerTarget("redis://store.example:6379", redis.UnixDomainSocketConnection, options)
    store = RedisStore(target)
    for call in (lambda: store.read(KEY), lambda: store.write([], [Put(KEY, b"")]), lambda: store.scan(b"")):
        with pytest.raises(ConfigurationError, match=r"redis://store\.example:6379") as caught:
            await call()
        assert_private(caught.value)
    handle = store.dedicated()
    with pytest.raises(ConfigurationError, match=r"store\.example"):
        await trio.to_thread.run_sync(handle.read_blocking, KEY)
    handle.close()
    await store.aclose()


@pytest.mark.contract("LO-012")
@pytest.mark.parametrize("rights", ["+@all -evalsha -eval", "+@all -info -evalsha", "+@all -@sortedset"])
async def test_missing_permissions_at_the_first_call_are_a_configuration_error(
    secured: TestServer, rights: str
) -> None:
    admin = redis.Redis(unix_socket_path=secured.socket_path, password="right")
    admin.execute_command("ACL", "SETUSER", "limited", "on", ">pass", "~*", *rights.split())
    admin.close()
    store = RedisStore(redis.Redis(unix_socket_path=secured.socket_path, username="limited", password="pass"))
    with pytest.raises(ConfigurationError, match="unix://"):
        await store.read(KEY)
    await store.aclose()


@pytest.mark.contract("LO-012")
async def test_credentials_refused_later_are_a_failure_of_the_store(secured: TestServer) -> None:
    store = RedisStore(redis.Redis(unix_socket_path=secured.socket_path, password="right"))
    assert isinstance(await store.read(KEY), Missing)
    admin = redis.Redis(unix_socket_path=secured.socket_path, password="right")
    admin.execute_command("ACL", "SETUSER", "default", "resetpass", ">changed")
    admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    admin.close()
    assert (await failed(lambda: store.write([], [Put(KEY, b"")]))).applied == "no"
    await store.aclose()


@pytest.mark.contract("LO-012")
@pytest.mark.parametrize("kind", ["hanging", "unreachable"])
async def test_a_store_that_does_not_answer_fails_within_the_timeout(
    scripted: Callable[..., ScriptedServer], kind: str
) -> None:
    server = scripted(lambda command: HANG)
    if kind == "unreachable":
        server.refuse()
    store = open_store(server.url, operation_timeout=0.2)
    started = trio.current_time()
    await failed(lambda: store.read(KEY))
    await failed(lambda: store.write([], [Put(KEY, b"")]))
    await failed(lambda: store.scan(b""))
    assert trio.current_time() - started < 1.2
    await store.aclose()


async def test_a_server_that_is_too_old_is_a_configuration_error(scripted: Callable[..., ScriptedServer]) -> None:
    text = "ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'"
    store = open_store(scripted(error_answer(text)).url)
    with pytest.raises(ConfigurationError, match="too old"):
        await store.read(KEY)
    await store.aclose()


@pytest.mark.contract("LO-056", "LO-067")
async def test_corruption_is_an_internal_failure_without_keys_in_its_text(redis_bench: RedisBench) -> None:
    redis_bench.server.command("SET", redis_bench.layout.record(KEY), "x")
    with pytest.raises(StoreCorruption) as caught:
        await redis_bench.store.read(KEY)
    assert caught.value.kind is ErrorKind.INTERNAL_FAILURE
    assert_private(caught.value)
    with pytest.raises(StoreCorruption) as caught:
        await redis_bench.store.write([], [Put(KEY, b"")])
    assert_private(caught.value)


@pytest.mark.contract("LO-064")
async def test_a_replica_answers_no_read(redis_bench: RedisBench) -> None:
    """A connection that ended up at a replica (or at a demoted primary) is refused, instead of showing the past."""
    await put(redis_bench.store, b"a")
    redis_bench.server.command("REPLICAOF", "127.0.0.1", "1")
    try:
        for call in (
            lambda: redis_bench.store.read(b"a"),
            lambda: redis_bench.store.scan(b""),
            lambda: redis_bench.store.write([], [Put(b"a", b"")]),
        ):
            assert (await failed(call)).applied == "no"
    finally:
        redis_bench.server.command("REPLICAOF", "NO", "ONE")
    assert isinstance(await redis_bench.store.read(b"a"), Found)


@pytest.mark.contract("LO-009")
async def test_closing_waits_for_the_running_calls_and_happens_once(redis_bench: RedisBench, gate: Gate) -> None:
    store = redis_bench.open(gate.url)
    await put(store, b"a")
    gate.hold()
    ended: list[str] = []

    async def call(name: str, action: Callable[[], object]) -> None:
        await action()  # type: ignore[misc]
        ended.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, "scan", lambda: store.scan(b""))
        nursery.start_soon(call, "read", lambda: store.read(b"a"))
        nursery.start_soon(call, "write", lambda: store.write([], [Put(b"b", b"")]))
        await trio.to_thread.run_sync(gate.holding.wait)
        nursery.start_soon(call, "close", store.aclose)
        nursery.start_soon(call, "close", store.aclose)
        await trio.testing.wait_all_tasks_blocked()
        assert (await failed(lambda: store.read(b"a"))).applied == "no"
        assert ended == []
        gate.release()
    assert ended[-2:] == ["close", "close"]
    assert set(ended[:-2]) == {"scan", "read", "write"}
    calls = gate.script_calls
    await failed(lambda: store.write([], [Put(b"b", b"")]))
    assert gate.script_calls == calls
    assert is_script_call(gate.commands[-1])


async def test_closing_does_not_wait_for_calls_that_nobody_waits_for(redis_bench: RedisBench, gate: Gate) -> None:
    store = redis_bench.open(gate.url, operation_timeout=30.0)
    await put(store, b"a")
    gate.swallow()
    with trio.move_on_after(0.1):
        await store.write([], [Put(b"b", b"")])
    started = trio.current_time()
    await store.aclose()
    assert trio.current_time() - started < 2
    assert store._session._running == 0
