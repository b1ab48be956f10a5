"""Publishers: their beacons and their events, as a raw subscriber reads them (LV §7)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.contract.fanout.world import CHANNEL, Placed, World
from tests.puppet import until
from zlinkpy.telemetry import catalogue
from zlinkpy.wire import BEACON_FRAMES, BEACON_TOPIC, FanoutEvent, decode_fanout

RESERVED = BEACON_TOPIC.decode()
NEIGHBOURS = ("\x01ZLF", "\x01ZLF1\0", "\x01ZLF2")


class Reader:
    """A SUB socket of a test: every record with the time at which it came."""

    def __init__(self) -> None:
        self.records: list[tuple[float, list[bytes]]] = []
        self.opened_at: float | None = None

    def opened(self, subscription: Any, /) -> None:
        self.opened_at = trio.current_time()

    def received(self, subscription: Any, frames: list[bytes], /) -> None:
        self.records.append((trio.current_time(), frames))

    def closed(self, subscription: Any, cause: str, /) -> None:
        pass

    @property
    def beacons(self) -> list[float]:
        return [at for at, frames in self.records if frames[0] == BEACON_TOPIC]

    @property
    def events(self) -> list[FanoutEvent]:
        return [event for _, frames in self.records if isinstance(event := decode_fanout(frames), FanoutEvent)]


async def reading(world: World, endpoint: str, *topics: bytes) -> Reader:
    reader = Reader()
    world.wire.subscribe(endpoint, reader, topics or (b"",))
    await until(lambda: reader.opened_at is not None)
    return reader


@pytest.mark.contract("LV-83", "LV-02")
async def test_beacons_leave_at_the_bind_and_every_five_seconds_after_it(autojump_clock: object, world: World) -> None:
    p = await world.publisher()
    bound = trio.current_time()
    publisher = p.rt.fanout._publishers[CHANNEL]
    assert publisher._socket is not None
    # Before anybody can be connected: at the instant B.
    assert publisher._socket.published == 1
    reader = await reading(world, p.rt.publisher_endpoint(CHANNEL))
    await trio.sleep_until(bound + 16)
    assert [round(at - bound, 3) for at in reader.beacons] == [5, 10, 15]
    assert publisher._socket.published == 4


@pytest.mark.contract("LV-84", "LV-02")
async def test_a_busy_publisher_sends_its_beacons_at_the_same_times(autojump_clock: object, world: World) -> None:
    p = await world.publisher()
    bound = trio.current_time()
    reader = await reading(world, p.rt.publisher_endpoint(CHANNEL))
    while trio.current_time() < bound + 16:
        for n in range(10):
            await p.rt.publish(CHANNEL, "order", Placed(n))
        await trio.sleep(0.01)
    assert [round(at - bound, 3) for at in reader.beacons] == [5, 10, 15]
    assert len(reader.events) > 15_000


@pytest.mark.contract("LV-85", "LV-78")
async def test_a_beacon_is_exactly_its_two_frames_and_all_that_an_idle_publisher_sends(
    fast_clock: object, sockets: World
) -> None:
    p = await sockets.publisher()
    reader = await reading(sockets, p.rt.publisher_endpoint(CHANNEL))
    await until(lambda: len(reader.records) >= 2, 15)
    assert {tuple(frames) for _, frames in reader.records} == {BEACON_FRAMES}
    assert (bytes.fromhex("01 5A 4C 46 31"), bytes.fromhex("5A 46 01 01")) == BEACON_FRAMES


@pytest.mark.contract("LV-86")
async def test_the_framework_s_topic_cannot_be_published_to(autojump_clock: object, world: World) -> None:
    p = await world.publisher()
    reader = await reading(world, p.rt.publisher_endpoint(CHANNEL))
    await p.rt.publish(CHANNEL, "order", Placed(0))
    await trio.sleep(0.1)
    before = len(reader.records)
    with pytest.raises(ValueError, match="reserved for the framework"):
        await p.rt.publish(CHANNEL, RESERVED, Placed(1))
    with pytest.raises(ValueError, match="reserved for the framework"):
        await p.rt.publish(CHANNEL, RESERVED, Placed(1), metadata={"a": "b"})
    await trio.sleep(1)
    assert len(reader.records) == before
    assert p.rt.fanout_status(CHANNEL).publisher.published == 1


@pytest.mark.contract("LV-87")
async def test_a_packet_named_like_the_framework_s_topic_gives_no_topic(autojump_clock: object, world: World) -> None:
    @zl.message(RESERVED)
    class Sly:
        pass

    p = await world.publisher()
    await p.rt.publish(CHANNEL, "sly", Sly())
    with pytest.raises(ValueError, match="reserved for the framework"):
        await p.rt.publish(CHANNEL, None, Sly())

    feed = zl.Host().fanout_subscriber(CHANNEL, publishers=["tcp://127.0.0.1:1"])
    with pytest.raises(zl.ConfigurationError, match="reserved for the framework"):
        feed.on_event(RESERVED)

    def sly(message: Sly) -> None: ...

    sly.__annotations__["message"] = Sly
    host = zl.Host(transport=lambda entropy: world.network.transport("s"))
    host.fanout_subscriber(CHANNEL, publishers=["tcp://127.0.0.1:1"]).on_event()(sly)
    with pytest.raises(zl.ConfigurationError, match="reserved for the framework"):
        async with host.run():
            pass


@pytest.mark.contract("LV-88")
async def test_topics_that_only_begin_like_the_framework_s_are_ordinary(autojump_clock: object, world: World) -> None:
    p = await world.publisher()
    s = await world.subscriber(p.rt.publisher_endpoint(CHANNEL), topics=NEIGHBOURS)
    await s.ready(p.rt.publisher_endpoint(CHANNEL))
    for n, topic in enumerate(NEIGHBOURS):
        await p.rt.publish(CHANNEL, topic, Placed(n))
    await trio.sleep(1)
    assert [(n, context.topic) for n, context in s.got] == list(enumerate(NEIGHBOURS))


async def test_an_event_carries_what_its_handler_may_know(autojump_clock: object, world: World) -> None:
    p = await world.publisher()
    s = await world.subscriber(p.rt.publisher_endpoint(CHANNEL), topics=("order", "Placed"))
    await s.ready(p.rt.publisher_endpoint(CHANNEL))
    await p.rt.publish(CHANNEL, "order", Placed(1))
    await p.rt.publish(CHANNEL, None, Placed(2), metadata={"trace": "7"})
    await trio.sleep(1)
    (one, first), (two, second) = s.got
    assert (one, two) == (1, 2)
    assert (first.topic, first.channel_name, first.mesh_name, first.source_rid) == ("order", CHANNEL, None, "p")
    assert dict(first.metadata) == {}
    assert (second.topic, dict(second.metadata)) == ("Placed", {"trace": "7"})
    assert p.telemetry.total(catalogue.FANOUT_PUBLISHED) == 2
    assert s.telemetry.total(catalogue.FANOUT_RECEIVED) == 2


@pytest.mark.parametrize(
    ("topic", "message", "error", "said"),
    [
        ("", Placed(1), ValueError, "topic"),
        ("x" * 256, Placed(1), ValueError, "topic"),
        ("\ud800", Placed(1), ValueError, "topic"),
        ("order", object(), TypeError, "message"),
    ],
)
async def test_what_cannot_be_published_is_an_argument_error(
    autojump_clock: object, world: World, topic: str, message: object, error: type[Exception], said: str
) -> None:
    p = await world.publisher()
    with pytest.raises(error, match=said):
        await p.rt.publish(CHANNEL, topic, message)
    with pytest.raises(zl.NotFoundError, match="not published by this process"):
        await p.rt.publish("other", "order", Placed(1))


async def test_nothing_is_published_after_the_end(autojump_clock: object, world: World) -> None:
    p = await world.publisher()
    await p.stop()
    with pytest.raises(zl.ShuttingDownError):
        await p.rt.publish(CHANNEL, "order", Placed(1))
