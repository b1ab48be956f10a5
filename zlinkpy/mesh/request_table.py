"""The request table: the only place that completes a request, and it does so once (architecture rule 7, SA-198,
LV-140).

States of an entry: *pending* until exactly one of reply, remote error, timeout, cancellation, route failure or shutdown
takes it out of the table. Whoever takes it out decides the outcome; everybody later finds nothing. An entry exists
before its record is submitted (SA-200). A reply wakes its caller directly: no event, no queue, no task in between.

Deadlines are kept in buckets of 20 ms instead of a heap: almost every request is answered long before its deadline, and
a heap with lazy deletion would hold 30 s worth of answered requests. Within the bucket that is due the exact deadline
decides.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import outcome
import trio
from attrs import frozen

from zlinkpy.errors import DeadlineExceededError, ShuttingDownError, UnavailableError, ZlinkError
from zlinkpy.wire import Reply

_BUCKETS_PER_SECOND = 50


class Route(Protocol):
    """Where a request went; compared by identity only."""


Answer = tuple[Reply, "Sequence[bytes]"]


class Pending:
    """One request in flight."""

    __slots__ = ("bucket", "corr", "deadline", "label", "outcome", "route", "task")

    def __init__(self, corr: int, route: object, deadline: float, label: str) -> None:
        self.corr = corr
        self.route = route
        self.deadline = deadline
        self.label = label
        self.bucket: int = 0
        # The parked caller, or None while the caller has not parked yet.
        self.task: trio.lowlevel.Task | None = None
        # Set when the request ended before its caller parked (a send that found the route gone).
        self.outcome: outcome.Outcome[Answer] | None = None


@frozen(kw_only=True)
class RequestStatistics:
    """A copy of the table's counters."""

    pending: int
    started: int
    replied: int
    timed_out: int
    cancelled: int
    route_failed: int
    shut_down: int
    late_replies: int


class RequestTable:
    """Every pending request of one host."""

    def __init__(self, touch: Callable[[float], None]) -> None:
        """`touch(deadline)` tells the shared timer about an earlier deadline."""
        self._touch = touch
        self._entries: dict[int, Pending] = {}
        self._buckets: dict[int, dict[int, Pending]] = {}
        self._order: list[int] = []
        self._next_corr = 0
        self._closed = False
        self.replied = 0
        self.timed_out = 0
        self.cancelled = 0
        self.route_failed = 0
        self.shut_down = 0
        self.late_replies = 0

    def __len__(self) -> int:
        return len(self._entries)

    def statistics(self) -> RequestStatistics:
        """What the table holds and how its requests ended."""
        return RequestStatistics(
            pending=len(self._entries),
            started=self._next_corr,
            replied=self.replied,
            timed_out=self.timed_out,
            cancelled=self.cancelled,
            route_failed=self.route_failed,
            shut_down=self.shut_down,
            late_replies=self.late_replies,
        )

    def open(self, route: object, deadline: float, label: str) -> Pending:
        """Register a request. Raises ShuttingDownError once the table is closed."""
        if self._closed:
            raise ShuttingDownError("this host is shutting down")
        self._next_corr = corr = self._next_corr + 1
        entry = Pending(corr, route, deadline, label)
        self._entries[corr] = entry
        entry.bucket = key = int(deadline * _BUCKETS_PER_SECOND)
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets[key] = {corr: entry}
            heapq.heappush(self._order, key)
        else:
            bucket[corr] = entry
        if self._order[0] == key:
            self._touch(deadline)
        return entry

    def _take(self, corr: int) -> Pending | None:
        entry = self._entries.pop(corr, None)
        if entry is not None:
            del self._buckets[entry.bucket][corr]
        return entry

    async def wait(self, entry: Pending) -> Answer:
        """Park until the request ends; returns the reply or raises the error that ended it.

        Cancellation takes the entry out: a reply that comes later meets nothing (SA-205).
        """
        if entry.outcome is not None:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return entry.outcome.unwrap()

        def abort(_raise: Any) -> trio.lowlevel.Abort:
            entry.task = None
            if self._take(entry.corr) is not None:
                self.cancelled += 1
            return trio.lowlevel.Abort.SUCCEEDED

        entry.task = trio.lowlevel.current_task()
        answer: Answer = await trio.lowlevel.wait_task_rescheduled(abort)
        return answer

    def withdraw(self, entry: Pending) -> bool:
        """Take a request out that its caller gives up before it was submitted. False: it had already ended."""
        return self._take(entry.corr) is not None

    def cancel(self, entry: Pending) -> None:
        """Take a request out because its caller was cancelled while waiting to submit it."""
        if self._take(entry.corr) is not None:
            self.cancelled += 1

    def reply(self, route: object, reply: Reply, parts: Sequence[bytes]) -> bool:
        """A reply arrived over `route`. False: nobody waits for it there; it changes nothing (LV-142)."""
        corr = reply.corr
        entry = self._entries.get(corr)
        if entry is None or entry.route is not route:
            self.late_replies += 1
            return False
        del self._entries[corr]
        del self._buckets[entry.bucket][corr]
        self.replied += 1
        task = entry.task
        if task is None:
            entry.outcome = outcome.Value((reply, parts))
        else:
            entry.task = None
            trio.lowlevel.reschedule(task, outcome.Value((reply, parts)))
        return True

    def fail(self, route: object, corr: int, error: ZlinkError) -> None:
        """What came over `route` in answer to `corr` cannot be understood: that one request ends with `error`."""
        entry = self._entries.get(corr)
        if entry is not None and entry.route is route:
            self.route_failed += 1
            self._end(entry, error)

    def awaits(self, route: object) -> bool:
        """True while a request that was given to `route` has not ended."""
        return any(entry.route is route for entry in self._entries.values())

    def fail_route(self, route: object, error: Callable[[], ZlinkError] | None = None) -> int:
        """The route is gone: end every request that was given to it (LV-140). Returns how many."""
        lost = [entry for entry in self._entries.values() if entry.route is route]
        for entry in lost:
            self.route_failed += 1
            self._end(
                entry,
                error()
                if error
                else UnavailableError(
                    f"{entry.label}: the connection was lost before a reply came", cause="RouteNotConnected"
                ),
            )
        return len(lost)

    def labels(self) -> list[str]:
        """The labels of the requests that have not ended."""
        return [entry.label for entry in self._entries.values()]

    def close(self) -> list[str]:
        """Shutdown: end everything that is left and take nothing new. Returns the labels of what it ended."""
        self._closed = True
        left = list(self._entries.values())
        for entry in left:
            self.shut_down += 1
            self._end(entry, ShuttingDownError(f"{entry.label}: this host shut down before a reply came"))
        return [entry.label for entry in left]

    def _end(self, entry: Pending, error: ZlinkError) -> None:
        if self._take(entry.corr) is None:
            return
        if entry.task is None:
            entry.outcome = outcome.Error(error)
        else:
            task, entry.task = entry.task, None
            trio.lowlevel.reschedule(task, outcome.Error(error))

    # -- timer source ------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """The earliest deadline; exact for the bucket that comes first."""
        while self._order:
            key = self._order[0]
            bucket = self._buckets[key]
            if bucket:
                return min(entry.deadline for entry in bucket.values())
            heapq.heappop(self._order)
            del self._buckets[key]
        return None

    def tick(self, now: float) -> None:
        """End what is due."""
        last = int(now * _BUCKETS_PER_SECOND)
        for key in [key for key in self._order if key <= last]:
            for entry in list(self._buckets[key].values()):
                if entry.deadline <= now:
                    self.timed_out += 1
                    self._end(entry, DeadlineExceededError(f"{entry.label}: no reply within the time given"))
