"""What could not be handed to one peer at once: control signals with a deadline, events by grade. Pure.

A paused or full peer must not hold up a publisher, so a signal that finds no room waits here. Control goes first. A
control signal that waits `CONTROL_SECONDS` is lost: what it says is repaired by re-ring and poll, and an INTERRUPT that
comes much later would hit another turn. Events have no deadline; they are lost when there are too many.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from zlinkpy.sessions.graded_buffer import GradedBuffer

CONTROL_SECONDS: Final = 1.0
CONTROL_WAITING: Final = 1024
EVENTS_WAITING: Final = 8192
BYTES_WAITING: Final = 32 << 20
"""Of events, for one peer."""

Frames = list[bytes]


class Outbox:
    """The backlog of one peer."""

    def __init__(self, *, control: int = CONTROL_WAITING, events: int = EVENTS_WAITING) -> None:
        self._limit = control
        self._control: deque[tuple[float, Frames]] = deque()
        self._events: GradedBuffer[Frames] = GradedBuffer(events, BYTES_WAITING)
        self._offered: Frames | None = None
        self.control_lost = 0

    def __len__(self) -> int:
        return len(self._control) + len(self._events)

    @property
    def events_lost(self) -> int:
        """Events that had to go."""
        return self._events.dropped

    def put_control(self, frames: Frames, now: float) -> None:
        """Queue a control signal. The oldest is lost when too many wait."""
        if len(self._control) >= self._limit:
            self._control.popleft()
            self.control_lost += 1
        self._control.append((now + CONTROL_SECONDS, frames))

    def put_event(self, frames: Frames, grade: int) -> None:
        """Queue an event."""
        self._events.push(frames, grade, len(frames[-1]))

    def deadline(self) -> float | None:
        """When the next control signal is lost."""
        return self._control[0][0] if self._control else None

    def expire(self, now: float) -> int:
        """Lose what has waited too long; returns how many that were."""
        lost = 0
        while self._control and self._control[0][0] <= now:
            self._control.popleft()
            lost += 1
        self.control_lost += lost
        return lost

    def offer(self) -> Frames:
        """What to hand over next; it stays until `taken`. Raises IndexError when there is nothing."""
        self._offered = self._control[0][1] if self._control else self._events.peek()
        return self._offered

    def taken(self) -> None:
        """What was offered last was handed over."""
        offered, self._offered = self._offered, None
        if self._control and self._control[0][1] is offered:
            self._control.popleft()
        elif len(self._events) and self._events.peek() is offered:
            self._events.pop()
