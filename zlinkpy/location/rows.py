"""Strict rows, JSON and msgpack: the reader and writer every row kind shares, and the rows of the owner lease (facts
§4, LO-076..080).

Bytes in the store are read by other implementations and outlive this process, so a reader decides nothing from a row
it does not understand completely: wrong type, wrong range, wrong ``recordVersion`` or bad UTF-8 is `StoreCorruption`,
raised before any field is used. Unknown extra fields are ignored (LO-079), so that a newer writer can add some.
Rejected: structuring rows with the message codec; it is lenient where a store row must not be, and it would tie row
bytes to message conventions.

Numbers that may exceed 2^53 are decimal strings: half of the world's JSON readers would round them otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import msgpack
from attrs import frozen

from zlinkpy.location.keys import rid_hex
from zlinkpy.location.store import Found, StoreCorruption

RECORD_VERSION = 1
GENERATION_MAX = 2**63 - 1
TEXT_MAX_BYTES = 4096
NAME_MAX_BYTES = 512
_GENERATION = re.compile(r"[1-9][0-9]{0,18}")
_ORDINAL = re.compile(r"0|[1-9][0-9]{0,18}")
_HEX = re.compile(r"(?:[0-9a-f]{2}){1,200}")


def dump_row(fields: Mapping[str, object]) -> bytes:
    """Encode one row: compact separators, UTF-8, fields in the order given."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def load_row(raw: bytes, what: str) -> Fields:
    """Parse one row and check its ``recordVersion`` (LO-077). Raises StoreCorruption naming `what`."""
    try:
        parsed = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise StoreCorruption(f"{what} row is not JSON in UTF-8") from None
    row = Fields(parsed, what)
    if row.number("recordVersion", 0, GENERATION_MAX) != RECORD_VERSION:
        row.fail("recordVersion", f"is not {RECORD_VERSION}")
    return row


def pack_row(fields: Mapping[str, object]) -> bytes:
    """Encode one msgpack map, fields in the order given; text as str, bytes as bin."""
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


def unpack_row(raw: bytes, what: str) -> Fields:
    """Parse one msgpack map that fills `raw` exactly. Raises StoreCorruption naming `what`."""
    try:
        parsed = msgpack.unpackb(raw, raw=False, strict_map_key=True, object_pairs_hook=_unique, ext_hook=_refuse_ext)
    except (ValueError, RecursionError):  # every unpacking error of msgpack is a ValueError
        raise StoreCorruption(f"{what} is not one msgpack map") from None
    return Fields(parsed, what)


def _refuse_ext(code: int, _data: bytes) -> NoReturn:
    raise ValueError(f"extension type {code}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a field is there twice")
    return mapping


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class Fields:
    """Typed, checked access to the fields of one JSON object. Every method raises StoreCorruption naming the field."""

    __slots__ = ("_mapping", "_what")

    def __init__(self, parsed: object, what: str) -> None:
        self._what = what
        if not isinstance(parsed, dict):
            raise StoreCorruption(f"{what} is not a JSON object")
        self._mapping: dict[str, object] = parsed

    def fail(self, name: str, problem: str) -> NoReturn:
        raise StoreCorruption(f"{self._what}.{name} {problem}")

    def _get(self, name: str) -> object:
        try:
            return self._mapping[name]
        except KeyError:
            self.fail(name, "is missing")

    def text(self, name: str, limit: int = TEXT_MAX_BYTES) -> str:
        """A string of 1..`limit` UTF-8 bytes without NUL."""
        value = self._get(name)
        if not isinstance(value, str):
            self.fail(name, "is not a string")
        return self._checked(name, value, limit)

    def optional_text(self, name: str, limit: int = TEXT_MAX_BYTES) -> str | None:
        """The same, or None for an explicit null; the field itself must be there."""
        return None if self._get(name) is None else self.text(name, limit)

    def _checked(self, name: str, value: str, limit: int) -> str:
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            self.fail(name, "has a lone surrogate")
        if not 1 <= size <= limit or "\0" in value:
            self.fail(name, f"is not 1 to {limit} bytes without NUL")
        return value

    def generation(self, name: str) -> int:
        """A canonical decimal string from 1 to 2^63-1 (LO-080)."""
        return self._decimal(name, _GENERATION)

    def ordinal(self, name: str) -> int:
        """A canonical decimal string from 0 to 2^63-1."""
        return self._decimal(name, _ORDINAL)

    def _decimal(self, name: str, pattern: re.Pattern[str]) -> int:
        value = self._get(name)
        if not isinstance(value, str) or not pattern.fullmatch(value) or (number := int(value)) > GENERATION_MAX:
            self.fail(name, "is not a decimal string in range")
        return number

    def number(self, name: str, low: int, high: int) -> int:
        """A JSON integer in `low`..`high`."""
        return self._integer(name, self._get(name), low, high)

    def _integer(self, name: str, value: object, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(name, f"is not a number from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        value = self._get(name)
        if not isinstance(value, bool):
            self.fail(name, "is not true or false")
        return value

    def choice(self, name: str, choices: Mapping[str, Any]) -> Any:
        """The value that `choices` gives for the string in the field."""
        value = self._get(name)
        if not isinstance(value, str) or value not in choices:
            self.fail(name, f"is none of {', '.join(choices)}")
        return choices[value]

    def rid(self, name: str) -> str:
        """A routing id from its lowercase hex."""
        value = self._get(name)
        if not isinstance(value, str) or not _HEX.fullmatch(value):
            self.fail(name, "is not lowercase hex of 1 to 200 bytes")
        try:
            return self._checked(name, bytes.fromhex(value).decode(), 200)
        except UnicodeDecodeError:
            self.fail(name, "is not the hex of UTF-8")

    def blob(self, name: str, low: int, high: int) -> bytes:
        """Bytes, `low`..`high` of them: msgpack rows only, JSON has none."""
        value = self._get(name)
        if not isinstance(value, bytes) or not low <= len(value) <= high:
            self.fail(name, f"is not {low} to {high} bytes")
        return value

    def optional_blob(self, name: str, high: int) -> bytes | None:
        """At most `high` bytes, or None for an explicit null; the field itself must be there."""
        return None if self._get(name) is None else self.blob(name, 0, high)

    def child(self, name: str) -> Fields:
        return Fields(self._get(name), f"{self._what}.{name}")

    def optional_child(self, name: str) -> Fields | None:
        """The same, or None for an explicit null; the field itself must be there."""
        return None if self._get(name) is None else self.child(name)

    def entries(self, name: str, limit: int) -> list[tuple[str, Fields]]:
        """The objects of an object of at most `limit`, with their names (1..512 bytes), in the order of the row."""
        value = self._get(name)
        if not isinstance(value, dict) or len(value) > limit:
            self.fail(name, f"is not an object of at most {limit}")
        return [
            (self._checked(name, key, NAME_MAX_BYTES), Fields(entry, f"{self._what}.{name}.{key}"))
            for key, entry in value.items()
        ]

    def children(self, name: str, limit: int) -> list[Fields]:
        """The objects of an array of at most `limit`."""
        value = self._get(name)
        if not isinstance(value, list) or len(value) > limit:
            self.fail(name, f"is not an array of at most {limit}")
        return [Fields(entry, f"{self._what}.{name}[{index}]") for index, entry in enumerate(value)]

    def numbers(self, name: str, low: int, high: int) -> dict[str, int]:
        """An object whose keys are names (1..255 bytes) and whose values are integers in `low`..`high`."""
        value = self._get(name)
        if not isinstance(value, dict):
            self.fail(name, "is not an object")
        return {self._checked(name, key, 255): self._integer(name, entry, low, high) for key, entry in value.items()}


@frozen
class LeaseRow:
    """Who holds a lease: one process run. Its expiry is the store's and is not in the row."""

    owner_id: str
    lease_generation: int

    def encode(self) -> bytes:
        """Canonical bytes, equal for every renewal of one run: other rows are conditioned on them (C1)."""
        return dump_row(
            {"recordVersion": RECORD_VERSION, "ownerId": self.owner_id, "leaseGeneration": str(self.lease_generation)}
        )


def decode_lease(raw: bytes) -> LeaseRow:
    """Raises StoreCorruption for anything but a complete lease row."""
    row = load_row(raw, "lease")
    return LeaseRow(row.text("ownerId", 255), row.generation("leaseGeneration"))


def lease_remaining(found: Found) -> float:
    """Seconds this lease had left at the instant of this one answer, by the store's clock alone (LO-371).

    Raises StoreCorruption for a lease without expiry: it is never "expired", and never valid for ever (LO-155,
    LO-156).
    """
    if found.expires_at is None:
        raise StoreCorruption("a lease row has no expiry")
    return (found.expires_at - found.store_now) / 1000


@frozen
class EntryClaimRow:
    """Which MeshNode run holds an Entry Spot id (ours)."""

    mesh_name: str
    rid: str
    owner_id: str
    lease_generation: int

    def encode(self) -> bytes:
        return dump_row(
            {
                "recordVersion": RECORD_VERSION,
                "meshName": self.mesh_name,
                "routingIdHex": rid_hex(self.rid),
                "ownerId": self.owner_id,
                "leaseGeneration": str(self.lease_generation),
            }
        )


def decode_entry_claim(raw: bytes) -> EntryClaimRow:
    """Raises StoreCorruption for anything but a complete claim row."""
    row = load_row(raw, "entry claim")
    return EntryClaimRow(
        row.text("meshName", 255), row.rid("routingIdHex"), row.text("ownerId", 255), row.generation("leaseGeneration")
    )
