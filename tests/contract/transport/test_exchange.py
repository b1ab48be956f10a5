"""Records travel whole, in order, to the right place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder, World, echo
from zlinkpy.transport import ConnectionClosed


async def test_a_record_arrives_frame_by_frame_as_it_was_sent(world: World, clock: MockClock) -> None:
    record = [b"ZM\x01\x05\x00", b"", b"x" * 300_000, bytes(range(256)), b""]
    async with world.host("a") as near, world.host("b") as far:
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink)
        assert not connection.is_open
        assert await sink.until_opened() is connection
        assert connection.dialled
        assert connection.endpoint == listener.endpoint
        assert connection.send(record)
        accepted = await reception.until(1)
        assert accepted.records == [record]
        assert accepted.connection is not None
        assert accepted.connection.endpoint == listener.endpoint
        await sink.until_records(1)
        assert sink.records == [record]


async def test_records_keep_their_order_in_both_directions(world: World, clock: MockClock) -> None:
    count = 500
    async with world.host("a") as near, world.host("b") as far:
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        sent = [[b"n", b"%d" % number] for number in range(count)]
        for record in sent:
            assert connection.send(record)
        await sink.until_records(count)
        assert sink.records == sent
        assert reception.sinks[0].records == sent


async def test_a_connection_is_accepted_once_and_with_its_first_record(world: World, clock: MockClock) -> None:
    async with world.host("a") as near, world.host("b") as far:
        reception = Reception()
        listener = await far.listen(world.endpoint(), reception.accept)
        quiet, loud = Recorder(), Recorder()
        near.dial(listener.endpoint, quiet)
        await quiet.until_opened()
        connection = near.dial(listener.endpoint, loud)
        await loud.until_opened()
        for _ in range(3):
            connection.send([b"hello"])
        accepted = await reception.until(1)
        await accepted.until_records(3)
        assert len(reception.sinks) == 1
        assert accepted.told == ["opened", "received", "received", "received"]
        assert far.statistics().accepted == 1
        assert near.statistics().dialled == 2


async def test_answers_reach_the_peer_that_asked(world: World, clock: MockClock) -> None:
    async with world.host("a") as near, world.host("b") as far:
        listener = await far.listen(world.endpoint(), Reception(echo).accept)
        sinks = [Recorder() for _ in range(40)]
        connections = [near.dial(listener.endpoint, sink) for sink in sinks]
        for sink in sinks:
            await sink.until_opened()
        for _ in range(3):
            for number, connection in enumerate(connections):
                assert connection.send([b"%d" % number])
        for number, sink in enumerate(sinks):
            await sink.until_records(3)
            assert sink.records == [[b"%d" % number]] * 3


@pytest.mark.contract("LV-131")
@pytest.mark.parametrize(
    "numbers",
    [itertools.repeat(0), itertools.cycle([7, 3]), itertools.count(1000, -1), itertools.repeat(5)],
    ids=["zero", "repeated", "permuted", "constant"],
)
async def test_connection_ids_decide_nothing(world: World, clock: MockClock, numbers: Iterator[int]) -> None:
    async with world.host("a") as near, world.host("b") as far:
        world.repeat_ids(near, numbers)
        world.repeat_ids(far, numbers)
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        sinks = [Recorder() for _ in range(4)]
        connections = [near.dial(listener.endpoint, sink) for sink in sinks]
        for number, (sink, connection) in enumerate(zip(sinks, connections, strict=True)):
            await sink.until_opened()
            connection.send([b"%d" % number])
            await sink.until_records(1)
            assert sink.records == [[b"%d" % number]]
        victim = reception.sinks[1]
        assert victim.connection is not None
        victim.connection.close()
        await victim.until_closed()
        await sinks[1].until_closed()
        assert [sink.cause is None for sink in sinks] == [True, False, True, True]
        assert [sink.cause is None for sink in reception.sinks] == [True, False, True, True]
        again = Recorder()
        connection = near.dial(listener.endpoint, again)
        await again.until_opened()
        connection.send([b"again"])
        await again.until_records(1)
        connections[2].send([b"two"])
        await sinks[2].until_records(2)
        assert again.records == [[b"again"]]
        assert sinks[2].records == [[b"2"], [b"two"]]


async def test_nothing_can_be_sent_before_the_connection_is_open(world: World, clock: MockClock) -> None:
    async with world.host("a") as near, world.host("b") as far:
        reception = Reception()
        listener = await far.listen(world.endpoint(), reception.accept)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink)
        with pytest.raises(ConnectionClosed):
            connection.send([b"early"])
        connection.post([b"early"])
        await sink.until_opened()
        connection.send([b"in time"])
        assert (await reception.until(1)).records == [[b"in time"]]


async def test_a_record_without_frames_is_refused(world: World, clock: MockClock) -> None:
    async with world.host("a") as near, world.host("b") as far:
        reception = Reception()
        listener = await far.listen(world.endpoint(), reception.accept)
        sink = Recorder()
        connection = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        for _ in range(2):
            for submit in (connection.send, connection.post):
                with pytest.raises(ValueError, match="at least one frame"):
                    submit([])
            connection.send([b"first"])
        connection.send([b"next"])
        accepted = await reception.until(1)
        await accepted.until_records(3)
        assert accepted.records == [[b"first"], [b"first"], [b"next"]]


async def test_a_host_can_dial_itself(world: World, clock: MockClock) -> None:
    async with world.host("a") as host:
        listener = await host.listen(world.endpoint(), Reception(echo).accept)
        sink = Recorder()
        connection = host.dial(listener.endpoint, sink)
        await sink.until_opened()
        connection.send([b"to myself"])
        await sink.until_records(1)
        assert sink.records == [[b"to myself"]]
