"""Subscribers: when a publisher is ready, and what ends one connection and no other (LV §7, §8, §14)."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import trio
import zmq

import zlinkpy as zl
from tests.contract.fanout.world import (
    CHANNEL,
    PACKED,
    TOPIC,
    Node,
    Placed,
    PuppetPublisher,
    World,
    event,
    heard,
    ready,
)
from tests.puppet import until
from zlinkpy.entropy import SeededEntropy
from zlinkpy.fanout import PublisherPhase
from zlinkpy.link import PEER_DEADLINE, FailureReason
from zlinkpy.location import LeaseDriver
from zlinkpy.telemetry import catalogue
from zlinkpy.transport import Subscription, ZmqTransport
from zlinkpy.wire import BEACON_TOPIC, RuntimeState

BEACON_LOOKALIKE = "\x01ZLF1\0"


def quiet(node: Node) -> bool:
    """Nothing of an application has happened."""
    status = node.rt.status
    return (
        node.got == []
        and node.telemetry.total(catalogue.FANOUT_RECEIVED) == 0
        and (status.permits_in_use, status.queued_jobs, status.running_jobs) == (0, 0, 0)
    )


# -- ready


@pytest.mark.contract("LV-91", "LV-95")
async def test_a_connected_publisher_that_says_nothing_is_connecting_and_stays_so(
    autojump_clock: object, world: World
) -> None:
    u, s = await heard(world)
    await trio.sleep(600)
    assert s.phase(u.endpoint) is PublisherPhase.CONNECTING
    assert (u.socket.subscribers, s.heard(u.endpoint).dials) == (1, 1)
    assert s.failure(u.endpoint) is None


@pytest.mark.contract("LO-169")
async def test_a_publisher_with_descriptor_lease_and_connection_is_not_ready_before_its_first_record(
    autojump_clock: object, world: World
) -> None:
    u = await world.puppet()
    await world.list(u)
    s = await world.subscriber(store=True)
    await u.subscribed()
    await trio.sleep(20)
    assert s.phase("u") is PublisherPhase.CONNECTING
    u.beacon()
    await s.ready("u", seconds=1)


@pytest.mark.contract("LV-92")
async def test_the_first_event_makes_it_ready_and_reaches_its_handler(autojump_clock: object, world: World) -> None:
    u, s = await heard(world)
    assert s.phase(u.endpoint) is PublisherPhase.CONNECTING
    u.event(7)
    await trio.sleep(0.1)
    assert s.is_ready(u.endpoint)
    assert s.numbers == [7]


@pytest.mark.contract("LV-93", "LV-101", "LV-102", "LV-103")
async def test_a_beacon_makes_it_ready_and_does_nothing_else(autojump_clock: object, world: World) -> None:
    u, s = await heard(world)
    u.beacon()
    await trio.sleep(0.1)
    assert s.is_ready(u.endpoint)
    assert quiet(s)
    # The one metric that moved is the connection's own; and a subscription has no way to answer.
    assert {name for name, _ in s.telemetry.series()} == {catalogue.PEER_CONNECTS}
    assert not any(hasattr(Subscription, way) for way in ("send", "post", "publish"))


@pytest.mark.contract("LV-104")
async def test_only_events_are_counted_as_received(autojump_clock: object, world: World) -> None:
    u, s = await heard(world)
    for n in range(100):
        u.beacon()
        if n % 40 == 0:
            u.event(n)
        await trio.sleep(0.1)
    assert s.numbers == [0, 40, 80]
    assert s.telemetry.total(catalogue.FANOUT_RECEIVED) == 3


@pytest.mark.parametrize("kind", ["beacons", "events"])
@pytest.mark.contract("LV-96")
async def test_either_kind_of_record_moves_the_deadline(autojump_clock: object, world: World, kind: str) -> None:
    u, s, _ = await ready(world)
    for _ in range(5):
        await trio.sleep(14.9)
        if kind == "beacons":
            u.beacon()
        else:
            u.event()
        at = trio.current_time()
        await trio.sleep(0.001)
        assert s.is_ready(u.endpoint)
        assert s.heard(u.endpoint).last_receive == pytest.approx(at, abs=0.001)
    last = s.heard(u.endpoint).last_receive
    await trio.sleep_until(last + 14.999)
    assert s.is_ready(u.endpoint)
    await trio.sleep_until(last + 15.001)
    assert not s.is_ready(u.endpoint)


@pytest.mark.contract("LV-97", "LV-98", "LV-147", "LV-148")
async def test_fifteen_seconds_of_silence_end_it_and_a_new_socket_starts_from_the_beginning(
    autojump_clock: object, world: World
) -> None:
    u, s, at = await ready(world)
    await trio.sleep_until(at + 14.999)
    assert s.is_ready(u.endpoint)
    await trio.sleep_until(at + 15.001)
    assert s.phase(u.endpoint) is PublisherPhase.RECONNECTING
    assert s.failure(u.endpoint).reason is FailureReason.PUBLISHER_SILENT
    await until(lambda: u.socket.subscribers == 0)
    await until(lambda: u.socket.subscribers == 1)
    assert s.heard(u.endpoint).dials == 2
    await trio.sleep(60)
    assert s.phase(u.endpoint) is PublisherPhase.RECONNECTING
    assert s.heard(u.endpoint).dials == 2
    u.event(3)
    await trio.sleep(0.1)
    assert s.is_ready(u.endpoint)
    assert s.numbers == [3]


@pytest.mark.contract("LV-90")
async def test_beacons_arrive_whatever_was_subscribed_to(autojump_clock: object, world: World) -> None:
    p = await world.publisher()
    endpoint = p.rt.publisher_endpoint(CHANNEL)
    s = await world.subscriber(endpoint, topics=["order"])
    await s.ready(endpoint)
    for _ in range(60):
        await trio.sleep(1)
        assert s.is_ready(endpoint)
    assert quiet(s)


@pytest.mark.contract("LV-89")
async def test_what_only_the_beacon_s_subscription_brings_is_a_sign_of_life_and_no_event(
    autojump_clock: object, world: World
) -> None:
    u, s = await heard(world)
    u.event(topic=BEACON_LOOKALIKE)
    await trio.sleep(0.1)
    assert s.is_ready(u.endpoint)
    assert quiet(s)


async def test_topics_are_compared_whole(autojump_clock: object, world: World) -> None:
    u, s, _ = await ready(world)
    for n, topic in enumerate(("order", "orders", "orde", "Order")):
        u.event(n, topic=topic)
    u.event(9, packet="Cancelled")
    await trio.sleep(0.1)
    assert s.numbers == [0]
    assert s.is_ready(u.endpoint)


async def test_a_raw_handler_takes_what_no_other_handler_takes(autojump_clock: object, world: World) -> None:
    u = await world.puppet()
    raw: list[tuple[str | None, zl.RawMessage]] = []
    host = zl.Host(transport=lambda entropy: world.network.transport("s"), watchdog=False)
    feed = host.fanout_subscriber(CHANNEL, publishers=[u.endpoint])
    typed: list[int] = []

    @feed.on_event(TOPIC)
    def placed(message: Placed) -> None:
        typed.append(message.n)

    @feed.on_raw_event()
    def anything(message: zl.RawMessage, context: zl.MessageContext) -> None:
        raw.append((context.topic, message))

    async with host.run():
        await u.subscribed()
        u.event(1)
        u.event(2, packet="Cancelled")
        u.event(3, topic="elsewhere")
        u.beacon()
        await trio.sleep(0.1)
    assert typed == [1]
    assert raw == [
        (TOPIC, zl.RawMessage("Cancelled", PACKED + b"\2")),
        ("elsewhere", zl.RawMessage("Placed", PACKED + b"\3")),
    ]


# -- sockets


@pytest.mark.contract("LV-80", "LV-81", "LV-78")
async def test_each_endpoint_has_a_socket_of_its_own(
    autojump_clock: object, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled = watch_dials(world, monkeypatch)
    puppets = [await world.living(rid) for rid in "abc"]
    s = await world.subscriber(*(u.endpoint for u in puppets))
    await s.ready(*(u.endpoint for u in puppets))
    assert sorted(dialled) == sorted(u.endpoint for u in puppets)
    # A reconnect is a socket of its own again, to the same endpoint.
    puppets[0].send(BEACON_TOPIC)
    await until(lambda: len(dialled) == 4)
    assert dialled[3] == puppets[0].endpoint


@pytest.mark.contract("LV-79", "LV-81", "LO-172")
async def test_each_published_publisher_has_a_socket_of_its_own_and_a_withdrawn_one_none(
    autojump_clock: object, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled = watch_dials(world, monkeypatch)
    puppets = [await world.living(rid) for rid in ("one", "two", "three")]
    for u in puppets:
        await world.list(u)
    s = await world.subscriber(store=True)
    await s.ready("one", "two", "three")
    assert sorted(dialled) == sorted(u.endpoint for u in puppets)
    await world.unlist(puppets[1])
    await until(lambda: puppets[1].socket.subscribers == 0)
    assert [u.socket.subscribers for u in puppets] == [1, 0, 1]
    assert s.heard("two") is None
    assert s.is_ready("one")
    assert s.is_ready("three")


@pytest.mark.contract("LV-79", "LV-80", "LV-81")
@pytest.mark.parametrize("discovers", [True, False], ids=["automatic", "manual"])
async def test_no_sub_socket_is_ever_connected_twice(
    fast_clock: object, sockets: World, monkeypatch: pytest.MonkeyPatch, discovers: bool
) -> None:
    connected: list[tuple[zmq.Socket[bytes], str]] = []
    connect = zmq.Socket.connect

    def watched(self: zmq.Socket[bytes], endpoint: str) -> Any:
        if self.type == zmq.SUB:
            connected.append((self, endpoint))
        return connect(self, endpoint)

    monkeypatch.setattr(zmq.Socket, "connect", watched)
    puppets = [await sockets.living(rid) for rid in "abc"]
    for u in puppets:
        await sockets.list(u)
    endpoints = [u.endpoint for u in puppets]
    where: dict[str, Any] = {"store": True, "lease_driver": LeaseDriver.LOOP} if discovers else {}
    s = await sockets.subscriber(*(() if discovers else endpoints), **where)
    await s.ready(*endpoints, seconds=20)
    # A reconnect has a socket of its own, too.
    puppets[0].send(BEACON_TOPIC)
    await until(lambda: s.heard(endpoints[0]).dials == 2, 20)
    await s.ready(*endpoints, seconds=20)
    assert sorted(endpoint for _, endpoint in connected) == sorted([*endpoints, endpoints[0]])
    assert len({id(socket) for socket, _ in connected}) == 4


def watch_dials(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The endpoint of each SUB socket that is made."""
    dialled: list[str] = []
    kind = type(world.wire)
    subscribe = kind.subscribe

    def watched(self: Any, endpoint: str, *rest: Any, **more: Any) -> Any:
        dialled.append(endpoint)
        return subscribe(self, endpoint, *rest, **more)

    monkeypatch.setattr(kind, "subscribe", watched)
    return dialled


async def heard_by_one(world: World) -> tuple[PuppetPublisher, PuppetPublisher, Node]:
    """A publisher that does what it is told, one that lives, and a subscriber for which both are ready."""
    u = await world.puppet("u")
    v = await world.living("v")
    s = await world.subscriber(u.endpoint, v.endpoint)
    await u.subscribed()
    u.beacon()
    await s.ready(u.endpoint, v.endpoint)
    return u, v, s


@pytest.mark.contract("LV-82")
async def test_one_silent_publisher_concerns_no_other(autojump_clock: object, world: World) -> None:
    u, v, s = await heard_by_one(world)
    await until(lambda: not s.is_ready(u.endpoint), 20)
    assert s.failure(u.endpoint).reason is FailureReason.PUBLISHER_SILENT
    seen = s.heard(v.endpoint)
    assert (seen.phase, seen.last_failure, seen.dials) == (PublisherPhase.READY, None, 1)
    assert trio.current_time() - seen.last_receive <= 1.01
    assert v.socket.subscribers == 1


@pytest.mark.contract("LV-94")
@pytest.mark.parametrize("late", ["beacon", "event"])
async def test_a_publisher_withdrawn_before_its_first_record_does_not_become_ready(
    autojump_clock: object, world: World, late: str
) -> None:
    u = await world.puppet()
    await world.list(u)
    s = await world.subscriber(store=True)
    await u.subscribed()
    assert s.phase("u") is PublisherPhase.CONNECTING
    assert world.network is not None
    # The record is under way when the descriptor goes.
    world.network.delay("puppet", "s", 2.0)
    getattr(u, late)()
    await world.unlist(u)
    shown: list[Any] = []
    for _ in range(50):
        await trio.sleep(0.1)
        shown.append(s.is_ready("u"))
    assert not any(shown)
    assert s.publishers == ()
    assert u.socket.subscribers == 0
    assert quiet(s)
    assert s.telemetry.total(catalogue.PEER_CONNECTS) == 0


# -- saturation and fairness


@pytest.mark.contract("LV-99")
async def test_beacons_that_find_the_queue_full_are_lost(autojump_clock: object, world: World) -> None:
    u, s, _ = await ready(world, hold=1000.0)
    assert world.network is not None
    maximum = s.rt.status.permits_maximum
    press(s, maximum)
    # Without a permit the publisher is read no further: its queue for this subscriber fills and overflows.
    for n in range(3000):
        u.event(n % 100)
    await trio.sleep(0.1)
    at = s.heard(u.endpoint).last_receive
    for _ in range(5):
        u.beacon()
        await trio.sleep(0.1)
    assert s.heard(u.endpoint).last_receive == at
    relieve(s, maximum)
    await until(lambda: s.rt.status.queued_jobs == 0 and s.heard(u.endpoint).last_receive > at)
    queued = len(s.got)
    assert queued < 3000
    await trio.sleep(5)
    # What was lost does not come when there is room again; what is published now does.
    assert len(s.got) == queued
    u.event(101)
    await trio.sleep(0.1)
    assert s.numbers[-1] == 101


@pytest.mark.contract("LV-100")
async def test_a_saturated_subscriber_reports_its_publisher_lost(autojump_clock: object, world: World) -> None:
    u, s, _ = await ready(world)
    maximum = s.rt.status.permits_maximum
    press(s, maximum)
    at = None
    for _ in range(200):
        u.event()
        u.beacon()
        at = at or s.heard(u.endpoint).last_receive
        await trio.sleep(0.1)
        if not s.is_ready(u.endpoint):
            break
    assert s.failure(u.endpoint).reason is FailureReason.PUBLISHER_SILENT
    relieve(s, maximum)
    world.nursery.start_soon(u.keep_alive)
    await s.ready(u.endpoint, seconds=30)


def press(node: Node, count: int) -> None:
    for _ in range(count):
        node.rt._core.permits.take_over()


def relieve(node: Node, count: int) -> None:
    for _ in range(count):
        node.rt._core.permits.release()


@pytest.mark.contract("LV-118")
async def test_a_publisher_that_fills_the_queue_costs_a_quiet_one_nothing(autojump_clock: object, world: World) -> None:
    u, v, s = await heard_by_one(world)
    maximum = s.rt.status.permits_maximum
    press(s, maximum)
    for _ in range(600):
        u.event()
        await trio.sleep(0.1)
        assert s.is_ready(v.endpoint)
        assert trio.current_time() - s.heard(v.endpoint).last_receive < 2
    assert s.heard(v.endpoint).dials == 1
    relieve(s, maximum)


@pytest.mark.contract("LV-118", "LV-115")
async def test_a_flooding_publisher_costs_a_quiet_one_nothing(autojump_clock: object, world: World) -> None:
    u, v, s = await heard_by_one(world)
    began = trio.current_time()
    while trio.current_time() < began + 2 * PEER_DEADLINE:
        for n in range(500):
            u.event(n % 100)
        await trio.sleep(0.1)
        assert s.is_ready(v.endpoint)
        assert trio.current_time() - s.heard(v.endpoint).last_receive < 2
    assert len(s.got) > 50_000
    assert s.heard(v.endpoint).dials == 1


# -- discovery and the store


@pytest.mark.contract("LV-98", "LV-147")
async def test_a_reconnect_goes_where_the_descriptor_says_now(autojump_clock: object, world: World) -> None:
    u = await world.living("u")
    await world.list(u)
    s = await world.subscriber(store=True)
    await s.ready("u")
    moved = await world.living("u")
    moved.generation = 2
    await world.list(moved, revision=1)
    await until(lambda: moved.socket.subscribers == 1)
    await s.ready("u")
    assert u.socket.subscribers == 0
    assert s.heard("u").endpoint == moved.endpoint
    assert s.failure("u").reason is FailureReason.REPLACED


async def test_an_event_of_another_publisher_at_the_endpoint_is_no_event_of_this_one(
    autojump_clock: object, world: World
) -> None:
    u = await world.puppet("u")
    await world.list(u)
    s = await world.subscriber(store=True)
    await u.subscribed()
    u.send(*event(1, rid="somebody else"))
    await trio.sleep(0.01)
    assert not s.is_ready("u")
    assert s.failure("u").reason is FailureReason.IDENTITY_MISMATCH
    assert s.got == []


@pytest.mark.parametrize("state", [RuntimeState.RELOCATING, RuntimeState.RELOCATED, RuntimeState.DRAINING])
@pytest.mark.contract("LO-175")
async def test_a_leaving_publisher_keeps_its_subscribers_and_gets_no_new_ones(
    autojump_clock: object, world: World, state: RuntimeState
) -> None:
    u = await world.living("u")
    await world.list(u)
    s = await world.subscriber(store=True)
    await s.ready("u")
    await world.list(u, state=state, revision=2)
    late = await world.subscriber(store=True, name="late")
    await trio.sleep(10)
    assert s.is_ready("u")
    assert late.publishers == ()
    assert u.socket.subscribers == 1
    u.event(4)
    await trio.sleep(0.1)
    assert s.numbers == [4]


@pytest.mark.parametrize("state", [RuntimeState.RELOCATING, RuntimeState.RELOCATED, RuntimeState.DRAINING])
@pytest.mark.contract("LO-175")
async def test_a_leaving_publisher_that_was_lost_is_heard_again_only_when_it_serves(
    autojump_clock: object, world: World, state: RuntimeState
) -> None:
    u = await world.puppet("u")
    await world.list(u)
    s = await world.subscriber(store=True)
    await u.subscribed()
    u.beacon()
    await s.ready("u")
    await world.list(u, state=state, revision=2)
    await trio.sleep(3)
    await u.socket.aclose()
    again = await world.puppet("u", at=u.endpoint)
    await trio.sleep(20)
    assert again.socket.subscribers == 0
    assert s.heard("u").dials == 1
    await world.list(again, revision=3)
    await again.subscribed()
    again.beacon()
    await s.ready("u")


# -- the end


@pytest.mark.contract("SA-212")
async def test_a_stream_of_events_does_not_keep_a_host_from_ending(autojump_clock: object, world: World) -> None:
    u = await world.puppet()
    s = await world.subscriber(u.endpoint, hold=0.05)
    await u.subscribed()

    async def stream() -> None:
        for n in count():
            u.event(n % 100)
            await trio.sleep(0.01)

    world.nursery.start_soon(stream)
    await until(lambda: len(s.got) > 20)
    began = trio.current_time()
    result = await s.rt.shutdown(5.0)
    assert result.outcome is zl.TerminationOutcome.STOPPED
    assert trio.current_time() - began < 0.5


@pytest.mark.contract("LV-157", "LV-158")
async def test_the_end_waits_for_every_socket_also_beside_a_publisher_without_one(
    fast_clock: object, sockets: World
) -> None:
    near = ZmqTransport(entropy=SeededEntropy("near"))
    u = await sockets.living()
    nobody = await sockets.puppet("nobody")
    await nobody.socket.aclose()
    s = await sockets.subscriber(nobody.endpoint, u.endpoint, transport=lambda entropy: near)
    await s.ready(u.endpoint)
    await until(lambda: s.failure(nobody.endpoint) is not None and near.statistics().subscriptions == 1)
    await s.rt.fanout.aclose()
    assert near.statistics().subscriptions == 0


@pytest.mark.contract("LV-152")
async def test_beacons_do_not_bring_a_lapsed_lease_back(autojump_clock: object, world: World) -> None:
    u = await world.living("u")
    await world.list(u, ttl_ms=20_000)
    s = await world.subscriber(store=True)
    await s.ready("u")
    await trio.sleep(19)
    assert s.is_ready("u")
    # Its beacons go on, but nobody may count it as a publisher of the channel any more.
    await until(lambda: s.heard("u") is None, 5)
    await trio.sleep(30)
    assert s.heard("u") is None


async def test_hosts_find_each_other_through_the_store(autojump_clock: object, world: World) -> None:
    p = await world.publisher(store=True)
    s = await world.subscriber(store=True)
    with trio.fail_after(10):
        await s.rt.wait_ready_publisher(CHANNEL)
    await p.rt.publish(CHANNEL, TOPIC, Placed(5))
    await trio.sleep(0.1)
    assert s.numbers == [5]
    (one,) = s.publishers
    (reported,) = s.rt.connections().connections
    assert (reported.kind, reported.peer, reported.phase) == ("fanout", one.rid, "ready")
    await p.stop()
    await until(lambda: s.publishers == ())


@pytest.mark.contract("LV-02")
async def test_real_sockets_carry_events_and_fifteen_seconds_of_silence_end_them(
    fast_clock: object, sockets: World
) -> None:
    p = await sockets.publisher()
    u = await sockets.puppet("u")
    endpoint = p.rt.publisher_endpoint(CHANNEL)
    s = await sockets.subscriber(endpoint, u.endpoint)
    await u.subscribed()
    u.beacon()
    await s.ready(endpoint, u.endpoint)
    await p.rt.publish(CHANNEL, TOPIC, Placed(5))
    await until(lambda: s.numbers == [5])
    await until(lambda: not s.is_ready(u.endpoint), 20)
    assert s.failure(u.endpoint).reason is FailureReason.PUBLISHER_SILENT
    assert s.is_ready(endpoint)
    await until(lambda: s.heard(u.endpoint).dials == 2, 5)
    await p.stop()
    await until(lambda: not s.is_ready(endpoint))
    assert s.failure(endpoint).reason is FailureReason.TRANSPORT_ERROR
