"""``valkey+embedded://PATH``: one real Valkey for all processes of one machine that name the same directory.

The first process starts it, others attach, and it stops after the last one. Three lock files decide, and only the
kernel's locks count, never what a file says, so a killed process leaves nothing behind that has to be cleaned up:

* ``start.lock``, exclusive: held while attaching, so concurrent starts make one server.
* ``users.lock``, shared by every user; the supervisor gets it exclusively when the last is gone
  (`embedded_supervisor`).
* ``supervisor.lock``, exclusive for the supervisor's life: free means that nobody looks after a server.

Rows live as long as somebody is attached. They survive a crash of the server (append-only file) but not the last
user: an owner that is gone never comes back under its old id, so rows of a run that ended would only be unusable
names. Nothing listens on TCP; the directory is created for its user only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
import trio
from attrs import field, frozen
from redis.connection import UnixDomainSocketConnection

from zlinkpy.errors import ConfigurationError
from zlinkpy.location import embedded_supervisor as supervisor
from zlinkpy.location.embedded_server import (
    DATA_NAME,
    LOG_NAME,
    SOCKET_NAME,
    SocketName,
    server_binary,
    server_command,
)
from zlinkpy.location.redis_target import NodePools, Pool, ServerPools, ServerTarget

START_LOCK = "start.lock"
_TRIES = 1000
_POLL_SECONDS = 0.01


class Attachment:
    """One user of the server in `directory`. Methods block; `attach` may start the server and its supervisor."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory).expanduser().absolute()
        self._users: int | None = None
        self._name: SocketName | None = None

    @property
    def socket_path(self) -> str:
        """A connectable name of the server's socket, while attached."""
        if self._name is None:
            raise RuntimeError("not attached")
        return self._name.path

    def attach(self) -> None:
        """Become a user and return when the server answers.

        Raises ConfigurationError when the directory cannot be used or the server does not start.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            users = _open(self.directory / supervisor.USERS_LOCK)
        except OSError as error:
            raise ConfigurationError(f"the embedded store cannot use {self.directory}: {error.strerror}") from None
        try:
            self._name = SocketName(self.directory)
            with _held(self.directory / START_LOCK):
                if _try_lock(users, fcntl.LOCK_EX):
                    self._clear_remains()
                _lock(users, fcntl.LOCK_SH)
                self._start_unless_answering()
        except BaseException:
            os.close(users)
            self._close_name()
            raise
        self._users = users

    def ensure(self) -> None:
        """After a refused connection: make sure that a server runs. The rows survive as far as they were
        acknowledged.
        """
        with _held(self.directory / START_LOCK):
            self._start_unless_answering()

    def release(self) -> None:
        """Stop being a user; the last one's server stops within moments. Idempotent."""
        users, self._users = self._users, None
        if users is not None:
            os.close(users)
        self._close_name()

    def _close_name(self) -> None:
        name, self._name = self._name, None
        if name is not None:
            name.close()

    def _clear_remains(self) -> None:
        """Nobody else is attached. Unless a supervisor is just ending, what lies here is left over from a crash."""
        if not self._unsupervised():
            return
        # Somebody answering is an orphan: its supervisor was killed on a system that does not tell children. Only when
        # it has hung up may its data go.
        supervisor.ask(self.socket_path, b"SHUTDOWN NOSAVE")
        shutil.rmtree(self.directory / DATA_NAME, ignore_errors=True)
        (self.directory / SOCKET_NAME).unlink(missing_ok=True)

    def _start_unless_answering(self) -> None:
        pause = threading.Event()
        for _ in range(_TRIES):
            if supervisor.answers(self.socket_path):
                return
            if self._unsupervised():
                self._launch()
            else:
                pause.wait(_POLL_SECONDS)
        raise ConfigurationError(f"the embedded store does not answer; see {self.directory / LOG_NAME}")

    def _unsupervised(self) -> bool:
        descriptor = _open(self.directory / supervisor.SUPERVISOR_LOCK)
        try:
            return _try_lock(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)

    def _launch(self) -> None:
        command = [sys.executable, "-I", "-S", supervisor.__file__, str(self.directory), "--"]
        done = subprocess.run(
            [*command, *server_command(server_binary())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if done.returncode != 0:
            reason = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise ConfigurationError(f"the embedded store did not start: {reason or self.directory / LOG_NAME}")


@frozen
class EmbeddedTarget:
    """The store in a directory, attached to at the first call."""

    directory: Path
    label: str = field(init=False)

    @label.default
    def _label(self) -> str:
        return f"valkey+embedded://{self.directory}"

    def open(self, size: int, timeout: float) -> NodePools:
        return EmbeddedPools(self.directory, size, timeout)


class EmbeddedPools:
    """A pool to the socket, and the attachment that keeps the server alive."""

    def __init__(self, directory: Path, size: int, timeout: float) -> None:
        self._attachment = Attachment(directory)
        self._size = size
        self._timeout = timeout
        self._lock = threading.Lock()
        self._pools: ServerPools | None = None

    def pool(self) -> Pool:
        with self._lock:
            if self._pools is None:
                self._attachment.attach()
                where = {"path": self._attachment.socket_path}
                target = ServerTarget(str(self._attachment.directory), UnixDomainSocketConnection, where)
                self._pools = ServerPools(target, self._size, self._timeout)
            return self._pools.pool()

    def refused(self) -> bool:
        """Start the server again where its supervisor was killed."""
        with self._lock:
            if self._pools is None:
                return False
            self._attachment.ensure()
            return True

    def moved(self, error: redis.exceptions.MovedError) -> None:
        raise AssertionError("an embedded server is no cluster") from error

    def asked(self, error: redis.exceptions.AskError) -> Pool:
        raise AssertionError("an embedded server is no cluster") from error

    def close(self) -> None:
        with self._lock:
            pools, self._pools = self._pools, None
            if pools is not None:
                pools.close()
            self._attachment.release()


async def serve_embedded(path: str | Path, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
    """Keep the embedded store in `path` running until cancelled; what `zlink store` does.

    `task_status` gets the URL other processes use once the server answers. Raises ConfigurationError when it cannot
    start.
    """
    attachment = Attachment(path)
    await trio.to_thread.run_sync(attachment.attach)
    try:
        task_status.started(f"valkey+embedded://{attachment.directory}")
        await trio.sleep_forever()
    finally:
        attachment.release()


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(descriptor: int, kind: int) -> None:
    """Poll, so that a stuck holder becomes an error instead of a stuck thread."""
    pause = threading.Event()
    for _ in range(_TRIES):
        if _try_lock(descriptor, kind):
            return
        pause.wait(_POLL_SECONDS)
    raise ConfigurationError("the embedded store is locked by a process that does not go on")


@contextmanager
def _held(path: Path) -> Iterator[None]:
    descriptor = _open(path)
    try:
        _lock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
