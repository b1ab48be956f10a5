"""Full send queues, and receivers that want no more for a while."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from attrs import define
from trio.testing import MockClock

from tests.contract.transport.worlds import PATIENCE, Reception, Recorder, World, connect, eventually
from zlinkpy.transport import Connection, ConnectionClosed
from zlinkpy.transport.interface import FIRST_RECORD_SECONDS, LEFTOVERS_SECONDS, POST_LIMIT

# Large enough that a handful fills the kernel's buffers, so that a full queue is reached soon.
BULK = b"x" * 400_000


@define
class Link:
    """One open connection, seen from a sender and from a receiver that can be stopped."""

    sender: Connection
    sender_sink: Recorder
    receiver: Recorder
    gate: Any

    async def refuse(self) -> int:
        """Stop the receiver and send until nothing moves any more; returns how many records were taken."""
        self.gate.pause()
        taken = 0
        refusals = 0
        while refusals < 5:
            if self.sender.send([b"%d" % taken, BULK]):
                taken += 1
                refusals = 0
                assert taken < 2000
            else:
                # The kernel's buffers may still be filling.
                refusals += 1
                await trio.sleep(0.2)
        return taken


@pytest.fixture(params=["dialled sends", "accepted sends"])
def direction(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def link_of(stack: AsyncExitStack, world: World, direction: str, queue: int = 20) -> Link:
    # A hang is a failure of the test, not of the run.
    stack.enter_context(trio.fail_after(PATIENCE))
    near = await stack.enter_async_context(world.host("a", queue=queue))
    far = await stack.enter_async_context(world.host("b", queue=queue))
    pair = await connect(world, near, far)
    pair.peer_sink.records.clear()
    if direction == "dialled sends":
        return Link(pair.connection, pair.sink, pair.peer_sink, pair.listener)
    return Link(pair.peer, pair.peer_sink, pair.sink, pair.connection)


async def test_a_refused_record_can_be_sent_after_the_wait(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction)
        taken = await link.refuse()
        sent = 0
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send_on() -> None:
                nonlocal sent
                for number in range(taken, taken + 30):
                    while not link.sender.send([b"%d" % number, BULK]):
                        await link.sender.wait_writable()
                    sent += 1

            await trio.sleep(0.3)
            assert sent < 30
            assert link.receiver.records == []
            link.gate.resume()
        await link.receiver.until_records(taken + 30)
        assert [frames[0] for frames in link.receiver.records] == [b"%d" % number for number in range(taken + 30)]


async def test_nobody_waits_when_there_is_room(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction)
        with trio.fail_after(1.0):
            await link.sender.wait_writable()
        assert link.sender.send([b"room"])


async def test_every_waiting_sender_gets_its_turn(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction)
        taken = await link.refuse()
        done: set[int] = set()

        async def send_one(number: int) -> None:
            while not link.sender.send([b"waiter", b"%d" % number]):
                await link.sender.wait_writable()
            done.add(number)

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(send_one, number)
            await trio.sleep(0.3)
            assert not done
            link.gate.resume()
            with trio.fail_after(60):
                await link.receiver.until_records(taken + 60)
        assert done == set(range(60))
        assert {int(frames[1]) for frames in link.receiver.records[taken:]} == done


async def test_a_sender_that_gives_up_strands_nobody(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction)
        taken = await link.refuse()
        idle = 0

        async def wait_and_do_nothing() -> None:
            nonlocal idle
            await link.sender.wait_writable()
            idle += 1

        async def wait_and_send() -> None:
            while not link.sender.send([b"last"]):
                await link.sender.wait_writable()

        async with trio.open_nursery() as nursery:
            with trio.move_on_after(0.01):
                await link.sender.wait_writable()
            for _ in range(5):
                nursery.start_soon(wait_and_do_nothing)
            nursery.start_soon(wait_and_send)
            link.gate.resume()
            await link.receiver.until_records(taken + 1)
        assert link.receiver.records[-1] == [b"last"]
        assert idle == 5


async def test_waiting_ends_with_the_connection(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction)
        await link.refuse()
        waiting = trio.Event()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def wait() -> None:
                # A listening socket may ask a sender to try in vain; it has to come back for the answer.
                with pytest.raises(ConnectionClosed):  # noqa: PT012
                    while not link.sender.send([BULK]):
                        waiting.set()
                        await link.sender.wait_writable()

            await waiting.wait()
            link.sender.close()
        await link.sender_sink.until_closed()


async def test_posted_records_wait_behind_a_full_queue_in_order(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction)
        taken = await link.refuse()
        for number in range(50):
            link.sender.post([b"post", b"%d" % number])
        # Nothing overtakes what was posted.
        assert not link.sender.send([b"overtaking"])
        posted = sum(transport.statistics().posted for transport in world.transports)
        assert 0 < posted <= 50
        link.gate.resume()
        await link.receiver.until_records(taken + 50)
        expected = [[b"post", b"%d" % number] for number in range(50)]
        assert [frames for frames in link.receiver.records if frames[0] == b"post"] == expected
        assert link.receiver.records[-50:] == expected
        await eventually(lambda: not sum(transport.statistics().posted for transport in world.transports))
        assert link.sender.send([b"after"])


async def test_a_peer_that_lets_posts_pile_up_is_disconnected(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction)
        await link.refuse()
        for _ in range(POST_LIMIT):
            link.sender.post([b"post"])
        assert link.sender.is_open
        for _ in range(POST_LIMIT):
            link.sender.post([b"post"])
        assert not link.sender.is_open
        assert "does not read" in await link.sender_sink.until_closed()


async def test_a_lingering_close_flushes_what_was_posted(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction)
        taken = await link.refuse()
        link.sender.post([b"close"])
        link.sender.close(linger=3.0)
        link.gate.resume()
        await link.receiver.until_records(taken + 1)
        assert link.receiver.records[-1] == [b"close"]
        await link.sender_sink.until_closed()


async def test_a_close_is_not_held_up_by_a_peer_that_does_not_read(
    world: World, clock: MockClock, direction: str
) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction)
        await link.refuse()
        link.sender.close(linger=0.5)
        await link.sender_sink.until_closed(within=10.0)
        link.gate.resume()
        await link.receiver.until_closed()


async def test_a_paused_receiver_gets_nothing_and_loses_nothing(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction, queue=1000)
        link.gate.pause()
        for number in range(200):
            assert link.sender.send([b"%d" % number])
        world.settle()
        await trio.sleep(0.1)
        assert link.receiver.records == []
        link.gate.resume()
        await link.receiver.until_records(200)
        assert link.receiver.records == [[b"%d" % number] for number in range(200)]


async def test_a_pause_from_within_the_sink_ends_the_turn(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction, queue=1000)

        def pause_every_third(connection: Connection, frames: list[bytes]) -> None:
            if len(link.receiver.records) % 3 == 0:
                link.gate.pause()

        link.receiver._on_record = pause_every_third
        for number in range(9):
            assert link.sender.send([b"%d" % number])
        for reached in (3, 6, 9):
            world.settle()
            await link.receiver.until_records(reached)
            await trio.sleep(0.05)
            assert len(link.receiver.records) == reached
            link.gate.resume()


async def leave_words(link: Link) -> Connection:
    """Have 900 records arrive at a receiver that is stopped and their sender hang up; the receiver sees that."""
    receiving = link.receiver.connection
    assert receiving is not None
    for number in range(900):
        assert link.sender.send([b"%d" % number])
    link.sender.close(linger=1.0)
    await eventually(lambda: not receiving.is_open)
    return receiving


WORDS = [[b"%d" % number] for number in range(900)]


async def test_what_arrived_behind_a_pause_outlives_its_sender(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction, queue=1000)
        link.gate.pause()
        receiving = await leave_words(link)
        with pytest.raises(ConnectionClosed):
            receiving.send([b"anybody?"])
        with pytest.raises(ConnectionClosed):
            await receiving.wait_writable()
        # Longer than a dial, and than a linger, may take.
        await trio.sleep(LEFTOVERS_SECONDS / 2)
        assert link.receiver.records == []
        assert link.receiver.cause is None
        link.gate.resume()
        assert await link.receiver.until_closed(within=5.0) == "disconnected"
        assert link.receiver.records == WORDS


async def test_a_pause_while_leftovers_are_read_loses_nothing(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction, queue=1000)

        def pause_every_third_hundred(connection: Connection, frames: list[bytes]) -> None:
            if len(link.receiver.records) % 300 == 0:
                link.gate.pause()

        link.receiver._on_record = pause_every_third_hundred
        link.gate.pause()
        await leave_words(link)
        for reached in (300, 600, 900):
            link.gate.resume()
            await link.receiver.until_records(reached)
            await trio.sleep(0.2)
            assert len(link.receiver.records) == reached
        link.gate.resume()
        await link.receiver.until_closed(within=5.0)
        assert link.receiver.records == WORDS


@pytest.mark.slow
async def test_a_pause_that_stays_drops_leftovers_in_the_end(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction, queue=1000)
        link.gate.pause()
        await leave_words(link)
        seen = trio.current_time()
        assert await link.receiver.until_closed(within=LEFTOVERS_SECONDS + 2) == "disconnected"
        assert trio.current_time() - seen > LEFTOVERS_SECONDS - 1
        assert link.receiver.records == []
        link.gate.resume()


async def test_a_pause_after_the_time_of_leftovers_ends_them(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction, queue=1000)
        link.gate.pause()
        await leave_words(link)

        def read_slowly(connection: Connection, frames: list[bytes]) -> None:
            if len(link.receiver.records) == 1:
                # Whoever reads when their time is over reads on.
                clock.jump(LEFTOVERS_SECONDS)
            elif len(link.receiver.records) == 500:
                link.gate.pause()

        link.receiver._on_record = read_slowly
        link.gate.resume()
        await link.receiver.until_closed(within=LEFTOVERS_SECONDS + 3)
        assert link.receiver.records == WORDS[:500]


async def test_an_owner_that_closes_gets_no_leftovers(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction, queue=1000)
        link.gate.pause()
        receiving = await leave_words(link)
        receiving.close(linger=5.0)
        assert await link.receiver.until_closed(within=1.0) == "disconnected"
        link.gate.resume()
        await trio.sleep(0.1)
        assert link.receiver.records == []


async def test_a_paused_connection_that_left_nothing_is_closed_at_once(
    world: World, clock: MockClock, direction: str
) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction, queue=1000)
        link.gate.pause()
        link.sender.close()
        assert await link.receiver.until_closed(within=3.0) == "disconnected"


async def test_a_first_record_behind_a_paused_listener_outlives_its_sender(world: World, clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, "dialled sends", queue=1000)
        far = world.transports[1]
        reception = Reception()
        listener = await far.listen(world.endpoint(), reception.accept)
        listener.pause()
        sink = Recorder()
        stranger = world.transports[0].dial(listener.endpoint, sink)
        await sink.until_opened()
        stranger.send([b"hello"])
        stranger.send([b"close"])
        stranger.close(linger=0.5)
        await sink.until_closed()
        await trio.sleep(FIRST_RECORD_SECONDS + 2)
        assert not reception.sinks
        listener.resume()
        accepted = await reception.until(1)
        await accepted.until_closed(within=3.0)
        assert accepted.records == [[b"hello"], [b"close"]]
        assert link.sender.is_open


async def test_a_paused_connection_still_sends(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction)
        link.gate.pause()
        assert link.receiver.connection is not None
        assert link.receiver.connection.send([b"I am still here"])
        await link.sender_sink.until(lambda: [b"I am still here"] in link.sender_sink.records)


async def test_a_pause_of_an_accepted_connection_alone_has_no_effect(world: World, clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, "dialled sends")
        assert link.receiver.connection is not None
        link.receiver.connection.pause()
        link.sender.send([b"through"])
        await link.receiver.until_records(1)
        link.receiver.connection.resume()


async def test_cancelling_a_wait_leaves_no_trace(world: World, clock: MockClock, direction: str) -> None:
    async with AsyncExitStack() as stack:
        link = await link_of(stack, world, direction)
        taken = await link.refuse()
        with trio.move_on_after(0.5) as scope:
            while not link.sender.send([BULK]):
                await link.sender.wait_writable()
        assert scope.cancelled_caught
        with trio.CancelScope() as scope:
            scope.cancel()
            await link.sender.wait_writable()
        assert scope.cancelled_caught
        link.gate.resume()
        while not link.sender.send([b"last"]):
            await link.sender.wait_writable()
        await link.receiver.until_records(taken + 1)
