"""Records that carry application messages, and their replies (16-25, 33, 36, 39, 46)."""

from __future__ import annotations

from typing import Annotated

from attrs import frozen

from zlinkpy.wire.composite import Fault
from zlinkpy.wire.enums import MessageKind, RelayAckStatus
from zlinkpy.wire.reply import AnyTail, combination_fault
from zlinkpy.wire.schema import U32, Gen, Ms, Op, RelId, Rid, Text
from zlinkpy.wire.structures import (
    ActorFence,
    ActorRef,
    BoundTail,
    Coordinator,
    Hop,
    NodeRef,
    PayloadHead,
    RelayContext,
    RequestSource,
    Route,
    SpotFence,
)

STREAM_PARTS = 2
"""Payload frames of a relayed STREAM packet: its header, then its bytes."""


@frozen
class NodeSend:
    payload: PayloadHead


@frozen
class NodeRequest:
    """`corr` is unique in the requester's runtime life; `ms` is the time left, counted by the receiver from receipt."""

    corr: Gen
    ms: Ms
    payload: PayloadHead


@frozen
class ChannelSend:
    channel_name: Text
    payload: PayloadHead


@frozen
class ChannelRequest:
    corr: Gen
    ms: Ms
    channel_name: Text
    payload: PayloadHead


@frozen
class Reply:
    """The one answer to a request.

    Args:
        corr: of the request.
        terminal_result: a `TerminalResult` number, 0 for ok.
        failure_code: a `FailureCode` number, 0 where the result needs none (see `RESULT_OF_CODE`).
        tail: None, or the tuple `dump_tail` made; only with ok. On decode see `parse_tail`.
        payload: only with ok.
    """

    corr: Gen
    terminal_result: U32
    failure_code: U32
    tail: Annotated[object | None, AnyTail()] = None
    payload: PayloadHead | None = None

    def inconsistency(self) -> Fault:
        # The answer nearly every request gets; the rule proper takes five times as long.
        if self.terminal_result == 0 == self.failure_code:
            return None
        return combination_fault(
            self.terminal_result,
            self.failure_code,
            payload=self.payload is not None,
            tail=self.tail is not None,
        )


@frozen
class SpotSend:
    op: Op
    hop: Hop
    source_spot_id: Text | None
    fence: SpotFence
    payload: PayloadHead


def _origin_fault(hop: int, origin: NodeRef | None) -> Fault:
    # The first forwarder fills it in; from then on the final owner needs it to answer the requester directly.
    if (hop == 0) != (origin is None):
        return "origin", "must be nil at hop 0 and name the requester from hop 1 on"
    return None


@frozen
class SpotRequest:
    corr: Gen
    ms: Ms
    op: Op
    hop: Hop
    origin: NodeRef | None
    source_spot_id: Text | None
    fence: SpotFence
    payload: PayloadHead

    def inconsistency(self) -> Fault:
        return _origin_fault(self.hop, self.origin)


@frozen
class LogicalMulticast:
    channel_name: Text
    topic: Text
    source_spot_id: Text | None
    payload: PayloadHead


def _stream_fault(payload: PayloadHead) -> Fault:
    if payload.parts != STREAM_PARTS:
        return "payload.parts", f"must be {STREAM_PARTS}: the STREAM header and the payload"
    return None


@frozen
class ActorSend:
    """A message to an Actor; with a `bound_tail`, a packet relayed from a STREAM session (two payload parts)."""

    op: Op
    hop: Hop
    source_actor: ActorRef | None
    fence: ActorFence
    bound_tail: BoundTail | None
    payload: PayloadHead

    def inconsistency(self) -> Fault:
        return None if self.bound_tail is None else _stream_fault(self.payload)


@frozen
class ActorRequest:
    corr: Gen
    ms: Ms
    op: Op
    hop: Hop
    origin: NodeRef | None
    source_actor: ActorRef | None
    fence: ActorFence
    payload: PayloadHead

    def inconsistency(self) -> Fault:
        return _origin_fault(self.hop, self.origin)


@frozen
class ReplyRelay:
    """A reply that reaches its requester through the node that has the route back."""

    op: Op
    reply_route_id: Gen
    context: RelayContext
    terminal_result: U32
    failure_code: U32
    payload: PayloadHead | None = None

    def inconsistency(self) -> Fault:
        return combination_fault(self.terminal_result, self.failure_code, payload=self.payload is not None, tail=False)


@frozen
class ReplyRelayAck:
    relocation_id: RelId
    coordinator: Coordinator
    op: Op
    reply_route_id: Gen
    source: RequestSource
    status: RelayAckStatus


@frozen
class BoundSessionSend:
    """A push, response or error to a STREAM session: header and bytes, two payload parts."""

    fence: ActorFence
    binding_generation: Gen
    payload: PayloadHead

    def inconsistency(self) -> Fault:
        return _stream_fault(self.payload)


@frozen
class InstanceSpot:
    """A message for an Instance Spot, which it may activate. `reply_route_id` (requests only) is the corr of its
    reply.
    """

    route: Route
    hop: Hop
    source_node_generation: Gen
    source_node_rid: Rid
    source_spot_id: Text | None
    kind: MessageKind
    op: Op
    reply_route_id: Gen | None
    ms: Ms
    payload: PayloadHead

    def inconsistency(self) -> Fault:
        if (self.kind is MessageKind.REQUEST) != (self.reply_route_id is not None):
            return "reply_route_id", "must be there for a request and nil for a send"
        return None


__all__ = [
    "STREAM_PARTS",
    "ActorRequest",
    "ActorSend",
    "BoundSessionSend",
    "ChannelRequest",
    "ChannelSend",
    "InstanceSpot",
    "LogicalMulticast",
    "NodeRequest",
    "NodeSend",
    "Reply",
    "ReplyRelay",
    "ReplyRelayAck",
    "SpotRequest",
    "SpotSend",
]
