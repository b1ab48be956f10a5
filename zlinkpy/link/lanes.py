"""The physical connections of one link, and what became of each (wire.md §8).

A RouteMesh pair has two, a ClientServer connection and a subscription one, which is called the application lane here.
Bookkeeping only: which lane can carry a record, which one is admitted, what has to be closed. When any of it may happen
is the link's business. Acceptor and dialler differ in one point: the acceptor's application lane exists from the
beginning, because its first record is why the pair was made.

Rejected: two booleans per lane (open, admitted). They allow *admitted, not open*, and every reader would test it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from zlinkpy.link.actions import CloseLane
from zlinkpy.wire import Lane


class PairPhase(Enum):
    """Where a peer connection stands; the values are what a snapshot shows (LV-164)."""

    CONNECTING = "connecting"
    ADMITTED = "admitted"
    READY = "ready"
    LEAVING = "leaving"
    ENDED = "ended"


class LaneState(Enum):
    """How far one lane got; it only moves downwards in this list."""

    ABSENT = "absent"  # not dialled yet, or not accepted yet
    DIALLING = "dialling"
    OPEN = "open"  # bytes can flow, no admission yet
    ADMITTED = "admitted"
    GONE = "gone"  # its close was observed


class Lanes:
    """All lanes of one link, in the order in which they are dialled.

    Args:
        dialler: this side dials them; otherwise the first one is there already.
        lanes: the application lane first.
    """

    __slots__ = ("_states", "dialler")

    def __init__(self, *, dialler: bool, lanes: Sequence[Lane] = (Lane.APPLICATION,)) -> None:
        self.dialler = dialler
        self._states = dict.fromkeys(lanes, LaneState.ABSENT)
        if not dialler:
            self._states[lanes[0]] = LaneState.OPEN

    def __repr__(self) -> str:
        return " ".join(f"{lane.name.lower()}={state.value}" for lane, state in self._states.items())

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._states)

    def __getitem__(self, lane: Lane) -> LaneState:
        return self._states[lane]

    def __setitem__(self, lane: Lane, state: LaneState) -> None:
        self._states[lane] = state

    def is_admitted(self, lane: Lane) -> bool:
        """True when the handshake of `lane` is done."""
        return self[lane] is LaneState.ADMITTED

    def is_usable(self, lane: Lane) -> bool:
        """True when `lane` can carry a record."""
        return self[lane] in (LaneState.OPEN, LaneState.ADMITTED)

    def exists(self, lane: Lane) -> bool:
        """True when there is a physical connection, or an attempt at one, that has to be closed."""
        return self[lane] not in (LaneState.ABSENT, LaneState.GONE)

    def called(self, lane: Lane) -> str:
        """How `lane` is named in a sentence for people."""
        return f"{lane.name.lower()} lane" if len(self._states) > 1 else "connection"

    @property
    def next(self) -> Lane | None:
        """The lane to be dialled next."""
        return next((lane for lane, state in self._states.items() if state is LaneState.ABSENT), None)

    @property
    def all_admitted(self) -> bool:
        """True when no lane is missing (LV-27)."""
        return all(state is LaneState.ADMITTED for state in self._states.values())

    def closing(self, last_word: Lane | None) -> list[CloseLane]:
        """How to close what exists.

        Args:
            last_word: the lane on which a final record was just sent: it is given time to leave and the other lane
                waits for that. None cuts both.
        """
        linger = last_word is not None
        return [
            CloseLane(lane, linger, after=last_word if lane is not last_word else None)
            for lane in self._states
            if self.exists(lane)
        ]
