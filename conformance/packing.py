"""Bodies as trees that can be packed wrongly on purpose: what a conforming encoder would never produce.

A tree is made of Python scalars, lists, `Map` and `Raw`. Paths into it are tuples of indices (of a `Map`: of its
entries).
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack
from attrs import frozen


@frozen
class Raw:
    """Bytes to put where a value belongs."""

    data: bytes


@frozen
class Map:
    """A map as ordered pairs; keys may repeat and be of any type."""

    entries: tuple[tuple[Any, Any], ...]


BAD_UTF8 = Raw(b"\xa3\xff\xfe\xfd")
FLOAT = Raw(b"\xcb" + struct.pack(">d", 1.0))
EXTENSION = Raw(b"\xc7\x00\x05")
TIMESTAMP = Raw(b"\xd6\xff\x00\x00\x00\x01")
EMPTY_MAP = Map(())
HUGE_ARRAY = Raw(b"\xdd\x7f\xff\xff\xff")


def tree(packed: Any) -> Any:
    """What `dump` returns, as a tree."""
    if isinstance(packed, dict):
        return Map(tuple((key, tree(item)) for key, item in packed.items()))
    return [tree(item) for item in packed] if isinstance(packed, (tuple, list)) else packed


def pack(node: Any) -> bytes:
    """The bytes of a tree; integers in their shortest form."""
    if isinstance(node, Raw):
        return node.data
    if isinstance(node, list):
        return _header(len(node), 0x90, 0xDC) + b"".join(map(pack, node))
    if isinstance(node, Map):
        return _header(len(node.entries), 0x80, 0xDE) + b"".join(pack(k) + pack(v) for k, v in node.entries)
    packed: bytes = msgpack.packb(node)
    return packed


def _header(size: int, short: int, long: int) -> bytes:
    if size < 16:
        return bytes((short | size,))
    return struct.pack(">BH", long, size) if size < 1 << 16 else struct.pack(">BI", long + 1, size)


def widest(node: Any) -> Any:
    """The same value with every integer, text, bin and array in its longest form: legal to receive, never sent."""
    if isinstance(node, bool) or node is None or isinstance(node, Raw):
        return node
    if isinstance(node, int):
        return Raw(b"\xcf" + struct.pack(">Q", node) if node >= 0 else b"\xd3" + struct.pack(">q", node))
    if isinstance(node, str):
        return Raw(b"\xdb" + struct.pack(">I", len(node.encode())) + node.encode())
    if isinstance(node, bytes):
        return Raw(b"\xc6" + struct.pack(">I", len(node)) + node)
    if isinstance(node, Map):
        pairs = b"".join(pack(widest(key)) + pack(widest(item)) for key, item in node.entries)
        return Raw(b"\xdf" + struct.pack(">I", len(node.entries)) + pairs)
    return Raw(b"\xdd" + struct.pack(">I", len(node)) + b"".join(pack(widest(item)) for item in node))


def replaced(node: Any, place: tuple[int, ...], value: Any) -> Any:
    """A copy of the tree with another value at `place`."""
    if not place:
        return value
    first, *rest = place
    if isinstance(node, Map):
        entries = list(node.entries)
        key, item = entries[first]
        entries[first] = (key, replaced(item, tuple(rest), value))
        return Map(tuple(entries))
    return [replaced(item, tuple(rest), value) if index == first else item for index, item in enumerate(node)]


def at(node: Any, place: tuple[int, ...]) -> Any:
    """The node at `place`."""
    for index in place:
        node = node.entries[index][1] if isinstance(node, Map) else node[index]
    return node
