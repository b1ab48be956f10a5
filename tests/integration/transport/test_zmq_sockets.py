"""What only real sockets can do: strangers, reused descriptors, frames too large, leaks."""

from __future__ import annotations

import errno
import os
import selectors
import socket
from contextlib import nullcontext
from typing import Any

import pytest
import trio
import trio.testing
import zmq
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder, block_the_loop, echo, eventually
from tests.integration.transport.conftest import Host
from zlinkpy.entropy import SeededEntropy
from zlinkpy.errors import InternalFailureError
from zlinkpy.transport import Connection, ConnectionClosed, ZmqTransport, readiness, zmq_transport
from zlinkpy.transport.interface import FIRST_RECORD_SECONDS
from zlinkpy.transport.readiness import EpollReadiness, SelectorReadiness, WatcherReadiness
from zlinkpy.transport.zmq_listener import AcceptedConnection, shut_down, socket_identity


def address_of(endpoint: str) -> tuple[str, int]:
    name, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return name, int(port)


JUNK = {
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
    "noise": bytes(range(256)) * 40,
    "zeros": bytes(4096),
    "a false greeting": b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(60),
    "a greeting and a broken command": b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x04\xff" + b"?" * 300,
    "a greeting and a huge frame": b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x06" + b"\xff" * 8,
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
async def test_a_stranger_that_talks_nonsense_disturbs_nobody(host: Host, fast_clock: MockClock, junk: bytes) -> None:
    async with host() as near, host() as far:
        reception = Reception(echo)
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        connection.send([b"before"])
        await sink.until_records(1)
        with socket.create_connection(address_of(listener.endpoint)) as stranger:
            stranger.sendall(junk)
            for number in range(5):
                connection.send([b"during", b"%d" % number])
                await sink.until_records(2 + number)
            with socket.create_connection(address_of(listener.endpoint)):
                await trio.sleep(0.1)
        later = Recorder()
        connection = near.dial(listener.endpoint, later)
        await later.until_opened()
        connection.send([b"after"])
        await later.until_records(1)
        # The stranger was never anybody's peer.
        assert len(reception.sinks) == 2
        assert sink.cause is None


async def test_a_frame_above_the_limit_ends_its_connection_only(host: Host, fast_clock: MockClock) -> None:
    async with host() as near, host(max_message_bytes=10_000) as far:
        reception = Reception(echo)
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        sinks = [Recorder(), Recorder()]
        for sink in sinks:
            connection = near.dial(listener.endpoint, sink)
            await sink.until_opened()
            connection.send([b"x" * 10_000])
            await sink.until_records(1)
        assert sinks[0].connection is not None
        sinks[0].connection.send([b"small", b"x" * 10_001])
        await sinks[0].until_closed()
        await reception.sinks[0].until_closed()
        assert len(reception.sinks[0].records) == 1
        assert sinks[1].connection is not None
        sinks[1].connection.send([b"fine"])
        await sinks[1].until_records(2)


async def test_descriptors_used_again_bind_to_the_right_connection(host: Host, fast_clock: MockClock) -> None:
    async with host() as far:
        reception = Reception(echo)
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        async with host() as near:
            for round_ in range(6):
                # Several lives of one descriptor pass while the listener cannot look.
                context: zmq.Context[Any] = zmq.Context()
                for number in range(5):
                    with context.socket(zmq.DEALER) as short_lived:
                        short_lived.linger = 1000
                        short_lived.connect(listener.endpoint)
                        short_lived.send(b"short %d.%d" % (round_, number))
                        block_the_loop(0.01)
                context.term()
                sink = Recorder()
                survivor = near.dial(listener.endpoint, sink)
                await sink.until_opened()
                survivor.send([b"survivor", b"%d" % round_])
                await sink.until_records(1)
                assert sink.records == [[b"survivor", b"%d" % round_]]
                await eventually(lambda: far.statistics().accepted == 1)
                closing = next(each for each in reception.sinks if each.records[-1] == sink.records[0])
                assert closing.connection is not None
                assert closing.cause is None
                closing.connection.close()
                await sink.until_closed()
                await closing.until_closed()
        await eventually(lambda: far.statistics().accepted == 0)
        assert all(sink.cause is not None for sink in reception.sinks)


async def test_a_second_id_on_one_descriptor_ends_the_first(host: Host, fast_clock: MockClock) -> None:
    async with host() as near, host() as far:
        reception = Reception()
        listener: Any = await far.listen("tcp://127.0.0.1:0", reception.accept)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        connection.send([b"hello"])
        earlier = await reception.until(1)
        assert isinstance(earlier.connection, AcceptedConnection)
        claimed = listener._claim(earlier.connection.descriptor, b"\0other")
        assert await earlier.until_closed() == "disconnected"
        earlier.connection.close()
        assert claimed.is_open
        # Closing the earlier one again did not touch the descriptor, which is the later one's now.
        await trio.sleep(0.2)
        assert sink.cause is None
        claimed.close()
        await sink.until_closed()


async def test_a_hundred_short_connections_leave_nothing(host: Host, fast_clock: MockClock) -> None:
    async with host() as near, host() as far:
        reception = Reception()
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        before = 0
        for round_ in range(100):
            if round_ == 1:
                # libzmq starts its threads with the first socket.
                await eventually(lambda: near.statistics().sockets == 0 and far.statistics().accepted == 0)
                before = len(os.listdir("/dev/fd"))
            sink = Recorder()
            connection = near.dial(listener.endpoint, sink)
            await sink.until_opened()
            connection.send([b"hello"])
            connection.close(linger=5.0)
            await sink.until_closed()
        # The last one may not have been read yet when nobody holds it any more.
        await eventually(lambda: len(reception.sinks) == 100)
        await eventually(lambda: near.statistics().sockets == 0 and far.statistics().accepted == 0)
        assert all(sink.told == ["opened", "received", "closed"] for sink in reception.sinks)
        await eventually(lambda: len(os.listdir("/dev/fd")) <= before)


async def test_many_connections_beyond_the_default_number_of_sockets(host: Host, fast_clock: MockClock) -> None:
    async with host() as near, host() as far:
        listener = await far.listen("tcp://127.0.0.1:0", Reception(echo).accept)
        sinks = [Recorder() for _ in range(400)]
        for sink in sinks:
            near.dial(listener.endpoint, sink)
            if near.statistics().dialled % 50 == 0:
                await sink.until_opened()
        for sink in sinks:
            connection = await sink.until_opened()
            connection.send([b"hello"])
        for sink in sinks:
            await sink.until_records(1)
        assert near.statistics().sockets == 800


@pytest.mark.parametrize("earlier", [0, 1], ids=["alone", "behind another"])
async def test_an_unsendable_frame_ends_its_connection_and_spares_the_others(
    host: Host, fast_clock: MockClock, earlier: int
) -> None:
    async with host() as near, host() as far:
        reception = Reception()
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        sinks = [Recorder(), Recorder()]
        for number, sink in enumerate(sinks, start=1):
            connection = near.dial(listener.endpoint, sink)
            await sink.until_opened()
            connection.send([b"hello"])
            await reception.until(number)
        first, second = (sink.connection for sink in reception.sinks)
        assert first is not None
        assert second is not None
        for _ in range(earlier):
            # What follows in the same scheduler pass is submitted when the pass is over.
            first.send([b"fine"])
        with nullcontext() if earlier else pytest.raises(TypeError):
            first.send([b"fine", "text is no frame"])  # type: ignore[list-item]
        await trio.testing.wait_all_tasks_blocked()
        assert not first.is_open
        assert second.send([b"unharmed"])
        await sinks[1].until_records(1)
        assert sinks[1].records == [[b"unharmed"]]
        await sinks[0].until_closed()


async def test_a_send_to_a_vanished_peer_is_an_observation(host: Host, fast_clock: MockClock) -> None:
    async with host() as near, host() as far:
        reception = Reception()
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        connection.send([b"hello"])
        accepted = (await reception.until(1)).connection
        assert accepted is not None
        connection.close()
        # The loop does not get to see the disconnect before the send does.
        with pytest.raises(ConnectionClosed):  # noqa: PT012
            for _ in range(200):
                block_the_loop(0.01)
                accepted.send([b"anybody?"])
        assert not accepted.is_open
        assert reception.sinks[0].cause is None
        await reception.sinks[0].until_closed()


async def test_a_given_context_is_not_terminated(fast_clock: MockClock) -> None:
    context: zmq.Context[Any] = zmq.Context()
    async with ZmqTransport(entropy=SeededEntropy(1), context=context) as transport:
        await transport.listen("tcp://127.0.0.1:0", Reception().accept)
    assert not context.closed
    # Nothing of the transport is left in it, or this would wait for ever.
    with trio.fail_after(50):
        await trio.to_thread.run_sync(context.term, abandon_on_cancel=True)


async def test_a_leaked_socket_is_an_error(fast_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_transport, "TERM_SECONDS", 0.2)
    with pytest.raises(InternalFailureError, match="still open"):  # noqa: PT012 - it comes from leaving
        async with ZmqTransport(entropy=SeededEntropy(1)) as transport:
            assert transport._context is not None
            leaked = transport._context.socket(zmq.PAIR)
    leaked.close(linger=0)
    await eventually(lambda: bool(transport._context and transport._context.closed))


async def test_a_fault_of_the_stage_comes_out(host: Host, fast_clock: MockClock) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError), flatten_subgroups=True):
        async with host() as transport:
            listener: Any = await transport.listen("tcp://127.0.0.1:0", Reception().accept)
            transport.dial(listener.endpoint, Recorder())
            listener.take_turn = lambda budgets, clock, fresh: 1 // 0
            transport._stage.schedule(listener)
            await trio.sleep_forever()


async def test_a_transport_is_entered_once(host: Host, fast_clock: MockClock) -> None:
    async with host() as transport:
        with pytest.raises(RuntimeError, match="entered once"):
            await transport.__aenter__()
    with pytest.raises(RuntimeError, match="not running"):
        await transport.listen("tcp://127.0.0.1:0", Reception().accept)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("waiting", [SelectorReadiness, WatcherReadiness])
async def test_records_travel_where_the_platform_has_no_epoll(
    host: Host, fast_clock: MockClock, monkeypatch: pytest.MonkeyPatch, waiting: type, cancelled: bool
) -> None:
    monkeypatch.delattr(readiness.select, "epoll")
    if waiting is WatcherReadiness:
        monkeypatch.setattr(readiness.selectors, "DefaultSelector", selectors.SelectSelector)
    with trio.CancelScope() as scope:
        async with host() as near, host() as far:
            assert isinstance(near._readiness, waiting)
            reception = Reception(echo)
            listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
            sinks = [Recorder() for _ in range(5)]
            for sink in sinks:
                connection = near.dial(listener.endpoint, sink)
                await sink.until_opened()
                for number in range(300):
                    while not connection.send([b"%d" % number]):
                        await connection.wait_writable()
                await sink.until_records(300)
            assert sinks[0].connection is not None
            sinks[0].connection.close()
            await sinks[0].until_closed()
            await reception.sinks[0].until_closed()
            if cancelled:
                scope.cancel()
                await trio.sleep_forever()


async def test_epoll_is_used_where_it_exists(host: Host, fast_clock: MockClock) -> None:
    async with host() as transport:
        assert isinstance(transport._readiness, EpollReadiness)


def test_shutting_down_spares_a_descriptor_that_changed_hands() -> None:
    left, right = socket.socketpair()
    other_left, other_right = socket.socketpair()
    with right, other_left, other_right:
        fd = left.fileno()
        identity = socket_identity(fd)
        assert identity is not None
        left.close()
        os.dup2(other_left.fileno(), fd)
        try:
            shut_down(fd, identity)
            other_left.sendall(b"still open")
            assert other_right.recv(100) == b"still open"
            shut_down(fd, socket_identity(fd))
            assert other_right.recv(100) == b""
        finally:
            os.close(fd)
        assert socket_identity(fd) is None
        shut_down(fd, identity)


def test_a_number_that_means_no_socket_any_more_is_let_be() -> None:
    reader, writer = os.pipe()
    held = len(os.listdir("/dev/fd"))
    try:
        assert socket_identity(reader) is None
        shut_down(reader, (("127.0.0.1", 1), 1))
        os.write(writer, b"still open")
        assert os.read(reader, 100) == b"still open"
        assert len(os.listdir("/dev/fd")) == held
    finally:
        os.close(reader)
        os.close(writer)


async def test_strangers_that_stay_silent_hold_no_descriptors(host: Host, fast_clock: MockClock) -> None:
    async with host() as near, host() as far:
        reception = Reception(echo)
        listener: Any = await far.listen("tcp://127.0.0.1:0", reception.accept)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        connection.send([b"hello"])
        await sink.until_records(1)
        strangers = [socket.create_connection(address_of(listener.endpoint)) for _ in range(20)]
        for stranger in strangers:
            # The whole handshake of ZMTP 3, and not a word more.
            stranger.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48))
            stranger.sendall(b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER")
        await eventually(lambda: len(listener._live) == 21)
        held = len(os.listdir("/dev/fd"))
        await trio.sleep(FIRST_RECORD_SECONDS - 2)
        assert len(listener._live) == 21
        await eventually(lambda: len(listener._live) == 1)
        await eventually(lambda: len(os.listdir("/dev/fd")) == held - 20)
        for stranger in strangers:
            stranger.close()
        connection.send([b"still here"])
        await sink.until_records(2)
        assert len(reception.sinks) == 1


async def test_a_silent_stranger_is_dropped_in_the_middle_of_a_flood(host: Host, fast_clock: MockClock) -> None:
    async with host(receive_queue=100_000) as far, host() as near:
        dropped_after: list[int] = []
        reception = Reception()
        listener: Any = await far.listen("tcp://127.0.0.1:0", reception.accept)
        context: zmq.Context[Any] = zmq.Context()
        flooder = context.socket(zmq.DEALER)
        flooder.linger = 5000
        flooder.sndhwm = 0
        flooder.connect(listener.endpoint)
        flooder.send(b"hello")
        flooding = await reception.until(1)

        def note(connection: Connection, frames: list[bytes]) -> None:
            if not dropped_after and not listener._overdue:
                dropped_after.append(len(flooding.records))

        flooding._on_record = note
        silent = Recorder()
        near.dial(listener.endpoint, silent)
        await silent.until_opened()
        listener.pause()
        flood = 20_000
        for _ in range(flood):
            flooder.send(b"flood")
        await eventually(lambda: len(listener._overdue) == 1)
        block_the_loop(0.05)
        listener.resume()
        assert await silent.until_closed() == "disconnected"
        assert dropped_after
        assert 1 < dropped_after[0] < 1000
        flooder.close()
        context.term()
        await flooding.until_closed()
        assert len(flooding.records) == flood + 1


@pytest.mark.parametrize("number", sorted(zmq_transport._BIND_FIXES))
async def test_every_bind_error_names_endpoint_and_fix(
    host: Host, fast_clock: MockClock, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with host() as transport:

        def refuse(self: Any, address: str) -> None:
            raise zmq.ZMQError(number)

        monkeypatch.setattr(zmq.Socket, "bind", refuse)
        with pytest.raises(zmq_transport.ConfigurationError) as caught:
            await transport.listen("tcp://127.0.0.1:5501", Reception().accept)
        assert "'tcp://127.0.0.1:5501'" in caught.value.message
        assert zmq_transport._BIND_FIXES[number] in caught.value.message
        assert transport.statistics().sockets == 0


@pytest.mark.parametrize(
    ("endpoint", "number"),
    [("tcp://192.0.2.1:5501", errno.EADDRNOTAVAIL), ("ipc:///no/such/directory/x", errno.ENOENT)],
)
async def test_real_bind_errors(host: Host, fast_clock: MockClock, endpoint: str, number: int) -> None:
    async with host() as transport:
        with pytest.raises(zmq_transport.ConfigurationError) as caught:
            await transport.listen(endpoint, Reception().accept)
        assert zmq_transport._BIND_FIXES[number] in caught.value.message


async def test_a_close_asked_for_in_opened_delivers_nothing(host: Host, fast_clock: MockClock) -> None:
    class Unwilling(Recorder):
        def opened(self, connection: Connection) -> None:
            super().opened(connection)
            connection.close()

    async with host() as near, host() as far:
        unwilling = Unwilling()
        listener = await far.listen("tcp://127.0.0.1:0", lambda _: unwilling)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        connection.send([b"hello"])
        await unwilling.until_closed()
        await sink.until_closed()
        assert unwilling.told == ["opened", "closed"]
