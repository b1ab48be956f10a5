"""Published records: who gets them, who loses them, and how a publisher and its subscribers part."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder, World, audience, eventually, until_heard
from zlinkpy.errors import ConfigurationError
from zlinkpy.transport import ConnectionClosed, Publisher, Subscription
from zlinkpy.transport.interface import DIAL_SECONDS, LEFTOVERS_SECONDS
from zlinkpy.transport.topics import TOPIC_BYTES

EVERYTHING = [b""]

# Large enough that a few dozen fill the kernel's buffers.
BULK = b"x" * 400_000


@pytest.fixture(params=["zmq", "memory"])
def kind(request: pytest.FixtureRequest) -> str:
    """Nothing is dialled here."""
    return str(request.param)


def numbers(sink: Recorder) -> list[int]:
    return [int(frames[1]) for frames in sink.records]


def only(topic: bytes, records: list[list[bytes]]) -> list[list[bytes]]:
    return [frames for frames in records if frames[0].startswith(topic)]


# -- who gets what


async def test_a_record_arrives_whole_with_its_topic_first(world: World, clock: MockClock) -> None:
    record = [b"topic", b"", b"x" * 300_000, bytes(range(256))]
    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        (sink,) = await audience(publisher, (near, [b"topic"]))
        publisher.publish(record)
        await sink.until_records(1)
        assert sink.records == [record]
        subscription: Any = sink.connection
        assert subscription.is_open
        assert subscription.endpoint == publisher.endpoint


async def test_every_subscriber_gets_its_topics_in_order(world: World, clock: MockClock) -> None:
    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        asked = [EVERYTHING, [b"a"], [b"b"], [b"ab", b"b"]]
        sinks = await audience(publisher, *((near, topics) for topics in asked))
        sent = [[topic, b"%d" % number] for number in range(50) for topic in (b"a", b"ab", b"b", b"c")]
        for record in sent:
            publisher.publish(record)
        for sink, topics in zip(sinks, asked, strict=True):
            expected = [record for record in sent if record[0].startswith(tuple(topics))]
            await sink.until_records(len(expected))
            assert sink.records == expected


async def test_many_subscribers_get_the_same(world: World, clock: MockClock) -> None:
    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        sinks = await audience(publisher, *[(near, EVERYTHING)] * 40)
        assert publisher.subscribers == 40
        for number in range(25):
            publisher.publish([b"n", b"%d" % number])
        for sink in sinks:
            await sink.until_records(25)
            assert numbers(sink) == list(range(25))


async def test_a_subscriber_of_many_publishers_keeps_them_apart(world: World, clock: MockClock) -> None:
    async with world.host("s") as near, world.host("p") as far:
        publishers = [await far.publish(world.endpoint()) for _ in range(10)]
        sinks = [(await audience(publisher, (near, EVERYTHING)))[0] for publisher in publishers]
        assert len({sink.connection.id for sink in sinks if sink.connection}) == 10
        assert near.statistics().subscriptions == 10
        assert near.statistics().dialled == 0
        assert far.statistics().publishers == 10
        for number, publisher in enumerate(publishers):
            publisher.publish([b"from", b"%d" % number])
        for number, sink in enumerate(sinks):
            await sink.until_records(1)
            assert numbers(sink) == [number]
        await publishers[3].aclose()
        assert await sinks[3].until_closed() == "disconnected"
        for number, publisher in enumerate(publishers):
            if number != 3:
                publisher.publish([b"again", b"%d" % number])
                await sinks[number].until_records(2)
                assert sinks[number].cause is None


async def test_nobody_there_is_nobody_to_wait_for(world: World, clock: MockClock) -> None:
    async with world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        for _ in range(5000):
            publisher.publish([b"topic", b"x"])
        assert publisher.published == 5000
        assert publisher.subscribers == 0


async def test_what_was_published_before_a_subscription_does_not_come(world: World, clock: MockClock) -> None:
    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        publisher.publish([b"early", b"1"])
        (sink,) = await audience(publisher, (near, EVERYTHING))
        publisher.publish([b"late", b"2"])
        await sink.until_records(1)
        assert numbers(sink) == [2]


# -- who loses what


async def publish_past_a_stopped_reader(publisher: Publisher, reader: Recorder, count: int) -> None:
    """Publish bulk records and give `reader` the time to keep up with each."""
    for number in range(count):
        # A PUB socket looks only once a millisecond at what was read, and counts the rest against a queue of ten.
        await trio.sleep(0.02)
        publisher.publish([b"bulk", b"%d" % number, BULK])
        await reader.until_records(number + 1)


@pytest.mark.contract("LV-117")
async def test_a_subscriber_that_stops_reading_loses_the_newest_alone(world: World, clock: MockClock) -> None:
    async with world.host("s", queue=10) as near, world.host("p", queue=10) as far:
        publisher = await far.publish(world.endpoint())
        stopped, reading = await audience(publisher, (near, EVERYTHING), (near, EVERYTHING))
        assert stopped.connection is not None
        stopped.connection.pause()
        await publish_past_a_stopped_reader(publisher, reading, 120)
        assert numbers(reading) == list(range(120))
        assert stopped.records == []
        stopped.connection.resume()
        # What it had room for comes whole and in order; the rest was dropped.
        await eventually(lambda: len(stopped.records) >= 10)
        await trio.sleep(1.0)
        kept = numbers(stopped)
        assert 10 <= len(kept) < 120
        assert kept[:10] == list(range(10))
        assert kept == sorted(set(kept))
        assert all(len(frames) == 3 and len(frames[2]) == len(BULK) for frames in stopped.records)
        # And it is a subscriber as before.
        publisher.publish([b"bulk", b"1000"])
        await stopped.until(lambda: numbers(stopped)[-1] == 1000)
        assert stopped.cause is None


async def test_a_pause_from_within_the_sink_ends_the_turn(world: World, clock: MockClock) -> None:
    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        (sink,) = await audience(publisher, (near, EVERYTHING))

        def pause_every_third(subscription: Any, frames: list[bytes]) -> None:
            if len(sink.records) % 3 == 0:
                subscription.pause()

        sink._on_record = pause_every_third
        for number in range(9):
            publisher.publish([b"n", b"%d" % number])
        for reached in (3, 6, 9):
            world.settle()
            await sink.until_records(reached)
            await trio.sleep(0.05)
            assert len(sink.records) == reached
            assert sink.connection is not None
            sink.connection.resume()
        assert numbers(sink) == list(range(9))


# -- what is no record, no topic and no endpoint


async def test_what_is_no_record_is_refused_whole(world: World, clock: MockClock) -> None:
    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        (sink,) = await audience(publisher, (near, EVERYTHING))
        published = publisher.published
        with pytest.raises(ValueError, match="at least one frame"):
            publisher.publish([])
        wrong: Any = [b"topic", "text"]
        with pytest.raises(TypeError, match="not str"):
            publisher.publish(wrong)
        assert publisher.published == published
        publisher.publish([b"topic", b"1"])
        await sink.until_records(1)
        assert sink.records == [[b"topic", b"1"]]


@pytest.mark.parametrize(
    ("topics", "problem"),
    [([], "at least one topic"), ([b"x" * (TOPIC_BYTES + 1)], "at most"), (["text"], "not str")],
)
async def test_what_is_no_topic_is_refused_before_any_socket(
    world: World, clock: MockClock, topics: Any, problem: str
) -> None:
    async with world.host("s") as near:
        with pytest.raises((ValueError, TypeError), match=problem):
            near.subscribe("tcp://127.0.0.1:5501", Recorder(), topics)
        assert near.statistics().sockets == 0


async def test_the_longest_topic_is_a_topic(world: World, clock: MockClock) -> None:
    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        topic = b"x" * TOPIC_BYTES
        (sink,) = await audience(publisher, (near, [topic]))
        publisher.publish([topic, b"1"])
        await sink.until_records(1)


async def test_publishers_are_bound_like_listeners(world: World, clock: MockClock) -> None:
    async with world.host("p") as host, world.host("q") as other:
        publisher = await host.publish("tcp://127.0.0.1:0")
        assert re.fullmatch(r"tcp://127\.0\.0\.1:[1-9]\d*", publisher.endpoint)
        for bind in (other.publish, lambda endpoint: other.listen(endpoint, Reception().accept)):
            with pytest.raises(ConfigurationError, match=re.escape(publisher.endpoint)) as caught:
                await bind(publisher.endpoint)
            assert "taken" in caught.value.message
        for malformed, problem in (("udp://127.0.0.1:1", "neither tcp nor ipc"), ("tcp://127.0.0.1:99999", "a port")):
            with pytest.raises(ConfigurationError, match=problem):
                await other.publish(malformed)
            with pytest.raises(ConfigurationError, match=problem):
                other.subscribe(malformed, Recorder(), EVERYTHING)
        with pytest.raises(ConfigurationError, match="cannot be dialled"):
            other.subscribe("tcp://127.0.0.1:0", Recorder(), EVERYTHING)
        assert other.statistics().sockets == 0
        await publisher.aclose()
        # The endpoint is free again at once.
        assert (await other.publish(publisher.endpoint)).endpoint == publisher.endpoint


async def test_a_publisher_and_a_listener_do_not_understand_each_other(world: World, clock: MockClock) -> None:
    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        reception = Reception()
        listener = await far.listen(world.endpoint(), reception.accept)
        subscriber, dialler = Recorder(), Recorder()
        near.subscribe(listener.endpoint, subscriber, EVERYTHING)
        near.dial(publisher.endpoint, dialler)
        for sink in (subscriber, dialler):
            # Whoever notices first hangs up on the other.
            cause = await sink.until_closed(within=DIAL_SECONDS - 1)
            assert re.search("of another kind: .* subscribers only|hung up during the transport handshake", cause)
            assert sink.told == ["closed"]
        assert not reception.sinks
        await eventually(lambda: publisher.subscribers == 0)


# -- how they part


async def test_a_refused_subscription_is_closed_and_was_never_open(world: World, clock: MockClock) -> None:
    async with world.host("s") as near:
        sink = Recorder()
        subscription = near.subscribe(world.refusing_endpoint(), sink, EVERYTHING)
        assert "refused" in await sink.until_closed(within=DIAL_SECONDS - 0.5)
        assert sink.told == ["closed"]
        assert not subscription.is_open


async def test_a_subscription_without_an_answer_ends_at_its_deadline(world: World, clock: MockClock) -> None:
    async with world.host("s") as near:
        with world.mute_endpoint() as endpoint:
            sink, given_up = Recorder(), Recorder()
            started = trio.current_time()
            near.subscribe(endpoint, sink, EVERYTHING)
            near.subscribe(endpoint, given_up, EVERYTHING).close()
            assert await given_up.until_closed(within=DIAL_SECONDS - 1) == "closed here"
            assert await sink.until_closed() == "dial timed out"
            assert DIAL_SECONDS <= trio.current_time() - started < DIAL_SECONDS + 2
            assert sink.told == given_up.told == ["closed"]


async def test_a_closed_subscription_is_observed_once_by_both(world: World, clock: MockClock) -> None:
    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        leaver, stayer = await audience(publisher, (near, EVERYTHING), (near, EVERYTHING))
        subscription: Any = leaver.connection
        subscription.close()
        assert not subscription.is_open
        assert leaver.cause is None
        publisher.publish([b"n", b"1"])
        assert await leaver.until_closed() == "closed here"
        subscription.close()
        await eventually(lambda: publisher.subscribers == 1)
        assert leaver.told == ["opened", "closed"]
        publisher.publish([b"n", b"2"])
        await stayer.until_records(2)
        assert near.statistics().subscriptions == 1


async def test_a_publisher_that_lingers_is_heard_to_its_end(world: World, clock: MockClock) -> None:
    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        (sink,) = await audience(publisher, (near, EVERYTHING))
        # More than the kernel's buffers hold.
        for number in range(100):
            publisher.publish([b"n", b"%d" % number, BULK])
        await publisher.aclose(linger=10.0)
        assert far.statistics().publishers == 0
        with pytest.raises(ConnectionClosed):
            publisher.publish([b"n", b"late"])
        assert await sink.until_closed() == "disconnected"
        assert numbers(sink) == list(range(100))
        await publisher.aclose()


async def test_a_publisher_does_not_wait_for_ever_for_who_does_not_read(world: World, clock: MockClock) -> None:
    async with world.host("s", queue=10) as near, world.host("p", queue=10) as far:
        publisher = await far.publish(world.endpoint())
        stopped, reading = await audience(publisher, (near, EVERYTHING), (near, EVERYTHING))
        assert stopped.connection is not None
        stopped.connection.pause()
        await publish_past_a_stopped_reader(publisher, reading, 60)
        started = trio.current_time()
        await publisher.aclose(linger=0.5)
        assert trio.current_time() - started < 8.0
        assert await reading.until_closed() == "disconnected"
        stopped.connection.resume()
        assert await stopped.until_closed() == "disconnected"


@pytest.mark.parametrize("resumes", [True, False])
async def test_leftovers_behind_a_pause_wait_for_a_while(world: World, clock: MockClock, resumes: bool) -> None:
    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        (sink,) = await audience(publisher, (near, EVERYTHING))
        assert sink.connection is not None
        sink.connection.pause()
        for number in range(100):
            publisher.publish([b"n", b"%d" % number])
        await publisher.aclose(linger=1.0)
        await eventually(lambda: not sink.connection or not sink.connection.is_open)
        await trio.sleep(1.0)
        assert sink.told == ["opened"]
        if resumes:
            sink.connection.resume()
        assert await sink.until_closed(within=LEFTOVERS_SECONDS + 2) == "disconnected"
        assert numbers(sink) == (list(range(100)) if resumes else [])


async def test_a_cut_is_observed_by_both(world: World, clock: MockClock) -> None:
    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        (other,) = await audience(publisher, (near, EVERYTHING))
        async with world.breakable(publisher.endpoint) as (endpoint, cut):
            sink = Recorder()
            near.subscribe(endpoint, sink, EVERYTHING)
            await eventually(lambda: publisher.subscribers == 2)
            cut(await sink.until_opened())
            assert await sink.until_closed() == "disconnected"
            await eventually(lambda: publisher.subscribers == 1)
        publisher.publish([b"n", b"1"])
        await other.until_records(1)


@pytest.mark.parametrize("where", ["opened", "received", "closed"])
async def test_a_sink_that_fails_costs_its_subscription_only(
    world: World, clock: MockClock, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    class Fragile(Recorder):
        def opened(self, connection: Any) -> None:
            super().opened(connection)
            if where == "opened":
                raise ZeroDivisionError

        def received(self, connection: Any, frames: list[bytes]) -> None:
            super().received(connection, frames)
            if where == "received":
                raise ZeroDivisionError

        def closed(self, connection: Any, cause: str) -> None:
            super().closed(connection, cause)
            if where == "closed":
                raise ZeroDivisionError

    async with world.host("s") as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        (good,) = await audience(publisher, (near, EVERYTHING))
        bad = Fragile()
        subscription: Subscription = near.subscribe(publisher.endpoint, bad, EVERYTHING)
        await bad.until(lambda: bool(bad.told))
        if where == "received":
            await until_heard(publisher, bad, [b"n", b"1"])
        if where == "closed":
            subscription.close()
        assert await bad.until_closed() == ("closed here" if where == "closed" else "its owner failed")
        assert [entry.exc_info[0] for entry in caplog.records if entry.exc_info] == [ZeroDivisionError]
        seen = len(good.records)
        publisher.publish([b"n", b"2"])
        await good.until_records(seen + 1)
        assert good.cause is None


async def test_leaving_a_transport_ends_what_it_published_and_subscribed(world: World, clock: MockClock) -> None:
    async with world.host("s") as near:
        async with world.host("p") as far:
            publisher = await far.publish(world.endpoint())
            sinks = await audience(publisher, (near, EVERYTHING), (far, EVERYTHING))
        for sink in sinks:
            assert await sink.until_closed() in ("disconnected", "closed here")
        with pytest.raises(ConnectionClosed):
            publisher.publish([b"n", b"1"])
        with pytest.raises(RuntimeError, match="not running"):
            await far.publish(world.endpoint())
        with pytest.raises(RuntimeError, match="not running"):
            far.subscribe(publisher.endpoint, Recorder(), EVERYTHING)


# -- frames too large


async def test_a_subscription_has_a_limit_of_its_own(world: World, clock: MockClock) -> None:
    async with world.host("s", max_message_bytes=1000) as near, world.host("p") as far:
        publisher = await far.publish(world.endpoint())
        narrow = (await audience(publisher, (near, EVERYTHING)))[0]
        wide = Recorder()
        near.subscribe(publisher.endpoint, wide, EVERYTHING, max_message_bytes=100_000)
        await until_heard(publisher, wide, [b"n", b"0"])
        publisher.publish([b"n", b"1", b"x" * 1000])
        publisher.publish([b"n", b"2", b"x" * 1001])
        publisher.publish([b"n", b"3"])
        assert await narrow.until_closed() == "disconnected"
        await wide.until(lambda: numbers(wide)[-1] == 3)
        assert numbers(wide)[-3:] == [1, 2, 3]
        assert wide.cause is None
        assert set(numbers(narrow)) <= {0, 1}


@pytest.mark.parametrize("limited", ["listener", "dialler"])
async def test_a_limit_of_one_socket_ends_one_connection(world: World, clock: MockClock, limited: str) -> None:
    async with world.host("a") as near, world.host("b", max_message_bytes=1 << 20) as far:
        reception = Reception()
        own: dict[str, Callable[[], dict[str, int]]] = {limited: lambda: {"max_message_bytes": 1000}}
        listener = await far.listen(world.endpoint(), reception.accept, **own.get("listener", dict)())
        sinks = [Recorder(), Recorder()]
        for number, sink in enumerate(sinks, start=1):
            connection = near.dial(listener.endpoint, sink, **(own.get("dialler", dict)() if number == 1 else {}))
            await sink.until_opened()
            connection.send([b"hello"])
            await reception.until(number)
        ends = (sinks[0].connection, reception.sinks[0].connection)
        sender = ends[0] if limited == "listener" else ends[1]
        assert sender is not None
        sender.send([b"fine", b"x" * 1000])
        receiver = reception.sinks[0] if limited == "listener" else sinks[0]
        await receiver.until(lambda: [b"fine", b"x" * 1000] in receiver.records)
        sender.send([b"large", b"x" * 1001])
        assert await sinks[0].until_closed() == "disconnected"
        assert await reception.sinks[0].until_closed() == "disconnected"
        assert [frames[0] for frames in receiver.records][-1] == b"fine"
        assert sinks[1].connection is not None
        sinks[1].connection.send([b"unharmed"])
        await reception.sinks[1].until_records(2)
        assert reception.sinks[1].cause is None
