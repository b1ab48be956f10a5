"""Records that move live objects between hosts (30, 31, 34, 40, 42-44, 52, 53) and the work frozen into them.

What the steps mean is the relocation machine's business; here are their layouts. A record's sender role is a constant
of its class: a coordinator (role 3) sends none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from attrs import frozen

from zlinkpy.wire.composite import Arr, By, Fault, Opt, struct_of
from zlinkpy.wire.enums import (
    FrozenKind,
    MessageKind,
    ObjectKind,
    RelocationFailureCode,
    RelocationStep,
    Role,
    SealResult,
)
from zlinkpy.wire.limits import PARTS_MAX, STATE_CHUNK_MAX
from zlinkpy.wire.metadata import MetadataPairs
from zlinkpy.wire.schema import U32, Bin, Const, Gen, Ms, Op, Ord, RelId, Text
from zlinkpy.wire.structures import (
    ActorFence,
    ActorRef,
    CommitRoute,
    Coordinator,
    Flow,
    Manifest,
    MoveList,
    NodeRef,
    ObjectId,
    RelocationTarget,
    Route,
    RouteUpdate,
    SessionOwner,
    Source,
    SpotFence,
)

SourceRole = Annotated[Role, Const(Role.SOURCE)]
TargetRole = Annotated[Role, Const(Role.TARGET)]


@frozen
class FrozenPayload:
    """A payload that travels inside a body: its frames become one array of bins."""

    packet_name: Text
    content_type: Text
    flow: Flow | None
    parts: Annotated[tuple[bytes, ...], Arr(Bin("bin", 0, None), 1, PARTS_MAX)]


@frozen
class FrozenSpotMessage:
    fence: SpotFence
    payload: FrozenPayload


@frozen
class FrozenMulticast:
    channel_name: Text
    topic: Text
    payload: FrozenPayload


@frozen
class FrozenActorMessage:
    fence: ActorFence
    payload: FrozenPayload


@frozen
class FrozenInstanceMessage:
    route: Route
    kind: MessageKind
    payload: FrozenPayload


FrozenBody = FrozenSpotMessage | FrozenMulticast | FrozenActorMessage | FrozenInstanceMessage

_BODIES: dict[FrozenKind, type[Any]] = {
    FrozenKind.SPOT_SEND: FrozenSpotMessage,
    FrozenKind.SPOT_REQUEST: FrozenSpotMessage,
    FrozenKind.MULTICAST: FrozenMulticast,
    FrozenKind.ACTOR_SEND: FrozenActorMessage,
    FrozenKind.ACTOR_REQUEST: FrozenActorMessage,
    FrozenKind.INSTANCE_SPOT: FrozenInstanceMessage,
}
_BODY = By("kind", {kind: struct_of(cls) for kind, cls in _BODIES.items()})


@frozen
class FrozenRecord:
    """Accepted work that has not run yet: it moves with its object and runs at the target.

    Args:
        op: None for a multicast, which has none.
        reply_route_id, ms: for requests, and only for them.
    """

    kind: FrozenKind
    source: Source
    metadata: Annotated[Mapping[str, str] | None, Opt(MetadataPairs())]
    op: Op | None
    reply_route_id: Gen | None
    ms: Ms | None
    body: Annotated[FrozenBody, _BODY]

    @property
    def is_request(self) -> bool:
        """Whether somebody waits for a reply."""
        if isinstance(self.body, FrozenInstanceMessage):
            return self.body.kind is MessageKind.REQUEST
        return self.kind in (FrozenKind.SPOT_REQUEST, FrozenKind.ACTOR_REQUEST)

    def inconsistency(self) -> Fault:
        if (self.op is None) != (self.kind is FrozenKind.MULTICAST):
            return "op", "must be nil for a multicast and for nothing else"
        for name, value in (("reply_route_id", self.reply_route_id), ("ms", self.ms)):
            if (value is not None) != self.is_request:
                return name, "must be there for a request and nil otherwise"
        return None


@frozen
class RelocationReady:
    """Answer to a prepare: at step 0 the chunk limit the target advertises (None: none), at step 1 relay-ready."""

    relocation_id: RelId
    attempt: Gen
    coordinator: Coordinator
    object: ObjectId
    role: ClassVar[TargetRole] = Role.TARGET
    target: RelocationTarget
    step: RelocationStep
    receive_chunk_limit: U32 | None

    def inconsistency(self) -> Fault:
        if self.step is RelocationStep.TRANSFER and self.receive_chunk_limit is not None:
            return "receive_chunk_limit", "must be nil at step 1"
        return None


@frozen
class RelocationData:
    """One held record: `position` counts from 1 before the boundary and is 0 after it."""

    relocation_id: RelId
    attempt: Gen
    coordinator: Coordinator
    object: ObjectId
    role: ClassVar[SourceRole] = Role.SOURCE
    position: Ord
    record: FrozenRecord


@frozen
class RelocationCutover:
    """End of the span: how many records, and the CRC-32C over their encodings in order (`encode_frozen`)."""

    relocation_id: RelId
    attempt: Gen
    coordinator: Coordinator
    object: ObjectId
    role: ClassVar[SourceRole] = Role.SOURCE
    count: Ord
    crc32c: U32


@frozen
class RelocationPrepare:
    """Step 0 checks and reserves; step 1 announces the state, and for a SpotWide aggregate its members."""

    relocation_id: RelId
    attempt: Gen
    coordinator: Coordinator
    object: ObjectId
    role: ClassVar[SourceRole] = Role.SOURCE
    step: RelocationStep
    target: RelocationTarget
    source: NodeRef
    application_version: Ord
    manifest: Manifest | None
    move_list: MoveList | None

    def inconsistency(self) -> Fault:
        if (self.manifest is not None) != (self.step is RelocationStep.TRANSFER):
            return "manifest", "must be there at step 1 and nil at step 0"
        if self.move_list is not None and (
            self.step is not RelocationStep.TRANSFER or self.object.kind is not ObjectKind.USER_SPOT
        ):
            return "move_list", "belongs to step 1 of a user Spot"
        return None


@frozen
class SessionRelocationSeal:
    relocation_id: RelId
    attempt: Gen
    coordinator: Coordinator
    role: ClassVar[SourceRole] = Role.SOURCE
    fence: ActorFence
    session_owner: SessionOwner
    binding_generation: Gen


@frozen
class SessionRelocationSealed:
    relocation_id: RelId
    attempt: Gen
    coordinator: Coordinator
    fence: ActorFence
    session_owner: SessionOwner
    binding_generation: Gen
    result: SealResult


@frozen
class SessionRelocationRoute:
    """Ends a seal. The target commits the new route, the source aborts; `role` says which and must match the update."""

    relocation_id: RelId
    attempt: Gen
    coordinator: Coordinator
    role: Role
    actor: ActorRef
    session_owner: SessionOwner
    binding_generation: Gen
    update: RouteUpdate

    def inconsistency(self) -> Fault:
        expected = Role.TARGET if isinstance(self.update, CommitRoute) else Role.SOURCE
        if self.role is not expected:
            return "role", f"must be {int(expected)} for this route update"
        return None


@frozen
class RelocationState:
    """One chunk of the captured state, `ordinal` from 0."""

    relocation_id: RelId
    attempt: Gen
    coordinator: Coordinator
    object: ObjectId
    role: ClassVar[SourceRole] = Role.SOURCE
    ordinal: U32
    data: Annotated[bytes, Bin("bin 1..64 MiB", 1, STATE_CHUNK_MAX)]


@frozen
class RelocationFailed:
    """The target gave the relocation back; the source takes the object into service again."""

    relocation_id: RelId
    attempt: Gen
    coordinator: Coordinator
    object: ObjectId
    role: ClassVar[TargetRole] = Role.TARGET
    target: RelocationTarget
    code: RelocationFailureCode


__all__ = [
    "FrozenActorMessage",
    "FrozenBody",
    "FrozenInstanceMessage",
    "FrozenMulticast",
    "FrozenPayload",
    "FrozenRecord",
    "FrozenSpotMessage",
    "RelocationCutover",
    "RelocationData",
    "RelocationFailed",
    "RelocationPrepare",
    "RelocationReady",
    "RelocationState",
    "SessionRelocationRoute",
    "SessionRelocationSeal",
    "SessionRelocationSealed",
]
