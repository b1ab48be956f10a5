"""A fast clock for real sockets on a machine that is busy with something else.

A `MockClock` that runs twenty times as fast makes two seconds of a loop that was not scheduled for 100 ms, and a test
then blames the code for them. Here a gap between two looks at the clock counts as at most `STEP_SECONDS`, so that time
passes only while the loop runs. It takes a loop that is awake that often anyway, as the one under `RawSockets` is, or
`kept_awake`; any other would see its sleeps stretched, never shortened.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock

STEP_SECONDS = 0.01
"""Real seconds. Far above what a loop that runs takes from one look to the next."""


class PatientTime:
    """Counts like `time.perf_counter`, but no gap is longer than a step. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = self._now = time.perf_counter()

    def __call__(self) -> float:
        with self._lock:
            seen = time.perf_counter()
            self._now += min(seen - self._seen, STEP_SECONDS)
            self._seen = seen
            return self._now


def patient_clock(rate: float) -> MockClock:
    """A MockClock of this rate that does not count the time in which nobody looked."""
    clock = MockClock()
    clock._real_clock = PatientTime()
    clock.rate = rate
    return clock


@asynccontextmanager
async def kept_awake() -> AsyncIterator[None]:
    """Inside, the loop of a fast clock looks at it every few milliseconds."""

    async def look() -> None:
        while True:  # noqa: ASYNC110 - it is the waking up that counts
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        yield
        nursery.cancel_scope.cancel()
