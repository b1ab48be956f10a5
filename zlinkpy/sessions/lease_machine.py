"""Renewal of one session lease, and the reservations that are kept alive with it. Pure (facts §6; SR §10).

    state      event                                          next, action
    HELD       poll at the due time, nothing under way        RENEW; the next due time is one interval on
    HELD       settle True                                    TOUCH what is bound now; last success = when it was sent
    HELD       settle False                                   LOST, once: somebody else may hold it
    HELD       settle None (raised)                           retry after interval / 5
    HELD       poll, lock_lease after the last success        LOST, once, also while a renewal is under way (SR-167)
    HELD       stop                                           RETURNED
    LOST, RETURNED   anything                                 nothing

The local deadline counts from when the last successful request was *sent*, so it is never later than the store's own
expiry. At an interval of a third of the lease the third tick falls on the expiry itself: two failing ticks would cost
the lease, hence the retries (SR-162).

Who drives it, a thread or a task, owns it; `stop` may come from the loop at any time and is one assignment. That a
lease is lost *and* returned at the same moment is settled on the loop, where both end up.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

RETRY_FRACTION: Final = 5
"""A renewal that raised is repeated after interval / 5."""


class RenewalState(Enum):
    """Where a held lease stands for its driver."""

    HELD = "held"
    RETURNED = "returned"
    LOST = "lost"


class RenewalStep(Enum):
    """What the driver has to do."""

    RENEW = "renew"
    TOUCH = "touch"
    LOST = "lost"


class TouchSlot:
    """The reservations that a lease keeps alive, as pairs that never mix (SR-175, SR-176).

    The pairs are one tuple, replaced whole: a thread that reads it sees all of a binding or nothing of it.
    """

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        self._pairs: tuple[tuple[str, str], ...] = ()

    @property
    def bound(self) -> tuple[tuple[str, str], ...]:
        """(key, reserver id) of every reservation to touch now."""
        return self._pairs

    def bind(self, key: str, reserver: str) -> None:
        self._pairs = (*self._pairs, (key, reserver))

    def unbind(self, key: str, reserver: str) -> None:
        self._pairs = tuple(pair for pair in self._pairs if pair != (key, reserver))

    def clear(self) -> None:
        self._pairs = ()


class LeaseRenewal:
    """When to renew one lease, and when it is lost.

    Args:
        sent_at: when the request that won the lease was sent.
        interval: seconds between renewals.
        duration: seconds a renewal lasts.
    """

    __slots__ = ("_due", "_duration", "_in_flight", "_interval", "_succeeded", "state")

    def __init__(self, sent_at: float, *, interval: float, duration: float) -> None:
        self.state = RenewalState.HELD
        self._interval = interval
        self._duration = duration
        self._succeeded = sent_at
        self._due = sent_at + interval
        self._in_flight = False

    @property
    def lapses_at(self) -> float:
        """From when on somebody else may hold the lease."""
        return self._succeeded + self._duration

    def next_deadline(self) -> float | None:
        """When `poll` is due, or None when it is over."""
        if self.state is not RenewalState.HELD:
            return None
        return self.lapses_at if self._in_flight else min(self._due, self.lapses_at)

    def poll(self, now: float) -> RenewalStep | None:
        """What is due. After RENEW one `settle` has to follow."""
        if self.state is not RenewalState.HELD:
            return None
        if now >= self.lapses_at:
            return self._lose()
        if self._in_flight or now < self._due:
            return None
        self._in_flight = True
        # The grid stays; a driver that comes late does not catch up on the ticks it missed.
        self._due = max(self._due + self._interval, now)
        return RenewalStep.RENEW

    def settle(self, renewed: bool | None, sent_at: float, now: float) -> RenewalStep | None:
        """The answer to a renewal sent at `sent_at`: True, False, or None when it raised."""
        self._in_flight = False
        if self.state is not RenewalState.HELD:
            return None
        if renewed is None:
            self._due = min(self._due, now + self._interval / RETRY_FRACTION)
            return None
        if not renewed:
            return self._lose()
        self._succeeded = max(self._succeeded, sent_at)
        return RenewalStep.TOUCH

    def stop(self) -> bool:
        """The lease goes back. False when it was over already."""
        if self.state is not RenewalState.HELD:
            return False
        self.state = RenewalState.RETURNED
        return True

    def lose(self) -> bool:
        """The lease is gone for a reason the renewals did not show (a fenced write). False when it was over."""
        return self.state is RenewalState.HELD and self._lose() is RenewalStep.LOST

    def _lose(self) -> RenewalStep:
        self.state = RenewalState.LOST
        return RenewalStep.LOST
