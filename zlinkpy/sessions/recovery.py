"""Holders that are lost, and messages that nobody waits for (SR §14; SR-406..410).

Recovery of one lost reservation has one winner in the cluster: whoever resets the entry. The winner tells everybody,
and only tells: no EVICT, no completed stream, nothing of a session that a successor may be serving already.
"""

from __future__ import annotations

from typing import Final

import trio

from zlinkpy.sessions.core import RouterCore, log
from zlinkpy.sessions.errors import IdempotencyStoreError, SessionBackendError
from zlinkpy.sessions.events import InterruptedAt
from zlinkpy.sessions.forwarding import Forwards
from zlinkpy.sessions.payloads import TurnFailure, TurnOutcome, encode_outcome
from zlinkpy.sessions.types import FailureCode, IdempotencyEntry, InterruptReason, SignalKind

SWEEP_LIMIT: Final = 100
"""Lost entries per sweep, and sessions per page of the orphan scan."""


class Recovery:
    """Announces lost holders."""

    def __init__(self, core: RouterCore, forwards: Forwards) -> None:
        self._core, self._forwards = core, forwards

    async def reset(self, entry: IdempotencyEntry) -> bool:
        """Free a stale key; True for the one who has to `announce`. An answer that was lost counts as won when the
        attempt is gone: announcing twice does no harm, not announcing does (SR-429)."""
        idempotency = self._core.idempotency
        if entry.holder_id is None:
            return False
        try:
            return await idempotency.compare_and_reset(entry.key, entry.holder_id)
        except IdempotencyStoreError as error:
            if error.applied == "no":
                raise
        now = await idempotency.find(entry.key)
        return now is None or now.epoch != entry.epoch

    async def announce(self, entry: IdempotencyEntry) -> None:
        """Say that whoever ran it is lost: to the session's subscribers, then to who waits for the key (SR-241)."""
        core = self._core
        core.metrics.on_holder_loss_recovered()
        event = InterruptedAt(InterruptReason.HOLDER_LOST)
        try:
            core.events.emit(entry.session_id, event)
        except Exception:  # noqa: BLE001 - a subscriber's own code
            log.exception("telling the subscribers of session %r raised", entry.session_id)
        await core.events.publish(entry.session_id, event)
        failure = TurnFailure(FailureCode.HOLDER_LOST, "the node that ran the turn stopped keeping its claim alive")
        outcome = TurnOutcome(failure, None, entry.key, entry.epoch)
        await core.publish(core.signal(entry.session_id, SignalKind.TURN_RESULT, encode_outcome(outcome)))
        self._forwards.resolve(outcome)

    async def sweep(self) -> None:
        """Look for lost holders once; one bad entry does not keep the others (SR-247)."""
        core = self._core
        try:
            stale = await core.idempotency.find_stale_in_flight(core.config.idempotency_secondary_ttl, SWEEP_LIMIT)
        except SessionBackendError as error:
            log.warning("lost holders could not be looked for: %s", error)
            return
        for entry in stale:
            try:
                if await self.reset(entry):
                    log.warning("the holder of a turn of session %r was lost", entry.session_id)
                    await self.announce(entry)
            except SessionBackendError as error:
                log.warning("a lost holder could not be recovered yet: %s", error)
            except Exception:  # noqa: BLE001 - one entry
                log.exception("recovering a lost holder raised")

    async def sweep_for_ever(self) -> None:
        """The holder-loss service."""
        while True:
            await trio.sleep(self._core.config.holder_loss_sweep_interval)
            await self.sweep()


class OrphanScan:
    """Finds messages that have waited for long, and rings for those that this node may run (SR-407..409)."""

    def __init__(self, core: RouterCore) -> None:
        self._core = core

    async def scan(self) -> None:
        """One scan, page by page."""
        core = self._core
        cursor: str | None = None
        while core.accepting:
            try:
                found, cursor = await core.inbox.scan_pending(core.config.orphan_age, SWEEP_LIMIT, cursor)
                for session_id in found:
                    await self._look(session_id)
            except SessionBackendError as error:
                log.warning("messages that nobody waits for could not be looked for: %s", error)
                return
            if cursor is None:
                return

    async def _look(self, session_id: str) -> None:
        core = self._core
        seat = core.seats.get(session_id)
        if seat is not None and core.usable(seat) is not None:
            if seat.gate is None:
                core.ring(session_id)
            return
        if await core.store.find_holder(session_id) is not None:
            return
        view = await core.store.load(session_id)
        if view is None or view.handler_ref is None or core.registry.knows(view.handler_ref):
            core.rescuing.add(session_id)
            core.ring(session_id)

    async def scan_for_ever(self) -> None:
        """The orphan service."""
        while True:
            await trio.sleep(self._core.config.orphan_scan_interval)
            await self.scan()
