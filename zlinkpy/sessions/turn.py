"""One turn: read the record, run the handler, commit under the fence (facts §6; SR F5, §9, §10).

    what happened                                             the turn's end
    the handler returned a result, nothing to commit          the result
    the handler returned a result, commit OK                  the result
    commit FENCED or ABSENT, or the lease was lost            LEASE_LOST; nothing was written
    commit unanswered                                         repeated under the turn's id while the lease lasts
    the handler raised, or was cancelled                      FAILED
    the record could not be read                              FAILED

ABSENT counts as a lost lease: the claim made the record, so whoever deleted it came after this node.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

import trio
from attrs import define, field

from zlinkpy.execution.failures import is_failure
from zlinkpy.sessions.core import HeldLease, RouterCore, RunningTurn, log
from zlinkpy.sessions.errors import LeaseLostError, SessionBackendError, SessionNotHeldError, TurnFailedError
from zlinkpy.sessions.event_rail import TurnRelay
from zlinkpy.sessions.events import TurnCompleted, TurnEvent, TurnFailed
from zlinkpy.sessions.payloads import TurnFailure
from zlinkpy.sessions.settlement import Work
from zlinkpy.sessions.types import FailureCode, Principal, SessionRecordView, TurnInput, TurnResult, Write

COMMIT_PAUSE: Final = 0.5
REFUSED_COMMITS: Final = 4
"""Tries of a commit that surely had no effect."""


@define(eq=False, kw_only=True)
class TurnContextOfRouter:
    """The `TurnContext` a handler gets."""

    session_id: str
    turn_id: str
    input: TurnInput
    submit_options: Mapping[str, Any]
    initiator: Principal | None
    state: bytes | None
    version: int
    attrs: dict[str, Any]
    nursery: trio.Nursery
    _relay: TurnRelay = field(alias="relay")

    def emit(self, event: TurnEvent) -> None:
        """Send one event to the session's subscribers; never waits."""
        self._relay.emit(event)


async def run_turn(core: RouterCore, work: Work, running: RunningTurn, held: HeldLease) -> TurnResult | TurnFailure:
    """Run one message; sets `work.error` where the own caller gets more than the others."""
    session_id = work.message.session_id
    try:
        view = await core.store.load(session_id)
    except SessionBackendError as error:
        work.error = turn_failed(error)
        return TurnFailure(FailureCode.FAILED, f"the session's record could not be read: {error}")
    view = view or SessionRecordView(session_id)
    relay = core.events.open_relay(session_id, work.turn_id)
    running.turn_id, running.scope, running.reasons = work.turn_id, trio.CancelScope(), set()
    try:
        ended = await _handled(core, work, running, held, view, relay)
        if isinstance(ended, TurnResult):
            relay.emit(TurnCompleted(success=ended.success, answer=ended.answer, completion=ended.completion))
        else:
            relay.emit(TurnFailed(ended.message, work.error.__cause__ if work.error is not None else None))
        return ended
    finally:
        with trio.CancelScope(shield=True):
            await relay.aclose()


async def _handled(
    core: RouterCore, work: Work, running: RunningTurn, held: HeldLease, view: SessionRecordView, relay: TurnRelay
) -> TurnResult | TurnFailure:
    message = work.message
    attrs = deepcopy(dict(view.attrs))
    result: object = None
    context: TurnContextOfRouter | None = None
    scope = running.scope
    assert scope is not None
    try:
        with scope:
            async with trio.open_nursery() as nursery:
                context = TurnContextOfRouter(
                    session_id=message.session_id,
                    turn_id=work.turn_id,
                    input=message.input,
                    submit_options=message.submit_options,
                    initiator=message.initiator,
                    state=view.state,
                    version=view.version,
                    attrs=attrs,
                    nursery=nursery,
                    relay=relay,
                )
                result = await running.session.run_turn(context)
                nursery.cancel_scope.cancel()
    except BaseException as raised:
        if not is_failure(raised):
            raise
        error = raised
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if held.is_usable:
            log.info("turn %s of session %r raised %r", work.turn_id, message.session_id, error)
            work.error = turn_failed(error)
            return TurnFailure.of(work.error)
    finally:
        # What interrupts from here on comes too late to have stopped it, though it is not committed yet.
        running.turn_id = running.scope = None
    if not held.is_usable:
        return _lost(work)
    if not isinstance(result, TurnResult):
        why = "was cancelled" if scope.cancelled_caught else f"returned {type(result).__name__}, no TurnResult"
        return TurnFailure(FailureCode.FAILED, f"turn {work.turn_id} {why}")
    assert context is not None
    if context.state != view.state or context.attrs != dict(view.attrs):
        return await _committed(core, work, held, context, result)
    return result


async def _committed(
    core: RouterCore, work: Work, held: HeldLease, context: TurnContextOfRouter, result: TurnResult
) -> TurnResult | TurnFailure:
    refused = 0
    while held.is_usable:
        try:
            written = await core.store.records().commit(
                context.session_id, context.state, context.attrs, turn_id=work.turn_id
            )
        except SessionNotHeldError:
            core.lease_lost(held)
            break
        except SessionBackendError as error:
            refused += error.applied == "no"
            log.warning("the state of session %r was not committed yet: %s", context.session_id, error)
            if refused >= REFUSED_COMMITS:
                work.error = turn_failed(error)
                return TurnFailure(FailureCode.FAILED, f"the session's state could not be written: {error}")
            await trio.sleep(COMMIT_PAUSE)
            continue
        if written is Write.OK:
            # A lease that was lost meanwhile changes nothing: what is written under the fence is written.
            return result
        core.lease_lost(held)
    return _lost(work)


def _lost(work: Work) -> TurnFailure:
    work.error = LeaseLostError(f"turn {work.turn_id} lost the lease of its session; nothing was committed")
    return TurnFailure(FailureCode.LEASE_LOST, str(work.error))


def turn_failed(error: BaseException) -> TurnFailedError:
    """What the caller of a turn gets for an exception of its handler."""
    failed = TurnFailedError(str(error) or type(error).__name__)
    failed.__cause__ = error
    return failed
