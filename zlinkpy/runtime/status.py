"""The host's status as frozen values, and the stream of its changes (OB §1, §4, SA-281).

A subscriber that does not read never holds anybody up: it gets the newest status and the number of those it missed.
Publishing is synchronous.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum

import trio
from attrs import frozen

from zlinkpy.execution import Pressure
from zlinkpy.wire import RuntimeState

COUNT_MAX = 2**63 - 1


class TerminationOutcome(StrEnum):
    """How a shutdown ended (OB-08)."""

    STOPPED = "stopped"
    FORCE_STOPPED = "force_stopped"


class TerminationReason(StrEnum):
    """Why a shutdown was forced; `none` for an orderly one (OB-08)."""

    NONE = "none"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    TEARDOWN_FAILED = "teardown_failed"


@frozen(kw_only=True)
class TerminationResult:
    """The result of `Runtime.shutdown`."""

    outcome: TerminationOutcome
    reason: TerminationReason
    left: tuple[str, ...] = ()
    """What was cut at the deadline: labels of handlers and of open requests, for people."""


@frozen(kw_only=True)
class BlockedLoop:
    """The latest time a handler kept the event loop from running (architecture rule 11)."""

    handler: str
    seconds: float


@frozen(kw_only=True)
class StoreStatus:
    """The Location Store as this host sees it (OB-10)."""

    state: str
    """``not_configured``, ``available``, ``failing`` (for less than the grace) or ``unavailable``."""
    failing: tuple[str, ...]
    """The kinds of operation that fail now."""
    lease: str
    """The state of the owner lease, ``none`` without a store."""


@frozen(kw_only=True)
class HostStatus:
    """A host at one instant; a copy that is the caller's (OB-03, OB-04, SA-281)."""

    state: RuntimeState
    is_ready: bool
    accepting_work: bool
    store: StoreStatus
    permits_in_use: int
    permits_maximum: int
    pressure: Pressure
    queued_jobs: int
    running_jobs: int
    pending_requests: int
    blocked_loops: int
    """How often a handler blocked the event loop for longer than the watchdog's threshold."""
    last_blocked: BlockedLoop | None
    termination: TerminationResult | None
    sequence: int
    observed_at: datetime
    """Wall-clock time, for print only."""


@frozen(kw_only=True)
class Loss:
    """What one subscription missed."""

    coalesced: int = 0


@frozen(kw_only=True)
class Observed:
    """One item of an observe stream."""

    status: HostStatus
    loss: Loss


class StatusSource:
    """One status and its subscribers."""

    def __init__(self) -> None:
        self._sequence = 0
        self._changed = trio.Event()
        self._ended = False

    @property
    def sequence(self) -> int:
        """Number of changes so far, from 1."""
        return self._sequence

    def publish(self) -> None:
        """The status would now read differently."""
        self._sequence += 1
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def end(self) -> None:
        """No further change comes: streams end after the last status."""
        self._ended = True
        self.publish()

    def changes(self) -> Changes:
        """A new subscription: one item at once, then one whenever something changed since the last was taken."""
        return Changes(self)

    async def after(self, seen: int) -> int | None:
        """Wait for a change later than number `seen`; returns the newest number, None when no change will come."""
        while self._sequence == seen:
            if self._ended:
                return None
            await self._changed.wait()
        return self._sequence


class Changes:
    """One subscription to a `StatusSource`.

    Not a generator: those have to be closed by whoever stops early, and nobody who writes ``async for … break`` does.
    """

    def __init__(self, source: StatusSource) -> None:
        self._source = source
        self._seen: int | None = None
        self._coalesced = 0

    def __aiter__(self) -> Changes:
        return self

    async def __anext__(self) -> Loss:
        await trio.lowlevel.checkpoint()
        if self._seen is None:
            self._seen = self._source.sequence
            return Loss()
        newest = await self._source.after(self._seen)
        if newest is None:
            raise StopAsyncIteration
        self._coalesced = min(self._coalesced + newest - self._seen - 1, COUNT_MAX)
        self._seen = newest
        return Loss(coalesced=self._coalesced)


class Observation:
    """An observe stream: the status as it is when an item is taken (OB §4). It ends with the source; stopping early
    needs nothing.
    """

    def __init__(self, changes: Changes, status: Callable[[], HostStatus]) -> None:
        self._changes = changes
        self._status = status

    def __aiter__(self) -> Observation:
        return self

    async def __anext__(self) -> Observed:
        loss = await anext(self._changes)
        return Observed(status=self._status(), loss=loss)


def wall_clock() -> datetime:
    """For printed timestamps only (architecture rule 4)."""
    return datetime.now(UTC)
