"""A bounded queue that knows what it can do without (SR-329..334). Pure.

When it is full and an item comes, the oldest item of the lowest grade goes that is neither above the newcomer's nor
`STRUCTURAL`. If there is none, a newcomer below `STRUCTURAL` is turned away itself, and a structural one takes the
place of the oldest structural one. So a flood of traces never displaces output, and neither displaces what ends a turn.

One queue per grade, ordered among each other by number: every operation is O(1). One queue with a search in it was
rejected: the search would run exactly when the producer is under pressure, and the producer is a turn.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Generic, TypeVar

from zlinkpy.sessions.signal_codec import OUTPUT, STRUCTURAL, TRACE

T = TypeVar("T")

_GRADES = (TRACE, OUTPUT, STRUCTURAL)


class GradedBuffer(Generic[T]):
    """First in, first out, at most `capacity` items of `max_bytes` together; `dropped` counts what was lost.

    An item alone may be larger than `max_bytes` if it is structural and nothing else is queued.
    """

    __slots__ = ("_bytes", "_number", "_queues", "_size", "capacity", "dropped", "max_bytes")

    def __init__(self, capacity: int, max_bytes: float = math.inf) -> None:
        self.capacity = capacity
        self.max_bytes = max_bytes
        self.dropped = 0
        self._queues: tuple[deque[tuple[int, int, T]], ...] = tuple(deque() for _ in _GRADES)
        self._number = 0
        self._size = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._size

    def push(self, item: T, grade: int, size: int = 0) -> bool:
        """Queue `item`, which counts as `size` bytes. False: it, or another one for it, was dropped."""
        untouched = True
        while self._size >= self.capacity or self._bytes + size > self.max_bytes:
            if not self._size and grade == STRUCTURAL:
                break
            self.dropped += 1
            untouched = False
            if not self._make_room(grade):
                return False
        self._number += 1
        self._queues[grade].append((self._number, size, item))
        self._size += 1
        self._bytes += size
        return untouched

    def _make_room(self, grade: int) -> bool:
        for lower in _GRADES[: min(grade, OUTPUT) + 1]:
            if self._queues[lower]:
                self._remove(self._queues[lower])
                return True
        if grade < STRUCTURAL:
            return False
        self._remove(self._queues[STRUCTURAL])
        return True

    def _remove(self, queue: deque[tuple[int, int, T]]) -> T:
        _, size, item = queue.popleft()
        self._size -= 1
        self._bytes -= size
        return item

    def _oldest(self) -> deque[tuple[int, int, T]]:
        chosen: deque[tuple[int, int, T]] | None = None
        for queue in self._queues:
            if queue and (chosen is None or queue[0][0] < chosen[0][0]):
                chosen = queue
        if chosen is None:
            raise IndexError("the buffer is empty")
        return chosen

    def peek(self) -> T:
        """The oldest item; it stays. Raises IndexError when there is none."""
        return self._oldest()[0][2]

    def pop(self) -> T:
        """Take the oldest item. Raises IndexError when there is none."""
        return self._remove(self._oldest())

    def take(self, limit: int) -> list[T]:
        """Take the oldest `limit` items, or as many as there are."""
        return [self.pop() for _ in range(min(limit, self._size))]

    def items(self) -> list[T]:
        """What is queued, oldest first; nothing is taken."""
        return [item for _, _, item in sorted((each for queue in self._queues for each in queue), key=_number)]

    def abandon(self) -> int:
        """Drop everything below `STRUCTURAL` and count it; returns how many that were."""
        lost = 0
        for queue in (self._queues[TRACE], self._queues[OUTPUT]):
            while queue:
                self._remove(queue)
                lost += 1
        self.dropped += lost
        return lost

    def clear(self) -> None:
        """Forget everything, without counting it."""
        for queue in self._queues:
            queue.clear()
        self._size = self._bytes = 0


def _number(entry: tuple[int, int, object]) -> int:
    return entry[0]
