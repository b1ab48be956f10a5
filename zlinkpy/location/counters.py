"""Store-wide number sequences: owner, object and authority owner generations (facts §4, LO-090..095).

A counter row holds the *next* value as bare decimal text; an absent row means 1. A number is never taken on its own:
`take` gives the condition and the put that belong into the same batch as the record it numbers, so that either both
exist or neither (LO-092). 2^63-1 in the row means exhausted; the largest number ever issued is therefore 2^63-2 and
no reader has to guess whether the last one was given away. A row that cannot be read is corruption and is never
reset: two runs with one generation would be worse than none.
"""

from __future__ import annotations

import re

from attrs import frozen

from zlinkpy.errors import InternalFailureError
from zlinkpy.location.store import Found, IfMissing, IfVersion, Missing, Put, StoreCorruption

COUNTER_MAX = 2**63 - 1
_DECIMAL = re.compile(rb"[1-9][0-9]{0,18}")


class GenerationExhausted(InternalFailureError):
    """A sequence has no number left; nothing was changed (LO-093)."""

    def __init__(self) -> None:
        super().__init__("no generation is left in the store", cause="GenerationExhausted")


@frozen
class CounterBlock:
    """`count` numbers beginning with `first`, issued when the batch that carries `condition` and `put` applies."""

    first: int
    count: int
    condition: IfMissing | IfVersion
    put: Put


def next_value(read: Missing | Found) -> int:
    """The number a counter row would issue next. Raises StoreCorruption for anything but canonical decimal (LO-095)."""
    if isinstance(read, Missing):
        return 1
    if not _DECIMAL.fullmatch(read.value) or (value := int(read.value)) > COUNTER_MAX:
        raise StoreCorruption("a counter row is not a decimal number from 1 to 2^63-1")
    return value


def take(key: bytes, read: Missing | Found, count: int = 1) -> CounterBlock:
    """Plan `count` numbers (>= 1) from the counter `key` as just read.

    Raises GenerationExhausted when fewer are left (LO-093), StoreCorruption when the row cannot be read.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    first = next_value(read)
    if first + count > COUNTER_MAX:
        raise GenerationExhausted
    condition = IfMissing(key) if isinstance(read, Missing) else IfVersion(key, read.version)
    return CounterBlock(first, count, condition, Put(key, str(first + count).encode()))
