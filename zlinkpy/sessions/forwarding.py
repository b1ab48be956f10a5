"""Waiting for turns that run somewhere else: `forward_machine` with tasks (SR §13).

One task per forward polls its key and re-rings; the answer usually comes over the bus and ends it. Ringing is
published as well as done here: a lease lives as long as its handle, so an idle live holder that missed the one signal
would otherwise be neither told nor replaced (SR-432).
"""

from __future__ import annotations

import trio

from zlinkpy.sessions.core import RouterCore, log
from zlinkpy.sessions.errors import (
    ForwardTimeoutError,
    ReservationLostError,
    RouterClosedError,
    SessionBackendError,
    SessionError,
    SessionEvictedError,
)
from zlinkpy.sessions.forward_machine import LAST_SECOND, Forward, ForwardStep, Looked
from zlinkpy.sessions.futures import TurnFuture
from zlinkpy.sessions.payloads import TurnFailure, TurnOutcome
from zlinkpy.sessions.types import IdempotencyStatus, TurnResult

Waiting = Forward[TurnFuture]


class Forwards:
    """All waiting futures of a router and the tasks that look after them."""

    def __init__(self, core: RouterCore) -> None:
        self._core = core
        self._is_closed = False

    def register(
        self, session_id: str, turn_id: str, future: TurnFuture, *, key: str | None, epoch: str | None
    ) -> Waiting:
        """Make a future findable. `watch` follows once the message is delivered, or the forward is withdrawn.

        Raises RouterClosedError when nobody will look after it any more.
        """
        if self._is_closed:
            raise _closed(turn_id)
        config, now = self._core.config, trio.current_time()
        forward = Forward(
            session_id=session_id,
            turn_id=turn_id,
            future=future,
            deadline=now + config.idempotency_forward_ttl,
            key=key,
            epoch=epoch,
            poll_interval=config.forward_poll_interval,
            rering_interval=config.forward_rering_interval,
        )
        forward.start(now)
        self._core.forwards.add(forward)
        return forward

    def watch(self, forward: Waiting) -> None:
        """Poll, re-ring and give up in time."""
        if self._is_closed:
            self.settle(forward, _closed(forward.turn_id))
        elif forward.waiting:
            self._core.forward_nursery.start_soon(self._watch, forward)

    async def _watch(self, forward: Waiting) -> None:
        answered = trio.Event()
        forward.future.add_done_callback(lambda _: answered.set())
        while forward.waiting:
            with trio.move_on_at(forward.next_deadline()):
                await answered.wait()
            for step in forward.due(trio.current_time()):
                # Whatever the stores do, the deadline stands (SR-411, SR-412).
                with trio.move_on_at(forward.deadline):
                    if step is ForwardStep.POLL:
                        await self.look(forward)
                    elif step is ForwardStep.RERING and forward.waiting:
                        await self._ring_again(forward)
                if step is ForwardStep.EXPIRE:
                    await self._expire(forward)

    async def look(self, forward: Waiting, *, is_last: bool = False) -> None:
        """Ask the store what became of the key. At the deadline the reservation ends as well, which says nothing."""
        if forward.key is None:
            return
        try:
            async with self._core.poll_limit:
                entry = await self._core.idempotency.find(forward.key)
        except SessionBackendError as error:
            forward.last_error = error
            log.warning("the outcome of a forwarded turn could not be looked up: %s", error)
            return
        found = forward.looked(
            found=entry is not None,
            done=entry is not None and entry.status is IdempotencyStatus.DONE,
            epoch=entry.epoch if entry is not None else None,
        )
        if found is Looked.COMPLETE and entry is not None and entry.result is not None:
            self.settle(forward, entry.result)
        elif found is Looked.GONE and not is_last:
            self.settle(
                forward,
                ReservationLostError(
                    f"nothing is known any more of turn {forward.turn_id} of session {forward.session_id!r}: "
                    "its reservation is gone"
                ),
            )

    async def _ring_again(self, forward: Waiting) -> None:
        core = self._core
        # The bus may not have taken the subscription when the turn was submitted.
        await core.ensure_subscribed(forward.session_id)
        try:
            async with core.poll_limit:
                if await core.inbox.is_empty(forward.session_id):
                    return
        except SessionBackendError as error:
            log.warning("whether messages wait could not be looked up, so it is rung: %s", error)
        core.metrics.on_forward_doorbell_rerung()
        await core.ring_peers(forward.session_id, forward.inbox_id or "", forward.turn_id)
        core.ring(forward.session_id)

    async def _expire(self, forward: Waiting) -> None:
        """One last look; then the message is taken back, so that nothing runs behind the caller's retry (SR-435)."""
        # A little less: what hangs must not make the future late.
        with trio.move_on_after(0.9 * LAST_SECOND):
            await self.look(forward, is_last=True)
            if forward.waiting:
                await self.take_back(forward)
        error = ForwardTimeoutError(
            f"turn {forward.turn_id} of session {forward.session_id!r} was not answered within "
            f"{self._core.config.idempotency_forward_ttl:g} s"
        )
        error.__cause__ = forward.last_error
        self.settle(forward, error)

    async def take_back(self, forward: Waiting) -> None:
        """Withdraw the forward's own message and free its key, if nobody collected it."""
        core = self._core
        if forward.inbox_id is None:
            return
        try:
            if await core.inbox.withdraw(forward.session_id, forward.inbox_id) and forward.key is not None:
                await core.idempotency.discard_reservation(forward.key)
        except SessionBackendError as error:
            forward.last_error = error
            log.warning("a message that nobody waits for was not withdrawn: %s", error)

    # -- settling

    def settle(self, forward: Waiting, outcome: TurnResult | SessionError) -> None:
        """Withdraw, then settle; once."""
        if self._core.forwards.withdraw(forward):
            forward.future.set(outcome)

    def resolve(self, outcome: TurnOutcome) -> None:
        """A turn ended, here or elsewhere: settle who waits for it."""
        found = self._core.forwards.resolve(outcome.turn_id, outcome.idempotency_key, outcome.epoch)
        for forward in found:
            ended = outcome.ended
            forward.future.set(ended.error() if isinstance(ended, TurnFailure) else ended)

    async def evict(self, session_id: str, origin: str) -> None:
        """The session is gone: every waiting future fails, each after its own message was taken back (SR-437)."""
        for forward in self._core.forwards.of_session(session_id):
            with trio.move_on_after(LAST_SECOND):
                await self.take_back(forward)
            self.settle(
                forward,
                SessionEvictedError(
                    f"session {session_id!r} was released or deleted by {origin} while turn {forward.turn_id} waited"
                ),
            )

    def close(self) -> None:
        """The router closes: nobody will look after the futures any more (SR-239)."""
        self._is_closed = True
        for forward in self._core.forwards:
            self.settle(forward, _closed(forward.turn_id))


def _closed(turn_id: str) -> RouterClosedError:
    return RouterClosedError(f"the router closed while turn {turn_id} waited")
