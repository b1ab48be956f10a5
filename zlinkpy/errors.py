"""One exception tree, and the public error kinds (SA-248, wire.md §7).

Everything an application can catch is a `ZlinkError`; `kind` is what programs decide on, the text is for people.
There is no retry hint on purpose: only the caller knows whether repeating is safe.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ErrorKind(IntEnum):
    """The closed list of public kinds and their published numbers (SA-248)."""

    NOT_FOUND = 0
    ALREADY_EXISTS = 1
    TYPE_MISMATCH = 2
    NOT_CONFIGURED = 3
    REJECTED = 4
    UNAVAILABLE = 5
    DEADLINE_EXCEEDED = 6
    SHUTTING_DOWN = 7
    PROTOCOL_ERROR = 8
    INVALID_OPERATION = 9
    DATA_LOST = 10
    INTERNAL_FAILURE = 11


class ZlinkError(Exception):
    """Base of every framework error. `kind` is one of `ErrorKind`; `cause` names a finer reason where one is public."""

    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL_FAILURE

    def __init__(self, message: str, *, cause: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause


class NotFoundError(ZlinkError):
    """Name not registered here, or no member known."""

    kind = ErrorKind.NOT_FOUND


class AlreadyExistsError(ZlinkError):
    kind = ErrorKind.ALREADY_EXISTS


class TypeMismatchError(ZlinkError):
    kind = ErrorKind.TYPE_MISMATCH


class NotConfiguredError(ZlinkError):
    """The call needs a role or part this host did not configure."""

    kind = ErrorKind.NOT_CONFIGURED


class RejectedError(ZlinkError):
    """A framework filter, admission or policy refused; never an application `Rejected` (SA-251)."""

    kind = ErrorKind.REJECTED


class UnavailableError(ZlinkError):
    """The target is known and cannot take the call now. `cause` may be ``"RouteNotConnected"`` (LV [D11])."""

    kind = ErrorKind.UNAVAILABLE


class DeadlineExceededError(ZlinkError):
    kind = ErrorKind.DEADLINE_EXCEEDED


class ShuttingDownError(ZlinkError):
    kind = ErrorKind.SHUTTING_DOWN


class ProtocolError(ZlinkError):
    """Bytes that break the wire format. `field` names the offending place (``"body.PayloadHead.parts"``).

    Raised by `zlinkpy.wire` for a malformed record, and by a call whose answer or payload could not be decoded.
    """

    kind = ErrorKind.PROTOCOL_ERROR

    def __init__(self, message: str, *, field: str = "", cause: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message, cause=cause)
        self.field = field
        self.problem = message


class InvalidOperationError(ZlinkError):
    kind = ErrorKind.INVALID_OPERATION


class DataLostError(ZlinkError):
    kind = ErrorKind.DATA_LOST


class InternalFailureError(ZlinkError):
    kind = ErrorKind.INTERNAL_FAILURE


class ConfigurationError(InvalidOperationError):
    """Settings or registrations that cannot work; raised no later than entering `host.run()`, before any bind.

    The text names the place (key, class, file and line where known) and the fix.
    """


_BY_KIND: dict[ErrorKind, type[ZlinkError]] = {
    cls.kind: cls
    for cls in (
        NotFoundError,
        AlreadyExistsError,
        TypeMismatchError,
        NotConfiguredError,
        RejectedError,
        UnavailableError,
        DeadlineExceededError,
        ShuttingDownError,
        ProtocolError,
        InvalidOperationError,
        DataLostError,
        InternalFailureError,
    )
}


def error_for_kind(kind: ErrorKind, message: str, *, cause: str | None = None) -> ZlinkError:
    """Build the exception class that belongs to `kind`."""
    return _BY_KIND[kind](message, cause=cause)
