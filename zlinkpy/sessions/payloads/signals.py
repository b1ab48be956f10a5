"""A signal as bytes, the same on every bus: a map of s (session), k (kind), o (origin node), i (instance), p (payload).

A kind that this build does not know drops the whole signal, with a warning: what it asks for cannot be guessed.
"""

from __future__ import annotations

from zlinkpy.sessions.payloads.values import Malformed, Values, guarded, logger, pack, plain, unpack
from zlinkpy.sessions.types import SessionSignal, SignalKind


def encode_signal(signal: SessionSignal) -> bytes:
    """The bytes of one signal. Typed objects in the payload become text here, on every bus alike."""
    return pack(
        {
            "s": signal.session_id,
            "k": signal.kind.value,
            "o": signal.origin_node,
            "i": signal.origin_instance,
            "p": plain(signal.payload),
        }
    )


def decode_signal(data: bytes) -> SessionSignal | None:
    """The signal; None, with a warning, for anything that is not one."""
    try:
        payload = unpack(data)
    except Exception as problem:  # noqa: BLE001 - msgpack's errors share no base class
        logger.warning("a signal was ignored: not one msgpack value (%s)", type(problem).__name__)
        return None
    return guarded("signal", _signal, payload)


def _signal(values: Values) -> SessionSignal:
    kind = SignalKind.__members__.get(values.text("k"))
    if kind is None:
        raise Malformed(f"k is the unknown kind {values.text('k')[:40]!r}")
    return SessionSignal(values.text("s"), kind, values.text("o"), values.mapping("p", {}), values.text("i", ""))
