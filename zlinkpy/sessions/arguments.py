"""Argument checks that every provider of the session stores shares: all before any I/O, all ValueError."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from zlinkpy.sessions.payloads.values import pack
from zlinkpy.sessions.types import plain_data

ID_BYTES: Final = 512
MESSAGE_BYTES: Final = 16 * 2**20
"""Largest queued message and largest record state, encoded."""
COLLECT_BYTES: Final = 32 * 2**20
"""A batch ends behind the message with which it reaches this many bytes; the rest stays for the next collect."""
PRIMARY_TTL: Final = 86_400.0
"""Seconds for which an idempotency store keeps a result, unless told otherwise."""
STALE_RETENTION: Final = 60.0
"""Seconds for which a stale entry can still be found, unless told otherwise."""
SCAN_LIMIT: Final = 1000
SECONDS_MAX: Final = 366 * 86_400.0


def checked_id(text: str, what: str) -> str:
    """`text` if it is an id: 1..512 bytes of UTF-8."""
    if not isinstance(text, str):
        raise ValueError(f"{what} is a str, not {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} cannot be written as UTF-8") from None
    if not 1 <= size <= ID_BYTES:
        raise ValueError(f"{what} has 1..{ID_BYTES} bytes of UTF-8, this one has {size}")
    return text


def checked_optional_id(text: str | None, what: str) -> str | None:
    """None, or an id."""
    return None if text is None else checked_id(text, what)


def checked_millis(seconds: float, what: str) -> int:
    """A duration as whole milliseconds, rounded up: above 0, at most a year."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= SECONDS_MAX:
        raise ValueError(f"{what} is a number of seconds above 0 and at most {SECONDS_MAX:g}, not {seconds!r}")
    return math.ceil(round(seconds * 1000, 3))


def checked_age(seconds: float) -> int:
    """An age to look for, as whole milliseconds: 0 or more."""
    return 0 if seconds == 0 else checked_millis(seconds, "older_than")


def checked_limit(limit: int) -> int:
    """How many to list: 1..1,000."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= SCAN_LIMIT:
        raise ValueError(f"a limit is 1..{SCAN_LIMIT}, not {limit!r}")
    return limit


def checked_fence(fence: int) -> int:
    """A fencing token: 0 (none) up to where a double still counts in ones."""
    if isinstance(fence, bool) or not isinstance(fence, int) or not 0 <= fence < 2**53:
        raise ValueError(f"a fence is a whole number from 0 to 2**53 - 1, not {fence!r}")
    return fence


def checked_state(state: bytes | None) -> bytes | None:
    """A record's state: bytes (copied), or None for none."""
    if state is None:
        return None
    if not isinstance(state, (bytes, bytearray, memoryview)):
        raise ValueError(f"a record's state is bytes, not {type(state).__name__}")
    return checked_size(bytes(state), "a record's state")


def packed_attrs(attrs: Mapping[str, Any]) -> bytes:
    """A record's attributes as msgpack."""
    plain_data(attrs, "attrs")
    return checked_size(pack(dict(attrs)), "a record's attributes")


def checked_size(data: bytes, what: str) -> bytes:
    """`data` if it has at most 16 MiB."""
    if len(data) > MESSAGE_BYTES:
        raise ValueError(f"{what}: at most {MESSAGE_BYTES} bytes encoded, not {len(data)}")
    return data


def stream_place(inbox_id: str) -> tuple[int, str] | None:
    """Tier and place of an inbox id ``<tier>:<ms>-<n>``; None for an id that no inbox gave out."""
    tier, _, place = inbox_id.partition(":")
    ms, _, number = place.partition("-")
    if tier not in ("0", "1", "2") or not _is_count(ms) or not _is_count(number):
        return None
    return int(tier), place


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64
