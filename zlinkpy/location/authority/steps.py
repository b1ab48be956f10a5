"""What every operation on authority rows is made of. Pure (facts §5, LO-180..185).

An operation is a generator: it yields `Look` or `Write`, is sent the answer, and returns its result. Whoever drives it
(`AuthorityRepository` under trio, a simulation with numbers) performs the calls, repeats looks that fail, waits between
tries and watches deadline and lease. All operations have one shape:

    look at every row that matters -> a result, if the rows show one -> otherwise one write -> applied, or look again

Invariants:

* One write per try, made from the rows of the look right before it and conditioned on all of them, so that nothing is
  decided from a mixture of old and new.
* The rows alone tell whether an earlier try was applied: each operation knows the mark that it leaves (a reservation
  id, generations, a relocation id, a payload, an absence). A lost answer, a conflict, a late arrival and a second call
  of the same operation are therefore one case, and nothing is ever guessed from an answer that did not come.
* A conflict that left the object's own row as it was (a counter, a count, a descriptor moved) is repeated; one that
  changed it is the operation's own result (LO-184, LO-185).

Rejected: a class with a state per answer, as the lease and the descriptor have. Those are driven by time for as long as
a process lives; an operation has a beginning and an end, and its straight line is its documentation.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from attrs import frozen

from zlinkpy.location.authority.capacity import CapacityRow, decode_capacity
from zlinkpy.location.authority.rows import AuthorityRecord, AuthorityRow, ObjectKey, Owner
from zlinkpy.location.counters import CounterBlock, take
from zlinkpy.location.descriptors import MeshNodeDescriptor, decode_mesh_node
from zlinkpy.location.rows import decode_lease, lease_remaining
from zlinkpy.location.store import (
    Condition,
    Found,
    IfMissing,
    IfValue,
    IfVersion,
    Missing,
    Mutation,
    Put,
    StoreCorruption,
)

Seen: TypeAlias = Missing | Found
ResultT = TypeVar("ResultT")


@frozen
class Look:
    """Read these keys; answered by what was seen of each, in this order."""

    keys: tuple[bytes, ...]


@frozen
class Write:
    """One atomic batch; answered by `Applied`, `Conflict` or `StoreFailure`."""

    conditions: tuple[Condition, ...]
    mutations: tuple[Mutation, ...]


Steps: TypeAlias = Generator[Look | Write, Any, ResultT]


class Why(Enum):
    """Why an operation was not done; nothing was written."""

    GONE = "there is no row"
    ENDED = "this incarnation is over already"
    CHANGED = "the row is another one than the caller knows"
    STATE = "the object is in another state"
    LEASE = "the owner's lease is not in the store"
    DESCRIPTOR = "the node run is not in the store"
    OWNER = "the rows have different owners"
    MEMBERS = "the Spot has members"
    SPACE = "the move has no space reserved"


@frozen
class Refused:
    """Not done. `record` is the object's row as seen, None where there is none."""

    why: Why
    record: AuthorityRecord | None = None


@frozen
class Written:
    """Done, by this call or an earlier try of it: the row as it is now."""

    record: AuthorityRecord


@frozen
class Released:
    """Done: the row is gone and its space was returned."""


def condition_on(key: bytes, seen: Seen) -> IfMissing | IfVersion:
    """The key is as it was seen."""
    return IfMissing(key) if isinstance(seen, Missing) else IfVersion(key, seen.version)


def look_at(key: ObjectKey) -> Steps[AuthorityRecord | None]:
    """One row, by itself."""
    (seen,) = yield Look((key.encode(),))
    return record_of(key, seen)


def record_of(key: ObjectKey, seen: Seen) -> AuthorityRecord | None:
    """Raises StoreCorruption for a row that cannot be understood."""
    return AuthorityRecord.read(key, seen) if isinstance(seen, Found) else None


def lease_of(owner: Owner, seen: Seen) -> IfValue | None:
    """The condition "this run holds its lease" (a renewal changes the version, never the bytes, C1); None when, as
    seen, it does not.

    Raises StoreCorruption for a lease that cannot be understood or has no expiry.
    """
    if isinstance(seen, Missing):
        return None
    row, remaining = decode_lease(seen.value), lease_remaining(seen)
    if (row.owner_id, row.lease_generation) != (owner.owner_id, owner.lease_generation) or remaining <= 0:
        return None
    return IfValue(owner.lease_key, seen.value)


def node_of(owner: Owner, seen: Seen) -> MeshNodeDescriptor | None:
    """The descriptor of the owner's node, None when it is missing or of another run.

    Raises StoreCorruption for one that cannot be understood.
    """
    if isinstance(seen, Missing):
        return None
    descriptor = decode_mesh_node(seen.value)
    return descriptor if descriptor.lifecycle_generation == owner.lifecycle_generation else None


def capacity_of(seen: Seen) -> CapacityRow:
    """An absent row is all zeros."""
    return CapacityRow() if isinstance(seen, Missing) else decode_capacity(seen.value)


def is_orphaned(row: AuthorityRow, lease: Seen, descriptor: Seen) -> bool:
    """True when nobody will ever finish this reservation: the target's lease is missing, expired or of another
    generation, or its descriptor is missing or of another lifecycle. The one place that decides it (LO-234, LO-235).
    """
    return lease_of(row.owner, lease) is None or node_of(row.owner, descriptor) is None


def counter(key: bytes, seen: Seen) -> CounterBlock:
    """One number. Raises GenerationExhausted, StoreCorruption."""
    return take(key, seen)


def absence(held: AuthorityRecord, current: AuthorityRecord | None, *, sent: bool) -> Released | Refused | None:
    """What it means for an operation that takes `held` out of the store that its incarnation is not there; None when
    it is.

    `sent`: a batch of this call may have been applied. Then a missing row is its doing or as good as; another
    incarnation under the id may as well be the owner's `reincarnate`, so who ended the old one cannot be told.
    """
    if current is None:
        return Released() if sent else Refused(Why.GONE)
    if current.row.object_generation != held.row.object_generation:
        return Refused(Why.ENDED, current)
    return None


def same_incarnation(held: AuthorityRow, current: AuthorityRow) -> bool:
    """Same object, same owner, same numbers; the payload may differ."""
    return (
        held.object_generation == current.object_generation
        and held.owner_generation == current.owner_generation
        and held.owner == current.owner
    )


def confirmed(
    rows: Iterable[AuthorityRecord | None], before: Iterable[AuthorityRecord], problem: StoreCorruption
) -> Steps[tuple[AuthorityRecord, ...]]:
    """Rows of one look contradict another row of it. Raise `problem` when that is real; otherwise return the rows, as
    `before` of the next try.

    The keys of a look are not read in one instant. Only when `rows` were known before the look, in `before`, and are
    still the same after it, they held while the other row was read, and it denies what they say.
    """
    seen = tuple(row for row in rows if row is not None)
    if set(seen) <= set(before):
        again = yield Look(tuple(row.key.encode() for row in seen))
        if all(isinstance(one, Found) and one.version == row.version for one, row in zip(again, seen, strict=True)):
            raise problem
    return seen


def put_row(key: ObjectKey, row: AuthorityRow) -> Put:
    return Put(key.encode(), row.encode())


def put_capacity(owner: Owner, capacity: CapacityRow) -> Put:
    return Put(owner.capacity_key, capacity.encode())


def require_kind(record: AuthorityRecord, kind: str) -> None:
    """Raises StoreCorruption when a row that another names is of another kind."""
    if record.row.object_kind != kind:
        raise StoreCorruption(f"an authority row names {record.key.object_id!r} as {kind}, which it is not")
