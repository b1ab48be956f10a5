"""Node processes that never outlive the demo.

Each is a plain ``zlink run``, started in a session of its own, so that Ctrl-C in the terminal reaches the demo alone
and the demo decides the order. Its standard input is a pipe that the demo holds and nothing is ever written to: when
the demo is gone, however it went, the pipe ends and ``--stop-at-eof`` stops the node.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import trio

from zlinkpy.cli.demo.node import NAME_VARIABLE
from zlinkpy.errors import UnavailableError

START_SECONDS = 15.0
STOP_SECONDS = 6.0
_TARGET = "zlinkpy.cli.demo.node:host"


class NodeProcess:
    """One node under a name that stays while its process, and with it its routing id, changes."""

    def __init__(self, name: str, directory: Path, store: str) -> None:
        self.name = name
        self.rid: str | None = None
        self._directory = directory
        self._store = store
        self._process: trio.Process | None = None

    @property
    def is_running(self) -> bool:
        """True while there is a process."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """Where the process's standard error goes."""
        return self._directory / f"{self.name}.log"

    async def start(self) -> None:
        """Start the process and return when it serves; `rid` is new then.

        Raises UnavailableError, with the process's last words.
        """
        self.rid = None
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ZLINK_")}
        command = [
            sys.executable,
            "-m",
            "zlinkpy.cli",
            "run",
            _TARGET,
            "--store",
            self._store,
            "--json",
            "--stop-at-eof",
        ]
        with self.log.open("ab") as log:
            self._process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**environment, NAME_VARIABLE: self.name},
                start_new_session=True,
            )
        with trio.move_on_after(START_SECONDS) as waiting:
            line = await self._first_line()
        if waiting.cancelled_caught or not line:
            how = "does not serve" if waiting.cancelled_caught else f"ended with code {await self._process.wait()}"
            raise UnavailableError(f"{self.name} {how}; its last log line: {self._last_words()}")
        self.rid = json.loads(line)["nodes"][0]["rid"]

    async def _first_line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        received = b""
        while b"\n" not in received:
            more = await self._process.stdout.receive_some()
            if not more:
                return b""
            received += more
        return received.partition(b"\n")[0]

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "none"

    async def kill(self) -> None:
        """End the process without warning, as a crash would."""
        if self._process is not None:
            self.kill_at_once()
            await self._process.wait()
            await self._close_pipes()

    def kill_at_once(self) -> None:
        """The same without waiting; for signal handlers."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def stop(self) -> int | None:
        """Stop in order, within a few seconds, else by force. Returns the exit code, None without a process."""
        process = self._process
        if process is None:
            return None
        await self._close_pipes()
        if process.poll() is None:
            with suppress(ProcessLookupError):
                process.terminate()
            with trio.move_on_after(STOP_SECONDS):
                await process.wait()
            if process.returncode is None:
                await self.kill()
        return process.returncode

    async def _close_pipes(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                await pipe.aclose()
