"""Worlds with one face: hosts on real ZeroMQ sockets, dialling with ROUTER or DEALER, and on a simulated network.

A test of the transport contract gets a `World` and must not care which. What differs, breaking a connection from
outside and reaching nobody, is behind the same names.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import attrs
import trio

from zlinkpy.entropy import SeededEntropy
from zlinkpy.security import HostKeys
from zlinkpy.transport import Connection, Listener, MemoryNetwork, Pattern, Publisher, ZmqTransport
from zlinkpy.transport.rotation import Budgets

# Virtual seconds any wait of a test may take. Only a failing test waits so long.
PATIENCE = 60.0

# How fast the clock of a test with real sockets runs: five virtual seconds a second.
REAL_RATE = 5.0


def block_the_loop(seconds: float) -> None:
    """Hold the event loop as a busy handler would, so that the I/O threads get ahead of it."""
    threading.Event().wait(seconds)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what nobody announces."""
    with trio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


class Recorder:
    """A sink that writes everything down and checks the order of what it is told."""

    def __init__(self, on_record: Callable[[Connection, list[bytes]], None] | None = None) -> None:
        self.connection: Connection | None = None
        self.records: list[list[bytes]] = []
        self.cause: str | None = None
        self.told: list[str] = []
        self._on_record = on_record
        self._changed = trio.Event()

    @property
    def is_opened(self) -> bool:
        return "opened" in self.told

    def opened(self, connection: Connection) -> None:
        assert not self.told, self.told
        assert connection.is_open
        self.connection = connection
        self._tell("opened")

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        assert connection is self.connection
        assert self.told[0] == "opened"
        assert "closed" not in self.told
        self.records.append(frames)
        self._tell("received")
        if self._on_record is not None:
            self._on_record(connection, frames)

    def closed(self, connection: Connection, cause: str) -> None:
        assert "closed" not in self.told, "closed twice"
        assert cause
        assert not connection.is_open
        self.cause = cause
        self._tell("closed")

    def _tell(self, what: str) -> None:
        self.told.append(what)
        self._changed.set()

    async def until(self, condition: Callable[[], bool], within: float = PATIENCE) -> None:
        with trio.fail_after(within):
            while not condition():
                self._changed = trio.Event()
                await self._changed.wait()

    async def until_opened(self) -> Connection:
        await self.until(lambda: self.is_opened)
        assert self.connection is not None
        return self.connection

    async def until_records(self, number: int) -> None:
        await self.until(lambda: len(self.records) >= number)

    async def until_closed(self, within: float = PATIENCE) -> str:
        await self.until(lambda: self.cause is not None, within)
        assert self.cause is not None
        return self.cause


def echo(connection: Connection, frames: list[bytes]) -> None:
    """For `Recorder`: send every record back."""
    assert connection.send(frames)


class Reception:
    """What a listener accepts, in order."""

    def __init__(self, on_record: Callable[[Connection, list[bytes]], None] | None = None) -> None:
        self.sinks: list[Recorder] = []
        self._on_record = on_record
        self._changed = trio.Event()

    def accept(self, connection: Connection) -> Recorder:
        assert not connection.dialled
        sink = Recorder(self._on_record)
        self.sinks.append(sink)
        self._changed.set()
        return sink

    async def until(self, number: int) -> Recorder:
        """The sink of the `number`-th accepted connection, when its first record is here."""
        with trio.fail_after(PATIENCE):
            while len(self.sinks) < number:
                self._changed = trio.Event()
                await self._changed.wait()
        sink = self.sinks[number - 1]
        await sink.until_records(1)
        return sink


@attrs.define
class Pair:
    """Both ends of one open connection, whose first record is behind it and in `peer_sink`."""

    listener: Listener
    connection: Connection
    sink: Recorder
    peer: Connection
    peer_sink: Recorder


async def connect(
    world: World, near: Any, far: Any, sink: Recorder | None = None, reception: Reception | None = None
) -> Pair:
    """Dial from `near` to a new listener of `far`."""
    sink, reception = sink or Recorder(), reception or Reception()
    listener = await far.listen(world.endpoint(), reception.accept)
    connection = near.dial(listener.endpoint, sink)
    await sink.until_opened()
    connection.send([b"hello"])
    peer_sink = await reception.until(1)
    assert peer_sink.connection is not None
    return Pair(listener, connection, sink, peer_sink.connection, peer_sink)


async def until_heard(publisher: Publisher, sink: Recorder, record: Sequence[bytes]) -> None:
    """Publish `record` until it, or another, reaches `sink`: when a subscription has arrived is told to nobody."""
    with trio.fail_after(PATIENCE):
        while not sink.records:
            publisher.publish(record)
            with trio.move_on_after(0.02):
                await sink.until_records(1)


async def audience(
    publisher: Publisher, *members: tuple[Any, Sequence[bytes]], sinks: Sequence[Recorder] = ()
) -> Sequence[Recorder]:
    """A subscriber of `publisher` for each transport and its topics, when the publisher has read what they ask for."""
    sinks = sinks or [Recorder() for _ in members]
    asked = [topics for _, topics in members]
    for sink, (transport, topics) in zip(sinks, members, strict=True):
        transport.subscribe(publisher.endpoint, sink, topics)
    for sink, topics in zip(sinks, asked, strict=True):
        await sink.until_opened()
        await until_heard(publisher, sink, [topics[0], b"probe"])
    markers = [[topics[0], b"marker"] for topics in asked]
    for marker in markers:
        publisher.publish(marker)
    for sink, topics in zip(sinks, asked, strict=True):
        last = len([marker for marker in markers if any(marker[0].startswith(topic) for topic in topics)])
        await sink.until(lambda sink=sink, last=last: sum(frames[1] == b"marker" for frames in sink.records) == last)
        sink.records.clear()
        sink.told[1:] = []
    return sinks


class DealerTransport(ZmqTransport):
    """Dials with a DEALER where nothing else is asked for."""

    def dial(self, endpoint: str, sink: Any, *, pattern: Pattern = Pattern.DEALER, **options: Any) -> Connection:
        return super().dial(endpoint, sink, pattern=pattern, **options)


class World:
    """What a contract test needs of its surroundings."""

    name: str
    transports: list[Any]

    @asynccontextmanager
    async def host(
        self,
        name: str,
        *,
        queue: int = 1000,
        budgets: Budgets | None = None,
        max_message_bytes: int | None = None,
        keys: HostKeys | None = None,
    ) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    def endpoint(self) -> str:
        """A free endpoint to listen on."""
        return "tcp://127.0.0.1:0"

    def refusing_endpoint(self) -> str:
        """An endpoint where nobody listens."""
        raise NotImplementedError

    @contextmanager
    def mute_endpoint(self) -> Iterator[str]:
        """An endpoint that takes a dial and never answers."""
        raise NotImplementedError
        yield

    @asynccontextmanager
    async def breakable(self, endpoint: str) -> AsyncIterator[tuple[str, Callable[[Connection], None]]]:
        """A way to `endpoint` on which connections can be cut from outside: what to dial, and the cut."""
        raise NotImplementedError
        yield

    def settle(self) -> None:
        """What was sent before is at the other side's door afterwards, unread."""

    def count_rotations(self, transport: Any) -> Counter[str]:
        """A counter whose entry ``"rotations"`` grows with every rotation of `transport`."""
        rotation = self._rotation_of(transport)
        plan = rotation.plan
        counter: Counter[str] = Counter()

        def counted(ready: Any) -> Any:
            order = plan(ready)
            counter["rotations"] += bool(order)
            return order

        rotation.plan = counted
        return counter

    def repeat_ids(self, transport: Any, numbers: Iterator[int]) -> None:
        """Take connection numbers from `numbers` from now on."""
        raise NotImplementedError

    def _rotation_of(self, transport: Any) -> Any:
        raise NotImplementedError

    def assert_nothing_left(self) -> None:
        for transport in self.transports:
            held = transport.statistics()
            assert not any(attrs.astuple(held)), held


class ZmqWorld(World):
    name = "zmq"

    def __init__(self, factory: type[ZmqTransport] = ZmqTransport) -> None:
        self.transports = []
        self._factory = factory

    @asynccontextmanager
    async def host(
        self,
        name: str,
        *,
        queue: int = 1000,
        budgets: Budgets | None = None,
        max_message_bytes: int | None = None,
        keys: HostKeys | None = None,
    ) -> AsyncIterator[Any]:
        transport = self._factory(
            entropy=SeededEntropy(name),
            send_queue=queue,
            receive_queue=queue,
            budgets=budgets,
            max_message_bytes=max_message_bytes,
        )
        self.transports.append(transport)
        if keys is not None:
            transport.secure(keys)
        async with transport:
            yield transport

    def refusing_endpoint(self) -> str:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            return f"tcp://127.0.0.1:{unused.getsockname()[1]}"

    @contextmanager
    def mute_endpoint(self) -> Iterator[str]:
        with socket.socket() as mute:
            mute.bind(("127.0.0.1", 0))
            mute.listen()
            yield f"tcp://127.0.0.1:{mute.getsockname()[1]}"

    @asynccontextmanager
    async def breakable(self, endpoint: str) -> AsyncIterator[tuple[str, Callable[[Connection], None]]]:
        port = int(endpoint.rpartition(":")[2])
        running: list[trio.CancelScope] = []

        async def relay(near: trio.SocketStream) -> None:
            async with near, await trio.open_tcp_stream("127.0.0.1", port) as far:
                async with trio.open_nursery() as both:
                    running.append(both.cancel_scope)
                    both.start_soon(pump, near, far)
                    both.start_soon(pump, far, near)

        async def pump(source: trio.SocketStream, target: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for data in source:
                    await target.send_all(data)

        def cut(_: Connection) -> None:
            for scope in running:
                scope.cancel()

        async with trio.open_nursery() as nursery:
            listeners: list[trio.SocketListener] = await nursery.start(
                partial(trio.serve_tcp, relay, 0, host="127.0.0.1")
            )
            yield f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}", cut
            nursery.cancel_scope.cancel()

    def settle(self) -> None:
        block_the_loop(0.05)

    def repeat_ids(self, transport: Any, numbers: Iterator[int]) -> None:
        transport._numbers = numbers

    def _rotation_of(self, transport: Any) -> Any:
        return transport._stage._rotation


class MemoryWorld(World):
    name = "memory"

    def __init__(self) -> None:
        self.transports = []
        self.network: MemoryNetwork | None = None

    @asynccontextmanager
    async def host(
        self,
        name: str,
        *,
        queue: int = 1000,
        budgets: Budgets | None = None,
        max_message_bytes: int | None = None,
        keys: HostKeys | None = None,
    ) -> AsyncIterator[Any]:
        if self.network is None:
            self.network = MemoryNetwork(seed=1, latency=(0.0001, 0.001), queue=queue)
        transport = self.network.transport(name, budgets=budgets, max_message_bytes=max_message_bytes)
        self.transports.append(transport)
        if keys is not None:
            transport.secure(keys)
        async with transport:
            yield transport

    def refusing_endpoint(self) -> str:
        return "tcp://127.0.0.1:9"

    @contextmanager
    def mute_endpoint(self) -> Iterator[str]:
        assert self.network is not None
        self.network.hang("tcp://127.0.0.1:11")
        yield "tcp://127.0.0.1:11"

    @asynccontextmanager
    async def breakable(self, endpoint: str) -> AsyncIterator[tuple[str, Callable[[Connection], None]]]:
        assert self.network is not None
        yield endpoint, self.network.cut

    def repeat_ids(self, transport: Any, numbers: Iterator[int]) -> None:
        transport.network.next_number = numbers.__next__

    def _rotation_of(self, transport: Any) -> Any:
        return transport._rotation
