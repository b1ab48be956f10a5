"""Why a connection ended: one closed list for the log line, the metric label and the snapshot (LV [D4]).

The list is closed because metric labels are (LV-167): a free text would smuggle endpoints and RIDs into labels. What is
particular to one case stands in `Failure.detail`, which is for people.
"""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen

from zlinkpy.wire import CloseReason, RejectReason


class FailureReason(StrEnum):
    """`last_failure.reason` of a peer (LV [D4])."""

    ORDERLY_CLOSE = "orderly_close"
    TRANSPORT_ERROR = "transport_error"
    PEER_DEADLINE = "peer_deadline"
    PUBLISHER_SILENT = "publisher_silent"
    IDENTITY_MISMATCH = "identity_mismatch"
    GENERATION_MISMATCH = "generation_mismatch"
    SECURITY_MISMATCH = "security_mismatch"
    PROTOCOL_ERROR = "protocol_error"
    REPLACED = "replaced"
    HOST_NOT_SERVING = "host_not_serving"
    REJECTED = "rejected"


@frozen
class Failure:
    """How one connection ended.

    Args:
        reason: the closed reason, also the metric label.
        detail: a sentence for people; may name identities and never becomes a label.
        at: monotonic seconds at which it was decided.
    """

    reason: FailureReason
    detail: str
    at: float


_OF_REJECT: dict[RejectReason, FailureReason] = {
    RejectReason.IDENTITY_MISMATCH: FailureReason.IDENTITY_MISMATCH,
    RejectReason.SECURITY_IDENTITY_MISMATCH: FailureReason.SECURITY_MISMATCH,
    RejectReason.LIFECYCLE_GENERATION_STALE: FailureReason.GENERATION_MISMATCH,
    RejectReason.RUNTIME_NOT_SERVING: FailureReason.HOST_NOT_SERVING,
}

_OF_CLOSE: dict[CloseReason, FailureReason] = {
    CloseReason.ORDERLY: FailureReason.ORDERLY_CLOSE,
    CloseReason.DRAINING: FailureReason.ORDERLY_CLOSE,
    CloseReason.REPLACED: FailureReason.REPLACED,
    CloseReason.PROTOCOL_ERROR: FailureReason.PROTOCOL_ERROR,
}


def reason_of_reject(reject: RejectReason) -> FailureReason:
    """The failure a refused admission is recorded as: the matching mismatch, else `rejected` (LV-22).

    `NOT_REQUIRED` is no failure at all (LV-36); callers decide that case before they ask.
    """
    return _OF_REJECT.get(reject, FailureReason.REJECTED)


def reason_of_close(close: CloseReason) -> FailureReason:
    """The failure a `close` record stands for (wire.md §12)."""
    return _OF_CLOSE[close]
