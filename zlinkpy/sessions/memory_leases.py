"""Session leases of one process; the rules of `redis_leases`."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen

from zlinkpy.sessions.arguments import checked_id, checked_millis, checked_optional_id
from zlinkpy.sessions.errors import SessionLeaseError
from zlinkpy.sessions.memory_backend import Expiring, MemoryBackend
from zlinkpy.sessions.payloads.values import logger
from zlinkpy.sessions.types import FENCE_MEMORY, LeaseHolder, SessionLease


@frozen
class _Held:
    lease: SessionLease
    attempt: str | None


class MemoryLeaseStore:
    """`SessionLeaseStore` in memory."""

    def __init__(self, backend: MemoryBackend | None = None) -> None:
        self.backend = backend or MemoryBackend()
        self._held: Expiring[str, _Held] = Expiring(self._now)
        self._fences: Expiring[str, int] = Expiring(self._now)
        self._recorded: Callable[[str], int] = lambda session_id: 0

    async def try_acquire(
        self, session_id: str, holder_id: str, duration: float, attempt: str | None = None
    ) -> SessionLease | LeaseHolder:
        checked_id(session_id, "session id")
        checked_id(holder_id, "holder id")
        checked_optional_id(attempt, "attempt")
        millis = checked_millis(duration, "duration")
        return await self.backend.perform(
            SessionLeaseError,
            "try_acquire",
            session_id,
            lambda: self._acquire(session_id, holder_id, duration, millis, attempt),
        )

    async def find_holder(self, session_id: str) -> LeaseHolder | None:
        checked_id(session_id, "session id")
        return await self.backend.perform(
            SessionLeaseError, "find_holder", session_id, lambda: self._holder(session_id)
        )

    async def extend(self, lease: SessionLease, duration: float) -> bool:
        millis = checked_millis(duration, "duration")
        return await self.backend.perform(
            SessionLeaseError, "extend", lease.session_id, lambda: self._extend(lease, millis)
        )

    async def release(self, lease: SessionLease) -> None:
        try:
            await self.backend.perform(SessionLeaseError, "release", lease.session_id, lambda: self._release(lease))
        except SessionLeaseError as error:
            logger.warning("the lease of session %r was not given back and will expire: %s", lease.session_id, error)

    def current_token(self, session_id: str) -> int | None:
        """The token of the lease that is held now; for records that lie beside their leases."""
        held = self._held.get(session_id)
        return None if held is None else held.lease.token

    def lie_beside(self, recorded: Callable[[str], int]) -> None:
        """Records lie on the same system: `recorded` tells the fence in one, which no new token may fall below."""
        self._recorded = recorded

    def wipe(self) -> None:
        """Lose all data, as a server that came back empty (SR-381)."""
        self._held.clear()
        self._fences.clear()

    def _now(self) -> int:
        return self.backend.clock()

    def _acquire(
        self, session_id: str, holder_id: str, duration: float, millis: int, attempt: str | None
    ) -> SessionLease | LeaseHolder:
        held = self._held.get(session_id)
        if held is not None:
            if attempt is None or held.attempt != attempt or held.lease.holder_id != holder_id:
                return self._described(held)
            # The caller takes its lease to begin now, so it must also end that much later.
            lease = evolve(held.lease, duration=duration)
            self._held.put(session_id, _Held(lease, attempt), millis)
            return lease
        now = self._now()
        last = max(self._fences.get(session_id) or 0, self._recorded(session_id))
        token = max(last + 1, now * 1000)
        lease = SessionLease(session_id, holder_id, token, now, duration)
        self._fences.put(session_id, token, checked_millis(FENCE_MEMORY, "fence memory"))
        self._held.put(session_id, _Held(lease, attempt), millis)
        return lease

    def _holder(self, session_id: str) -> LeaseHolder | None:
        held = self._held.get(session_id)
        return None if held is None else self._described(held)

    def _described(self, held: _Held) -> LeaseHolder:
        lease = held.lease
        left = self._held.ends_at(lease.session_id) - self._now()
        return LeaseHolder(lease.holder_id, lease.token, left / 1000)

    def _current(self, lease: SessionLease) -> _Held | None:
        held = self._held.get(lease.session_id)
        is_current = held is not None and (held.lease.holder_id, held.lease.token) == (lease.holder_id, lease.token)
        return held if is_current else None

    def _extend(self, lease: SessionLease, millis: int) -> bool:
        held = self._current(lease)
        if held is None:
            return False
        self._held.put(lease.session_id, held, millis)
        return True

    def _release(self, lease: SessionLease) -> None:
        if self._current(lease) is not None:
            self._held.drop(lease.session_id)
