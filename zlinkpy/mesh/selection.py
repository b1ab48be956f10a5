"""Smooth weighted round robin over the ready servers of one channel (wire.md §10). Pure.

Selection only reads a prepared list; the list is rebuilt when a peer's state changes, never by a call. Accumulators of
servers that stay survive a rebuild, so a weight change or a joining server does not restart the cycle (SA-128).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from attrs import define, field

from zlinkpy.errors import ConfigurationError

WEIGHT_MAX = 10_000
DEFAULT_WEIGHT = 100

T = TypeVar("T")


def check_weight(weight: int, where: str) -> int:
    """Return `weight`, or raise ConfigurationError naming `where` when it is not an int in 0..10000 (SA-20)."""
    if isinstance(weight, bool) or not isinstance(weight, int) or not 0 <= weight <= WEIGHT_MAX:
        raise ConfigurationError(f"{where}: weight must be an integer from 0 to {WEIGHT_MAX}, not {weight!r}")
    return weight


@define
class _Entry(Generic[T]):
    target: T
    rid: bytes
    weight: int
    accumulator: int = 0


@define
class SmoothWeighted(Generic[T]):
    """The cycle of one channel. `rebuild` with what is selectable now, then `select` as often as wanted."""

    _entries: list[_Entry[T]] = field(factory=list)
    _total: int = 0

    def rebuild(self, candidates: Iterable[tuple[str, int, T]]) -> None:
        """`candidates` = (rid, weight > 0, target). Accumulators of rids that stay are kept, others dropped."""
        kept = {entry.rid: entry.accumulator for entry in self._entries}
        entries = [_Entry(target, key := rid.encode(), weight, kept.get(key, 0)) for rid, weight, target in candidates]
        # Sorted by bytes, so that "the largest, ties by smaller RID" is "the first of the largest".
        entries.sort(key=lambda entry: entry.rid)
        self._entries = entries
        self._total = sum(entry.weight for entry in entries)

    def select(self) -> T | None:
        """The next target, or None when there is none. O(number of candidates)."""
        entries = self._entries
        if len(entries) == 1:
            return entries[0].target
        best: _Entry[T] | None = None
        for entry in entries:
            entry.accumulator += entry.weight
            if best is None or entry.accumulator > best.accumulator:
                best = entry
        if best is None:
            return None
        best.accumulator -= self._total
        return best.target

    def __len__(self) -> int:
        return len(self._entries)
