"""Relocation and the rows: space at the target, and the one batch that changes the owner. Pure (facts §5, LO-207..209,
LO-300..310).

All of these are the target's: it reserves its own space (C17), commits, or returns the space; the source writes no
authority row (LO-300). Other than `creation` and `ownership`, the lease in the conditions is therefore the target's.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen

from zlinkpy.location import keys
from zlinkpy.location.authority.capacity import MOVES_MAX, Slots
from zlinkpy.location.authority.creation import Full
from zlinkpy.location.authority.ownership import home_key
from zlinkpy.location.authority.payload import Payload
from zlinkpy.location.authority.rows import (
    AuthorityRecord,
    AuthorityRow,
    ObjectKey,
    Owner,
    effective_owner,
    is_spot_wide,
)
from zlinkpy.location.authority.steps import (
    Look,
    Refused,
    Released,
    Steps,
    Why,
    Write,
    Written,
    capacity_of,
    condition_on,
    confirmed,
    counter,
    lease_of,
    put_capacity,
    put_row,
    record_of,
)
from zlinkpy.location.descriptors import MeshNodeDescriptor
from zlinkpy.location.store import Applied, Condition, IfVersion, StoreCorruption


@frozen
class SpaceReserved:
    """The target holds space for the move, by this call or an earlier try of it."""


def unit_slots(row: AuthorityRow) -> Slots:
    """What a move of this object takes with it: a SpotWide Spot takes its members (LO-215)."""
    members = row.payload.members
    return row.slots.with_actors(members.count) if is_spot_wide(row) and members is not None else row.slots


def reserve_space(
    target: Owner, relocation_id: bytes, slots: Slots, limits: MeshNodeDescriptor
) -> Steps[SpaceReserved | Full | Refused]:
    """Step 0 of a move: reserve `slots` at the target, within the limits of its own descriptor (LO-302).

    The mark is the relocation id in the capacity row; the same id with other slots is `Why.CHANGED`.
    """
    while True:
        lease, seen = yield Look((target.lease_key, target.capacity_key))
        capacity = capacity_of(seen)
        reserved = capacity.moves.get(relocation_id.hex())
        if reserved is not None:
            return SpaceReserved() if reserved == slots else Refused(Why.CHANGED)
        held = lease_of(target, lease)
        if held is None:
            return Refused(Why.LEASE)
        if len(capacity.moves) >= MOVES_MAX:
            return Full("moves")
        shortage = capacity.shortage(slots, limits)
        if shortage is not None:
            return Full(shortage)
        answer = yield Write(
            (held, condition_on(target.capacity_key, seen)),
            (put_capacity(target, capacity.begin_move(relocation_id, slots)),),
        )
        if isinstance(answer, Applied):
            return SpaceReserved()


def return_space(target: Owner, relocation_id: bytes) -> Steps[Released | Refused]:
    """Give the space of a move that will not arrive back, once: without the relocation id there is nothing to give."""
    while True:
        lease, seen = yield Look((target.lease_key, target.capacity_key))
        capacity = capacity_of(seen)
        if relocation_id.hex() not in capacity.moves:
            return Released()
        held = lease_of(target, lease)
        if held is None:
            return Refused(Why.LEASE)
        answer = yield Write(
            (held, condition_on(target.capacity_key, seen)),
            (put_capacity(target, capacity.end_move(relocation_id, arrived=False)),),
        )
        if isinstance(answer, Applied):
            return Released()


@frozen
class SpotChange:
    """What an owner change does to the row of a Spot that it touches: a membership, or the counts of a PerActor move.

    `change` gives the Spot's new payload from its row as read, and is called again for every try.
    """

    key: ObjectKey
    change: Callable[[AuthorityRow], Payload]


def member_joined(spot: AuthorityRow) -> Payload:
    """A `SpotChange.change`: one more member."""
    assert spot.payload.members is not None
    return spot.payload.with_members(spot.payload.members.joined())


def member_left(spot: AuthorityRow) -> Payload:
    """A `SpotChange.change`: one member less."""
    assert spot.payload.members is not None
    return spot.payload.with_members(spot.payload.members.left())


def member_moved(spot: AuthorityRow) -> Payload:
    """A `SpotChange.change`: one more Actor of a PerActor Spot under way is at the target (LO-310)."""
    move = spot.payload.relocation
    if move is None or move.counts is None:
        raise StoreCorruption("a Spot whose Actors move one by one has no counts of them")
    return evolve(spot.payload, relocation=evolve(move, counts=move.counts.actor_moved()))


@frozen(kw_only=True)
class MoveOrder:
    """One owner change.

    `payload` is the object's from now on: phase committed or later, naming the relocation whose space is reserved.
    `list_root` conditions a SpotWide commit on the member list it was made from (LO-305, LO-308).
    """

    held: AuthorityRecord
    target: Owner
    payload: Payload
    spots: tuple[SpotChange, ...] = ()
    list_root: IfVersion | None = None

    def __attrs_post_init__(self) -> None:
        move = self.payload.relocation
        if move is None or not move.phase.names_target or move.target != self.target.place:
            raise ValueError("the payload of an owner change is that of a committed move to the target")

    @property
    def relocation_id(self) -> bytes:
        assert self.payload.relocation is not None
        return self.payload.relocation.relocation_id


def change_owner(order: MoveOrder) -> Steps[Written | Refused]:
    """The object becomes the target's: owner, lease, descriptor, lifecycle and owner generation in one batch, the
    ObjectGeneration kept, space given back at the source and made active at the target (LO-207, LO-309).

    The mark is the target as owner with this relocation id (LO-208).
    """
    held, target = order.held, order.target
    key, row = held.key.encode(), held.row
    home = home_key(row.payload)
    spots = {change.key: change.change for change in order.spots}
    looked = list(dict.fromkeys([*spots, *(() if home is None else (home,))]))
    source = row.owner
    before: tuple[AuthorityRecord, ...] = ()
    while True:
        seen = yield Look(
            (
                key,
                target.lease_key,
                target.capacity_key,
                source.capacity_key,
                keys.AUTHORITY_OWNER_COUNTER,
                *(each.encode() for each in looked),
                *(() if order.list_root is None else (order.list_root.key,)),
            )
        )
        authority, lease, arriving, leaving, owners = seen[:5]
        current = record_of(held.key, authority)
        if current is None:
            return Refused(Why.GONE)
        if _arrived(current.row, order):
            return Written(current)
        if current.version != held.version:
            return Refused(Why.CHANGED, current)
        if not row.is_active:
            return Refused(Why.STATE, current)
        found = {each: record_of(each, one) for each, one in zip(looked, seen[5:], strict=False)}
        homes = [spot for spot in found.values() if spot is not None]
        if len(homes) < len(found):
            yield from confirmed([held], [held], StoreCorruption("a move touches a Spot that is not in the store"))
            continue
        at_home = found[home] if home is not None else None
        actual, _ = effective_owner(row, None if at_home is None else at_home.row)
        if actual != source:
            source = actual
            continue
        live = lease_of(target, lease)
        if live is None:
            return Refused(Why.LEASE, current)
        if order.list_root is not None and condition_on(order.list_root.key, seen[-1]) != order.list_root:
            return Refused(Why.CHANGED, current)
        if source.capacity_key == target.capacity_key:
            return Refused(Why.OWNER, current)
        slots = unit_slots(row)
        if capacity_of(arriving).moves.get(order.relocation_id.hex()) != slots:
            return Refused(Why.SPACE, current)
        number = counter(keys.AUTHORITY_OWNER_COUNTER, owners)
        moved = evolve(row, payload=order.payload, owner=target, owner_generation=number.first)
        try:
            left = capacity_of(leaving).release(slots)
            changed = [(spot, spot.row.with_payload(spots[spot.key](spot.row))) for spot in homes if spot.key in spots]
        except StoreCorruption as problem:
            before = yield from confirmed([held, *homes], [held, *before], problem)
            continue
        conditions: list[Condition] = [
            IfVersion(key, held.version),
            live,
            condition_on(target.capacity_key, arriving),
            condition_on(source.capacity_key, leaving),
            number.condition,
            *(IfVersion(spot.key.encode(), spot.version) for spot in homes),
        ]
        if order.list_root is not None:
            conditions.append(order.list_root)
        answer = yield Write(
            tuple(conditions),
            (
                put_row(held.key, moved),
                put_capacity(target, capacity_of(arriving).end_move(order.relocation_id, arrived=True)),
                put_capacity(source, left),
                number.put,
                *(put_row(spot.key, spot_row) for spot, spot_row in changed),
            ),
        )
        if isinstance(answer, Applied):
            return Written(AuthorityRecord(held.key, moved, answer.versions[key]))


def _arrived(current: AuthorityRow, order: MoveOrder) -> bool:
    move = current.payload.relocation
    return current.owner == order.target and move is not None and move.relocation_id == order.relocation_id
