"""What crosses nodes, as plain maps and bytes. Decoding never raises: what is malformed is None and one warning."""

from __future__ import annotations

from zlinkpy.sessions.payloads.control import Evict, Interrupt, MessageEnqueued, Yield
from zlinkpy.sessions.payloads.envelope import decode_envelope, encode_envelope
from zlinkpy.sessions.payloads.events import EventCodec
from zlinkpy.sessions.payloads.results import (
    TurnFailure,
    TurnOutcome,
    decode_outcome,
    decode_result,
    encode_outcome,
    encode_result,
)
from zlinkpy.sessions.payloads.status import decode_status, encode_status

__all__ = [
    "EventCodec",
    "Evict",
    "Interrupt",
    "MessageEnqueued",
    "TurnFailure",
    "TurnOutcome",
    "Yield",
    "decode_envelope",
    "decode_outcome",
    "decode_result",
    "decode_status",
    "encode_envelope",
    "encode_outcome",
    "encode_result",
    "encode_status",
]
