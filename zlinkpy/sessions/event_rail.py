"""What the router asks of the event side: one relay per turn, subscribers here, and frames that belong to no turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from zlinkpy.sessions.event_streams import EventStream
from zlinkpy.sessions.events import TurnEvent
from zlinkpy.sessions.types import SessionSignal


class TurnRelay(Protocol):
    """The events of one turn, on their way to every subscriber of the session (SR-326)."""

    def emit(self, event: TurnEvent) -> None:
        """Stamp and send; never waits."""
        ...

    async def aclose(self) -> None:
        """The turn is over; waits for what is buffered, for a bounded time (SR-337)."""
        ...


class EventRail(Protocol):
    """The event side of one router."""

    def services(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Tasks that run as long as the router."""
        ...

    def open_relay(self, session_id: str, turn_id: str) -> TurnRelay:
        """A new turn's relay."""
        ...

    def emit(self, session_id: str, event: TurnEvent) -> None:
        """To the subscribers on this node only."""
        ...

    async def publish(self, session_id: str, event: TurnEvent) -> None:
        """To the subscribers on the other nodes, as it is. Failures are logged."""
        ...

    def received(self, signal: SessionSignal) -> None:
        """An EVENT signal of another router."""
        ...

    def complete(self, session_id: str) -> None:
        """The session's streams end, after what is buffered for them (SR-344)."""
        ...

    def complete_all(self) -> None:
        """All streams end: the router closes."""
        ...

    def has_subscribers(self, session_id: str) -> bool:
        """Whether anybody listens here."""
        ...

    def subscribe(self, session_id: str, from_seq: int | None) -> EventStream:
        """The session's events from now on, or the active turn's from a number on (SR-397, SR-456)."""
        ...
