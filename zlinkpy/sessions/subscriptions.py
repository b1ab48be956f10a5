"""This router's places on the signal bus, one per session that it has to do with (facts §6; SR F0, SR-455).

A session's control signals are subscribed to before anything else is done with it, and for long: an EVICT that is
missed leaves a handle, futures and subscribers of a session that is gone. Events are subscribed to only while somebody
listens here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio
from attrs import define

from zlinkpy.sessions.core import RouterCore, log
from zlinkpy.sessions.spi import Subscription
from zlinkpy.sessions.types import SessionSignal

QUIET_FACTOR: Final = 10
"""A session that had nothing here for this many idle TTLs is unsubscribed."""
CLOSE_LIMIT: Final = 2.0
"""Seconds for ending one subscription."""


@define(eq=False)
class _Place:
    subscription: Subscription | None
    used_at: float


class Subscriptions:
    """See the module."""

    def __init__(self, core: RouterCore, handler: Callable[[SessionSignal], None]) -> None:
        self._core = core
        self._handler = handler
        self._places: dict[str, _Place] = {}
        self._opening: dict[str, trio.Event] = {}
        self._users: Counter[str] = Counter()

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._places

    async def ensure(self, session_id: str) -> None:
        """Hear the session's control signals. A bus that cannot is said in the log: polls repair it (SR-111)."""
        while session_id in self._opening:
            await self._opening[session_id].wait()
        place = self._places.get(session_id)
        if place is not None:
            place.used_at = trio.current_time()
            return
        opened = self._opening[session_id] = trio.Event()
        try:
            subscription = await self._core.bus.subscribe(session_id, self._handler, events=False)
            self._places[session_id] = _Place(subscription, trio.current_time())
        except Exception as error:  # noqa: BLE001 - a bus of the application's
            log.warning("the signals of session %r are not heard here: %r", session_id, error)
        finally:
            del self._opening[session_id]
            opened.set()

    @contextmanager
    def used(self, session_id: str) -> Iterator[None]:
        """A submit is under way: whoever ends the session meanwhile leaves it its place."""
        self._users[session_id] += 1
        try:
            yield
        finally:
            self._users[session_id] -= 1
            if not self._users[session_id]:
                del self._users[session_id]

    async def end(self, session_id: str) -> None:
        """The session is over here. What came to it meanwhile goes on hearing: a future that waits in a node that is
        deaf would miss the next EVICT and last until its deadline."""
        core = self._core
        if self._users[session_id] or core.forwards.of_session(session_id) or core.events.has_subscribers(session_id):
            return
        await self._end(session_id)

    async def _end(self, session_id: str) -> None:
        place = self._places.pop(session_id, None)
        if place is not None and place.subscription is not None:
            await self._close(session_id, place.subscription)

    async def end_all(self) -> None:
        """The router closes. All at once: each takes its time where the bus is away."""
        async with trio.open_nursery() as nursery:
            for session_id in list(self._places):
                nursery.start_soon(self._end, session_id)

    async def end_quiet_ones(self) -> list[str]:
        """End those of sessions that had nothing to do here for long; which they were."""
        ended: list[str] = []
        for session_id, place in list(self._places.items()):
            # Looked at in its turn: a session may have come back while the places of others were ended.
            if self._places.get(session_id) is place and self._is_quiet(session_id, place):
                await self._end(session_id)
                ended.append(session_id)
        return ended

    def _is_quiet(self, session_id: str, place: _Place) -> bool:
        core, now = self._core, trio.current_time()
        wanted = (
            session_id in core.seats
            or core.cache.peek(session_id) is not None
            or core.forwards.of_session(session_id)
            or core.events.has_subscribers(session_id)
        )
        if wanted:
            place.used_at = now
        return now - place.used_at >= QUIET_FACTOR * core.config.idle_ttl

    async def _close(self, session_id: str, subscription: Subscription) -> None:
        with trio.move_on_after(CLOSE_LIMIT):
            try:
                await subscription.aclose()
            except Exception:  # noqa: BLE001 - a bus of the application's
                log.exception("ending the subscription of session %r raised", session_id)
