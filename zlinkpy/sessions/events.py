"""What subscribers of a session see: the events of its turns.

An event is a frozen record. A handler fills its own fields only; `ts`, `turn_id` and `seq` are stamped by the router
when the event is emitted, `ctx` and `iteration` are the handler's to use. Applications derive types of their own from
`TurnEvent`; what has no registered codec (`zlinkpy.sessions.payloads.EventCodec`) stays on its node (SR-348).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import field, frozen

from zlinkpy.sessions.types import InterruptReason, frozen_mapping


@frozen
class TurnEvent:
    """Base of all events.

    `ts` is epoch milliseconds on the node that ran the turn, 0 until stamped. `seq` counts the turn's events from 1,
    dropped ones included; None on a frame that belongs to no turn's stream (SR-345, SR-398).
    """

    ts: int = field(default=0, kw_only=True)
    ctx: str = field(default="", kw_only=True)
    iteration: int = field(default=0, kw_only=True)
    turn_id: str | None = field(default=None, kw_only=True)
    seq: int | None = field(default=None, kw_only=True)


@frozen
class TurnStarted(TurnEvent):
    """A turn began."""


@frozen
class StepStarted(TurnEvent):
    """A step of the turn (a tool call, a stage) began. Values of the summary that are no plain data arrive as text."""

    name: str
    step_id: str = ""
    input_summary: Mapping[str, Any] = field(factory=dict, converter=frozen_mapping)


@frozen
class StepFinished(TurnEvent):
    """A step ended after `duration` seconds (millisecond resolution on other nodes)."""

    name: str
    step_id: str = ""
    success: bool = True
    duration: float = 0.0
    summary: str | None = None


@frozen
class TraceDelta(TurnEvent):
    """A piece of the handler's reasoning: high volume, the first to go when a buffer is full."""

    text: str


@frozen
class OutputDelta(TurnEvent):
    """A piece of the answer; the next `OutputSnapshot` sums it up."""

    text: str


@frozen
class OutputSnapshot(TurnEvent):
    """The answer so far, whole."""

    text: str


@frozen
class TurnCompleted(TurnEvent):
    """The turn ended with a result."""

    success: bool = True
    answer: str | None = None
    completion: str = "completed"


def _message(error: BaseException | None) -> str | None:
    return None if error is None else str(error)


@frozen
class TurnFailed(TurnEvent):
    """The turn ended with an exception. On other nodes `cause` is a plain `Exception` with its text (SR-349)."""

    message: str
    cause: BaseException | None = field(default=None, eq=_message)


@frozen
class InterruptedAt(TurnEvent):
    """The turn was interrupted, or its holder was lost."""

    reason: InterruptReason = InterruptReason.USER


@frozen
class RejectedAt(TurnEvent):
    """A queued input named another handler than the session's and was dropped (SR-192)."""

    requested: str
    existing: str
    inbox_id: str | None = None
    reason: str = "CONFLICTING_HANDLER"


TERMINAL_EVENTS: Final[tuple[type[TurnEvent], ...]] = (TurnCompleted, TurnFailed, InterruptedAt, RejectedAt)
"""Types that tell a subscriber that a turn is over."""


@frozen
class Gap:
    """Events `first_seq` to `last_seq` of a turn that this subscriber will not get (SR-398)."""

    turn_id: str
    first_seq: int
    last_seq: int
