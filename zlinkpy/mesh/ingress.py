"""Where accepted records wait for a permit, and what is not read meanwhile (wire.md §12, SA-234, decision 0002).

One per host: all meshes fill the one Application Job Queue. A record that finds no permit is parked, in arrival order,
without a permit; nothing is refused or dropped. Its connection is not read further if it was dialled (it carries one
lane), and the listener is paused only above a bound, because it also carries the completion lane of every peer that
dialled us.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import trio

from zlinkpy.execution import Job, Permits, Workers, in_turn

# A peer that ignores `paused` can fill this much before its node's listener is no longer read.
PARKED_RECORDS = 4096
PARKED_BYTES = 16 << 20


class Pausable(Protocol):
    """A connection or a listener."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Ingress:
    """Gives jobs to the workers as permits allow; whoever has waited longest is served first (SA-237)."""

    def __init__(self, permits: Permits, workers: Workers) -> None:
        self._permits = permits
        self._workers = workers
        # What waits for a permit: a record's job with its size, or a local caller's event.
        self._parked: deque[tuple[Job | trio.Event, int]] = deque()
        self._parked_bytes = 0
        self._starved: dict[int, Pausable] = {}
        self._full: dict[int, Pausable] = {}
        permits.on_available = self._available

    @property
    def parked(self) -> int:
        """Records and local callers that wait for a permit."""
        return len(self._parked)

    def accept(self, job: Job, size: int, connection: Pausable, listener: Pausable | None) -> None:
        """Take `job`, whose record was `size` bytes. `listener` is None for a dialled connection."""
        if not self._parked and self._permits.try_take():
            self._workers.submit(job)
            return
        self._parked.append((job, size))
        self._parked_bytes += size
        if listener is None:
            if id(connection) not in self._starved:
                self._starved[id(connection)] = connection
                connection.pause()
        elif (len(self._parked) > PARKED_RECORDS or self._parked_bytes > PARKED_BYTES) and id(
            listener
        ) not in self._full:
            self._full[id(listener)] = listener
            listener.pause()

    async def accept_local(self, job: Job) -> None:
        """Take a job that this process submits to itself, waiting for a permit; cancellation leaves no trace (SA-241).

        Inside a turn the permit is taken at once, beyond the maximum if need be: a handler that waited for a permit
        while it holds its turn could wait for itself (SA-242, D8).
        """
        if in_turn():
            self._permits.take_over()
        elif self._parked or not self._permits.try_take():
            turn = trio.Event()
            entry = (turn, 0)
            self._parked.append(entry)
            try:
                await turn.wait()
            except trio.Cancelled:
                if turn.is_set():
                    self._permits.release()
                else:
                    self._parked.remove(entry)
                raise
        self._workers.submit(job)

    def _available(self) -> None:
        while self._parked and self._permits.try_take():
            item, size = self._parked.popleft()
            self._parked_bytes -= size
            if isinstance(item, trio.Event):
                item.set()
            else:
                self._workers.submit(item)
        if self._full and len(self._parked) <= PARKED_RECORDS // 2 and self._parked_bytes <= PARKED_BYTES // 2:
            full, self._full = self._full, {}
            for listener in full.values():
                listener.resume()
        if self._starved and not self._parked:
            starved, self._starved = self._starved, {}
            for connection in starved.values():
                connection.resume()
