"""What the layers above see of a transport: `Connection`s that carry whole records.

Two implementations stand behind it, ZeroMQ (`zmq_transport`) and an in-memory twin (`memory_transport`) for simulation.
Nothing above this package can tell which one it runs on.

A `Connection` is one *physical* connection, used once: a reconnect is a new object. Everything here except the
`await`ed methods is synchronous, is called on the trio thread, and never waits. Sinks are called from the transport's
receive stage; a record is handed over in the same synchronous stretch in which it was taken from the socket, so that
no cancellation can lose one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import frozen

# One rotation takes at most this many records of one connection (wire.md §12, seed 004 §4: fixed at 64), and ends a
# connection's turn earlier at either budget. Each budget is finite on purpose: one axis alone lets a peer monopolise
# by another (LV-109..112).
ROTATION_RECORDS = 64
ROTATION_BYTES = 1 << 20
ROTATION_SECONDS = 0.005

# A dial that produced no transport connection within this time ends with `closed` (wire.md §12; the link applies the
# same bound up to `admit`). An unresolvable host name raises no event in libzmq, so nothing else would end it.
DIAL_SECONDS = 5.0

# An accepted connection whose first record has not come within this time is dropped. A dialler has given up by then, so
# waiting longer would only hold descriptors for strangers.
FIRST_RECORD_SECONDS = DIAL_SECONDS

# How long the records that a paused connection had received before its disconnect wait for `resume`.
LEFTOVERS_SECONDS = 15.0

# Infrastructure records that may wait behind a full send queue. Probes, acks and flow states are a handful per
# connection: whoever lets a thousand of them pile up does not read at all, and is disconnected.
POST_LIMIT = 1024


class ConnectionClosed(Exception):
    """Sending on a connection whose close has been requested or observed."""


class Sink(Protocol):
    """Who owns a connection. Methods must not raise and must not block."""

    def opened(self, connection: Connection) -> None:
        """Bytes can flow. Dialled: the transport handshake is done. Accepted: called once before the first record."""

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """One whole record, without the routing id frame."""

    def closed(self, connection: Connection, cause: str) -> None:
        """The *observed* end of the physical connection, exactly once; nothing follows it.

        Comes behind every record that had arrived before the disconnect, so behind a pause it waits for `resume`, at
        most LEFTOVERS_SECONDS from the disconnect: what was not taken by then is dropped. Only an owner that has
        asked for the close gets no more records.

        `cause` is a short text for people ("connection refused", "disconnected", "closed here", "dial timed out").
        """


class Connection(Protocol):
    """One physical connection."""

    @property
    def id(self) -> int:
        """Number of ours, for diagnostics only: never a fence, a target or a reconnect condition (LV-131)."""

    @property
    def endpoint(self) -> str:
        """What was dialled, or the listener's endpoint for an accepted connection."""

    @property
    def dialled(self) -> bool: ...

    @property
    def is_open(self) -> bool:
        """True between `opened` and the first of close() and `closed`."""

    def send(self, frames: Sequence[bytes]) -> bool:
        """Submit one record now. False: the send queue is full and nothing was taken.

        Records accepted leave in order. Raises ConnectionClosed when the connection is closing or closed.
        """

    def post(self, frames: Sequence[bytes]) -> None:
        """Submit an infrastructure record: queued behind what was submitted earlier when the send queue is full.

        The queue is bounded (POST_LIMIT records); a peer that lets it overflow by not reading is disconnected.
        On a connection that is closing or closed it does nothing.
        """

    async def wait_writable(self) -> None:
        """Return when a refused `send` is worth repeating; it may be refused again, so both belong in a loop.

        Raises ConnectionClosed when the connection goes away. Cancellation leaves no trace.
        """

    def pause(self) -> None:
        """Take no further records of this connection. On an accepted connection this is a no-op: see Listener.pause.

        What arrives stays, also when the peer is gone: `resume` goes on with it, and `closed` comes behind it. Sending
        ends with the disconnect nevertheless. See `Sink.closed` for how long it stays.
        """

    def resume(self) -> None: ...

    def close(self, *, linger: float = 0.0) -> None:
        """Request the close. `linger` > 0 flushes what was accepted before, for at most that many seconds.

        Returns at once; `Sink.closed` follows when the close is done. Idempotent.
        """


class Listener(Protocol):
    """A bound endpoint that accepts connections."""

    @property
    def endpoint(self) -> str:
        """The bound endpoint with its actual port, e.g. ``tcp://127.0.0.1:5501``."""

    def pause(self) -> None:
        """Read no record from any accepted connection: they share one socket (decision 0002).

        What arrives stays as with Connection.pause, and nobody is dropped for want of a first record meanwhile.
        """

    def resume(self) -> None: ...

    async def aclose(self) -> None:
        """Stop accepting and close every accepted connection; their sinks get `closed` before this returns."""


class LendableStage(Protocol):
    """A receive stage whose serving task can be replaced for a while; the rules are those of `receive_stage.py`."""

    async def borrow(self) -> None:
        """Take the place of the transport's own task; returns when that has stopped serving."""

    def give_back(self, failure: BaseException | None = None) -> None:
        """Let the transport's own task serve again, or fail with what `wait` or `serve` raised."""

    async def wait(self, *, busy: bool = False) -> None:
        """Let other tasks run and wait until there is something to serve; `busy`: do not wait for it."""

    def serve(self) -> bool:
        """Hand some records to their sinks; True: more are to be had without a `wait`."""


class Transport(Protocol):
    """A factory of listeners and dialled connections; `async with` runs its receive stage."""

    async def listen(self, endpoint: str, accept: Callable[[Connection], Sink]) -> Listener:
        """Bind. `accept` is called once per accepted connection, at its first record, and returns its sink.

        A connection that sends none within FIRST_RECORD_SECONDS is dropped.

        Raises ConfigurationError naming the endpoint and the fix when it is malformed, taken or not local.
        """

    def dial(self, endpoint: str, sink: Sink) -> Connection:
        """Start connecting; `opened` or, within DIAL_SECONDS, `closed` follows.

        Raises ConfigurationError for a malformed endpoint.
        """

    @property
    def receive_stage(self) -> LendableStage | None:
        """What serves the sockets, where it can be lent to the tasks that do the work records bring."""

    def statistics(self) -> TransportStatistics: ...


@frozen(kw_only=True)
class TransportStatistics:
    """A copy of what the transport holds, for status and leak tests."""

    listeners: int
    dialled: int
    accepted: int
    sockets: int
    posted: int
    """Infrastructure records waiting behind a full send queue."""
