"""The MeshNode descriptor: what one node tells the others about itself, and its store row (facts §4, LO-076..081,
LO-137..139).

A descriptor is an immutable value. Which of its fields may change under one key is decided here in one table
(`changed_identity`), because everything else about a running node is part of its identity: a peer admitted with it
must stay the peer it was (LO-138). Used capacity travels along for choosing candidates and is never a reason to
publish (LO-137); the capacity row decides.

ClientServer and fanout descriptors are rows of their own and share only the reader.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Literal

from attrs import Attribute, evolve, field, fields, frozen

from zlinkpy.errors import ConfigurationError, InvalidOperationError
from zlinkpy.location.keys import ID_MAX_BYTES, encode_part, rid_hex
from zlinkpy.location.rows import GENERATION_MAX, RECORD_VERSION, Fields, dump_row, load_row
from zlinkpy.location.store import StoreCorruption
from zlinkpy.wire import ObjectRole, RuntimeState

WEIGHT_MAX = 10_000
DEFAULT_WEIGHT = 100
CAPABILITIES_MAX = 1024
ROW_MAX_BYTES = 1 << 20
LIMIT_MAX = 2**31 - 1
ENDPOINT_MAX_BYTES = 4096

ObjectKind = Literal["actor", "userSpot", "instanceSpot"]
_KINDS: Mapping[str, ObjectKind] = {"actor": "actor", "userSpot": "userSpot", "instanceSpot": "instanceSpot"}
_STATES: Mapping[str, RuntimeState] = {state.name.lower(): state for state in RuntimeState}
_ROLES: Mapping[str, ObjectRole] = {role.name.lower(): role for role in ObjectRole}


class RelocationPolicy(Enum):
    """What a type allows when its host moves work away, with its row text."""

    UNSPECIFIED = "unspecified"
    DISABLED = "disabled"
    RECREATE = "recreate"
    SNAPSHOT = "snapshot"


_POLICIES: Mapping[str, RelocationPolicy] = {policy.value: policy for policy in RelocationPolicy}


@frozen
class ObjectCapability:
    """One object type this node can host. `limit` 0 means none."""

    object_kind: ObjectKind
    stable_type: str
    policy: RelocationPolicy = RelocationPolicy.UNSPECIFIED
    has_snapshot_adapter: bool = False
    limit: int = 0


@frozen
class Usage:
    """Slots in use, slots reserved and the limit (0 = none)."""

    active: int = 0
    reserved: int = 0
    limit: int = 0


@frozen
class SpotTypeUsage:
    """`Usage` of one Spot type."""

    object_kind: ObjectKind
    stable_type: str
    usage: Usage


@frozen
class NodeCapacity:
    """A copy of what the node has in use, for choosing candidates only."""

    actors: Usage = Usage()
    spots: Usage = Usage()
    spot_types: tuple[SpotTypeUsage, ...] = ()
    activations_active: int = 0
    activations_limit: int = 128

    @property
    def limits(self) -> object:
        """The part that is identity: limits without counts."""
        types = tuple((entry.object_kind, entry.stable_type, entry.usage.limit) for entry in self.spot_types)
        return self.actors.limit, self.spots.limit, types, self.activations_limit


def _weights(weights: Mapping[str, int]) -> Mapping[str, int]:
    return MappingProxyType(dict(weights))


def _check_weight(weight: object, what: str) -> None:
    if isinstance(weight, bool) or not isinstance(weight, int) or not 0 <= weight <= WEIGHT_MAX:
        raise InvalidOperationError(f"{what} must be an integer from 0 to {WEIGHT_MAX}, not {weight!r}")


def _valid_weights(_self: object, _attribute: Attribute[Mapping[str, int]], weights: Mapping[str, int]) -> None:
    for name, weight in weights.items():
        encode_part(name, "channel name")
        _check_weight(weight, f"weight of channel {name!r}")


def _valid_weight(_self: object, attribute: Attribute[int], weight: int) -> None:
    _check_weight(weight, attribute.name)


@frozen(kw_only=True)
class MeshNodeDescriptor:
    """One MeshNode as published. Raises InvalidOperationError for a weight outside 0..10000 (LO-139).

    `descriptor_revision`, `owner_id` and `lease_generation` are filled in by the publisher; a descriptor read from
    the store always has them. `channel_weights` has the channels this node is a *Server* of and no others (LO-140).
    """

    mesh_name: str
    rid: str
    lifecycle_generation: int
    endpoint: str
    security_identity: str
    state: RuntimeState = RuntimeState.PREPARING
    descriptor_revision: int = 0
    entry_spot_id: str | None = None
    channel_weights: Mapping[str, int] = field(factory=dict, converter=_weights, validator=_valid_weights)
    application_version: int = 0
    object_capabilities: tuple[ObjectCapability, ...] = ()
    object_role: ObjectRole = ObjectRole.NONE
    placement_weight: int = field(default=DEFAULT_WEIGHT, validator=_valid_weight)
    capacity: NodeCapacity = NodeCapacity()
    maintenance_wave: str | None = None
    owner_id: str = ""
    lease_generation: int = 0

    @property
    def has_server_channels(self) -> bool:
        """True when this node is a Server of any RouteMesh channel, also with weight 0 (LO-168)."""
        return bool(self.channel_weights)

    def signed(self, revision: int, owner_id: str, lease_generation: int) -> MeshNodeDescriptor:
        """The same content under a revision and an owner."""
        return evolve(self, descriptor_revision=revision, owner_id=owner_id, lease_generation=lease_generation)


# What a change of alone publishes nothing: the counts, and what the publisher fills in itself.
_NOT_CONTENT = frozenset({"capacity", "descriptor_revision", "owner_id", "lease_generation"})
_MUTABLE = frozenset({"state", "channel_weights", "placement_weight", "maintenance_wave"}) | _NOT_CONTENT
_NAMES = tuple(attribute.name for attribute in fields(MeshNodeDescriptor))


def same_content(old: MeshNodeDescriptor, new: MeshNodeDescriptor) -> bool:
    """True when replacing `old` by `new` is worth no revision: equal, or different in counts only (LO-133, LO-137)."""
    return all(getattr(old, name) == getattr(new, name) for name in _NAMES if name not in _NOT_CONTENT)


def changed_identity(old: MeshNodeDescriptor, new: MeshNodeDescriptor) -> str | None:
    """The name of a field that must not change under one key and did, or None (LO-138)."""
    for name in _NAMES:
        if name not in _MUTABLE and getattr(old, name) != getattr(new, name):
            return name
    if old.channel_weights.keys() != new.channel_weights.keys():
        return "channel_weights"
    return "capacity" if old.capacity.limits != new.capacity.limits else None


def check_publishable(descriptor: MeshNodeDescriptor) -> None:
    """Raises ConfigurationError when the row could not be read back, dialled or stored whole (LO-081, LO-130).

    Checked before the first store call, so that nothing partial is ever published.
    """
    if len(descriptor.object_capabilities) > CAPABILITIES_MAX:
        raise ConfigurationError(
            f"mesh {descriptor.mesh_name}: a node can offer at most {CAPABILITIES_MAX} object types, "
            f"not {len(descriptor.object_capabilities)}"
        )
    host, _, port = descriptor.endpoint.rpartition("://")[2].rpartition(":")
    if descriptor.endpoint.startswith("tcp://") and (port == "0" or _is_wildcard(host)):
        raise ConfigurationError(f"mesh {descriptor.mesh_name}: {descriptor.endpoint} cannot be dialled by others")
    probe = descriptor.signed(GENERATION_MAX, "o" * ID_MAX_BYTES, GENERATION_MAX)
    raw = encode_mesh_node(probe, GENERATION_MAX)
    if len(raw) > ROW_MAX_BYTES:
        raise ConfigurationError(
            f"mesh {descriptor.mesh_name}: the node's description is {len(raw)} bytes, more than {ROW_MAX_BYTES}; "
            "register fewer or shorter type names"
        )
    try:
        decode_mesh_node(raw)
    except StoreCorruption as problem:
        raise ConfigurationError(f"mesh {descriptor.mesh_name}: {problem.message}") from None


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host in ("", "*")


def encode_mesh_node(descriptor: MeshNodeDescriptor, updated_at_ms: int) -> bytes:
    """The row bytes. `updated_at_ms` is wall-clock time and only ever displayed (LO-370)."""
    capacity = descriptor.capacity
    fenced = {
        "ownerId": descriptor.owner_id,
        "leaseGeneration": str(descriptor.lease_generation),
        "descriptorRevision": str(descriptor.descriptor_revision),
    }
    content: dict[str, object] = {
        "meshName": descriptor.mesh_name,
        "routingIdHex": rid_hex(descriptor.rid),
        "lifecycleGeneration": str(descriptor.lifecycle_generation),
        "descriptorRevision": fenced["descriptorRevision"],
        "endpoint": descriptor.endpoint,
        "entrySpotId": descriptor.entry_spot_id,
        "channelWeights": dict(descriptor.channel_weights),
        "applicationVersion": str(descriptor.application_version),
        "objectCapabilities": [
            {
                "objectKind": entry.object_kind,
                "stableType": entry.stable_type,
                "policy": entry.policy.value,
                "hasSnapshotAdapter": entry.has_snapshot_adapter,
                "limit": entry.limit,
            }
            for entry in descriptor.object_capabilities
        ],
        "objectRole": descriptor.object_role.name.lower(),
        "placementWeight": descriptor.placement_weight,
        "capacity": {
            "actors": _dump_usage(capacity.actors),
            "spots": _dump_usage(capacity.spots),
            "spotTypes": [
                {"objectKind": entry.object_kind, "stableType": entry.stable_type, **_dump_usage(entry.usage)}
                for entry in capacity.spot_types
            ],
        },
        "activationConcurrency": {"active": capacity.activations_active, "limit": capacity.activations_limit},
        "maintenanceWave": descriptor.maintenance_wave,
        "state": descriptor.state.name.lower(),
        "securityIdentity": descriptor.security_identity,
        "ownerId": fenced["ownerId"],
        "leaseGeneration": fenced["leaseGeneration"],
        "updatedAtEpochMs": str(updated_at_ms),
    }
    return dump_row({"recordVersion": RECORD_VERSION, **fenced, "descriptor": content})


def _dump_usage(usage: Usage) -> dict[str, int]:
    return {"active": usage.active, "reserved": usage.reserved, "limit": usage.limit}


def decode_mesh_node(raw: bytes) -> MeshNodeDescriptor:
    """Raises StoreCorruption unless every field is there, typed, in range, and the repeated ones agree (LO-078,
    LO-080).
    """
    row = load_row(raw, "mesh node")
    body = row.child("descriptor")
    owner_id = body.text("ownerId", ID_MAX_BYTES)
    lease_generation = body.generation("leaseGeneration")
    revision = body.generation("descriptorRevision")
    if row.text("ownerId", ID_MAX_BYTES) != owner_id:
        row.fail("ownerId", "differs from descriptor.ownerId")
    if row.generation("leaseGeneration") != lease_generation:
        row.fail("leaseGeneration", "differs from descriptor.leaseGeneration")
    if row.generation("descriptorRevision") != revision:
        row.fail("descriptorRevision", "differs from descriptor.descriptorRevision")
    body.ordinal("updatedAtEpochMs")
    return MeshNodeDescriptor(
        mesh_name=body.text("meshName", ID_MAX_BYTES),
        rid=body.rid("routingIdHex"),
        lifecycle_generation=body.generation("lifecycleGeneration"),
        descriptor_revision=revision,
        endpoint=body.text("endpoint", ENDPOINT_MAX_BYTES),
        entry_spot_id=body.optional_text("entrySpotId", ID_MAX_BYTES),
        channel_weights=body.numbers("channelWeights", 0, WEIGHT_MAX),
        application_version=body.ordinal("applicationVersion"),
        object_capabilities=tuple(
            _capability(entry) for entry in body.children("objectCapabilities", CAPABILITIES_MAX)
        ),
        object_role=body.choice("objectRole", _ROLES),
        placement_weight=body.number("placementWeight", 0, WEIGHT_MAX),
        capacity=_capacity(body),
        maintenance_wave=body.optional_text("maintenanceWave", ID_MAX_BYTES),
        state=body.choice("state", _STATES),
        security_identity=body.text("securityIdentity", ID_MAX_BYTES),
        owner_id=owner_id,
        lease_generation=lease_generation,
    )


def _capability(entry: Fields) -> ObjectCapability:
    return ObjectCapability(
        object_kind=entry.choice("objectKind", _KINDS),
        stable_type=entry.text("stableType", ID_MAX_BYTES),
        policy=entry.choice("policy", _POLICIES),
        has_snapshot_adapter=entry.flag("hasSnapshotAdapter"),
        limit=entry.number("limit", 0, LIMIT_MAX),
    )


def _capacity(body: Fields) -> NodeCapacity:
    capacity = body.child("capacity")
    activations = body.child("activationConcurrency")
    return NodeCapacity(
        actors=_usage(capacity.child("actors")),
        spots=_usage(capacity.child("spots")),
        spot_types=tuple(
            SpotTypeUsage(entry.choice("objectKind", _KINDS), entry.text("stableType", ID_MAX_BYTES), _usage(entry))
            for entry in capacity.children("spotTypes", CAPABILITIES_MAX)
        ),
        activations_active=activations.number("active", 0, LIMIT_MAX),
        activations_limit=activations.number("limit", 0, LIMIT_MAX),
    )


def _usage(entry: Fields) -> Usage:
    return Usage(
        entry.number("active", 0, LIMIT_MAX),
        entry.number("reserved", 0, LIMIT_MAX),
        entry.number("limit", 0, LIMIT_MAX),
    )
