"""The handles of this node: opening, pinning, closing (SR §16). What goes and when is `cache_machine`'s."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from zlinkpy.sessions.cache_machine import CacheEntry, EntryState, Eviction, HandleMap
from zlinkpy.sessions.errors import SessionError
from zlinkpy.sessions.metrics import MetricsPort
from zlinkpy.sessions.spi import LiveSession
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.sessions")

PIN_ATTEMPTS: Final = 8
"""Tries to pin an entry that closes under the caller's hands, each time another one (SR-266)."""


class HandleCache:
    """One map of open handles.

    Args:
        idle_ttl: seconds.
        limit: handles at most.
        on_closed: told the session id strictly after `aclose` returned or raised (SR-264).
        spawn: starts a close that nobody waits for.
    """

    def __init__(
        self,
        *,
        idle_ttl: float,
        limit: int,
        metrics: MetricsPort,
        on_closed: Callable[[str], None],
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._map: HandleMap[LiveSession] = HandleMap(idle_ttl=idle_ttl, limit=limit)
        self._metrics = metrics
        self._on_closed = on_closed
        self._spawn = spawn
        self._opening: dict[str, trio.Event] = {}
        self._closing: set[CacheEntry[LiveSession]] = set()

    def __len__(self) -> int:
        return len(self._map)

    def peek(self, session_id: str) -> CacheEntry[LiveSession] | None:
        """The entry in the map, without any effect."""
        return self._map.peek(session_id)

    async def acquire(self, session_id: str, opener: Callable[[], Awaitable[LiveSession]]) -> CacheEntry[LiveSession]:
        """The session's handle, opened if it is not there, pinned. What the opener raises leaves nothing behind."""
        for _ in range(PIN_ATTEMPTS):
            entry = self._map.peek(session_id)
            if entry is not None:
                if self._map.pin(entry, trio.current_time()):
                    self._metrics.on_cache_hit()
                    await trio.lowlevel.checkpoint()
                    return entry
            elif session_id in self._opening:
                await self._opening[session_id].wait()
            else:
                return await self._open(session_id, opener)
        raise SessionError(f"the handle of session {session_id!r} was closed {PIN_ATTEMPTS} times while it was opened")

    async def _open(self, session_id: str, opener: Callable[[], Awaitable[LiveSession]]) -> CacheEntry[LiveSession]:
        self._metrics.on_cache_miss()
        opened = self._opening[session_id] = trio.Event()
        try:
            handle = await opener()
            entry, close, gone = self._map.opened(session_id, handle, trio.current_time())
        finally:
            del self._opening[session_id]
            opened.set()
        for _ in range(gone):
            self._metrics.on_cache_eviction(Eviction.LRU.value)
        self._close_later(close)
        return entry

    async def unpin(self, entry: CacheEntry[LiveSession]) -> None:
        """One user less; the last one closes an entry that was evicted meanwhile (SR-261)."""
        for each in self._map.unpin(entry, trio.current_time()):
            await self._close(each)

    def evict(self, session_id: str, reason: Eviction = Eviction.EXPLICIT_RELEASE) -> CacheEntry[LiveSession] | None:
        """Take it out of the map; it is closed in the background, a pinned one at its last unpin."""
        entry = self._map.peek(session_id)
        if entry is not None:
            self._metrics.on_cache_eviction(reason.value)
            self._close_later(self._map.evict(entry))
        return entry

    async def evict_and_close(self, session_id: str) -> None:
        """Take it out of the map and close it, unless it is pinned."""
        entry = self._map.peek(session_id)
        if entry is not None:
            self._metrics.on_cache_eviction(Eviction.EXPLICIT_RELEASE.value)
            for each in self._map.evict(entry):
                await self._close(each)

    async def sweep(self) -> None:
        """Close what was idle for too long (SR-257)."""
        idle = self._map.sweep(trio.current_time())
        for _ in idle:
            self._metrics.on_cache_eviction(Eviction.IDLE.value)
        for each in idle:
            await self._close(each)

    async def close_all(self) -> None:
        """Close every handle that no turn has."""
        for entry in self._map.all():
            await self.evict_and_close(entry.session_id)

    def _close_later(self, entries: list[CacheEntry[LiveSession]]) -> None:
        for each in entries:
            self._spawn(lambda each=each: self._close(each))  # type: ignore[misc]

    async def _close(self, entry: CacheEntry[LiveSession]) -> None:
        try:
            await entry.handle.aclose()
        except Exception:
            log.exception("closing the handle of session %r raised", entry.session_id)
        finally:
            entry.state = EntryState.CLOSED
            self._on_closed(entry.session_id)
