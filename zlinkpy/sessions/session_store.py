"""A node's view of leases and records: who holds what here, and writes that only a holder can make.

The order inside `claim` is what makes a distributed transaction unnecessary: elect, then check the binding, then
provision. Whoever loses the election has not touched the record, wherever that lies (SR-059).

What this node holds is remembered here, so that a fenced write needs no token passed through the handler's calls. The
memory is read and written by the event loop and by the renewal threads, always under a lock that is held for a few
dict operations only. Forgetting comes first everywhere: from the moment a lease counts as lost or returned, writes
under it are refused here without asking anybody (SR-054, SR-055).
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import trio

from zlinkpy.entropy import Entropy, SystemEntropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.sessions.errors import SessionBackendError, SessionLeaseError, SessionNotHeldError, SessionRecordError
from zlinkpy.sessions.spi import BlockingLeases, DedicatedLeases, SessionLeaseStore, SessionRecordStore
from zlinkpy.sessions.types import (
    Acquired,
    ClaimResult,
    HandlerConflict,
    HeldElsewhere,
    LeaseHolder,
    SessionLease,
    SessionRecordView,
    Write,
)

T = TypeVar("T")
_GIVE_BACK_SECONDS: Final = 3.0


class NodeSessionStore:
    """`SessionStore` over a lease store and a record store; one per router.

    Args:
        leases: shared by all nodes.
        records: shared by all nodes; may be another system.
        entropy: where attempt ids come from.
    """

    def __init__(
        self, leases: SessionLeaseStore, records: SessionRecordStore, *, entropy: Entropy | None = None
    ) -> None:
        self._leases = leases
        self._record_store = records
        self._entropy = entropy or SystemEntropy()
        self._lock = threading.Lock()
        self._held: dict[str, SessionLease] = {}
        self._attached = False
        self._fenced = _HeldRecords(self, records)

    def attach(self) -> None:
        """A router takes this store. Raises ConfigurationError when one has it already (SR-011)."""
        if self._attached:
            raise ConfigurationError("one store per router: give each router a session store of its own")
        self._attached = True

    async def claim(self, session_id: str, handler_ref: str, node_id: str, duration: float) -> ClaimResult:
        """Elect, validate, provision (SR-042..046).

        Cancelled or failed at any point, it holds nothing afterwards; an election whose answer stays lost is the
        exception: its lease, if it was granted, ends by itself.

        Raises:
            SessionLeaseError, SessionRecordError: A store did not answer.
        """
        elected = await self._elect(session_id, node_id, duration)
        if isinstance(elected, LeaseHolder):
            return HeldElsewhere(elected)
        record = await self._provision_elected(elected, handler_ref)
        if isinstance(record, LeaseHolder):
            return HeldElsewhere(record)
        if record.handler_ref != handler_ref:
            await self._give_back(elected)
            return HandlerConflict(str(record.handler_ref), handler_ref)
        return Acquired(elected, record)

    async def acquire(self, session_id: str, node_id: str, duration: float) -> SessionLease | None:
        """Elect and provision, without binding: for a drain or a delete (SR-047). None: somebody holds it."""
        elected = await self._elect(session_id, node_id, duration)
        if isinstance(elected, LeaseHolder):
            return None
        record = await self._provision_elected(elected, None)
        return None if isinstance(record, LeaseHolder) else elected

    async def settle_binding(self, lease: SessionLease, candidate: str) -> str:
        """Bind the session unless it is bound; the ref that is there.

        Raises:
            SessionNotHeldError: `lease` is not what this node holds, or another node holds the session.
        """
        if self.held(lease.session_id) != lease:
            raise not_held()
        record = await self._provision(lease, candidate)
        if record is None:
            self.forget(lease)
            raise not_held()
        return str(record.handler_ref)

    async def find_holder(self, session_id: str) -> LeaseHolder | None:
        """Who holds the session now."""
        return await self._leases.find_holder(session_id)

    async def renew(self, lease: SessionLease, duration: float) -> bool:
        """Extend; False: lost, and forgotten here before this returns (SR-054)."""
        if await self._leases.extend(lease, duration):
            return True
        self.forget(lease)
        return False

    def renewer(self, *, timeout: float) -> NodeRenewer | None:
        """`renew` for a plain thread, with a connection of its own whose operations take at most `timeout` seconds;
        None where the lease store is in memory.
        """
        if not isinstance(self._leases, DedicatedLeases):
            return None
        return NodeRenewer(self, self._leases.dedicated(timeout=timeout))

    async def release(self, lease: SessionLease) -> None:
        """Forget it here, then give it back (SR-055)."""
        self.forget(lease)
        await self._leases.release(lease)

    async def load(self, session_id: str) -> SessionRecordView | None:
        """The record, read-only."""
        return await self._record_store.load(session_id)

    def records(self) -> _HeldRecords:
        """Writes under the leases held here."""
        return self._fenced

    def held(self, session_id: str) -> SessionLease | None:
        """The lease this node holds, as far as it knows. From any thread."""
        with self._lock:
            return self._held.get(session_id)

    def forget(self, lease: SessionLease) -> None:
        """This lease is not ours any more; a newer one of the session stays (SR-057). From any thread."""
        with self._lock:
            held = self._held.get(lease.session_id)
            if held is not None and held.token == lease.token:
                del self._held[lease.session_id]

    async def _elect(self, session_id: str, node_id: str, duration: float) -> SessionLease | LeaseHolder:
        attempt = self._entropy.uuid4()
        await trio.lowlevel.checkpoint_if_cancelled()
        # Not cut short, so that a lease that was granted is known; the store bounds the call.
        with trio.CancelScope(shield=True):
            elected = await _once_more(lambda: self._leases.try_acquire(session_id, node_id, duration, attempt))
        if isinstance(elected, LeaseHolder):
            return elected
        with self._lock:
            self._held[session_id] = elected
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            await self._give_back(elected)
            raise
        return elected

    async def _provision_elected(self, lease: SessionLease, handler_ref: str | None) -> SessionRecordView | LeaseHolder:
        """The record under a new lease; who holds it when the lease was superseded meanwhile. Or nothing is held."""
        try:
            record = await self._provision(lease, handler_ref)
            if record is not None:
                return record
            holder = await self._leases.find_holder(lease.session_id)
        except BaseException:
            await self._give_back(lease)
            raise
        await self._give_back(lease)
        if holder is None or holder.token == lease.token:
            raise SessionRecordError(
                "the record's fence is ahead of the tokens of the lease store: it lost its data, its clock is behind",
                applied="no",
            )
        return holder

    async def _provision(self, lease: SessionLease, handler_ref: str | None) -> SessionRecordView | None:
        record = await _once_more(lambda: self._record_store.provision(lease.session_id, handler_ref, lease.token))
        return None if isinstance(record, Write) else record

    async def _give_back(self, lease: SessionLease) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _GIVE_BACK_SECONDS):
            await self.release(lease)


class _HeldRecords:
    """`FencedRecords`: checks here first, then with the lease store, then lets the record store judge the token."""

    def __init__(self, store: NodeSessionStore, records: SessionRecordStore) -> None:
        self._store = store
        self._records = records

    async def commit(self, session_id: str, state: bytes | None, attrs: Mapping[str, Any], *, turn_id: str) -> Write:
        """OK, or ABSENT when the record was deleted (SR-058).

        Raises:
            SessionNotHeldError: This node does not provably hold the session (SR-051..054).
            SessionLeaseError, SessionRecordError: A store did not answer; after ``applied="unknown"`` the same turn
                may commit again (SR-430).
        """
        return await self._write(
            session_id, lambda lease: self._records.commit(session_id, state, attrs, lease.token, turn_id)
        )

    async def delete(self, session_id: str) -> Write:
        """OK, or ABSENT. Raises as `commit`."""
        return await self._write(session_id, lambda lease: self._records.delete(session_id, lease.token))

    async def _write(self, session_id: str, write: Callable[[SessionLease], Awaitable[Write]]) -> Write:
        lease = self._store.held(session_id)
        if lease is None:
            await trio.lowlevel.checkpoint()
            raise not_held()
        try:
            holder = await self._store.find_holder(session_id)
        except SessionLeaseError as error:
            raise SessionLeaseError(error.message, applied="no", cause=error.cause) from error
        if holder is None or holder.token != lease.token:
            self._store.forget(lease)
            raise not_held()
        if self._store.held(session_id) != lease:  # given back while the store was asked
            raise not_held()
        answer = await write(lease)
        if answer is Write.FENCED:
            self._store.forget(lease)
            raise not_held()
        return answer


class NodeRenewer:
    """`BlockingRenewer`: one connection, for one plain thread at a time."""

    def __init__(self, store: NodeSessionStore, leases: BlockingLeases) -> None:
        self._store = store
        self._leases = leases

    def renew_all(self, leases: Sequence[SessionLease], duration: float) -> list[bool | SessionLeaseError]:
        """One round trip, one answer for each lease, in order; a False one was forgotten before this returns."""
        answers = self._leases.extend_all([(lease, duration) for lease in leases])
        for lease, answer in zip(leases, answers, strict=True):
            if answer is False:
                self._store.forget(lease)
        return answers

    def close(self) -> None:
        """Cut the connection; a running call fails."""
        self._leases.close()


async def _once_more(call: Callable[[], Awaitable[T]]) -> T:
    """The call, and the same call again when its answer was lost."""
    try:
        return await call()
    except SessionBackendError as error:
        if error.applied == "no":
            raise
    return await call()


def not_held() -> SessionNotHeldError:
    """A new error for a write without a lease."""
    return SessionNotHeldError("this node does not hold the session: nothing was written")
