"""From rows and evidence to one closed result: where an object is now, or exactly why it is nowhere (facts §7, LO C8).

Authority says who owns, the owner's lease whether that still counts, link evidence whether the owner can be reached.
None of the three substitutes for another (LO-343), and this is the one place where they meet (LV-161). Nothing is
decided by liveness beyond the difference between Ready and Unavailable, and nothing is ever written because of it
(LO-248).

Pure: `find` is a generator as in `steps`, `judge` a function.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

from attrs import frozen

from zlinkpy.location import store
from zlinkpy.location.authority.ownership import home_key
from zlinkpy.location.authority.payload import ObjectState
from zlinkpy.location.authority.rows import (
    AuthorityRecord,
    AuthorityRow,
    ObjectKey,
    OwnedKind,
    Owner,
    effective_owner,
    is_opening,
    is_spot_wide,
)
from zlinkpy.location.authority.steps import (
    Look,
    Seen,
    Steps,
    is_orphaned,
    lease_of,
    look_at,
    require_kind,
)
from zlinkpy.location.rows import lease_remaining
from zlinkpy.location.store import Found, StoreCorruption


@frozen
class RouteFence:
    """What a previous owner names a route by in a follow notice (facts §7)."""

    rid: str
    lifecycle_generation: int
    owner_generation: int
    lease_generation: int


@frozen(kw_only=True)
class Route:
    """Where an object is and under which numbers (LO-245). `version` is that of the object's own row."""

    key: ObjectKey
    object_kind: OwnedKind
    stable_type: str
    object_generation: int
    owner_generation: int
    owner: Owner
    version: str

    @property
    def fence(self) -> RouteFence:
        owner = self.owner
        return RouteFence(owner.rid, owner.lifecycle_generation, self.owner_generation, owner.lease_generation)


@frozen
class Ready:
    """The owner is live and can be reached: send there. The only result that is cached."""

    route: Route


@frozen
class Missing:
    """There is no row. The only result that reaches the creation coordinator (LO-246)."""


@frozen
class Creating:
    """Somebody is building it: `attempt` says where, and under which reservation."""

    attempt: Route
    reservation_id: str | None


@frozen
class Closing:
    """It is on its way out at this owner."""

    route: Route


@frozen
class Moving:
    """It is moving: the route leads to where a message waits, at the target once the move is committed (C15)."""

    route: Route


class Lacking(Enum):
    """What makes an owner unusable."""

    LEASE = "the owner's lease has lapsed"
    LINK = "the owner is not connected"
    MESH = "this process is not part of the owner's mesh"


@frozen
class Unavailable:
    """It has an owner that cannot be used now; nobody else may build or take it (LO-247)."""

    why: Lacking
    route: Route


@frozen
class StoreFailure:
    """The store did not tell. It is not Missing: nothing is created (LO-250)."""

    problem: store.StoreFailure


Resolution: TypeAlias = Ready | Missing | Creating | Closing | Moving | Unavailable | StoreFailure


class Link(Enum):
    """The evidence about an owner's node run."""

    LOCAL = "local"
    READY = "ready"
    NOT_READY = "not ready"
    NO_MESH = "no such mesh here"


Evidence: TypeAlias = Callable[[Owner], Link]


@frozen
class Orphan:
    """A reservation that nobody will finish: release it, then find again. Never leaves the resolver."""

    record: AuthorityRecord


@frozen
class Finding:
    """What was found. `lease_seconds`: what the owner's lease had left in the last look, 0 where none was read."""

    resolution: Resolution | Orphan
    lease_seconds: float = 0.0


def find(key: ObjectKey, evidence: Evidence) -> Steps[Finding]:
    """Read what decides about one object, then judge. The owner's lease is always part of the last look.

    A member of a SpotWide Spot takes two rows that are not read in one instant; the Actor's is read again after the
    Spot's, and both count only if it is unchanged, because then they held together (LO-252).
    """
    while True:
        record = yield from look_at(key)
        if record is None:
            return Finding(Missing())
        home = home_key(record.row.payload) if record.row.is_active else None
        if home is None:
            return (yield from _judged(record, None, evidence))
        spot = yield from look_at(home)
        owner, _ = effective_owner(record.row, None if spot is None else spot.row)
        again, lease = yield Look((key.encode(), owner.lease_key))
        if not isinstance(again, Found) or again.version != record.version:
            continue
        if spot is None:
            raise StoreCorruption("an Actor is a member of a Spot that is not in the store")
        require_kind(spot, "userSpot")
        return Finding(judge(record, spot, lease, evidence), _seconds(lease))


def _judged(record: AuthorityRecord, home: AuthorityRecord | None, evidence: Evidence) -> Steps[Finding]:
    owner = record.row.owner
    if record.row.is_active:
        (lease,) = yield Look((owner.lease_key,))
        return Finding(judge(record, home, lease, evidence), _seconds(lease))
    lease, descriptor = yield Look((owner.lease_key, owner.descriptor_key))
    if is_orphaned(record.row, lease, descriptor):
        return Finding(Orphan(record))
    return Finding(_creating(record))


def _seconds(lease: Seen) -> float:
    return lease_remaining(lease) if isinstance(lease, Found) else 0.0


def _creating(record: AuthorityRecord) -> Creating:
    pending = record.row.pending
    return Creating(route_of(record), None if pending is None else pending.reservation_id)


def route_of(record: AuthorityRecord, home: AuthorityRecord | None = None) -> Route:
    """The route that a row, with the row of the Spot its Actor is in, stands for."""
    row = record.row
    owner, generation = effective_owner(row, None if home is None else home.row)
    return Route(
        key=record.key,
        object_kind=row.object_kind,
        stable_type=row.stable_type,
        object_generation=row.object_generation,
        owner_generation=generation,
        owner=owner,
        version=record.version,
    )


def judge(record: AuthorityRecord, home: AuthorityRecord | None, lease: Seen, evidence: Evidence) -> Resolution:
    """One active object, from its row, its User Spot's row, one exact read of its owner's lease, and the evidence.

    Raises StoreCorruption for a lease that cannot be understood or has no expiry (LO-155).
    """
    route = route_of(record, home)
    if lease_of(route.owner, lease) is None:
        return Unavailable(Lacking.LEASE, route)
    if record.row.payload.state is ObjectState.CREATING:
        return _creating(record)
    link = evidence(route.owner)
    if link is Link.NO_MESH:
        return Unavailable(Lacking.MESH, route)
    if link is Link.NOT_READY:
        return Unavailable(Lacking.LINK, route)
    if record.row.payload.state is ObjectState.CLOSING:
        return Closing(route)
    mover = home.row if home is not None and is_spot_wide(home.row) else record.row
    return Moving(route) if _is_moving(mover) else Ready(route)


def _is_moving(row: AuthorityRow) -> bool:
    """True while a message waits at the target, and while the row itself says that the object is on its way."""
    return is_opening(row) or row.payload.state is ObjectState.RELOCATING
