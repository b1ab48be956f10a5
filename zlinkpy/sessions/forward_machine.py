"""Futures of turns that run somewhere else: how they are found, polled and given up. Pure (facts §6; SR §13).

    event                              state                    answer
    register                           by turn, and by key      the forward; a retry of the same key and epoch shares it
    result by turn                     waiting                  withdrawn from both indexes, then handed out to settle
    result by key                      epochs equal or unsaid   the same; a later attempt's forward stays (SR-225)
    due: poll and re-ring              each its own interval    POLL, RERING; none in the last second (SR-436)
    due: deadline                      waiting                  EXPIRE
    found: done                        -                        COMPLETE
    found: absent                      -                        GONE
    found: in flight, another epoch    -                        KEEP, following that epoch from now on
    found: in flight, stale or not     -                        KEEP: the sweep decides about stale ones

Withdrawing comes before settling everywhere: who retries from the failure's callback finds nothing of the old attempt
(SR-237).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from attrs import define, field

LAST_SECOND: Final = 1.0
"""No poll starts this close to the deadline: the reservation expires then as well, and one last look is made anyway."""

FutureT = TypeVar("FutureT")


class ForwardStep(Enum):
    """What is due for a waiting forward."""

    POLL = auto()
    RERING = auto()
    EXPIRE = auto()


class Looked(Enum):
    """What a look at the store says about a forward."""

    COMPLETE = "complete"
    GONE = "gone"
    KEEP = "keep"


@define(eq=False, kw_only=True)
class Forward(Generic[FutureT]):
    """One waiting future. `inbox_id` is None for a retry that attached to a turn under way."""

    session_id: str
    turn_id: str
    future: FutureT
    deadline: float
    key: str | None = None
    epoch: str | None = None
    inbox_id: str | None = None
    next_poll: float = field(default=0.0)
    next_rering: float = field(default=0.0)
    poll_interval: float
    rering_interval: float
    waiting: bool = True
    last_error: BaseException | None = None

    def start(self, now: float) -> None:
        """Begin to count."""
        self.next_poll = now + self.poll_interval
        self.next_rering = now + self.rering_interval

    def next_deadline(self) -> float:
        """When `due` has something to say."""
        last = self.deadline - LAST_SECOND
        times = [self.next_rering, *([self.next_poll] if self.key is not None else [])]
        return min([at for at in times if at < last], default=self.deadline)

    def due(self, now: float) -> list[ForwardStep]:
        """What to do now; each step is named once per interval."""
        if not self.waiting:
            return []
        if now >= self.deadline:
            return [ForwardStep.EXPIRE]
        steps: list[ForwardStep] = []
        early = now < self.deadline - LAST_SECOND
        if self.key is not None and now >= self.next_poll:
            self.next_poll = now + self.poll_interval
            steps += [ForwardStep.POLL] if early else []
        if now >= self.next_rering:
            self.next_rering = now + self.rering_interval
            steps += [ForwardStep.RERING] if early else []
        return steps

    def looked(self, *, found: bool, done: bool, epoch: str | None) -> Looked:
        """Judge what `find` said about the key."""
        if not found:
            return Looked.GONE
        if done:
            return Looked.COMPLETE
        if epoch is not None:
            self.epoch = epoch
        return Looked.KEEP


class ForwardRegistry(Generic[FutureT]):
    """All waiting forwards of a node, by turn and by key."""

    __slots__ = ("_by_key", "_by_turn")

    def __init__(self) -> None:
        self._by_turn: dict[str, Forward[FutureT]] = {}
        self._by_key: dict[str, list[Forward[FutureT]]] = {}

    def __len__(self) -> int:
        return len(self._by_turn)

    def __iter__(self) -> Iterator[Forward[FutureT]]:
        return iter(list(self._by_turn.values()))

    def add(self, forward: Forward[FutureT]) -> None:
        """Make it findable."""
        self._by_turn[forward.turn_id] = forward
        if forward.key is not None:
            self._by_key.setdefault(forward.key, []).append(forward)

    def sharing(self, key: str, epoch: str | None) -> Forward[FutureT] | None:
        """The forward that already waits for this attempt of the key (SR-214)."""
        return next((each for each in self._by_key.get(key, ()) if each.epoch == epoch), None)

    def withdraw(self, forward: Forward[FutureT]) -> bool:
        """Take it out. False: somebody else did, and settles it."""
        if not forward.waiting:
            return False
        forward.waiting = False
        del self._by_turn[forward.turn_id]
        if forward.key is not None:
            same = self._by_key[forward.key]
            same.remove(forward)
            if not same:
                del self._by_key[forward.key]
        return True

    def resolve(self, turn_id: str | None, key: str | None, epoch: str | None) -> list[Forward[FutureT]]:
        """Withdraw and return what a result with these addresses settles (SR-238)."""
        found = [self._by_turn[turn_id]] if turn_id in self._by_turn else []
        if key is not None:
            # An address without epoch comes from a writer that does not know any; it means the key.
            found += [
                each
                for each in self._by_key.get(key, ())
                if each not in found and (epoch is None or each.epoch is None or each.epoch == epoch)
            ]
        return [each for each in found if self.withdraw(each)]

    def of_session(self, session_id: str) -> list[Forward[FutureT]]:
        """All that wait for a turn of the session."""
        return [each for each in self._by_turn.values() if each.session_id == session_id]
