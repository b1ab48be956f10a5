"""What a pass has collected and not run yet, and what comes next. Pure (facts §6; SR §11).

    next_step: state of the pass                              step
    lease lost, session yielded, shutdown forced; some left   PUT_BACK all of it, in order
    queue empty                                               END
    first message names another handler than the binding      REJECT it
    otherwise                                                 RUN it

The order is (priority, delivered_at), stable on ties; `delivered_at` is the inbox's clock, so it is arrival order
whatever the clocks of the nodes say (SR-185). The input of the submit that opened the pass has no inbox entry; it
joins the first batch behind all of its priority (SR-125), and keeps that place: what comes later is sorted behind it.

What was handed to a running turn and not consumed by it goes to the head: it was next already (SR-188).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from operator import itemgetter
from typing import Generic, Protocol, TypeVar


class Ordered(Protocol):
    """What the order and the check of the handler need of a message."""

    @property
    def priority(self) -> int: ...
    @property
    def delivered_at(self) -> float | None: ...
    @property
    def handler_ref(self) -> str: ...


MessageT = TypeVar("MessageT", bound=Ordered)


class DrainStep(Enum):
    """What a pass does next."""

    RUN = "run"
    REJECT = "reject"
    PUT_BACK = "put back"
    END = "end"


class DrainQueue(Generic[MessageT]):
    """The messages of one pass."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, float, MessageT]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def merge(self, messages: Iterable[MessageT], own: MessageT | None = None) -> None:
        """Sort what was collected in with what waits; `own` is behind all of its priority that came before it."""
        found = [(int(each.priority), _arrival(each), each) for each in messages]
        if own is not None:
            priority = int(own.priority)
            arrival = max((at for rank, at, _ in found if rank == priority), default=-math.inf)
            found.append((priority, arrival, own))
        self._waiting = sorted([*self._waiting, *found], key=itemgetter(0, 1))

    def push_front(self, messages: Iterable[MessageT]) -> None:
        """What comes before everything else, in this order."""
        self._waiting = [*((int(each.priority), -math.inf, each) for each in messages), *self._waiting]

    def next_step(self, binding: str, *, may_run: bool) -> DrainStep:
        """See the table; `binding` is the handler ref that the session is bound to."""
        if not self._waiting:
            return DrainStep.END
        if not may_run:
            return DrainStep.PUT_BACK
        return DrainStep.RUN if self._waiting[0][2].handler_ref == binding else DrainStep.REJECT

    def take(self) -> MessageT:
        """The first message."""
        return self._waiting.pop(0)[2]

    def take_all(self) -> list[MessageT]:
        """Everything that waits, in order."""
        rest, self._waiting = self._waiting, []
        return [message for _, _, message in rest]


def _arrival(message: Ordered) -> float:
    return message.delivered_at if message.delivered_at is not None else 0.0
