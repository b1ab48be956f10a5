"""What a bad network does to one subscription, over real sockets and a fault proxy (LV §8, §10, §12, §14)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import frozen

from tests.contract.fanout.world import CHANNEL, TOPIC, Node, Placed, World
from tests.fault_proxy import DOWN, UP, FaultProxy
from tests.puppet import until
from zlinkpy.fanout import PublisherPhase
from zlinkpy.link import FailureReason
from zlinkpy.link.constants import CHECK_INTERVAL, DIAL_DEADLINE, PEER_DEADLINE

SLACK = 1.0
"""Seconds by which something may be late: 50 ms of a busy machine, twenty times faster."""


@frozen(eq=False)
class Heard:
    """A subscriber that hears one publisher through the proxy and another one directly."""

    proxy: FaultProxy
    publisher: Node
    other: str
    subscriber: Node

    @property
    def is_ready(self) -> bool:
        return self.subscriber.is_ready(self.proxy.endpoint)

    @property
    def failure(self) -> FailureReason | None:
        last = self.subscriber.failure(self.proxy.endpoint)
        return last.reason if last is not None else None

    def nobody_else_noticed(self) -> None:
        other = self.subscriber.heard(self.other)
        assert other is not None
        assert (other.phase, other.dials, other.last_failure) == (PublisherPhase.READY, 1, None)

    async def event_arrives(self, n: int) -> None:
        await self.publisher.rt.publish(CHANNEL, TOPIC, Placed(n))
        await until(lambda: n in self.subscriber.numbers, 10)


@asynccontextmanager
async def hearing(world: World) -> AsyncIterator[Heard]:
    publisher, other = await world.publisher("p"), await world.publisher("q")
    elsewhere = other.rt.publisher_endpoint(CHANNEL)
    async with FaultProxy(publisher.rt.publisher_endpoint(CHANNEL)) as proxy:
        subscriber = await world.subscriber(proxy.endpoint, elsewhere)
        await subscriber.ready(proxy.endpoint, elsewhere, seconds=30)
        try:
            yield Heard(proxy, publisher, elsewhere, subscriber)
        finally:
            await subscriber.stop()


@pytest.mark.contract("LV-97", "LV-82", "LV-98", "LV-148")
async def test_a_subscriber_that_hears_nothing_any_more_says_so_within_the_deadline(
    fast_clock: object, sockets: World
) -> None:
    async with hearing(sockets) as heard:
        heard.proxy.swallow(DOWN)
        began = trio.current_time()
        await until(lambda: not heard.is_ready, PEER_DEADLINE + SLACK)
        # Nothing but the silence told: the last beacon was at most one interval old.
        assert trio.current_time() - began > PEER_DEADLINE - CHECK_INTERVAL - SLACK
        assert heard.failure is FailureReason.PUBLISHER_SILENT
        await trio.sleep(PEER_DEADLINE)
        assert not heard.is_ready
        heard.nobody_else_noticed()
        heard.proxy.heal()
        await until(lambda: heard.is_ready, 30)
        await heard.event_arrives(1)
        heard.nobody_else_noticed()


@pytest.mark.contract("LV-78", "LV-101")
async def test_what_a_subscriber_cannot_say_costs_it_nothing(fast_clock: object, sockets: World) -> None:
    async with hearing(sockets) as heard:
        heard.proxy.swallow(UP)
        end = trio.current_time() + 2 * PEER_DEADLINE
        while trio.current_time() < end:
            assert heard.is_ready
            await trio.sleep(0.1)
        await heard.event_arrives(2)
        # It had nothing to say.
        assert sum(way.swallowed for way in heard.proxy.ways(UP)) == 0
        heard.nobody_else_noticed()


@pytest.mark.contract("LV-120", "LV-82", "LV-147")
@pytest.mark.parametrize("reset", [True, False], ids=["RST", "FIN"])
async def test_a_cut_subscription_is_not_ready_at_once(fast_clock: object, sockets: World, reset: bool) -> None:
    async with hearing(sockets) as heard:
        heard.proxy.refuse()
        heard.proxy.cut(reset=reset)
        await until(lambda: not heard.is_ready, 2 * SLACK)
        assert heard.failure is FailureReason.TRANSPORT_ERROR
        heard.nobody_else_noticed()
        heard.proxy.admit()
        await until(lambda: heard.is_ready, 30)
        await heard.event_arrives(3)


@pytest.mark.slow
async def test_a_slow_network_below_the_deadline_costs_a_subscription_nothing(
    fast_clock: object, sockets: World
) -> None:
    async with hearing(sockets) as heard:
        heard.proxy.delay(PEER_DEADLINE - CHECK_INTERVAL - 2 * SLACK)
        end = trio.current_time() + 3 * PEER_DEADLINE
        while trio.current_time() < end:
            assert heard.is_ready
            await trio.sleep(0.1)
        heard.nobody_else_noticed()


@pytest.mark.contract("LV-176")
async def test_a_subscription_into_a_black_hole_ends_after_the_dial_deadline_and_is_repeated(
    fast_clock: object, sockets: World
) -> None:
    async with hearing(sockets) as heard:
        heard.proxy.ignore()
        connections = heard.proxy.accepted
        heard.proxy.cut()
        await heard.proxy.until(lambda: heard.proxy.accepted > connections)
        dialled = trio.current_time()
        seen = heard.subscriber.heard(heard.proxy.endpoint)
        assert seen is not None
        await until(lambda: heard.subscriber.heard(heard.proxy.endpoint).dials > seen.dials, DIAL_DEADLINE + 2 * SLACK)  # type: ignore[union-attr]
        assert trio.current_time() - dialled > DIAL_DEADLINE - SLACK
        assert heard.failure is FailureReason.TRANSPORT_ERROR
        heard.nobody_else_noticed()
        heard.proxy.heal()
        await until(lambda: heard.is_ready, 30)
        await heard.event_arrives(4)
