"""Rules between elements (wire.md §2, §3, §7): for each a body that is right in every element and wrong as a whole.

A broken rule cannot be derived from a layout; here it is written as a change to a valid example. `place` is given by
element names, so that the list reads like the page it checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from zlinkpy.wire import (
    ALLOWED_CODES,
    RESULT_OF_CODE,
    ActorRequest,
    ActorSend,
    BoundSessionSend,
    Close,
    CloseReason,
    FrozenKind,
    InstanceSpot,
    MessageKind,
    ObjectKind,
    PayloadHead,
    RelocationData,
    RelocationPrepare,
    RelocationReady,
    RelocationStep,
    Reply,
    ReplyRelay,
    Role,
    SessionRelocationRoute,
    SpotRequest,
    TerminalResult,
)

_NODE = ["node-b", 9]
_HEAD = ["packet", "application/msgpack", 1, None]


@frozen
class RuleBreak:
    """`choose` picks the example among the shapes of `cls`; `changes` are (element path, node) pairs."""

    label: str
    cls: type[Any]
    choose: Callable[[Any], bool]
    changes: tuple[tuple[str, Any], ...]
    field: str


def _requests(cls: type[Any]) -> list[RuleBreak]:
    return [
        RuleBreak("origin at hop 0", cls, lambda c: c.hop == 0, (("origin", _NODE),), "body.origin"),
        RuleBreak("no origin at hop 3", cls, lambda c: c.hop == 3, (("origin", None),), "body.origin"),
    ]


def _combinations(cls: type[Any], tail: bool) -> list[RuleBreak]:
    def plain(c: Any) -> bool:
        return c.payload is None and getattr(c, "tail", None) is None and c.terminal_result == 0

    def pair(result: int, code: int, field: str) -> RuleBreak:
        changes = (("terminalResult", result), ("failureCode", code))
        return RuleBreak(f"result {result} with code {code}", cls, plain, changes, f"body.{field}")

    found = [pair(result, 0, "terminalResult") for result in (1, 100, 114, 2**32 - 1)]
    found += [pair(0, 9, "failureCode"), pair(102, 0, "failureCode"), pair(101, 9, "failureCode")]
    found += [pair(int(TerminalResult.NOT_FOUND), code, "failureCode") for code in (*range(23, 33), 36, 2**32 - 1)]
    for code, right in RESULT_OF_CODE.items():
        wrong = TerminalResult.CONFLICT if right is not TerminalResult.CONFLICT else TerminalResult.NOT_FOUND
        found.append(pair(int(wrong), int(code), "failureCode"))
    failed = (("terminalResult", 102), ("failureCode", 9))
    found.append(RuleBreak("payload of a failure", cls, plain, (*failed, ("payload", _HEAD)), "body.payload"))
    if tail:
        found.append(RuleBreak("tail of a failure", cls, plain, (*failed, ("tail", [1])), "body.tail"))
    return found


def _frozen(label: str, kind: FrozenKind, element: str, node: Any) -> RuleBreak:
    def choose(c: RelocationData) -> bool:
        return c.record.kind is kind and getattr(c.record.body, "kind", MessageKind.REQUEST) is MessageKind.REQUEST

    return RuleBreak(label, RelocationData, choose, ((f"record.{element}", node),), f"body.record.{element}")


RULES: list[RuleBreak] = [
    *_requests(SpotRequest),
    *_requests(ActorRequest),
    *_combinations(Reply, tail=True),
    *_combinations(ReplyRelay, tail=False),
    RuleBreak(
        "relay of one part",
        ActorSend,
        lambda c: c.bound_tail is not None,
        (("payload.parts", 1),),
        "body.payload.parts",
    ),
    RuleBreak("push of one part", BoundSessionSend, lambda c: True, (("payload.parts", 1),), "body.payload.parts"),
    RuleBreak("push of three parts", BoundSessionSend, lambda c: True, (("payload.parts", 3),), "body.payload.parts"),
    RuleBreak(
        "send with a reply route",
        InstanceSpot,
        lambda c: c.kind is MessageKind.SEND,
        (("replyRouteId", 7),),
        "body.replyRouteId",
    ),
    RuleBreak(
        "request without a reply route",
        InstanceSpot,
        lambda c: c.kind is MessageKind.REQUEST,
        (("replyRouteId", None),),
        "body.replyRouteId",
    ),
    RuleBreak(
        "chunk limit at step 1",
        RelocationReady,
        lambda c: c.step is RelocationStep.TRANSFER,
        (("receiveChunkLimit", 7),),
        "body.receiveChunkLimit",
    ),
    RuleBreak(
        "manifest at step 0",
        RelocationPrepare,
        lambda c: c.step is RelocationStep.CHECK,
        (("manifest", [1, 2, 3, 4]),),
        "body.manifest",
    ),
    RuleBreak(
        "no manifest at step 1",
        RelocationPrepare,
        lambda c: c.step is RelocationStep.TRANSFER,
        (("manifest", None), ("moveList", None)),
        "body.manifest",
    ),
    RuleBreak(
        "move list at step 0",
        RelocationPrepare,
        lambda c: c.step is RelocationStep.CHECK and c.object.kind is ObjectKind.USER_SPOT,
        (("moveList", [1, bytes(32)]),),
        "body.moveList",
    ),
    RuleBreak(
        "move list of an Actor",
        RelocationPrepare,
        lambda c: c.step is RelocationStep.TRANSFER and c.move_list is not None,
        (("object.kind", int(ObjectKind.ACTOR)),),
        "body.moveList",
    ),
    *(
        RuleBreak(
            f"{wrong.name.lower()} instead of {right.name.lower()}",
            SessionRelocationRoute,
            lambda c, right=right: c.role is right,
            (("role", int(wrong)),),
            "body.role",
        )
        for right, wrong in (
            (Role.TARGET, Role.SOURCE),
            (Role.SOURCE, Role.TARGET),
            (Role.SOURCE, Role.COORDINATOR),
            (Role.TARGET, Role.COORDINATOR),
        )
    ),
    _frozen("operation id of a multicast", FrozenKind.MULTICAST, "op", [1, 2]),
    _frozen("no operation id", FrozenKind.SPOT_SEND, "op", None),
    _frozen("reply route of a send", FrozenKind.ACTOR_SEND, "replyRouteId", 7),
    _frozen("no reply route of a request", FrozenKind.ACTOR_REQUEST, "replyRouteId", None),
    _frozen("remaining time of a send", FrozenKind.SPOT_SEND, "ms", 7),
    _frozen("no remaining time of a request", FrozenKind.SPOT_REQUEST, "ms", None),
    _frozen("no reply route of an Instance Spot request", FrozenKind.INSTANCE_SPOT, "replyRouteId", None),
    *(
        RuleBreak(
            f"reason {int(reason)} with a field",
            Close,
            lambda c, r=reason: c.reason is r,
            (("", [int(reason), "body", ""]),),
            "body",
        )
        for reason in CloseReason
        if reason is not CloseReason.PROTOCOL_ERROR
    ),
]
"""Broken rules. A change at the path "" replaces the whole body."""

ENDINGS: list[Reply] = [
    Reply(7, result, code, None, PayloadHead("answer") if not result else None)
    for result, codes in sorted(ALLOWED_CODES.items())
    for code in sorted(codes)
]
"""Every allowed pair of result and failure code."""
