"""Which sessions a router still listens for (SR §28b)."""

from __future__ import annotations

import gc

import pytest
import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import settled, submit
from tests.contract.sessions.scenes import Scene, busy_turn, nodes, one_turn
from tests.contract.sessions.test_release import listening
from zlinkpy.sessions.spi import Subscription
from zlinkpy.sessions.types import RouterConfig

CONFIG = RouterConfig(idle_ttl=20.0, cache_sweep_interval=5.0, idempotency_forward_ttl=900.0)
QUIET = 10 * CONFIG.idle_ttl
SWEPT = 2 * CONFIG.cache_sweep_interval


@pytest.mark.contract("SR-455")
@pytest.mark.parametrize("kept_by", ["a turn", "a forward", "a subscriber"])
async def test_a_session_that_something_waits_for_is_listened_to(autojump_clock: trio.abc.Clock, kept_by: str) -> None:
    scene = Scene(CONFIG)
    async with nodes(scene, "n1", "n2") as [one, two]:
        _, turn = await busy_turn(scene, one)
        watched, node = (one, "n1") if kept_by == "a turn" else (two, "n2")
        async with trio.open_nursery() as nursery:
            if kept_by == "a forward":
                await submit(two, "waits")
            elif kept_by == "a subscriber":
                await listening(nursery, two)
            await trio.sleep(QUIET + SWEPT)
            assert "s" in watched._subscriptions
            assert (node, "s") not in scene.purged
            nursery.cancel_scope.cancel()
        turn.finish()
        if kept_by == "a forward":
            (await scene.turn(1)).finish()
        gc.collect()
        await wait_all_tasks_blocked()
        await trio.sleep(CONFIG.idle_ttl + QUIET + SWEPT)
        assert "s" not in watched._subscriptions
        assert (node, "s") in scene.purged


@define
class Slow:
    """A subscription whose end takes a second."""

    inner: Subscription
    ending: trio.Event = field(factory=trio.Event)

    async def aclose(self) -> None:
        self.ending.set()
        await trio.sleep(1)
        await self.inner.aclose()


@pytest.mark.contract("SR-455")
async def test_a_session_that_is_used_while_others_are_ended_is_not_quiet(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(CONFIG)
    async with nodes(scene, "n1") as [one]:
        for session in ("a", "b"):
            await one_turn(scene, one, session)
        place = one._subscriptions._places["a"]
        assert place.subscription is not None
        place.subscription = slow = Slow(place.subscription)
        await slow.ending.wait()
        # Within the second that this takes somebody submits to the other one.
        found = await submit(one, "again", "b")
        (await scene.turn(2)).finish()
        await settled(found)
        await trio.sleep(2)
        assert one._core.cache.peek("b") is not None
        assert "b" in one._subscriptions
        assert scene.purged == [("n1", "a")]
