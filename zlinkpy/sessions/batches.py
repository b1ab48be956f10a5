"""From stored inbox entries to a batch; what cannot be read is set apart and reported, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from zlinkpy.sessions.payloads.envelope import decode_envelope
from zlinkpy.sessions.payloads.values import logger
from zlinkpy.sessions.types import CollectedBatch, InboundMessage, Priority, UnreadableEntry


@frozen
class Entry:
    """One entry as an inbox stores it: its tier, its place ``<ms>-<n>`` there, its envelope."""

    tier: int
    place: str
    payload: bytes

    @property
    def inbox_id(self) -> str:
        """The id its deliver returned."""
        return f"{self.tier}:{self.place}"

    @property
    def arrived_at(self) -> int:
        """Store milliseconds of its arrival."""
        return int(self.place.partition("-")[0])


def read_batch(session_id: str, entries: Iterable[Entry]) -> CollectedBatch:
    """Decode each entry by itself (SR-066)."""
    messages: list[InboundMessage] = []
    unreadable: list[UnreadableEntry] = []
    for entry in entries:
        found = decode_envelope(
            entry.payload,
            session_id=session_id,
            inbox_id=entry.inbox_id,
            priority=Priority(entry.tier),
            arrived_at=entry.arrived_at,
        )
        if isinstance(found, UnreadableEntry):
            logger.warning("an entry in the inbox of session %r cannot be read: %s", session_id, found.reason)
            unreadable.append(found)
        else:
            messages.append(found)
    return CollectedBatch(messages, unreadable)
