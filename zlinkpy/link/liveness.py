"""Probe and ACK of one connection, in numbers (seed §3, LV §4 and §6).

Evidence is one thing only: the first ACK of the id that is outstanding *on this connection*. Messages that arrive prove
that the peer can talk, not that it hears us, so nothing else moves the deadline (LV-69, LV-72).

Invariants:

- at most one id is outstanding; until it is answered the same id is sent again (LV-43, LV-45);
- ticks lie on the grid T+5, T+10, … where T is `start`; a late tick fires once and the grid stays (LV-40, [D1]);
- `now >= deadline` is expiry, decided before a probe is emitted ([D2]), and an ACK read at or after it is no evidence.

Rejected: restarting the interval at every ACK. It spares a timer and makes the load of a large mesh drift into bursts,
and the peer could no longer tell from the outside when a probe is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from attrs import frozen

from zlinkpy.link.constants import CHECK_INTERVAL, PEER_DEADLINE
from zlinkpy.link.grid import grid_after


@frozen
class SendProbe:
    """Send `livenessProbe` with this id now."""

    probe_id: int


@frozen
class Expired:
    """No evidence for PEER_DEADLINE seconds: the connection is not ready from this instant."""

    deadline: float


Judgement: TypeAlias = SendProbe | Expired


class ProbeLiveness:
    """The liveness of one connection; a reconnect needs a new one (LV-145).

    Args:
        next_id: gives probe ids, 1..2^63-1, never the same one twice for one connection (LV-42, LV-44);
            ``itertools.count(1).__next__`` does.
    """

    __slots__ = ("_deadline", "_next_id", "_next_probe", "_outstanding", "_started")

    def __init__(self, next_id: Callable[[], int]) -> None:
        self._next_id = next_id
        self._started: float | None = None
        self._next_probe = 0.0
        self._deadline: float | None = None
        self._outstanding: int | None = None

    @property
    def outstanding(self) -> int | None:
        """The id that waits for its first ACK."""
        return self._outstanding

    @property
    def deadline(self) -> float | None:
        """When the connection expires, or None while it is not being judged (before `start`, after `stop`, expired)."""
        return self._deadline

    def start(self, now: float) -> None:
        """The connection became ready: `now` is T (LV-24)."""
        self._started = now
        self._next_probe = now + CHECK_INTERVAL
        self._deadline = now + PEER_DEADLINE

    def stop(self) -> None:
        """Judge no more: the connection is over for another reason."""
        self._started = None
        self._deadline = None
        self._outstanding = None

    def next_deadline(self) -> float | None:
        """When `tick` has something to say; always later than the last `tick`."""
        if self._deadline is None:
            return None
        return min(self._next_probe, self._deadline)

    def expired(self, now: float) -> bool:
        """True when `now` is at or past the deadline, whether or not `tick` has said so yet."""
        return self._deadline is not None and now >= self._deadline

    def tick(self, now: float) -> list[Judgement]:
        """What is due at `now`: nothing, one probe, or the expiry (after which the object is stopped)."""
        if self._deadline is None or self._started is None:
            return []
        if now >= self._deadline:
            deadline = self._deadline
            self.stop()
            return [Expired(deadline)]
        if now < self._next_probe:
            return []
        self._next_probe = grid_after(self._started, now)
        if self._outstanding is None:
            self._outstanding = self._next_id()
        return [SendProbe(self._outstanding)]

    def acknowledge(self, probe_id: int, now: float) -> bool:
        """An ACK was read. True when it was evidence, i.e. the first one of the outstanding id in time (LV-64..67)."""
        if self._outstanding != probe_id or self._deadline is None or now >= self._deadline:
            return False
        self._outstanding = None
        self._deadline = now + PEER_DEADLINE
        return True
