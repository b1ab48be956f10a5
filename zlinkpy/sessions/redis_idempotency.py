"""Idempotency entries on Redis or Valkey: one hash per key, and a list of those that are held and in flight.

Expiry of a held entry is logical: it turns *stale* when its TTL is over and stays readable for the retention, so that
a sweep with that same threshold can still find it (SR-103). Everything else vanishes with its TTL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from zlinkpy.location.redis_scripts import Script
from zlinkpy.location.redis_session import RedisSession
from zlinkpy.sessions.arguments import (
    PRIMARY_TTL,
    STALE_RETENTION,
    checked_age,
    checked_id,
    checked_limit,
    checked_millis,
    checked_size,
)
from zlinkpy.sessions.errors import IdempotencyStoreError
from zlinkpy.sessions.payloads.results import decode_result, encode_result
from zlinkpy.sessions.redis_backend import RedisBackend, escaped, flags_of, script, unescaped
from zlinkpy.sessions.types import (
    Existing,
    IdempotencyEntry,
    IdempotencyStatus,
    Inserted,
    MarkDone,
    TurnResult,
)

_PUT: Final = script("idem_put", grows=True)
_FIND: Final = script("idem_find")
_TOUCH: Final = script("idem_touch")
_RELEASE: Final = script("idem_release")
_ACQUIRE: Final = script("idem_acquire")
_FREE: Final = script("idem_free")
_DONE: Final = script("idem_done")
_STALE: Final = script("idem_stale")


class RedisIdempotencyStore:
    """`IdempotencyStore` on a `RedisBackend`; closed with it.

    Args:
        backend: the server.
        primary_ttl: seconds for which a result is kept.
        stale_retention: seconds for which a stale entry can still be found.
    """

    def __init__(
        self, backend: RedisBackend, *, primary_ttl: float = PRIMARY_TTL, stale_retention: float = STALE_RETENTION
    ) -> None:
        self._backend = backend
        self._primary = checked_millis(primary_ttl, "primary_ttl")
        self._retention = checked_millis(stale_retention, "stale_retention")
        self._live = backend.key("idem", "live")

    async def put_if_absent(
        self, key: str, session_id: str, input_hash: str, holder_id: str, ttl: float
    ) -> Inserted | Existing:
        checked_id(session_id, "session id")
        checked_id(input_hash, "input hash")
        millis = checked_millis(ttl, "ttl")
        arguments = (session_id, input_hash, checked_id(holder_id, "holder id"), millis, millis + self._retention)

        def read(answer: list[Any]) -> Inserted | Existing:
            entry = _entry(key, int(answer[1]), answer[2])
            return Inserted(entry) if answer[0] == 1 else Existing(entry)

        keys, name = self._names(key)
        return await self._backend.call(IdempotencyStoreError, "write", _PUT, keys, (name, *arguments), read)

    async def find(self, key: str) -> IdempotencyEntry | None:
        keys, _ = self._names(key)
        return await self._backend.call(
            IdempotencyStoreError,
            "read",
            _FIND,
            keys[:1],
            (),
            lambda answer: _entry(key, int(answer[0]), answer[1]) if answer[1] else None,
        )

    async def touch(self, key: str, holder_id: str) -> bool:
        keys, arguments = self._touch(key, holder_id)
        return await self._change(_TOUCH, keys, arguments)

    async def release_holder(self, key: str, holder_id: str, ttl: float) -> bool:
        keys, name = self._names(key)
        arguments = (name, checked_id(holder_id, "holder id"), checked_millis(ttl, "ttl"))
        return await self._change(_RELEASE, keys, arguments)

    async def acquire_holder(self, key: str, holder_id: str, ttl: float) -> bool:
        keys, name = self._names(key)
        millis = checked_millis(ttl, "ttl")
        arguments = (name, checked_id(holder_id, "holder id"), millis, millis + self._retention)
        return await self._change(_ACQUIRE, keys, arguments)

    async def discard_reservation(self, key: str) -> bool:
        keys, name = self._names(key)
        return await self._change(_FREE, keys, (name,))

    async def compare_and_reset(self, key: str, holder_id: str) -> bool:
        keys, name = self._names(key)
        return await self._change(_FREE, keys, (name, checked_id(holder_id, "holder id")))

    async def mark_done(self, key: str, result: TurnResult, holder_id: str, allow_unheld: bool = False) -> MarkDone:
        keys, name = self._names(key)
        data = checked_size(encode_result(result), "a result")
        arguments = (name, checked_id(holder_id, "holder id"), "1" if allow_unheld else "0", data, self._primary)
        return await self._backend.call(
            IdempotencyStoreError, "write", _DONE, keys, arguments, lambda answer: MarkDone(answer[0].decode())
        )

    async def find_stale_in_flight(self, older_than: float, limit: int) -> list[IdempotencyEntry]:
        arguments = (self._backend.key("idem", ""), checked_age(older_than), checked_limit(limit))

        def read(answer: list[Any]) -> list[IdempotencyEntry]:
            now = int(answer[0])
            return [_entry(unescaped(name), now, fields) for name, fields in answer[1:]]

        return await self._backend.call(IdempotencyStoreError, "write", _STALE, [self._live], arguments, read)

    def dedicated(self, *, timeout: float) -> RedisBlockingTouches:
        """A handle with a connection of its own, for touching on a plain thread."""
        return RedisBlockingTouches(self._backend.dedicated(timeout), self)

    def touches(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[bytes], tuple[Any, ...]]]:
        """Keys and arguments of `touch`, for a pipeline."""
        return [self._touch(key, holder_id) for key, holder_id in pairs]

    def _touch(self, key: str, holder_id: str) -> tuple[list[bytes], tuple[Any, ...]]:
        keys, name = self._names(key)
        return keys, (name, checked_id(holder_id, "holder id"), self._retention)

    async def _change(self, step: Script, keys: list[bytes], arguments: tuple[Any, ...]) -> bool:
        return await self._backend.call(
            IdempotencyStoreError, "write", step, keys, arguments, lambda answer: bool(answer[0] == 1)
        )

    def _names(self, key: str) -> tuple[list[bytes], str]:
        name = escaped(checked_id(key, "idempotency key"))
        if name == "live":  # the list itself is called that
            name = "%6Cive"
        return [self._backend.key("idem", name), self._live], name


class RedisBlockingTouches:
    """One connection for one plain thread."""

    def __init__(self, session: RedisSession, store: RedisIdempotencyStore) -> None:
        self._session = session
        self._store = store

    def touch_all(self, pairs: Sequence[tuple[str, str]]) -> list[bool | IdempotencyStoreError]:
        """One answer for each (key, holder id), in order."""
        return flags_of(IdempotencyStoreError, self._session.run_many("write", _TOUCH, self._store.touches(pairs)))

    def close(self) -> None:
        """Cut the connection; a running call fails."""
        self._session.close()


def _entry(key: str, now: int, flat: Sequence[bytes]) -> IdempotencyEntry:
    fields: Mapping[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    status = IdempotencyStatus(fields[b"st"].decode())
    holder = fields.get(b"h")
    touched_at, ttl = int(fields[b"t"]), int(fields[b"ttl"])
    in_flight = status is IdempotencyStatus.IN_FLIGHT
    return IdempotencyEntry(
        key=key,
        session_id=fields[b"sid"].decode(),
        input_hash=fields[b"ih"].decode(),
        status=status,
        holder_id=None if holder is None else holder.decode(),
        epoch=fields[b"ep"].decode(),
        result=None if in_flight else decode_result(fields[b"r"]),
        created_at=int(fields[b"c"]),
        touched_at=touched_at,
        ttl=ttl / 1000,
        stale=in_flight and holder is not None and now - touched_at > ttl,
    )
