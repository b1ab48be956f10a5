"""The event journal on Redis or Valkey: a stream for each turn, whose entry ids are the numbers of the events.

``zl:{sid}:ev:<turn>`` holds the frames (g grade, p payload), ``zl:{sid}:cur`` the turn that runs. The writer, which is
the one node that runs the turn, knows what it has written and says what is to go (`JournalBudget`); the server keeps no
count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from zlinkpy.sessions.arguments import checked_id, checked_millis
from zlinkpy.sessions.errors import SessionBackendError
from zlinkpy.sessions.journal_machine import FINISHED_SECONDS, RUNNING_SECONDS, JournalBudget
from zlinkpy.sessions.redis_backend import RedisBackend, script
from zlinkpy.sessions.spi import JournalFrame

_APPEND: Final = script("journal_append", grows=True)
_READ: Final = script("journal_read")
_CURRENT: Final = script("journal_current")
_FINISH: Final = script("journal_finish")

TURNS_WRITTEN: Final = 4096
"""Turns whose budget this writer remembers; they are as many as run on the node at once."""

FRAMES_PER_CALL: Final = 512


class RedisEventJournal:
    """`EventJournal` on a `RedisBackend`; closed with it."""

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend
        self._budgets: OrderedDict[tuple[str, str], JournalBudget] = OrderedDict()

    async def append(self, session_id: str, turn_id: str, frames: Sequence[JournalFrame]) -> None:
        keys = self._keys(session_id, turn_id)
        budget = self._budgets.setdefault((session_id, turn_id), JournalBudget())
        self._budgets.move_to_end((session_id, turn_id))
        if len(self._budgets) > TURNS_WRITTEN:
            self._budgets.popitem(last=False)
        new, gone = budget.add(frames)
        ttl = checked_millis(RUNNING_SECONDS, "journal memory")
        for start in range(0, max(1, len(new)), FRAMES_PER_CALL):
            part = new[start : start + FRAMES_PER_CALL]
            arguments: list[Any] = [turn_id, ttl, len(part)]
            for frame in part:
                arguments += (frame.seq, frame.grade, frame.payload)
            arguments += gone
            gone = []
            await self._backend.call(SessionBackendError, "write", _APPEND, keys, arguments)

    async def read(self, session_id: str, turn_id: str, from_seq: int) -> list[JournalFrame]:
        keys = self._keys(session_id, turn_id)[:1]
        frames: list[JournalFrame] = []
        first = max(1, from_seq)
        while True:
            page = await self._backend.call(SessionBackendError, "read", _READ, keys, (first, FRAMES_PER_CALL), _frames)
            frames += page
            if len(page) < FRAMES_PER_CALL:
                return frames
            first = page[-1].seq + 1

    async def current(self, session_id: str) -> str | None:
        key = self._backend.session_key(checked_id(session_id, "session id"), "cur")
        return await self._backend.call(
            SessionBackendError,
            "read",
            _CURRENT,
            [key],
            (),
            lambda answer: str(answer[0].decode()) if answer else None,
        )

    async def finish(self, session_id: str, turn_id: str) -> None:
        self._budgets.pop((session_id, turn_id), None)
        arguments = (turn_id, checked_millis(FINISHED_SECONDS, "journal memory"))
        await self._backend.call(SessionBackendError, "write", _FINISH, self._keys(session_id, turn_id), arguments)

    def _keys(self, session_id: str, turn_id: str) -> list[bytes]:
        checked_id(session_id, "session id")
        return [
            self._backend.session_key(session_id, "ev", checked_id(turn_id, "turn id")),
            self._backend.session_key(session_id, "cur"),
        ]


def _frames(answer: list[Any]) -> list[JournalFrame]:
    return [
        JournalFrame(int(seq), int(grade), bytes(payload))
        for seq, grade, payload in zip(answer[::3], answer[1::3], answer[2::3], strict=True)
    ]
