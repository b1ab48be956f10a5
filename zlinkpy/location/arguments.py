"""Argument checks and limits that every Location Store provider shares (LO-023, LO-024, LO-029..032, LO-038).

Checks return private copies, so that a `bytearray` the caller changes later cannot reach the store (LO-045), and they
all happen before any I/O. They live outside the providers because two sets of checks would drift: what one provider
accepts the other must.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from zlinkpy.location.store import Condition, Delete, IfMissing, IfValue, IfVersion, Mutation, Put

KEY_BYTES = 1024
VALUE_BYTES = 1 << 20
TOKEN_BYTES = 4096
"""Longest version and longest cursor, in UTF-8 bytes."""
PREFIX_BYTES = 1024
BATCH_KEYS = 2048
BATCH_BYTES = 4 << 20
PAGE_ITEMS = 1000
PAGE_BYTES = 4 << 20
SNAPSHOT_LIFE_MS = 60_000
RETENTION_MS = 10**15
"""Longest retention: keeps every expiry below 2**53, where a double still counts in ones."""
ENTRY_OVERHEAD = 16
"""Counted per condition, mutation or page item on top of its key, value and version bytes."""


@frozen
class Batch:
    """A checked write: private copies and the size that was counted."""

    conditions: tuple[Condition, ...]
    mutations: tuple[Mutation, ...]
    keys: tuple[bytes, ...]
    """Every key named, once, in order of first appearance."""
    size: int


def checked_key(key: bytes) -> bytes:
    """A private copy of `key`: 1..1,024 bytes of UTF-8."""
    copy = _bytes(key, "key")
    if not 1 <= len(copy) <= KEY_BYTES:
        raise ValueError(f"a key has 1..{KEY_BYTES} bytes, this one has {len(copy)}")
    try:
        copy.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("a key must be UTF-8") from None
    return copy


def checked_value(value: bytes) -> bytes:
    """A private copy of `value`: 0..1 MiB."""
    copy = _bytes(value, "value")
    if len(copy) > VALUE_BYTES:
        raise ValueError(f"a value has at most {VALUE_BYTES} bytes, this one has {len(copy)}")
    return copy


def checked_prefix(prefix: bytes) -> bytes:
    """A private copy of a scan prefix: 0..1,024 bytes, compared as bytes (it may end inside a character)."""
    copy = _bytes(prefix, "prefix")
    if len(copy) > PREFIX_BYTES:
        raise ValueError(f"a prefix has at most {PREFIX_BYTES} bytes, this one has {len(copy)}")
    return copy


def checked_token(token: str, what: str) -> str:
    """`token` if it is a version or cursor of 1..4,096 UTF-8 bytes."""
    if not isinstance(token, str):
        raise ValueError(f"a {what} is a str, not {type(token).__name__}")
    try:
        size = len(token.encode("utf-8"))
    except UnicodeEncodeError:
        raise ValueError(f"a {what} must be encodable as UTF-8") from None
    if not 1 <= size <= TOKEN_BYTES:
        raise ValueError(f"a {what} has 1..{TOKEN_BYTES} bytes, this one has {size}")
    return token


def checked_limit(limit: int) -> int:
    """`limit` if it is a page size of 1..1,000."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_ITEMS:
        raise ValueError(f"a scan limit is 1..{PAGE_ITEMS}, not {limit!r}")
    return limit


def checked_batch(conditions: Sequence[Condition], mutations: Sequence[Mutation]) -> Batch:
    """Check and copy one write; raises ValueError for any breach of the batch limits."""
    own_conditions = tuple(_condition(condition) for condition in conditions)
    own_mutations = tuple(_mutation(mutation) for mutation in mutations)
    if not own_conditions and not own_mutations:
        raise ValueError("a batch needs at least one condition or mutation")
    _once((condition.key for condition in own_conditions), len(own_conditions), "conditions")
    _once((mutation.key for mutation in own_mutations), len(own_mutations), "mutations")
    keys = tuple(dict.fromkeys(entry.key for entry in (*own_conditions, *own_mutations)))
    if len(keys) > BATCH_KEYS:
        raise ValueError(f"a batch names at most {BATCH_KEYS} keys, this one names {len(keys)}")
    size = sum(_size(entry) for entry in (*own_conditions, *own_mutations))
    if size > BATCH_BYTES:
        raise ValueError(f"a batch has at most {BATCH_BYTES} bytes, this one has {size}")
    return Batch(own_conditions, own_mutations, keys, size)


def item_size(key: bytes, value: bytes, version: str) -> int:
    """What one item counts towards `PAGE_BYTES`."""
    return ENTRY_OVERHEAD + len(key) + len(value) + len(version.encode("utf-8"))


def _bytes(data: bytes, what: str) -> bytes:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ValueError(f"a {what} is bytes, not {type(data).__name__}")
    return bytes(data)


def _once(keys: Iterable[bytes], count: int, where: str) -> None:
    if len(set(keys)) != count:
        raise ValueError(f"one key appears twice among the {where}")


def _condition(condition: Condition) -> Condition:
    match condition:
        case IfMissing(key):
            return IfMissing(checked_key(key))
        case IfVersion(key, version):
            return IfVersion(checked_key(key), checked_token(version, "version"))
        case IfValue(key, value):
            return IfValue(checked_key(key), checked_value(value))
    raise ValueError(f"not a condition: {type(condition).__name__}")


def _mutation(mutation: Mutation) -> Mutation:
    match mutation:
        case Put(key, value, retention):
            return Put(checked_key(key), checked_value(value), _retention(retention))
        case Delete(key):
            return Delete(checked_key(key))
    raise ValueError(f"not a mutation: {type(mutation).__name__}")


def _retention(retention: int | None) -> int | None:
    if retention is None:
        return None
    if isinstance(retention, bool) or not isinstance(retention, int) or not 1 <= retention <= RETENTION_MS:
        raise ValueError(f"a retention is a whole number of milliseconds, 1..{RETENTION_MS}, not {retention!r}")
    return retention


def _size(entry: Condition | Mutation) -> int:
    size = ENTRY_OVERHEAD + len(entry.key)
    match entry:
        case IfVersion(_, version):
            size += len(version.encode("utf-8"))
        case IfValue(_, value) | Put(_, value, _):
            size += len(value)
        case _:
            pass
    return size
