"""The relocation part of an authority row: who moves what where, and how far it is (facts §4, LO-311, LO-312).

It travels inside the payload as a msgpack map and is written by the target only, together with the owner change. A
`Place` is one process run at one MeshNode run; target fields are there completely or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from attrs import frozen

from zlinkpy.location.keys import ID_MAX_BYTES, RID_MAX_BYTES
from zlinkpy.location.rows import GENERATION_MAX, TEXT_MAX_BYTES, Fields

RELOCATION_ID_BYTES = 16
MEMBERS_MAX = 2**31 - 1
# A sequence that reached its end issues no number, so the end itself in a row is not one (LO-312).
_ISSUED_MAX = GENERATION_MAX - 1


class RelocationPhase(IntEnum):
    """How far a move is; the numbers are those of the row (LO-311)."""

    NONE = 0
    PREPARING = 1
    CAPTURED = 2
    PREPARED = 3
    COMMITTED = 4
    ACTIVATING = 5
    ACTIVATED = 6
    CLEANING = 7
    COMPLETED = 8
    ABORTED = 9

    @property
    def names_target(self) -> bool:
        """True when the row's owner is the target of the move."""
        return RelocationPhase.COMMITTED <= self <= RelocationPhase.COMPLETED

    @property
    def is_opening(self) -> bool:
        """True between the commit and the opening of the target's dispatch: a route leads to its temporary queue
        (C15).
        """
        return self in (RelocationPhase.COMMITTED, RelocationPhase.ACTIVATING)


class SourceCleanup(IntEnum):
    """What became of the source's leftovers."""

    PENDING = 0
    COMPLETED = 1
    SOURCE_LEASE_EXPIRED = 2


@frozen
class Place:
    """One process run (owner id and lease generation) at one MeshNode run (routing id and lifecycle)."""

    rid: str
    lifecycle_generation: int
    owner_id: str
    lease_generation: int

    def dump(self) -> dict[str, object]:
        return {
            "rid": self.rid,
            "lifecycle": self.lifecycle_generation,
            "owner": self.owner_id,
            "lease": self.lease_generation,
        }


def _place(fields: Fields) -> Place:
    return Place(
        fields.text("rid", RID_MAX_BYTES),
        fields.number("lifecycle", 1, GENERATION_MAX),
        fields.text("owner", ID_MAX_BYTES),
        fields.number("lease", 1, GENERATION_MAX),
    )


@frozen
class Completion:
    """Where the terminal results of requests that end after the move are: a blob reference and its CRC-32C."""

    reference: str
    crc32c: int


@frozen
class MoveCounts:
    """Of a PerActor Spot under way: Actors in all, still at the source, already at the target (LO-310)."""

    total: int
    at_source: int
    at_target: int

    def actor_moved(self) -> MoveCounts:
        """After one more Actor's owner change. Raises ValueError when none is left at the source."""
        if not self.at_source:
            raise ValueError("no Actor is left at the source")
        return MoveCounts(self.total, self.at_source - 1, self.at_target + 1)


@frozen(kw_only=True)
class RelocationState:
    """One move as the row tells it. Raises ValueError for what no move can be.

    `relocation_id` is 16 bytes, not all zero; `attempt` is compared for equality only; `target` is None before one is
    chosen.
    """

    relocation_id: bytes
    aggregate_generation: int
    attempt: int
    source: Place
    target: Place | None
    coordinator: Place
    phase: RelocationPhase
    application_version: int = 0
    completion: Completion | None = None
    cleanup: SourceCleanup = SourceCleanup.PENDING
    counts: MoveCounts | None = None

    def __attrs_post_init__(self) -> None:
        if (problem := self._problem()) is not None:
            raise ValueError(problem)

    def _problem(self) -> str | None:
        if len(self.relocation_id) != RELOCATION_ID_BYTES or not any(self.relocation_id):
            return "a relocation id is 16 bytes that are not all zero"
        if self.phase.names_target and self.target is None:
            return f"a move that is {self.phase.name.lower()} has a target"
        if self.counts is not None and self.counts.at_source + self.counts.at_target != self.counts.total:
            return "Actors at source and target do not add up to the total"
        return None

    @property
    def owner(self) -> Place | None:
        """Whom the authority row must name in this phase; None where no move decides it."""
        if self.phase is RelocationPhase.NONE:
            return None
        return self.target if self.phase.names_target else self.source

    def dump(self) -> Mapping[str, object]:
        completion, counts = self.completion, self.counts
        return {
            "id": self.relocation_id,
            "aggregate": self.aggregate_generation,
            "attempt": self.attempt,
            "completion": None if completion is None else {"ref": completion.reference, "crc": completion.crc32c},
            "source": self.source.dump(),
            "target": None if self.target is None else self.target.dump(),
            "coordinator": self.coordinator.dump(),
            "phase": int(self.phase),
            "version": self.application_version,
            "cleanup": int(self.cleanup),
            "counts": None
            if counts is None
            else {"total": counts.total, "at_source": counts.at_source, "at_target": counts.at_target},
        }


def load_relocation(fields: Fields) -> RelocationState:
    """Raises StoreCorruption through `fields` for every field that is not as written, ValueError where they
    contradict each other.
    """
    target = fields.optional_child("target")
    completion = fields.optional_child("completion")
    counts = fields.optional_child("counts")
    return RelocationState(
        relocation_id=fields.blob("id", RELOCATION_ID_BYTES, RELOCATION_ID_BYTES),
        aggregate_generation=fields.number("aggregate", 1, _ISSUED_MAX),
        attempt=fields.number("attempt", 1, _ISSUED_MAX),
        source=_place(fields.child("source")),
        target=None if target is None else _place(target),
        coordinator=_place(fields.child("coordinator")),
        phase=RelocationPhase(fields.number("phase", 0, max(RelocationPhase))),
        application_version=fields.number("version", 0, GENERATION_MAX),
        completion=None
        if completion is None
        else Completion(completion.text("ref", TEXT_MAX_BYTES), completion.number("crc", 0, 2**32 - 1)),
        cleanup=SourceCleanup(fields.number("cleanup", 0, max(SourceCleanup))),
        counts=None
        if counts is None
        else MoveCounts(
            counts.number("total", 0, MEMBERS_MAX),
            counts.number("at_source", 0, MEMBERS_MAX),
            counts.number("at_target", 0, MEMBERS_MAX),
        ),
    )
