"""How much of a turn's events a journal keeps (SR-399). Pure.

Above `FRAMES_KEPT` frames or `BYTES_KEPT` bytes traces go first, then pieces of output, oldest first each. Structural
frames stay, up to a bound no ordinary turn comes near: a turn that runs for days must not fill the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from zlinkpy.sessions.signal_codec import OUTPUT, STRUCTURAL, TRACE
from zlinkpy.sessions.spi import JournalFrame

FRAMES_KEPT: Final = 4096
BYTES_KEPT: Final = 1 << 20
STRUCTURAL_FACTOR: Final = 16
"""Structural frames alone may take this many times as much; then the oldest of them go, too."""

RUNNING_SECONDS: Final = 3600.0
"""A running turn's journal outlives its last event by this; a holder that died leaves no more behind."""
FINISHED_SECONDS: Final = 600.0


class JournalBudget:
    """What is kept of one turn."""

    def __init__(self, frames: int = FRAMES_KEPT, size: int = BYTES_KEPT) -> None:
        self._frames_limit = frames
        self._bytes_limit = size
        self._kept: tuple[deque[tuple[int, int]], ...] = (deque(), deque(), deque())
        self._bytes = 0
        self._last = 0

    def __len__(self) -> int:
        return sum(len(line) for line in self._kept)

    def add(self, frames: Sequence[JournalFrame]) -> tuple[list[JournalFrame], list[int]]:
        """Count new frames. Returns those that are new and stay, and the numbers of older ones that go."""
        new = [frame for frame in frames if frame.seq > self._last]
        for frame in new:
            self._last = frame.seq
            self._kept[frame.grade].append((frame.seq, len(frame.payload)))
            self._bytes += len(frame.payload)
        gone: set[int] = set()
        for grade, factor in ((TRACE, 1), (OUTPUT, 1), (STRUCTURAL, STRUCTURAL_FACTOR)):
            line = self._kept[grade]
            while len(line) and self._is_over(factor):
                seq, size = line.popleft()
                self._bytes -= size
                gone.add(seq)
        stay = [frame for frame in new if frame.seq not in gone]
        return stay, sorted(gone - {frame.seq for frame in new})

    def _is_over(self, factor: int) -> bool:
        return len(self) > self._frames_limit * factor or self._bytes > self._bytes_limit * factor
