"""The network between in-memory transports: latency, order, bounded queues, and faults on command.

A `Wire` is one physical connection with a `Direction` each way. A direction is a queue in order of submission; a
record becomes due at its latency and never before the one ahead of it. Everything runs on trio's clock, and every
choice comes from the seed: two runs of one seed write the same `log` when trio's scheduler is seeded too.

Two faults look alike and are not. A *partition* holds bytes back as a pulled cable does: queues fill, and at `heal`
everything flows on in order. *Silence* loses bytes without telling anybody, as a black hole does: a direction that
lost something has a hole in its stream and stays mute for ever, as TCP would.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from attrs import define, field

from zlinkpy.errors import ConfigurationError
from zlinkpy.transport.curve import CURVE, MECHANISM_MISMATCH, REFUSED, WRONG_KIND, HandshakeFailure
from zlinkpy.transport.endpoints import Endpoint
from zlinkpy.transport.monitor import MonitorEvent

if TYPE_CHECKING:
    from zlinkpy.transport.interface import Incoming
    from zlinkpy.transport.memory_end import MemoryBound, MemoryEnd
    from zlinkpy.transport.memory_transport import MemoryTransport
    from zlinkpy.transport.rotation import Budgets

# Where automatic ports begin: the first of the dynamic range.
FIRST_PORT = 49152

# Records per direction; the same room as one ZeroMQ pipe (`sockets.QUEUE_RECORDS`).
QUEUE_RECORDS = 1000

_WILDCARDS = ("0.0.0.0", "::", "*")  # noqa: S104 - names to compare with, nothing is bound

BoundT = TypeVar("BoundT", bound="MemoryBound[Any]")

Latency = float | tuple[float, float]


@define(eq=False)
class Parcel:
    """A record on its way, or with `frames` None the end of the stream."""

    due: float
    frames: list[bytes] | None


@define(eq=False)
class Direction:
    """One way of a wire."""

    sender: str
    receiver: str
    capacity: int
    parcels: deque[Parcel] = field(factory=deque)
    mute: bool = False
    """Bytes were lost or nobody is there to read: whatever is pushed vanishes."""
    last_due: float = 0.0

    @property
    def has_room(self) -> bool:
        return len(self.parcels) < self.capacity

    @property
    def ends(self) -> bool:
        return bool(self.parcels) and self.parcels[-1].frames is None


@define(eq=False)
class Wire:
    """One physical connection between a dialling and an accepting end."""

    forth: Direction
    back: Direction
    dialler: MemoryEnd[Any]
    acceptor: MemoryEnd[Any]


@define(eq=False)
class Attempt:
    """A dial that has not come to an end."""

    connection: MemoryEnd[Any]
    endpoint: Endpoint
    due: float


def shake_hands(end: MemoryEnd[Any], bound: MemoryBound[Any]) -> HandshakeFailure | None:
    """What comes of a handshake, in the words that a ZeroMQ socket would have for it."""
    client, server = end.transport.curve.keys, bound.transport.curve.keys
    handshake = end.transport.curve.handshake(end.peer_key)
    if (client is None) != (server is None):
        return handshake.failure(MonitorEvent.PROTOCOL_FAILED, MECHANISM_MISMATCH)
    if client is not None and server is not None:
        if end.peer_key != server.public:
            return handshake.after_asking(CURVE)
        if not server.admits(client.public):
            return handshake.failure(MonitorEvent.AUTHENTICATION_FAILED, REFUSED)
    if end.carries != bound.carries:
        return handshake.failure(MonitorEvent.PROTOCOL_FAILED, WRONG_KIND)
    return None


class MemoryNetwork:
    """What in-memory transports are connected by.

    Args:
        seed: decides every random choice.
        latency: seconds one way, or a range to draw from per record.
        queue: records per connection and direction before `send` answers False and a publisher drops.

    `log` is a list of tuples that begin with the time and the name of what happened.
    """

    def __init__(self, *, seed: int | str, latency: Latency = 0.0, queue: int = QUEUE_RECORDS) -> None:
        self.log: list[tuple[Any, ...]] = []
        self._random = random.Random(seed)
        self._latency = latency
        self._queue = queue
        self._delays: dict[frozenset[str], Latency] = {}
        self._silenced: set[tuple[str, str]] = set()
        # Each with the time since when nothing arrives.
        self._partitioned: dict[frozenset[str], float] = {}
        self._refusing: set[str] = set()
        self._hanging: set[str] = set()
        self._transports: dict[str, MemoryTransport] = {}
        self._bound: dict[str, MemoryBound[Any]] = {}
        self._attempts: dict[MemoryEnd[Any], Attempt] = {}
        self._wires: dict[Wire, None] = {}
        self._numbers = 0
        self._next_port = FIRST_PORT

    def transport(
        self, name: str, *, budgets: Budgets | None = None, max_message_bytes: int | None = None
    ) -> MemoryTransport:
        """The transport of host `name`: enter it like any other. A name may come back after it was left."""
        from zlinkpy.transport.memory_transport import MemoryTransport

        return MemoryTransport(self, name, budgets, max_message_bytes)

    # -- faults. Hosts are named as in `transport`.

    def delay(self, a: str, b: str, seconds: Latency) -> None:
        """From now on a record between the two takes `seconds`, or a draw from the range."""
        self._delays[frozenset((a, b))] = seconds
        self.note("delay", a, b, seconds)

    def cut(self, what: Incoming | tuple[str, str]) -> None:
        """Break one connection, or all between two hosts: both ends observe it, what is under way is lost.

        What arrived before is handed over first.
        """
        if isinstance(what, tuple):
            wires = [wire for wire in self._wires if {wire.forth.sender, wire.forth.receiver} == set(what)]
            self.note("cut", *what)
        else:
            wires = [wire for wire in self._wires if what is wire.dialler or what is wire.acceptor]
            self.note("cut", what.id)
        for wire in wires:
            self.break_down(wire)

    def silence(self, a: str, b: str) -> None:
        """Lose what `a` sends to `b`, without a close: records, ends of connections and dials."""
        self._silenced.add((a, b))
        for wire in self._wires:
            for direction in (wire.forth, wire.back):
                if (direction.sender, direction.receiver) == (a, b) and direction.parcels:
                    direction.parcels.clear()
                    direction.mute = True
                    self._room_came(wire, direction)
        self.note("silence", a, b)

    def partition(self, a: str, b: str) -> None:
        """Hold everything between the two until `heal`."""
        self._partitioned.setdefault(frozenset((a, b)), trio.current_time())
        self.note("partition", a, b)

    def heal(self) -> None:
        """End every silence and partition."""
        self._silenced.clear()
        self._partitioned.clear()
        self.note("heal")
        self._wake_all()

    def refuse(self, endpoint: str) -> None:
        """Dials to `endpoint` are refused although somebody listens."""
        self._refusing.add(endpoint)
        self.note("refuse", endpoint)

    def hang(self, endpoint: str) -> None:
        """Dials to `endpoint` get no answer."""
        self._hanging.add(endpoint)
        self.note("hang", endpoint)

    def admit(self, endpoint: str) -> None:
        """End `refuse` and `hang` of `endpoint`."""
        self._refusing.discard(endpoint)
        self._hanging.discard(endpoint)
        self.note("admit", endpoint)
        self._wake_all()

    # -- for the transports

    def note(self, what: str, *details: object) -> None:
        """Write one line of the log."""
        self.log.append((round(trio.current_time(), 9), what, *details))

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def join(self, transport: MemoryTransport) -> None:
        if transport.name in self._transports:
            raise RuntimeError(f"host {transport.name!r} is on the network already")
        self._transports[transport.name] = transport

    def leave(self, transport: MemoryTransport) -> None:
        self._transports.pop(transport.name, None)

    def bind(self, endpoint: Endpoint, make: Callable[[str], BoundT]) -> BoundT:
        """Make and register what is bound to `endpoint`, with a port of its own when that is 0."""
        if endpoint.scheme == "tcp" and endpoint.port == 0:
            endpoint = endpoint.with_port(self._next_port)
            self._next_port += 1
        text = str(endpoint)
        if text in self._bound:
            raise ConfigurationError(f"cannot listen on endpoint {text!r}: it is taken; choose another port, or port 0")
        self._bound[text] = made = make(text)
        return made

    def unbind(self, bound: MemoryBound[Any]) -> None:
        self._bound.pop(bound.endpoint, None)

    def latency(self, sender: str, receiver: str) -> float:
        latency = self._delays.get(frozenset((sender, receiver)), self._latency)
        return self._random.uniform(*latency) if isinstance(latency, tuple) else latency

    def passes(self, direction: Direction) -> bool:
        """Whether what is due may arrive now."""
        return frozenset((direction.sender, direction.receiver)) not in self._partitioned

    def arrived_until(self, direction: Direction) -> float:
        """What was due by then is at the receiver's door, taken or not."""
        return self._partitioned.get(frozenset((direction.sender, direction.receiver)), trio.current_time())

    def lose_what_is_under_way(self, direction: Direction) -> None:
        arrived_until = self.arrived_until(direction)
        while direction.parcels and direction.parcels[-1].due > arrived_until:
            direction.parcels.pop()

    def break_down(self, wire: Wire) -> None:
        """Break one connection: both ends observe it, what is under way is lost."""
        for direction in (wire.forth, wire.back):
            self.lose_what_is_under_way(direction)
            direction.mute = True
        self._wires.pop(wire, None)
        wire.dialler.broken()
        wire.acceptor.broken()

    def push(self, wire: Wire, direction: Direction, frames: list[bytes] | None) -> None:
        """Put a record or the end of the stream on its way. The caller has looked for room."""
        if (direction.sender, direction.receiver) in self._silenced:
            direction.mute = True
        if direction.mute:
            return
        due = trio.current_time() + self.latency(direction.sender, direction.receiver)
        direction.last_due = max(direction.last_due, due)
        direction.parcels.append(Parcel(direction.last_due, frames))
        receiving = wire.acceptor if direction is wire.forth else wire.dialler
        receiving.transport.expect(receiving)

    def took(self, wire: Wire, direction: Direction) -> None:
        """A parcel left the queue."""
        self._room_came(wire, direction)

    def forget(self, wire: Wire) -> None:
        self._wires.pop(wire, None)

    # -- dials

    def dial(self, connection: MemoryEnd[Any], endpoint: Endpoint) -> None:
        """Begin an attempt; it is looked at when it arrives, and again whenever the network changes."""
        sender = connection.transport.name
        listener = self._find(endpoint)
        receiver = listener.transport.name if listener is not None else sender
        due = trio.current_time() + self.latency(sender, receiver)
        self._attempts[connection] = Attempt(connection, endpoint, due)

    def is_dialling(self, connection: MemoryEnd[Any]) -> bool:
        return connection in self._attempts

    def give_up(self, connection: MemoryEnd[Any]) -> None:
        self._attempts.pop(connection, None)

    def try_dial(self, connection: MemoryEnd[Any]) -> float | None:
        """Bring an attempt on. Returns when to look again: a time, or None when it ended or waits for the network."""
        attempt = self._attempts.get(connection)
        if attempt is None:
            return None
        if attempt.due > trio.current_time():
            return attempt.due
        text = str(attempt.endpoint)
        sender = connection.transport.name
        listener = self._find(attempt.endpoint)
        if text in self._hanging or (listener is not None and self._is_deaf(sender, listener.transport.name)):
            return None
        del self._attempts[connection]
        if listener is None or text in self._refusing:
            connection.refused()
            return None
        failure = shake_hands(connection, listener)
        if failure is not None:
            connection.refused(failure.text, for_security=failure.is_security)
            return None
        receiver = listener.transport.name
        forth, back = (Direction(*names, self._queue) for names in ((sender, receiver), (receiver, sender)))
        acceptor = listener.accepted_end()
        wire = Wire(forth, back, connection, acceptor)
        self._wires[wire] = None
        acceptor.attach(wire, out=back, into=forth)
        connection.attach(wire, out=forth, into=back)
        own = connection.transport.curve.keys
        acceptor.proved(own.public if own is not None else None)
        connection.established(trio.current_time() + self.latency(receiver, sender))
        return None

    def _find(self, endpoint: Endpoint) -> MemoryBound[Any] | None:
        found = self._bound.get(str(endpoint))
        if found is None and endpoint.scheme == "tcp":
            anywhere = (Endpoint("tcp", host, 0, "").with_port(endpoint.port) for host in _WILDCARDS)
            found = next((self._bound[str(each)] for each in anywhere if str(each) in self._bound), None)
        return found

    def _is_deaf(self, a: str, b: str) -> bool:
        return frozenset((a, b)) in self._partitioned or (a, b) in self._silenced or (b, a) in self._silenced

    def _room_came(self, wire: Wire, direction: Direction) -> None:
        (wire.dialler if direction is wire.forth else wire.acceptor).room_came()

    def _wake_all(self) -> None:
        for transport in self._transports.values():
            transport.look()
