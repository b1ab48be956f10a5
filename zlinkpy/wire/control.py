"""Records that keep a connection: admission, liveness, receive flow and close (1-6, 54, 55)."""

from __future__ import annotations

from typing import Annotated

from attrs import field as attribute
from attrs import frozen

from zlinkpy.errors import ProtocolError
from zlinkpy.wire.admission import Admission
from zlinkpy.wire.composite import present_if
from zlinkpy.wire.enums import CloseReason, FlowState, Lane, RejectReason
from zlinkpy.wire.limits import PROBLEM_MAX, TEXT_MAX
from zlinkpy.wire.schema import Bin, Gen, Str, Text

PairId = Annotated[bytes, Bin("bin8", 8, 8)]


@frozen
class Hello:
    """First record of the dialler. `lane` and `pair_id` are given on RouteMesh and None on ClientServer."""

    admission: Admission
    lane: Lane | None = None
    pair_id: PairId | None = None


@frozen
class Admit:
    """The acceptor's own admission, with the hello's lane and pair id echoed on RouteMesh."""

    admission: Admission
    lane: Lane | None = None
    pair_id: PairId | None = None


@frozen
class Reject:
    """The acceptor's refusal; the connection ends with it."""

    reason: RejectReason


@frozen
class Update:
    """A newer revision of the sender's admission."""

    admission: Admission


@frozen
class LivenessProbe:
    """Ask the peer for one `LivenessAck` with the same id (LV-41)."""

    probe_id: Gen


@frozen
class LivenessAck:
    probe_id: Gen


@frozen
class ReceiveFlow:
    """The absolute receive state of the sender's job queue."""

    state: FlowState


@frozen
class Close:
    """Last record on a connection. `field` and `problem` travel with `CloseReason.PROTOCOL_ERROR` only.

    Args:
        field: the `ProtocolError.field` the sender refused, 1..255 bytes.
        problem: for people, 0..256 bytes.
    """

    reason: CloseReason
    field: Text = attribute(default="", metadata=present_if(CloseReason.PROTOCOL_ERROR))
    problem: Annotated[str, Str("str 0..256", 0, PROBLEM_MAX)] = attribute(
        default="", metadata=present_if(CloseReason.PROTOCOL_ERROR)
    )


def close_for(error: ProtocolError) -> Close:
    """The `Close` that tells a peer which of its bytes were refused, shortened to what the record can hold."""
    return Close(
        CloseReason.PROTOCOL_ERROR,
        _shortened(error.field.replace("\0", ""), TEXT_MAX) or "record",
        _shortened(error.problem, PROBLEM_MAX),
    )


def _shortened(text: str, limit: int) -> str:
    # Cutting may split a character; what is left of it is dropped.
    return text.encode(errors="replace")[:limit].decode(errors="ignore")


__all__ = [
    "Admit",
    "Close",
    "Hello",
    "LivenessAck",
    "LivenessProbe",
    "ReceiveFlow",
    "Reject",
    "Update",
    "close_for",
]
