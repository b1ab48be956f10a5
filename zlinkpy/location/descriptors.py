"""The MeshNode descriptor: what one node tells the others about itself (facts §4, LO-076..081, LO-137..140).

Used capacity travels along for choosing candidates and is never a reason to publish (LO-137); the capacity row
decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal

from attrs import Attribute, field, frozen

from zlinkpy.errors import ConfigurationError
from zlinkpy.location import keys
from zlinkpy.location.descriptor_kind import (
    DEFAULT_WEIGHT,
    WEIGHT_MAX,
    Descriptor,
    DescriptorKind,
    check_weight,
    valid_weight,
)
from zlinkpy.location.keys import ID_MAX_BYTES, encode_part
from zlinkpy.location.rows import Fields
from zlinkpy.wire import ObjectRole

CAPABILITIES_MAX = 1024
LIMIT_MAX = 2**31 - 1

ObjectKind = Literal["actor", "userSpot", "instanceSpot"]
_KINDS: Mapping[str, ObjectKind] = {"actor": "actor", "userSpot": "userSpot", "instanceSpot": "instanceSpot"}
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


def _valid_weights(_self: object, _attribute: Attribute[Mapping[str, int]], weights: Mapping[str, int]) -> None:
    for name, weight in weights.items():
        encode_part(name, "channel name")
        check_weight(weight, f"weight of channel {name!r}")


@frozen(kw_only=True)
class MeshNodeDescriptor(Descriptor):
    """One MeshNode as published. Raises InvalidOperationError for a weight outside 0..10000 (LO-139).

    `channel_weights` has the channels this node is a *Server* of and no others (LO-140).
    """

    mesh_name: str
    entry_spot_id: str | None = None
    channel_weights: Mapping[str, int] = field(factory=dict, converter=_weights, validator=_valid_weights)
    application_version: int = 0
    object_capabilities: tuple[ObjectCapability, ...] = ()
    object_role: ObjectRole = ObjectRole.NONE
    placement_weight: int = field(default=DEFAULT_WEIGHT, validator=valid_weight)
    capacity: NodeCapacity = NodeCapacity()
    maintenance_wave: str | None = None

    @property
    def kind(self) -> DescriptorKind[MeshNodeDescriptor]:
        return MESH_NODE

    @property
    def scope(self) -> str:
        return self.mesh_name

    @property
    def claimed_spot(self) -> str | None:
        return self.entry_spot_id

    @property
    def has_server_channels(self) -> bool:
        """True when this node is a Server of any RouteMesh channel, also with weight 0 (LO-168)."""
        return bool(self.channel_weights)


def _finer_identity(old: MeshNodeDescriptor, new: MeshNodeDescriptor) -> str | None:
    """Channels and limits are identity, weights and counts are not."""
    if old.channel_weights.keys() != new.channel_weights.keys():
        return "channel_weights"
    return "capacity" if old.capacity.limits != new.capacity.limits else None


def _check(descriptor: MeshNodeDescriptor) -> None:
    if len(descriptor.object_capabilities) > CAPABILITIES_MAX:
        raise ConfigurationError(
            f"mesh {descriptor.mesh_name}: a node can offer at most {CAPABILITIES_MAX} object types, "
            f"not {len(descriptor.object_capabilities)}"
        )


def _dump(descriptor: MeshNodeDescriptor) -> Mapping[str, object]:
    capacity = descriptor.capacity
    return {
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
    }


def _dump_usage(usage: Usage) -> dict[str, int]:
    return {"active": usage.active, "reserved": usage.reserved, "limit": usage.limit}


def _build(scope: str, body: Fields, shared: Mapping[str, Any]) -> MeshNodeDescriptor:
    return MeshNodeDescriptor(
        mesh_name=scope,
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
        **shared,
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


MESH_NODE = DescriptorKind(
    type=MeshNodeDescriptor,
    name="mesh node",
    scope_name="mesh",
    scope_field="meshName",
    rid_field="routingIdHex",
    all_prefix=keys.MESH_NODES_PREFIX,
    prefix=keys.mesh_node_prefix,
    key=keys.mesh_node,
    dump=_dump,
    build=_build,
    mutable=frozenset({"state", "channel_weights", "placement_weight", "maintenance_wave"}),
    uncounted=frozenset({"capacity"}),
    finer_identity=_finer_identity,
    check=_check,
)
encode_mesh_node = MESH_NODE.encode
decode_mesh_node = MESH_NODE.decode
check_publishable = MESH_NODE.check_publishable
