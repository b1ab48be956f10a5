"""Releasing a session, and handles that idle out (SR §17)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Turn, error_of, settled, submit
from tests.contract.sessions.scenes import Scene, busy_turn, nodes, on_end, one_turn
from zlinkpy.sessions.errors import ReentrantSubmitError, SessionEvictedError
from zlinkpy.sessions.events import TurnEvent
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.types import InterruptReason, RouterConfig, SignalKind, TurnResult


class Listener:
    """Someone who follows a session."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.ended_at: float | None = None

    async def follow(self, router: SessionRouter, session: str = "s") -> None:
        async for event in router.events(session):
            self.seen.append(event)
        self.ended_at = trio.current_time()


async def listening(nursery: trio.Nursery, *routers: SessionRouter) -> list[Listener]:
    """A listener on each of these nodes, heard of by all others."""
    found = [Listener() for _ in routers]
    for each, router in zip(found, routers, strict=True):
        nursery.start_soon(each.follow, router)
    await wait_all_tasks_blocked()
    return found


@pytest.mark.contract("SR-271")
async def test_the_steps_of_a_release_have_an_order(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        await one_turn(scene, one)
        # Waits here for a turn that ran somewhere else.
        await scene.reserve("k", "waiting")
        waiting = await submit(one, "waiting", key="k")
        on_end(waiting.future, lambda: scene.log.append(("n1", "forward failed", "handles 0" in repr(one))))
        scene.log.clear()
        await one.release("s")
        steps = {
            "close": "close",
            "release": "release",
            "purge": "purge",
            "forward failed": "forward failed",
            "purge hook": "purge hook",
            "publish": "publish",
            "complete": "complete",
            "unsubscribe": "unsubscribe",
        }
        assert [name for name in scene.calls() if name in steps] == list(steps)
        assert [entry[2] for entry in scene.log if entry[1] in ("forward failed", "publish")] == [
            True,
            SignalKind.EVICT,
        ]
        assert type(await error_of(waiting)) is SessionEvictedError


@pytest.mark.contract("SR-272")
async def test_a_release_waits_for_the_turn_and_not_longer(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()

    async def a_second_more(turn: Turn) -> None:
        await turn.end.wait()
        await trio.sleep(1)

    scene.behave = a_second_more
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        on_end(submitted.future, lambda: scene.log.append(("n1", "settled")))
        began = trio.current_time()
        await one.release("s")
        assert 1.0 <= trio.current_time() - began < 1.5
        assert turn.session.interrupts == [InterruptReason.SESSION_RELEASED]
        assert scene.calls("settled", "close") == ["settled", "close"]


@pytest.mark.contract("SR-273")
async def test_a_turn_that_ignores_a_release_is_cancelled(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    scene.obedient = False
    async with trio.open_nursery() as nursery, nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        [listener] = await listening(nursery, one)
        began = trio.current_time()
        with caplog.at_level(logging.WARNING, logger="zlinkpy.sessions"):
            await one.release("s")
        assert 5.0 <= trio.current_time() - began < 5.6
        assert turn.session.closed == 1
        await error_of(submitted)
        await wait_all_tasks_blocked()
        assert listener.ended_at == pytest.approx(began + 5, abs=0.6)
        assert any("cancelled" in each.getMessage() for each in caplog.records)


@pytest.mark.contract("SR-274", "SR-279")
async def test_history_outlives_a_release_and_a_second_one_changes_nothing(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        turn.ctx.state = b"history"
        turn.finish()
        await settled(submitted)
        await one.release("s")
        before = await scene.stores.records.load("s")
        scene.log.clear()
        await one.release("s")
        assert await scene.stores.records.load("s") == before
        assert await scene.holder() is None
        assert {"close", "try_acquire", "commit", "delete", "provision"}.isdisjoint(scene.calls())
        submitted, turn = await busy_turn(scene, one)
        assert turn.ctx.state == b"history"
        turn.finish()
        await settled(submitted)


@pytest.mark.contract("SR-275")
async def test_queued_messages_and_waiting_forwards_end_with_the_session(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one)
        waiting = [await submit(each, f"{n}") for each in (one, two) for n in range(2)]
        await scene.queue("nobody waits for it", key="k")
        await one.release("s")
        assert await scene.entry() is None
        for each in waiting:
            assert type(await error_of(each)) is SessionEvictedError
        assert await scene.stores.inbox.is_empty("s")
        assert len(scene.turns) == 1


@pytest.mark.contract("SR-276")
@pytest.mark.parametrize("end", ["release", "delete", "evict"])
async def test_a_doorbell_mark_ends_with_the_session(autojump_clock: trio.abc.Clock, end: str) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        await scene.say(SignalKind.MESSAGE_ENQUEUED, {"inboxId": "1:1-0"})
        assert one._core.seats["s"].doorbell
        if end == "release":
            await one.release("s")
        elif end == "delete":
            await one.delete("s")
        else:
            await scene.say(SignalKind.EVICT, {"reason": "SESSION_RELEASED"})
            assert not one._core.seats["s"].doorbell
            turn.finish()
            await settled(submitted)
        await wait_all_tasks_blocked()
        assert await scene.holder() is None
        scene.log.clear()
        await trio.sleep(5)
        assert {"try_acquire", "collect", "is_empty"}.isdisjoint(scene.calls())
        await one_turn(scene, one)
        assert scene.calls("try_acquire", "open") == ["try_acquire", "open"]
        assert not one._core.seats["s"].doorbell


@pytest.mark.contract("SR-277")
async def test_an_unknown_session_is_released_everywhere(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        await one.release("never seen")
        [told] = scene.published(SignalKind.EVICT)
        assert told.session_id == "never seen"
        assert await scene.stores.records.load("never seen") is None


@pytest.mark.contract("SR-278")
async def test_a_release_reaches_the_node_that_runs_the_turn(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery, nodes(scene, "n1", "n2") as [one, two]:
        _, turn = await busy_turn(scene, one)
        listeners = await listening(nursery, one, two)
        began = trio.current_time()
        await two.release("s")
        assert trio.current_time() - began <= 6
        assert await scene.holder() is None
        assert set(turn.session.interrupts) == {InterruptReason.SESSION_RELEASED}
        await wait_all_tasks_blocked()
        assert turn.session.closed == 1
        assert None not in [each.ended_at for each in listeners]


@pytest.mark.contract("SR-442")
async def test_a_holder_that_never_yields_is_evicted_all_the_same(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    scene.deaf = {"n1"}
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one)
        began = trio.current_time()
        await two.release("s")
        assert 4.5 <= trio.current_time() - began <= 6
        assert len(scene.published(SignalKind.EVICT, "n2")) == 1
        assert scene.published(SignalKind.YIELD, "n2")


@pytest.mark.contract("SR-441")
async def test_no_submit_slips_into_a_release(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()

    async def a_second_more(turn: Turn) -> None:
        await turn.end.wait()
        if turn is scene.turns[0]:
            await trio.sleep(1)

    async def slowly(_: object) -> None:
        await trio.sleep(2)

    scene.behave, scene.closing = a_second_more, slowly
    async with nodes(scene, "n1", "n2") as [one, two]:
        _, turn = await busy_turn(scene, one)
        async with trio.open_nursery() as nursery:

            async def keep_submitting(router: SessionRouter) -> None:
                while True:
                    await submit(router, "slipped in")
                    await trio.sleep(0.05)

            nursery.start_soon(keep_submitting, one)
            nursery.start_soon(keep_submitting, two)
            await one.release("s")
            assert trio.current_time() >= 3
            nursery.cancel_scope.cancel()
        assert len(scene.turns) == 1
        assert turn.session.inputs == ["busy"]
        assert turn.session.closed == 1


@pytest.mark.contract("SR-443")
@pytest.mark.parametrize("end", ["release", "delete"])
async def test_a_turn_cannot_end_its_own_session(autojump_clock: trio.abc.Clock, end: str) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:

        async def behave(turn: Turn) -> None:
            began = trio.current_time()
            with pytest.raises(ReentrantSubmitError):
                await getattr(one, end)("s")
            assert trio.current_time() == began
            turn.result = TurnResult(True, "refused")

        scene.behave = behave
        assert (await settled(await submit(one))).answer == "refused"
        assert await scene.holder() == "n1"


@pytest.mark.contract("SR-280", "SR-344")
async def test_idling_out_is_nobody_elses_business(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig(cache_sweep_interval=1.0))
    async with trio.open_nursery() as nursery, nodes(scene, "n1", "n2") as [one, two]:
        [listener] = await listening(nursery, two)
        probe = await one_turn(scene, one)
        await trio.sleep(300)
        other = await one_turn(scene, two, "t")
        expires = trio.current_time() + 600
        scene.log.clear()
        await trio.sleep(310)
        assert (probe.closed, await scene.holder()) == (1, None)
        assert "publish" not in scene.calls()
        assert listener.ended_at is None
        await trio.sleep_until(expires - 1)
        assert other.closed == 0
        await trio.sleep_until(expires + 2)
        assert other.closed == 1
        await one_turn(scene, one)
        assert [each for each in listener.seen if isinstance(each, TurnEvent)]
        nursery.cancel_scope.cancel()


@pytest.mark.contract("SR-281")
async def test_idling_out_forgets_nothing_of_the_session(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig(idle_ttl=30.0, cache_sweep_interval=1.0))
    async with nodes(scene, "n1") as [one]:
        probe = await one_turn(scene, one)
        go_on = trio.Event()

        async def slow_return(node: str, name: str, _: object) -> None:
            if name == "release":
                await go_on.wait()

        scene.hooks.append(slow_return)
        await trio.sleep(32)
        assert probe.closed == 1
        # Rings while the lease goes back: the mark is answered when it is there.
        await scene.queue("meanwhile")
        await scene.say(SignalKind.MESSAGE_ENQUEUED, {"inboxId": "1:1-0"})
        assert one._core.seats["s"].doorbell
        assert len(scene.turns) == 1
        go_on.set()
        turn = await scene.turn(1)
        assert turn.text == "meanwhile"
        assert {"purge hook", "unsubscribe", "complete"}.isdisjoint(scene.calls())
        assert scene.purged == []
        turn.finish()


@pytest.mark.contract("SR-455")
async def test_a_session_that_is_quiet_for_long_is_unsubscribed(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig(idle_ttl=60.0))
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        submitted = await submit(two)
        (await scene.turn(1)).finish()
        await settled(submitted)
        quiet_since = trio.current_time()
        await trio.sleep_until(quiet_since + 599)
        assert "unsubscribe" not in scene.calls()
        await trio.sleep_until(quiet_since + 900)
        assert scene.calls("unsubscribe", node="n2") == ["unsubscribe"]
        assert ("n2", "s") in scene.purged
        scene.log.clear()
        await one_turn(scene, two)
        assert scene.calls(node="n2")[0] == "subscribe"


@pytest.mark.contract("SR-275", "SR-143")
async def test_what_comes_during_a_delete_hears_of_the_next_end(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    found: list[Any] = []

    async def late(session_id: str) -> None:
        # Everything was purged, and nobody was told yet.
        if not found:
            found.append(await submit(one, "late", session_id))

    async with nodes(scene, "n1", purge_hooks=[late]) as [one], nodes(scene, "n2") as [two]:
        await one_turn(scene, one)
        await one.delete("s")
        assert not found[0].future.done()
        await two.release("s")
        assert type(await error_of(found[0])) is SessionEvictedError


@pytest.mark.contract("SR-313", "SR-143")
@pytest.mark.parametrize("end", ["release", "delete"])
async def test_a_submit_that_overlaps_an_end_is_not_deaf(autojump_clock: trio.abc.Clock, end: str) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        there, go_on = trio.Event(), trio.Event()

        async def hold(node: str, name: str, _: object) -> None:
            if (node, name) == ("n1", "load") and not there.is_set():
                there.set()
                await go_on.wait()

        scene.hooks.append(hold)
        found: list[Any] = []

        async def overlapping() -> None:
            found.append(await submit(one, "overlaps"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(overlapping)
            await there.wait()
            await (one.release("s") if end == "release" else one.delete("s"))
            go_on.set()
        await scene.turn(1)
        await two.interrupt("s")
        assert (await settled(found[0])).completion == "interrupted"
