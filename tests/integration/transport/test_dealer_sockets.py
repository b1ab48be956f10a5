"""A dialled DEALER as only real sockets show it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing
import zmq
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder, block_the_loop, eventually
from tests.integration.transport.conftest import Host
from zlinkpy.transport import ConnectionClosed, Pattern
from zlinkpy.transport.zmq_dialled import DealerConnection

WORDS = [[b"%d" % number, b""] for number in range(100)] + [[b"close"]]


async def test_a_dealer_names_itself_nowhere_and_is_heard_and_hears_to_the_end(
    host: Host, fast_clock: MockClock
) -> None:
    context: zmq.Context[Any] = zmq.Context()
    peer = context.socket(zmq.ROUTER)
    peer.linger = 5000
    port = peer.bind_to_random_port("tcp://127.0.0.1")
    async with host() as near:
        sink = Recorder()
        connection = near.dial(f"tcp://127.0.0.1:{port}", sink, pattern=Pattern.DEALER)
        await sink.until_opened()
        connection.send([b"hello", b"", b"there"])
        await eventually(lambda: bool(peer.poll(0)))
        name, *frames = peer.recv_multipart()
        # An id that libzmq made up: none was given to it.
        assert name[:1] == b"\0"
        assert frames == [b"hello", b"", b"there"]
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


async def test_a_router_still_dials_where_nothing_else_is_asked_for(host: Host, fast_clock: MockClock) -> None:
    async with host() as near, host() as far:
        listener = await far.listen("tcp://127.0.0.1:0", Reception().accept)
        kinds: list[Any] = [
            near.dial(listener.endpoint, Recorder(), **options) for options in ({}, {"pattern": Pattern.DEALER})
        ]
        assert [each._socket.type for each in kinds] == [zmq.ROUTER, zmq.DEALER]
        assert near.statistics().dialled == 2


@pytest.mark.parametrize("wrong", [["text", b"fine"], [b"fine", "text"], [b"fine", b"fine", "text"]])
async def test_an_unsendable_frame_ends_a_dealer_and_no_part_of_it_arrives(
    host: Host, fast_clock: MockClock, wrong: Any
) -> None:
    async with host() as near, host() as far:
        reception = Reception()
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink, pattern=Pattern.DEALER)
        await sink.until_opened()
        connection.send([b"hello"])
        accepted = await reception.until(1)
        # What follows in the same scheduler pass is submitted when the pass is over.
        with suppress(TypeError):
            connection.send(wrong)
        await trio.testing.wait_all_tasks_blocked()
        assert not connection.is_open
        assert await sink.until_closed() == "a record could not be sent whole"
        await accepted.until_closed()
        assert accepted.records == [[b"hello"]]


async def test_a_pipe_that_goes_in_the_middle_of_a_record_is_an_observation(host: Host, fast_clock: MockClock) -> None:
    async with host() as near, host() as far:
        reception = Reception()
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink, pattern=Pattern.DEALER)
        assert isinstance(connection, DealerConnection)
        await sink.until_opened()
        send = connection._send_frame
        sent: list[bytes] = []

        def fail_behind_the_first(frame: bytes, flags: int) -> object:
            if sent:
                raise zmq.Again
            sent.append(frame)
            return send(frame, flags)

        connection._send_frame = fail_behind_the_first  # type: ignore[method-assign,assignment]
        with pytest.raises(ConnectionClosed):
            connection.send([b"first", b"second"])
        assert not connection.is_open
        assert await sink.until_closed() == "disconnected"
        assert not reception.sinks


async def test_a_full_dealer_answers_false_and_never_waits(host: Host, fast_clock: MockClock) -> None:
    async with host(send_queue=5) as near, host(receive_queue=5) as far:
        reception = Reception()
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink, pattern=Pattern.DEALER)
        await sink.until_opened()
        listener.pause()
        taken = refused = 0
        while refused < 5:
            # The loop is not given up in between: a send that waited would hang here.
            if connection.send([b"%d" % taken, b"x" * 400_000]):
                taken += 1
                assert taken < 1000
            else:
                refused += 1
                await trio.sleep(0.1)
        listener.resume()
        await connection.wait_writable()
        while not connection.send([b"%d" % taken, b"last"]):
            await connection.wait_writable()
        accepted = await reception.until(1)
        await accepted.until_records(taken + 1)
        assert [int(frames[0]) for frames in accepted.records] == list(range(taken + 1))
