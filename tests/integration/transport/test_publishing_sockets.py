"""Publishers and subscriptions as only real sockets show them: other people's sockets, strangers, last words."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest
import trio
import zmq
from trio.testing import MockClock

from tests.contract.transport.worlds import PATIENCE, Recorder, audience, block_the_loop, eventually
from tests.integration.transport.conftest import Host
from tests.integration.transport.test_zmq_sockets import JUNK, address_of
from zlinkpy.errors import ConfigurationError
from zlinkpy.transport import zmq_transport
from zlinkpy.transport.topics import TOPIC_BYTES

WORDS = [[b"n", b"%d" % number] for number in range(100)] + [[b"n", b"bye"]]


async def test_a_publisher_of_somebody_else_is_heard_to_its_end(host: Host, fast_clock: MockClock) -> None:
    context: zmq.Context[Any] = zmq.Context()
    # An XPUB, to know when the subscription has come.
    peer = context.socket(zmq.XPUB)
    peer.linger = 5000
    port = peer.bind_to_random_port("tcp://127.0.0.1")
    async with host() as near:
        sink = Recorder()
        near.subscribe(f"tcp://127.0.0.1:{port}", sink, [b"n", b"m"])
        await sink.until_opened()
        asked = set()
        for _ in range(2):
            await eventually(lambda: bool(peer.poll(0)))
            asked.add(peer.recv())
        assert asked == {b"\x01n", b"\x01m"}
        for word in WORDS:
            peer.send_multipart(word)
        peer.close()
        # Returns when everything is sent and the connection is closed.
        context.term()
        block_the_loop(0.02)
        assert not sink.records
        assert await sink.until_closed() == "disconnected"
        assert sink.records == WORDS


async def test_subscribers_of_somebody_else_get_whole_records(host: Host, fast_clock: MockClock) -> None:
    async with host() as far:
        publisher = await far.publish("tcp://127.0.0.1:0")
        context: zmq.Context[Any] = zmq.Context()
        peer = context.socket(zmq.XSUB)
        peer.linger = 0
        peer.connect(publisher.endpoint)
        # What is no subscription goes unheard: a publisher is never read.
        peer.send_multipart([b"\x02what", b"is this?"])
        peer.send(b"\x01n")
        with trio.fail_after(PATIENCE):
            while not peer.poll(0):
                publisher.publish([b"n", b"", b"record"])
                await trio.sleep(0.05)
        assert peer.recv_multipart() == [b"n", b"", b"record"]
        assert publisher.subscribers == 1
        # The rest of the topics stays at home.
        while peer.poll(0):
            peer.recv_multipart()
        publisher.publish([b"m", b"not asked for"])
        publisher.publish([b"n", b"last"])
        await eventually(lambda: bool(peer.poll(0)))
        received = peer.recv_multipart()
        while received != [b"n", b"last"]:
            assert received == [b"n", b"", b"record"]
            await eventually(lambda: bool(peer.poll(0)))
            received = peer.recv_multipart()
        peer.close()
        context.term()
        await eventually(lambda: publisher.subscribers == 0)


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
async def test_a_stranger_at_a_publisher_disturbs_nobody(host: Host, fast_clock: MockClock, junk: bytes) -> None:
    async with host() as near, host() as far:
        publisher = await far.publish("tcp://127.0.0.1:0")
        (sink,) = await audience(publisher, (near, [b"n"]))
        with socket.create_connection(address_of(publisher.endpoint)) as stranger:
            stranger.sendall(junk)
            await trio.sleep(0.1)
            for number in range(20):
                publisher.publish([b"n", b"%d" % number])
            await sink.until_records(20)
        await eventually(lambda: publisher.subscribers == 1)
        assert sink.cause is None


async def test_a_topic_that_is_no_topic_ends_its_subscriber_only(host: Host, fast_clock: MockClock) -> None:
    async with host() as near, host() as far:
        publisher = await far.publish("tcp://127.0.0.1:0")
        (sink,) = await audience(publisher, (near, [b"n"]))
        context: zmq.Context[Any] = zmq.Context()
        with context.socket(zmq.SUB) as greedy:
            greedy.linger = 0
            greedy.reconnect_ivl = -1
            greedy.connect(publisher.endpoint)
            await eventually(lambda: publisher.subscribers == 2)
            greedy.subscribe(b"x" * (TOPIC_BYTES + 1000))
            await eventually(lambda: publisher.subscribers == 1)
        context.term()
        publisher.publish([b"n", b"1"])
        await sink.until_records(1)


async def test_passers_by_at_a_silent_publisher_leave_nothing(host: Host, fast_clock: MockClock) -> None:
    async with host() as near, host() as far:
        publisher = await far.publish("tcp://127.0.0.1:0")
        held = 0
        for round_ in range(60):
            if round_ == 1:
                # libzmq starts its threads with the first socket.
                held = len(os.listdir("/dev/fd"))
            sink = Recorder()
            subscription = near.subscribe(publisher.endpoint, sink, [b""])
            await sink.until_opened()
            subscription.close()
            await sink.until_closed()
            await eventually(lambda: not publisher.subscribers and not near.statistics().subscriptions)
        assert near.statistics().sockets == 0
        assert far.statistics().sockets == 2
        await eventually(lambda: len(os.listdir("/dev/fd")) <= held)


async def test_every_subscription_has_a_socket_that_is_used_once(host: Host, fast_clock: MockClock) -> None:
    async with host() as near, host() as far:
        publisher = await far.publish("tcp://127.0.0.1:0")
        subscriptions: list[Any] = [near.subscribe(publisher.endpoint, Recorder(), [b""]) for _ in range(3)]
        assert len({each._socket for each in subscriptions}) == 3
        assert {each._socket.type for each in subscriptions} == {zmq.SUB}
        # Each with both ends of its monitor, as far as they are ours.
        assert near.statistics().sockets == 6


async def test_a_subscription_does_not_come_back_by_itself(host: Host, fast_clock: MockClock) -> None:
    async with host() as near, host() as far:
        publisher = await far.publish("tcp://127.0.0.1:0")
        (sink,) = await audience(publisher, (near, [b""]))
        await publisher.aclose()
        again = await far.publish(publisher.endpoint)
        await sink.until_closed()
        await trio.sleep(2.0)
        assert again.subscribers == 0


@pytest.mark.parametrize(
    ("endpoint", "number"),
    [("tcp://192.0.2.1:5501", errno.EADDRNOTAVAIL), ("ipc:///no/such/directory/x", errno.ENOENT)],
)
async def test_bind_errors_name_endpoint_and_fix(host: Host, fast_clock: MockClock, endpoint: str, number: int) -> None:
    async with host() as transport:
        with pytest.raises(ConfigurationError) as caught:
            await transport.publish(endpoint)
        assert repr(endpoint) in caught.value.message
        assert zmq_transport._BIND_FIXES[number] in caught.value.message
        assert transport.statistics().sockets == 0


@pytest.mark.parametrize("endpoint", ["tcp://[::1]:0", "ipc://{directory}/zlink"])
async def test_every_kind_of_endpoint_publishes(
    host: Host, fast_clock: MockClock, endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with host() as near, host() as far:
        publisher = await far.publish(endpoint.format(directory=tmp_path_factory.mktemp("s")))
        (sink,) = await audience(publisher, (near, [b"n"]))
        publisher.publish([b"n", b"1"])
        await sink.until_records(1)
