"""The fault proxy: what each switch does to bytes and connections. The clock stands still until a test moves it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.fault_proxy import BUFFER_BYTES, DOWN, UP, Direction, FaultProxy, ProxyConnection

each_way = pytest.mark.parametrize("way", [UP, DOWN], ids=lambda way: way.value)


@pytest.fixture
def clock() -> MockClock:
    """Stands still: what happens without `jump` takes no time at all."""
    return MockClock()


@define(eq=False)
class Bench:
    """A proxy before a server that hands its connections over."""

    proxy: FaultProxy
    accepted: trio.MemoryReceiveChannel[trio.SocketStream]
    _streams: list[trio.SocketStream] = field(factory=list)

    async def dial(self) -> trio.SocketStream:
        client = await trio.open_tcp_stream("127.0.0.1", self.proxy.port)
        self._streams.append(client)
        return client

    async def pair(self) -> tuple[trio.SocketStream, trio.SocketStream, ProxyConnection]:
        """Client, server and what is between them."""
        client = await self.dial()
        server = await self.accepted.receive()
        await self.proxy.until(lambda: bool(self.proxy.connections[-1].ways))
        return client, server, self.proxy.connections[-1]

    async def through(self, way: Direction) -> tuple[trio.SocketStream, trio.SocketStream, ProxyConnection]:
        """Sender and receiver of one direction."""
        client, server, connection = await self.pair()
        return (client, server, connection) if way is UP else (server, client, connection)

    async def taken(self, connection: ProxyConnection, way: Direction, size: int) -> None:
        """Wait until the proxy has read that many bytes, and has done with them what it does without time."""
        await self.proxy.until(lambda: connection.ways[way].received >= size)
        await wait_all_tasks_blocked()


@asynccontextmanager
async def running() -> AsyncIterator[Bench]:
    send, receive = trio.open_memory_channel[trio.SocketStream](100)
    streams: list[trio.SocketStream] = []

    async def serve(stream: trio.SocketStream) -> None:
        streams.append(stream)
        await send.send(stream)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))  # type: ignore[misc]
        async with FaultProxy(f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}") as proxy:
            bench = Bench(proxy, receive)
            yield bench
            for stream in (*bench._streams, *streams):
                await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


async def broken(action: Callable[[], Awaitable[object]]) -> None:
    """What a reset connection answers."""
    with pytest.raises(trio.BrokenResourceError):
        await action()


async def read(stream: trio.SocketStream, size: int) -> bytes:
    """Exactly `size` bytes."""
    data = b""
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        assert piece, "the stream ended early"
        data += piece
    return data


@each_way
async def test_bytes_pass_in_order_and_are_counted(clock: MockClock, way: Direction) -> None:
    async with running() as bench:
        sender, receiver, connection = await bench.through(way)
        text = bytes(range(256)) * 4096
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.send_all, text)
            assert await read(receiver, len(text)) == text
        await bench.taken(connection, way, len(text))
        mine, other = connection.ways[way], connection.ways[DOWN if way is UP else UP]
        assert (mine.received, mine.delivered, mine.swallowed, mine.kept) == (len(text), len(text), 0, 0)
        assert (other.received, other.delivered) == (0, 0)
        assert bench.proxy.accepted == 1
        assert list(bench.proxy.ways(way)) == [mine]


@each_way
async def test_an_end_travels_and_the_other_direction_goes_on(clock: MockClock, way: Direction) -> None:
    async with running() as bench:
        sender, receiver, connection = await bench.through(way)
        await sender.send_all(b"last")
        await sender.send_eof()
        assert await read(receiver, 4) == b"last"
        assert await receiver.receive_some() == b""
        await receiver.send_all(b"answer")
        assert await read(sender, 6) == b"answer"
        await receiver.send_eof()
        assert await sender.receive_some() == b""
        await bench.proxy.until(lambda: connection not in bench.proxy.connections)


@each_way
async def test_swallowed_bytes_never_come_and_the_connection_stays(clock: MockClock, way: Direction) -> None:
    async with running() as bench:
        sender, receiver, connection = await bench.through(way)
        await sender.send_all(b"before")
        assert await read(receiver, 6) == b"before"
        connection.swallow(way)
        await sender.send_all(b"x" * 100_000)
        await sender.send_eof()
        await bench.proxy.until(lambda: connection.ways[way].swallowed == 100_000)
        await receiver.send_all(b"the other direction")
        assert await read(sender, 19) == b"the other direction"
        clock.jump(1000)
        await wait_all_tasks_blocked()
        assert connection in bench.proxy.connections
        assert connection.ways[way].delivered == 6
        with trio.move_on_after(0) as scope:
            await receiver.receive_some()
        assert scope.cancelled_caught


@each_way
@pytest.mark.parametrize("reset", [True, False], ids=["RST", "FIN"])
async def test_who_hangs_up_into_a_black_hole_is_not_missed(clock: MockClock, way: Direction, reset: bool) -> None:
    async with running() as bench:
        sender, receiver, connection = await bench.through(way)
        connection.swallow(way)
        if reset:
            sender.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await sender.aclose()
        await bench.proxy.until(lambda: connection.ways[way].has_ended)
        # The receiver goes on; that nobody takes it comes back as a reset, which is swallowed, too.
        for _ in range(3):
            await receiver.send_all(b"anybody there?")
            await wait_all_tasks_blocked()
        assert connection in bench.proxy.connections
        with trio.move_on_after(0) as scope:
            await receiver.receive_some()
        assert scope.cancelled_caught
        connection.cut()
        await broken(receiver.receive_some)


async def test_a_reset_travels(clock: MockClock) -> None:
    async with running() as bench:
        client, server, _ = await bench.pair()
        client.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await client.aclose()
        await broken(server.receive_some)


@each_way
async def test_the_first_bytes_can_be_spared(clock: MockClock, way: Direction) -> None:
    async with running() as bench:
        bench.proxy.swallow(way, after=5)
        sender, receiver, connection = await bench.through(way)
        await sender.send_all(b"hello world")
        assert await read(receiver, 5) == b"hello"
        await bench.proxy.until(lambda: connection.ways[way].swallowed == 6)
        await sender.send_all(b"!")
        await bench.proxy.until(lambda: connection.ways[way].swallowed == 7)


@each_way
async def test_held_bytes_come_later_and_in_order(clock: MockClock, way: Direction) -> None:
    async with running() as bench:
        sender, receiver, connection = await bench.through(way)
        bench.proxy.hold(way)
        await sender.send_all(b"one ")
        await sender.send_all(b"two ")
        await sender.send_eof()
        await bench.taken(connection, way, 8)
        clock.jump(100)
        await wait_all_tasks_blocked()
        assert (connection.ways[way].kept, connection.ways[way].delivered) == (8, 0)
        connection.pass_on(way)
        assert await read(receiver, 8) == b"one two "
        assert await receiver.receive_some() == b""


async def test_held_bytes_can_be_swallowed_after_all(clock: MockClock) -> None:
    async with running() as bench:
        client, server, connection = await bench.pair()
        connection.hold(UP)
        await client.send_all(b"lost")
        await bench.taken(connection, UP, 4)
        connection.swallow(UP)
        await bench.proxy.until(lambda: connection.up.swallowed == 4)
        connection.pass_on()
        await client.send_all(b"kept")
        assert await read(server, 4) == b"kept"


async def test_a_held_direction_takes_no_more_than_its_buffer(clock: MockClock) -> None:
    async with running() as bench:
        client, server, connection = await bench.pair()
        connection.hold(UP)
        text = b"x" * (4 * BUFFER_BYTES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, text)
            await bench.proxy.until(lambda: connection.up.kept >= BUFFER_BYTES)
            await wait_all_tasks_blocked()
            assert connection.up.kept < BUFFER_BYTES + 100_000
            connection.pass_on()
            assert await read(server, len(text)) == text


@each_way
async def test_a_delay_is_kept_and_so_is_the_order(clock: MockClock, way: Direction) -> None:
    async with running() as bench:
        sender, receiver, connection = await bench.through(way)
        connection.delay(10, way)
        await sender.send_all(b"slow")
        await bench.taken(connection, way, 4)
        connection.delay(0, way)
        await sender.send_all(b"fast")
        await bench.taken(connection, way, 8)
        clock.jump(9.99)
        await wait_all_tasks_blocked()
        assert connection.ways[way].delivered == 0
        await receiver.send_all(b"not delayed")
        assert await read(sender, 11) == b"not delayed"
        clock.jump(0.02)
        assert await read(receiver, 8) == b"slowfast"


async def test_a_throttle_lets_so_many_bytes_through_in_a_second(clock: MockClock) -> None:
    async with running() as bench:
        client, server, connection = await bench.pair()
        connection.throttle(1000, UP)
        await client.send_all(b"x" * 10_000)
        await bench.taken(connection, UP, 10_000)
        for second in range(1, 4):
            for _ in range(20):
                clock.jump(0.05)
                await wait_all_tasks_blocked()
            assert second * 1000 <= connection.up.delivered <= second * 1000 + 50
        connection.throttle(None)
        clock.jump(0.05)
        assert await read(server, 10_000) == b"x" * 10_000


@pytest.mark.parametrize("reset", [True, False], ids=["RST", "FIN"])
async def test_a_cut_is_seen_at_both_ends(clock: MockClock, reset: bool) -> None:
    async with running() as bench:
        client, server, connection = await bench.pair()
        other_client, other_server, _ = await bench.pair()
        await client.send_all(b"in flight")
        connection.hold()
        connection.cut(reset=reset)
        await bench.proxy.until(lambda: len(bench.proxy.connections) == 1)
        for end in (client, server):
            if reset:
                await broken(lambda: read(end, 100))  # noqa: B023 - awaited in this turn
            else:
                while await end.receive_some():
                    pass
                await end.aclose()
        await other_client.send_all(b"untouched")
        assert await read(other_server, 9) == b"untouched"


async def test_a_cut_through_the_proxy_ends_every_connection(clock: MockClock) -> None:
    async with running() as bench:
        pairs = [await bench.pair() for _ in range(3)]
        bench.proxy.cut()
        for client, server, _ in pairs:
            await broken(client.receive_some)
            await broken(server.receive_some)
        client, server, _ = await bench.pair()
        await client.send_all(b"again")
        assert await read(server, 5) == b"again"


async def test_refused_connections_are_refused_until_admitted_on_the_same_port(clock: MockClock) -> None:
    async with running() as bench:
        client, server, _ = await bench.pair()
        port = bench.proxy.port
        for _ in range(3):
            bench.proxy.refuse()
            bench.proxy.refuse()
            with pytest.raises(OSError, match="all attempts to connect"):
                await bench.dial()
            bench.proxy.admit()
            await bench.pair()
        assert bench.proxy.port == port
        assert bench.proxy.accepted == 4
        await client.send_all(b"open all the time")
        assert await read(server, 17) == b"open all the time"


async def test_ignored_connections_are_accepted_and_nothing_else(clock: MockClock) -> None:
    async with running() as bench:
        bench.proxy.ignore()
        client = await bench.dial()
        await client.send_all(b"hello?")
        await bench.proxy.until(lambda: bench.proxy.accepted == 1)
        clock.jump(1000)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.WouldBlock):
            bench.accepted.receive_nowait()
        assert [connection.ways for connection in bench.proxy.connections] == [{}]
        bench.proxy.heal()
        await bench.pair()
        bench.proxy.connections[0].cut()
        await broken(client.receive_some)


async def test_rules_of_the_proxy_hold_for_later_connections_and_heal_ends_them(clock: MockClock) -> None:
    async with running() as bench:
        proxy = bench.proxy
        proxy.refuse()
        proxy.swallow(UP)
        proxy.delay(5, DOWN)
        proxy.throttle(10)
        proxy.heal()
        client, server, connection = await bench.pair()
        await client.send_all(b"up")
        await server.send_all(b"down")
        assert await read(server, 2) == b"up"
        assert await read(client, 4) == b"down"
        proxy.swallow(DOWN)
        client, server, later = await bench.pair()
        await server.send_all(b"gone")
        await proxy.until(lambda: later.down.swallowed == 4)
        assert connection.down.rules == later.down.rules
        assert connection.down.rules is not later.down.rules


async def test_a_target_that_is_not_there_resets_the_caller(clock: MockClock) -> None:
    async with running() as bench:
        with trio.socket.socket() as unused:
            await unused.bind(("127.0.0.1", 0))
            bench.proxy.target = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
            client = await bench.dial()
            await broken(client.receive_some)
            assert bench.proxy.accepted == 1


async def test_a_unix_socket_can_be_the_target(clock: MockClock, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("u") / "s"
    async with running() as bench:
        with trio.socket.socket(trio.socket.AF_UNIX) as listening:
            await listening.bind(str(path))
            listening.listen()
            bench.proxy.target = f"unix://{path}"
            client = await bench.dial()
            accepted, _ = await listening.accept()
            with accepted:
                await client.send_all(b"hello")
                assert await accepted.recv(5) == b"hello"
