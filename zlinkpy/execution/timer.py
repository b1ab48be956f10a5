"""One timer task for everything a host waits for: request deadlines, probes, peer deadlines, redials.

A source says when it next needs the clock and is ticked then. A cancel scope per request would cost more than the rest
of a request together (14 us); moving the deadline of one scope costs nothing (architecture.md §4).
"""

from __future__ import annotations

import math
from typing import Protocol

import trio

from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.execution")


class TimerSource(Protocol):
    """Something with deadlines."""

    def next_deadline(self) -> float | None:
        """The earliest instant of trio's clock at which `tick` has work, or None."""

    def tick(self, now: float) -> None:
        """Do what is due at `now`."""


class SharedTimer:
    """Ticks its sources at their deadlines. `touch` moves the next wake-up forward; moving it back is lazy."""

    def __init__(self) -> None:
        self._sources: list[TimerSource] = []
        self._armed = math.inf
        self._scope: trio.CancelScope | None = None

    def add(self, source: TimerSource) -> None:
        """Serve `source` from now on."""
        self._sources.append(source)
        self.touch(source.next_deadline())

    def remove(self, source: TimerSource) -> None:
        """Forget `source`. Unknown sources are ignored."""
        if source in self._sources:
            self._sources.remove(source)

    def touch(self, deadline: float | None) -> None:
        """A source's next deadline may now be as early as `deadline`."""
        if deadline is not None and deadline < self._armed:
            self._armed = deadline
            if self._scope is not None:
                self._scope.deadline = deadline

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        task_status.started()
        while True:
            with trio.CancelScope(deadline=self._armed) as self._scope:
                await trio.sleep_forever()
            self._scope = None
            now = trio.current_time()
            for source in tuple(self._sources):
                deadline = source.next_deadline()
                if deadline is not None and deadline <= now:
                    try:
                        source.tick(now)
                    except Exception:
                        # One source's bug must not stop every deadline of the host.
                        log.exception("a timer source failed", extra={"source": type(source).__name__})
            deadlines = [d for d in (source.next_deadline() for source in self._sources) if d is not None]
            # A source that stays due (its tick failed) would spin; look again a little later.
            self._armed = max(min(deadlines, default=math.inf), now + 0.0005)
