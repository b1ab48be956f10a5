"""The last record on a connection: what a peer is told when this side ends it (wire.md §2 command 55, §12).

A peer that hears why does not have to guess: it records the reason instead of a transport error, and a person finds
the field that broke the format in its log. Where the record would not be heard (the link is broken, the peer is silent)
nothing is sent and the lanes are cut.
"""

from __future__ import annotations

from zlinkpy.link.failure import FailureReason
from zlinkpy.link.revisions import IdentityChange
from zlinkpy.wire import Close, CloseReason


def close_for_changed_identity(change: IdentityChange) -> Close:
    """`close 4` for an update that speaks for another node, or another run of it (LV-121)."""
    return Close(CloseReason.PROTOCOL_ERROR, change.field, "changed after admission")


def close_for_failure(reason: FailureReason) -> Close | None:
    """What to say when the connection is judged over for `reason`; None where nobody would hear it."""
    match reason:
        case FailureReason.TRANSPORT_ERROR | FailureReason.PEER_DEADLINE:
            return None
        case FailureReason.REPLACED:
            return Close(CloseReason.REPLACED)
        case _:
            return Close(CloseReason.ORDERLY)
