"""Session inboxes of one process; the rules of `redis_inbox`."""

from __future__ import annotations

from itertools import islice

from attrs import define, field

from zlinkpy.sessions.arguments import (
    COLLECT_BYTES,
    checked_age,
    checked_id,
    checked_limit,
    checked_millis,
    checked_optional_id,
    checked_size,
    stream_place,
)
from zlinkpy.sessions.batches import Entry, read_batch
from zlinkpy.sessions.errors import SessionInboxError
from zlinkpy.sessions.memory_backend import Expiring, MemoryBackend
from zlinkpy.sessions.payloads.envelope import encode_envelope
from zlinkpy.sessions.types import (
    BATCH_MEMORY,
    COLLECT_LIMIT,
    DELIVERY_MEMORY,
    CollectedBatch,
    InboundMessage,
    Priority,
)


@define
class _Box:
    """The waiting entries of one session by place, a dict for each tier, with their idempotency keys."""

    tiers: tuple[dict[str, tuple[Entry, str | None]], ...] = field(factory=lambda: ({}, {}, {}))

    @property
    def oldest(self) -> int | None:
        """When the oldest waiting message came."""
        heads = [next(iter(tier.values()))[0].arrived_at for tier in self.tiers if tier]
        return min(heads, default=None)


class MemoryInbox:
    """`SessionInbox` in memory."""

    def __init__(self, backend: MemoryBackend | None = None) -> None:
        self.backend = backend or MemoryBackend()
        self._boxes: dict[str, _Box] = {}
        self._deliveries: Expiring[tuple[str, str], str] = Expiring(self._now)
        self._batches: Expiring[tuple[str, str], tuple[Entry, ...]] = Expiring(self._now)
        self._last = (0, 0)

    async def deliver(self, message: InboundMessage, delivery_id: str | None = None) -> str:
        checked_id(message.session_id, "session id")
        checked_optional_id(message.idempotency_key, "idempotency key")
        checked_optional_id(delivery_id, "delivery id")
        payload = checked_size(encode_envelope(message), "a message")
        return await self.backend.perform(
            SessionInboxError, "deliver", message.session_id, lambda: self._deliver(message, payload, delivery_id)
        )

    async def collect(self, session_id: str, max_priority: Priority, batch_id: str | None = None) -> CollectedBatch:
        checked_id(session_id, "session id")
        checked_optional_id(batch_id, "batch id")
        highest = Priority(max_priority)
        entries = await self.backend.perform(
            SessionInboxError, "collect", session_id, lambda: self._collect(session_id, highest, batch_id)
        )
        return read_batch(session_id, entries)

    async def is_empty(self, session_id: str) -> bool:
        checked_id(session_id, "session id")
        return await self.backend.perform(
            SessionInboxError, "is_empty", session_id, lambda: session_id not in self._boxes
        )

    async def purge(self, session_id: str) -> list[str]:
        checked_id(session_id, "session id")
        return await self.backend.perform(SessionInboxError, "purge", session_id, lambda: self._purge(session_id))

    async def withdraw(self, session_id: str, inbox_id: str) -> bool:
        checked_id(session_id, "session id")
        place = stream_place(checked_id(inbox_id, "inbox id"))
        return await self.backend.perform(
            SessionInboxError,
            "withdraw",
            session_id,
            lambda: place is not None and self._withdraw(session_id, *place),
        )

    async def scan_pending(
        self, older_than: float, limit: int, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        age, limit = checked_age(older_than), checked_limit(limit)
        after: tuple[int, bytes] | None = None
        if cursor is not None:
            score, colon, session_id = cursor.partition(":")
            if not colon or not score.isdecimal():
                raise ValueError("the cursor is not one that scan_pending gave out")
            after = (int(score), session_id.encode())
        return await self.backend.perform(SessionInboxError, "scan_pending", "", lambda: self._scan(age, limit, after))

    def insert_raw(self, session_id: str, priority: Priority, payload: bytes) -> str:
        """Queue bytes as they are: what a test, or a stranger with access to the store, puts there."""
        entry = Entry(int(priority), self._place(), payload)
        self._boxes.setdefault(session_id, _Box()).tiers[entry.tier][entry.place] = (entry, None)
        return entry.inbox_id

    def wipe(self) -> None:
        """Lose all data, as a server that came back empty (SR-381)."""
        self._boxes.clear()
        self._deliveries.clear()
        self._batches.clear()

    def _now(self) -> int:
        return self.backend.clock()

    def _place(self) -> str:
        """Never the same twice and never lower, also when the clock goes back."""
        ms, number = self._last
        now = self._now()
        self._last = (now, 0) if now > ms else (ms, number + 1)
        return f"{self._last[0]}-{self._last[1]}"

    def _deliver(self, message: InboundMessage, payload: bytes, delivery_id: str | None) -> str:
        session_id = message.session_id
        if delivery_id is not None:
            known = self._deliveries.get((session_id, delivery_id))
            if known is not None:
                return known
        entry = Entry(int(message.priority), self._place(), payload)
        box = self._boxes.setdefault(session_id, _Box())
        box.tiers[entry.tier][entry.place] = (entry, message.idempotency_key)
        if delivery_id is not None:
            life = checked_millis(DELIVERY_MEMORY, "delivery memory")
            self._deliveries.put((session_id, delivery_id), entry.inbox_id, life)
        return entry.inbox_id

    def _collect(self, session_id: str, highest: Priority, batch_id: str | None) -> tuple[Entry, ...]:
        if batch_id is not None:
            copy = self._batches.get((session_id, batch_id))
            if copy is not None:
                return copy
        box = self._boxes.get(session_id)
        if box is None:
            return ()
        taken: list[Entry] = []
        room = COLLECT_BYTES
        for tier in box.tiers[: highest + 1]:
            for entry, _ in list(islice(tier.values(), COLLECT_LIMIT - len(taken))):
                if room <= 0:
                    break
                room -= len(entry.payload)
                taken.append(entry)
                del tier[entry.place]
        self._forget_if_empty(session_id)
        batch = tuple(taken)
        if batch_id is not None and batch:
            self._batches.put((session_id, batch_id), batch, checked_millis(BATCH_MEMORY, "batch memory"))
        return batch

    def _purge(self, session_id: str) -> list[str]:
        box = self._boxes.pop(session_id, None)
        if box is None:
            return []
        keys = [key for tier in box.tiers for _, key in tier.values() if key is not None]
        return list(dict.fromkeys(keys))

    def _withdraw(self, session_id: str, tier: int, place: str) -> bool:
        box = self._boxes.get(session_id)
        if box is None or box.tiers[tier].pop(place, None) is None:
            return False
        self._forget_if_empty(session_id)
        return True

    def _scan(self, age: int, limit: int, after: tuple[int, bytes] | None) -> tuple[list[str], str | None]:
        before = self._now() - age
        waiting = sorted(
            (box.oldest, session_id.encode(), session_id)
            for session_id, box in self._boxes.items()
            if box.oldest is not None and box.oldest < before
        )
        due = [(at, session_id) for at, raw, session_id in waiting if after is None or (at, raw) > after][:limit]
        cursor = f"{due[-1][0]}:{due[-1][1]}" if len(due) == limit else None
        return [session_id for _, session_id in due], cursor

    def _forget_if_empty(self, session_id: str) -> None:
        if not any(self._boxes[session_id].tiers):
            del self._boxes[session_id]
