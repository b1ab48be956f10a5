"""The metadata frame: application key-value texts beside a payload (wire.md §5).

A handler gets a read-only snapshot; nothing here is copied into replies. The same list of pairs travels inside frozen
work, so its rules live in one wire type used by both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgpack

from zlinkpy.wire.composite import elements
from zlinkpy.wire.limits import METADATA_ENTRIES_MAX, METADATA_FRAME_MAX, METADATA_VALUE_MAX, TEXT_MAX
from zlinkpy.wire.parse import parse_checked
from zlinkpy.wire.schema import Bounds, Str, WireType, mistake, violation

_KEY = Str("t", 1, TEXT_MAX, nul=False)
_VALUE = Str("str 0..1024", 0, METADATA_VALUE_MAX, nul=False)
_VERSION = 1


class MetadataPairs(WireType):
    """``[k, v, …]`` with unique keys; in Python a read-only mapping that keeps their order."""

    notation = "[k, v, …]"

    def _check(self, node: Any, path: str) -> Mapping[str, str]:
        claimed, items = elements(node, path)
        if claimed % 2 or claimed > 2 * METADATA_ENTRIES_MAX:
            violation(
                path, f"must hold keys and values of at most {METADATA_ENTRIES_MAX} entries, has {claimed} elements"
            )
        found: dict[str, str] = {}
        for index in range(0, len(items), 2):
            key = _KEY.check(items[index], f"{path}[{index}]")
            if key in found:
                violation(f"{path}[{index}]", "repeats a key")
            if index + 1 < len(items):
                found[key] = _VALUE.check(items[index + 1], f"{path}[{index + 1}]")
        if len(_packed(found)) > METADATA_FRAME_MAX:
            violation(path, f"is longer than {METADATA_FRAME_MAX} bytes")
        return MappingProxyType(found)

    def dump(self, value: Any, path: str) -> list[str]:
        if not isinstance(value, Mapping):
            mistake(path, "must be a mapping")
        return _flat(value, path)

    @property
    def bounds(self) -> Bounds:
        return Bounds(METADATA_FRAME_MAX, array=2 * METADATA_ENTRIES_MAX, text=METADATA_VALUE_MAX)


_PAIRS = MetadataPairs()


def _packed(entries: Mapping[str, str]) -> bytes:
    packed: bytes = msgpack.packb([_VERSION, [text for pair in entries.items() for text in pair]])
    return packed


def _flat(entries: Mapping[str, str], path: str) -> list[str]:
    if len(entries) > METADATA_ENTRIES_MAX:
        mistake(path, f"has {len(entries)} entries, at most {METADATA_ENTRIES_MAX} fit")
    flat: list[str] = []
    for key, value in entries.items():
        flat.append(_KEY.dump(key, f"{path} key"))
        flat.append(_VALUE.dump(value, f"{path} value of {key!r}"))
    if (size := len(_packed(entries))) > METADATA_FRAME_MAX:
        mistake(path, f"takes {size} bytes, at most {METADATA_FRAME_MAX} fit")
    return flat


def encode_metadata(entries: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    """The metadata frame.

    Args:
        entries: a mapping, or pairs of which the last one with a key wins. Keys 1..255 bytes, values 0..1,024, no NUL;
            at most 255 entries and 1,024 bytes encoded.

    Raises:
        ValueError: naming the entry, when a limit is exceeded.
    """
    found = dict(entries)
    flat: list[str] = []
    for key, value in found.items():
        if not _plain(key, value):
            flat = _flat(found, "metadata")
            break
        flat += (key, value)
    try:
        packed: bytes = msgpack.packb((_VERSION, flat))
    except UnicodeEncodeError:
        packed = _packed_checked(found)
    if len(packed) > METADATA_FRAME_MAX or len(found) > METADATA_ENTRIES_MAX:
        return _packed_checked(found)
    return packed


def _packed_checked(entries: Mapping[str, str]) -> bytes:
    _flat(entries, "metadata")
    return _packed(entries)


def _plain(key: Any, value: Any) -> bool:
    """Whether an entry is acceptable at a glance; the frame's own limit covers the length of the value."""
    return (
        type(key) is str
        and type(value) is str
        and 0 < len(key) <= TEXT_MAX // 4
        and "\0" not in key
        and "\0" not in value
    )


def decode_metadata(frame: bytes) -> Mapping[str, str]:
    """The read-only mapping in a metadata frame. Raises ProtocolError with `field` at or below ``metadata``."""
    if len(frame) > METADATA_FRAME_MAX:
        violation("metadata", f"is {len(frame)} bytes long, at most {METADATA_FRAME_MAX} are allowed")
    return parse_checked(frame, "metadata", _glanced_frame)


def _glanced_frame(node: Any) -> Mapping[str, str]:
    """The usual frame without a path for each of its texts; anything else is left to the rules proper."""
    if (
        type(node) is tuple
        and len(node) == 2
        and type(node[0]) is int
        and node[0] == _VERSION
        and type(node[1]) is tuple
    ):
        flat = node[1]
        found = dict(zip(flat[::2], flat[1::2], strict=False))
        if 2 * len(found) == len(flat) <= 2 * METADATA_ENTRIES_MAX and all(map(_plain, found, found.values())):
            return MappingProxyType(found)
    return _checked_frame(node)


def _checked_frame(node: Any) -> Mapping[str, str]:
    claimed, items = elements(node, "metadata")
    if claimed != 2:
        violation("metadata", f"must have 2 elements, has {claimed}")
    if type(items[0]) is not int or items[0] != _VERSION:
        violation("metadata.version", f"must be {_VERSION}")
    entries: Mapping[str, str] = _PAIRS.check(items[-1], "metadata.entries")
    return entries


__all__ = ["MetadataPairs", "decode_metadata", "encode_metadata"]
