"""What a successful reply says besides its payload (wire.md §7).

The record does not name the shape: it follows from the operation the requester is waiting for, so the requester
parses it with the command it sent. A tail of another shape is the peer's protocol error, like any other element.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from attrs import field, frozen

from zlinkpy.wire.composite import OneOf, present_if, struct_of
from zlinkpy.wire.enums import CreateOutcome
from zlinkpy.wire.objects import ActorCreate, ActorJoin, ActorLookup, BoundSessionBind, UserSpotClose, UserSpotCreate
from zlinkpy.wire.schema import U32, Const, Gen, Text, WireType, mistake, violation
from zlinkpy.wire.structures import ActorRef, SpotRef


@frozen
class ActorLocation:
    """Answer to `ActorLookup`."""

    actor: ActorRef
    spot_id: Text
    spot_generation: Gen
    membership_epoch: Gen
    authority_owner_generation: Gen


@frozen
class JoinAccepted:
    """Answer to `ActorJoin`: the Actor is a member."""

    tag: ClassVar[Annotated[int, Const(0)]] = 0
    spot: SpotRef
    membership_epoch: Gen
    receive_chunk_limit: U32


@frozen
class JoinRejected:
    """Answer to `ActorJoin`: refused; `spot` is where the Actor is a member instead, if anywhere."""

    tag: ClassVar[Annotated[int, Const(1)]] = 1
    spot: SpotRef | None


@frozen
class SessionBound:
    """Answer to `BoundSessionBind`."""

    binding_generation: Gen
    authority_owner_generation: Gen


@frozen
class SpotCreation:
    """Answer to `UserSpotCreate`."""

    outcome: CreateOutcome
    spot: SpotRef


@frozen
class SpotClosure:
    """Answer to `UserSpotClose`."""

    closed: bool


@frozen
class ActorCreation:
    """Answer to `ActorCreate`; a rejected creation names no Actor."""

    outcome: CreateOutcome
    actor: Annotated[ActorRef | None, struct_of(ActorRef)] = field(
        default=None, metadata=present_if(CreateOutcome.EXISTING, CreateOutcome.CREATED)
    )

    def inconsistency(self) -> tuple[str, str] | None:
        if (self.actor is None) != (self.outcome is CreateOutcome.REJECTED):
            return "actor", f"must be there unless the outcome is {int(CreateOutcome.REJECTED)}"
        return None


Tail = ActorLocation | JoinAccepted | JoinRejected | SessionBound | SpotCreation | SpotClosure | ActorCreation

TAILS: dict[type[Any], WireType] = {
    ActorLookup: struct_of(ActorLocation),
    ActorJoin: OneOf([struct_of(JoinAccepted), struct_of(JoinRejected)]),
    BoundSessionBind: struct_of(SessionBound),
    UserSpotCreate: struct_of(SpotCreation),
    UserSpotClose: struct_of(SpotClosure),
    ActorCreate: struct_of(ActorCreation),
}
"""Request class -> shape of the tail; every other request is answered with nil."""


def parse_tail(request: type[Any], tail: object | None) -> Tail | None:
    """Give the tail of an *ok* reply its shape.

    Args:
        request: class of the command that is being answered, such as `ActorLookup`.
        tail: `Reply.tail` as decoded.

    Raises:
        ProtocolError: with `field` at or below ``body.tail`` when it does not fit the request.
    """
    shape = TAILS.get(request)
    if shape is not None:
        parsed: Tail = shape.check(tail, "body.tail")
        return parsed
    if tail is not None:
        violation("body.tail", f"must be nil in the reply to {request.__name__}")
    return None


def dump_tail(request: type[Any], tail: Tail | None) -> object | None:
    """The other direction: what to put into `Reply.tail`. Raises ValueError when `tail` does not answer `request`."""
    shape = TAILS.get(request)
    if shape is not None:
        return shape.dump(tail, "tail")  # type: ignore[no-any-return]
    if tail is not None:
        mistake("tail", f"must be None in the reply to {request.__name__}")
    return None


__all__ = [
    "TAILS",
    "ActorCreation",
    "ActorLocation",
    "JoinAccepted",
    "JoinRejected",
    "SessionBound",
    "SpotClosure",
    "SpotCreation",
    "Tail",
    "dump_tail",
    "parse_tail",
]
