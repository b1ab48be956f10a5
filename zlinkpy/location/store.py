"""The provider interface of the Location Store: byte keys, byte values, conditional batches, snapshot scans.

A provider knows nothing of what the rows mean (LO-011): no lease, descriptor or authority appears here, and there are
no capability flags, because every provider does all of it. Rows, counters and leases live one layer above and are
built from `write` alone.

Invariants every provider keeps:

* One answer is one observation: value, version, expiry and `store_now` belong together (LO-020). Times are integer
  milliseconds of the *store's* clock and are compared within one answer only (LO-371).
* A lost answer is never turned into `Applied` or `Conflict`; it is a `StoreFailure` with ``applied="unknown"``
  (LO-044).
* Bad arguments are a `ValueError` before any I/O; the limits are in `zlinkpy.location.arguments`.

Rejected: a watch or notification call. Correctness would come to depend on its delivery; readers poll with scans
instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from attrs import frozen

from zlinkpy.errors import InternalFailureError, UnavailableError


@frozen
class Missing:
    """No live row: never written, deleted or expired (`store_now >= expires_at`)."""

    store_now: int


@frozen
class Found:
    """A live row. `expires_at` is None for a row without retention; `version` is opaque and differs after every
    write.
    """

    value: bytes
    version: str
    expires_at: int | None
    store_now: int


@frozen
class IfMissing:
    """True when the key has no live row."""

    key: bytes


@frozen
class IfVersion:
    """True when the live row has exactly this version."""

    key: bytes
    version: str


@frozen
class IfValue:
    """True when the live row has exactly these bytes; a re-put of equal bytes keeps it true (LO C1)."""

    key: bytes
    value: bytes


@frozen
class Put:
    """Store `value`; `retention_ms` None means it never expires, also where the row before it would have (LO-032)."""

    key: bytes
    value: bytes
    retention_ms: int | None = None


@frozen
class Delete:
    """Remove the row; removing what is missing is no error (LO-034)."""

    key: bytes


Condition: TypeAlias = IfMissing | IfVersion | IfValue
Mutation: TypeAlias = Put | Delete


@frozen
class Applied:
    """All conditions held and every mutation took effect at once. `versions` has one entry per `Put`."""

    versions: Mapping[bytes, str]
    store_now: int


@frozen
class Conflict:
    """At least one condition was false and nothing changed. It deliberately does not say which."""

    store_now: int


@frozen
class Item:
    """One row of a snapshot."""

    key: bytes
    value: bytes
    version: str
    expires_at: int | None


@frozen
class Page:
    """Rows in key byte order as they were when the first page was made; `store_now` is that instant on every page.

    `cursor` is None on the last page. A page may hold fewer items than asked for, even none, and still have a cursor.
    """

    items: tuple[Item, ...]
    cursor: str | None
    store_now: int


@frozen
class Expired:
    """The snapshot behind the cursor is gone (or never was): drop the pages read so far and start over (LO-040,
    LO-041).
    """


class StoreFailure(UnavailableError):
    """The store did not answer, or refused for a reason that is not the caller's.

    `applied` is ``"no"`` when the store certainly did not execute the call and ``"unknown"`` when it may have; after
    the latter, read the row and decide from what it says. `operation` is ``"read"``, ``"write"``, ``"scan"`` or
    ``"close"``. The text names neither key nor command (LO-067).
    """

    def __init__(self, message: str, *, applied: Literal["no", "unknown"], operation: str) -> None:
        super().__init__(message, cause="LocationStore")
        self.applied: Literal["no", "unknown"] = applied
        self.operation = operation


class StoreCorruption(InternalFailureError):
    """Bytes in the store that no version of this software wrote: unknown format, wrong type, undecodable row
    (LO-056).
    """


class LocationStore(Protocol):
    """What a provider implements. Every call may raise `StoreFailure`, `StoreCorruption`, or `ValueError` before
    any I/O.
    """

    async def read(self, key: bytes) -> Missing | Found:
        """The current row (LO-020)."""
        ...

    async def write(self, conditions: Sequence[Condition], mutations: Sequence[Mutation]) -> Applied | Conflict:
        """One atomic batch: all conditions true, then all mutations; otherwise nothing (LO-025, LO-026).

        Cancelled before it was sent it does nothing; cancelled later it may still take effect (LO-043, LO-044).
        """
        ...

    async def scan(self, prefix: bytes, *, cursor: str | None = None, limit: int = 1000) -> Page | Expired:
        """One page of the rows whose key starts with `prefix`; pass the page's cursor to go on (LO-036)."""
        ...

    async def aclose(self) -> None:
        """Release connections after the running calls have ended. Idempotent; calls made afterwards fail."""
        ...


class BlockingStore(Protocol):
    """A synchronous handle with a connection of its own, for exactly one plain thread at a time (LO-059).

    It exists so that what must go out on time never queues behind other calls nor waits for the event loop.
    """

    def read_blocking(self, key: bytes) -> Missing | Found: ...

    def write_blocking(self, conditions: Sequence[Condition], mutations: Sequence[Mutation]) -> Applied | Conflict: ...

    def close(self) -> None:
        """Give the connection back. Idempotent, from any thread."""
        ...


@runtime_checkable
class DedicatedProvider(Protocol):
    """A provider that can hand out `BlockingStore`s. All of ours do; it is no part of the four-call interface
    (LO-011).
    """

    def dedicated(self, *, timeout: float | None = None) -> BlockingStore:
        """A new handle whose calls give up after `timeout` seconds (None: as the store's own do).

        Call it on the trio thread; close it before the store is closed.
        """
        ...
