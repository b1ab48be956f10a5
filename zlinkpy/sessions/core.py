"""What all parts of a router share: its stores, settings, node-local state and nurseries (facts §5, §7).

Only the event loop's thread touches any of it, and between a look and what follows from it there is no checkpoint. The
parts are: submission, forwards, passes, settlement, endings, sweeps, renewal. Each is an object with one concern that
holds the core; none holds another but where one is a step of the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeVar

import trio
from attrs import Factory, define, frozen

from zlinkpy.entropy import Entropy
from zlinkpy.sessions.errors import ReentrantSubmitError, RouterClosedError, SessionBackendError
from zlinkpy.sessions.forward_machine import ForwardRegistry
from zlinkpy.sessions.futures import TurnFuture
from zlinkpy.sessions.gate_machine import Gate, SeatAction, SessionSeat, Ticket
from zlinkpy.sessions.handlers import HandlerRegistry
from zlinkpy.sessions.lease_machine import LeaseRenewal, RenewalState, TouchSlot
from zlinkpy.sessions.metrics import MetricsPort
from zlinkpy.sessions.payloads import MessageEnqueued
from zlinkpy.sessions.spi import (
    EventJournal,
    IdempotencyStore,
    LiveSession,
    SessionInbox,
    SessionSignalBus,
    SessionStore,
)
from zlinkpy.sessions.types import InterruptReason, RouterConfig, SessionLease, SessionSignal, SignalKind
from zlinkpy.telemetry import get_logger

if TYPE_CHECKING:
    from zlinkpy.sessions.event_rail import EventRail
    from zlinkpy.sessions.handle_cache import HandleCache
    from zlinkpy.sessions.renewal import LeaseRenewer

log = get_logger("zlinkpy.sessions")
AnswerT = TypeVar("AnswerT")

PUBLISH_LIMIT: Final = 2.0
"""Seconds a bus gets to take a signal."""
RETURNS_AT_ONCE: Final = 16
"""Leases on their way back to the store."""
RETRY_PAUSE: Final = 1.0
"""Seconds before a store that raised is asked again for messages (SR-433)."""


@define(eq=False)
class HeldLease:
    """A lease of this node with everything that ends with it. `returned` and `lost` are latches (SR-155)."""

    lease: SessionLease
    renewal: LeaseRenewal
    slot: TouchSlot = Factory(TouchSlot)
    returned: bool = False
    lost: bool = False
    _stop: Callable[[], None] | None = None

    @property
    def is_usable(self) -> bool:
        """Whether turns may run under it."""
        return not (self.returned or self.lost) and self.renewal.state is RenewalState.HELD

    def attach(self, stop: Callable[[], None]) -> None:
        """What ends the renewals; at once when the lease is over already (SR-171)."""
        self._stop = stop
        if self.returned or self.lost:
            stop()

    def end(self) -> None:
        """No renewal and no touch from here on."""
        self.renewal.stop()
        self.slot.clear()
        if self._stop is not None:
            self._stop()


@define(eq=False)
class RunningTurn:
    """A pass's session while the pass has it, and its turn while one runs."""

    session: LiveSession
    turn_id: str | None = None
    scope: trio.CancelScope | None = None
    reasons: set[InterruptReason] = Factory(set)
    ring: Callable[[], None] | None = None

    def interrupt(self, reason: InterruptReason, turn_id: str | None = None) -> bool:
        """Interrupt the turn, if one runs and it is the one that is meant (SR-315)."""
        if self.turn_id is None or (turn_id is not None and turn_id != self.turn_id):
            return False
        self.reasons.add(reason)
        try:
            self.session.interrupt(reason, turn_id)
        except Exception:
            log.exception("interrupting a turn raised")
        return True


@frozen
class _Inside:
    """The turn that a task belongs to."""

    session_id: str
    is_over: Callable[[], bool]


_inside: ContextVar[_Inside | None] = ContextVar("zlinkpy_session_turn", default=None)


class RouterCore:
    """See the module."""

    def __init__(
        self,
        *,
        node_id: str,
        config: RouterConfig,
        registry: HandlerRegistry,
        store: SessionStore,
        inbox: SessionInbox,
        idempotency: IdempotencyStore,
        bus: SessionSignalBus,
        journal: EventJournal | None,
        metrics: MetricsPort,
        entropy: Entropy,
    ) -> None:
        self.node_id = node_id
        # Several workers of one host often share a node id (SR-463).
        self.instance = entropy.token(6).hex()
        self.config = config
        self.registry = registry
        self.store = store
        self.inbox = inbox
        self.idempotency = idempotency
        self.bus = bus
        self.journal = journal
        self.metrics = metrics
        self.entropy = entropy
        self.seats: dict[str, SessionSeat[HeldLease]] = {}
        self.turns: dict[str, RunningTurn] = {}
        self.forwards: ForwardRegistry[TurnFuture] = ForwardRegistry()
        self.accepting = True
        self.stopping = False
        """Turns were told to stop: nothing more is started."""
        self.is_closed = False
        """Nothing is left to do; a bus may still deliver."""
        self.busy = 0
        self.idle = trio.Event()
        self.status_seq = 0
        self.rescuing: set[str] = set()
        """Sessions that the orphan scan rang for and no pass has answered yet."""
        self.events: EventRail
        self.turn_nursery: trio.Nursery
        self.forward_nursery: trio.Nursery
        self.teardown_nursery: trio.Nursery
        self.background_nursery: trio.Nursery
        self.teardown_limit = trio.CapacityLimiter(8)
        # A store's time limit counts from the call, so ten thousand calls at once would mostly time out unsent.
        self.return_limit = trio.CapacityLimiter(RETURNS_AT_ONCE)
        self.poll_limit = trio.CapacityLimiter(4)
        self.cache: HandleCache
        self.renewer: LeaseRenewer
        self.ensure_subscribed: Callable[[str], Awaitable[None]]
        self.start_drain: Callable[[SessionSeat[HeldLease]], None]
        self._left: dict[str, trio.Event] = {}
        self._returned = trio.Event()
        self._reservers = 0

    # -- ids

    def reserver_id(self) -> str:
        """A new id for one attempt at an idempotency key (SR-150)."""
        self._reservers += 1
        return f"{self.node_id}/{self.instance}/{self._reservers}"

    def new_id(self) -> str:
        return self.entropy.uuid4()

    # -- what callers may do

    def check_open(self) -> None:
        """Raises RouterClosedError."""
        if not self.accepting:
            raise RouterClosedError("the session router is closing; submit on another node")

    def check_outside(self, session_id: str, what: str) -> None:
        """Raises ReentrantSubmitError inside a turn of the same session: it would wait for itself (SR-139)."""
        inside = _inside.get()
        if inside is not None and inside.session_id == session_id and not inside.is_over():
            raise ReentrantSubmitError(f"a turn cannot {what} its own session {session_id!r}; do it after the turn")

    def enter_turn(self, session_id: str, is_over: Callable[[], bool]) -> None:
        """The current task and those it starts belong to a turn of this session, and to no other one."""
        _inside.set(_Inside(session_id, is_over))

    def begin_work(self) -> None:
        """Something is under way that a graceful close waits for."""
        self.busy += 1

    def end_work(self) -> None:
        self.busy -= 1
        if not self.busy:
            self.idle.set()
            self.idle = trio.Event()

    async def wait_idle(self) -> None:
        """Wait until nothing is under way."""
        while self.busy:
            await self.idle.wait()

    # -- seats

    def seat(self, session_id: str) -> SessionSeat[HeldLease]:
        """The session's state here, made when it is the first time."""
        found = self.seats.get(session_id)
        if found is None:
            found = self.seats[session_id] = SessionSeat(session_id)
        return found

    def usable(self, seat: SessionSeat[HeldLease]) -> HeldLease | None:
        """The lease a new turn may run under; a lost one is not (SR-156)."""
        return seat.lease if seat.lease is not None and seat.lease.is_usable else None

    def install(self, seat: SessionSeat[HeldLease], lease: SessionLease, sent_at: float) -> HeldLease:
        """Keep a lease that was just won, and renew it from now on."""
        config = self.config
        held = HeldLease(lease, LeaseRenewal(sent_at, interval=config.lock_extend_interval, duration=config.lock_lease))
        seat.install(held)
        self.renewer.start(held)
        return held

    async def take_gate(self, seat: SessionSeat[HeldLease], kind: Gate, deadline: float) -> bool:
        """Wait for the gate until `deadline`; it is handed over before anything that is rung for (SR-441)."""
        if seat.enter(kind):
            return True
        ticket = Ticket(kind)
        seat.expected.append(ticket)
        try:
            with trio.move_on_at(deadline):
                while not ticket.granted:
                    await self._left.setdefault(seat.session_id, trio.Event()).wait()
        except trio.Cancelled:
            if ticket.granted:
                self.leave(seat)
            raise
        finally:
            if not ticket.granted:
                seat.expected.remove(ticket)
        return ticket.granted

    def leave(self, seat: SessionSeat[HeldLease]) -> None:
        """Free the gate, and do what was asked for meanwhile."""
        has_handle = self.cache.peek(seat.session_id) is not None
        actions = seat.leave(trio.current_time(), has_handle=has_handle, accepting=self.accepting)
        event = self._left.pop(seat.session_id, None)
        if event is not None:
            event.set()
        self.perform(seat, actions)

    def perform(self, seat: SessionSeat[HeldLease], actions: list[SeatAction]) -> None:
        """Do what a seat says. Never waits, never raises."""
        if self.is_closed:
            # A submit that was under way when the router closed undoes what it did; nothing follows from it.
            actions = []
        for action in actions:
            match action:
                case SeatAction.DRAIN:
                    self.start_drain(seat)
                case SeatAction.WAKE:
                    self.background_nursery.start_soon(self._wake, seat)
                case SeatAction.NOTIFY:
                    turn = self.turns.get(seat.session_id)
                    if turn is not None and turn.ring is not None:
                        turn.ring()
                case SeatAction.YIELD:
                    self.yield_session(seat)
                case SeatAction.EVICT:
                    self._give_up(seat)
                case SeatAction.RETURN:
                    self.teardown_nursery.start_soon(self._return_when_idle, seat)
                case SeatAction.RELAY:
                    self.background_nursery.start_soon(self.ring_peers, seat.session_id)
        if seat.is_blank and self.seats.get(seat.session_id) is seat:
            del self.seats[seat.session_id]

    def ring(self, session_id: str) -> None:
        """Messages may be waiting for the session."""
        seat = self.seat(session_id)
        self.perform(seat, seat.ring(trio.current_time(), accepting=self.accepting))

    def yield_session(self, seat: SessionSeat[HeldLease]) -> None:
        """Hand the session over as soon as its turn is through; what waits stays for the next holder (SR-305, 306)."""
        self.perform(seat, seat.yield_asked())

    def _give_up(self, seat: SessionSeat[HeldLease]) -> None:
        turn = self.turns.get(seat.session_id)
        if turn is not None:
            turn.interrupt(InterruptReason.SESSION_RELEASED)
        if self.cache.evict(seat.session_id) is None:
            # No handle whose end would tell that the lease can go.
            self.perform(seat, seat.handle_closed())

    async def _wake(self, seat: SessionSeat[HeldLease]) -> None:
        await trio.sleep_until(seat.wake_at())
        if seat.doorbell and seat.gate is None and self.seats.get(seat.session_id) is seat:
            self.perform(seat, seat.ring(trio.current_time(), accepting=self.accepting))

    # -- leases going back

    def handle_closed(self, session_id: str) -> None:
        """The close listener: the handle is closed, its lease goes back as soon as nothing goes on (SR-264)."""
        seat = self.seats.get(session_id)
        if seat is not None and self.cache.peek(session_id) is None:
            self.perform(seat, seat.handle_closed())

    async def _return_when_idle(self, seat: SessionSeat[HeldLease]) -> None:
        try:
            if self.cache.peek(seat.session_id) is None:
                await self.return_lease(seat)
        finally:
            self.leave(seat)

    async def return_lease(self, seat: SessionSeat[HeldLease], held: HeldLease | None = None) -> None:
        """Give a lease back, once, whoever asks (SR-155); without `held` the one that is installed."""
        held = held or seat.lease
        if held is None or held.returned:
            return
        held.returned = True
        held.end()
        if seat.lease is held:
            seat.return_begun()
        else:
            seat.returning += 1
        with trio.CancelScope(shield=True), trio.move_on_after(self.config.lock_lease):
            try:
                async with self.return_limit:
                    await self.store.release(held.lease)
            except SessionBackendError as error:
                log.warning("the lease of session %r was not given back and will expire: %s", seat.session_id, error)
            except Exception:
                log.exception("giving the lease of session %r back raised", seat.session_id)
        self.perform(seat, seat.return_done(trio.current_time(), accepting=self.accepting))
        self._returned.set()
        self._returned = trio.Event()

    async def wait_returned(self) -> None:
        """Wait until the store answered for every lease that is on its way back."""
        while any(seat.returning for seat in self.seats.values()):
            await self._returned.wait()

    def lease_lost(self, held: HeldLease) -> None:
        """A renewal said so, or none came through in time. Synchronous and quick; once per lease (SR-166, SR-394)."""
        if held.lost or held.returned:
            return
        held.lost = True
        held.end()
        self.metrics.on_lease_extend_failed()
        session_id = held.lease.session_id
        log.warning("the lease of session %r was lost", session_id)
        turn = self.turns.get(session_id)
        if turn is not None:
            turn.interrupt(InterruptReason.LEASE_LOST)
        elif (entry := self.cache.peek(session_id)) is not None:
            entry.handle.interrupt(InterruptReason.LEASE_LOST)
        self.teardown_nursery.start_soon(self._tear_down, self.seat(session_id), held)

    async def _tear_down(self, seat: SessionSeat[HeldLease], held: HeldLease) -> None:
        self.cache.evict(seat.session_id)
        await self.return_lease(seat, held)

    # -- signals

    def signal(self, session_id: str, kind: SignalKind, payload: Mapping[str, object] | None = None) -> SessionSignal:
        """A signal of this router."""
        return SessionSignal(session_id, kind, self.node_id, payload or {}, self.instance)

    async def publish(self, signal: SessionSignal) -> bool:
        """Publish, and say in the log when that failed: what it says is found out in another way. Takes 2 s at most."""
        with trio.move_on_after(PUBLISH_LIMIT):
            try:
                await self.bus.publish(signal)
            except SessionBackendError as error:
                log.warning("%s of session %r was not published: %s", signal.kind.value, signal.session_id, error)
                return False
            except Exception:
                log.exception("publishing %s of session %r raised", signal.kind.value, signal.session_id)
                return False
            return True
        log.warning("the bus did not take %s of session %r in time", signal.kind.value, signal.session_id)
        return False

    async def ring_peers(self, session_id: str, inbox_id: str = "", turn_id: str | None = None) -> None:
        """Publish the doorbell."""
        payload = MessageEnqueued(inbox_id, turn_id).payload()
        await self.publish(self.signal(session_id, SignalKind.MESSAGE_ENQUEUED, payload))


async def seen_to_its_end(call: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
    """One store call whose answer is needed to know what to undo: a cancelled caller waits for it. Stores answer or
    raise in bounded time."""
    with trio.CancelScope(shield=True):
        return await call()
    raise AssertionError("a shield without a deadline ends with its block")
