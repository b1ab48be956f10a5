"""What a peer said before it was gone is heard, and nothing overtakes anything.

The peers here are bare ZeroMQ sockets that speak and hang up while the event loop is held, so that the whole life of a
connection lies behind when the loop looks at it.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
import zmq
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder, block_the_loop, eventually
from tests.integration.transport.conftest import Host
from zlinkpy.transport import Connection

WORDS = [[b"%d" % number] for number in range(100)] + [[b"close"]]


async def test_a_dialled_peer_is_heard_to_its_end(host: Host, fast_clock: MockClock) -> None:
    context: zmq.Context[Any] = zmq.Context()
    peer = context.socket(zmq.ROUTER)
    peer.linger = 5000
    port = peer.bind_to_random_port("tcp://127.0.0.1")
    async with host() as near:
        sink = Recorder()
        connection = near.dial(f"tcp://127.0.0.1:{port}", sink)
        await sink.until_opened()
        # Once round, so that the connection has been read empty before.
        connection.send([b"hello"])
        await eventually(lambda: bool(peer.poll(0)))
        name, _ = peer.recv_multipart()
        peer.send_multipart([name, b"hello"])
        await sink.until_records(1)
        for word in WORDS:
            peer.send_multipart([name, *word])
        peer.close()
        # Returns when everything is sent and the connection is closed.
        context.term()
        block_the_loop(0.02)
        assert len(sink.records) == 1
        assert await sink.until_closed() == "disconnected"
        assert sink.records[1:] == WORDS


@pytest.mark.parametrize("known", [True, False], ids=["known before", "never seen before"])
async def test_an_accepted_peer_is_heard_to_its_end(host: Host, fast_clock: MockClock, known: bool) -> None:
    async with host() as far:
        reception = Reception()
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        context: zmq.Context[Any] = zmq.Context()
        peer = context.socket(zmq.DEALER)
        peer.linger = 5000
        peer.connect(listener.endpoint)
        if known:
            peer.send(b"hello")
            await reception.until(1)
            reception.sinks[0].records.clear()
        for word in WORDS:
            peer.send_multipart(word)
        peer.close()
        context.term()
        block_the_loop(0.02)
        sink = await reception.until(1)
        assert await sink.until_closed() == "disconnected"
        assert sink.records == WORDS
        assert len(reception.sinks) == 1


async def test_an_end_is_told_while_another_peer_keeps_the_socket_busy(host: Host, fast_clock: MockClock) -> None:
    async with host(receive_queue=100_000) as far:
        reception = Reception()
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        contexts = [zmq.Context(), zmq.Context()]
        flooder, leaver = (context.socket(zmq.DEALER) for context in contexts)
        for peer in (flooder, leaver):
            peer.linger = 5000
            peer.sndhwm = 0
            peer.connect(listener.endpoint)
            peer.send(b"hello")
        await reception.until(2)
        listener.pause()
        flood = 20_000
        for _ in range(flood):
            flooder.send(b"flood")
        block_the_loop(0.05)
        listener.resume()
        for word in WORDS:
            leaver.send_multipart(word)
        leaver.close()
        contexts[1].term()
        flooding, leaving = reception.sinks
        await eventually(lambda: any(len(sink.records) > 200 for sink in reception.sinks))
        if flooding.records[-1] != [b"flood"]:
            flooding, leaving = leaving, flooding
        await leaving.until_closed()
        assert leaving.records[1:] == WORDS
        # It was told on the way, not when the flood was over.
        assert len(flooding.records) < flood
        flooder.close()
        contexts[0].term()
        await flooding.until_closed()
        assert len(flooding.records) == flood + 1


async def test_a_record_does_not_overtake_what_was_posted_although_there_is_room(
    host: Host, fast_clock: MockClock
) -> None:
    async with host() as near, host() as far:
        reception = Reception()
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        sink = Recorder()
        connection: Any = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        # The queue was full when this was posted, and has room since a moment.
        connection._posts.append([b"posted"])
        assert not connection.send([b"overtaking"])
        near._stage.request_relief(connection)
        while not connection.send([b"behind"]):
            await connection.wait_writable()
        accepted = await reception.until(1)
        await accepted.until_records(2)
        assert accepted.records == [[b"posted"], [b"behind"]]


async def test_what_arrives_after_the_owner_closed_reaches_nobody(host: Host, fast_clock: MockClock) -> None:
    def close_at_once(connection: Connection, frames: list[bytes]) -> None:
        connection.close()

    async with host() as far:
        reception = Reception(close_at_once)
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        context: zmq.Context[Any] = zmq.Context()
        peer = context.socket(zmq.DEALER)
        peer.linger = 5000
        peer.connect(listener.endpoint)
        for word in WORDS:
            peer.send_multipart(word)
        peer.close()
        context.term()
        block_the_loop(0.02)
        sink = await reception.until(1)
        await sink.until_closed()
        await trio.sleep(0.1)
        assert sink.records == WORDS[:1]
        assert len(reception.sinks) == 1
