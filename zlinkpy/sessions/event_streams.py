"""The subscribers of this node: each has a bounded line of its own, and none can slow a turn down (SR-340..345).

`EventHub.emit` is called by the turn and never waits. A line that is full loses by grade, and counts; its subscriber
sees the hole as a `Gap`. That a session's streams end is no event: it comes behind everything that is in the line, and
cannot be dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from zlinkpy.sessions.events import Gap, OutputDelta, TraceDelta, TurnEvent
from zlinkpy.sessions.frame_order_machine import FrameOrder
from zlinkpy.sessions.graded_buffer import GradedBuffer
from zlinkpy.sessions.signal_codec import OUTPUT, STRUCTURAL, TRACE
from zlinkpy.sessions.signal_intake import call_in
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.sessions")

LINE_CAPACITY: Final = 256

READS_PER_CHECKPOINT: Final = 64
"""A subscriber that has caught up is woken by a burst, and must get through it before the next one comes."""


def grade_of(event: TurnEvent) -> int:
    """What a full buffer may do without (SR-335): an application's own types are never deltas."""
    kind = type(event)
    return TRACE if kind is TraceDelta else OUTPUT if kind is OutputDelta else STRUCTURAL


class _Line:
    """What waits for one subscriber."""

    __slots__ = ("buffer", "completed", "left", "more")

    def __init__(self, capacity: int) -> None:
        self.buffer: GradedBuffer[TurnEvent] = GradedBuffer(capacity)
        self.completed = False
        self.left = False
        """The subscriber has gone."""
        self.more = trio.Event()

    def offer(self, event: TurnEvent, grade: int) -> None:
        self.buffer.push(event, grade)
        self.more.set()

    def complete(self) -> None:
        self.completed = True
        self.more.set()


Replay = Callable[[], Awaitable[tuple[str, int, list[TurnEvent]] | None]]
"""The turn that runs, the number to begin at, and what is kept of it; None when no turn runs."""


class EventStream:
    """One subscriber's events: ``async for event in stream``. Ends when the session's streams are completed.

    Dropping the last reference leaves; `aclose` does so at once.
    """

    def __init__(self, hub: EventHub, session_id: str, line: _Line, replay: Replay | None) -> None:
        self.session_id = session_id
        self._hub = hub
        self._line = line
        self._replay = replay
        self._token = trio.lowlevel.current_trio_token()
        self._reads = 0
        self._order = FrameOrder()
        self._ready: deque[TurnEvent | Gap] = deque()

    @property
    def dropped(self) -> int:
        """Events that this subscriber was too slow for (SR-340, SR-418)."""
        return self._line.buffer.dropped

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> TurnEvent | Gap:
        if self._replay is not None:
            # Kept until it has come: a cancelled read begins it again.
            kept = await self._replay()
            self._replay = None
            if kept is not None:
                turn_id, from_seq, events = kept
                self._order.start(turn_id, from_seq)
                for event in events:
                    self._ready += self._order.put(event)
        else:
            self._reads += 1
            if self._reads % READS_PER_CHECKPOINT:
                await trio.lowlevel.checkpoint_if_cancelled()
            else:
                await trio.lowlevel.checkpoint()
        line = self._line
        while not self._ready:
            if len(line.buffer):
                self._ready += self._order.put(line.buffer.pop())
            elif line.completed or line.left:
                await self.aclose()
                raise StopAsyncIteration
            else:
                line.more = trio.Event()
                await line.more.wait()
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Leave. Idempotent, never waits."""
        self._hub.leave(self.session_id, self._line)

    def __del__(self) -> None:
        # The collector may run on any thread.
        if not self._line.left:
            call_in(self._token, partial(self._hub.leave, self.session_id, self._line))


class EventHub:
    """The subscribers of one node, by session."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[_Line, None]] = {}
        self.on_change: Callable[[str], None] = _nothing
        """Called when a session gets its first subscriber here, or loses its last."""

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._lines

    def subscribe(self, session_id: str, *, replay: Replay | None = None, capacity: int = LINE_CAPACITY) -> EventStream:
        """A new stream; what is emitted from now on is in it."""
        line = _Line(capacity)
        first = session_id not in self._lines
        self._lines.setdefault(session_id, {})[line] = None
        if first:
            self.on_change(session_id)
        return EventStream(self, session_id, line, replay)

    def emit(self, session_id: str, event: TurnEvent) -> None:
        """Give `event` to every subscriber; never waits, never raises."""
        lines = self._lines.get(session_id)
        if lines:
            grade = grade_of(event)
            for line in lines:
                line.offer(event, grade)

    def complete(self, session_id: str) -> None:
        """The session's streams end behind what is in their lines; who subscribes later gets a new one (SR-325)."""
        lines = self._lines.pop(session_id, None)
        if lines is not None:
            for line in lines:
                line.complete()
            self.on_change(session_id)

    def complete_all(self) -> None:
        """All streams end."""
        for session_id in tuple(self._lines):
            self.complete(session_id)

    def leave(self, session_id: str, line: _Line) -> None:
        """A subscriber goes."""
        line.left = True
        line.more.set()
        lines = self._lines.get(session_id)
        if lines is not None and line in lines:
            del lines[line]
            if not lines:
                del self._lines[session_id]
                self.on_change(session_id)


def _nothing(_session_id: str) -> None:
    pass
