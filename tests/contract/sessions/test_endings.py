"""Release, idle, shutdown, delete, YIELD, interrupt and EVICT (SR §17 to §20)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Probe, Turn, World, cluster, error_of, settled, submit
from zlinkpy.sessions.errors import (
    RouterClosedError,
    SessionBusyError,
    SessionEvictedError,
    SessionInboxError,
    SessionLeaseError,
    SessionNotHeldError,
    SessionSignalError,
    TurnFailedError,
)
from zlinkpy.sessions.events import InterruptedAt
from zlinkpy.sessions.futures import SubmitDisposition
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.types import (
    InboundMessage,
    InterruptReason,
    RouterConfig,
    SessionSignal,
    SignalKind,
    StatusSource,
)

RELEASED = InterruptReason.SESSION_RELEASED


async def held(world: World, router: SessionRouter, session: str = "s") -> None:
    found = await submit(router, session=session)
    turn = await world.turn()
    turn.ctx.state = b"kept"
    turn.finish()
    await settled(found)
    await wait_all_tasks_blocked()


async def at_once(turn: Turn) -> None:
    turn.finish(turn.text)


async def tell(world: World, kind: SignalKind, **payload: Any) -> None:
    await world.bus.publish(SessionSignal("s", kind, "n9", payload))
    await wait_all_tasks_blocked()


# -- release


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


@pytest.mark.contract("SR-282", "SR-284", "SR-286")
async def test_a_graceful_end(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        threads = threading.active_count()
        stream = router.events("s")
        found = await submit(router)
        turn = await world.turn()

        async def two_seconds() -> None:
            await trio.sleep(2)
            with pytest.raises(RouterClosedError):
                await submit(router)
            turn.finish("whole")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(two_seconds)
            assert await router.close(10)
        assert (await settled(found)).answer == "whole"
        assert not turn.session.interrupts
        assert await world.holder() is None
        assert world.calls("release") == ["release"]
        names = [type(event).__name__ async for event in stream]
        assert names == ["TurnCompleted"]
        assert threading.active_count() == threads
        assert not router._subscriptions._places


@pytest.mark.contract("SR-283", "SR-288")
@pytest.mark.parametrize("timeout", [1.0, 0.0])
async def test_a_turn_that_does_not_end(autojump_clock: trio.abc.Clock, timeout: float) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router, key="k")
        turn = await world.turn()
        begin = trio.current_time()
        assert not await router.close(timeout)
        assert trio.current_time() - begin == pytest.approx(timeout, abs=0.1)
        assert turn.session.interrupts == [InterruptReason.SYSTEM_SHUTDOWN]
        assert (await settled(found)).completion == "interrupted"
        assert await world.stores.idempotency.find("k") is None


@pytest.mark.contract("SR-285")
async def test_a_lease_store_that_fails_at_the_end(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)

        async def fail(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "release":
                raise SessionLeaseError("down")

        world.before_call = fail
        assert await router.close()
        assert await world.holder() == "n1"
        await trio.sleep(31)
        assert await world.holder() is None


@pytest.mark.contract("SR-287")
async def test_closing_twice(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        answers: list[bool] = []

        async def close() -> None:
            answers.append(await router.close())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            nursery.start_soon(close)
        await close()
        assert answers == [True] * 3
        assert (world.calls("release"), world.probes[0].closed) == (["release"], 1)


@pytest.mark.contract("SR-289")
async def test_a_turn_that_cannot_be_stopped(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.obedient = False

    async def stuck(turn: Turn) -> None:
        with trio.CancelScope(shield=True):
            await turn.end.wait()

    world.behave = stuck
    async with cluster(world, "n1", "n2") as [one, two]:
        found = await submit(one)
        turn = await world.turn()
        begin = trio.current_time()
        assert not await one.close()
        assert "release" not in world.calls(node="n1")
        world.behave = at_once
        second = await submit(two, "second")
        world.log.clear()
        assert (await settled(second, 50)).answer == "second"
        assert 29 <= world_began(world, 1) - begin <= 46
        assert not world.calls("extend", node="n1")
        turn.finish()
        await error_of(found)


def world_began(world: World, number: int) -> float:
    assert len(world.turns) > number
    return trio.current_time()


@pytest.mark.contract("SR-290", "SR-291")
async def test_a_bell_while_closing(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.obedient = False
    async with cluster(world, "n1", "n2") as [one, two]:
        first = await submit(one)
        turn = await world.turn()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.close, 60)
            await trio.sleep(1)
            world.log.clear()
            found = await submit(two, "passed on")
            await trio.sleep(1)
            assert turn.session.interrupts == [RELEASED]
            assert "collect" not in world.calls(node="n1")
            turn.finish()
            again = await world.turn(1)
            assert (again.text, again.session.node) == ("passed on", "n2")
            again.finish("n2")
        await settled(first)
        assert (await settled(found)).answer == "n2"
        assert len(world.published(SignalKind.MESSAGE_ENQUEUED, "n1")) == 1
        await two.close()
        one._core.ring("s")
        assert len(world.published(SignalKind.MESSAGE_ENQUEUED, "n1")) == 1


@pytest.mark.contract("SR-292")
@pytest.mark.parametrize("works", [True, False])
async def test_what_was_collected_when_the_time_is_up(autojump_clock: trio.abc.Clock, works: bool) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        found = [await submit(two, f"m{n}", key=f"k{n}") for n in range(3)]
        turn.finish()
        await world.turn(1)
        await wait_all_tasks_blocked()
        if not works:
            world.stores.inbox.backend.plan("before", operation="deliver", applied="no", times=None)
        await one.close()
        await settled(found[0])
        if works:
            for n in (1, 2):
                again = await world.turn(n + 1)
                assert (again.text, again.session.node) == (f"m{n}", "n2")
                again.finish()
                await settled(found[n])
        else:
            for n in (1, 2):
                assert type(await error_of(found[n])).__name__ == "NotHolderError"
                assert await world.stores.idempotency.find(f"k{n}") is None


# -- delete


@pytest.mark.contract("SR-293")
async def test_deleting_what_is_held_here(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        world.log.clear()
        await router.delete("s")
        wanted = ("try_acquire", "close", "purge", "delete", "publish", "release")
        steps = [entry[1] for entry in world.log if entry[1] in wanted]
        assert steps == ["close", "purge", "delete", "publish", "release"]
        assert await world.stores.records.load("s") is None
        assert router._core.events.completed == ["s"]  # type: ignore[attr-defined]
        assert not router._core.seats


@pytest.mark.contract("SR-294")
async def test_deleting_what_nobody_holds(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await router.delete("s")
        names = [name for name in world.calls() if name in ("try_acquire", "provision", "delete", "load")]
        assert names[0] == "try_acquire"
        assert "delete" in names


@pytest.mark.contract("SR-295", "SR-296", "SR-305", "SR-439")
@pytest.mark.parametrize("running", [False, True])
async def test_deleting_what_a_peer_holds(autojump_clock: trio.abc.Clock, running: bool) -> None:
    world = World()
    async with cluster(world, "n1", "n2", "n3") as [one, two, three]:
        await held(world, one)
        found: list[SubmitDisposition] = []
        if running:
            await submit(one)
            turn = await world.turn(1)
            found = [await submit(three, f"m{n}") for n in range(2)]
            turn.unconsumed = []
        begin = trio.current_time()
        await two.delete("s")
        assert trio.current_time() - begin < 1
        assert await world.stores.records.load("s") is None
        assert world.probes[0].closed == 1
        if running:
            assert world.probes[0].interrupts == [RELEASED]
            for each in found:
                assert type(await error_of(each)) is SessionEvictedError
            bells = world.published(SignalKind.MESSAGE_ENQUEUED, "n1")
            assert not bells
            assert len(world.turns) == 2


@pytest.mark.contract("SR-297", "SR-299", "SR-302")
async def test_a_delete_that_cannot_get_the_session(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        await world.stores.leases.try_acquire("s", "deaf", 100)
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "stays"))
        times: list[float] = []

        async def note(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "try_acquire":
                times.append(trio.current_time())
                router._core.seat("s").doorbell = True

        world.before_call = note
        begin = trio.current_time()
        with pytest.raises(SessionBusyError):
            await router.delete("s")
        assert trio.current_time() - begin == pytest.approx(5.0, abs=0.3)
        gaps = {round(after - before, 2) for before, after in zip(times, times[1:], strict=False)}
        assert gaps == {0.2}
        assert not await world.stores.inbox.is_empty("s")
        world.before_call = None
        await wait_all_tasks_blocked()
        assert len(world.calls("try_acquire")) == len(times) + 1
        await trio.sleep(100)
        await router.delete("s")


@pytest.mark.contract("SR-298")
async def test_deleting_under_a_turn_of_this_node(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router)
        turn = await world.turn()
        begin = trio.current_time()
        await router.delete("s")
        assert trio.current_time() - begin < 1
        assert turn.session.interrupts == [RELEASED]
        assert (await settled(found)).completion == "interrupted"
        world.obedient = False
        await submit(router)
        await world.turn(1)
        begin = trio.current_time()
        with pytest.raises(SessionBusyError):
            await router.delete("s")
        assert trio.current_time() - begin == pytest.approx(5.0, abs=0.1)
        world.turns[1].finish()


@pytest.mark.contract("SR-301", "SR-322", "SR-369")
async def test_a_delete_is_seen_on_every_node(autojump_clock: trio.abc.Clock) -> None:
    world = World(RouterConfig(status_broadcast=True))
    async with cluster(world, "n1", "n2") as [one, two]:
        stream = two.events("s")
        await trio.sleep(1)
        await held(world, one)
        found = await submit(two, "waits")
        await world.turn(1)
        assert two.status("s").source is StatusSource.REMOTE_PROJECTION
        await one.delete("s")
        assert (await settled(found)).completion == "interrupted"
        await wait_all_tasks_blocked()
        assert sorted(world.purged) == [("n1", "s"), ("n2", "s")]
        assert two.status("s").source is StatusSource.UNKNOWN
        events = [event async for event in stream]
        assert [event.reason for event in events if isinstance(event, InterruptedAt)] == [RELEASED]


@pytest.mark.contract("SR-303")
async def test_a_lease_that_is_lost_in_a_delete(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        lease = router._core.seat("s").lease
        assert lease is not None

        async def lose(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "purge":
                world.before_call = None
                await world.stores.leases.release(lease.lease)
                await world.stores.leases.try_acquire("s", "other", 30)

        world.before_call = lose
        with pytest.raises(SessionNotHeldError):
            await router.delete("s")
        view = await world.stores.records.load("s")
        assert view is not None
        assert view.state == b"kept"
        assert not world.published(SignalKind.EVICT)
        assert not router._core.seats
        await world.stores.leases.release(lease.lease)


# -- yield


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
