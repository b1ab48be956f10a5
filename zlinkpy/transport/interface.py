"""What the layers above see of a transport: `Connection`s that carry whole records, and records that are published.

Two implementations stand behind it, ZeroMQ (`zmq_transport`) and an in-memory twin (`memory_transport`) for simulation.
Nothing above this package can tell which one it runs on.

A `Connection` is one *physical* connection, used once: a reconnect is a new object. Everything here except the
`await`ed methods is synchronous, is called on the trio thread, and never waits. Sinks are called from the transport's
receive stage; a record is handed over in the same synchronous stretch in which it was taken from the socket, so that
no cancellation can lose one.

Published records go one way, from a `Publisher` to every `Subscription` that asked for their topic, and are lost
wherever one of them cannot keep up: nothing here repeats, counts or reports what a subscriber did not get.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Protocol, TypeAlias, TypeVar

from attrs import frozen

from zlinkpy.security import HostKeys

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


class Pattern(Enum):
    """What kind of socket dials; to its owner they are alike."""

    ROUTER = auto()
    """A lane of a mesh."""
    DEALER = auto()
    """A client of a ClientServer channel."""


class ConnectionClosed(Exception):
    """Sending on a connection whose close has been requested or observed."""


IncomingT_contra = TypeVar("IncomingT_contra", contravariant=True)


class SinkOf(Protocol[IncomingT_contra]):
    """Who owns a connection or a subscription. Methods must not raise and must not block."""

    def opened(self, connection: IncomingT_contra, /) -> None:
        """Bytes can flow. Dialled: the transport handshake is done. Accepted: called once before the first record."""

    def received(self, connection: IncomingT_contra, frames: list[bytes], /) -> None:
        """One whole record, without the routing id frame; of a subscription with its topic, the first frame."""

    def closed(self, connection: IncomingT_contra, cause: str, /) -> None:
        """The *observed* end of the physical connection, exactly once; nothing follows it.

        Comes behind every record that had arrived before the disconnect, so behind a pause it waits for `resume`, at
        most LEFTOVERS_SECONDS from the disconnect: what was not taken by then is dropped. Only an owner that has
        asked for the close gets no more records.

        `cause` is a short text for people ("connection refused", "disconnected", "closed here", "dial timed out").
        """


class Incoming(Protocol):
    """What a connection and a subscription have in common: records come from one physical connection, used once."""

    @property
    def id(self) -> int:
        """Number of ours, for diagnostics only: never a fence, a target or a reconnect condition (LV-131)."""

    @property
    def endpoint(self) -> str:
        """What was dialled, or the listener's endpoint for an accepted connection."""

    @property
    def is_open(self) -> bool:
        """True between `opened` and the first of close() and `closed`."""

    @property
    def peer_key(self) -> str | None:
        """The CURVE public key (z85) that the peer proved to hold; None without keys. Of what was dialled it is the key
        that was expected, and counts as proved from `opened` on."""

    @property
    def security_failed(self) -> bool:
        """True when the connection ended, or did not come about, for a matter of keys; `closed` says which."""

    def pause(self) -> None:
        """Take no further records of this connection. On an accepted connection this is a no-op: see Listener.pause.

        What arrives stays, also when the peer is gone: `resume` goes on with it, and `closed` comes behind it. Sending
        ends with the disconnect nevertheless. See `Sink.closed` for how long it stays.
        """

    def resume(self) -> None: ...


class Connection(Incoming, Protocol):
    """One physical connection that carries records both ways."""

    @property
    def dialled(self) -> bool: ...

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

    def close(self, *, linger: float = 0.0) -> None:
        """Request the close. `linger` > 0 flushes what was accepted before, for at most that many seconds.

        Returns at once; `Sink.closed` follows when the close is done. Idempotent.
        """


class Subscription(Incoming, Protocol):
    """One physical connection to one publisher, used once.

    While it is paused, or its owner too slow, the publisher's queue for it fills and further records are lost.
    """

    def close(self) -> None:
        """Request the close. Returns at once; `closed` follows when it is done. Idempotent."""


Sink: TypeAlias = SinkOf[Connection]
SubscriptionSink: TypeAlias = SinkOf[Subscription]


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


class Publisher(Protocol):
    """A bound endpoint whose records go to every subscriber that asked for their topic."""

    @property
    def endpoint(self) -> str:
        """The bound endpoint with its actual port."""

    @property
    def published(self) -> int:
        """Records published so far, whether or not anybody got them."""

    @property
    def subscribers(self) -> int:
        """Connections at this endpoint, whatever they subscribed to: for people, and no proof that anybody listens."""

    def publish(self, frames: Sequence[bytes]) -> None:
        """Hand one record to every subscriber with a topic that its first frame begins with.

        Never waits. A subscriber whose queue is full, or whose subscription has not arrived yet, loses the record; the
        others get it, in order. Raises ConnectionClosed once `aclose` was called.
        """

    async def aclose(self, *, linger: float = 0.0) -> None:
        """Disconnect every subscriber. `linger` > 0 flushes what was published, for at most that many seconds.

        A subscriber that does not read costs the whole linger; a cancellation does not shorten it.
        """


class Transport(Protocol):
    """A factory of listeners, dialled connections, publishers and subscriptions; `async with` runs its receive stage.

    `max_message_bytes` of a socket stands in place of the transport's own: a larger frame drops the connection it came
    on, that one only, and its owner sees `closed`.

    `server_key` is the CURVE public key (z85) of the peer. A transport with keys needs it for every dial; what its keys
    forbid is refused with KeyRefusedError, a ConfigurationError.
    """

    def secure(self, keys: HostKeys) -> None:
        """Use `keys` on every socket; before the transport is entered.

        Only peers whose key `keys` admits get in or are dialled. When one is taken off the list, its connections end
        within two seconds, with `security_failed`. A publisher cannot tell its subscribers apart: it disconnects all of
        them, and those that are still listed come back.
        """

    async def listen(
        self, endpoint: str, accept: Callable[[Connection], Sink], *, max_message_bytes: int | None = None
    ) -> Listener:
        """Bind. `accept` is called once per accepted connection, at its first record, and returns its sink.

        A connection that sends none within FIRST_RECORD_SECONDS is dropped.

        Raises ConfigurationError naming the endpoint and the fix when it is malformed, taken or not local.
        """

    def dial(
        self,
        endpoint: str,
        sink: Sink,
        *,
        pattern: Pattern = Pattern.ROUTER,
        max_message_bytes: int | None = None,
        server_key: str | None = None,
    ) -> Connection:
        """Start connecting; `opened` or, within DIAL_SECONDS, `closed` follows.

        Raises ConfigurationError for a malformed endpoint.
        """

    async def publish(self, endpoint: str) -> Publisher:
        """Bind a publisher. Raises as `listen` does."""

    def subscribe(
        self,
        endpoint: str,
        sink: SubscriptionSink,
        topics: Sequence[bytes],
        *,
        max_message_bytes: int | None = None,
        server_key: str | None = None,
    ) -> Subscription:
        """Connect to the publisher at `endpoint` for the records whose first frame begins with one of `topics`.

        `opened` or, within DIAL_SECONDS, `closed` follows. What is published before the publisher has read the
        subscription, one way after `opened`, does not come.

        Raises ConfigurationError for a malformed endpoint, ValueError without a topic (``b""`` stands for all).
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
    publishers: int
    subscriptions: int
    sockets: int
    posted: int
    """Infrastructure records waiting behind a full send queue."""
