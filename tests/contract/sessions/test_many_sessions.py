"""A node with many sessions ends in a time that does not grow with each of them."""

from __future__ import annotations

from typing import Any

import trio

from tests.contract.sessions.cluster import Turn, World, cluster, settled, submit
from zlinkpy.sessions.core import RETURNS_AT_ONCE
from zlinkpy.sessions.spi import SignalHandler, Subscription
from zlinkpy.sessions.types import SessionSignal

SESSIONS = 160


class _SlowToLeave:
    """A subscription whose end is never confirmed."""

    async def aclose(self) -> None:
        await trio.sleep_forever()


class _Bus:
    """A bus that went away after the subscribing."""

    async def subscribe(self, session_id: str, handler: SignalHandler, events: bool = True) -> Subscription:
        return _SlowToLeave()

    async def publish(self, signal: SessionSignal) -> None:
        await trio.lowlevel.checkpoint()

    async def publish_all(self, signals: Any) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_node_that_closes_gives_many_leases_back(autojump_clock: trio.abc.Clock) -> None:
    world = World()

    async def at_once(turn: Turn) -> None:
        turn.finish()

    at_a_time: list[int] = [0]

    async def slowly(node: str, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "release":
            at_a_time.append(at_a_time[-1] + 1)
            await trio.sleep(0.1)
            at_a_time.append(at_a_time[-1] - 1)

    world.behave = at_once
    async with cluster(world, "n1", bus=_Bus()) as [router]:
        for number in range(SESSIONS):
            await settled(await submit(router, session=f"s{number}"))
        world.before_call = slowly
        began = trio.current_time()
        await router.close()
        # One after the other: 16 s for the leases, 320 s for the subscriptions.
        assert trio.current_time() - began < 4
        # All at once, most would wait in the store's client until their time is over.
        assert max(at_a_time) == RETURNS_AT_ONCE
    assert [await world.holder(f"s{number}") for number in range(SESSIONS)] == [None] * SESSIONS
