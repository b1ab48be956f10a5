"""What can go wrong in the session router, as one branch of the public exception tree.

Two families. *Store errors* say that a back end did not answer or refused; each carries `applied`, because whoever
repeats a step must know whether the first try can have taken effect. *Outcomes* end a submit or a turn's future.

`status_hint` is the HTTP status an adapter answers with, where one status is right for every caller (SR-144).
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from zlinkpy.errors import ErrorKind, ZlinkError

AppliedHint: TypeAlias = Literal["no", "unknown"]


class SessionError(ZlinkError):
    """Base of every error of the session router."""

    status_hint: ClassVar[int | None] = None


class SessionBackendError(SessionError):
    """A store or bus call failed.

    `applied` is ``"no"`` only when the call surely had no effect (refused connection, error reply); a lost answer is
    ``"unknown"`` (SR-421). The text names the store, never a session, key or command.
    """

    kind = ErrorKind.UNAVAILABLE

    def __init__(self, message: str, *, applied: AppliedHint = "unknown", cause: str | None = None) -> None:
        super().__init__(message, cause=cause)
        self.applied: AppliedHint = applied


class SessionLeaseError(SessionBackendError):
    """The lease store did not answer (SR-040)."""

    status_hint = 503


class SessionRecordError(SessionBackendError):
    """The record store did not answer, or holds a record that cannot be read."""


class SessionInboxError(SessionBackendError):
    """The inbox did not answer (SR-076)."""


class IdempotencyStoreError(SessionBackendError):
    """The idempotency store did not answer (SR-108)."""


class SessionSignalError(SessionBackendError):
    """The signal bus did not take a signal, or could not subscribe."""


class SignalPayloadError(SessionError):
    """A signal whose payload holds something else than plain values, or too much; nothing was sent (SR-084, SR-395)."""

    kind = ErrorKind.INVALID_OPERATION


class SessionNotHeldError(SessionError):
    """A fenced write by a node that does not provably hold the session's lease (SR-051)."""

    kind = ErrorKind.INVALID_OPERATION


class RouterClosedError(SessionError):
    """The router is closing or closed (SR-140)."""

    kind = ErrorKind.SHUTTING_DOWN


class ReentrantSubmitError(SessionError):
    """A turn submitted to, released or deleted its own session (SR-139, SR-443)."""

    kind = ErrorKind.INVALID_OPERATION


class UnknownHandlerError(SessionError):
    """No handler is registered here under that id (SR-027)."""

    kind = ErrorKind.NOT_FOUND


class ConflictingHandlerError(SessionError):
    """The session is bound to another handler. `requested` and `bound` are the two refs."""

    kind = ErrorKind.TYPE_MISMATCH
    status_hint = 409

    def __init__(self, requested: str, bound: str) -> None:
        super().__init__(f"the session is bound to handler {bound!r} and cannot run {requested!r}")
        self.requested = requested
        self.bound = bound


class IdempotencyConflictError(SessionError):
    """The idempotency key was used with another input or another session (SR-216, SR-220)."""

    kind = ErrorKind.REJECTED
    status_hint = 409


class SessionBusyError(SessionError):
    """A delete could not get the session within its budget; try again."""

    kind = ErrorKind.UNAVAILABLE


class SessionEvictedError(SessionError):
    """The session was released or deleted while a forwarded submit waited."""

    kind = ErrorKind.UNAVAILABLE


class ForwardTimeoutError(SessionError):
    """A forwarded submit got no answer within the forward TTL (SR-134)."""

    kind = ErrorKind.DEADLINE_EXCEEDED


class ReservationLostError(SessionError):
    """The idempotency entry a forwarded submit waited for is gone."""

    kind = ErrorKind.DATA_LOST


class TurnFailedError(SessionError):
    """The turn failed (code FAILED)."""


class HolderLostError(SessionError):
    """The node that ran the turn stopped renewing its claim (code HOLDER_LOST)."""

    kind = ErrorKind.UNAVAILABLE


class NotHolderError(SessionError):
    """A message could neither be run nor be put back (code NOT_HOLDER)."""

    kind = ErrorKind.UNAVAILABLE


class UnreadableMessageError(SessionError):
    """The queued message could not be decoded (code UNREADABLE)."""

    kind = ErrorKind.PROTOCOL_ERROR


class LeaseLostError(SessionError):
    """The turn lost its lease; nothing it did was committed (code LEASE_LOST)."""

    kind = ErrorKind.UNAVAILABLE
