"""Which handles are kept, which go and when. Pure (facts §6; SR §16).

    state     event                          guard            next, action
    -         opened                         -                OPEN, pinned once; over the limit: the oldest goes
    OPEN      pin / touch                    -                OPEN; the idle clock starts anew
    OPEN      sweep                          idle, no pin     CLOSING: CLOSE (IDLE)
    OPEN      evict                          no pin           CLOSING: CLOSE
    OPEN      evict, LRU                     pinned           DOOMED: out of the map, its turn goes on
    DOOMED    last unpin                     -                CLOSING: CLOSE
    CLOSING   closed                         -                CLOSED: the lease may go back
    CLOSING, CLOSED   pin                    -                refused: look again

A pinned handle is never idle, and reads do not make it so (SR-260). An entry is closed exactly once, because CLOSE is
given out on the way into CLOSING only, whoever takes it there (SR-263). The state has changed before anybody is told,
so that a callback which looks the entry up finds what is true (SR-267).
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Generic, TypeVar

from attrs import define

HandleT = TypeVar("HandleT")


class Eviction(Enum):
    """Why a handle went (SR-270)."""

    IDLE = "IDLE"
    LRU = "LRU"
    EXPLICIT_RELEASE = "EXPLICIT_RELEASE"


class EntryState(Enum):
    """Where a handle stands."""

    OPEN = "open"
    DOOMED = "doomed"
    CLOSING = "closing"
    CLOSED = "closed"


@define(eq=False)
class CacheEntry(Generic[HandleT]):
    """One handle, also while it is out of the map."""

    session_id: str
    handle: HandleT
    last_activity: float
    pins: int = 0
    state: EntryState = EntryState.OPEN


class HandleMap(Generic[HandleT]):
    """The handles of a node.

    Args:
        idle_ttl: seconds without activity after which an unpinned handle goes.
        limit: how many handles the map holds at most.
    """

    def __init__(self, *, idle_ttl: float, limit: int) -> None:
        self._idle_ttl = idle_ttl
        self._limit = limit
        # Least recently used first.
        self._entries: OrderedDict[str, CacheEntry[HandleT]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def peek(self, session_id: str) -> CacheEntry[HandleT] | None:
        """The entry in the map; no activity."""
        return self._entries.get(session_id)

    def opened(
        self, session_id: str, handle: HandleT, now: float
    ) -> tuple[CacheEntry[HandleT], list[CacheEntry[HandleT]], int]:
        """Keep a new handle, pinned. Returns it, what is to be closed for it now, and how many had to go for it."""
        entry = CacheEntry(session_id, handle, now, pins=1)
        self._entries[session_id] = entry
        close: list[CacheEntry[HandleT]] = []
        gone = 0
        while len(self._entries) > self._limit:
            oldest = next(each for each in self._entries.values() if each is not entry)
            gone += 1
            close += self.evict(oldest)
        return entry, close, gone

    def pin(self, entry: CacheEntry[HandleT], now: float) -> bool:
        """Keep an entry open. False when it is on its way out: look again (SR-266)."""
        if entry.state is not EntryState.OPEN:
            return False
        entry.pins += 1
        self._use(entry, now)
        return True

    def unpin(self, entry: CacheEntry[HandleT], now: float) -> list[CacheEntry[HandleT]]:
        """One user less. Returns the entry when it is to be closed now."""
        entry.pins -= 1
        if entry.pins == 0 and entry.state is EntryState.DOOMED:
            entry.state = EntryState.CLOSING
            return [entry]
        if entry.state is EntryState.OPEN:
            self._use(entry, now)
        return []

    def evict(self, entry: CacheEntry[HandleT]) -> list[CacheEntry[HandleT]]:
        """Take an entry out of the map. Returns it when it is to be closed now; a pinned one closes at its unpin."""
        if entry.state is not EntryState.OPEN:
            return []
        if self._entries.get(entry.session_id) is entry:
            del self._entries[entry.session_id]
        entry.state = EntryState.DOOMED if entry.pins else EntryState.CLOSING
        return [] if entry.pins else [entry]

    def sweep(self, now: float) -> list[CacheEntry[HandleT]]:
        """Evict what was idle for too long; all of it is to be closed."""
        idle = [each for each in self._entries.values() if not each.pins and now - each.last_activity >= self._idle_ttl]
        return [closing for each in idle for closing in self.evict(each)]

    def all(self) -> list[CacheEntry[HandleT]]:
        """Every entry in the map."""
        return list(self._entries.values())

    def _use(self, entry: CacheEntry[HandleT], now: float) -> None:
        entry.last_activity = now
        self._entries.move_to_end(entry.session_id)
