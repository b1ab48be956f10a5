"""A signal as bytes: one msgpack map ``{s, k, o, i, p}`` (session, kind, origin node, origin instance, payload). Pure.

Payloads are plain on every bus, the in-memory one included. A typed object that travels within one process and is lost
between two would make a feature that works in tests and silently does nothing in production (SR-084, SR-395).

Reading is lenient where versions may differ and strict everywhere else: unknown keys are ignored, a signal of a kind
this build does not know is dropped whole, and so is what is no signal at all. Neither touches the next signal (SR-086,
SR-362).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

ARRAY_HEADER_BYTES: Final = 5
"""What `join_signals` adds at most."""

MAX_DEPTH: Final = 32
"""How deep maps and lists of a payload nest."""

_SESSION_BYTES: Final = 512
_PACKER: Final = msgpack.Packer()
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
    try:
        return _signal(_unpacked(data))
    except _Unreadable as why:
        _dropped(str(why))
        return None


def join_signals(signals: Sequence[bytes]) -> bytes:
    """Coded signals as one array of maps, each as it is."""
    header: bytes = _PACKER.pack_array_header(len(signals))
    return header + b"".join(signals)


def decode_signals(data: bytes) -> list[SessionSignal]:
    """The signals in what `join_signals` made, without those that this build cannot read; one warning for each of
    them. Never raises."""
    try:
        values = _unpacked(data)
        if type(values) is not list:
            raise _Unreadable("it is no array of signals")
    except _Unreadable as why:
        _dropped(str(why))
        return []
    signals = []
    for value in values:
        try:
            signals.append(_signal(value))
        except _Unreadable as why:
            _dropped(str(why))
    return signals


class _Unreadable(ValueError):
    """Why something received is no signal."""


def _unpacked(data: bytes) -> Any:
    if len(data) > MAX_SIGNAL_BYTES:
        raise _Unreadable(f"it has {len(data)} bytes")
    try:
        return unpack(data)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise _Unreadable(f"it does not decode: {type(error).__name__}") from None


def _signal(value: Any) -> SessionSignal:
    if type(value) is not dict:
        raise _Unreadable("it is no map")
    session_id, kind_name, origin = value.get("s"), value.get("k"), value.get("o")
    instance, payload = value.get("i", ""), value.get("p")
    if type(session_id) is not str or not session_id or len(session_id) > _SESSION_BYTES:
        raise _Unreadable("it names no session")
    kind = _KINDS.get(kind_name) if type(kind_name) is str else None
    if kind is None:
        raise _Unreadable(f"its kind is {str(kind_name)[:40]!r}, which this version does not know")
    if type(origin) is not str or type(instance) is not str:
        raise _Unreadable(f"{kind.value} without an origin")
    if type(payload) is not dict:
        raise _Unreadable(f"the payload of {kind.value} is no map")
    return SessionSignal(session_id, kind, origin, payload, instance)


def _dropped(why: str) -> None:
    log.warning("dropped a signal: %s", why)


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
