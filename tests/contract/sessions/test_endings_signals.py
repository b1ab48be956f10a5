"""YIELD, INTERRUPT and EVICT (SR §18 to §20)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import (
    World,
    at_once,
    cluster,
    error_of,
    held,
    settled,
    submit,
    tell,
    wait_for,
)
from zlinkpy.sessions.errors import (
    SessionEvictedError,
    SessionSignalError,
)
from zlinkpy.sessions.payloads import TurnOutcome, encode_outcome
from zlinkpy.sessions.types import (
    InboundMessage,
    InterruptReason,
    RouterConfig,
    SessionSignal,
    SignalKind,
    TurnResult,
)

RELEASED = InterruptReason.SESSION_RELEASED


@pytest.mark.contract("SR-305", "SR-308", "SR-310", "SR-311")
@pytest.mark.parametrize("signals", [["YIELD"], ["INTERRUPT"], ["YIELD", "INTERRUPT"], ["INTERRUPT", "YIELD"]])
@pytest.mark.parametrize("cached", [True, False])
async def test_a_yield_of_an_idle_session(autojump_clock: trio.abc.Clock, signals: list[str], cached: bool) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        if not cached:
            router._core.cache._map._entries.clear()
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "stays"))
        for name in signals:
            payload = {"reason": "SESSION_RELEASED"} if name == "INTERRUPT" else {}
            await tell(world, SignalKind[name], **payload)
        assert await world.holder() is None
        assert world.calls("release") == ["release"]
        assert world.probes[0].closed == int(cached)
        assert not router._core.events.completed  # type: ignore[attr-defined]
        assert not world.purged
        assert not await world.stores.inbox.is_empty("s")


@pytest.mark.contract("SR-306", "SR-439")
async def test_a_yield_during_a_turn(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.obedient = False
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        found = [await submit(two, f"m{n}") for n in range(3)]
        turn.finish()
        turn = await world.turn(1)
        await tell(world, SignalKind.YIELD)
        assert turn.session.interrupts == [RELEASED]
        assert turn.session.closed == 0
        world.log.clear()
        turn.finish()
        await wait_all_tasks_blocked()
        assert turn.session.closed == 1
        await trio.sleep(0.45)
        assert not world.published(SignalKind.MESSAGE_ENQUEUED)
        world.behave = at_once
        await trio.sleep(1)
        for each in found:
            await settled(each)
        assert [each.text for each in world.turns] == ["hello", "m0", "m1", "m2"]


@pytest.mark.contract("SR-305", "SR-308")
async def test_a_yield_before_the_handle_is_open(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        await router._subscriptions.ensure("s")
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "waits"))

        async def asked(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "collect":
                world.before_call = None
                await world.bus.publish(SessionSignal("s", SignalKind.YIELD, "n9", {}))
                await trio.sleep(0.1)

        world.before_call = asked
        router._core.ring("s")
        await trio.sleep(0.3)
        assert await world.holder() is None
        assert not world.turns
        await trio.sleep(1)
        assert [turn.text for turn in world.turns] == ["waits"]
        assert await world.holder() == "n1"


@pytest.mark.contract("SR-310", "SR-312")
async def test_the_legacy_form(autojump_clock: trio.abc.Clock) -> None:
    for shim, turn_id, yields in ((True, None, True), (True, "t", False), (False, None, False)):
        world = World(RouterConfig(legacy_yield_shim=shim))
        async with cluster(world, "n1") as [router]:
            found = await submit(router)
            turn = await world.turn()
            payload = {"reason": "SESSION_RELEASED"} | ({"turnId": turn.ctx.turn_id} if turn_id else {})
            await tell(world, SignalKind.INTERRUPT, **payload)
            await settled(found)
            await wait_all_tasks_blocked()
            assert turn.session.interrupts == [RELEASED]
            assert (await world.holder() is None) == yields


@pytest.mark.contract("SR-440")
@pytest.mark.parametrize("kind", [SignalKind.YIELD, SignalKind.EVICT, SignalKind.INTERRUPT])
async def test_signals_that_mean_an_earlier_lease(autojump_clock: trio.abc.Clock, kind: SignalKind) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await submit(router)
        turn = await world.turn()
        lease = router._core.seat("s").lease
        assert lease is not None
        await tell(world, kind, reason="SESSION_RELEASED", token=lease.lease.token - 1)
        assert not turn.session.interrupts
        assert router._core.cache.peek("s") is not None
        assert not router._core.events.completed  # type: ignore[attr-defined]
        await tell(world, kind, reason="SESSION_RELEASED", token=lease.lease.token)
        assert turn.session.interrupts or kind is SignalKind.EVICT
        assert router._core.cache.peek("s") is None
        turn.finish()


# -- interrupt


@pytest.mark.contract("SR-313", "SR-314", "SR-320")
async def test_an_interrupt_from_elsewhere(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        found = await submit(one)
        turn = await world.turn()
        behind = await submit(two, "behind")
        await two.interrupt("s")
        [signal] = world.published(SignalKind.INTERRUPT)
        assert (dict(signal.payload), signal.origin_node) == ({"reason": "USER"}, "n2")
        assert (await settled(found)).completion == "interrupted"
        assert turn.session.interrupts == [InterruptReason.USER]
        again = await world.turn(1)
        assert again.session is turn.session
        again.finish()
        await settled(behind)
        assert world.calls("try_acquire", node="n1") == ["try_acquire"]


@pytest.mark.contract("SR-315", "SR-316", "SR-318", "SR-319")
async def test_an_aimed_interrupt(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.obedient = False
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        await one.interrupt("s")
        assert world.probes[0].interrupts == []
        assert await world.holder() == "n1"
        found = await submit(two)
        turn = await world.turn(1)
        await one.interrupt("s", turn_id="another")
        assert turn.session.interrupts == []
        await two.interrupt("s", turn_id=found.turn_id)
        await wait_all_tasks_blocked()
        assert turn.session.interrupts == [InterruptReason.USER]
        assert world.published(SignalKind.INTERRUPT)[-1].payload["turnId"] == found.turn_id
        await tell(world, SignalKind.INTERRUPT, reason="SOMETHING_NEW")
        assert turn.session.interrupts == [InterruptReason.USER] * 2
        turn.finish()


@pytest.mark.contract("SR-321")
async def test_an_interrupt_without_a_bus(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await submit(router)
        turn = await world.turn()
        world.bus_down = SessionSignalError("down")
        with pytest.raises(SessionSignalError):
            await router.interrupt("s")
        assert turn.session.interrupts == [InterruptReason.USER]


# -- evict


@pytest.mark.contract("SR-322", "SR-087")
async def test_an_eviction(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        found = await submit(two, "waits", key="k")
        stream = two.events("s")
        for _ in range(2):
            await world.bus.publish(SessionSignal("s", SignalKind.EVICT, "n9", {"reason": "SESSION_RELEASED"}))
        error = await error_of(found)
        assert type(error) is SessionEvictedError
        assert "n9" in str(error)
        assert await world.stores.idempotency.find("k") is None
        assert [event async for event in stream][0].reason is RELEASED  # type: ignore[union-attr]
        assert world.purged.count(("n2", "s")) == 2
        assert turn.session.closed == 0
        turn.finish()
        await wait_all_tasks_blocked()
        assert turn.session.closed == 1
        assert await world.holder() is None


@pytest.mark.contract("SR-323", "SR-265")
async def test_an_eviction_during_a_turn(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router)
        turn = await world.turn()
        await tell(world, SignalKind.EVICT, reason="SESSION_RELEASED")
        assert (turn.session.closed, turn.session.interrupts) == (0, [])
        assert await world.holder() == "n1"
        turn.finish("whole")
        assert (await settled(found)).answer == "whole"
        await wait_all_tasks_blocked()
        assert turn.session.closed == 1


@pytest.mark.contract("SR-324", "SR-325")
async def test_an_eviction_of_nothing(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await router._subscriptions.ensure("s")
        await tell(world, SignalKind.EVICT, reason="USER")
        assert not world.calls("open", "provision")
        stream = router.events("s")
        await submit(router)
        (await world.turn()).finish()
        assert type(await stream.__anext__()).__name__ == "TurnCompleted"


@pytest.mark.contract("SR-087")
async def test_a_doorbell_that_rings_twice_is_one_pass(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await router._subscriptions.ensure("s")
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "once"))
        for _ in range(2):
            await world.bus.publish(SessionSignal("s", SignalKind.MESSAGE_ENQUEUED, "n9", {"inboxId": "1"}))
        turn = await world.turn()
        await wait_all_tasks_blocked()
        turn.finish()
        await wait_all_tasks_blocked()
        assert (len(world.turns), world.calls("try_acquire", "open")) == (1, ["try_acquire", "open"])


@pytest.mark.contract("SR-087")
async def test_a_result_that_comes_twice_settles_once(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await router._subscriptions.ensure("s")
        waiting = wait_for(router, "t1", "k")
        ends: list[object] = []
        waiting.future.add_done_callback(ends.append)
        payload = encode_outcome(TurnOutcome(TurnResult(True, "once"), "t1", "k"))
        for _ in range(2):
            await tell(world, SignalKind.TURN_RESULT, **payload)
        assert (await settled(waiting)).answer == "once"
        assert len(ends) == 1
        assert len(router._core.forwards) == 0


@pytest.mark.contract("SR-087")
async def test_an_interrupt_that_comes_twice_stops_one_turn(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        first = await submit(router, "first")
        await world.turn()
        second = await submit(router, "second")
        for _ in range(2):
            await world.bus.publish(SessionSignal("s", SignalKind.INTERRUPT, "n9", {"reason": "USER"}))
        assert (await settled(first)).completion == "interrupted"
        turn = await world.turn(1)
        await wait_all_tasks_blocked()
        assert not turn.end.is_set()
        turn.finish("to its end")
        assert (await settled(second)).answer == "to its end"
