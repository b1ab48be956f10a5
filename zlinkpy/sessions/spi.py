"""What the session router asks of the systems around it: stores, signal bus, live sessions, journal.

Invariants of every implementation:

* Each call of a store is one atomic step on the store's clock; two calls never need to happen together.
* Every error is the family's own (`zlinkpy.sessions.errors`) and carries `applied`: ``"no"`` only when the call surely
  had no effect. A lost answer is ``"unknown"``, and nothing below the router repeats a call.
* A call that would do harm when repeated takes an id (`attempt`, `turn_id`, `delivery_id`, `batch_id`): the *same*
  attempt may be repeated and gets the first answer again, another attempt may not.
* Ids are 1 to 512 bytes of UTF-8, whatever characters they are made of; a bad one is a `ValueError` before any I/O.

Leases, records, inboxes and idempotency entries are shared by all nodes; a `SessionStore` belongs to one router.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import trio
from attrs import frozen

from zlinkpy.sessions.errors import IdempotencyStoreError, SessionLeaseError
from zlinkpy.sessions.types import (
    ClaimResult,
    CollectedBatch,
    Existing,
    IdempotencyEntry,
    InboundMessage,
    Inserted,
    InterruptReason,
    LeaseHolder,
    LiveSessionStatus,
    MarkDone,
    Principal,
    Priority,
    SessionLease,
    SessionRecordView,
    SessionSignal,
    TurnInput,
    TurnResult,
    Write,
)


class SessionLeaseStore(Protocol):
    """Who may run a session's turns. Errors: SessionLeaseError."""

    async def try_acquire(
        self, session_id: str, holder_id: str, duration: float, attempt: str | None = None
    ) -> SessionLease | LeaseHolder:
        """Take the session for `duration` seconds if nobody holds it; else who does (SR-029..034).

        Only expiry decides, never who asks: the holder itself is refused too. The token is greater than every earlier
        one of the session, over releases, expiries and restarts. The same `attempt` again while it holds gets the
        same lease (SR-422).
        """
        ...

    async def find_holder(self, session_id: str) -> LeaseHolder | None:
        """Who holds the session now; None when the lease lapsed or was given back (SR-035)."""
        ...

    async def extend(self, lease: SessionLease, duration: float) -> bool:
        """Let it end `duration` seconds from now. False once it was superseded or lapsed (SR-036..038)."""
        ...

    async def release(self, lease: SessionLease) -> None:
        """Give it back. A lease that is no longer current is ignored; a failure is logged, not raised (SR-039, 040)."""
        ...


class BlockingLeases(Protocol):
    """A handle with a connection of its own, for one plain thread: what lease renewal writes through."""

    def extend_all(self, leases: Sequence[tuple[SessionLease, float]]) -> list[bool | SessionLeaseError]:
        """Extend many in one round trip; each gets its own answer. Raises nothing."""
        ...

    def close(self) -> None:
        """Cut the connection. Idempotent, from any thread."""
        ...


@runtime_checkable
class DedicatedLeases(Protocol):
    """A lease store that hands out `BlockingLeases`; in-memory ones do not, renewal then runs on the event loop."""

    def dedicated(self, *, timeout: float) -> BlockingLeases:
        """A new handle whose socket operations take at most `timeout` seconds."""
        ...


class SessionRecordStore(Protocol):
    """What is kept of a session between turns. Errors: SessionRecordError."""

    async def provision(
        self, session_id: str, handler_ref: str | None = None, fence: int = 0
    ) -> SessionRecordView | Write:
        """Create the record if it is absent and bind it if it is unbound; the record as it is then (SR-048).

        Raises the record's fence to `fence`, which shuts every older holder out; `Write.FENCED`, and no effect, when
        the fence is higher already (SR-431).
        """
        ...

    async def load(self, session_id: str) -> SessionRecordView | None:
        """The record, read-only, without any lease (SR-049)."""
        ...

    async def commit(
        self, session_id: str, state: bytes | None, attrs: Mapping[str, Any], fence: int, turn_id: str
    ) -> Write:
        """Write a turn's state. ABSENT does nothing (SR-058); FENCED does nothing (SR-053).

        The turn that wrote last may repeat its commit under the same token: OK, nothing changes (SR-430).
        """
        ...

    async def delete(self, session_id: str, fence: int) -> Write:
        """Remove the record. ABSENT when there is none.

        Calling it directly is unsupported: a turn under way, its handle and everybody who waits would live on. Use
        `SessionRouter.delete` (SR-392).
        """
        ...


class FencedRecords(Protocol):
    """Record writes under the lease that this node holds.

    Every call raises SessionNotHeldError, without a back-end call, when this node does not hold the session, and after
    one when it turns out that another does (SR-051, SR-052).
    """

    async def commit(self, session_id: str, state: bytes | None, attrs: Mapping[str, Any], *, turn_id: str) -> Write:
        """OK or ABSENT; FENCED is raised as SessionNotHeldError."""
        ...

    async def delete(self, session_id: str) -> Write:
        """OK or ABSENT; FENCED is raised as SessionNotHeldError."""
        ...


class BlockingRenewer(Protocol):
    """`SessionStore.renew` for a plain thread, many leases in one round trip."""

    def renew_all(self, leases: Sequence[SessionLease], duration: float) -> list[bool | SessionLeaseError]:
        """One answer for each lease, in order; a False one was forgotten here before this returns."""
        ...

    def close(self) -> None:
        """Cut the connection. Idempotent, from any thread."""
        ...


class SessionStore(Protocol):
    """A node's view of leases and records together: it remembers what this node holds. One per router (SR-011)."""

    def attach(self) -> None:
        """The router takes the store. Raises ConfigurationError when another router has it."""
        ...

    async def claim(self, session_id: str, handler_ref: str, node_id: str, duration: float) -> ClaimResult:
        """Elect, then check the binding, then provision, in this order (SR-042..046).

        A lost answer of the election is asked for once more under the same attempt id. Cancelled or failed, it gives
        the lease back.
        """
        ...

    async def acquire(self, session_id: str, node_id: str, duration: float) -> SessionLease | None:
        """Elect and provision without binding; None when somebody holds it (SR-047)."""
        ...

    async def settle_binding(self, lease: SessionLease, candidate: str) -> str:
        """Bind the session to `candidate` unless it is bound; the ref that is there."""
        ...

    async def find_holder(self, session_id: str) -> LeaseHolder | None:
        """As the lease store's."""
        ...

    async def renew(self, lease: SessionLease, duration: float) -> bool:
        """Extend. False: lost, and forgotten here before this returns (SR-054)."""
        ...

    def renewer(self, *, timeout: float) -> BlockingRenewer | None:
        """A renewer with a connection of its own; None when the lease store has no dedicated handles."""
        ...

    async def release(self, lease: SessionLease) -> None:
        """Forget it here, then give it back (SR-055). A newer lease of the session stays (SR-057)."""
        ...

    async def load(self, session_id: str) -> SessionRecordView | None:
        """As the record store's."""
        ...

    def records(self) -> FencedRecords:
        """Writes under the leases held here."""
        ...


class SessionInbox(Protocol):
    """Messages waiting for the holder of their session. Errors: SessionInboxError. Equal messages are all kept."""

    async def deliver(self, message: InboundMessage, delivery_id: str | None = None) -> str:
        """Queue it; its inbox id. The same delivery id within 600 s: the first inbox id, no second entry (SR-424)."""
        ...

    async def collect(self, session_id: str, max_priority: Priority, batch_id: str | None = None) -> CollectedBatch:
        """Take out, in one step, up to 1,024 messages of all tiers up to `max_priority`, tier by tier in order of
        arrival (SR-061..064, SR-078). An entry that cannot be decoded is reported, never raised (SR-066).

        The same batch id within 300 s: the same batch (SR-426).
        """
        ...

    async def is_empty(self, session_id: str) -> bool:
        """True when nothing waits."""
        ...

    async def purge(self, session_id: str) -> list[str]:
        """Remove everything; the idempotency keys of what was removed."""
        ...

    async def withdraw(self, session_id: str, inbox_id: str) -> bool:
        """Remove one message; False when somebody collected it."""
        ...

    async def scan_pending(
        self, older_than: float, limit: int, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        """Sessions whose oldest message has waited for more than `older_than` seconds, oldest first (SR-406).

        At most `limit`; pass the cursor to go on, None ends.
        """
        ...


class Subscription(Protocol):
    """A handler's place on the bus."""

    async def aclose(self) -> None:
        """End it. Idempotent."""
        ...


SignalHandler: TypeAlias = Callable[[SessionSignal], None]
"""Synchronous and quick; whatever it raises is logged and touches no other handler."""


class SessionSignalBus(Protocol):
    """Signals between routers: at least once while connected, in no order. Errors: SessionSignalError."""

    async def subscribe(self, session_id: str, handler: SignalHandler, events: bool = True) -> Subscription:
        """Have `handler` called for the session's signals; `events` False: control kinds only."""
        ...

    async def publish(self, signal: SessionSignal) -> None:
        """Returns when the bus has taken it; raises within 2 s."""
        ...

    async def publish_all(self, signals: Sequence[SessionSignal]) -> None:
        """In list order per kind; one that cannot be sent is skipped and raised at the end."""
        ...


class IdempotencyStore(Protocol):
    """What became of an idempotency key. Errors: IdempotencyStoreError, never a False instead (SR-108)."""

    async def put_if_absent(
        self, key: str, session_id: str, input_hash: str, holder_id: str, ttl: float
    ) -> Inserted | Existing:
        """Reserve the key for `holder_id`, which becomes its epoch (SR-094)."""
        ...

    async def find(self, key: str) -> IdempotencyEntry | None:
        """The entry; a held one past its TTL is flagged stale, a holderless one past it is absent (SR-103, SR-104)."""
        ...

    async def touch(self, key: str, holder_id: str) -> bool:
        """The holder is alive (SR-095)."""
        ...

    async def release_holder(self, key: str, holder_id: str, ttl: float) -> bool:
        """The holder hands the key over to whoever collects its message (SR-096)."""
        ...

    async def acquire_holder(self, key: str, holder_id: str, ttl: float) -> bool:
        """Take over a holderless reservation (SR-097..099)."""
        ...

    async def discard_reservation(self, key: str) -> bool:
        """Free a holderless reservation (SR-100)."""
        ...

    async def compare_and_reset(self, key: str, holder_id: str) -> bool:
        """Free a key in flight that `holder_id` holds; one caller wins (SR-101)."""
        ...

    async def mark_done(self, key: str, result: TurnResult, holder_id: str, allow_unheld: bool = False) -> MarkDone:
        """Keep the result, if `holder_id` holds the key, or nobody does and `allow_unheld` (SR-402, SR-403)."""
        ...

    async def find_stale_in_flight(self, older_than: float, limit: int) -> list[IdempotencyEntry]:
        """Held entries in flight that nobody touched for more than `older_than` seconds, oldest first (SR-102)."""
        ...


class BlockingTouches(Protocol):
    """`IdempotencyStore.touch` for a plain thread, many keys in one round trip."""

    def touch_all(self, pairs: Sequence[tuple[str, str]]) -> list[bool | IdempotencyStoreError]:
        """One answer for each (key, holder id), in order. Raises nothing."""
        ...

    def close(self) -> None:
        """Cut the connection. Idempotent, from any thread."""
        ...


@runtime_checkable
class DedicatedTouches(Protocol):
    """An idempotency store that hands out `BlockingTouches`."""

    def dedicated(self, *, timeout: float) -> BlockingTouches:
        """A new handle whose socket operations take at most `timeout` seconds."""
        ...


class EventSink(Protocol):
    """Where a turn's events go."""

    def emit(self, event: Any) -> None:
        """Take one event; never waits."""
        ...


class TurnContext(Protocol):
    """One turn, as its handler sees it.

    `state` is the record's as just read; what is there when the turn returns is committed. `nursery` runs child tasks,
    joined before the turn ends.
    """

    session_id: str
    turn_id: str
    input: TurnInput
    submit_options: Mapping[str, Any]
    initiator: Principal | None
    state: bytes | None
    version: int
    attrs: dict[str, Any]
    nursery: trio.Nursery

    def emit(self, event: Any) -> None:
        """Send one event to the session's subscribers; never waits."""
        ...


class LiveSession(Protocol):
    """A node-local handle on a session, made by its handler."""

    accepts_offers: bool
    """Asked before NOW messages are collected for the running turn."""

    async def run_turn(self, ctx: TurnContext) -> TurnResult:
        """One turn. What it returns is the outcome; raising is a failed turn."""
        ...

    def interrupt(self, reason: InterruptReason, turn_id: str | None = None) -> None:
        """Stop the running turn; no-op when idle or when `turn_id` is another turn."""
        ...

    def offer(self, input: TurnInput) -> bool:
        """Give the running turn one more input; False when it does not take it."""
        ...

    def take_unconsumed(self) -> list[TurnInput]:
        """Offered inputs that the turn did not come to."""
        ...

    def status(self) -> LiveSessionStatus:
        """For people."""
        ...

    async def aclose(self) -> None:
        """The handle leaves this node."""
        ...


@frozen
class JournalFrame:
    """One event of a turn as kept for replay: its number in the turn, its grade, its encoded payload."""

    seq: int
    grade: int
    payload: bytes


class EventJournal(Protocol):
    """A turn's events, for subscribers that come late (SR-397..401). Errors: SessionBackendError."""

    async def append(self, session_id: str, turn_id: str, frames: Sequence[JournalFrame]) -> None:
        """Add frames in order of their numbers; the turn is the session's current one from then on.

        What is too much goes by grade, oldest first; structural frames stay (SR-399). Frames that are there already
        are left alone.
        """
        ...

    async def read(self, session_id: str, turn_id: str, from_seq: int) -> list[JournalFrame]:
        """The frames kept from `from_seq` on, in order."""
        ...

    async def current(self, session_id: str) -> str | None:
        """The turn that was appended to last; None once it is finished, or nothing is known."""
        ...

    async def finish(self, session_id: str, turn_id: str) -> None:
        """The turn is over: its frames are kept for ten minutes more (SR-399)."""
        ...
