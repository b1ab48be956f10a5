"""msgpack bytes to plain nodes, twice: fast with limits, and slowly for whoever has to say what is wrong.

msgpack reserves an array when it reads its header, so a few bytes of nested headers that each claim 65,535 elements
would reserve gigabytes before the missing bytes are noticed. Bodies of short arrays are safe through `max_array_len`;
a body that may hold long ones is first walked without building anything (`complete`), after which every claimed
element is known to be there. The explaining parser lets its lists grow with what it finds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgpack

from zlinkpy.errors import ProtocolError
from zlinkpy.wire.emit import Emitter
from zlinkpy.wire.limits import ADMISSION_MAX, CHANNELS_MAX, DEPTH_MAX
from zlinkpy.wire.schema import Bounds, Malformed, Pairs, violation

T = TypeVar("T")

PARSE_ERRORS = (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException)
"""Everything msgpack raises for bytes it does not accept."""

LONG_ARRAY = 32
"""From this array length on a body is walked before it is built: below it, nested claims reserve 300 KB at most."""


def complete(data: bytes) -> bool:
    """True when `data` is exactly one whole msgpack value. Allocates nothing but a copy of `data`."""
    walker = msgpack.Unpacker(None, max_buffer_size=max(len(data), 1))
    walker.feed(data)
    try:
        walker.skip()
    except PARSE_ERRORS:
        return False
    return bool(walker.tell() == len(data))


def encoded_admission_fits(body: bytes) -> bool:
    """Whether the first element of a body array is at most `ADMISSION_MAX` bytes long (wire.md §4)."""
    if len(body) <= ADMISSION_MAX:
        return True
    walker = msgpack.Unpacker(None, max_buffer_size=len(body))
    walker.feed(body)
    try:
        walker.read_array_header()
        start = walker.tell()
        walker.skip()
    except PARSE_ERRORS:
        return False
    return bool(walker.tell() - start <= ADMISSION_MAX)


def refuse_extension(code: int, data: bytes) -> NoReturn:
    """For `ext_hook`: no body holds an extension type, an empty one included."""
    raise ValueError(f"extension type {code} of {len(data)} bytes")


def emit_unpack(e: Emitter, bounds: Bounds, source: str) -> str:
    """Emit the parse of `source` with the limits of its layout; return the name of the node."""
    node = e.fresh()
    if bounds.array > LONG_ARRAY:
        e.line(f"{node} = {source}")
        e.refuse_if(f"not {e.bind(complete, 'complete')}({node})")
        source = node
    limits = f"max_array_len={bounds.array}, max_ext_len=0, ext_hook={e.bind(refuse_extension, 'refuse_extension')}"
    if bounds.open_map:
        limits += f", strict_map_key=False, object_pairs_hook={e.bind(Pairs, 'Pairs')}"
    else:
        limits += f", max_map_len=0, max_str_len={bounds.text}, max_bin_len={bounds.data}"
    e.line(f"{node} = {e.bind(msgpack.unpackb, 'unpackb')}({source}, raw=False, use_list=False, {limits})")
    return node


def parse_checked(data: bytes, path: str, check: Callable[[Any], T]) -> T:
    """One value that stands alone: parse `data`, then `check` the node. Raises ProtocolError at or below `path`."""
    if complete(data):
        try:
            return check(
                msgpack.unpackb(
                    data,
                    raw=False,
                    use_list=False,
                    max_array_len=CHANNELS_MAX,
                    max_map_len=0,
                    max_ext_len=0,
                    ext_hook=refuse_extension,
                )
            )
        except (*PARSE_ERRORS, ProtocolError):
            pass  # the parse below can say where
    node, trailing = LenientParser(data).parse()
    check(node)
    return violation(path, f"has {trailing} bytes behind it" if trailing else "is not acceptable")


class Array(list[Any]):
    """An array as the explaining parser found it: `claimed` elements by its header, perhaps fewer present."""

    claimed = 0


class BrokenPairs(Pairs):
    """A map that ends too early or is not acceptable as a whole."""

    problem: Malformed


_SIZES = {
    0xC4: ("bin", 1), 0xC5: ("bin", 2), 0xC6: ("bin", 4),
    0xD9: ("str", 1), 0xDA: ("str", 2), 0xDB: ("str", 4),
    0xDC: ("array", 2), 0xDD: ("array", 4), 0xDE: ("map", 2), 0xDF: ("map", 4),
}  # fmt: skip
_NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


class _End(Exception):
    """The bytes end inside a value."""


class LenientParser:
    """Parses what it can: a bad value becomes a `Malformed` in its place, so that the schema can name the place.

    Runs only after the fast parse or a check failed, on a connection that is about to be closed.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._ended = False

    def parse(self) -> tuple[Any, int]:
        """The node at the start, and how many bytes follow it (0 when the parse could not reach the end)."""
        node = self._value(0)
        return node, 0 if self._ended else len(self._data) - self._at

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            self._ended = True
            raise _End
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def _stop(self, problem: str) -> Malformed:
        self._ended = True
        return Malformed(problem)

    def _value(self, depth: int) -> Any:
        try:
            return self._read(depth)
        except _End:
            return Malformed("the body ends inside this element")

    def _read(self, depth: int) -> Any:
        first = self._take(1)[0]
        if first <= 0x7F:
            return first
        if first >= 0xE0:
            return first - 256
        if first in _CONSTANTS:
            return _CONSTANTS[first]
        if first in _NUMBERS:
            layout = _NUMBERS[first]
            return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        if first in (0xC1, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB) or 0xD4 <= first <= 0xD8:
            return self._shut_out(first)
        if first in _SIZES:
            form, width = _SIZES[first]
            size = int.from_bytes(self._take(width), "big")
        elif first >= 0xA0:
            form, size = "str", first & 0x1F
        elif first >= 0x90:
            form, size = "array", first & 0x0F
        else:
            form, size = "map", first & 0x0F
        if form == "bin":
            return self._take(size)
        if form == "str":
            try:
                return self._take(size).decode()
            except UnicodeDecodeError:
                return Malformed("is not UTF-8")
        if depth >= DEPTH_MAX:
            return self._stop("is nested too deeply")
        return self._array(size, depth) if form == "array" else self._map(size, depth)

    def _shut_out(self, first: int) -> Malformed:
        if first in (0xCA, 0xCB):
            self._take(4 if first == 0xCA else 8)
            return Malformed("must not be a float")
        if first == 0xC1:
            return self._stop("starts with the byte c1, which msgpack never uses")
        width = {0xC7: 1, 0xC8: 2, 0xC9: 4}.get(first)
        size = 1 << (first - 0xD4) if width is None else int.from_bytes(self._take(width), "big")
        self._take(1 + size)
        return Malformed("must not be an extension type")

    def _array(self, size: int, depth: int) -> Array:
        # Grows with what is really there, whatever the header claims.
        array = Array()
        array.claimed = size
        while len(array) < size and not self._ended:
            array.append(self._value(depth + 1))
        return array

    def _map(self, size: int, depth: int) -> Pairs:
        found: list[tuple[Any, Any]] = []
        while len(found) < size and not self._ended:
            found.append((self._value(depth + 1), self._value(depth + 1)))
        if len(found) == size:
            return Pairs(found)
        broken = BrokenPairs(found)
        broken.problem = Malformed("the body ends inside this map")
        return broken
