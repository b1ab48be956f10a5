"""Physical layout: keys, members, script arguments and answers. Pure functions; no connection is in sight.

The key derivation and the member format are public (LO C11): another implementation on the same server must find the
same row. The scripts pack members, because Python's msgpack writes byte strings of 32..255 bytes in a family the
format does not use; `pack_member` exists for tools and tests and goes through `str` for that reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import msgpack
from attrs import frozen

from zlinkpy.location.arguments import (
    ENTRY_OVERHEAD,
    PAGE_BYTES,
    SNAPSHOT_LIFE_MS,
    Batch,
)
from zlinkpy.location.store import (
    Applied,
    Conflict,
    Delete,
    Found,
    IfMissing,
    IfValue,
    IfVersion,
    Item,
    Missing,
    Put,
    StoreCorruption,
)

TAG = "{zlink-location-v3}"
FORMAT_BYTE = b"\x01"
GRACE_MS = SNAPSHOT_LIFE_MS
"""How long an expired or deleted record stays physically: as long as a snapshot may show it (LO-062)."""
RETRY_MS = 1000
"""How soon a record whose history an open snapshot still needs is looked at again (LO-061)."""
CLEANUP_RECORDS = 64
"""Records looked at per write or scan page: what one call may pay for others."""
READ_BYTES = 4 << 20
_NUL = "\0"


@frozen
class Row:
    """One decoded member."""

    key: bytes
    value: bytes
    version: str
    expires_at: int | None
    tombstone: bool


class Layout:
    """The physical keys under one prefix. ValueError for a prefix that is empty or holds ``{``, ``}`` or NUL
    (LO-013).
    """

    def __init__(self, prefix: str) -> None:
        if not prefix or any(character in prefix for character in ("{", "}", _NUL)):
            raise ValueError(f"a key prefix is not empty and has no braces and no NUL: {prefix!r}")
        base = f"{prefix}:{TAG}:opaque"
        self.record_prefix = f"{base}:".encode()
        self.index = f"{base}-index".encode()
        self.sequence = f"{base}-sequence".encode()
        self.due = f"{base}-due".encode()
        self.snapshots = f"{base}-snapshots".encode()
        self.ends = f"{base}-snapshots-expiry".encode()
        self.shared = (self.index, self.sequence, self.due, self.snapshots, self.ends)

    def record(self, key: bytes) -> bytes:
        """The physical key of a logical one (LO-070)."""
        return self.record_prefix + hashlib.sha256(key).hexdigest().encode()


def pack_member(row: Row) -> bytes:
    """The bytes the scripts store for `row` (LO-074)."""
    fields = [
        row.key.decode("utf-8", "surrogateescape"),
        row.value.decode("utf-8", "surrogateescape"),
        row.version,
        row.expires_at or 0,
        row.tombstone,
    ]
    packed: bytes = msgpack.packb(fields, unicode_errors="surrogateescape")
    return FORMAT_BYTE + packed


def unpack_member(member: bytes, key: bytes | None = None) -> Row:
    """Decode and check one member; `key` is the logical key it must carry. StoreCorruption for anything else
    (LO-075).
    """
    if member[:1] != FORMAT_BYTE:
        raise StoreCorruption("a row in the location store has an unknown format")
    try:
        fields = msgpack.unpackb(member[1:], raw=True)
    except ValueError:  # every unpacking error of msgpack is one
        raise StoreCorruption("a row in the location store does not decode") from None
    match fields:
        case [bytes() as own_key, bytes() as value, bytes() as version, int() as expires_at, bool() as tombstone]:
            if not isinstance(expires_at, bool) and expires_at >= 0 and (key is None or own_key == key):
                return Row(own_key, value, _text(version), expires_at or None, tombstone)
    raise StoreCorruption("a row in the location store has other fields than it should")


def read_answer(member: Any, key: bytes, now: int) -> Missing | Found:
    """One entry of the read script's answer."""
    if member == b"":
        return Missing(now)
    if not isinstance(member, bytes):
        raise StoreCorruption("the location store holds something else where a row should be")
    row = unpack_member(member, key)
    if row.tombstone or (row.expires_at is not None and row.expires_at <= now):
        return Missing(now)
    return Found(row.value, row.version, row.expires_at, now)


def write_arguments(layout: Layout, batch: Batch, nonce: bytes) -> list[bytes | int | str]:
    """ARGV of the write script."""
    position = {key: at for at, key in enumerate(batch.keys, 1)}
    arguments: list[bytes | int | str] = [
        layout.record_prefix,
        nonce.hex(),
        GRACE_MS,
        RETRY_MS,
        CLEANUP_RECORDS,
        len(batch.conditions),
        len(batch.mutations),
        *batch.keys,
    ]
    for condition in batch.conditions:
        match condition:
            case IfMissing(key):
                arguments += ("missing", position[key], b"")
            case IfVersion(key, version):
                arguments += ("version", position[key], version.encode())
            case IfValue(key, value):
                arguments += ("value", position[key], value)
    for mutation in batch.mutations:
        match mutation:
            case Put(key, value, retention):
                arguments += ("put", position[key], value, retention or 0)
            case Delete(key):
                arguments += ("delete", position[key], b"", 0)
    return arguments


def write_answer(answer: list[Any], batch: Batch) -> Applied | Conflict:
    """What the write script said."""
    applied, now, *versions = answer
    if not applied:
        return Conflict(now)
    puts = [mutation.key for mutation in batch.mutations if isinstance(mutation, Put)]
    pairs = zip(puts, versions, strict=True)
    return Applied(MappingProxyType({key: _text(version) for key, version in pairs}), now)


@frozen
class Cursor:
    """Where a scan goes on: the snapshot's random name and the last key walked."""

    name: str
    last: bytes

    def __str__(self) -> str:
        return f"{self.name}.{self.last.hex()}"

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """None for a text that no scan produced."""
        name, _, last = text.partition(".")
        try:
            return cls(name, bytes.fromhex(last)) if len(name) == 16 and bytes.fromhex(name) and last else None
        except ValueError:
            return None


def snapshot_id(name: str, prefix: bytes) -> str:
    """The stored id: it contains the prefix's digest, so a cursor used with another prefix finds nothing (LO-040)."""
    return f"{name}:{hashlib.sha256(prefix).hexdigest()[:32]}"


def walk_bounds(prefix: bytes, last: bytes | None) -> tuple[bytes, bytes]:
    """ZRANGEBYLEX bounds for the keys under `prefix` after `last`."""
    low = b"(" + last if last is not None else (b"[" + prefix if prefix else b"-")
    trimmed = prefix.rstrip(b"\xff")
    high = b"(" + trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"+"
    return low, high


def walk_length(limit: int) -> int:
    """Index entries looked at per page: enough that a few dead ones do not shorten it, few enough to stay brief
    (LO-060).
    """
    return max(4 * limit, 128)


def walk_arguments(layout: Layout, name: str, prefix: bytes, last: bytes | None, limit: int) -> list[bytes | int | str]:
    """ARGV of the walk script; `last` None opens the snapshot."""
    low, high = walk_bounds(prefix, last)
    return [
        layout.record_prefix,
        snapshot_id(name, prefix),
        "1" if last is None else "0",
        low,
        high,
        walk_length(limit),
        SNAPSHOT_LIFE_MS,
        GRACE_MS,
        RETRY_MS,
        CLEANUP_RECORDS,
    ]


def page_arguments(name: str, prefix: bytes, limit: int, *, at_end: bool) -> list[bytes | int | str]:
    """ARGV of the page script."""
    return [snapshot_id(name, prefix), SNAPSHOT_LIFE_MS, limit, PAGE_BYTES, ENTRY_OVERHEAD, "1" if at_end else "0"]


def page_items(members: Sequence[bytes], keys: Sequence[bytes]) -> tuple[Item, ...]:
    """Decode a page; the rows must be among the keys that were asked for."""
    asked = set(keys)
    rows = [unpack_member(member) for member in members]
    if not all(row.key in asked for row in rows):
        raise StoreCorruption("a row in the location store carries another row's key")
    return tuple(Item(row.key, row.value, row.version, row.expires_at) for row in rows)


def _text(version: bytes) -> str:
    try:
        return version.decode("utf-8")
    except UnicodeDecodeError:
        raise StoreCorruption("a row in the location store has an unreadable version") from None
