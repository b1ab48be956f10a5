"""Session inboxes on Redis or Valkey: a stream for each session and priority, taken out by one script over all tiers.

Messages outlive every process (SR-077). A collected batch is kept for five minutes and a delivery id for ten, so that
a lost answer can be asked for again (SR-424, SR-426).
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

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
from zlinkpy.sessions.payloads.envelope import encode_envelope
from zlinkpy.sessions.redis_backend import RedisBackend, script
from zlinkpy.sessions.types import (
    BATCH_MEMORY,
    COLLECT_LIMIT,
    DELIVERY_MEMORY,
    CollectedBatch,
    InboundMessage,
    Priority,
)

_DELIVER: Final = script("inbox_deliver", grows=True)
_COLLECT: Final = script("inbox_collect")
_EMPTY: Final = script("inbox_empty")
_WITHDRAW: Final = script("inbox_withdraw")
_PURGE: Final = script("inbox_purge")
_SCAN: Final = script("inbox_scan")


class RedisInbox:
    """`SessionInbox` on a `RedisBackend`; closed with it."""

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend
        self._index = backend.key("in", "idx")

    async def deliver(self, message: InboundMessage, delivery_id: str | None = None) -> str:
        session_id = checked_id(message.session_id, "session id")
        checked_optional_id(delivery_id, "delivery id")
        tier = int(message.priority)
        keys = [self._tiers(session_id)[tier], self._index]
        if delivery_id is not None:
            keys.append(self._backend.session_key(session_id, "d", delivery_id))
        arguments = (
            session_id,
            tier,
            checked_size(encode_envelope(message), "a message"),
            checked_optional_id(message.idempotency_key, "idempotency key") or "",
            checked_millis(DELIVERY_MEMORY, "delivery memory"),
        )
        return await self._backend.call(
            SessionInboxError, "write", _DELIVER, keys, arguments, lambda answer: str(answer[0].decode())
        )

    async def collect(self, session_id: str, max_priority: Priority, batch_id: str | None = None) -> CollectedBatch:
        keys = [*self._tiers(checked_id(session_id, "session id")), self._index]
        if checked_optional_id(batch_id, "batch id") is not None:
            keys.append(self._backend.session_key(session_id, "cb", str(batch_id)))
        memory = checked_millis(BATCH_MEMORY, "batch memory")
        arguments = (session_id, int(Priority(max_priority)), COLLECT_LIMIT, COLLECT_BYTES, memory)
        entries = await self._backend.call(SessionInboxError, "write", _COLLECT, keys, arguments, _entries)
        return read_batch(session_id, entries)

    async def is_empty(self, session_id: str) -> bool:
        tiers = self._tiers(checked_id(session_id, "session id"))
        return await self._backend.call(
            SessionInboxError, "read", _EMPTY, tiers, (), lambda answer: bool(answer[0] == 0)
        )

    async def purge(self, session_id: str) -> list[str]:
        keys = [*self._tiers(checked_id(session_id, "session id")), self._index]
        return await self._backend.call(SessionInboxError, "write", _PURGE, keys, (session_id,), _texts)

    async def withdraw(self, session_id: str, inbox_id: str) -> bool:
        keys = [*self._tiers(checked_id(session_id, "session id")), self._index]
        place = stream_place(checked_id(inbox_id, "inbox id"))
        if place is None:
            return False
        return await self._backend.call(
            SessionInboxError, "write", _WITHDRAW, keys, (session_id, *place), lambda answer: bool(answer[0] == 1)
        )

    async def scan_pending(
        self, older_than: float, limit: int, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        limit = checked_limit(limit)
        arguments: list[Any] = [checked_age(older_than), limit]
        if cursor is not None:
            arguments += _place(cursor)
        found = await self._backend.call(SessionInboxError, "read", _SCAN, [self._index], arguments, _pending)
        cursor = ":".join(found[-1]) if len(found) == limit else None
        return [session_id for _, session_id in found if _is_text(session_id)], cursor

    def _tiers(self, session_id: str) -> list[bytes]:
        return [self._backend.session_key(session_id, "in", str(tier)) for tier in range(3)]


def _entries(answer: list[Any]) -> list[Entry]:
    # raw: the scripts pack every string in the text family, whatever bytes it has.
    rows = msgpack.unpackb(answer[0], raw=True) or []
    return [Entry(tier, place.decode(), payload) for tier, place, payload in rows]


def _texts(answer: list[Any]) -> list[str]:
    return list(dict.fromkeys(key.decode("utf-8", "replace") for key in answer))


def _pending(answer: list[Any]) -> list[tuple[str, str]]:
    pairs = zip(answer[1::2], answer[::2], strict=True)
    return [(score.decode(), session_id.decode("utf-8", "surrogateescape")) for score, session_id in pairs]


def _place(cursor: str) -> tuple[str, bytes]:
    """Score and member behind which a listing goes on."""
    score, colon, session_id = cursor.partition(":")
    try:
        float(score)
    except ValueError:
        colon = ""
    if not colon:
        raise ValueError("the cursor is not one that scan_pending gave out")
    return score, session_id.encode("utf-8", "surrogateescape")


def _is_text(session_id: str) -> bool:
    """False for a member of the index that is no session id: bytes of a stranger."""
    return not any("\udc80" <= character <= "\udcff" for character in session_id)
