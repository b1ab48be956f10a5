"""Submitting: from the request to a turn here or a message for whoever holds the session (facts §6; SR §7, §12).

    step                      answer                               next
    F0 subscribe              raised: WARN                         F1: the answer may come before submit returns
    F1 load the record        bound to another handler             ConflictingHandlerError, nothing was touched
    F2 reserve the key        inserted                             gate
                              lost answer                          look: own reserver = inserted
                              another input or session             IdempotencyConflictError
                              done                                 a completed future, nothing else
                              stale                                reset; the winner announces the loss; reserve again
                              in flight                            attach: wait for that turn
       gate                   taken                                forward
       lease held here        usable                               start, no claim
       claim                  held elsewhere                       leave the gate, forward
                              another handler, or raised           free the key, leave the gate, raise
       start the pass                                              EXECUTED_LOCALLY
    forward: release the key  False: swept meanwhile               reserve again
             register, deliver   surely failed                     withdraw, free the key, raise
                              unknown for good                     withdraw, raise; the key stays: a retry attaches
             publish, ring                                         FORWARDED

Whatever is raised, cancellation included, is undone in reverse under a shield. A store call whose answer is needed for
that is seen to its end. From the deliver on nothing is undone but the forward: the message stays and runs.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from zlinkpy.sessions.core import HeldLease, RouterCore, log, seen_to_its_end
from zlinkpy.sessions.errors import (
    ConflictingHandlerError,
    IdempotencyConflictError,
    IdempotencyStoreError,
    SessionInboxError,
)
from zlinkpy.sessions.forwarding import Forwards
from zlinkpy.sessions.futures import SubmitDisposition, TurnFuture
from zlinkpy.sessions.gate_machine import Gate, SessionSeat
from zlinkpy.sessions.input_hash import input_hash
from zlinkpy.sessions.recovery import Recovery
from zlinkpy.sessions.settlement import Settlement, Work
from zlinkpy.sessions.subscriptions import Subscriptions
from zlinkpy.sessions.takeover_machine import Verdict, plan
from zlinkpy.sessions.turn_pass import TurnPass, deliver
from zlinkpy.sessions.types import (
    Acquired,
    DispositionKind,
    HandlerConflict,
    HeldElsewhere,
    IdempotencyEntry,
    IdempotencyStatus,
    InboundMessage,
    Inserted,
    SubmitRequest,
)

ROUNDS: Final = 8
"""Times a submit starts over because its key changed hands under it."""


class Submission:
    """Takes requests."""

    def __init__(
        self,
        core: RouterCore,
        forwards: Forwards,
        settlement: Settlement,
        recovery: Recovery,
        subscriptions: Subscriptions,
    ) -> None:
        self._core = core
        self._forwards = forwards
        self._settlement = settlement
        self._recovery = recovery
        self._subscriptions = subscriptions

    async def submit(self, request: SubmitRequest) -> SubmitDisposition:
        """See the module."""
        core = self._core
        core.check_open()
        core.check_outside(request.session_id, "submit to")
        core.begin_work()
        try:
            with self._subscriptions.used(request.session_id):
                disposition = await self._submit(request)
        finally:
            core.end_work()
        core.metrics.on_submit_outcome(disposition.kind)
        return disposition

    async def _submit(self, request: SubmitRequest) -> SubmitDisposition:
        core = self._core
        await self._subscriptions.ensure(request.session_id)
        view = await core.store.load(request.session_id)
        if view is not None and view.handler_ref not in (None, request.handler_ref):
            raise ConflictingHandlerError(request.handler_ref, str(view.handler_ref))
        turn_id, future = core.new_id(), TurnFuture()
        for _ in range(ROUNDS):
            reserver = None
            if request.idempotency_key is not None:
                reserved = await self._reserve(request, request.idempotency_key)
                if isinstance(reserved, SubmitDisposition):
                    return reserved
                reserver = reserved
            work = _work(request, turn_id, future, reserver)
            try:
                placed = await self._place(request, work)
            except BaseException:
                if work.reserver is not None:
                    with trio.CancelScope(shield=True):
                        await self._settlement.free_key(work)
                raise
            if placed is not None:
                return placed
        raise IdempotencyStoreError("the reservation of a submit was lost again and again", applied="no")

    # -- the key

    async def _reserve(self, request: SubmitRequest, key: str) -> str | SubmitDisposition:
        """The reserver id that holds the key now, or what came of the attempt that has it."""
        core = self._core
        digest = input_hash(request.input)
        for _ in range(ROUNDS):
            reserver = core.reserver_id()
            try:
                entry = await self._put(request, key, digest, reserver)
                # A caller that was cancelled meanwhile leaves no reservation behind.
                await trio.lowlevel.checkpoint_if_cancelled()
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._settlement.free(key, reserver, discard=False)
                raise
            if entry is None:
                return reserver
            if entry.session_id != request.session_id or entry.input_hash != digest:
                raise IdempotencyConflictError("the idempotency key was used with another input or another session")
            if entry.status is IdempotencyStatus.DONE and entry.result is not None:
                future = TurnFuture.completed(entry.result)
                return SubmitDisposition(DispositionKind.EXECUTED_LOCALLY, core.new_id(), future)
            if entry.stale:
                if await self._recovery.reset(entry):
                    # Before the key is taken again: the announcement means the attempt that was lost (SR-218).
                    await self._recovery.announce(entry)
                continue
            attached = await self._attach(request, key, entry)
            if attached is not None:
                return attached
        raise IdempotencyStoreError("the idempotency key changed hands again and again", applied="no")

    async def _put(self, request: SubmitRequest, key: str, digest: str, reserver: str) -> IdempotencyEntry | None:
        """None when the key is reserved now."""
        core = self._core
        put = partial(
            core.idempotency.put_if_absent,
            key,
            request.session_id,
            digest,
            reserver,
            core.config.idempotency_secondary_ttl,
        )
        try:
            answer = await seen_to_its_end(put)
        except IdempotencyStoreError as error:
            if error.applied == "no":
                raise
            entry = await core.idempotency.find(key)
            if entry is None:
                raise
            return None if entry.epoch == reserver else entry
        return None if isinstance(answer, Inserted) else answer.entry

    async def _attach(self, request: SubmitRequest, key: str, entry: IdempotencyEntry) -> SubmitDisposition | None:
        """Wait for the turn that has the key. None: it ended without a result meanwhile, so reserve again."""
        core = self._core
        inbox_id = f"idem-{key}"
        shared = core.forwards.sharing(key, entry.epoch)
        if shared is not None:
            return SubmitDisposition(DispositionKind.FORWARDED, shared.turn_id, shared.future, inbox_id)
        turn_id, future = core.new_id(), TurnFuture()
        forward = self._forwards.register(request.session_id, turn_id, future, key=key, epoch=entry.epoch)
        try:
            # Its end may have been announced before there was anybody to hear it (SR-448).
            now = await core.idempotency.find(key)
        except IdempotencyStoreError as error:
            log.warning("the outcome of a turn under way could not be looked up: %s", error)
        except BaseException:
            core.forwards.withdraw(forward)
            raise
        else:
            if not future.done() and (now is None or now.epoch != entry.epoch):
                core.forwards.withdraw(forward)
                return None
            if now is not None and now.result is not None and now.status is IdempotencyStatus.DONE:
                self._forwards.settle(forward, now.result)
        self._forwards.watch(forward)
        return SubmitDisposition(DispositionKind.FORWARDED, turn_id, future, inbox_id)

    # -- the turn

    async def _place(self, request: SubmitRequest, work: Work) -> SubmitDisposition | None:
        """Run it here or forward it. None: its reservation was swept meanwhile, start over."""
        core = self._core
        session_id, began = request.session_id, trio.current_time()
        seat = core.seat(session_id)
        if not seat.enter(Gate.TURN):
            core.metrics.on_lease_acquire_rejected(trio.current_time() - began)
            return await self._forward(work)
        try:
            held = core.usable(seat) or await self._claim(request, seat)
            if held is not None:
                await trio.lowlevel.checkpoint_if_cancelled()
                core.check_open()
                core.metrics.on_lease_acquire_succeeded(trio.current_time() - began)
                self._start(request, seat, work, held)
        except BaseException:
            with trio.CancelScope(shield=True):
                if core.cache.peek(session_id) is None:
                    await core.return_lease(seat)
                await self._settlement.free_key(work)
                core.leave(seat)
            raise
        if held is None:
            core.leave(seat)
            core.metrics.on_lease_acquire_rejected(trio.current_time() - began)
            return await self._forward(work)
        assert work.future is not None
        return SubmitDisposition(DispositionKind.EXECUTED_LOCALLY, work.turn_id, work.future)

    async def _claim(self, request: SubmitRequest, seat: SessionSeat[HeldLease]) -> HeldLease | None:
        core, sent_at = self._core, trio.current_time()
        claim = partial(core.store.claim, request.session_id, request.handler_ref, core.node_id, core.config.lock_lease)
        match await seen_to_its_end(claim):
            case Acquired(lease=lease):
                return core.install(seat, lease, sent_at)
            case HandlerConflict(bound=bound):
                raise ConflictingHandlerError(request.handler_ref, bound)
            case HeldElsewhere():
                return None

    def _start(self, request: SubmitRequest, seat: SessionSeat[HeldLease], work: Work, held: HeldLease) -> None:
        core = self._core
        turn_pass = TurnPass(
            core,
            self._settlement,
            self._forwards,
            seat,
            own=work,
            held=held,
            options=request.options,
            open_attributes=request.open_attributes,
        )
        core.begin_work()
        try:
            core.turn_nursery.start_soon(turn_pass.run)
        except BaseException:
            core.end_work()
            raise

    # -- somebody else's turn

    async def _forward(self, work: Work) -> SubmitDisposition | None:
        core = self._core
        if work.key is not None and work.reserver is not None:
            release = partial(
                core.idempotency.release_holder, work.key, work.reserver, core.config.idempotency_forward_ttl
            )
            if not await seen_to_its_end(release):
                work.reserver = None
                return None
        forward = None
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            assert work.future is not None
            forward = self._forwards.register(
                work.message.session_id, work.turn_id, work.future, key=work.key, epoch=work.message.epoch
            )
            forward.inbox_id = await seen_to_its_end(partial(deliver, core, work.message, work.turn_id))
        except BaseException as error:
            if forward is not None:
                core.forwards.withdraw(forward)
            queued = isinstance(error, SessionInboxError) and error.applied == "unknown"
            if work.key is not None and not queued:
                with trio.CancelScope(shield=True):
                    await self._settlement.free(work.key, None, discard=True)
            # What is left of the key is on purpose.
            work.reserver = None
            raise
        work.reserver = None
        with trio.CancelScope(shield=True):
            await core.ring_peers(work.message.session_id, forward.inbox_id, work.turn_id)
        core.ring(work.message.session_id)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            core.forwards.withdraw(forward)
            raise
        self._forwards.watch(forward)
        return SubmitDisposition(DispositionKind.FORWARDED, work.turn_id, work.future, forward.inbox_id)


def _work(request: SubmitRequest, turn_id: str, future: TurnFuture, reserver: str | None) -> Work:
    message = InboundMessage(
        session_id=request.session_id,
        handler_ref=request.handler_ref,
        input=request.input,
        priority=request.priority,
        initiator=request.initiator,
        idempotency_key=request.idempotency_key,
        turn_id=turn_id,
        handler_variant=request.handler_variant,
        submit_options=request.submit_options,
        epoch=reserver,
    )
    verdict = Verdict.KEYLESS if reserver is None else Verdict.SELF
    return Work(message, turn_id, future, reserver=reserver, takeover=plan(verdict))
