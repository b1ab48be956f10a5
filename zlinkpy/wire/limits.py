"""Every bound of the wire in one place (wire.md §1, §5), so that a limit is changed, documented and tested once.

Sizes of texts and byte strings are counted in encoded UTF-8 bytes, never in characters: two languages count characters
differently, and a limit both ends do not share is none.
"""

from __future__ import annotations

WIRE_MAJOR = 1
"""The only major this build speaks; another one is `ProtocolError(field="prefix.major")`."""

REQUIRED_CAPABILITY = "routemesh-msgpack-1"
"""What `Ext.protocol_capabilities` must contain for admission (checked by the link, answered with reject 8)."""

MAGIC = b"\x5a\x4d"
PREFIX_SIZE = 5
FLAG_METADATA = 0x01

GEN_MAX = 2**63 - 1
U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
MS_MAX = 2**31 - 1
"""The longest remaining time a record can carry, in milliseconds."""

TEXT_MAX = 255
RID_MAX = 200
LONG_TEXT_MAX = 4096
"""Endpoints and store versions."""
PROBLEM_MAX = 256
HOP_MAX = 8
WEIGHT_MAX = 10_000
CHANNELS_MAX = 65_535
PARTS_MAX = 64

ADMISSION_MAX = 1 << 20
"""The whole encoded admission array; frame 0 of hello, admit and update is bounded by it before it is parsed."""

METADATA_FRAME_MAX = 1024
METADATA_ENTRIES_MAX = 255
METADATA_VALUE_MAX = 1024

JOIN_PAYLOAD_MAX = 1 << 20
"""Sum of the payload parts of an actorJoin request; its reply has the same bound, kept by whoever sent the request."""

STATE_CHUNK_MAX = 64 << 20
"""Data of one relocationState record."""

TAIL_MAX = 1024
"""What the tail may add to the size bound of a reply; the largest defined tail (actorLookup) stays below 600 bytes."""
TAIL_DEPTH_MAX = 4
TAIL_ARRAY_MAX = 16

DEPTH_MAX = 32
"""Nesting of arrays and maps below the body; only the value of an unknown `ext` id could be deeper than the schema."""
