"""Names the handler that blocks the event loop, with its seconds and its stack (architecture rule 11).

Handlers share one thread with the sockets, timers and probes of the host. One that computes or calls a blocking
function stops all of that, and what an operator then sees are expired peers elsewhere. The watchdog is a thread of its
own: it posts a beat to the loop and waits for the answer in short slices. A beat that stays unanswered longer than the
threshold means that something holds the loop *now*, so its stack is taken now, while the culprit is on it.

A block is reported twice: when the threshold is passed, and when it is over, with the total. Code that computes without
giving up the interpreter lock keeps this thread from running, too; it is reported when it is over, without a stack.

What is not a block: a process that is not running. After SIGSTOP, a suspended machine or a starved container the loop
is as late as if a handler had held it, but this thread is late by the same amount. A slice that lasted much longer
than asked therefore counts only if the process used the processor meanwhile. Under a scaled test clock the two cannot
be told apart, and such a slice does not count.

Seconds are those of the loop's clock, read from the clock object of the loop (architecture rule 4). The total is exact
to one slice; blocks shorter than the threshold are not seen at all.

Rejected: asyncio-style timing of each callback, which costs every turn and can tell only afterwards; signals (SIGALRM),
which work in the main thread only and belong to the application.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import trio
from attrs import frozen

from zlinkpy.telemetry import NullTelemetry, Telemetry, get_logger
from zlinkpy.telemetry.catalogue import LOOP_BLOCKED

log = get_logger("zlinkpy.watchdog")

THRESHOLD_SECONDS = 1.0
"""A loop held longer than this is reported. Peers expire after many times that, so there is time to see why."""

SLICES = 10
"""Looks per threshold: how late a block is noticed, and how often an idle loop is woken (ten times a second)."""

LATE = 3
"""A wait that took this many slices instead of one was not only waiting."""

RAN = 0.1
"""Share of such a wait the process must have been on a processor for it to count. A stopped process has none; one that
computes on a machine with ten times as much to do as it has processors still reaches it."""

JOIN_SECONDS = 2.0
"""How long a stop waits for the thread; it ends at once unless a log handler or `on_blocked` holds it."""

LOCK_HELD = "code that held the interpreter lock"
"""The label of a block whose stack could not be taken in time."""

_LIBRARY = str(Path(__file__).resolve().parents[1])
_TRIO = str(Path(trio.__file__).resolve().parent)
_STDLIB = sysconfig.get_paths()["stdlib"]


@frozen(kw_only=True)
class BlockReport:
    """One block of the event loop.

    Attributes:
        label: The handler, ``module:qualname``; for other code the function that was running.
        seconds: How long so far, or in all where `ended`.
        stack: The formatted stack when the threshold was passed, outermost call first.
        ended: Whether the loop runs again.
    """

    label: str
    seconds: float
    stack: tuple[str, ...]
    ended: bool


class LoopWatchdog:
    """The watchdog of one event loop.

    Attributes:
        blocks: Blocks seen so far.
        last: The latest report.
    """

    def __init__(
        self,
        *,
        threshold: float = THRESHOLD_SECONDS,
        on_blocked: Callable[[BlockReport], None] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """Args:
        threshold: Seconds on the loop's clock; tests shorten it.
        on_blocked: Called with every report in the watchdog's thread, while the loop is held.
        telemetry: Counts blocks.
        """
        self.blocks = 0
        self.last: BlockReport | None = None
        self._threshold = threshold
        self._slice = threshold / SLICES
        self._on_blocked = on_blocked
        self._telemetry = telemetry or NullTelemetry()
        self._labels: dict[CodeType, str] = {}
        self._wake = threading.Event()
        self._stop = False
        self._answered = True

    def register(self, code: CodeType, label: str) -> None:
        """Make the watchdog say `label` for a block below a call of this code object."""
        self._labels[code] = label

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch the loop this runs in until cancelled; then the thread has ended."""
        token = trio.lowlevel.current_trio_token()
        clock = trio.lowlevel.current_clock()
        thread = threading.Thread(
            target=self._watch,
            args=(token, clock, threading.get_ident()),
            name="zlinkpy watchdog",
            daemon=True,  # a log handler that never returns must not keep the process
        )
        self._stop = False
        thread.start()
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            self._stop = True
            self._wake.set()
            thread.join(JOIN_SECONDS)
            if thread.is_alive():
                log.error("the watchdog's thread did not end: a log handler or on_blocked holds it")

    def _watch(self, token: trio.lowlevel.TrioToken, clock: trio.abc.Clock, loop_thread: int) -> None:
        seen, used = clock.current_time(), time.process_time()
        while not self._stop:
            # The pause between two beats; a stop ends it. Where the interpreter lock was held, it was too long.
            self._wake.wait(self._slice)
            self._wake.clear()
            pause, seen, used = self._since(clock, seen, used)
            self._answered = False
            try:
                token.run_sync_soon(self._answer)
            except trio.RunFinishedError:
                return
            seen, used = self._await_answer(clock, loop_thread, max(0.0, pause - LATE * self._slice), seen, used)

    def _answer(self) -> None:
        self._answered = True
        self._wake.set()

    def _await_answer(
        self, clock: trio.abc.Clock, loop_thread: int, blocked: float, seen: float, used: float
    ) -> tuple[float, float]:
        report: BlockReport | None = None
        while not (self._answered or self._stop):
            self._wake.wait(self._slice)
            self._wake.clear()
            elapsed, seen, used = self._since(clock, seen, used)
            blocked += elapsed
            if report is None and blocked >= self._threshold and not self._answered:
                report = self._sample(loop_thread, blocked)
        if report is not None:
            self._publish(BlockReport(label=report.label, seconds=blocked, stack=report.stack, ended=True))
        elif blocked >= self._threshold:
            self._count()
            self._publish(BlockReport(label=LOCK_HELD, seconds=blocked, stack=(), ended=True))
        return seen, used

    def _since(self, clock: trio.abc.Clock, seen: float, used: float) -> tuple[float, float, float]:
        """How much of the time since `seen` the process ran for, and the two readings to go on from."""
        now, now_used = clock.current_time(), time.process_time()
        elapsed = now - seen
        if elapsed > LATE * self._slice and now_used - used < elapsed * RAN:
            elapsed = self._slice
        return elapsed, now, now_used

    def _sample(self, loop_thread: int, seconds: float) -> BlockReport | None:
        frame = sys._current_frames().get(loop_thread)
        if frame is None:
            return None
        stack = tuple(traceback.format_stack(frame))
        report = BlockReport(label=self._label(frame), seconds=seconds, stack=stack, ended=False)
        self._count()
        self._publish(report)
        return report

    def _count(self) -> None:
        self.blocks += 1
        self._telemetry.counter(LOOP_BLOCKED)

    def _label(self, innermost: FrameType) -> str:
        """The registered handler nearest to where the loop is; else the nearest code that is not a library's."""
        frames: list[FrameType] = []
        frame: FrameType | None = innermost
        while frame is not None:
            label = self._labels.get(frame.f_code)
            if label is not None:
                return label
            frames.append(frame)
            frame = frame.f_back
        for ours in (_LIBRARY, _TRIO, _STDLIB), (_LIBRARY, _TRIO):
            for candidate in frames:
                if not candidate.f_code.co_filename.startswith(ours) and candidate.f_code.co_filename[:1] != "<":
                    return _name(candidate)
        return _name(innermost)

    def _publish(self, report: BlockReport) -> None:
        self.last = report
        if report.ended:
            log.warning("%s blocked the event loop for %.1f s in all", report.label, report.seconds)
        else:
            log.warning(
                "%s has been blocking the event loop for %.1f s; nothing else of this host runs meanwhile. "
                "Move the work to a thread.\n%s",
                report.label,
                report.seconds,
                "".join(report.stack),
            )
        try:
            if self._on_blocked is not None:
                self._on_blocked(report)
        except Exception:
            log.exception("on_blocked failed")


def _name(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}"
