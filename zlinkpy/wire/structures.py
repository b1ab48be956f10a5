"""The structures several records share (wire.md §3), and the payload head (§5).

References, fences and coordinates are values compared for equality; nothing here looks anything up.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from attrs import frozen

from zlinkpy.wire.enums import FlowOrigin, ObjectKind, RelayCause
from zlinkpy.wire.limits import HOP_MAX, PARTS_MAX, U32_MAX
from zlinkpy.wire.schema import U32, Bin, Const, Gen, Int, Ms, Ord, RelId, Rid, Sid, StoreVersion, Str, Text

CONTENT_TYPE = "application/msgpack"
"""The default content type of a payload."""

Hop = Annotated[int, Int("hop", 0, HOP_MAX)]
FlowId = Annotated[str, Str("str 36", 36, 36)]


@frozen
class Flow:
    """Trace context of a payload. `flow_id` is checked for its 36 bytes here; telemetry judges its form."""

    flow_id: FlowId
    origin: FlowOrigin


@frozen
class PayloadHead:
    """What the body says about the raw payload frames behind it.

    Args:
        packet_name: selects the handler, 1..255 bytes.
        content_type: canonical `type/subtype` in lower case; compared verbatim by whoever decodes the payload.
        parts: number of payload frames, 1..64. `encode` refuses a record whose frames do not match it.
        flow: trace context, None at trace level Off.
    """

    packet_name: Text
    content_type: Text = CONTENT_TYPE
    parts: Annotated[int, Int("u8 1..64", 1, PARTS_MAX)] = 1
    flow: Flow | None = None


@frozen
class NodeRef:
    """One life of a mesh node; as `origin`, the requester whom a forwarded request is answered to."""

    node_rid: Rid
    node_generation: Gen


@frozen
class ActorRef:
    actor_id: Text
    object_generation: Gen


@frozen
class SpotRef:
    spot_id: Text
    object_generation: Gen


@frozen
class ActorFence:
    """An Actor at one owner: a record carrying it is refused where any of the numbers is not current."""

    ref: ActorRef
    node_rid: Rid
    node_generation: Gen
    authority_owner_generation: Gen
    owner_lease_generation: Gen


@frozen
class SpotFence:
    """A Spot at one owner."""

    ref: SpotRef
    node_rid: Rid
    node_generation: Gen
    authority_owner_generation: Gen
    owner_lease_generation: Gen


@frozen
class BoundTail:
    """Marks an actorSend as relayed from a STREAM session."""

    source_session_rid: Sid
    source_binding_generation: Gen
    source_session_sequence: Gen


@frozen
class AuthorityFence:
    """The authority row a record was addressed by."""

    object_generation: Gen
    owner_id: Text
    authority_owner_generation: Gen
    lease_generation: Gen
    version: StoreVersion


@frozen
class Coordinator:
    """Who runs a relocation (the source host), with the authority version it started from."""

    owner_id: Text
    lease_generation: Gen
    node_rid: Rid
    node_generation: Gen
    expected_authority: StoreVersion


@frozen
class RelocationTarget:
    node_rid: Rid
    node_generation: Gen
    owner_id: Text
    owner_lease_generation: Gen


@frozen
class RequestSource:
    owner_id: Text
    owner_lease_generation: Gen
    node_rid: Rid
    node_generation: Gen


@frozen
class SessionOwner:
    node_rid: Rid
    node_generation: Gen
    owner_id: Text
    owner_lease_generation: Gen
    session_rid: Sid


@frozen
class Reservation:
    """A placement the target was reserved for, as the authority row holds it."""

    reservation_id: Text
    version: StoreVersion
    object_generation: Gen
    authority_owner_generation: Gen
    target_node_rid: Rid
    target_node_generation: Gen
    target_owner_id: Text
    target_owner_lease_generation: Gen
    pending_capacity_delta: Annotated[int, Int("u32 >= 1", 1, U32_MAX)]


@frozen
class ObjectId:
    """The unit a relocation moves."""

    kind: ObjectKind
    id: Text
    object_generation: Gen
    authority_owner_generation: Gen


@frozen
class Manifest:
    """What a relocation's state chunks add up to; `validity` is how long the target may still restore it."""

    total_bytes: Ord
    chunks: U32
    crc32c: U32
    validity: Ms


@frozen
class MoveList:
    entries: Ord
    sha256: Annotated[bytes, Bin("bin32", 32, 32)]


@frozen
class ReadyRoute:
    """An Instance Spot that has an owner."""

    tag: ClassVar[Annotated[int, Const(1)]] = 1
    target_node_rid: Rid
    target_node_generation: Gen
    spot_id: Text
    authority: AuthorityFence


@frozen
class ColdRoute:
    """An Instance Spot that the addressed node is asked to activate; nobody owns it yet, so there is no fence."""

    tag: ClassVar[Annotated[int, Const(2)]] = 2
    target_node_rid: Rid
    target_node_generation: Gen
    spot_id: Text
    mesh_name: Text
    stable_type: Text
    descriptor_version: StoreVersion


Route = ReadyRoute | ColdRoute


@frozen
class ActiveBinding:
    tag: ClassVar[Annotated[int, Const(1)]] = 1
    binding_generation: Gen


@frozen
class RetiredBinding:
    tag: ClassVar[Annotated[int, Const(2)]] = 2
    retired_binding_generation: Gen


Binding = ActiveBinding | RetiredBinding


@frozen
class CommitRoute:
    """A session's route after its Actor moved."""

    tag: ClassVar[Annotated[int, Const(1)]] = 1
    previous_authority_owner_generation: Gen
    authority_owner_generation: Gen
    mesh_name: Text
    node_rid: Rid
    node_generation: Gen
    owner_lease_generation: Gen


@frozen
class AbortRoute:
    """The Actor stays where it was."""

    tag: ClassVar[Annotated[int, Const(2)]] = 2
    authority_owner_generation: Gen


RouteUpdate = CommitRoute | AbortRoute


@frozen
class DirectRelay:
    """A reply of work that never moved but cannot go back the direct way."""

    tag: ClassVar[Annotated[int, Const(1)]] = 1
    cause: RelayCause
    authority: AuthorityFence


@frozen
class RelocatedRelay:
    """A reply of work that was frozen into a relocation."""

    tag: ClassVar[Annotated[int, Const(2)]] = 2
    relocation_id: RelId
    attempt: Gen
    coordinator: Coordinator
    participant_id: U32
    sequence: Ord


RelayContext = DirectRelay | RelocatedRelay


@frozen
class NodeSource:
    """Where a piece of work came from: a node."""

    tag: ClassVar[Annotated[int, Const(1)]] = 1
    node_rid: Rid
    node_generation: Gen
    owner_id: Text
    lease_generation: Gen


@frozen
class SpotSource:
    tag: ClassVar[Annotated[int, Const(2)]] = 2
    node_rid: Rid
    node_generation: Gen
    owner_id: Text
    lease_generation: Gen
    spot_id: Text


@frozen
class ActorSource:
    tag: ClassVar[Annotated[int, Const(3)]] = 3
    node_rid: Rid
    node_generation: Gen
    owner_id: Text
    lease_generation: Gen
    actor: ActorRef


@frozen
class SessionSource:
    tag: ClassVar[Annotated[int, Const(4)]] = 4
    node_rid: Rid
    node_generation: Gen
    owner_id: Text
    lease_generation: Gen
    actor: ActorRef
    bound_tail: BoundTail


Source = NodeSource | SpotSource | ActorSource | SessionSource
