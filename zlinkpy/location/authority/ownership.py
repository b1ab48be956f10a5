"""What the owner of an object does with its row: preserve, join, leave, release, reincarnate. Pure (facts §5).

Each is conditioned on the row's version, on the owner's lease and, for a member of a SpotWide Spot, on the Spot's row,
because that row is the owner (C9). `me` is the caller's combination: whoever is not the owner is refused before
anything is written, and a former owner that wakes up meets another version (LO-212).

A row leaves the store through `release` only, and only for one of the causes of `ReleaseCause`; that a peer was lost is
none of them (LO-213, LO-341).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from attrs import evolve, frozen

from zlinkpy.location import keys
from zlinkpy.location.authority.payload import Members, Membership, ObjectState, Payload, SpotKind
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
    Refused,
    Released,
    Seen,
    Steps,
    Why,
    Write,
    Written,
    absence,
    capacity_of,
    condition_on,
    confirmed,
    counter,
    lease_of,
    put_capacity,
    put_row,
    record_of,
    require_kind,
    same_incarnation,
)
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Applied, Condition, Delete, IfValue, IfVersion, Mutation, StoreCorruption


class ReleaseCause(Enum):
    """Every reason for which an owner takes an object's row out of the store (LO-341)."""

    EXPLICIT_CLOSE = "explicit close"
    DESTROY = "destroy"
    IDLE_EVICTED = "idle eviction"
    HOST_SHUTDOWN = "host shutdown"


_SPOTS: frozenset[OwnedKind] = frozenset({"userSpot", "instanceSpot"})
_RELEASABLE: dict[ReleaseCause, tuple[frozenset[OwnedKind], frozenset[ObjectState]]] = {
    # Closing is in the row before the callback runs, so that nobody is sent to what is about to go (LO-291).
    ReleaseCause.EXPLICIT_CLOSE: (_SPOTS, frozenset({ObjectState.CLOSING})),
    ReleaseCause.IDLE_EVICTED: (frozenset({"instanceSpot"}), frozenset({ObjectState.CLOSING})),
    ReleaseCause.DESTROY: (frozenset({"actor"}), frozenset({ObjectState.READY, ObjectState.CLOSING})),
    ReleaseCause.HOST_SHUTDOWN: (_SPOTS | {"actor", "entrySpot"}, frozenset(ObjectState)),
}


def may_release(row: AuthorityRow, cause: ReleaseCause) -> bool:
    """True when a row like this may leave the store for `cause`."""
    kinds, states = _RELEASABLE[cause]
    home = row.payload.member_of
    if cause is ReleaseCause.DESTROY and home is not None and home.kind is SpotKind.USER:
        return False
    return row.is_active and row.object_kind in kinds and row.payload.state in states


@frozen
class _Sight:
    """One consistent view of an owned object, with what its owner conditions a write on."""

    row: AuthorityRow
    owner: Owner
    owner_generation: int
    home: AuthorityRecord | None
    lease: IfValue
    capacity: Seen
    more: tuple[Seen, ...]
    fence: tuple[Condition, ...]
    """The object's own version, its SpotWide Spot's version, and the owner's lease."""


def home_key(payload: Payload) -> ObjectKey | None:
    """The row of the User Spot that an Actor is a member of; an Entry Spot keeps no list of its members."""
    home = payload.member_of
    return ObjectKey("spot", home.spot_id) if home is not None and home.kind is SpotKind.USER else None


def _sight(held: AuthorityRecord, me: LeaseRow, *more: bytes) -> Steps[_Sight | Refused]:
    """Look at the held object until everything seen belongs together, or say why it is not the caller's to change."""
    key = held.key.encode()
    home = home_key(held.row.payload)
    homes = () if home is None else (home.encode(),)
    owner = held.row.owner
    while True:
        seen = yield Look((key, owner.lease_key, owner.capacity_key, *homes, *more))
        current = record_of(held.key, seen[0])
        if current is None:
            return Refused(Why.GONE)
        if current.version != held.version:
            return Refused(Why.CHANGED, current)
        if not current.row.is_active:
            return Refused(Why.STATE, current)
        spot = None
        if home is not None:
            spot = record_of(home, seen[3])
            if spot is None:
                yield from confirmed([held], [held], _homeless())
                continue
            require_kind(spot, "userSpot")
        actual, generation = effective_owner(current.row, None if spot is None else spot.row)
        if (actual.owner_id, actual.lease_generation) != (me.owner_id, me.lease_generation):
            return Refused(Why.OWNER, current)
        if actual != owner:
            owner = actual
            continue
        lease = lease_of(owner, seen[1])
        if lease is None:
            return Refused(Why.LEASE, current)
        fence: list[Condition] = [IfVersion(key, held.version), lease]
        if spot is not None and is_spot_wide(spot.row):
            fence.append(IfVersion(spot.key.encode(), spot.version))
        return _Sight(current.row, owner, generation, spot, lease, seen[2], tuple(seen[3 + len(homes) :]), tuple(fence))


def preserve(held: AuthorityRecord, payload: Payload, me: LeaseRow) -> Steps[Written | Refused]:
    """Replace the payload and nothing else (LO-205, LO-206). Its mark is the payload itself.

    A membership is not changed this way: it is in two rows.
    """
    row = held.row
    if (payload.member_of, payload.members) != (row.payload.member_of, row.payload.members):
        raise ValueError("a membership changes through change_membership, not through preserve")
    while True:
        sight = yield from _sight(held, me)
        if isinstance(sight, Refused):
            current = sight.record
            done = (
                sight.why is Why.CHANGED
                and current is not None
                and current.row.payload == payload
                and same_incarnation(row, current.row)
            )
            return Written(current) if done and current is not None else sight
        changed = row.with_payload(payload)
        answer = yield Write(sight.fence, (put_row(held.key, changed),))
        if isinstance(answer, Applied):
            return Written(AuthorityRecord(held.key, changed, answer.versions[held.key.encode()]))


def change_membership(held: AuthorityRecord, to: Membership, me: LeaseRow) -> Steps[Written | Refused]:
    """Join `to`, leaving where the Actor is: the Actor's row and the rows of the User Spots involved, in one batch.

    Both belong to one owner at one node run, otherwise it is `Why.OWNER` and a relocation. Each User Spot's count and
    epoch change with it. Leaving a SpotWide Spot writes the Actor's owner, which was its Spot's, into its own row
    again (C9). An Actor whose own move is not open yet stays where it is. The mark is the membership.
    """
    if held.row.object_kind != "actor":
        raise ValueError("only an Actor is a member of a Spot")
    target = home_key(evolve(held.row.payload, member_of=to))
    before: tuple[AuthorityRecord, ...] = ()
    while True:
        sight = yield from _sight(held, me, *(() if target is None else (target.encode(),)))
        if isinstance(sight, Refused):
            current = sight.record
            done = (
                sight.why is Why.CHANGED
                and current is not None
                and current.row.payload.member_of == to
                and current.row.object_generation == held.row.object_generation
            )
            return Written(current) if done and current is not None else sight
        if sight.row.payload.member_of == to:
            return Written(held)
        if is_opening(sight.row):
            return Refused(Why.STATE, held)
        spots: list[tuple[AuthorityRecord, Members]] = []
        if target is not None:
            spot = record_of(target, sight.more[0])
            refused = _cannot_join(spot, sight.owner)
            if refused is not None:
                return refused
            assert spot is not None
            spots.append((spot, _members(spot).joined()))
        if sight.home is not None:
            try:
                spots.append((sight.home, _members(sight.home).left()))
            except StoreCorruption as problem:
                before = yield from confirmed([held, sight.home], [held, *before], problem)
                continue
        payload = evolve(sight.row.payload, member_of=to)
        if payload.relocation is not None and sight.owner != sight.row.owner:
            # A move of its own that ended before it was a member; it names an owner from before its Spot moved.
            payload = evolve(payload, relocation=None)
        moved = evolve(
            sight.row,
            payload=payload,
            owner=sight.owner,
            owner_generation=max(sight.row.owner_generation, sight.owner_generation),
        )
        conditions = [*sight.fence, *(IfVersion(spot.key.encode(), spot.version) for spot, _ in spots)]
        mutations = [put_row(held.key, moved), *(put_members(spot, members) for spot, members in spots)]
        answer = yield Write(tuple(dict.fromkeys(conditions)), tuple(mutations))
        if isinstance(answer, Applied):
            return Written(AuthorityRecord(held.key, moved, answer.versions[held.key.encode()]))


def _cannot_join(spot: AuthorityRecord | None, owner: Owner) -> Refused | None:
    if spot is None:
        return Refused(Why.GONE)
    if not spot.row.is_active or spot.row.payload.state is not ObjectState.READY:
        return Refused(Why.STATE, spot)
    if spot.row.object_kind != "userSpot":
        return Refused(Why.STATE, spot)
    return None if spot.row.owner == owner else Refused(Why.OWNER, spot)


def _homeless() -> StoreCorruption:
    return StoreCorruption("an Actor is a member of a Spot that is not in the store")


def _members(spot: AuthorityRecord) -> Members:
    members = spot.row.payload.members
    assert members is not None  # the payload of a User Spot has them
    return members


def put_members(spot: AuthorityRecord, members: Members) -> Mutation:
    """The row of a User Spot with other members."""
    return put_row(spot.key, spot.row.with_payload(spot.row.payload.with_members(members)))


def release(held: AuthorityRecord, cause: ReleaseCause, me: LeaseRow) -> Steps[Released | Refused]:
    """Delete the row and return its space (LO-210), where `cause` allows it (LO-291, LO-293).

    A Spot with members stays (`Why.MEMBERS`). An Actor that is still in a User Spot when its host shuts down leaves
    it in the same batch.
    """
    row, sent = held.row, False
    key = held.key.encode()
    before: tuple[AuthorityRecord, ...] = ()
    while True:
        sight = yield from _sight(held, me)
        if isinstance(sight, Refused):
            return absence(held, sight.record, sent=sent) or sight
        if not may_release(row, cause):
            return Refused(Why.STATE, held)
        if row.payload.members is not None and row.payload.members.count:
            return Refused(Why.MEMBERS, held)
        try:
            counted = capacity_of(sight.capacity).release(row.slots)
            homes = [] if sight.home is None else [(sight.home, _members(sight.home).left())]
        except StoreCorruption as problem:
            before = yield from confirmed([held, sight.home], [held, *before], problem)
            continue
        conditions: list[Condition] = [
            *sight.fence,
            condition_on(sight.owner.capacity_key, sight.capacity),
            *(IfVersion(spot.key.encode(), spot.version) for spot, _ in homes),
        ]
        mutations = [
            Delete(key),
            put_capacity(sight.owner, counted),
            *(put_members(spot, members) for spot, members in homes),
        ]
        sent = True
        if isinstance((yield Write(tuple(dict.fromkeys(conditions)), tuple(mutations))), Applied):
            return Released()


@frozen
class SweptTogether:
    """What a batch of releases did. `kept`: rows that changed meanwhile or have members; other owners' are not
    counted.
    """

    released: int
    kept: int


def release_together(records: Sequence[AuthorityRecord], me: LeaseRow) -> Steps[SweptTogether]:
    """`release` for a host's shutdown, many rows in one batch; all of them in the same User Spot or in none.

    Each row keeps its own condition; one that changed is left out of the next try, so that it holds up nobody else
    (LO-352). Rows of different owners go in batches of their own.
    """
    home = home_key(records[0].row.payload)
    left = [record for record in records if _may_end(record.row)]
    released, kept = 0, len(records) - len(left)
    sent: set[ObjectKey] = set()
    before: tuple[AuthorityRecord, ...] = ()
    while left:
        keys_left = [record.key.encode() for record in left]
        seen = yield Look((*keys_left, *(() if home is None else (home.encode(),))))
        there: list[AuthorityRecord] = []
        for record, one in zip(left, seen, strict=False):
            current = record_of(record.key, one)
            if current is not None and current.version == record.version:
                there.append(record)
            elif current is None and record.key in sent:
                released += 1
            else:
                kept += 1
        left = there
        if not left:
            break
        spot = None if home is None else record_of(home, seen[-1])
        if home is not None and spot is None:
            yield from confirmed([left[0]], records, _homeless())
            continue
        owner, batch, others = _of_one_owner(left, spot)
        if (owner.owner_id, owner.lease_generation) != (me.owner_id, me.lease_generation):
            left = others
            continue
        lease_seen, capacity = yield Look((owner.lease_key, owner.capacity_key))
        lease = lease_of(owner, lease_seen)
        if lease is None:
            left, kept = others, kept + len(batch)
            continue
        try:
            write = _release_batch(batch, spot, owner, lease, capacity)
        except StoreCorruption as problem:
            before = yield from confirmed([*batch, spot], [*records, *before], problem)
            continue
        sent.update(record.key for record in batch)
        if isinstance((yield write), Applied):
            left, released = others, released + len(batch)
    return SweptTogether(released, kept)


def _may_end(row: AuthorityRow) -> bool:
    members = row.payload.members
    return may_release(row, ReleaseCause.HOST_SHUTDOWN) and not (members and members.count)


def _of_one_owner(
    records: list[AuthorityRecord], spot: AuthorityRecord | None
) -> tuple[Owner, list[AuthorityRecord], list[AuthorityRecord]]:
    """The owner of the first record, those it owns, and the others."""
    home = None if spot is None else spot.row
    owner, _ = effective_owner(records[0].row, home)
    batch = [record for record in records if effective_owner(record.row, home)[0] == owner]
    taken = {record.key for record in batch}
    return owner, batch, [record for record in records if record.key not in taken]


def _release_batch(
    batch: list[AuthorityRecord], spot: AuthorityRecord | None, owner: Owner, lease: IfValue, capacity: Seen
) -> Write:
    """Raises StoreCorruption where the rows give back more than is in use."""
    counted = capacity_of(capacity)
    members = None if spot is None else _members(spot)
    for record in batch:
        counted = counted.release(record.row.slots)
        members = None if members is None else members.left()
    conditions: list[Condition] = [
        *(IfVersion(record.key.encode(), record.version) for record in batch),
        lease,
        condition_on(owner.capacity_key, capacity),
    ]
    mutations: list[Mutation] = [*(Delete(record.key.encode()) for record in batch), put_capacity(owner, counted)]
    if spot is not None and members is not None:
        conditions.append(IfVersion(spot.key.encode(), spot.version))
        mutations.append(put_members(spot, members))
    return Write(tuple(conditions), tuple(mutations))


def reincarnate(held: AuthorityRecord, payload: Payload, me: LeaseRow) -> Steps[Written | Refused]:
    """A closing object begins a new life at the same owner and in the same place: new generations, state creating
    (LO-211). Raises GenerationExhausted with nothing changed (LO-094).

    The mark is the new life: another ObjectGeneration of the same owner with this payload.
    """
    if payload.state is not ObjectState.CREATING:
        raise ValueError("a new life begins in state creating")
    row = held.row
    while True:
        sight = yield from _sight(held, me, keys.OBJECT_COUNTER, keys.AUTHORITY_OWNER_COUNTER)
        if isinstance(sight, Refused):
            current = sight.record
            done = (
                sight.why is Why.CHANGED
                and current is not None
                and current.row.is_active
                and current.row.owner == row.owner
                and current.row.object_generation != row.object_generation
                and current.row.payload == payload
            )
            return Written(current) if done and current is not None else sight
        if row.payload.state is not ObjectState.CLOSING:
            return Refused(Why.STATE, held)
        numbers = (
            counter(keys.OBJECT_COUNTER, sight.more[0]),
            counter(keys.AUTHORITY_OWNER_COUNTER, sight.more[1]),
        )
        born = evolve(row, payload=payload, object_generation=numbers[0].first, owner_generation=numbers[1].first)
        answer = yield Write(
            (*sight.fence, *(number.condition for number in numbers)),
            (put_row(held.key, born), *(number.put for number in numbers)),
        )
        if isinstance(answer, Applied):
            return Written(AuthorityRecord(held.key, born, answer.versions[held.key.encode()]))
