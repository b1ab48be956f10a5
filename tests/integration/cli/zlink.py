"""`zlink` as real processes, each in a session of its own so that what it leaves behind can be found."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from zlinkpy.cli import main
from zlinkpy.cli.options import STORE_VARIABLE

START_SECONDS = 20.0
END_SECONDS = 20.0
COMMAND = [sys.executable, "-m", "zlinkpy.cli"]

SERVER = """\
import time

import trio

import zlinkpy as zl


@zl.message
class Said:
    text: str


@zl.message
class Say(zl.Request[Said]):
    text: str


@zl.message
class Note:
    text: str


@zl.message
class Nap(zl.Request[None]):
    seconds: float


@zl.message
class Block(zl.Request[None]):
    seconds: float


host = zl.Host()
play = host.mesh("play")
play.serve_channel("talk")


@play.on_channel_request("talk")
async def say(request: Say, context: zl.MessageContext) -> Said:
    return Said(request.text + context.metadata.get("tail", ""))


@play.on_channel_send("talk")
async def note(message: Note) -> None:
    print("noted", message.text, flush=True)


@play.on_channel_request("talk")
async def nap(request: Nap) -> None:
    print("napping", flush=True)
    await trio.sleep(request.seconds)


@play.on_channel_request("talk")
async def block(request: Block) -> None:
    print("blocking", flush=True)
    time.sleep(request.seconds)


@play.on_node_request
async def direct(request: Say) -> Said:
    return Said("direct " + request.text)
"""


MARK = f"STARTED_BY_TESTS={os.getpid()}"
"""Told to every command and so to all it starts: another run of the tests on this machine is none of ours."""


def environment() -> dict[str, str]:
    """The surroundings of a command: nothing of ours in it but the library and `MARK`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ZLINK_")}
    path = [str(Path(__file__).resolve().parents[3]), *filter(None, [kept.get("PYTHONPATH")])]
    name, _, value = MARK.partition("=")
    return {**kept, "PYTHONPATH": os.pathsep.join(path), name: value}


def zlink(*arguments: str, cwd: Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=environment(),
        input=stdin if stdin is not None else "",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def zlink_here(*arguments: str, stdin: str | None = None) -> Result:
    """Run one command to its end in this process: much quicker, for commands that only talk to others."""
    return CliRunner().invoke(main, arguments, input=stdin, env={STORE_VARIABLE: None}, catch_exceptions=False)


class Running:
    """A command that goes on, with its output line by line."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.errors = cwd / f"stderr-{os.urandom(4).hex()}"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=cwd,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
            )
        self.lines: list[str] = []
        self._arriving: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._arriving.put(line.rstrip("\n"))
        self._arriving.put(None)

    def line(self, beginning: str = "") -> str:
        """The next line that begins so. Fails when the output ends before."""
        while True:
            line = self._arriving.get(timeout=START_SECONDS)
            assert line is not None, f"ended without {beginning!r}: {self.lines} {self.stderr}"
            self.lines.append(line)
            if line.startswith(beginning):
                return line

    def document(self) -> dict[str, Any]:
        """The next line as JSON."""
        document: dict[str, Any] = json.loads(self.line())
        return document

    @property
    def stderr(self) -> str:
        """What it has written to standard error so far."""
        return self.errors.read_text()

    def wait_for_error(self, text: str) -> None:
        """Until standard error has `text`."""
        pause = threading.Event()
        for _ in range(int(START_SECONDS / 0.05)):
            if text in self.stderr:
                return
            pause.wait(0.05)
        raise AssertionError(f"no {text!r} in {self.stderr!r}")

    def signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        self.process.send_signal(number)

    def press_ctrl_c_until_it_ends(self) -> int:
        """Signals of one number may melt into one, so "twice" is "until it ends"; returns the exit code."""
        for _ in range(int(END_SECONDS / 0.1)):
            self.signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
                break
        return self.end()

    def end(self) -> int:
        """Wait for the end; returns the exit code and keeps the remaining lines."""
        code = self.process.wait(END_SECONDS)
        while (line := self._arriving.get(timeout=START_SECONDS)) is not None:
            self.lines.append(line)
        return code

    def session_is_empty(self) -> bool:
        """Whether no process of the command's session is left."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def running(*arguments: str, cwd: Path) -> Iterator[Running]:
    """Start a command and see that it is gone afterwards."""
    command = Running(*arguments, cwd=cwd)
    try:
        yield command
    finally:
        command.close()


def processes_naming(text: str) -> list[int]:
    """Running processes of this run of the tests that have `text` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                ours = MARK.encode() in (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if ours and text in line:
                found.append(int(entry.name))
    return found


def none_left(text: str) -> bool:
    """True as soon as no process names `text`; False when some still does after a few seconds."""
    pause = threading.Event()
    for _ in range(100):
        if not processes_naming(text):
            return True
        pause.wait(0.05)
    return False
