"""What other nodes said about a session last. Pure (SR §23).

A snapshot of the same origin counts when its number is higher; one of another origin always counts: the session has
moved, and the numbers of two nodes have nothing to do with each other. Nothing is decided from it (SR-367).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

from attrs import frozen

PROJECTION_LIMIT: Final = 10_000
"""Sessions remembered at most; the one heard of longest ago goes first."""

StatusT = TypeVar("StatusT")


@frozen
class Projected(Generic[StatusT]):
    """One snapshot and where it came from."""

    origin: str
    seq: int
    status: StatusT


class StatusProjection(Generic[StatusT]):
    """The last snapshot of each session that other nodes sent."""

    def __init__(self, limit: int = PROJECTION_LIMIT) -> None:
        self._limit = limit
        self._known: OrderedDict[str, Projected[StatusT]] = OrderedDict()

    def apply(self, session_id: str, origin: str, seq: int, status: StatusT) -> bool:
        """Keep a snapshot; False when a newer one is here."""
        known = self._known.get(session_id)
        if known is not None and known.origin == origin and seq <= known.seq:
            return False
        self._known[session_id] = Projected(origin, seq, status)
        self._known.move_to_end(session_id)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
        return True

    def get(self, session_id: str) -> Projected[StatusT] | None:
        return self._known.get(session_id)

    def forget(self, session_id: str) -> None:
        self._known.pop(session_id, None)
