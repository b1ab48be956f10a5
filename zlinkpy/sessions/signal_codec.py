"""A signal as bytes: one msgpack map ``{s, k, o, i, p}`` (session, kind, origin node, origin instance, payload). Pure.

Payloads are plain on every bus, the in-memory one included. A typed object that travels within one process and is lost
between two would make a feature that works in tests and silently does nothing in production (SR-084, SR-395).

Reading is lenient where versions may differ and strict everywhere else: unknown keys are ignored, a signal of a kind
this build does not know is dropped whole, and so is what is no signal at all. Neither touches the next signal (SR-086,
SR-362).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgpack

from zlinkpy.sessions.errors import SignalPayloadError
from zlinkpy.sessions.payloads.values import pack, unpack
from zlinkpy.sessions.types import SessionSignal, SignalKind
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.sessions")

MAX_SIGNAL_BYTES: Final = 4 << 20
"""A signal is at most this large, coded. It bounds what one message can make a receiver allocate and stays below the 8
MiB a Redis server lets a subscriber lag by default. The answer of a turn is the only thing that comes near it; whoever
waits for a larger one gets it from the idempotency store."""

MAX_DEPTH: Final = 32
"""How deep maps and lists of a payload nest."""

_SESSION_BYTES: Final = 512
_SCALARS: Final = frozenset({str, bool, int, float})
_INT_LOW, _INT_HIGH = -(2**63), 2**64 - 1
_KINDS: Final[Mapping[str, SignalKind]] = {kind.value: kind for kind in SignalKind}


def encode_signal(signal: SessionSignal) -> bytes:
    """The signal as bytes.

    Raises:
        SignalPayloadError: The payload holds something that is not str, bool, int (64 bits), float, or a map with str
            keys or list of these, it nests deeper than `MAX_DEPTH`, or the signal is larger than `MAX_SIGNAL_BYTES`.
    """
    payload = signal.payload
    _check(payload, "payload", 0)
    try:
        data = pack(
            {
                "s": signal.session_id,
                "k": signal.kind.value,
                "o": signal.origin_node,
                "i": signal.origin_instance,
                "p": payload if type(payload) is dict else dict(payload),
            }
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise SignalPayloadError(f"{signal.kind.value}: the signal cannot be encoded ({error})") from None
    if len(data) > MAX_SIGNAL_BYTES:
        raise SignalPayloadError(
            f"{signal.kind.value}: the signal has {len(data)} bytes, at most {MAX_SIGNAL_BYTES} are sent"
        )
    return data


def _check(value: Any, place: str, depth: int) -> None:
    kind = type(value)
    if kind in _SCALARS:
        if kind is int and not _INT_LOW <= value <= _INT_HIGH:
            raise SignalPayloadError(f"{place}: {value!r} does not fit into 64 bits")
        return
    if depth >= MAX_DEPTH:
        raise SignalPayloadError(f"{place}: nested deeper than {MAX_DEPTH}")
    if kind is dict or (depth == 0 and isinstance(value, Mapping)):
        for key, each in value.items():
            if type(key) is not str:
                raise SignalPayloadError(f"{place}: the key {key!r} is no str")
            if type(each) not in _SCALARS or type(each) is int:
                _check(each, f"{place}.{key}", depth + 1)
    elif kind is list or kind is tuple:
        for index, each in enumerate(value):
            _check(each, f"{place}[{index}]", depth + 1)
    else:
        raise SignalPayloadError(
            f"{place}: a {kind.__name__} is not carried to other nodes; use str, bool, int, float, maps and lists of "
            "these, and leave out what is None"
        )


def decode_signal(data: bytes) -> SessionSignal | None:
    """The signal in `data`; None, and one warning, for anything this build cannot read. Never raises."""
    if len(data) > MAX_SIGNAL_BYTES:
        return _dropped(f"it has {len(data)} bytes")
    try:
        signal = unpack(data)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        return _dropped(f"it does not decode: {type(error).__name__}")
    if type(signal) is not dict:
        return _dropped("it is no map")
    session_id, kind_name, origin = signal.get("s"), signal.get("k"), signal.get("o")
    instance, payload = signal.get("i", ""), signal.get("p")
    if type(session_id) is not str or not session_id or len(session_id) > _SESSION_BYTES:
        return _dropped("it names no session")
    kind = _KINDS.get(kind_name) if type(kind_name) is str else None
    if kind is None:
        return _dropped(f"its kind is {str(kind_name)[:40]!r}, which this version does not know")
    if type(origin) is not str or type(instance) is not str:
        return _dropped(f"{kind.value} without an origin")
    if type(payload) is not dict:
        return _dropped(f"the payload of {kind.value} is no map")
    return SessionSignal(session_id, kind, origin, payload, instance)


def _dropped(why: str) -> SessionSignal | None:
    log.warning("dropped a signal: %s", why)
    return None


def grade_of_signal(signal: SessionSignal) -> int:
    """How much it hurts to lose the signal, as the relay grades frames; a snapshot of a status is followed by newer
    ones."""
    if signal.kind is SignalKind.EVENT:
        return grade_of_type(signal.payload.get("type"))
    return OUTPUT if signal.kind is SignalKind.STATUS else STRUCTURAL


TRACE: Final = 0
OUTPUT: Final = 1
STRUCTURAL: Final = 2

_GRADES: Final[Mapping[Any, int]] = {"TraceDelta": TRACE, "OutputDelta": OUTPUT}


def grade_of_type(name: object) -> int:
    """The grade of an event type by its name: traces go first, then pieces of output, everything else last (SR-335)."""
    return _GRADES.get(name, STRUCTURAL) if type(name) is str else STRUCTURAL
