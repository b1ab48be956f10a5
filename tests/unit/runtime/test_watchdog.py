"""The watchdog: who blocked the loop, for how long, and what is not a block. Real time, with a threshold of 0.1 s."""

from __future__ import annotations

import inspect
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from zlinkpy.runtime import watchdog
from zlinkpy.runtime.watchdog import LOCK_HELD, SLICES, BlockReport, LoopWatchdog
from zlinkpy.telemetry import InMemoryTelemetry
from zlinkpy.telemetry.catalogue import LOOP_BLOCKED

THRESHOLD = 0.1


class Watched:
    """A watchdog, its reports, and a way to let it look at least once."""

    def __init__(self) -> None:
        self.reports: list[BlockReport] = []
        self.telemetry = InMemoryTelemetry()
        self.dog = LoopWatchdog(threshold=THRESHOLD, on_blocked=self.reports.append, telemetry=self.telemetry)

    async def beats(self, count: int) -> None:
        """Let the loop answer that many beats."""
        answer = self.dog._answer
        left = count
        enough = trio.Event()

        def counting() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                enough.set()
            answer()

        self.dog._answer = counting  # type: ignore[method-assign]
        await enough.wait()
        del self.dog._answer  # type: ignore[method-assign]


@asynccontextmanager
async def watching() -> AsyncIterator[Watched]:
    watched = Watched()
    before = set(threading.enumerate())
    async with trio.open_nursery() as nursery:
        await nursery.start(watched.dog.run)
        yield watched
        nursery.cancel_scope.cancel()
    # Those of the tests before may end meanwhile: trio keeps idle ones for a while.
    assert not set(threading.enumerate()) - before


def block(seconds: float) -> None:
    time.sleep(seconds)


def wait_for_a_child() -> None:
    subprocess.run([sys.executable, "-c", f"import time; time.sleep({4 * THRESHOLD})"], check=True)


def blocking_handler() -> None:
    helper()


def helper() -> None:
    # Computing, not sleeping: the watchdog leaves out time in which a starved process did not run at all.
    end = time.perf_counter() + 2.5 * THRESHOLD
    while time.perf_counter() < end:
        pass


def other_handler() -> None:
    time.sleep(2.5 * THRESHOLD)


async def async_handler() -> None:
    await trio.lowlevel.checkpoint()
    helper()


async def test_a_registered_handler_is_named_with_seconds_and_stack(caplog: pytest.LogCaptureFixture) -> None:
    async with watching() as watched:
        watched.dog.register(blocking_handler.__code__, "game:place")
        watched.dog.register(other_handler.__code__, "game:other")
        await watched.beats(1)
        blocking_handler()
        await watched.beats(2)
    first, last = watched.reports
    assert (first.label, first.ended, last.label, last.ended) == ("game:place", False, "game:place", True)
    assert THRESHOLD <= first.seconds < last.seconds
    assert 2.2 * THRESHOLD <= last.seconds < 10 * THRESHOLD
    assert "in helper" in first.stack[-1]
    assert "in blocking_handler" in first.stack[-2]
    assert watched.dog.blocks == 1
    assert watched.dog.last == last
    assert watched.telemetry.total(LOOP_BLOCKED) == 1
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert re.match(
        r"game:place has been blocking the event loop for \d\.\d s; .*\n.*in helper", warnings[0], re.DOTALL
    )
    assert re.match(r"game:place blocked the event loop for \d\.\d s in all", warnings[1])


async def test_the_first_report_comes_while_the_loop_is_still_blocked() -> None:
    async with watching() as watched:
        await watched.beats(1)
        deadline = trio.current_time() + 100 * THRESHOLD
        while not watched.reports and trio.current_time() < deadline:
            block(THRESHOLD / SLICES)
        assert [report.ended for report in watched.reports] == [False]


async def test_an_async_handler_is_named_while_it_runs() -> None:
    async with watching() as watched:
        watched.dog.register(async_handler.__code__, "game:async")
        await watched.beats(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(async_handler)
        await watched.beats(2)
    assert {report.label for report in watched.reports} == {"game:async"}


async def test_unregistered_code_is_named_by_its_function() -> None:
    async with watching() as watched:
        await watched.beats(1)
        wait_for_a_child()
        await watched.beats(2)
    # The culprit is who called the standard library, not the library's own waiting.
    assert watched.reports[0].label == f"{__name__}:wait_for_a_child"


async def test_two_blocks_are_two_reports_each() -> None:
    async with watching() as watched:
        for handler in (blocking_handler, other_handler):
            await watched.beats(1)
            handler()
        await watched.beats(2)
    assert [(report.label.partition(":")[2], report.ended) for report in watched.reports] == [
        ("helper", False),
        ("helper", True),
        ("other_handler", False),
        ("other_handler", True),
    ]
    assert watched.dog.blocks == 2


async def test_a_block_below_the_threshold_is_not_reported() -> None:
    async with watching() as watched:
        for _ in range(5):
            await watched.beats(1)
            block(THRESHOLD / 4)
        await watched.beats(1)
    assert watched.reports == []
    assert watched.dog.last is None


def compute(length: int) -> None:
    # Backtracking doubles with each character, in one call that never gives the interpreter lock away.
    re.match(r"(a+)+$", "a" * length + "b")


async def test_computing_with_the_interpreter_lock_held_is_reported_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # How large a share of the processor a busy machine leaves to this process is not the question here.
    monkeypatch.setattr(watchdog, "RAN", 0.0)
    length, seconds = 16, 0.0
    while seconds < 3 * THRESHOLD:
        length += 1
        began = time.process_time()
        compute(length)
        seconds = time.process_time() - began
    async with watching() as watched:
        await watched.beats(1)
        compute(length)
        await watched.beats(2)
    last = watched.reports[-1]
    # The thread runs again the moment the lock is free; whether the culprit is then still on the stack is luck.
    assert last.label in (LOCK_HELD, f"{__name__}:compute", f"{__name__}:{inspect.stack()[0].function}")
    assert last.ended
    assert last.seconds >= 2 * THRESHOLD


async def test_a_failing_callback_is_logged_and_the_watchdog_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[BlockReport] = []

    def failing(report: BlockReport) -> None:
        calls.append(report)
        raise ValueError("mine")

    async with watching() as watched:
        watched.dog._on_blocked = failing
        await watched.beats(1)
        blocking_handler()
        await watched.beats(2)
    assert [report.ended for report in calls] == [False, True]
    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["on_blocked failed"] * 2


async def test_stopping_is_immediate_and_it_can_be_started_again() -> None:
    dog = LoopWatchdog(threshold=60.0)
    for _ in range(2):
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            await nursery.start(dog.run)
            assert "zlinkpy watchdog" in {thread.name for thread in threading.enumerate()}
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < 1.0
        assert "zlinkpy watchdog" not in {thread.name for thread in threading.enumerate()}


async def test_a_callback_that_hangs_does_not_hold_up_the_stop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "JOIN_SECONDS", 0.05)
    release = threading.Event()
    dog = LoopWatchdog(threshold=0.02, on_blocked=lambda _: release.wait() and None)
    async with trio.open_nursery() as nursery:
        await nursery.start(dog.run)
        while dog.last is None:
            block(0.1)
            await trio.lowlevel.checkpoint()
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "zlinkpy watchdog")
        nursery.cancel_scope.cancel()
    assert "did not end" in caplog.text
    release.set()
    thread.join()


async def test_virtual_time_that_jumps_is_no_block(autojump_clock: MockClock) -> None:
    async with watching() as watched:
        for _ in range(200):
            await trio.sleep(3600)
    assert watched.reports == []


class FakeTime:
    """Time as the watchdog's thread sees it: each wait takes what the script says, of the clock and the processor."""

    def __init__(self, script: Iterator[tuple[float, float]], dog: LoopWatchdog, then: Callable[[], None]) -> None:
        self.now = 100.0
        self.used = 7.0
        self.script = script
        self.then = then
        self.dog = dog

    def current_time(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.used

    def wait(self, _: float) -> None:
        step = next(self.script, None)
        if step is None:
            self.then()
        else:
            self.now += step[0]
            self.used += step[1]

    def clear(self) -> None:
        pass


SLICE = 1.0 / SLICES


@pytest.mark.parametrize(
    ("script", "labels"),
    [
        pytest.param([(SLICE, 0.0)] * 9, [], id="nine slices"),
        pytest.param([(SLICE, 0.0)] * 11, ["code", "code"], id="eleven idle slices: a blocking call"),
        pytest.param([(SLICE, SLICE)] * 11, ["code", "code"], id="eleven busy slices: computing"),
        pytest.param([(30.0, 0.0)], [], id="the process was stopped"),
        pytest.param([(30.0, 0.0)] * 5, [], id="and stopped again"),
        pytest.param([(SLICE, 0.0)] * 5 + [(30.0, 0.1)] + [(SLICE, 0.0)] * 3, [], id="stopped inside a short block"),
        pytest.param([(0.0, 0.0), (30.0, 29.0)], ["code", "code"], id="the lock was held and the loop still is"),
    ],
)
def test_time_the_process_did_not_run_does_not_count(
    script: list[tuple[float, float]], labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[BlockReport] = []
    dog = LoopWatchdog(threshold=1.0, on_blocked=reports.append)
    fake: Any = FakeTime(iter(script), dog, dog._answer)
    dog._wake = fake
    fake.set = lambda: None
    monkeypatch.setattr(watchdog, "time", fake)
    dog.register(test_time_the_process_did_not_run_does_not_count.__code__, "code")
    dog._answered = False
    dog._await_answer(fake, threading.get_ident(), 0.0, fake.now, fake.used)
    assert [report.label for report in reports] == labels


@pytest.mark.parametrize(("paused", "labels"), [(0.9, []), (1.2, [LOCK_HELD])])
def test_a_lock_held_through_the_pause_between_two_beats_counts(paused: float, labels: list[str]) -> None:
    reports: list[BlockReport] = []
    dog = LoopWatchdog(threshold=1.0, on_blocked=reports.append)
    fake: Any = FakeTime(iter([]), dog, dog._answer)
    fake.set = lambda: None
    dog._wake = fake
    dog._answered = False
    dog._await_answer(fake, threading.get_ident(), paused, fake.now, 0.0)
    assert [report.label for report in reports] == labels
    assert dog.blocks == len(labels)


def test_a_stopped_process_reports_nothing_when_it_goes_on() -> None:
    program = """
        import sys, time, trio
        from zlinkpy.runtime.watchdog import LoopWatchdog

        async def main():
            dog = LoopWatchdog(threshold=0.6, on_blocked=lambda report: print("blocked", report.label, flush=True))
            async with trio.open_nursery() as nursery:
                await nursery.start(dog.run)
                print("ready", flush=True)
                await trio.to_thread.run_sync(sys.stdin.readline)
                await trio.sleep(0.2)
                end = time.monotonic() + 15
                while not dog.blocks and time.monotonic() < end:
                    time.sleep(0.05)
                await trio.sleep(0.2)
                nursery.cancel_scope.cancel()

        trio.run(main)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        time.sleep(1.5)
        os.kill(process.pid, signal.SIGCONT)
        output, _ = process.communicate("go on\n", timeout=20)
    # Only the real block at the end, once when it was noticed and once when it was over.
    assert output.splitlines() == ["blocked __main__:main"] * 2
