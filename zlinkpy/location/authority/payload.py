"""What an authority row says about the object itself, apart from who owns it and where: the row's `payload`.

A msgpack map (ours) that providers never look into. Placement, key and generations are not repeated here (LO-214): two
copies could disagree. It decodes completely or the row is corrupt.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from attrs import evolve, frozen

from zlinkpy.location.authority.relocation import MEMBERS_MAX, RelocationState, load_relocation
from zlinkpy.location.keys import ID_MAX_BYTES
from zlinkpy.location.rows import GENERATION_MAX, TEXT_MAX_BYTES, Fields, pack_row, unpack_row
from zlinkpy.location.store import StoreCorruption

SHA256_BYTES = 32


class ObjectState(Enum):
    """How far the object is in its life, with its row text."""

    CREATING = "creating"
    READY = "ready"
    CLOSING = "closing"
    RELOCATING = "relocating"


class SpotKind(Enum):
    """The three kinds of Spots, with their row text."""

    ENTRY = "entry"
    USER = "user"
    INSTANCE = "instance"


class ExecutionMode(Enum):
    """Whether a User Spot is one unit with its Actors, or each Actor is a unit of its own."""

    SPOT_WIDE = "spot_wide"
    PER_ACTOR = "per_actor"


@frozen
class Membership:
    """The Spot an Actor is in: an Entry or a User Spot."""

    spot_id: str
    kind: SpotKind


@frozen
class Members:
    """How many Actors a User Spot has; `epoch` changes with every join and leave, so the row's version fences the
    list (C9).
    """

    count: int = 0
    epoch: int = 1

    def joined(self) -> Members:
        return Members(self.count + 1, self.epoch + 1)

    def left(self) -> Members:
        """Raises StoreCorruption when nobody is in."""
        if not self.count:
            raise StoreCorruption("a Spot without members has a member that leaves")
        return Members(self.count - 1, self.epoch + 1)


@frozen
class ActivationPointer:
    """Where the first message of an Instance Spot is kept until its end is recorded: a blob, its SHA-256 and size, and
    the inbox position that is handled (`cursor` <= `inbox_seq`).
    """

    reference: str
    sha256: bytes
    size: int
    inbox_seq: int = 0
    cursor: int = 0


@frozen(kw_only=True)
class Payload:
    """One object's part of its row. Raises ValueError for a combination no object can have.

    An Actor has `member_of` and no `kind`; a Spot has a `kind`; a User Spot has `mode` and `members`, an Instance Spot
    may have `activation` while creating or ready.
    """

    state: ObjectState
    kind: SpotKind | None = None
    mode: ExecutionMode | None = None
    member_of: Membership | None = None
    members: Members | None = None
    activation: ActivationPointer | None = None
    relocation: RelocationState | None = None

    def __attrs_post_init__(self) -> None:
        if (problem := self._problem()) is not None:
            raise ValueError(problem)

    def _problem(self) -> str | None:
        user = self.kind is SpotKind.USER
        if (self.member_of is None) != (self.kind is not None):
            return "an Actor has a membership and no Spot kind, a Spot has a kind and no membership"
        if self.member_of is not None and self.member_of.kind is SpotKind.INSTANCE:
            return "an Actor is a member of an Entry or User Spot"
        if (self.mode is not None) != user or (self.members is not None) != user:
            return "a User Spot, and no other object, has a mode and members"
        if self.activation is not None:
            if self.kind is not SpotKind.INSTANCE or self.state not in (ObjectState.CREATING, ObjectState.READY):
                return "only a creating or ready Instance Spot has an activation pointer"
            if self.activation.cursor > self.activation.inbox_seq or len(self.activation.sha256) != SHA256_BYTES:
                return "an activation pointer's cursor is past its inbox, or its SHA-256 is not 32 bytes"
        if self.relocation is not None and self.kind is SpotKind.ENTRY:
            return "an Entry Spot never moves"
        return None

    def to(self, state: ObjectState) -> Payload:
        """The same object in another state."""
        return evolve(self, state=state)

    def with_members(self, members: Members) -> Payload:
        return evolve(self, members=members)

    def encode(self) -> bytes:
        member_of, members = self.member_of, self.members
        return pack_row(
            {
                "st": self.state.value,
                "kind": _text(self.kind),
                "mode": _text(self.mode),
                "member_of": None if member_of is None else {"spot": member_of.spot_id, "kind": member_of.kind.value},
                "members": None if members is None else {"count": members.count, "epoch": members.epoch},
                "act": _dump_activation(self.activation),
                "rel": None if self.relocation is None else self.relocation.dump(),
            }
        )


_STATES: Mapping[str, ObjectState] = {each.value: each for each in ObjectState}
_KINDS: Mapping[str, SpotKind] = {each.value: each for each in SpotKind}
_MODES: Mapping[str, ExecutionMode] = {each.value: each for each in ExecutionMode}


def _text(member: Enum | None) -> object:
    return None if member is None else member.value


def _dump_activation(pointer: ActivationPointer | None) -> object:
    if pointer is None:
        return None
    return {
        "ref": pointer.reference,
        "sha256": pointer.sha256,
        "size": pointer.size,
        "inbox_seq": pointer.inbox_seq,
        "cursor": pointer.cursor,
    }


def decode_payload(raw: bytes) -> Payload:
    """Raises StoreCorruption for anything but one complete payload (LO-214, LO-289, LO-312)."""
    fields = unpack_row(raw, "authority payload")
    member_of = fields.optional_child("member_of")
    members = fields.optional_child("members")
    activation = fields.optional_child("act")
    relocation = fields.optional_child("rel")
    try:
        return Payload(
            state=fields.choice("st", _STATES),
            kind=None if fields.optional_text("kind") is None else fields.choice("kind", _KINDS),
            mode=None if fields.optional_text("mode") is None else fields.choice("mode", _MODES),
            member_of=None
            if member_of is None
            else Membership(member_of.text("spot", ID_MAX_BYTES), member_of.choice("kind", _KINDS)),
            members=None
            if members is None
            else Members(members.number("count", 0, MEMBERS_MAX), members.number("epoch", 1, GENERATION_MAX)),
            activation=None if activation is None else _activation(activation),
            relocation=None if relocation is None else load_relocation(relocation),
        )
    except ValueError as problem:
        raise StoreCorruption(f"authority payload: {problem}") from None


def _activation(fields: Fields) -> ActivationPointer:
    return ActivationPointer(
        fields.text("ref", TEXT_MAX_BYTES),
        fields.blob("sha256", SHA256_BYTES, SHA256_BYTES),
        fields.number("size", 0, GENERATION_MAX),
        fields.number("inbox_seq", 0, GENERATION_MAX),
        fields.number("cursor", 0, GENERATION_MAX),
    )
