"""From a router's arguments to its back ends. No I/O; `Parts.open` opens what was made here (SR §1).

    mode           not given                          result
    SINGLE_NODE    a store or the bus                 the one of the URL, or in memory
    SINGLE_NODE    node_id                            ``node-<uuid>``
    DISTRIBUTED    a store or the bus, and no URL     ConfigurationError that names it (SR-006)
    DISTRIBUTED    node_id, or a blank one            ConfigurationError (SR-007)

The only module of the router that knows back ends; the others know `spi` (SR-013).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final, TypeAlias

from attrs import frozen

from zlinkpy.entropy import Entropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.sessions.backends import SessionStores, memory_session_stores, open_session_stores
from zlinkpy.sessions.memory_bus import MemorySignalBus
from zlinkpy.sessions.memory_journal import MemoryEventJournal
from zlinkpy.sessions.mesh_bus import MeshSignalBus, SessionMesh
from zlinkpy.sessions.redis_backend import RedisBackend
from zlinkpy.sessions.redis_bus import RedisSignalBus
from zlinkpy.sessions.redis_journal import RedisEventJournal
from zlinkpy.sessions.session_store import NodeSessionStore
from zlinkpy.sessions.spi import (
    EventJournal,
    IdempotencyStore,
    SessionInbox,
    SessionLeaseStore,
    SessionRecordStore,
    SessionSignalBus,
    SessionStore,
)
from zlinkpy.sessions.types import DeploymentMode, RouterConfig

MEMORY: Final = "memory://"
MeshOfHost: TypeAlias = SessionMesh


@frozen(kw_only=True)
class Given:
    """The back ends among a router's arguments."""

    url: str | None = None
    mesh: MeshOfHost | None = None
    record_store: SessionRecordStore | None = None
    lease_store: SessionLeaseStore | None = None
    inbox: SessionInbox | None = None
    idempotency_store: IdempotencyStore | None = None
    bus: SessionSignalBus | None = None
    journal: EventJournal | None = None

    def missing(self) -> list[str]:
        """What has to be given where several nodes share the sessions, and is not."""
        if self.url is not None and not self.url.startswith(MEMORY):
            return []
        stores = ("lease_store", "inbox", "idempotency_store", "record_store")
        found = [name for name in stores if getattr(self, name) is None]
        return found if self.bus is not None or self.mesh is not None else [*found, "bus"]


@frozen(kw_only=True)
class Parts:
    """What a router works with."""

    node_id: str
    store: SessionStore
    inbox: SessionInbox
    idempotency: IdempotencyStore
    bus: SessionSignalBus
    journal: EventJournal | None
    stores: SessionStores | None
    """Made here from the URL, closed with the router."""
    own_bus: RedisSignalBus | MeshSignalBus | None
    """Made here, opened and closed with the router."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Open what was made here; closed when `stack` is."""
        if self.stores is not None:
            stack.push_async_callback(self.stores.aclose)
        if self.own_bus is not None:
            await stack.enter_async_context(self.own_bus)


def assemble(config: RouterConfig, entropy: Entropy, given: Given, node_id: str | None) -> Parts:
    """Check and complete what is given. Raises ConfigurationError."""
    if config.mode is DeploymentMode.DISTRIBUTED:
        missing = given.missing()
        if missing:
            raise ConfigurationError(
                f"mode DISTRIBUTED needs {', '.join(missing)}, or store= with the URL of a server all nodes share"
            )
        if node_id is None:
            raise ConfigurationError("mode DISTRIBUTED needs node_id: a name that no other node has at the same time")
    if node_id is not None and not node_id.strip():
        raise ConfigurationError("node_id is blank; give this node a name")
    own_bus: RedisSignalBus | MeshSignalBus | None = None
    in_memory = given.url is None or given.url.startswith(MEMORY)
    stores = _stores(config, given, in_memory)
    if given.bus is None:
        if given.mesh is not None:
            own_bus = MeshSignalBus(given.mesh)
        elif given.url is not None and not in_memory:
            own_bus = RedisSignalBus(given.url, entropy=entropy)
    return Parts(
        node_id=node_id or f"node-{entropy.uuid4()}",
        store=NodeSessionStore(
            given.lease_store or stores.leases, given.record_store or stores.records, entropy=entropy
        ),
        inbox=given.inbox or stores.inbox,
        idempotency=given.idempotency_store or stores.idempotency,
        bus=given.bus or own_bus or MemorySignalBus(),
        journal=given.journal or _journal(stores),
        stores=stores,
        own_bus=own_bus,
    )


def stores_at(url: str) -> SessionStores:
    """The stores on the server at `url`, for whoever looks at them beside a router. Close them. Raises
    ConfigurationError, for ``memory://`` too: those are of one router."""
    if url.startswith(MEMORY):
        raise ConfigurationError("memory:// is of one process, and no other one can see its sessions; name a server")
    return open_session_stores(url)


def _journal(stores: SessionStores) -> EventJournal:
    """The journal that goes with the stores: events are kept where the sessions are."""
    if isinstance(stores.backend, RedisBackend):
        return RedisEventJournal(stores.backend)
    return MemoryEventJournal()


def _stores(config: RouterConfig, given: Given, in_memory: bool) -> SessionStores:
    primary, retention = config.idempotency_primary_ttl, config.stale_retention
    if in_memory or given.url is None:
        return memory_session_stores(primary_ttl=primary, stale_retention=retention)
    return open_session_stores(given.url, primary_ttl=primary, stale_retention=retention)
