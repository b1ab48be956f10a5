"""Idempotency entries of one process; the rules of `redis_idempotency`."""

from __future__ import annotations

from attrs import evolve, frozen

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
from zlinkpy.sessions.memory_backend import Expiring, MemoryBackend
from zlinkpy.sessions.payloads.results import decode_result, encode_result
from zlinkpy.sessions.types import (
    Existing,
    IdempotencyEntry,
    IdempotencyStatus,
    Inserted,
    MarkDone,
    TurnResult,
)


@frozen
class _Row:
    session_id: str
    input_hash: str
    status: IdempotencyStatus
    holder_id: str | None
    epoch: str
    created_at: int
    touched_at: int
    ttl: int
    result: bytes | None = None

    @property
    def in_flight(self) -> bool:
        return self.status is IdempotencyStatus.IN_FLIGHT


class MemoryIdempotencyStore:
    """`IdempotencyStore` in memory; arguments as for the Redis one."""

    def __init__(
        self,
        backend: MemoryBackend | None = None,
        *,
        primary_ttl: float = PRIMARY_TTL,
        stale_retention: float = STALE_RETENTION,
    ) -> None:
        self.backend = backend or MemoryBackend()
        self._primary = checked_millis(primary_ttl, "primary_ttl")
        self._retention = checked_millis(stale_retention, "stale_retention")
        self._rows: Expiring[str, _Row] = Expiring(self._now)
        self._live: dict[str, None] = {}
        """Held keys in flight, the one touched longest ago first."""

    async def put_if_absent(
        self, key: str, session_id: str, input_hash: str, holder_id: str, ttl: float
    ) -> Inserted | Existing:
        checked_id(key, "idempotency key")
        checked_id(session_id, "session id")
        checked_id(input_hash, "input hash")
        checked_id(holder_id, "holder id")
        millis = checked_millis(ttl, "ttl")
        return await self.backend.perform(
            IdempotencyStoreError,
            "put_if_absent",
            key,
            lambda: self._put(key, session_id, input_hash, holder_id, millis),
        )

    async def find(self, key: str) -> IdempotencyEntry | None:
        checked_id(key, "idempotency key")
        return await self.backend.perform(IdempotencyStoreError, "find", key, lambda: self._find(key))

    async def touch(self, key: str, holder_id: str) -> bool:
        checked_id(key, "idempotency key")
        checked_id(holder_id, "holder id")
        return await self.backend.perform(IdempotencyStoreError, "touch", key, lambda: self._touch(key, holder_id))

    async def release_holder(self, key: str, holder_id: str, ttl: float) -> bool:
        checked_id(key, "idempotency key")
        checked_id(holder_id, "holder id")
        millis = checked_millis(ttl, "ttl")
        return await self.backend.perform(
            IdempotencyStoreError, "release_holder", key, lambda: self._release(key, holder_id, millis)
        )

    async def acquire_holder(self, key: str, holder_id: str, ttl: float) -> bool:
        checked_id(key, "idempotency key")
        checked_id(holder_id, "holder id")
        millis = checked_millis(ttl, "ttl")
        return await self.backend.perform(
            IdempotencyStoreError, "acquire_holder", key, lambda: self._acquire(key, holder_id, millis)
        )

    async def discard_reservation(self, key: str) -> bool:
        checked_id(key, "idempotency key")
        return await self.backend.perform(
            IdempotencyStoreError, "discard_reservation", key, lambda: self._free(key, None)
        )

    async def compare_and_reset(self, key: str, holder_id: str) -> bool:
        checked_id(key, "idempotency key")
        checked_id(holder_id, "holder id")
        return await self.backend.perform(
            IdempotencyStoreError, "compare_and_reset", key, lambda: self._free(key, holder_id)
        )

    async def mark_done(self, key: str, result: TurnResult, holder_id: str, allow_unheld: bool = False) -> MarkDone:
        checked_id(key, "idempotency key")
        checked_id(holder_id, "holder id")
        data = checked_size(encode_result(result), "a result")
        return await self.backend.perform(
            IdempotencyStoreError, "mark_done", key, lambda: self._done(key, data, holder_id, allow_unheld)
        )

    async def find_stale_in_flight(self, older_than: float, limit: int) -> list[IdempotencyEntry]:
        age, limit = checked_age(older_than), checked_limit(limit)
        return await self.backend.perform(
            IdempotencyStoreError, "find_stale_in_flight", "", lambda: self._stale(age, limit)
        )

    def wipe(self) -> None:
        """Lose all data, as a server that came back empty (SR-381)."""
        self._rows.clear()
        self._live.clear()

    def _now(self) -> int:
        return self.backend.clock()

    def _put(self, key: str, session_id: str, input_hash: str, holder_id: str, ttl: int) -> Inserted | Existing:
        row = self._rows.get(key)
        if row is not None:
            return Existing(self._entry(key, row))
        now = self._now()
        row = _Row(session_id, input_hash, IdempotencyStatus.IN_FLIGHT, holder_id, holder_id, now, now, ttl)
        self._hold(key, row)
        return Inserted(self._entry(key, row))

    def _find(self, key: str) -> IdempotencyEntry | None:
        row = self._rows.get(key)
        return None if row is None else self._entry(key, row)

    def _touch(self, key: str, holder_id: str) -> bool:
        row = self._held_by(key, holder_id)
        if row is None:
            return False
        self._hold(key, evolve(row, touched_at=self._now()))
        return True

    def _release(self, key: str, holder_id: str, ttl: int) -> bool:
        row = self._held_by(key, holder_id)
        if row is None:
            return False
        self._live.pop(key, None)
        self._rows.put(key, evolve(row, holder_id=None, touched_at=self._now(), ttl=ttl), ttl)
        return True

    def _acquire(self, key: str, holder_id: str, ttl: int) -> bool:
        row = self._held_by(key, None)
        if row is None:
            return False
        self._hold(key, evolve(row, holder_id=holder_id, touched_at=self._now(), ttl=ttl))
        return True

    def _free(self, key: str, holder_id: str | None) -> bool:
        if self._held_by(key, holder_id) is None:
            return False
        self._live.pop(key, None)
        self._rows.drop(key)
        return True

    def _done(self, key: str, result: bytes, holder_id: str, allow_unheld: bool) -> MarkDone:
        if self._rows.get(key) is None:
            return MarkDone.ABSENT
        row = self._held_by(key, holder_id) or (self._held_by(key, None) if allow_unheld else None)
        if row is None:
            return MarkDone.REFUSED
        self._live.pop(key, None)
        done = evolve(
            row,
            status=IdempotencyStatus.DONE,
            holder_id=None,
            touched_at=self._now(),
            ttl=self._primary,
            result=result,
        )
        self._rows.put(key, done, self._primary)
        return MarkDone.APPLIED

    def _stale(self, age: int, limit: int) -> list[IdempotencyEntry]:
        found: list[IdempotencyEntry] = []
        before = self._now() - age
        for key in list(self._live):
            row = self._rows.get(key)
            if row is None:
                del self._live[key]
            elif row.touched_at >= before or len(found) == limit:
                break
            else:
                found.append(self._entry(key, row))
        return found

    def _held_by(self, key: str, holder_id: str | None) -> _Row | None:
        row = self._rows.get(key)
        return row if row is not None and row.in_flight and row.holder_id == holder_id else None

    def _hold(self, key: str, row: _Row) -> None:
        self._live.pop(key, None)
        self._live[key] = None
        self._rows.put(key, row, row.ttl + self._retention)

    def _entry(self, key: str, row: _Row) -> IdempotencyEntry:
        held = row.in_flight and row.holder_id is not None
        return IdempotencyEntry(
            key=key,
            session_id=row.session_id,
            input_hash=row.input_hash,
            status=row.status,
            holder_id=row.holder_id,
            epoch=row.epoch,
            result=None if row.result is None else decode_result(row.result),
            created_at=row.created_at,
            touched_at=row.touched_at,
            ttl=row.ttl / 1000,
            stale=held and self._now() - row.touched_at > row.ttl,
        )
