"""The end of a message: its reservation, its announcement, its future (facts §6; SR §11, §12, F6).

    success       mark_done, then TURN_RESULT, then who waits here, then unbind
    interrupted   SYSTEM_SHUTDOWN or SESSION_RELEASED, with a result: free the key, then as above (SR-447)
    failure       free the key, unbind, TURN_RESULT, then who waits here (SR-414..416)

The key is always dealt with first: who retries from a callback finds it free, or the result. A store that does not
answer delays a failure by 1 s at most; the sweep frees the key then. A result that could not be written is announced
all the same and written as soon as the store answers, and its key is touched until then: the sweep must not report a
turn that succeeded (SR-428).
"""

from __future__ import annotations

from typing import Final

import trio
from attrs import define, field

from zlinkpy.sessions.core import HeldLease, RouterCore, log
from zlinkpy.sessions.errors import SessionBackendError
from zlinkpy.sessions.forwarding import Forwards
from zlinkpy.sessions.futures import TurnFuture
from zlinkpy.sessions.payloads import TurnFailure, TurnOutcome, encode_outcome
from zlinkpy.sessions.takeover_machine import Takeover, Verdict, plan
from zlinkpy.sessions.types import InboundMessage, Priority, SignalKind, TurnResult

KEY_LIMIT: Final = 1.0
"""Seconds a failure waits for its key to be freed."""
KEY_PAUSE: Final = 0.2
WRITE_PAUSE: Final = 1.0
"""Seconds between the tries to write a result."""


@define(eq=False)
class Work:
    """One message on its way through a pass. `future` is the submit's that opened the pass, for its own message."""

    message: InboundMessage
    turn_id: str
    future: TurnFuture | None = None
    reserver: str | None = None
    """Holds the message's key, if somebody does."""
    takeover: Takeover | None = None
    is_bound: bool = False
    is_settled: bool = False
    error: BaseException | None = field(default=None)
    """What the own caller gets for a failure instead of what the others get."""

    @property
    def priority(self) -> Priority:
        return self.message.priority

    @property
    def delivered_at(self) -> float | None:
        return self.message.delivered_at

    @property
    def handler_ref(self) -> str:
        return self.message.handler_ref

    @property
    def key(self) -> str | None:
        return self.message.idempotency_key


class Settlement:
    """Ends messages of passes."""

    def __init__(self, core: RouterCore, forwards: Forwards) -> None:
        self._core = core
        self._forwards = forwards

    async def take_over(self, work: Work, held: HeldLease) -> None:
        """Get the message's reservation before its turn (SR-193..202). What was taken over stays so."""
        if work.takeover is not None:
            return
        if work.key is None:
            work.takeover = plan(Verdict.KEYLESS)
            return
        core = self._core
        reserver = core.reserver_id()
        try:
            won = await core.idempotency.acquire_holder(work.key, reserver, core.config.idempotency_secondary_ttl)
            verdict = Verdict.WON if won else Verdict.REFUSED
        except SessionBackendError as error:
            log.warning("a reservation may or may not have been taken over: %s", error)
            verdict = Verdict.UNKNOWN
        work.takeover = plan(verdict)
        if verdict is Verdict.REFUSED:
            core.metrics.on_reservation_takeover_refused()
            return
        work.reserver = reserver
        self.bind(work, held)

    def bind(self, work: Work, held: HeldLease) -> None:
        """Keep the reservation alive with the lease."""
        if work.key is not None and work.reserver is not None and not work.is_bound:
            held.slot.bind(work.key, work.reserver)
            work.is_bound = True

    def unbind(self, work: Work, held: HeldLease | None) -> None:
        if work.is_bound and work.key is not None and work.reserver is not None and held is not None:
            held.slot.unbind(work.key, work.reserver)
        work.is_bound = False

    async def succeed(self, work: Work, result: TurnResult, held: HeldLease, *, cached: bool) -> None:
        """The turn returned a result; `cached` False: it was stopped, and a retry shall run again.

        Neither this nor `fail` raises or is cut short: nobody else would tell who waits. Both end in bounded time.
        """
        work.is_settled = True
        with trio.CancelScope(shield=True):
            await self._succeed(work, result, held, cached=cached)

    async def _succeed(self, work: Work, result: TurnResult, held: HeldLease, *, cached: bool) -> None:
        if not cached:
            await self.free_key(work)
        elif work.key is not None and work.reserver is not None and work.takeover is not None and work.takeover.write:
            try:
                await self._core.idempotency.mark_done(
                    work.key, result, work.reserver, allow_unheld=work.takeover.allow_unheld
                )
            except Exception as error:  # noqa: BLE001 - a store of the application's may raise anything
                log.warning("the result of a turn could not be written yet: %r", error)
                self._core.background_nursery.start_soon(self._write_later, work, result)
        await self._announce(work, result)
        self.unbind(work, held)

    async def fail(self, work: Work, failure: TurnFailure, held: HeldLease | None) -> None:
        """The turn has no result. A message is failed once; a second failure of it changes nothing."""
        if work.is_settled:
            return
        work.is_settled = True
        with trio.CancelScope(shield=True):
            await self.free_key(work)
            self.unbind(work, held)
            await self._announce(work, failure)

    async def fail_address(self, session_id: str, turn_id: str | None, key: str | None, failure: TurnFailure) -> None:
        """Fail whoever waits for an entry that cannot be read (SR-203, SR-204)."""
        if turn_id is None and key is None:
            log.debug("an unreadable message of session %r has no address", session_id)
            return
        if key is not None:
            await self.free(key, None, discard=True)
        await self._tell(session_id, TurnOutcome(failure, turn_id, key))

    async def free_key(self, work: Work) -> None:
        """Make the key usable again, unless it is somebody else's."""
        if work.key is None or (work.takeover is not None and work.takeover.verdict is Verdict.REFUSED):
            return
        discard = work.reserver is None or (work.takeover is not None and work.takeover.discard)
        await self.free(work.key, work.reserver, discard=discard)

    async def free(self, key: str, reserver: str | None, *, discard: bool) -> None:
        """Free a key that `reserver` holds, or, with `discard`, one that nobody holds. Takes 1 s at most."""
        idempotency = self._core.idempotency
        with trio.move_on_after(KEY_LIMIT):
            while True:
                try:
                    if reserver is not None and await idempotency.compare_and_reset(key, reserver):
                        return
                    if discard:
                        await idempotency.discard_reservation(key)
                except Exception as error:  # noqa: BLE001 - a store of the application's may raise anything
                    log.warning("a key was not freed yet: %r", error)
                    await trio.sleep(KEY_PAUSE)
                    continue
                return

    async def _write_later(self, work: Work, result: TurnResult) -> None:
        assert work.key is not None
        assert work.reserver is not None
        assert work.takeover is not None
        idempotency = self._core.idempotency
        with trio.move_on_after(self._core.config.idempotency_forward_ttl):
            while True:
                await trio.sleep(WRITE_PAUSE)
                try:
                    await idempotency.touch(work.key, work.reserver)
                    await idempotency.mark_done(
                        work.key, result, work.reserver, allow_unheld=work.takeover.allow_unheld
                    )
                except Exception as error:  # noqa: BLE001 - as above
                    log.debug("the result of a turn could not be written yet: %r", error)
                    continue
                return

    async def _announce(self, work: Work, ended: TurnResult | TurnFailure) -> None:
        outcome = TurnOutcome(ended, work.turn_id, work.key, work.message.epoch)
        # Nobody but its caller can wait for a keyless input of the submit that opened the pass.
        if work.future is None or work.key is not None:
            await self._tell(work.message.session_id, outcome)
        if work.future is not None:
            work.future.set((work.error or ended.error()) if isinstance(ended, TurnFailure) else ended)

    async def _tell(self, session_id: str, outcome: TurnOutcome) -> None:
        core = self._core
        await core.publish(core.signal(session_id, SignalKind.TURN_RESULT, encode_outcome(outcome)))
        self._forwards.resolve(outcome)
