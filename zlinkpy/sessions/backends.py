"""From a URL to the four session stores of one system. Opening does no I/O."""

from __future__ import annotations

from attrs import frozen

from zlinkpy.location.open import store_target
from zlinkpy.sessions.arguments import PRIMARY_TTL, STALE_RETENTION
from zlinkpy.sessions.memory_backend import Clock, MemoryBackend, trio_millis
from zlinkpy.sessions.memory_idempotency import MemoryIdempotencyStore
from zlinkpy.sessions.memory_inbox import MemoryInbox
from zlinkpy.sessions.memory_leases import MemoryLeaseStore
from zlinkpy.sessions.memory_records import MemoryRecordStore
from zlinkpy.sessions.redis_backend import CALL_SECONDS, DEFAULT_PREFIX, RedisBackend
from zlinkpy.sessions.redis_idempotency import RedisIdempotencyStore
from zlinkpy.sessions.redis_inbox import RedisInbox
from zlinkpy.sessions.redis_leases import RedisLeaseStore
from zlinkpy.sessions.redis_records import RedisRecordStore


@frozen
class SessionStores:
    """The stores of one system; close them here."""

    backend: MemoryBackend | RedisBackend
    leases: MemoryLeaseStore | RedisLeaseStore
    records: MemoryRecordStore | RedisRecordStore
    inbox: MemoryInbox | RedisInbox
    idempotency: MemoryIdempotencyStore | RedisIdempotencyStore

    async def aclose(self) -> None:
        """Let running calls end and drop the connections. Idempotent."""
        if isinstance(self.backend, RedisBackend):
            await self.backend.aclose()


def open_session_stores(
    url: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    timeout: float = CALL_SECONDS,
    primary_ttl: float = PRIMARY_TTL,
    stale_retention: float = STALE_RETENTION,
) -> SessionStores:
    """The stores at `url`: ``memory://`` or any single-primary URL of the location store.

    Args:
        url: ``redis://…``, ``rediss://…``, ``unix://…``, ``redis+sentinel://…``, ``valkey+embedded://PATH``, or
            ``memory://`` for new, empty ones in this process.
        prefix: beginning of all keys.
        timeout: seconds, bounds every call.
        primary_ttl: seconds for which the result of a keyed submit is kept.
        stale_retention: seconds for which a lost attempt stays findable after its TTL.

    Raises:
        ConfigurationError: For a URL that cannot work; ``redis+cluster://`` among them (SR-457).
    """
    target = store_target(url)
    if target is None:
        return memory_session_stores(primary_ttl=primary_ttl, stale_retention=stale_retention)
    backend = RedisBackend(target, prefix=prefix, timeout=timeout)
    return SessionStores(
        backend,
        RedisLeaseStore(backend),
        RedisRecordStore(backend, leases_here=True),
        RedisInbox(backend),
        RedisIdempotencyStore(backend, primary_ttl=primary_ttl, stale_retention=stale_retention),
    )


def memory_session_stores(
    *, clock: Clock = trio_millis, primary_ttl: float = PRIMARY_TTL, stale_retention: float = STALE_RETENTION
) -> SessionStores:
    """New, empty stores in this process, which share one `MemoryBackend`."""
    backend = MemoryBackend(clock)
    leases = MemoryLeaseStore(backend)
    return SessionStores(
        backend,
        leases,
        MemoryRecordStore(backend, leases=leases),
        MemoryInbox(backend),
        MemoryIdempotencyStore(backend, primary_ttl=primary_ttl, stale_retention=stale_retention),
    )
