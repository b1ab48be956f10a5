"""Who a peer is: the three admissions and the RouteMesh `ext` map (wire.md §4).

Decoding checks form only. Whether the capabilities suffice, the mesh is the right one or the generation is current is
decided by the link, which can still answer with a reject: a protocol error could not say that much.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from attrs import field, frozen

from zlinkpy.wire.composite import Arr, Opt, Tup, ext_id
from zlinkpy.wire.enums import ObjectRole, RuntimeState
from zlinkpy.wire.limits import CHANNELS_MAX, TEXT_MAX, U32_MAX, WEIGHT_MAX
from zlinkpy.wire.schema import Const, Endpoint, Gen, Int, Ord, Rid, Str, Text

_TEXT = Str("t", 1, TEXT_MAX, nul=False)
_WEIGHT = Int("weight 0..10000", 0, WEIGHT_MAX)

Weight = Annotated[int, _WEIGHT]
Channels = Annotated[
    tuple[tuple[str, int], ...],
    Arr(Tup(("name", _TEXT), ("weight", _WEIGHT)), 0, CHANNELS_MAX, ordered_by=lambda channel: channel[0]),
]
Capabilities = Annotated[tuple[str, ...], Arr(_TEXT, 0, CHANNELS_MAX)]
MaxMessageBytes = Annotated[int, Int("u32 >= 1", 1, U32_MAX)]


@frozen
class Ext:
    """The part of an admission that may grow: ids a reader does not know are skipped.

    Args:
        placement_weight: 0..10000.
        maintenance_wave: None is left out of the map.
        protocol_capabilities: must hold `REQUIRED_CAPABILITY` to be admitted.
    """

    runtime_state: RuntimeState = field(metadata=ext_id(1))
    application_version: Ord = field(metadata=ext_id(2))
    maintenance_wave: Annotated[str | None, Opt(_TEXT)] = field(metadata=ext_id(5))
    protocol_capabilities: Capabilities = field(metadata=ext_id(6))
    object_role: ObjectRole = field(metadata=ext_id(7))
    placement_weight: Weight = field(metadata=ext_id(8))


@frozen
class RouteMeshAdmission:
    """A mesh node's self-description. `channels` are the Server-role channels, ascending by name."""

    topology: ClassVar[Annotated[int, Const(1)]] = 1
    mesh_name: Text
    node_rid: Rid
    security_identity: Text
    lifecycle_generation: Gen
    descriptor_revision: Gen
    advertised_endpoint: Endpoint
    channels: Channels
    ext: Ext


@frozen
class ClientAdmission:
    """What a ClientServer client says of itself."""

    topology: ClassVar[Annotated[int, Const(2)]] = 2
    role: ClassVar[Annotated[int, Const(1)]] = 1
    channel_name: Text
    direction: ClassVar[Annotated[int, Const(1)]] = 1
    security_identity: Text
    max_message_bytes: MaxMessageBytes


@frozen
class ServerAdmission:
    """What a ClientServer server says of itself."""

    topology: ClassVar[Annotated[int, Const(2)]] = 2
    role: ClassVar[Annotated[int, Const(2)]] = 2
    channel_name: Text
    direction: ClassVar[Annotated[int, Const(1)]] = 1
    server_rid: Rid
    lifecycle_generation: Gen
    descriptor_revision: Gen
    weight: Weight
    runtime_state: RuntimeState
    security_identity: Text
    max_message_bytes: MaxMessageBytes
    advertised_endpoint: Endpoint


Admission = RouteMeshAdmission | ClientAdmission | ServerAdmission
