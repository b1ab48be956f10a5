"""Release and idling out (SR §17)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import (
    Probe,
    World,
    at_once,
    cluster,
    error_of,
    held,
    settled,
    submit,
    tell,
)
from zlinkpy.sessions.errors import (
    SessionEvictedError,
    SessionInboxError,
    TurnFailedError,
)
from zlinkpy.sessions.futures import SubmitDisposition
from zlinkpy.sessions.types import (
    InterruptReason,
    RouterConfig,
    SignalKind,
)

RELEASED = InterruptReason.SESSION_RELEASED


@pytest.mark.contract("SR-271", "SR-274", "SR-264")
async def test_the_order_of_a_release(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        world.log.clear()
        await router.release("s")
        steps = [entry[1] for entry in world.log if entry[1] in ("close", "release", "purge", "publish")]
        assert steps == ["close", "release", "purge", "publish"]
        [evict] = world.published(SignalKind.EVICT)
        assert evict.payload["reason"] == "SESSION_RELEASED"
        assert world.purged == [("n1", "s")]
        assert router._core.events.completed == ["s"]  # type: ignore[attr-defined]
        assert "s" not in router._subscriptions
        assert router._core.cache.peek("s") is None
        await submit(router)
        turn = await world.turn(1)
        assert turn.ctx.state == b"kept"
        turn.finish()


@pytest.mark.contract("SR-272")
async def test_a_release_waits_for_its_turn_and_no_longer(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.obedient = False
    async with cluster(world, "n1") as [router]:
        found = await submit(router)
        turn = await world.turn()
        order: list[str] = []
        found.future.add_done_callback(lambda _: order.append("settled"))

        async def closing(_: Probe) -> None:
            order.append("closed")

        world.closing = closing
        begin = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.release, "s")
            await trio.sleep(1)
            assert turn.session.interrupts == [RELEASED]
            turn.finish()
        assert trio.current_time() - begin == pytest.approx(1.0, abs=0.1)
        assert order == ["settled", "closed"]


@pytest.mark.contract("SR-273")
async def test_a_turn_that_ignores_its_release(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.obedient = False
    async with cluster(world, "n1") as [router]:
        found = await submit(router)
        turn = await world.turn()
        begin = trio.current_time()
        await router.release("s")
        assert trio.current_time() - begin == pytest.approx(5.0, abs=0.6)
        assert type(await error_of(found)) is TurnFailedError
        assert turn.session.closed == 1
        assert "does not stop" in caplog.text
        assert router._core.events.completed == ["s"]  # type: ignore[attr-defined]
        assert await world.holder() is None


@pytest.mark.contract("SR-275", "SR-437", "SR-278")
@pytest.mark.parametrize("how", ["release", "delete"])
async def test_what_waits_fails_with_the_session(autojump_clock: trio.abc.Clock, how: str) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        found = [await submit(router, key=f"k{n}") for n, router in enumerate((one, two))]
        retried: list[SubmitDisposition] = []

        async def retry() -> None:
            retried.append(await submit(two, key="k1"))

        found[1].future.add_done_callback(lambda _: two._core.background_nursery.start_soon(retry))
        begin = trio.current_time()
        await (two.release("s") if how == "release" else two.delete("s"))
        assert trio.current_time() - begin <= 6
        assert turn.session.interrupts == [RELEASED]
        assert turn.session.closed == 1
        for each in found:
            assert type(await error_of(each)) is SessionEvictedError
        for router in (one, two):
            assert router._core.events.completed == ["s"]  # type: ignore[attr-defined]
        await trio.sleep(1)
        assert retried[0].inbox_id != "idem-k1"
        # A message that came in the middle of a delete has no bell any more: its own poll rings.
        await trio.sleep(16)
        (await world.turn(1)).finish("again")
        assert (await settled(retried[0])).answer == "again"


@pytest.mark.contract("SR-276", "SR-302")
@pytest.mark.parametrize("how", ["release", "delete", "evict"])
async def test_a_mark_does_not_outlive_its_session(autojump_clock: trio.abc.Clock, how: str) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        seat = router._core.seat("s")
        if how == "evict":
            seat.doorbell = True
            await tell(world, SignalKind.EVICT, reason="USER")
        else:

            async def ring(_: str, name: str, __: tuple[Any, ...]) -> None:
                if name == ("release" if how == "release" else "purge"):
                    router._core.ring("s")

            world.before_call = ring
            await (router.release("s") if how == "release" else router.delete("s"))
        world.log.clear()
        await trio.sleep(5)
        assert not world.calls("try_acquire", "collect", "is_empty")
        assert "s" not in router._core.seats


@pytest.mark.contract("SR-277", "SR-279")
async def test_releasing_what_is_not_here(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await router.release("never seen")
        assert len(world.published(SignalKind.EVICT)) == 1
        await held(world, router)
        await router.release("s")
        view = await world.stores.records.load("s")
        await router.release("s")
        assert await world.stores.records.load("s") == view
        assert world.calls("release") == ["release"]


@pytest.mark.contract("SR-441")
async def test_submits_that_come_while_it_is_released(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.obedient = False
    async with cluster(world, "n1") as [router]:
        await submit(router)
        turn = await world.turn()
        found: list[SubmitDisposition] = []

        async def keep_submitting() -> None:
            while True:
                found.append(await submit(router, "during"))
                await trio.sleep(0.05)

        async def slow(_: Probe) -> None:
            await trio.sleep(1)

        world.closing = slow
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_submitting)
            await trio.sleep(0.2)
            async with trio.open_nursery() as ending:
                ending.start_soon(router.release, "s")
                await trio.sleep(0.5)
                turn.finish()
            nursery.cancel_scope.cancel()
            assert [each.text for each in world.turns] == ["hello"]
        assert turn.session.inputs == ["hello"]
        world.behave = at_once
        await trio.sleep(20)
        assert all(each.future.done() for each in found)


@pytest.mark.contract("SR-442", "SR-309", "SR-312")
@pytest.mark.parametrize("shim", [True, False])
async def test_a_holder_that_never_yields(autojump_clock: trio.abc.Clock, shim: bool) -> None:
    world = World(RouterConfig(legacy_yield_shim=shim))
    async with cluster(world, "n1") as [router]:
        await world.stores.leases.try_acquire("s", "deaf", 1000)
        begin = trio.current_time()
        await router.release("s")
        assert trio.current_time() - begin == pytest.approx(5.0, abs=0.3)
        kinds = [entry[2].name for entry in world.log if entry[1] == "publish"]
        assert kinds == (["YIELD", "INTERRUPT", "EVICT"] if shim else ["YIELD", "EVICT"])
        if shim:
            [legacy] = world.published(SignalKind.INTERRUPT)
            assert legacy.payload["reason"] == "SESSION_RELEASED"
            assert "turnId" not in legacy.payload


async def test_a_step_that_fails_stops_no_other(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        world.stores.inbox.backend.plan("before", operation="purge")
        with pytest.raises(SessionInboxError):
            await router.release("s")
        assert world.published(SignalKind.EVICT)
        assert await world.holder() is None
        assert not router._core.seats


# -- idle


@pytest.mark.contract("SR-280", "SR-281", "SR-257", "SR-269")
async def test_idling_out_tells_nobody(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        stream = two.events("s")
        await two._subscriptions.ensure("s")
        await wait_all_tasks_blocked()
        world.log.clear()
        await trio.sleep(599 - trio.current_time())
        assert one._core.cache.peek("s") is not None
        await trio.sleep(62)
        assert world.probes[0].closed == 1
        assert await world.holder() is None
        assert not [entry for entry in world.log if entry[1].startswith("publish")]
        assert not world.purged
        assert "s" in one._subscriptions
        assert not two._core.events.completed  # type: ignore[attr-defined]
        assert two._core.events.has_subscribers("s")
        del stream


@pytest.mark.contract("SR-455")
async def test_a_session_that_is_quiet_for_long(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        await settled(await submit(router))
        await trio.sleep(6000)
        assert "s" in router._subscriptions
        await trio.sleep(1000)
        assert "s" not in router._subscriptions
        assert world.purged == [("n1", "s")]
        world.log.clear()
        await settled(await submit(router))
        assert world.log[0][1] == "subscribe"


# -- shutdown
