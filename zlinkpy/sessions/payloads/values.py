"""Reading maps that another node wrote: every field is checked, what is unknown is ignored, nothing raises far.

Numbers are read as numbers: JSON-like carriers turn 3 into 3.0 and back, so an integer field takes an integral float
and a float field an int. A bool is no number (SR-352). An absent field and a field of the wrong type are different:
the first may have a default, the second makes the payload malformed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, overload

import msgpack

from zlinkpy.messages.codec import SCAN_BYTES, scan
from zlinkpy.telemetry import get_logger

logger = get_logger("zlinkpy.sessions")

T = TypeVar("T")
_REQUIRED: Final[Any] = object()
_DEPTH: Final = 16
_WHOLE: Final = range(-(2**63), 2**64)


class Malformed(ValueError):
    """A payload that is not what it should be; the text names the field, never its value."""


def pack(value: object) -> bytes:
    """msgpack bytes; half surrogate pairs become question marks rather than an error in the middle of a turn."""
    return msgpack.packb(value, unicode_errors="replace")  # type: ignore[no-any-return]


def unpack(data: bytes) -> Any:
    """One msgpack value without extension types. Raises whatever msgpack raises."""
    if len(data) > SCAN_BYTES:
        scan(data)
    return msgpack.unpackb(data, max_ext_len=0)


def guarded(what: str, read: Callable[[Values], T], payload: object) -> T | None:
    """`read` on the payload; None, and one WARN, when it is malformed (SR-353)."""
    try:
        return read(Values(payload))
    except Malformed as problem:
        logger.warning("a %s payload was ignored: %s", what, problem)
        return None


class Values:
    """The fields of one payload.

    Raises:
        Malformed: Not a map; and from every method: required and absent, or of the wrong type.
    """

    def __init__(self, payload: object) -> None:
        if not isinstance(payload, Mapping):
            raise Malformed(f"a map is expected, not {type(payload).__name__}")
        self._payload: Mapping[Any, Any] = payload

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, default: T) -> str | T: ...
    def text(self, name: str, default: Any = _REQUIRED) -> Any:
        """A str."""
        return self._read(name, default, _text, "text")

    @overload
    def whole(self, name: str) -> int: ...
    @overload
    def whole(self, name: str, default: T) -> int | T: ...
    def whole(self, name: str, default: Any = _REQUIRED) -> Any:
        """An int of 64 bits, also where it came as 3.0."""
        return self._read(name, default, _whole, "a whole number")

    @overload
    def number(self, name: str) -> float: ...
    @overload
    def number(self, name: str, default: T) -> float | T: ...
    def number(self, name: str, default: Any = _REQUIRED) -> Any:
        """A finite float, also where it came as an int."""
        return self._read(name, default, _number, "a number")

    @overload
    def flag(self, name: str) -> bool: ...
    @overload
    def flag(self, name: str, default: T) -> bool | T: ...
    def flag(self, name: str, default: Any = _REQUIRED) -> Any:
        """A bool."""
        return self._read(name, default, _flag, "true or false")

    @overload
    def mapping(self, name: str) -> Mapping[str, Any]: ...
    @overload
    def mapping(self, name: str, default: T) -> Mapping[str, Any] | T: ...
    def mapping(self, name: str, default: Any = _REQUIRED) -> Any:
        """A map with str keys."""
        return self._read(name, default, _mapping, "a map")

    def raw(self, name: str) -> Any:
        """Whatever is there; None when nothing is."""
        return self._payload.get(name)

    def _read(self, name: str, default: Any, check: Callable[[Any], Any], expected: str) -> Any:
        value = self._payload.get(name)
        if value is None:
            if default is _REQUIRED:
                raise Malformed(f"{name} is missing")
            return default
        found = check(value)
        if found is None:
            raise Malformed(f"{name} is {expected}, not {type(value).__name__}")
        return found


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value in _WHOLE else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) else None


def without_nulls(**fields: Any) -> dict[str, Any]:
    """The fields that are not None: payloads have no nulls."""
    return {name: value for name, value in fields.items() if value is not None}


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as str, bool, int, float and nested maps and lists of those; anything else as its text (SR-350)."""
    match value:
        case bool() | str():
            return value
        case int() if value in _WHOLE:
            return value
        case float() if math.isfinite(value):
            return value
        case Mapping() if depth < _DEPTH:
            return {str(key): plain(part, depth + 1) for key, part in value.items() if part is not None}
        case list() | tuple() if depth < _DEPTH:
            return [plain(part, depth + 1) for part in value]
        case _:
            return _description(value)


def _description(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - an application's own __str__
        return f"<{type(value).__name__}>"


def to_millis(seconds: float) -> int:
    """Whole milliseconds, cut off. Rounded to microseconds first, so that what was decoded encodes to itself."""
    return round(seconds * 1_000_000) // 1000


def from_millis(millis: int) -> float:
    """Seconds."""
    return millis / 1000
