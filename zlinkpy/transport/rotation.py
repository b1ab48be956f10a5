"""Who is served next, and for how long: the fairness rules of a receive stage, as numbers.

A *rotation* visits every source that has something waiting once. A source's *turn* in it ends at `records`, `bytes` or
`seconds`, whichever comes first (LV-109..112), and the rotation as a whole ends when `seconds` have passed, so that
other tasks of the loop run. The next rotation starts after the source that stopped last (LV-113): over as many
rotations as there are sources, each of them is reached.

Where one socket stands for several peers the account is kept per peer (LV-114, D15). The socket decides whose record
comes next, so a record of a peer whose account is spent has already been taken: it goes to the owner's one-slot
carry-over, which is served first in the next turn. Putting it back is impossible, dropping it is loss, and delivering
it would break the bound.

Rejected: a weighted scheduler with deficits. Records differ little in cost, and a plain bound is what can be tested.

Nothing here reads a clock or touches a socket.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Generic, TypeVar

from attrs import frozen

from zlinkpy.transport.interface import ROTATION_BYTES, ROTATION_RECORDS, ROTATION_SECONDS

SourceT = TypeVar("SourceT")
PeerT = TypeVar("PeerT")


@frozen(kw_only=True)
class Budgets:
    """The three bounds of a turn; each is finite and positive (LV-112)."""

    records: int = ROTATION_RECORDS
    bytes: int = ROTATION_BYTES
    seconds: float = ROTATION_SECONDS

    def __attrs_post_init__(self) -> None:
        if not (self.records >= 1 and self.bytes >= 1 and 0 < self.seconds < float("inf")):
            raise ValueError(f"budgets must be finite and positive, got {self}")


class Turn:
    """The account of one source that stands for one connection."""

    __slots__ = ("_bytes", "_ends_at", "_records")

    def __init__(self, budgets: Budgets, now: float) -> None:
        self._records = budgets.records
        self._bytes = budgets.bytes
        self._ends_at = now + budgets.seconds

    def spend(self, size: int, now: float) -> bool:
        """Charge one record of `size` bytes that was just handed over; True: the turn ends here."""
        self._records -= 1
        self._bytes -= size
        return self._records <= 0 or self._bytes <= 0 or now >= self._ends_at


class SharedTurn(Generic[PeerT]):
    """The accounts of one source that stands for several peers."""

    __slots__ = ("_budget_bytes", "_budget_records", "_bytes", "_ends_at", "_records")

    def __init__(self, budgets: Budgets, now: float) -> None:
        self._budget_records = budgets.records
        self._budget_bytes = budgets.bytes
        self._ends_at = now + budgets.seconds
        self._records: dict[PeerT, int] = {}
        self._bytes: dict[PeerT, int] = {}

    def admits(self, peer: PeerT) -> bool:
        """Whether a record of `peer` may still be handed over in this turn."""
        return self._records.get(peer, 0) < self._budget_records and self._bytes.get(peer, 0) < self._budget_bytes

    def spend(self, peer: PeerT, size: int, now: float) -> bool:
        """Charge one record to `peer`; True: the time of the whole source is used up."""
        self._records[peer] = self._records.get(peer, 0) + 1
        self._bytes[peer] = self._bytes.get(peer, 0) + size
        return now >= self._ends_at


class Rotation(Generic[SourceT]):
    """The order of sources. Sources keep the place they were added at."""

    def __init__(self) -> None:
        self._places: dict[SourceT, int] = {}
        self._next_place = 0
        self._stopped_at = -1

    def __contains__(self, source: SourceT) -> bool:
        return source in self._places

    def add(self, source: SourceT) -> None:
        self._places[source] = self._next_place
        self._next_place += 1

    def discard(self, source: SourceT) -> None:
        self._places.pop(source, None)

    def plan(self, ready: Iterable[SourceT]) -> list[SourceT]:
        """The `ready` sources in serving order, from behind the one that stopped last. Unknown ones are left out."""
        places = self._places
        order = [source for source in ready if source in places]
        if len(order) < 2:
            return order
        order.sort(key=places.__getitem__)
        start = bisect_right(order, self._stopped_at, key=places.__getitem__)
        return order[start:] + order[:start]

    def stopped(self, source: SourceT) -> None:
        """Note that a bound ended the turn of `source`, or the rotation behind it."""
        self._stopped_at = self._places.get(source, self._stopped_at)
