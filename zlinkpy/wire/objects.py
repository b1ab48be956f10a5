"""Records about Spots, Actors and session bindings (26-29, 37, 38, 47-51)."""

from __future__ import annotations

from typing import Annotated

from attrs import frozen

from zlinkpy.wire.composite import By, struct_of
from zlinkpy.wire.enums import FollowKind
from zlinkpy.wire.limits import HOP_MAX
from zlinkpy.wire.schema import Gen, Int, Ms, Op, Ord, Rid, StoreVersion, Text
from zlinkpy.wire.structures import (
    ActorFence,
    ActorRef,
    Binding,
    PayloadHead,
    Reservation,
    SessionOwner,
    SpotFence,
    SpotRef,
)


@frozen
class ActorLookup:
    corr: Gen
    ms: Ms
    actor_id: Text


@frozen
class ActorDestroy:
    corr: Gen
    ms: Ms
    fence: ActorFence


@frozen
class ActorJoin:
    """Ask a Spot to take an Actor as member; the payload parts are at most `JOIN_PAYLOAD_MAX` bytes together."""

    corr: Gen
    ms: Ms
    op: Op
    actor: ActorFence
    entry: bool
    spot: SpotFence
    payload: PayloadHead | None = None


@frozen
class ActorLeft:
    actor: ActorRef
    previous_membership: SpotRef
    authority_owner_generation: Gen


@frozen
class ActorJoined:
    actor: ActorRef
    previous_membership: SpotRef | None
    current_membership: SpotRef
    authority_owner_generation: Gen


@frozen
class BoundSessionBind:
    corr: Gen
    ms: Ms
    fence: ActorFence
    session_owner: SessionOwner
    binding: Binding


@frozen
class UserSpotCreate:
    corr: Gen
    ms: Ms
    op: Op
    source_node_rid: Rid
    source_node_generation: Gen
    spot_id: Text
    stable_type: Text
    reservation: Reservation


@frozen
class UserSpotClose:
    corr: Gen
    ms: Ms
    op: Op
    source_node_rid: Rid
    source_node_generation: Gen
    spot: SpotRef
    target_node_rid: Rid
    target_node_generation: Gen
    authority_owner_generation: Gen
    version: StoreVersion


@frozen
class ActorCreate:
    corr: Gen
    ms: Ms
    op: Op
    source_node_rid: Rid
    source_node_generation: Gen
    actor_id: Text
    stable_type: Text
    reservation: Reservation


@frozen
class MessageFollow:
    """Tell a sender that its cached route led to an old owner. `reply_route_id` 0 stands for a one-way message."""

    kind: FollowKind
    source: Annotated[
        ActorFence | SpotFence,
        By("kind", {FollowKind.ACTOR: struct_of(ActorFence), FollowKind.SPOT: struct_of(SpotFence)}),
    ]
    target: Annotated[
        ActorRef | SpotRef,
        By("kind", {FollowKind.ACTOR: struct_of(ActorRef), FollowKind.SPOT: struct_of(SpotRef)}),
    ]
    hop: Annotated[int, Int("hop 1..8", 1, HOP_MAX)]
    op: Op
    reply_route_id: Ord


@frozen
class BoundSessionReplaced:
    fence: ActorFence
    session_owner: SessionOwner
    retired_binding_generation: Gen


__all__ = [
    "ActorCreate",
    "ActorDestroy",
    "ActorJoin",
    "ActorJoined",
    "ActorLeft",
    "ActorLookup",
    "BoundSessionBind",
    "BoundSessionReplaced",
    "MessageFollow",
    "UserSpotClose",
    "UserSpotCreate",
]
