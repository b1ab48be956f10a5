"""The authority row: who owns one object, where, and under which numbers (facts §4, LO-076, LO-200..215).

JSON around a msgpack payload. A reservation is this row in state reserved with `pending`; no other record of it exists,
so any implementation can complete or abort one from the row alone (LO-237). The row has no expiry and does not name its
own object: the key does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Literal, TypeAlias

from attrs import evolve, frozen

from zlinkpy.errors import DataLostError, InvalidOperationError
from zlinkpy.location import keys
from zlinkpy.location.arguments import VALUE_BYTES
from zlinkpy.location.authority.capacity import Slots, load_slots
from zlinkpy.location.authority.payload import ExecutionMode, ObjectState, Payload, SpotKind, decode_payload
from zlinkpy.location.authority.relocation import Place
from zlinkpy.location.descriptors import LIMIT_MAX
from zlinkpy.location.keys import ID_MAX_BYTES, rid_hex
from zlinkpy.location.rows import RECORD_VERSION, Fields, dump_row, load_row
from zlinkpy.location.store import Found, StoreCorruption

REQUEST_MAX_BYTES = 768_000
"""The largest creation request: with the growth of base64 it leaves 24 KiB of a row for everything else (C18)."""
_INLINE = "inline-v1:"
_REFERENCE_MAX = 1 << 20

OwnedKind: TypeAlias = Literal["actor", "entrySpot", "userSpot", "instanceSpot"]
_OWNED: Mapping[str, OwnedKind] = {
    "actor": "actor",
    "entrySpot": "entrySpot",
    "userSpot": "userSpot",
    "instanceSpot": "instanceSpot",
}
_SPOT_KINDS: Mapping[OwnedKind, SpotKind | None] = {
    "actor": None,
    "entrySpot": SpotKind.ENTRY,
    "userSpot": SpotKind.USER,
    "instanceSpot": SpotKind.INSTANCE,
}


class AllocationState(Enum):
    """Whether the object exists or has only its place, with the row text."""

    RESERVED = "reserved"
    ACTIVE = "active"


_ALLOCATIONS: Mapping[str, AllocationState] = {each.value: each for each in AllocationState}


@frozen
class ObjectKey:
    """Which object: an Actor, or a Spot of any kind (Spots share one name space, LO-072)."""

    kind: Literal["actor", "spot"]
    object_id: str

    def encode(self) -> bytes:
        """The logical key. Raises InvalidOperationError for an id that cannot be one (LO-073)."""
        return keys.authority(self.kind, self.object_id)


@frozen
class Owner:
    """The run that owns an object, at one MeshNode run of a mesh."""

    mesh_name: str
    rid: str
    lifecycle_generation: int
    owner_id: str
    lease_generation: int

    @property
    def place(self) -> Place:
        return Place(self.rid, self.lifecycle_generation, self.owner_id, self.lease_generation)

    @property
    def lease_key(self) -> bytes:
        return keys.owner_lease(self.owner_id)

    @property
    def descriptor_key(self) -> bytes:
        return keys.mesh_node(self.mesh_name, self.rid)

    @property
    def capacity_key(self) -> bytes:
        return keys.capacity(self.mesh_name, self.rid, self.lifecycle_generation)


class RequestUnusable(DataLostError):
    """A reservation's request is not what the row says of it: its factory does not run (LO-226)."""


@frozen
class PendingCreation:
    """The creation that a reservation is for. `reference` is kept as read: a bad one fails the creation, not the
    row.
    """

    reservation_id: str
    reference: str
    sha256: str
    size: int

    @classmethod
    def of(cls, reservation_id: str, request: bytes) -> PendingCreation:
        """Keep `request` inside the row. Raises InvalidOperationError above 768,000 bytes (LO-225)."""
        if len(request) > REQUEST_MAX_BYTES:
            raise InvalidOperationError(
                f"a creation request is at most {REQUEST_MAX_BYTES} bytes, not {len(request)}; send the rest afterwards"
            )
        text = base64.urlsafe_b64encode(request).rstrip(b"=").decode()
        return cls(reservation_id, _INLINE + text, hashlib.sha256(request).hexdigest(), len(request))

    def request(self) -> bytes:
        """The request's bytes. Raises RequestUnusable when reference, size and SHA-256 do not fit (LO-226)."""
        body = self.reference.removeprefix(_INLINE)
        try:
            raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        again = _INLINE + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        if again != self.reference or len(raw) != self.size or hashlib.sha256(raw).hexdigest() != self.sha256:
            raise RequestUnusable("the creation request in the store is not the one that was announced with it")
        return raw


@frozen(kw_only=True)
class AuthorityRow:
    """One object's row. Raises ValueError for a combination no object can have."""

    payload: Payload
    object_generation: int
    owner_generation: int
    """The AuthorityOwnerGeneration: store-wide, new with every change of owner."""
    owner: Owner
    state: AllocationState
    object_kind: OwnedKind
    stable_type: str
    slots: Slots
    pending: PendingCreation | None = None

    def __attrs_post_init__(self) -> None:
        if (problem := self._problem()) is not None:
            raise ValueError(problem)

    def _problem(self) -> str | None:
        reserved = self.state is AllocationState.RESERVED
        if reserved != (self.pending is not None):
            return "a reserved row, and no other, has a pending creation"
        if reserved and self.payload.state is not ObjectState.CREATING:
            return "a reserved object is being created"
        if self.payload.kind is not _SPOT_KINDS[self.object_kind]:
            return f"the payload is not that of an object of kind {self.object_kind}"
        kind = self.slots.spot_type
        if kind is not None and (kind.object_kind, kind.stable_type) != (self.object_kind, self.stable_type):
            return "the slots are those of another type"
        move = self.payload.relocation
        if move is not None and move.owner not in (None, self.owner.place):
            return f"a move that is {move.phase.name.lower()} has another owner than the row"
        return None

    @property
    def is_active(self) -> bool:
        return self.state is AllocationState.ACTIVE

    def with_payload(self, payload: Payload) -> AuthorityRow:
        return evolve(self, payload=payload)

    def encode(self) -> bytes:
        """Raises InvalidOperationError above 1 MiB (LO-214)."""
        owner, pending = self.owner, self.pending
        raw = dump_row(
            {
                "recordVersion": RECORD_VERSION,
                "payload": base64.b64encode(self.payload.encode()).decode(),
                "objectGeneration": str(self.object_generation),
                "authorityOwnerGeneration": str(self.owner_generation),
                "ownerId": owner.owner_id,
                "ownerLeaseGeneration": str(owner.lease_generation),
                "allocation": {
                    "state": self.state.value,
                    "objectKind": self.object_kind,
                    "stableType": self.stable_type,
                    "descriptor": {"meshName": owner.mesh_name, "routingIdHex": rid_hex(owner.rid)},
                    "descriptorLifecycleGeneration": str(owner.lifecycle_generation),
                    "capacity": self.slots.dump(),
                },
                "pendingCreation": None
                if pending is None
                else {
                    "reservationId": pending.reservation_id,
                    "requestContentReference": pending.reference,
                    "requestSha256": pending.sha256,
                    "requestEncodedSize": pending.size,
                },
            }
        )
        if len(raw) > VALUE_BYTES:
            raise InvalidOperationError(f"the row of the object would be {len(raw)} bytes, more than {VALUE_BYTES}")
        return raw


def decode_authority(raw: bytes, key: ObjectKey | None = None) -> AuthorityRow:
    """Raises StoreCorruption unless every field is there, typed, in range, and they fit together and to `key`."""
    row = load_row(raw, "authority")
    allocation = row.child("allocation")
    descriptor = allocation.child("descriptor")
    pending = row.optional_child("pendingCreation")
    try:
        decoded = AuthorityRow(
            payload=decode_payload(_payload_bytes(row)),
            object_generation=row.generation("objectGeneration"),
            owner_generation=row.generation("authorityOwnerGeneration"),
            owner=Owner(
                descriptor.text("meshName", ID_MAX_BYTES),
                descriptor.rid("routingIdHex"),
                allocation.generation("descriptorLifecycleGeneration"),
                row.text("ownerId", ID_MAX_BYTES),
                row.generation("ownerLeaseGeneration"),
            ),
            state=allocation.choice("state", _ALLOCATIONS),
            object_kind=allocation.choice("objectKind", _OWNED),
            stable_type=allocation.text("stableType", ID_MAX_BYTES),
            slots=load_slots(allocation.child("capacity")),
            pending=None if pending is None else _pending(pending),
        )
    except ValueError as problem:
        raise StoreCorruption(f"authority: {problem}") from None
    if key is not None and (decoded.object_kind == "actor") != (key.kind == "actor"):
        raise StoreCorruption("an authority row is stored under another key than its own")
    return decoded


def _payload_bytes(row: Fields) -> bytes:
    text = row.text("payload", VALUE_BYTES)
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        row.fail("payload", "is not base64")
    if base64.b64encode(raw).decode() != text:
        row.fail("payload", "is not canonical base64")
    return raw


def _pending(fields: Fields) -> PendingCreation:
    digest = fields.text("requestSha256", 64)
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        fields.fail("requestSha256", "is not 64 digits of lowercase hex")
    return PendingCreation(
        fields.text("reservationId", ID_MAX_BYTES),
        fields.text("requestContentReference", _REFERENCE_MAX),
        digest,
        fields.number("requestEncodedSize", 0, LIMIT_MAX),
    )


@frozen
class AuthorityRecord:
    """A row as it is in the store: which object, what the row says, under which version."""

    key: ObjectKey
    row: AuthorityRow
    version: str

    @classmethod
    def read(cls, key: ObjectKey, found: Found) -> AuthorityRecord:
        """Raises StoreCorruption for a row that cannot be understood."""
        return cls(key, decode_authority(found.value, key), found.version)


def effective_owner(row: AuthorityRow, spot: AuthorityRow | None) -> tuple[Owner, int]:
    """Owner and owner generation of an object, given the row of the User Spot it is a member of, if any.

    A SpotWide Spot's row is the owner of all its members, so that one commit moves any number of them (C9, LO-252).
    """
    if spot is not None and is_spot_wide(spot):
        return spot.owner, spot.owner_generation
    return row.owner, row.owner_generation


def is_spot_wide(spot: AuthorityRow) -> bool:
    """True for a User Spot that is one unit with its Actors."""
    return spot.payload.mode is ExecutionMode.SPOT_WIDE


def is_opening(row: AuthorityRow) -> bool:
    """True when the row is committed to the target of a move whose dispatch is not open yet (C15)."""
    move = row.payload.relocation
    return move is not None and move.phase.is_opening
