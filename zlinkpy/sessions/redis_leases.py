"""Session leases on Redis or Valkey: a hash that expires by itself, and a fence that outlives it.

The server's clock alone decides (SR-041). A token is at least the server's microseconds, so that losing the fence
cannot lower it (SR-034); it also exceeds the fence in the session's record where that lies on the same server, for a
server whose clock went back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from zlinkpy.location.redis_session import RedisSession
from zlinkpy.sessions.arguments import checked_id, checked_millis, checked_optional_id
from zlinkpy.sessions.errors import SessionLeaseError
from zlinkpy.sessions.payloads.values import logger
from zlinkpy.sessions.redis_backend import RedisBackend, flags_of, script
from zlinkpy.sessions.types import FENCE_MEMORY, LeaseHolder, SessionLease

_ACQUIRE: Final = script("lease_acquire", grows=True)
_FIND: Final = script("lease_find")
_EXTEND: Final = script("lease_extend")
_RELEASE: Final = script("lease_release")


class RedisLeaseStore:
    """`SessionLeaseStore` on a `RedisBackend`; closed with it."""

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend

    async def try_acquire(
        self, session_id: str, holder_id: str, duration: float, attempt: str | None = None
    ) -> SessionLease | LeaseHolder:
        checked_id(session_id, "session id")
        checked_id(holder_id, "holder id")
        attempt = checked_optional_id(attempt, "attempt")
        millis = checked_millis(duration, "duration")

        def read(answer: list[Any]) -> SessionLease | LeaseHolder:
            if answer[0] == 1:
                return SessionLease(session_id, holder_id, int(answer[1]), int(answer[2]), duration)
            return _holder(answer)

        keys = [self._backend.session_key(session_id, part) for part in ("lease", "fence", "rec")]
        arguments = (holder_id, attempt or "", millis, checked_millis(FENCE_MEMORY, "fence memory"))
        return await self._backend.call(SessionLeaseError, "write", _ACQUIRE, keys, arguments, read)

    async def find_holder(self, session_id: str) -> LeaseHolder | None:
        key = self._key(checked_id(session_id, "session id"))
        return await self._backend.call(
            SessionLeaseError, "read", _FIND, [key], (), lambda answer: _holder(answer) if answer[0] == 1 else None
        )

    async def extend(self, lease: SessionLease, duration: float) -> bool:
        keys, arguments = self._extension(lease, duration)
        return await self._backend.call(
            SessionLeaseError, "write", _EXTEND, keys, arguments, lambda answer: answer[0] == 1
        )

    async def release(self, lease: SessionLease) -> None:
        try:
            await self._backend.call(
                SessionLeaseError, "write", _RELEASE, [self._key(lease.session_id)], (lease.holder_id, lease.token)
            )
        except SessionLeaseError as error:
            logger.warning("the lease of session %r was not given back and will expire: %s", lease.session_id, error)

    def dedicated(self, *, timeout: float) -> RedisBlockingLeases:
        """A handle with a connection of its own, for lease renewal on a plain thread."""
        return RedisBlockingLeases(self._backend.dedicated(timeout), self)

    def extensions(self, leases: Sequence[tuple[SessionLease, float]]) -> list[tuple[list[bytes], tuple[Any, ...]]]:
        """Keys and arguments of `extend`, for a pipeline."""
        return [self._extension(lease, duration) for lease, duration in leases]

    def _extension(self, lease: SessionLease, duration: float) -> tuple[list[bytes], tuple[Any, ...]]:
        return [self._key(lease.session_id)], (lease.holder_id, lease.token, checked_millis(duration, "duration"))

    def _key(self, session_id: str) -> bytes:
        return self._backend.session_key(session_id, "lease")


class RedisBlockingLeases:
    """One connection for one plain thread."""

    def __init__(self, session: RedisSession, store: RedisLeaseStore) -> None:
        self._session = session
        self._store = store

    def extend_all(self, leases: Sequence[tuple[SessionLease, float]]) -> list[bool | SessionLeaseError]:
        """One answer for each lease, in order."""
        answers = self._session.run_many("write", _EXTEND, self._store.extensions(leases))
        return flags_of(SessionLeaseError, answers)

    def close(self) -> None:
        """Cut the connection; a running call fails."""
        self._session.close()


def _holder(answer: list[Any]) -> LeaseHolder:
    return LeaseHolder(answer[1].decode(), int(answer[2]), answer[3] / 1000)
