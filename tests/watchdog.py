"""pytest plugin: a test that hangs ends its process, and says where every task and thread stood.

A hang below the scheduler, or one shielded from cancellation, gets past every `fail_after`, and a clock that stands
still lets none of them fire. Without this the run ends when somebody's patience does, and nobody knows why. What is
known goes to standard error and to build/hung-test.txt.

Rejected: pytest-timeout. It shows threads; in trio a thread at epoll says nothing.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import TextIO

import pytest
import trio

LIMIT_SECONDS = 300.0
"""Real seconds for one test with its fixtures: several times what the longest takes on a busy machine."""
SLOW_FACTOR = 6
EXIT_HUNG = 70
REPORT = Path("build") / "hung-test.txt"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hung-after",
        type=float,
        default=LIMIT_SECONDS,
        metavar="SECONDS",
        help=f"end the process of a test that takes longer ({LIMIT_SECONDS:g}; marked slow: {SLOW_FACTOR} times it)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watchdog(config), "zlinkpy-watchdog")


class Watchdog:
    def __init__(self, config: pytest.Config) -> None:
        self._seconds: float = config.getoption("--hung-after")
        self._path = config.rootpath / REPORT
        # While a test runs, its standard error is a file of pytest's that is lost with the process.
        capture = config.pluginmanager.getplugin("capturemanager")
        if capture is None:
            self._stderr = os.dup(2)
        else:
            with capture.global_and_fixture_disabled():
                self._stderr = os.dup(2)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        seconds = self._seconds * (SLOW_FACTOR if item.get_closest_marker("slow") else 1)
        timer = threading.Timer(seconds, self._end, (item.nodeid, seconds))
        timer.daemon = True
        timer.name = "watchdog of the tests"
        timer.start()
        try:
            return (yield)
        finally:
            timer.cancel()
            timer.join()

    def pytest_unconfigure(self) -> None:
        os.close(self._stderr)

    def _end(self, test: str, seconds: float) -> None:
        headline = f"{test} did not end within {seconds:g} s. Its tasks and threads:\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            for stream in (self._path.open("w", encoding="utf-8"), os.fdopen(self._stderr, "w", closefd=False)):
                with stream:
                    stream.write(f"\n{headline}")
                    show_tasks(stream)
                    stream.flush()
                    faulthandler.dump_traceback(stream, all_threads=True)
        finally:
            os._exit(EXIT_HUNG)


def show_tasks(out: TextIO) -> None:
    """Write every living trio task of this process with its await chain, outermost first."""
    for task in [each for each in gc.get_objects() if isinstance(each, trio.lowlevel.Task)]:
        if task.coro.cr_frame is None:
            continue
        out.write(f"task {task.name}\n")
        for frame, line in task.iter_await_frames():
            code = frame.f_code
            out.write(f"  {code.co_filename}:{line} in {code.co_qualname}\n")
