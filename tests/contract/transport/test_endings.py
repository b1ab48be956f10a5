"""How a connection ends: asked for, observed, exactly once."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder, World, connect, echo, eventually
from zlinkpy.transport import Connection, ConnectionClosed
from zlinkpy.transport.interface import DIAL_SECONDS


@pytest.mark.parametrize("closer", ["dialler", "acceptor"])
async def test_a_close_is_observed_by_both_ends_once(world: World, clock: MockClock, closer: str) -> None:
    async with world.host("a") as near, world.host("b") as far:
        pair = await connect(world, near, far)
        sink, accepted = pair.sink, pair.peer_sink
        first, second = (pair.connection, pair.peer)[:: 1 if closer == "dialler" else -1]
        first.close()
        # The request returns at once; the observation comes from the receive stage.
        assert sink.cause is None
        assert accepted.cause is None
        assert not first.is_open
        with pytest.raises(ConnectionClosed):
            first.send([b"late"])
        first.post([b"late"])
        with pytest.raises(ConnectionClosed):
            await first.wait_writable()
        first.close(linger=1.0)
        causes = {await sink.until_closed(), await accepted.until_closed()}
        assert causes == {"closed here", "disconnected"}
        with pytest.raises(ConnectionClosed):
            second.send([b"late"])
        second.close()
        await eventually(lambda: not near.statistics().dialled and not far.statistics().accepted)
        assert sink.told == ["opened", "closed"]
        assert accepted.told == ["opened", "received", "closed"]


async def test_closing_one_accepted_peer_leaves_the_others(world: World, clock: MockClock) -> None:
    async with world.host("a") as near, world.host("b") as far:
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        sinks = [Recorder() for _ in range(5)]
        for number, sink in enumerate(sinks):
            connection = near.dial(listener.endpoint, sink)
            await sink.until_opened()
            connection.send([b"%d" % number])
            await sink.until_records(1)
        victim = reception.sinks[2].connection
        assert victim is not None
        victim.close()
        assert await sinks[2].until_closed() == "disconnected"
        assert await reception.sinks[2].until_closed() == "closed here"
        for number, sink in enumerate(sinks):
            if number != 2:
                assert sink.connection is not None
                sink.connection.send([b"still here"])
                await sink.until_records(2)
                assert sink.cause is None
                assert reception.sinks[number].cause is None


async def test_a_lingering_close_of_a_dialled_connection_flushes(world: World, clock: MockClock) -> None:
    count = 800
    async with world.host("a") as near, world.host("b") as far:
        pair = await connect(world, near, far)
        for number in range(count):
            assert pair.connection.send([b"%d" % number, b"x" * 1000])
        pair.connection.post([b"close"])
        pair.connection.close(linger=20.0)
        await pair.sink.until_closed()
        await pair.peer_sink.until_closed()
        assert [frames[0] for frames in pair.peer_sink.records[1:]] == [b"%d" % number for number in range(count)] + [
            b"close"
        ]


async def test_a_lingering_close_of_an_accepted_connection_lets_the_peer_read_the_last_record(
    world: World, clock: MockClock
) -> None:
    count = 800

    def hang_up_after_close(connection: Connection, frames: list[bytes]) -> None:
        if frames == [b"close"]:
            connection.close()

    async with world.host("a") as near, world.host("b") as far:
        pair = await connect(world, near, far, Recorder(hang_up_after_close))
        for number in range(count):
            assert pair.peer.send([b"%d" % number, b"x" * 1000])
        pair.peer.post([b"close"])
        pair.peer.close(linger=1000.0)
        # The peer hangs up when it has read it: nobody waits for the end of the linger.
        await pair.peer_sink.until_closed(within=60.0)
        await pair.sink.until_closed()
        assert [frames[0] for frames in pair.sink.records] == [b"%d" % number for number in range(count)] + [b"close"]


async def test_a_peer_that_does_not_hang_up_is_cut_off_after_the_linger(world: World, clock: MockClock) -> None:
    async with world.host("a") as near, world.host("b") as far:
        pair = await connect(world, near, far)
        pair.peer.send([b"close"])
        pair.peer.close(linger=1.0)
        pair.connection.send([b"I stay"])
        await pair.sink.until_closed()
        await pair.peer_sink.until_closed()
        assert pair.sink.records == [[b"close"]]
        # Records that come after the close was asked for reach nobody.
        assert pair.peer_sink.records == [[b"hello"]]


@pytest.mark.parametrize("times", range(3))
async def test_what_arrived_before_a_disconnect_is_handed_over_first(
    world: World, clock: MockClock, times: int
) -> None:
    async with world.host("a") as near, world.host("b") as far:
        pair = await connect(world, near, far, reception=Reception(echo))
        sink = pair.sink
        await sink.until_records(1)
        for number in range(100):
            pair.peer.send([b"%d" % number])
        pair.peer.send([b"close"])
        pair.peer.close(linger=0.5)
        # The peer hangs up before the loop gets to read a single record.
        world.settle()
        await sink.until_closed()
        assert len(sink.records) == 102
        assert sink.records[-1] == [b"close"]
        assert sink.told[-1] == "closed"


async def test_a_refused_dial_is_closed_and_was_never_open(world: World, clock: MockClock) -> None:
    async with world.host("a") as near:
        sink = Recorder()
        connection = near.dial(world.refusing_endpoint(), sink)
        cause = await sink.until_closed(within=DIAL_SECONDS - 0.5)
        assert "refused" in cause
        assert sink.told == ["closed"]
        assert not connection.is_open


async def test_a_dial_without_an_answer_ends_at_its_deadline(world: World, clock: MockClock) -> None:
    async with world.host("a") as near:
        with world.mute_endpoint() as endpoint:
            sink = Recorder()
            started = trio.current_time()
            near.dial(endpoint, sink)
            assert await sink.until_closed() == "dial timed out"
            assert DIAL_SECONDS <= trio.current_time() - started < DIAL_SECONDS + 2
            assert sink.told == ["closed"]


async def test_a_dial_can_be_given_up(world: World, clock: MockClock) -> None:
    async with world.host("a") as near:
        with world.mute_endpoint() as endpoint:
            sink = Recorder()
            connection = near.dial(endpoint, sink)
            connection.close(linger=100.0)
            assert await sink.until_closed(within=DIAL_SECONDS - 0.5) == "closed here"


async def test_a_cut_is_observed_by_both_ends(world: World, clock: MockClock) -> None:
    async with world.host("a") as near, world.host("b") as far:
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        async with world.breakable(listener.endpoint) as (endpoint, cut):
            sink = Recorder()
            connection = near.dial(endpoint, sink)
            await sink.until_opened()
            connection.send([b"hello"])
            await sink.until_records(1)
            cut(connection)
            assert await sink.until_closed() == "disconnected"
            assert await reception.sinks[0].until_closed() == "disconnected"


async def test_a_sink_that_fails_costs_its_connection_only(
    world: World, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_on_bad(connection: Connection, frames: list[bytes]) -> None:
        if frames == [b"bad"]:
            raise ZeroDivisionError("the owner's own fault")
        connection.send(frames)

    async with world.host("a") as near, world.host("b") as far:
        reception = Reception(fail_on_bad)
        listener = await far.listen(world.endpoint(), reception.accept)
        good, bad = Recorder(), Recorder()
        for sink in (good, bad):
            connection = near.dial(listener.endpoint, sink)
            await sink.until_opened()
            connection.send([b"hello"])
            await sink.until_records(1)
        assert bad.connection is not None
        bad.connection.send([b"bad"])
        await bad.until_closed()
        assert await reception.sinks[1].until_closed() == "its owner failed"
        (entry,) = caplog.records
        assert entry.exc_info is not None
        assert entry.exc_info[0] is ZeroDivisionError
        assert good.connection is not None
        good.connection.send([b"more"])
        await good.until_records(2)
        assert good.cause is None


@pytest.mark.parametrize("where", ["accept", "opened", "closed"])
async def test_a_sink_that_fails_at_the_edges_costs_its_connection_only(
    world: World, clock: MockClock, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    class Fragile(Recorder):
        def opened(self, connection: Connection) -> None:
            super().opened(connection)
            if where == "opened":
                raise ZeroDivisionError

        def closed(self, connection: Connection, cause: str) -> None:
            super().closed(connection, cause)
            if where == "closed":
                raise ZeroDivisionError

    fragile = Fragile()

    def accept(connection: Connection) -> Recorder:
        if where == "accept":
            raise ZeroDivisionError
        return fragile

    async with world.host("a") as near, world.host("b") as far:
        fragile_listener = await far.listen(world.endpoint(), accept)
        listener = await far.listen(world.endpoint(), Reception(echo).accept)
        good, bad = Recorder(), Recorder()
        near.dial(listener.endpoint, good)
        victim = near.dial(fragile_listener.endpoint, bad)
        await good.until_opened()
        await bad.until_opened()
        victim.send([b"hello"])
        if where == "closed":
            await fragile.until_opened()
            victim.close()
            await fragile.until_closed()
        await bad.until_closed()
        assert good.connection is not None
        good.connection.send([b"hello"])
        await good.until_records(1)
        await eventually(lambda: bool(caplog.records))
        assert all(entry.exc_info and entry.exc_info[0] is ZeroDivisionError for entry in caplog.records)


async def test_closing_a_listener_closes_its_connections_before_it_returns(world: World, clock: MockClock) -> None:
    async with world.host("a") as near, world.host("b") as far:
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        sinks = [Recorder() for _ in range(3)]
        for sink in sinks:
            connection = near.dial(listener.endpoint, sink)
            await sink.until_opened()
            connection.send([b"hello"])
            await sink.until_records(1)
        await listener.aclose()
        assert [sink.cause for sink in reception.sinks] == ["closed here"] * 3
        assert far.statistics().listeners == 0
        for sink in sinks:
            assert await sink.until_closed() == "disconnected"
        await listener.aclose()
        # The endpoint is free again at once.
        again = await far.listen(listener.endpoint, reception.accept)
        assert again.endpoint == listener.endpoint


async def test_closing_a_listener_waits_for_those_that_linger(world: World, clock: MockClock) -> None:
    async with world.host("a") as near, world.host("b") as far:
        pair = await connect(world, near, far)
        pair.peer.post([b"close"])
        pair.peer.close(linger=2.0)
        await pair.listener.aclose()
        assert pair.peer_sink.cause == "closed here"
        await pair.sink.until_closed()
        assert pair.sink.records == [[b"close"]]


async def test_leaving_the_transport_closes_everything(world: World, clock: MockClock) -> None:
    async with world.host("b") as far:
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        sinks = [Recorder() for _ in range(3)]
        async with world.host("a") as near:
            for sink in sinks:
                connection = near.dial(listener.endpoint, sink)
                await sink.until_opened()
                connection.send([b"hello"])
                await sink.until_records(1)
        assert [sink.cause for sink in sinks] == ["closed here"] * 3
        for accepted in reception.sinks:
            assert await accepted.until_closed() == "disconnected"
        with pytest.raises(RuntimeError, match="not running"):
            near.dial(listener.endpoint, Recorder())


async def test_an_error_of_the_body_comes_out_as_it_is(world: World, clock: MockClock) -> None:
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012 - the error leaves through the transport
        async with world.host("a") as near:
            listener = await near.listen(world.endpoint(), Reception().accept)
            near.dial(listener.endpoint, Recorder())
            raise KeyError("mine")


async def test_a_cancelled_body_still_leaves_nothing(world: World, clock: MockClock) -> None:
    sink = Recorder()
    reception = Reception(echo)
    with trio.CancelScope() as scope:
        async with world.host("a") as near:
            listener = await near.listen(world.endpoint(), reception.accept)
            connection = near.dial(listener.endpoint, sink)
            await sink.until_opened()
            connection.send([b"hello"])
            await sink.until_records(1)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert sink.cause == "closed here"
    assert reception.sinks[0].cause is not None
