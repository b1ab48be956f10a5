"""A router that holds nothing: it submits, listens and asks, and whoever holds the session runs the turns.

For processes that come and go, such as a command line. It is a router like any other over a lease store through which
nothing can be won, so every submit is forwarded, and no pass ever takes a message out of an inbox. A delete is the one
thing that needs a lease; it gets one for as long as it takes.

It does not look for lost holders or orphans either: what is too old is a matter of the cluster's settings, which a
passer-by does not know.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import trio
from attrs import define, evolve, frozen

from zlinkpy.entropy import Entropy, SystemEntropy
from zlinkpy.sessions.assembly import stores_at
from zlinkpy.sessions.errors import UnknownHandlerError
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.spi import LiveSession, SessionInbox, SessionLeaseStore, SessionRecordStore
from zlinkpy.sessions.types import LeaseHolder, RouterConfig, SessionLease, SessionRecordView

_NEVER: Final = 10 * 365 * 86_400.0
_NOBODY: Final = LeaseHolder("", 0, 0.0)


class BystanderLeases:
    """A lease store through which nothing is won, but inside `allowing`."""

    def __init__(self, leases: SessionLeaseStore) -> None:
        self._leases = leases
        self._allowed: set[str] = set()

    @contextmanager
    def allowing(self, session_id: str) -> Iterator[None]:
        """The session's lease can be won while the block runs."""
        self._allowed.add(session_id)
        try:
            yield
        finally:
            self._allowed.discard(session_id)

    async def try_acquire(
        self, session_id: str, holder_id: str, duration: float, attempt: str | None = None
    ) -> SessionLease | LeaseHolder:
        """Who holds it, or nobody by the name of ``""``."""
        if session_id in self._allowed:
            return await self._leases.try_acquire(session_id, holder_id, duration, attempt)
        await trio.lowlevel.checkpoint()
        return _NOBODY

    async def find_holder(self, session_id: str) -> LeaseHolder | None:
        """Who holds it now."""
        return await self._leases.find_holder(session_id)

    async def extend(self, lease: SessionLease, duration: float) -> bool:
        """As the store says; only a delete has something to extend."""
        return await self._leases.extend(lease, duration)

    async def release(self, lease: SessionLease) -> None:
        """Give it back."""
        await self._leases.release(lease)


@frozen
class SessionFacts:
    """What the stores say of a session now; instants apart from each other by a few milliseconds."""

    holder: LeaseHolder | None
    record: SessionRecordView | None
    has_waiting: bool

    @property
    def is_known(self) -> bool:
        """False when no store has anything of it."""
        return self.holder is not None or self.record is not None or self.has_waiting


@define(eq=False)
class Bystander:
    """A running one; `router` for everything but `delete`."""

    router: SessionRouter
    _leases: BystanderLeases
    _records: SessionRecordStore
    _inbox: SessionInbox

    async def look(self, session_id: str) -> SessionFacts:
        """Ask the stores. Raises SessionBackendError."""
        return SessionFacts(
            await self._leases.find_holder(session_id),
            await self._records.load(session_id),
            not await self._inbox.is_empty(session_id),
        )

    async def delete(self, session_id: str) -> None:
        """`SessionRouter.delete`."""
        with self._leases.allowing(session_id):
            await self.router.delete(session_id)


@asynccontextmanager
async def open_bystander(
    url: str, *, name: str = "bystander", config: RouterConfig | None = None, entropy: Entropy | None = None
) -> AsyncIterator[Bystander]:
    """A router that holds nothing, for the time of the block.

    Args:
        url: the server that the cluster's routers use.
        name: beginning of its node id.
        config: settings that have to do with waiting; the sweeps are off whatever it says.
        entropy: where ids come from.

    Raises:
        ConfigurationError: A URL that cannot work, ``memory://`` among them.
    """
    entropy = entropy or SystemEntropy()
    stores = stores_at(url)
    leases = BystanderLeases(stores.leases)
    router = SessionRouter(
        session_opener=_opened,
        store=url,
        lease_store=leases,
        record_store=stores.records,
        inbox=stores.inbox,
        idempotency_store=stores.idempotency,
        node_id=f"{name}-{entropy.token(6).hex()}",
        config=evolve(config or RouterConfig(), holder_loss_sweep_interval=_NEVER, orphan_scan_interval=_NEVER),
        entropy=entropy,
    )
    try:
        async with router:
            yield Bystander(router, leases, stores.records, stores.inbox)
    finally:
        with trio.CancelScope(shield=True):
            await stores.aclose()


async def _opened(
    session_id: str, handler_id: str, options: Mapping[str, Any], open_attributes: Mapping[str, Any]
) -> LiveSession:
    """Never called: without a lease nothing is opened."""
    await trio.lowlevel.checkpoint()
    raise UnknownHandlerError(f"this router runs no turns, so not those of {handler_id} either")
