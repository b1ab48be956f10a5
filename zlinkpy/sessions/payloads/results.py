"""TURN_RESULT payloads: how one turn ended, addressed by turn id, by idempotency key, or both.

A result loses its artifacts (SR-355). A failure is a code and a text; a code that this build does not know is read as
FAILED and keeps its text, because what would be lost otherwise is somebody's future (SR-356).
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from zlinkpy.sessions.errors import (
    ConflictingHandlerError,
    HolderLostError,
    LeaseLostError,
    NotHolderError,
    SessionError,
    TurnFailedError,
    UnreadableMessageError,
)
from zlinkpy.sessions.payloads.values import Malformed, Values, guarded, pack, unpack, without_nulls
from zlinkpy.sessions.types import FailureCode, TurnResult

_RESULT = "RESULT"
_ERRORS: dict[FailureCode, type[SessionError]] = {
    FailureCode.FAILED: TurnFailedError,
    FailureCode.REJECTED: TurnFailedError,
    FailureCode.HOLDER_LOST: HolderLostError,
    FailureCode.NOT_HOLDER: NotHolderError,
    FailureCode.UNREADABLE: UnreadableMessageError,
    FailureCode.LEASE_LOST: LeaseLostError,
}


@frozen
class TurnFailure:
    """Why a turn has no result. `requested` and `bound` are set for a handler conflict (code REJECTED)."""

    code: FailureCode
    message: str
    requested: str | None = None
    bound: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> TurnFailure:
        """The failure that `error` is announced as; an application's exception is FAILED with its text."""
        if isinstance(error, ConflictingHandlerError):
            return cls(FailureCode.REJECTED, error.message, error.requested, error.bound)
        for code, kind in _ERRORS.items():
            if type(error) is kind:
                return cls(code, str(error))
        return cls(FailureCode.FAILED, str(error) or type(error).__name__)

    def error(self) -> SessionError:
        """A new exception for whoever waits (SR-359)."""
        if self.code is FailureCode.REJECTED and self.requested is not None and self.bound is not None:
            return ConflictingHandlerError(self.requested, self.bound)
        return _ERRORS[self.code](self.message)


@frozen
class TurnOutcome:
    """The end of a turn and whom it concerns. `epoch` tells attempts of one key apart (SR-225)."""

    ended: TurnResult | TurnFailure
    turn_id: str | None = None
    idempotency_key: str | None = None
    epoch: str | None = None


def encode_outcome(outcome: TurnOutcome) -> dict[str, Any]:
    """The payload of a TURN_RESULT signal.

    Raises:
        ValueError: It has neither turn id nor key (SR-357).
    """
    if outcome.turn_id is None and outcome.idempotency_key is None:
        raise ValueError("the end of a turn is announced by turn id, by idempotency key, or both")
    address = without_nulls(turn=outcome.turn_id, idem=outcome.idempotency_key, epoch=outcome.epoch)
    match outcome.ended:
        case TurnResult() as result:
            return address | {"outcome": _RESULT} | _result_fields(result)
        case failure:
            return address | without_nulls(
                outcome=failure.code.value, message=failure.message, requested=failure.requested, bound=failure.bound
            )


def decode_outcome(payload: object) -> TurnOutcome | None:
    """The outcome; None, with a warning, for a malformed payload."""
    return guarded("TURN_RESULT", _outcome, payload)


def encode_result(result: TurnResult) -> bytes:
    """The bytes an idempotency store keeps of a result."""
    return pack(_result_fields(result))


def decode_result(data: bytes) -> TurnResult:
    """The result in those bytes. Raises whatever a bad one provokes; the store turns it into its own error."""
    return _result(Values(unpack(data)))


def _outcome(values: Values) -> TurnOutcome:
    turn_id, key = values.text("turn", None), values.text("idem", None)
    if turn_id is None and key is None:
        raise Malformed("neither turn nor idem is there")
    name = values.text("outcome")
    ended = _result(values) if name == _RESULT else _failure(name, values)
    return TurnOutcome(ended, turn_id, key, values.text("epoch", None))


def _failure(name: str, values: Values) -> TurnFailure:
    code = FailureCode.__members__.get(name, FailureCode.FAILED)
    message = values.text("message", "") or name
    return TurnFailure(code, message, values.text("requested", None), values.text("bound", None))


def _result_fields(result: TurnResult) -> dict[str, Any]:
    return without_nulls(
        success=result.success,
        answer=result.answer,
        resultError=result.error_message,
        completion=result.completion,
        streamed=result.streamed,
    )


def _result(values: Values) -> TurnResult:
    return TurnResult(
        success=values.flag("success"),
        answer=values.text("answer", None),
        error_message=values.text("resultError", None),
        completion=values.text("completion"),
        streamed=values.flag("streamed", False),
    )
