"""Where accepted records wait for a permit, and what is not read meanwhile (wire.md §12, SA-234, decision 0002).

One per host: all meshes fill the one Application Job Queue. A record that finds no permit is parked, without a permit;
nothing is refused or dropped. Sources (connections, and local callers) take turns: a permit goes to the source that has
waited longest, and a source that was served goes to the end (SA-237). Within a source the order is that of arrival.

A connection is not read further if it was dialled (it carries one lane), and the listener is paused only above a bound,
because it also carries the completion lane of every peer that dialled us.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import trio
from attrs import define, field

from zlinkpy.errors import ShuttingDownError
from zlinkpy.execution.permits import Permits
from zlinkpy.execution.workers import Job, Workers, in_turn

# A peer that ignores `paused` can fill this much before its node's listener is no longer read.
PARKED_RECORDS = 4096
PARKED_BYTES = 16 << 20


class Pausable(Protocol):
    """A connection or a listener."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


@define(eq=False)
class _Parked:
    """A job that waits for a permit; with `turn` its submitter waits, too, and submits it itself."""

    job: Job
    size: int
    turn: trio.Event | None = None
    served: bool = False
    """A permit was taken for it."""


@define(eq=False)
class _Source:
    """One line in front of the permits. It keeps its owner alive, so that the owner's id stays its own."""

    owner: object
    line: deque[_Parked] = field(factory=deque)


class Ingress:
    """Gives jobs to the workers as permits allow."""

    def __init__(self, permits: Permits, workers: Workers) -> None:
        self._permits = permits
        self._workers = workers
        # In the order in which they are served next.
        self._sources: dict[int, _Source] = {}
        self._parked = 0
        self._parked_bytes = 0
        self._starved: dict[int, Pausable] = {}
        self._full: dict[int, Pausable] = {}
        self._closed = False
        permits.on_available = self._available

    @property
    def parked(self) -> int:
        """Records and local callers that wait for a permit."""
        return self._parked

    def labels(self) -> list[str]:
        """What waits, for people."""
        return [parked.job.label for source in self._sources.values() for parked in source.line]

    def accept(self, job: Job, size: int, connection: Pausable, listener: Pausable | None) -> None:
        """Take `job`, whose record was `size` bytes. `listener` is None for a dialled connection."""
        if not self._parked and self._permits.try_take():
            self._workers.submit(job)
            return
        if self._closed:
            return
        self._park(connection, _Parked(job, size))
        if listener is None:
            if id(connection) not in self._starved:
                self._starved[id(connection)] = connection
                connection.pause()
        elif (self._parked > PARKED_RECORDS or self._parked_bytes > PARKED_BYTES) and id(listener) not in self._full:
            self._full[id(listener)] = listener
            listener.pause()

    async def accept_local(self, job: Job) -> None:
        """Take a job that this process submits to itself, waiting for a permit; cancellation leaves no trace (SA-241).

        Inside a turn the permit is taken at once, beyond the maximum if need be: a handler that waited for a permit
        while it holds its turn could wait for itself (SA-242, D8). Raises ShuttingDownError when the host ends first.
        """
        if in_turn():
            self._permits.take_over()
        elif self._parked or not self._permits.try_take():
            turn = trio.Event()
            parked = _Parked(job, 0, turn)
            if not self._closed:
                self._park(turn, parked)
                try:
                    await turn.wait()
                except trio.Cancelled:
                    if parked.served:
                        self._permits.release()
                    else:
                        self._leave(turn)
                    raise
            if not parked.served:
                raise ShuttingDownError("this host shut down before it could take the message")
        self._workers.submit(job)

    def close(self) -> list[str]:
        """Shutdown: nothing that still waits will get a permit. Returns its labels."""
        self._closed = True
        labels = self.labels()
        sources, self._sources = self._sources, {}
        self._parked = self._parked_bytes = 0
        for source in sources.values():
            for parked in source.line:
                if parked.turn is not None:
                    parked.turn.set()
        return labels

    def _park(self, owner: object, parked: _Parked) -> None:
        # Whatever is parked stands behind a refusal, and a refusal asks for the next call of `_available`.
        source = self._sources.get(id(owner))
        if source is None:
            source = self._sources[id(owner)] = _Source(owner)
        source.line.append(parked)
        self._parked += 1
        self._parked_bytes += parked.size

    def _leave(self, turn: trio.Event) -> None:
        if self._sources.pop(id(turn), None) is not None:
            self._parked -= 1

    def _available(self) -> None:
        while self._parked and self._permits.try_take():
            key = next(iter(self._sources))
            source = self._sources.pop(key)
            parked = source.line.popleft()
            if source.line:
                self._sources[key] = source
            elif (connection := self._starved.pop(key, None)) is not None:
                # Its own records are served: whoever else waits must not keep its probes and answers unread.
                connection.resume()
            self._parked -= 1
            self._parked_bytes -= parked.size
            parked.served = True
            if parked.turn is not None:
                parked.turn.set()
            else:
                self._workers.submit(parked.job)
        if self._full and self._parked <= PARKED_RECORDS // 2 and self._parked_bytes <= PARKED_BYTES // 2:
            full, self._full = self._full, {}
            for listener in full.values():
                listener.resume()
        if self._starved and not self._parked:
            starved, self._starved = self._starved, {}
            for connection in starved.values():
                connection.resume()
