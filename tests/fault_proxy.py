"""A TCP proxy that misbehaves on purpose: it stands between two real sockets, and a test switches its faults.

    async with FaultProxy(node.endpoint) as proxy:
        ...                                   # dial proxy.endpoint instead
        proxy.swallow(UP)                     # what the dialler sends goes nowhere; the connection stays up
        proxy.connections[0].cut()            # the first open connection is reset

Every switch works on one connection, or, on the proxy, on all open and all later ones. A direction either passes
bytes on, holds them (they come later), or swallows them (they never come). Ends of the connection, FIN and RST, travel
like bytes: they are delayed, held and swallowed with them. So a black-holed connection stays up at one end after the
other end has given it up, as with a dead router in between.

What is held back here counts as on its way: a switch applies to everything that was not delivered yet. Bytes that were
swallowed are gone, so passing on again in the middle of a connection hands its receiver a stream with a hole.

Rejected: threads, as tests/gate.py has them. That one stands before blocking clients and knows their commands; this
one knows bytes only and follows the clock of the test, so that a delay of 10 s takes no time under a `MockClock`.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from types import TracebackType
from typing import Any

import trio
from attrs import define, evolve, field

READ_BYTES = 65_536
BUFFER_BYTES = 4 * 2**20
"""What one direction keeps of bytes that are delayed, throttled or held; then its sender is no longer read."""
PIECES_PER_SECOND = 20
"""In how many pieces a throttled direction delivers what a second allows."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends RST."""


class Direction(Enum):
    UP = "up"
    """From who dialled the proxy to the target."""
    DOWN = "down"


UP, DOWN = Direction.UP, Direction.DOWN


class Flow(Enum):
    PASS = "pass"
    HOLD = "hold"
    SWALLOW = "swallow"


@define
class Rules:
    """What happens in one direction."""

    flow: Flow = Flow.PASS
    delay: float = 0.0
    """Seconds from reading to delivery."""
    rate: float | None = None
    """Bytes per second; None: no bound."""
    spared: int = 0
    """`flow` leaves this many bytes from the beginning of a connection alone."""


class _Signal:
    """Wakes whoever waits that something may be different."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        await self._event.wait()


class _Switches:
    """The switches that a proxy and a connection share. Without directions they mean both."""

    def swallow(self, *directions: Direction, after: int = 0) -> None:
        """Black-hole: nothing is delivered any more but the first `after` bytes of a connection."""
        self._change(directions, flow=Flow.SWALLOW, spared=after)

    def hold(self, *directions: Direction, after: int = 0) -> None:
        """Keep everything but the first `after` bytes of a connection until `pass_on`."""
        self._change(directions, flow=Flow.HOLD, spared=after)

    def pass_on(self, *directions: Direction) -> None:
        """Deliver what is held and what comes. Delay and throttle stay."""
        self._change(directions, flow=Flow.PASS, spared=0)

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Deliver what is read from now on `seconds` later, and never before what was read earlier."""
        self._change(directions, delay=seconds)

    def throttle(self, rate: float | None, *directions: Direction) -> None:
        """Deliver at most `rate` bytes in a second; None ends it."""
        self._change(directions, rate=rate)

    def _change(self, directions: tuple[Direction, ...], **rules: Any) -> None:
        raise NotImplementedError


class Way:
    """One direction of one connection: its rules, and how many bytes were received, delivered and swallowed."""

    def __init__(self, rules: Rules, source: trio.SocketStream, sink: trio.SocketStream, noted: _Signal) -> None:
        self.rules = rules
        self.received = 0
        self.delivered = 0
        self.swallowed = 0
        self.has_ended = False
        """Whether the sender's FIN or RST was read."""
        self.back: Way
        """The other direction of the connection."""
        self._source = source
        self._sink = sink
        self._sink_is_gone = False
        self._is_done = False
        self._noted = noted
        self._changed = _Signal()
        # When it is due, and the bytes; empty bytes are FIN, None is RST.
        self._queue: deque[tuple[float, bytes | None]] = deque()

    @property
    def kept(self) -> int:
        """Bytes on their way."""
        return self.received - self.delivered - self.swallowed

    def change(self, **rules: Any) -> None:
        self.rules = evolve(self.rules, **rules)
        self._changed.set()

    async def read(self) -> None:
        """Take what the sender sends, to its end."""
        while not self.has_ended:
            while self.kept >= BUFFER_BYTES:
                await self._changed.wait()
            data: bytes | None
            try:
                data = await self._source.receive_some(READ_BYTES)
            except trio.BrokenResourceError:
                data = None
            self.has_ended = not data
            self._put(bytes(data) if data is not None else None)

    def _put(self, data: bytes | None) -> None:
        due = trio.current_time() + self.rules.delay
        if self._queue:
            due = max(due, self._queue[-1][0])
        self._queue.append((due, data))
        self.received += len(data or b"")
        self._note()

    async def deliver(self) -> None:
        """Do with it what the rules say. Returns when the end was delivered; raises BrokenResourceError for a reset."""
        while True:
            if not self._queue:
                await self._changed.wait()
                continue
            due, data = self._queue[0]
            free = len(data or b"")
            if self._sink_is_gone:
                self._drop()
                continue
            if self.rules.flow is not Flow.PASS:
                free = min(free, max(0, self.rules.spared - self.delivered))
                if not free:
                    await self._keep_back()
                    continue
            if due > trio.current_time():
                with trio.move_on_at(due):
                    await self._changed.wait()
                continue
            if not data:
                self._queue.popleft()
                self._is_done = True
                if data is None:
                    raise trio.BrokenResourceError("the sender reset the connection")
                await self._sink.send_eof()
                return
            await self._hand_over(due, data, free)

    async def _keep_back(self) -> None:
        if self.rules.flow is Flow.HOLD:
            await self._changed.wait()
        elif not self._drop():
            # The other end never hears of it.
            await trio.sleep_forever()

    def _drop(self) -> int:
        _, data = self._queue.popleft()
        size = len(data or b"")
        self.swallowed += size
        self._note()
        return size

    async def _hand_over(self, due: float, data: bytes, free: int) -> None:
        rate = self.rules.rate
        piece = free if rate is None else min(free, max(1, int(rate / PIECES_PER_SECOND)))
        self._queue[0] = (due, data[piece:])
        if piece == len(data):
            self._queue.popleft()
        try:
            await self._sink.send_all(data[:piece])
        except trio.BrokenResourceError:
            # The receiver's RST. It goes the other way, under the rules there.
            if self.back._is_done:
                raise
            self._sink_is_gone = True
            self.swallowed += piece
            self.back._put(None)
            return
        self.delivered += piece
        self._note()
        if rate is not None:
            await trio.sleep(piece / rate)

    def _note(self) -> None:
        self._changed.set()
        self._noted.set()


class ProxyConnection(_Switches):
    """One connection through the proxy. `number` counts from 1 in the order of their arrival."""

    def __init__(self, number: int, client: trio.SocketStream, noted: _Signal) -> None:
        self.number = number
        self.ways: dict[Direction, Way] = {}
        """Empty while the target is being dialled, and on a connection that was accepted and left alone."""
        self._streams = [client]
        self._noted = noted
        self._scope = trio.CancelScope()
        self._reset: bool | None = None

    @property
    def up(self) -> Way:
        return self.ways[UP]

    @property
    def down(self) -> Way:
        return self.ways[DOWN]

    def cut(self, *, reset: bool = True) -> None:
        """End the connection at both ends now: with RST, or with FIN after what was delivered."""
        self._reset = reset
        self._scope.cancel()

    async def relay(self, target: trio.SocketStream, rules: dict[Direction, Rules]) -> None:
        """Carry bytes until both directions have ended or the connection is cut."""
        (client,) = self._streams
        self._streams.append(target)
        self.ways[UP] = Way(evolve(rules[UP]), client, target, self._noted)
        self.ways[DOWN] = Way(evolve(rules[DOWN]), target, client, self._noted)
        self.up.back, self.down.back = self.down, self.up
        self._noted.set()
        with self._scope:
            try:
                async with trio.open_nursery() as nursery:
                    for way in self.ways.values():
                        nursery.start_soon(way.read)
                        nursery.start_soon(way.deliver)
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                self._reset = True

    async def ignore(self) -> None:
        """Accepted, never read, never answered."""
        with self._scope:
            await trio.sleep_forever()

    async def close(self) -> None:
        """Close both sockets the way the connection ended."""
        try:
            if self._reset is False:
                async with trio.open_nursery() as nursery:
                    for stream in self._streams:
                        nursery.start_soon(_finish, stream)
        finally:
            for stream in self._streams:
                if self._reset:
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                stream.socket.close()

    def _change(self, directions: tuple[Direction, ...], **rules: Any) -> None:
        for direction, way in self.ways.items():
            if not directions or direction in directions:
                way.change(**rules)


async def _finish(stream: trio.SocketStream) -> None:
    """Say FIN, and read on: closing a socket with unread bytes would make it a RST."""
    try:
        await stream.send_eof()
        while await stream.receive_some(READ_BYTES):
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


@define(eq=False)
class FaultProxy(_Switches):
    """A listening proxy before `target`: ``tcp://HOST:PORT`` or ``unix://PATH``; a new target counts for later ones.

    Attributes:
        accepted: Connections that were accepted so far.
        connections: The open ones, in the order of their arrival.
    """

    target: str
    accepted: int = field(default=0, init=False)
    connections: list[ProxyConnection] = field(factory=list, init=False)
    _rules: dict[Direction, Rules] = field(factory=lambda: {UP: Rules(), DOWN: Rules()}, init=False)
    _mute: bool = field(default=False, init=False)
    _noted: _Signal = field(factory=_Signal, init=False)
    _manager: Any = field(factory=trio.open_nursery, init=False)
    _nursery: trio.Nursery = field(init=False)
    _socket: trio.socket.SocketType = field(init=False)
    _port: int = field(default=0, init=False)
    _listens: bool = field(default=False, init=False)

    @property
    def port(self) -> int:
        return self._port

    @property
    def endpoint(self) -> str:
        """What is to be dialled instead of the target."""
        return f"tcp://127.0.0.1:{self._port}"

    async def __aenter__(self) -> FaultProxy:
        self._nursery = await self._manager.__aenter__()
        self._bind()
        self.admit()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._nursery.cancel_scope.cancel()
        try:
            await self._manager.__aexit__(None, None, None)
        finally:
            self._socket.close()

    # -- switches

    def cut(self, *, reset: bool = True) -> None:
        """Cut every open connection."""
        for connection in self.connections:
            connection.cut(reset=reset)

    def refuse(self) -> None:
        """Refuse new connections. The open ones stay, the port stays taken."""
        if self._listens:
            self._listens = False
            self._socket.close()
            self._bind()

    def ignore(self) -> None:
        """Accept new connections and say nothing on them; the target never hears of them."""
        self._mute = True

    def admit(self) -> None:
        """Forward new connections again. Those that were ignored stay ignored."""
        self._mute = False
        if not self._listens:
            self._listens = True
            self._socket.listen(64)
            self._nursery.start_soon(self._accept, self._socket)

    def heal(self) -> None:
        """No faults any more, for new connections and open ones."""
        self.admit()
        self._change((), flow=Flow.PASS, delay=0.0, rate=None, spared=0)

    def _change(self, directions: tuple[Direction, ...], **rules: Any) -> None:
        for direction in directions or Direction:
            self._rules[direction] = evolve(self._rules[direction], **rules)
        for connection in self.connections:
            connection._change(directions, **rules)

    # -- looking

    def ways(self, direction: Direction) -> Iterator[Way]:
        """That direction of every open connection."""
        return (connection.ways[direction] for connection in self.connections if connection.ways)

    async def until(self, seen: Callable[[], bool]) -> None:
        """Wait until a condition about connections and counts holds. Unbounded: give it a `trio.fail_after`."""
        await trio.lowlevel.checkpoint()
        while not seen():
            await self._noted.wait()

    # -- running

    def _bind(self) -> None:
        # Bound and not listening: the kernel refuses whoever dials, and nobody else gets the port.
        self._socket = trio.socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket._sock.bind(("127.0.0.1", self._port))  # type: ignore[attr-defined] # trio's own bind may wait
        self._port = self._socket.getsockname()[1]

    async def _accept(self, listener: trio.socket.SocketType) -> None:
        while True:
            try:
                client, _ = await listener.accept()
            except trio.ClosedResourceError:
                return
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
                return
            self.accepted += 1
            self._nursery.start_soon(
                self._serve, ProxyConnection(self.accepted, trio.SocketStream(client), self._noted)
            )

    async def _serve(self, connection: ProxyConnection) -> None:
        self.connections.append(connection)
        self._noted.set()
        try:
            if self._mute:
                await connection.ignore()
                return
            try:
                target = await self._dial()
            except OSError:
                connection.cut()
                return
            await connection.relay(target, self._rules)
        finally:
            self.connections.remove(connection)
            self._noted.set()
            await connection.close()

    async def _dial(self) -> trio.SocketStream:
        scheme, _, address = self.target.partition("://")
        if scheme == "unix":
            return await trio.open_unix_socket(address)
        host, _, port = address.rpartition(":")
        return await trio.open_tcp_stream(host, int(port))
