"""The capacity row: how much of one MeshNode run is in use and reserved (facts §4, LO-215..218).

Invariant: the row equals the sum over the authority rows placed at that run, plus what moves under way reserved here;
each operation changes both in one batch. A count that would go below zero means that the invariant is broken already,
so it is corruption and nothing is written (LO-217). An absent row is all zeros.

Limits are not in the row: they are identity of the descriptor and come from there.

`moves` (ours) names each relocation that reserved space and how much. Without it a lost answer to "reserve space for
the move" could not be settled: no other row changes with it, and a count says nothing about who counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from attrs import evolve, field, frozen

from zlinkpy.location.authority.relocation import RELOCATION_ID_BYTES
from zlinkpy.location.descriptors import LIMIT_MAX, MeshNodeDescriptor
from zlinkpy.location.keys import ID_MAX_BYTES
from zlinkpy.location.rows import RECORD_VERSION, Fields, dump_row, load_row
from zlinkpy.location.store import StoreCorruption

MOVES_MAX = 1024
"""Moves that may hold space at one run at a time; the next one finds it full."""
_TYPES_MAX = 4096

SpotObjectKind: TypeAlias = Literal["userSpot", "instanceSpot"]
SPOT_OBJECT_KINDS: Mapping[str, SpotObjectKind] = {"userSpot": "userSpot", "instanceSpot": "instanceSpot"}


@frozen
class SpotSlots:
    """`count` Spots of one kind and stable type."""

    object_kind: SpotObjectKind
    stable_type: str
    count: int = 1

    @property
    def name(self) -> str:
        """How the capacity row names the type."""
        return f"{self.object_kind}:{self.stable_type}"


@frozen
class Slots:
    """What one unit takes: Actors, Spots, and Spots of one type."""

    actors: int = 0
    spots: int = 0
    spot_type: SpotSlots | None = None

    def with_actors(self, count: int) -> Slots:
        """The same plus `count` Actors: a SpotWide Spot moves with its members (LO-215)."""
        return evolve(self, actors=self.actors + count)

    def dump(self) -> dict[str, object]:
        kind = self.spot_type
        return {
            "actors": self.actors,
            "spots": self.spots,
            "spotType": None
            if kind is None
            else {"objectKind": kind.object_kind, "stableType": kind.stable_type, "count": kind.count},
        }


ACTOR_SLOTS = Slots(actors=1)


def spot_slots(object_kind: SpotObjectKind, stable_type: str) -> Slots:
    """What one User or Instance Spot takes: a Spot, and one of its kind and type."""
    return Slots(spots=1, spot_type=SpotSlots(object_kind, stable_type))


def load_slots(fields: Fields) -> Slots:
    """Raises StoreCorruption for anything but complete slots."""
    kind = fields.optional_child("spotType")
    return Slots(
        fields.number("actors", 0, LIMIT_MAX),
        fields.number("spots", 0, LIMIT_MAX),
        None
        if kind is None
        else SpotSlots(
            kind.choice("objectKind", SPOT_OBJECT_KINDS),
            kind.text("stableType", ID_MAX_BYTES),
            kind.number("count", 0, LIMIT_MAX),
        ),
    )


@frozen
class Count:
    """Slots in use and slots reserved."""

    active: int = 0
    reserved: int = 0

    def plus(self, active: int, reserved: int) -> Count:
        """Raises StoreCorruption below zero (LO-217) and above what a row can say."""
        count = Count(self.active + active, self.reserved + reserved)
        if count.active < 0 or count.reserved < 0:
            raise CapacityUnderflow
        if count.active + count.reserved > LIMIT_MAX:
            raise StoreCorruption("a capacity row would count more than 2^31-1 slots")
        return count

    def dump(self) -> dict[str, int]:
        return {"active": self.active, "reserved": self.reserved}


class CapacityUnderflow(StoreCorruption):
    """More would be given back than is in use (LO-217)."""

    def __init__(self) -> None:
        super().__init__("a capacity row has less in use than an authority row gives back")


def _count(fields: Fields) -> Count:
    return Count(fields.number("active", 0, LIMIT_MAX), fields.number("reserved", 0, LIMIT_MAX))


def _frozen_map(mapping: Mapping[str, object]) -> Mapping[str, object]:
    return MappingProxyType(dict(sorted(mapping.items())))


@frozen(kw_only=True)
class CapacityRow:
    """One run's counts; every method returns a new row."""

    actors: Count = Count()
    spots: Count = Count()
    spot_types: Mapping[str, Count] = field(factory=dict, converter=_frozen_map)
    moves: Mapping[str, Slots] = field(factory=dict, converter=_frozen_map)
    """Relocation id in hex -> what it reserved here."""

    def _change(self, slots: Slots, active: int, reserved: int) -> CapacityRow:
        types = dict(self.spot_types)
        if (kind := slots.spot_type) is not None:
            types[kind.name] = types.get(kind.name, Count()).plus(active * kind.count, reserved * kind.count)
        return evolve(
            self,
            actors=self.actors.plus(active * slots.actors, reserved * slots.actors),
            spots=self.spots.plus(active * slots.spots, reserved * slots.spots),
            spot_types={name: count for name, count in types.items() if count != Count()},
        )

    def reserve(self, slots: Slots) -> CapacityRow:
        return self._change(slots, 0, 1)

    def unreserve(self, slots: Slots) -> CapacityRow:
        return self._change(slots, 0, -1)

    def activate(self, slots: Slots) -> CapacityRow:
        """Reserved slots become active."""
        return self._change(slots, 1, -1)

    def release(self, slots: Slots) -> CapacityRow:
        """Active slots are given back."""
        return self._change(slots, -1, 0)

    def begin_move(self, relocation_id: bytes, slots: Slots) -> CapacityRow:
        """Reserve space for a move into this run."""
        return evolve(self.reserve(slots), moves={**self.moves, relocation_id.hex(): slots})

    def end_move(self, relocation_id: bytes, *, arrived: bool) -> CapacityRow:
        """The move's space becomes active (`arrived`) or is returned. Raises KeyError when it has none."""
        slots = self.moves[relocation_id.hex()]
        moves = {name: held for name, held in self.moves.items() if name != relocation_id.hex()}
        return evolve(self.activate(slots) if arrived else self.unreserve(slots), moves=moves)

    def shortage(self, slots: Slots, descriptor: MeshNodeDescriptor) -> str | None:
        """What has no room for `slots` within the descriptor's limits (0 = none), or None (LO-216)."""
        limits = descriptor.capacity
        wanted = [
            ("actors", self.actors, slots.actors, limits.actors.limit),
            ("spots", self.spots, slots.spots, limits.spots.limit),
        ]
        if (kind := slots.spot_type) is not None:
            count = self.spot_types.get(kind.name, Count())
            wanted.append((kind.name, count, kind.count, _type_limit(descriptor, kind)))
        for name, count, more, limit in wanted:
            if limit and more and count.active + count.reserved + more > limit:
                return name
        return None

    def encode(self) -> bytes:
        return dump_row(
            {
                "recordVersion": RECORD_VERSION,
                "actors": self.actors.dump(),
                "spots": self.spots.dump(),
                "spotTypes": {name: count.dump() for name, count in self.spot_types.items()},
                "moves": {name: slots.dump() for name, slots in self.moves.items()},
            }
        )


def _type_limit(descriptor: MeshNodeDescriptor, kind: SpotSlots) -> int:
    """The smaller one where both the capability and the capacity limit the type."""
    wanted = kind.object_kind, kind.stable_type
    limits = [
        entry.limit
        for entry in descriptor.object_capabilities
        if (entry.object_kind, entry.stable_type) == wanted and entry.limit
    ]
    limits += [
        entry.usage.limit
        for entry in descriptor.capacity.spot_types
        if (entry.object_kind, entry.stable_type) == wanted and entry.usage.limit
    ]
    return min(limits, default=0)


def decode_capacity(raw: bytes) -> CapacityRow:
    """Raises StoreCorruption for anything but a complete capacity row."""
    row = load_row(raw, "capacity")
    types: dict[str, Count] = {}
    for name, entry in row.entries("spotTypes", _TYPES_MAX):
        kind, separator, stable_type = name.partition(":")
        if kind not in SPOT_OBJECT_KINDS or not separator or not stable_type:
            row.fail("spotTypes", "has a name that is not a Spot kind and a type")
        types[name] = _count(entry)
    moves: dict[str, Slots] = {}
    for name, entry in row.entries("moves", MOVES_MAX):
        if len(name) != 2 * RELOCATION_ID_BYTES or set(name) - set("0123456789abcdef"):
            row.fail("moves", "has a name that is not the hex of a relocation id")
        moves[name] = load_slots(entry)
    return CapacityRow(
        actors=_count(row.child("actors")), spots=_count(row.child("spots")), spot_types=types, moves=moves
    )
