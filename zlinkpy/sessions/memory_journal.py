"""The event journal of one process, for one node or for tests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import trio
from attrs import define, field

from zlinkpy.sessions.arguments import checked_id
from zlinkpy.sessions.journal_machine import FINISHED_SECONDS, RUNNING_SECONDS, JournalBudget
from zlinkpy.sessions.spi import JournalFrame

TURNS_KEPT: Final = 1024
"""Of all sessions together; the one that was written to least recently goes first."""


@define(eq=False)
class _Turn:
    expires: float
    budget: JournalBudget = field(factory=JournalBudget)
    frames: dict[int, JournalFrame] = field(factory=dict)


class MemoryEventJournal:
    """`EventJournal` in memory; times on trio's clock."""

    def __init__(self) -> None:
        self._turns: OrderedDict[tuple[str, str], _Turn] = OrderedDict()
        self._current: dict[str, str] = {}

    async def append(self, session_id: str, turn_id: str, frames: Sequence[JournalFrame]) -> None:
        key = checked_id(session_id, "session id"), checked_id(turn_id, "turn id")
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        self._expire(now)
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = _Turn(now)
        turn.expires = now + RUNNING_SECONDS
        self._turns.move_to_end(key)
        new, gone = turn.budget.add(frames)
        for seq in gone:
            del turn.frames[seq]
        turn.frames |= {frame.seq: frame for frame in new}
        self._current[session_id] = turn_id
        while len(self._turns) > TURNS_KEPT:
            self._forget(next(iter(self._turns)))

    async def read(self, session_id: str, turn_id: str, from_seq: int) -> list[JournalFrame]:
        key = checked_id(session_id, "session id"), checked_id(turn_id, "turn id")
        await trio.lowlevel.checkpoint()
        self._expire(trio.current_time())
        turn = self._turns.get(key)
        return [frame for seq, frame in turn.frames.items() if seq >= from_seq] if turn is not None else []

    async def current(self, session_id: str) -> str | None:
        await trio.lowlevel.checkpoint()
        self._expire(trio.current_time())
        return self._current.get(checked_id(session_id, "session id"))

    async def finish(self, session_id: str, turn_id: str) -> None:
        await trio.lowlevel.checkpoint()
        turn = self._turns.get((session_id, turn_id))
        if turn is not None:
            turn.expires = trio.current_time() + FINISHED_SECONDS
        if self._current.get(session_id) == turn_id:
            del self._current[session_id]

    def _expire(self, now: float) -> None:
        for key in [key for key, turn in self._turns.items() if turn.expires <= now]:
            self._forget(key)

    def _forget(self, key: tuple[str, str]) -> None:
        del self._turns[key]
        if self._current.get(key[0]) == key[1]:
            del self._current[key[0]]
