"""One subscriber's view of a turn's numbered events: each once, in order, and holes named (SR-397, SR-398). Pure.

Events reach a subscriber by up to three ways: from the journal, from what the turn's own node has not sent yet, and
live. They overlap, and each of them may have lost some. Put in in any order that keeps each way's own order, they come
out by number; what is skipped becomes a `Gap`.

    an event                                      what comes out
    without turn or number                        the event: it belongs to no turn's stream (SR-345)
    first of its turn, turn joined under way      the event
    first of its turn, another turn was seen      Gap from 1, then the event
    first of its turn, asked for from a number    Gap from there, then the event; nothing below it
    the next number                               the event
    a later number                                Gap, then the event
    a number that came or was skipped             nothing
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from zlinkpy.sessions.events import Gap, TurnEvent

TURNS_KEPT: Final = 16
"""Turns whose place is remembered; a turn's events do not come that late."""


class FrameOrder:
    """The order of one subscriber."""

    def __init__(self) -> None:
        self._next: OrderedDict[str, int] = OrderedDict()

    def start(self, turn_id: str, from_seq: int) -> None:
        """The subscriber wants this turn from that number on."""
        self._next[turn_id] = max(1, from_seq)

    def put(self, event: TurnEvent) -> list[TurnEvent | Gap]:
        """What the subscriber gets for it."""
        turn_id, seq = event.turn_id, event.seq
        if turn_id is None or seq is None:
            return [event]
        expected = self._next.get(turn_id)
        if expected is None:
            expected = 1 if self._next else seq
        if seq < expected:
            return []
        self._next[turn_id] = seq + 1
        self._next.move_to_end(turn_id)
        if len(self._next) > TURNS_KEPT:
            self._next.popitem(last=False)
        if seq > expected:
            return [Gap(turn_id, expected, seq - 1), event]
        return [event]
