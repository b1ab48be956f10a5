"""A pass: everything that runs in one session on one node between taking the gate and leaving it (facts §6; SR §11).

A submit opens a pass with its own message; a doorbell opens one without. Either runs messages until the inbox is empty,
one turn after the other, by the rules of `drain_machine`.

    doorbell pass, step              when                                     next
    look at the record               bound to a ref not registered here      leave, drop the mark (SR-458)
    lease                            held here                               use it
                                     not held, inbox empty                   leave, drop the mark
                                     refused by a peer                       leave, drop the mark: the peer heard it too
                                     refused by this node's own, on its way  leave, keep the mark: its return rings
                                     raised                                  leave, keep the mark, ring again after 1 s
    collect                          empty                                   leave; without handle the lease goes back
    bind, open the handle, drain

While a turn runs, rings are answered by an injection: NOW messages are collected and offered to the turn. It is part of
the pass: the pass does not go on between its collect and its offer (SR-446).

Leaving is shielded and has one order: settle what is left, unpin (closes an evicted handle), give the lease back if
nobody needs it, free the gate, which rings again if there is a mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import trio
from attrs import evolve

from zlinkpy.execution.failures import is_failure
from zlinkpy.sessions.cache_machine import CacheEntry
from zlinkpy.sessions.core import RETRY_PAUSE, HeldLease, RouterCore, RunningTurn, log
from zlinkpy.sessions.drain_machine import DrainQueue, DrainStep
from zlinkpy.sessions.errors import (
    ConflictingHandlerError,
    IdempotencyStoreError,
    NotHolderError,
    RouterClosedError,
    SessionBackendError,
    SessionError,
    SessionInboxError,
    SessionNotHeldError,
    TurnFailedError,
)
from zlinkpy.sessions.events import RejectedAt
from zlinkpy.sessions.forwarding import Forwards, Waiting
from zlinkpy.sessions.gate_machine import YIELD_QUIET, SessionSeat
from zlinkpy.sessions.payloads import TurnFailure
from zlinkpy.sessions.settlement import Settlement, Work
from zlinkpy.sessions.spi import LiveSession
from zlinkpy.sessions.status_watch import StatusHeartbeat
from zlinkpy.sessions.turn import run_turn, turn_failed
from zlinkpy.sessions.types import (
    BATCH_MEMORY,
    CollectedBatch,
    FailureCode,
    InboundMessage,
    InterruptReason,
    Priority,
    TurnInput,
    TurnResult,
)

DELIVER_TRIES: Final = 4
DELIVER_LIMIT: Final = 2.0
"""Seconds for all tries of one delivery."""
DELIVER_PAUSE: Final = 0.2

_NOTHING: Mapping[str, Any] = {}


async def deliver(core: RouterCore, message: InboundMessage, delivery_id: str) -> str:
    """Queue a message; an unknown answer is asked for again under the same id. Raises the last SessionInboxError."""
    last = SessionInboxError("the inbox did not answer in time", applied="unknown")
    with trio.move_on_after(DELIVER_LIMIT):
        for attempt in range(DELIVER_TRIES):
            if attempt:
                await trio.sleep(DELIVER_PAUSE)
            try:
                return await core.inbox.deliver(message, delivery_id)
            except SessionInboxError as error:
                # Once an answer was lost, a later refusal says nothing about the first try.
                unknown = attempt > 0 and last.applied == "unknown"
                last = error
                if unknown:
                    last.applied = "unknown"
                if last.applied == "no":
                    raise
    raise last


class TurnPass:
    """One pass. `run` is a task of the turn nursery; the gate is taken when it starts.

    Args:
        own: the message of the submit that opened the pass, None for a doorbell.
        held: the lease, for a submit.
        options, open_attributes: the submit's, for opening a handle.
    """

    def __init__(
        self,
        core: RouterCore,
        settlement: Settlement,
        forwards: Forwards,
        seat: SessionSeat[HeldLease],
        *,
        own: Work | None = None,
        held: HeldLease | None = None,
        options: Mapping[str, Any] = _NOTHING,
        open_attributes: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self._core, self._settlement, self._forwards, self._seat = core, settlement, forwards, seat
        self._session_id = seat.session_id
        self._own, self._held = own, held
        self._options, self._open_attributes = options, open_attributes
        self._queue: DrainQueue[Work] = DrainQueue()
        self._works: list[Work] = [own] if own is not None else []
        self._entry: CacheEntry[LiveSession] | None = None
        self._running: RunningTurn | None = None
        self._binding = own.message.handler_ref if own is not None else ""
        self._collecting = trio.Lock()
        self._unanswered: tuple[str, Priority, float] | None = None
        """A batch whose answer was lost: its id, how far it reached, since when."""
        self._rang = trio.Event()
        self._owes_ring = False
        self._generation = seat.generation
        self._is_over = False

    async def run(self) -> None:
        """The pass, from the first step to the last."""
        core = self._core
        failure = TurnFailure(FailureCode.FAILED, "the pass that had the message was cancelled")
        try:
            core.enter_turn(self._session_id, lambda: self._is_over)
            # A release or delete that was under way may have ended the node's place on the bus.
            await core.ensure_subscribed(self._session_id)
            if self._own is not None:
                await self._submitted(self._own)
            else:
                await self._rung()
        except BaseException as error:
            if not is_failure(error):
                raise
            log.exception("a pass of session %r failed", self._session_id)
            failure = TurnFailure.of(error)
        finally:
            with trio.CancelScope(shield=True):
                await self._leave(failure)

    # -- opening

    async def _submitted(self, own: Work) -> None:
        assert self._held is not None
        self._settlement.bind(own, self._held)
        if not await self._open(own.message):
            return
        batch = await self._collect(Priority.LATER)
        self._queue.merge(self._received(batch), own)
        await self._drain()

    async def _rung(self) -> None:
        core, seat = self._core, self._seat
        try:
            view = await core.store.load(self._session_id)
        except SessionBackendError as error:
            self._try_later(error)
            return
        if view is not None and view.handler_ref is not None and not core.registry.knows(view.handler_ref):
            seat.clear_doorbell()
            return
        self._held = core.usable(seat)
        if self._held is None and not await self._acquire():
            return
        assert self._held is not None
        messages = self._received(await self._collect(Priority.LATER))
        rescued = self._session_id in core.rescuing
        core.rescuing.discard(self._session_id)
        if not messages:
            return
        if rescued:
            core.metrics.on_orphan_rescued()
        self._queue.merge(messages)
        first = messages[0].message
        try:
            self._binding = await core.store.settle_binding(self._held.lease, first.handler_ref)
        except SessionNotHeldError:
            core.lease_lost(self._held)
            await self._put_back(self._queue.take_all())
            return
        except SessionBackendError as error:
            await self._put_back(self._queue.take_all())
            self._owes_ring = False
            self._try_later(error)
            return
        if first.handler_ref != self._binding:
            first = InboundMessage(self._session_id, self._binding, TurnInput(""))
        if await self._open(first):
            await self._drain()

    async def _acquire(self) -> bool:
        core, seat = self._core, self._seat
        try:
            # Winning makes a record: of a session that was deleted nothing must come back for an empty inbox (SR-236).
            if await core.inbox.is_empty(self._session_id):
                seat.clear_doorbell()
                return False
        except SessionBackendError as error:
            log.warning("whether messages wait is not known, so they are fetched: %s", error)
        if seat.generation != self._generation:
            return False
        sent_at = trio.current_time()
        try:
            lease = await core.store.acquire(self._session_id, core.node_id, core.config.lock_lease)
        except SessionBackendError as error:
            self._try_later(error)
            return False
        if lease is None:
            if not seat.returning:
                seat.clear_doorbell()
            return False
        self._held = core.install(seat, lease, sent_at)
        return True

    def _try_later(self, error: SessionBackendError) -> None:
        log.warning("the messages of session %r cannot be fetched now: %s", self._session_id, error)
        self._seat.retry_later(trio.current_time() + RETRY_PAUSE)

    async def _open(self, first: InboundMessage) -> bool:
        """Get the handle; what cannot be opened fails everything that was collected for it (SR-207)."""
        core = self._core
        try:
            opener = core.registry.find(self._binding, first.handler_variant)
            self._entry = await core.cache.acquire(
                self._session_id, lambda: opener(self._session_id, self._options, self._open_attributes)
            )
        except Exception as error:  # noqa: BLE001 - the handler's own code
            log.warning("session %r could not be opened: %r", self._session_id, error)
            failure = TurnFailure.of(error)
            for work in self._works:
                work.error = error if isinstance(error, SessionError) else turn_failed(error)
                await self._settlement.fail(work, failure, self._held)
            return False
        self._running = RunningTurn(self._entry.handle, ring=self._ring)
        core.turns[self._session_id] = self._running
        return True

    # -- collecting

    def _ring(self) -> None:
        self._rang.set()

    async def _collect(self, upto: Priority) -> CollectedBatch:
        async with self._collecting:
            return await self._fetch(upto)

    async def _fetch(self, upto: Priority) -> CollectedBatch:
        """Take messages out of the inbox, one call at a time (`_collecting`). Nothing when that cannot be done now: the
        mark stays, and rings again."""
        core, seat = self._core, self._seat
        if not core.accepting or self._unanswered is not None:
            return CollectedBatch()
        batch_id, since = core.new_id(), trio.current_time()
        if upto is Priority.LATER:
            seat.clear_doorbell()
        try:
            # Whoever is cancelled here has taken messages out of the inbox that nobody would know of.
            with trio.CancelScope(shield=True):
                batch = await core.inbox.collect(self._session_id, upto, batch_id)
                await self._fail_unreadable(batch)
        except SessionInboxError as error:
            if error.applied == "unknown":
                self._unanswered = (batch_id, upto, since)
            self._try_later(error)
            return CollectedBatch()
        return batch

    async def _fail_unreadable(self, batch: CollectedBatch) -> None:
        for entry in batch.unreadable:
            log.warning("a message of session %r cannot be read: %s", self._session_id, entry.reason)
            failure = TurnFailure(FailureCode.UNREADABLE, f"the queued message cannot be read: {entry.reason}")
            await self._settlement.fail_address(self._session_id, entry.turn_id, entry.idempotency_key, failure)

    def _received(self, batch: CollectedBatch) -> list[Work]:
        works = [Work(each, each.turn_id or self._core.new_id()) for each in batch.messages]
        self._works = [each for each in self._works if not each.is_settled] + works
        return works

    async def _find_lost_batch(self) -> bool:
        """Ask for a batch whose answer was lost until it is there: nobody else can (SR-426)."""
        while self._unanswered is not None and trio.current_time() - self._unanswered[2] < BATCH_MEMORY:
            await trio.sleep(RETRY_PAUSE)
            if self._core.is_closed:
                # A closed router waits for nobody. Their keys are free when the forward TTL is over (SR-461).
                log.error("a batch of session %r was never answered; its messages, if any, are lost", self._session_id)
                return False
            batch_id, upto, _ = self._unanswered
            try:
                with trio.CancelScope(shield=True):
                    batch = await self._core.inbox.collect(self._session_id, upto, batch_id)
                    self._unanswered = None
                    await self._fail_unreadable(batch)
            except SessionInboxError as error:
                log.warning("a batch of session %r is still unknown: %s", self._session_id, error)
                continue
            self._queue.merge(self._received(batch))
            return True
        return False

    # -- draining

    def _may_run(self) -> bool:
        held = self._held
        return held is not None and held.is_usable and not self._seat.yielding and not self._core.stopping

    async def _drain(self) -> None:
        assert self._running is not None
        async with StatusHeartbeat(self._core, self._session_id, self._running.session):
            while True:
                step = self._queue.next_step(self._binding, may_run=self._may_run())
                match step:
                    case DrainStep.END:
                        if not await self._find_lost_batch():
                            return
                        continue
                    case DrainStep.PUT_BACK:
                        await self._put_back(self._queue.take_all())
                        continue
                    case DrainStep.REJECT:
                        await self._reject(self._queue.take())
                    case DrainStep.RUN:
                        await self._run(self._queue.take())
                if self._may_run() and self._unanswered is None:
                    self._queue.merge(self._received(await self._collect(Priority.LATER)))

    async def _reject(self, work: Work) -> None:
        message = work.message
        self._core.events.emit(
            self._session_id,
            RejectedAt(message.handler_ref, self._binding, message.id or None, turn_id=work.turn_id),
        )
        conflict = ConflictingHandlerError(message.handler_ref, self._binding)
        await self._settlement.fail(work, TurnFailure.of(conflict), self._held)

    async def _run(self, work: Work) -> None:
        held, running = self._held, self._running
        assert held is not None
        assert running is not None
        await self._settlement.take_over(work, held)
        if not self._may_run():
            self._queue.push_front([work])
            return
        absorbed: list[Work] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._inject, running, held, absorbed)
            ended = await run_turn(self._core, work, running, held)
            # An injection under way is seen to its end; it finds the turn over and queues what it got.
            async with self._collecting:
                nursery.cancel_scope.cancel()
        reasons = running.reasons
        unconsumed = self._unconsumed(running.session, absorbed)
        self._queue.push_front(unconsumed)
        for each in [work, *(each for each in absorbed if each not in unconsumed)]:
            if isinstance(ended, TurnResult):
                stopped = reasons & {InterruptReason.SYSTEM_SHUTDOWN, InterruptReason.SESSION_RELEASED}
                await self._settlement.succeed(each, ended, held, cached=not stopped)
            else:
                await self._settlement.fail(each, ended, held)

    async def _inject(self, running: RunningTurn, held: HeldLease, absorbed: list[Work]) -> None:
        while True:
            await self._rang.wait()
            self._rang = trio.Event()
            if running.turn_id is None or not running.session.accepts_offers:
                continue
            async with self._collecting:
                with trio.CancelScope(shield=True):
                    for work in self._received(await self._fetch(Priority.NOW)):
                        if await self._offered(work, running, held):
                            absorbed.append(work)
                        else:
                            self._queue.merge([work])

    async def _offered(self, work: Work, running: RunningTurn, held: HeldLease) -> bool:
        if work.handler_ref != self._binding or running.turn_id is None:
            return False
        await self._settlement.take_over(work, held)
        if running.turn_id is None or not held.is_usable:
            return False
        try:
            return running.session.offer(work.message.input)
        except Exception:  # noqa: BLE001 - the handler's own code
            log.exception("offering an input to a turn of session %r raised", self._session_id)
            return False

    def _unconsumed(self, session: LiveSession, absorbed: list[Work]) -> list[Work]:
        if not absorbed:
            return []
        try:
            left = list(session.take_unconsumed())
        except Exception:  # noqa: BLE001 - the handler's own code
            log.exception("asking for unconsumed inputs of session %r raised", self._session_id)
            return []
        found: list[Work] = []
        for given_back in left:
            same = [each for each in absorbed if each not in found]
            exact = [each for each in same if each.message.input is given_back]
            found += (exact or [each for each in same if each.message.input == given_back])[:1]
        return found

    # -- putting back

    async def _put_back(self, works: list[Work]) -> None:
        """Leave what was not started to the next holder, in its old order (SR-172)."""
        self._owes_ring = True
        with trio.CancelScope(shield=True):
            for work in works:
                if await self._hand_key_over(work):
                    await self._queue_again(work)

    async def _hand_key_over(self, work: Work) -> bool:
        """Make the message's reservation holderless again. False: the message has ended instead."""
        core = self._core
        if work.key is None or work.reserver is None:
            return True
        self._settlement.unbind(work, self._held)
        why = "its reservation was lost meanwhile"
        try:
            if await core.idempotency.release_holder(work.key, work.reserver, core.config.idempotency_forward_ttl):
                work.reserver = None
                return True
        except IdempotencyStoreError as error:
            why = str(error)
            assert work.takeover is not None
            work.takeover = evolve(work.takeover, discard=True)
        await self._not_started(work, why)
        return False

    async def _queue_again(self, work: Work) -> None:
        message, delivery_id = work.message, f"{work.turn_id}/{work.message.id}"
        forward = None
        if work.future is not None:
            delivery_id = work.turn_id
            try:
                # The caller's future lives on as that of a forwarded turn (SR-438).
                forward = self._forwards.register(
                    self._session_id, work.turn_id, work.future, key=work.key, epoch=message.epoch
                )
            except RouterClosedError as error:
                # As of any forward that a closing router leaves behind: the message runs elsewhere all the same.
                work.future.set(error)
        try:
            inbox_id = await deliver(self._core, message, delivery_id)
        except SessionInboxError as error:
            if error.applied == "no":
                if forward is not None:
                    self._core.forwards.withdraw(forward)
                await self._not_started(work, str(error))
                return
            # It may be queued: a freed key would let a retry run beside it. It may not be: nobody else has it.
            log.warning("whether a message of session %r was put back is unknown: %s", self._session_id, error)
            self._core.background_nursery.start_soon(self._deliver_later, message, delivery_id, forward)
        else:
            if forward is not None:
                forward.inbox_id = inbox_id
        work.is_settled = True
        if forward is not None:
            self._forwards.watch(forward)

    async def _deliver_later(self, message: InboundMessage, delivery_id: str, forward: Waiting | None) -> None:
        core = self._core
        with trio.move_on_after(core.config.idempotency_forward_ttl):
            while True:
                await trio.sleep(RETRY_PAUSE)
                try:
                    inbox_id = await core.inbox.deliver(message, delivery_id)
                except SessionInboxError as error:
                    log.debug("a message of session %r is still not put back: %s", self._session_id, error)
                    continue
                if forward is not None:
                    forward.inbox_id = inbox_id
                await core.ring_peers(self._session_id, inbox_id, message.turn_id)
                core.ring(self._session_id)
                return

    async def _not_started(self, work: Work, why: str) -> None:
        log.warning("a message of session %r could not be put back: %s", self._session_id, why)
        work.error = NotHolderError(f"turn {work.turn_id} was not started and could not be queued: {why}")
        await self._settlement.fail(work, TurnFailure(FailureCode.NOT_HOLDER, str(work.error)), self._held)

    # -- leaving

    async def _leave(self, failure: TurnFailure) -> None:
        core, seat = self._core, self._seat
        if self._unanswered is not None:
            await self._find_lost_batch()
            await self._put_back(self._queue.take_all())
        for work in self._works:
            work.error = work.error or TurnFailedError(failure.message)
            await self._settlement.fail(work, failure, self._held)
        if self._held is not None:
            self._held.slot.clear()
        if self._running is not None and core.turns.get(self._session_id) is self._running:
            del core.turns[self._session_id]
        self._is_over = True
        yielded = seat.yielding and not seat.expected
        if yielded:
            # A handle that was opened after the session was asked for would keep the lease here.
            core.cache.evict(self._session_id)
        if self._entry is not None:
            await core.cache.unpin(self._entry)
        held = self._held
        if held is not None and (not held.is_usable or core.cache.peek(self._session_id) is None):
            await core.return_lease(seat, held)
        if self._owes_ring:
            core.background_nursery.start_soon(self._ring_all, YIELD_QUIET if yielded else 0.0)
        core.leave(seat)
        core.end_work()

    async def _ring_all(self, delay: float) -> None:
        """What was put back waits for somebody; after a yield the asker comes first (SR-439)."""
        core = self._core
        await trio.sleep(delay)
        seat = core.seats.get(self._session_id)
        if seat is not None and seat.generation != self._generation:
            return
        await core.ring_peers(self._session_id)
        if core.accepting:
            core.ring(self._session_id)
