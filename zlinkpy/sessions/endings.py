"""The ends of a session on a node: release, delete, EVICT, YIELD, idle, close (facts §6; SR §17, §18, §20).

    end        turn            handle    lease      inbox    forwards   streams    record   told to peers
    idle       -               closed    returned   stays    wait       go on      stays    nothing
    YIELD      interrupted     closed    returned   stays    wait       go on      stays    -
    release    interrupted     closed    returned   purged   fail       complete   stays    YIELD if held there, EVICT
    delete     interrupted     closed    returned   purged   fail       complete   deleted  YIELD while held, EVICT
    EVICT      goes on         at its end, returned          fail       complete   -        -
    close      interrupted     closed    returned   stays    fail       complete   stays    -

Release goes on after a step that raises, and raises the first error at its end; delete stops at a record that cannot be
deleted, and a repetition finishes it. A turn that cannot even be cancelled keeps its lease until it expires: a peer
that ran the session before that would run beside it (SR-289).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import trio

from zlinkpy.sessions.core import HeldLease, RouterCore, log
from zlinkpy.sessions.errors import SessionBusyError
from zlinkpy.sessions.events import InterruptedAt
from zlinkpy.sessions.forwarding import Forwards
from zlinkpy.sessions.gate_machine import Gate, SessionSeat
from zlinkpy.sessions.payloads import Evict, Interrupt, Yield
from zlinkpy.sessions.settlement import Settlement
from zlinkpy.sessions.status_watch import StatusView
from zlinkpy.sessions.subscriptions import Subscriptions
from zlinkpy.sessions.types import InterruptReason, LeaseHolder, SignalKind

PurgeHook: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Called with the id of a session that is over here: drop what the application keeps of it."""

CANCEL_LIMIT: Final = 0.5
"""Seconds a cancelled turn gets to end."""
DELETE_BUDGET: Final = 5.0
"""Seconds a delete has for gate and lease together."""
YIELD_PAUSE_MIN: Final = 0.02
YIELD_PAUSE_MAX: Final = 0.2
"""Seconds between the tries to get a session that was asked for (SR-299)."""


class Endings:
    """Ends sessions."""

    def __init__(
        self,
        core: RouterCore,
        forwards: Forwards,
        settlement: Settlement,
        subscriptions: Subscriptions,
        status: StatusView,
        purge_hooks: Sequence[PurgeHook],
    ) -> None:
        self._core = core
        self._forwards = forwards
        self._settlement = settlement
        self._subscriptions = subscriptions
        self._status = status
        self._purge_hooks = purge_hooks

    # -- release

    async def release(self, session_id: str) -> None:
        """End the session everywhere; its history stays (SR-271..279)."""
        core = self._core
        core.check_open()
        core.check_outside(session_id, "release")
        core.begin_work()
        try:
            await self._release(session_id)
        finally:
            core.end_work()

    async def _release(self, session_id: str) -> None:
        core = self._core
        errors: list[Exception] = []
        seat = core.seat(session_id)
        held = await self._enter(seat, Gate.RELEASE, core.config.release_interrupt_timeout)
        token = seat.lease.lease.token if seat.lease is not None else None
        try:
            steps: list[Callable[[], Awaitable[object]]] = []
            if seat.lease is None:
                steps.append(partial(self._have_it_yielded, session_id))
            if held:
                steps += [partial(core.cache.evict_and_close, session_id), partial(core.return_lease, seat)]
            else:
                core.cache.evict(session_id)
                self._abandon(seat)
            steps += [
                partial(self._purge, session_id),
                partial(self._forwards.evict, session_id, core.node_id),
                partial(self._forget, session_id),
                partial(self._tell, session_id, InterruptReason.SESSION_RELEASED, token),
            ]
            for step in steps:
                try:
                    await step()
                except Exception as error:  # noqa: BLE001 - raised at the end
                    log.warning("a step of releasing session %r raised: %r", session_id, error)
                    errors.append(error)
            core.events.complete(session_id)
            await self._subscriptions.end(session_id)
        finally:
            seat.yielding = False
            if held:
                core.leave(seat)
        if errors:
            raise errors[0]

    async def _enter(self, seat: SessionSeat[HeldLease], kind: Gate, seconds: float) -> bool:
        """Get the gate from a pass: ask its turn to stop, cancel it when it does not. False: it cannot be stopped."""
        core = self._core
        if seat.enter(kind):
            return True
        # No further turn starts, and what waits is put back, where it is purged.
        seat.yielding = True
        turn = core.turns.get(seat.session_id)
        if turn is not None:
            turn.interrupt(InterruptReason.SESSION_RELEASED)
        if await core.take_gate(seat, kind, trio.current_time() + seconds):
            return True
        log.warning("a turn of session %r does not stop when asked to and is cancelled", seat.session_id)
        turn = core.turns.get(seat.session_id)
        if turn is not None and turn.scope is not None:
            turn.scope.cancel()
        return await core.take_gate(seat, kind, trio.current_time() + CANCEL_LIMIT)

    def _abandon(self, seat: SessionSeat[HeldLease]) -> None:
        """Leave the lease of a turn that cannot be stopped to expire."""
        if seat.lease is not None:
            seat.lease.returned = True
            seat.lease.end()
            seat.lease = None

    async def _have_it_yielded(self, session_id: str) -> None:
        """Ask a peer that holds the session for it, and wait for that within the same time as for a turn here."""
        core = self._core
        holder = await core.store.find_holder(session_id)
        if holder is None:
            return
        await self._ask_to_yield(session_id, holder)
        with trio.move_on_after(core.config.release_interrupt_timeout):
            pause = YIELD_PAUSE_MIN
            while await core.store.find_holder(session_id) is not None:
                await trio.sleep(pause)
                pause = min(pause * 2, YIELD_PAUSE_MAX)

    async def _ask_to_yield(self, session_id: str, holder: LeaseHolder | None) -> None:
        core = self._core
        token = holder.token if holder is not None else None
        await core.publish(core.signal(session_id, SignalKind.YIELD, Yield(token).payload()))
        if core.config.legacy_yield_shim:
            interrupt = Interrupt(InterruptReason.SESSION_RELEASED, None, token)
            await core.publish(core.signal(session_id, SignalKind.INTERRUPT, interrupt.payload()))

    async def _purge(self, session_id: str) -> None:
        core = self._core
        seat = core.seats.get(session_id)
        if seat is not None:
            # Before the purge: a ring that comes after it is for a message that is not purged.
            seat.drop_marks()
        for key in await core.inbox.purge(session_id):
            await self._settlement.free(key, None, discard=True)

    async def _forget(self, session_id: str) -> None:
        self._status.projection.forget(session_id)
        await self.call_hooks(session_id)

    async def call_hooks(self, session_id: str) -> None:
        """Tell the application that the session is over here."""
        for hook in self._purge_hooks:
            try:
                waiting: Any = hook(session_id)
                if waiting is not None:
                    await waiting
            except Exception:  # noqa: BLE001 - the application's code
                log.exception("a purge hook raised for session %r", session_id)

    async def _tell(self, session_id: str, reason: InterruptReason, token: int | None) -> None:
        core = self._core
        await core.publish(core.signal(session_id, SignalKind.EVICT, Evict(reason, token).payload()))

    # -- delete

    async def delete(self, session_id: str) -> None:
        """Remove the session and its record. Raises SessionBusyError when it cannot be had within 5 s (SR-293..304)."""
        core = self._core
        core.check_open()
        core.check_outside(session_id, "delete")
        core.begin_work()
        try:
            await self._delete(session_id)
        finally:
            core.end_work()

    async def _delete(self, session_id: str) -> None:
        core = self._core
        deadline = trio.current_time() + DELETE_BUDGET
        seat = core.seat(session_id)
        if not seat.enter(Gate.DELETE):
            seat.yielding = True
            turn = core.turns.get(session_id)
            if turn is not None:
                turn.interrupt(InterruptReason.SESSION_RELEASED)
            try:
                entered = await core.take_gate(seat, Gate.DELETE, deadline)
            finally:
                seat.yielding = False
            if not entered:
                raise SessionBusyError(f"session {session_id!r} has a turn here that does not stop; try again later")
        deleted = False
        try:
            held = core.usable(seat) or await self._win(seat, deadline)
            try:
                await core.cache.evict_and_close(session_id)
                await self._purge(session_id)
                await self._forwards.evict(session_id, core.node_id)
                await self._forget(session_id)
                await core.store.records().delete(session_id)
                deleted = True
                seat.drop_marks()
                await self._tell(session_id, InterruptReason.SESSION_RELEASED, held.lease.token)
                core.events.emit(session_id, InterruptedAt(InterruptReason.SESSION_RELEASED))
                core.events.complete(session_id)
                await self._subscriptions.end(session_id)
            finally:
                with trio.CancelScope(shield=True):
                    await core.return_lease(seat, held)
        finally:
            if deleted:
                seat.drop_marks()
            core.leave(seat)

    async def _win(self, seat: SessionSeat[HeldLease], deadline: float) -> HeldLease:
        core, session_id = self._core, seat.session_id
        pause = min(max(YIELD_PAUSE_MIN, DELETE_BUDGET / 8), YIELD_PAUSE_MAX)
        while True:
            sent_at = trio.current_time()
            with trio.CancelScope(shield=True):
                lease = await core.store.acquire(session_id, core.node_id, core.config.lock_lease)
            if lease is not None:
                return core.install(seat, lease, sent_at)
            if trio.current_time() + pause >= deadline:
                raise SessionBusyError(f"session {session_id!r} is held by another node that does not give it up")
            await self._ask_to_yield(session_id, await core.store.find_holder(session_id))
            await trio.sleep(pause)
            pause = min(pause * 2, YIELD_PAUSE_MAX)

    # -- what peers say

    def is_late(self, session_id: str, token: int | None) -> bool:
        """Whether a signal means an earlier lease than the one this node has (SR-440)."""
        seat = self._core.seats.get(session_id)
        held = self._core.usable(seat) if seat is not None else None
        return held is not None and token is not None and token < held.lease.token

    def evicted(self, session_id: str, evict: Evict, origin: str) -> None:
        """A peer released or deleted the session (SR-322)."""
        core = self._core
        if self.is_late(session_id, evict.token):
            return
        seat = core.seats.get(session_id)
        if seat is not None:
            seat.drop_marks()
        if core.cache.evict(session_id) is None and seat is not None:
            core.perform(seat, seat.handle_closed())
        core.background_nursery.start_soon(self._after_eviction, session_id, origin)
        core.events.emit(session_id, InterruptedAt(evict.reason))
        core.events.complete(session_id)

    async def _after_eviction(self, session_id: str, origin: str) -> None:
        await self._forwards.evict(session_id, origin)
        await self._forget(session_id)

    def yielded(self, session_id: str, token: int | None) -> None:
        """A peer asks for the session (SR-305..311)."""
        seat = self._core.seats.get(session_id)
        if seat is None or self.is_late(session_id, token) or seat.gate in (Gate.DELETE, Gate.RELEASE):
            return
        self._core.yield_session(seat)

    # -- close

    async def close(self, timeout: float) -> bool:
        """Close the router; True when everything ended by itself within `timeout` (SR-282..292)."""
        core = self._core
        core.accepting = False
        with trio.move_on_after(timeout):
            await core.wait_idle()
        graceful = not core.busy
        core.stopping = True
        if core.busy:
            for turn in list(core.turns.values()):
                turn.interrupt(InterruptReason.SYSTEM_SHUTDOWN)
            with trio.move_on_after(CANCEL_LIMIT):
                await core.wait_idle()
        if core.busy:
            for turn in list(core.turns.values()):
                if turn.scope is not None:
                    turn.scope.cancel()
            # Long enough for what was not started to be put back.
            with trio.move_on_after(2 * CANCEL_LIMIT):
                await core.wait_idle()
        self._forwards.close()
        await core.cache.close_all()
        for seat in list(core.seats.values()):
            if seat.gate in (None, Gate.RETURN):
                await core.return_lease(seat)
            else:
                log.warning("session %r has a turn that cannot be stopped; its lease will expire", seat.session_id)
                self._abandon(seat)
        with trio.move_on_after(core.config.lock_lease):
            await core.wait_returned()
        core.events.complete_all()
        core.is_closed = True
        await self._subscriptions.end_all()
        return graceful
