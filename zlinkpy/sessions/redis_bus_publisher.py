"""The publishing thread of the Redis bus, and the one connection it publishes on.

The event loop appends coded signals to two lines and wakes the thread. The thread takes everything that waits, control
first, at most `PIPELINE_LIMIT`, sends it as one pipeline, reads the answers and settles all of them with one call back
into the loop. It never waits for a batch to fill: what came while the last pipeline was on its way is the next one, so
batches grow with the load and a lone signal leaves at once. One hop between threads for each signal would be three
times too slow.

A signal is sent at most once by this bus. When the answer is lost its publish raises, and whoever published decides.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import redis
import trio
from attrs import frozen
from redis.connection import Connection

from zlinkpy.location.redis_target import NodePools
from zlinkpy.sessions.errors import AppliedHint, SessionSignalError
from zlinkpy.sessions.signal_intake import call_in
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.sessions")

PIPELINE_LIMIT: Final = 512
PIPELINE_BYTES: Final = 4 << 20
"""A pipeline ends behind the signal with which it reaches this size."""

QUEUE_LIMIT: Final = 65_536
"""Signals that wait to be sent; further ones are refused. Every one of them has a caller that waits at most 2 s."""


class Call:
    """One `publish` or `publish_all`: how many of its signals are unsettled, and the first failure."""

    __slots__ = ("done", "error", "left", "sent", "withdrawn")

    def __init__(self, count: int) -> None:
        self.left = count
        self.error: SessionSignalError | None = None
        self.done = trio.Event()
        self.sent = False
        """Set by the thread when a signal of the call has been handed to a socket."""
        self.withdrawn = False
        """Set by the loop when the caller has gone: what was not sent yet is not sent any more."""


Outgoing = tuple[bytes, bytes, Call]
"""Channel, coded signal, and the call it belongs to."""


@frozen(kw_only=True)
class PublisherStatistics:
    """What the thread did."""

    published: int
    pipelines: int
    connections: int
    waiting: int


class PublisherThread:
    """Publishes until it is closed. `put` belongs to the event loop, `run` to the thread."""

    def __init__(self, pools: NodePools, label: str, token: trio.lowlevel.TrioToken) -> None:
        self._pools = pools
        self._label = label
        self._token = token
        self._control: deque[Outgoing] = deque()
        self._events: deque[Outgoing] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._awake = False
        self._closed = False
        self._connection: Connection | None = None
        self._published = self._pipelines = self._connections = 0
        self.thread = threading.Thread(target=self.run, name="zlink-session-publisher", daemon=True)

    # -- on the event loop ---------------------------------------------------------------------------------------------

    def put(self, control: Sequence[tuple[bytes, bytes]], events: Sequence[tuple[bytes, bytes]], call: Call) -> None:
        """Queue signals, each a channel and its bytes. Raises SessionSignalError when there is no room."""
        if self._closed:
            raise SessionSignalError(f"the signal bus {self._label} is closed", applied="no")
        if len(self._control) + len(self._events) + len(control) + len(events) > QUEUE_LIMIT:
            raise SessionSignalError(f"the signal bus {self._label} has too many signals waiting", applied="no")
        self._control.extend((channel, data, call) for channel, data in control)
        self._events.extend((channel, data, call) for channel, data in events)
        # The thread lowers the flag before it looks: a flag that is still up means that it will see these.
        if not self._awake:
            self._awake = True
            self._wake.put(None)

    def close(self) -> None:
        """End the thread; what still waits fails. The pools are to be closed next, which cuts a running pipeline."""
        self._closed = True
        self._wake.put(None)

    def statistics(self) -> PublisherStatistics:
        """A copy of the counters."""
        return PublisherStatistics(
            published=self._published,
            pipelines=self._pipelines,
            connections=self._connections,
            waiting=len(self._control) + len(self._events),
        )

    # -- on the thread -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The thread."""
        while not self._closed:
            self._wake.get()
            self._awake = False
            while batch := self._take():
                self._settle(batch, self._send(batch))
        while batch := self._take():
            self._settle(batch, [self._failure("it was closed", "no")] * len(batch))

    def _take(self) -> list[Outgoing]:
        batch: list[Outgoing] = []
        size = 0
        for line in (self._control, self._events):
            while line and len(batch) < PIPELINE_LIMIT and size < PIPELINE_BYTES:
                entry = line.popleft()
                if not entry[2].withdrawn:
                    batch.append(entry)
                    size += len(entry[1])
        return batch

    def _send(self, batch: list[Outgoing]) -> list[SessionSignalError | None]:
        """Publish `batch`; what became of each."""
        if self._closed:
            return [self._failure("it was closed", "no")] * len(batch)
        try:
            connection: Any = self._ready_connection()
        except (redis.RedisError, OSError) as error:
            self._drop()
            return [self._failure(f"no connection ({type(error).__name__})", "no")] * len(batch)
        outcome: list[SessionSignalError | None] = []
        lost: SessionSignalError | None = None
        try:
            packed = connection.pack_commands([("PUBLISH", channel, data) for channel, data, _ in batch])
            for _, _, call in batch:
                call.sent = True
            self._pipelines += 1
            connection.send_packed_command(packed, check_health=False)
            for _ in batch:
                try:
                    connection.read_response()
                    outcome.append(None)
                except redis.ResponseError as error:
                    outcome.append(self._failure(f"the server refused it ({_first_word(error)})", "no"))
        except (redis.RedisError, OSError, ValueError, AttributeError) as error:
            # The last two are what redis-py makes of a connection that another thread has just closed.
            lost = self._failure(f"the answer was lost ({type(error).__name__})", "unknown")
        except Exception:
            log.exception("publishing on %s failed", self._label)
            lost = self._failure("the answer was lost", "unknown")
        if len(outcome) < len(batch):
            self._drop()
            outcome += [lost] * (len(batch) - len(outcome))
        self._published += outcome.count(None)
        return outcome

    def _ready_connection(self) -> Connection:
        """The connection, or a new one where the old one turns out to be closed before anything was sent on it."""
        untyped: Any = self._connection
        if untyped is not None:
            try:
                if untyped.can_read(0):
                    raise redis.ConnectionError("an answer nobody asked for")
            except (redis.RedisError, OSError, AttributeError):
                self._drop()
        if self._connection is None:
            self._connection = self._pools.pool().get_connection()
            self._connections += 1
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                untyped: Any = connection
                untyped.disconnect()
                self._pools.pool().release(connection)
            except Exception:
                log.debug("could not put a broken connection away", exc_info=True)

    def _failure(self, reason: str, applied: AppliedHint) -> SessionSignalError:
        return SessionSignalError(f"publishing on {self._label}: {reason}", applied=applied)

    def _settle(self, batch: list[Outgoing], outcome: list[SessionSignalError | None]) -> None:
        settled = [(entry[2], error) for entry, error in zip(batch, outcome, strict=True)]

        def on_loop() -> None:
            for call, error in settled:
                call.left -= 1
                call.error = call.error or error
                if not call.left:
                    call.done.set()

        call_in(self._token, on_loop)


def _first_word(error: redis.ResponseError) -> str:
    """What kind of refusal: the server's own words may quote keys."""
    word = str(error).split(" ", 1)[0]
    return word if word.isupper() and word.isalpha() else type(error).__name__
