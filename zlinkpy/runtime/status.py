"""The host's status as frozen values, and the stream of its changes (OB §1, §4, SA-281).

A subscriber that does not read never holds anybody up: it gets the newest status and the number of those it missed.
Publishing is synchronous.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
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
        self._version = 0
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

    async def changes(self) -> AsyncIterator[Loss]:
        """Yield at once, then whenever something changed since the last item was taken."""
        seen = self._sequence
        yield Loss()
        coalesced = 0
        while True:
            while self._sequence == seen:
                if self._ended:
                    return
                await self._changed.wait()
            coalesced = min(coalesced + self._sequence - seen - 1, COUNT_MAX)
            seen = self._sequence
            yield Loss(coalesced=coalesced)


def wall_clock() -> datetime:
    """For printed timestamps only (architecture rule 4)."""
    return datetime.now(UTC)
