"""What a node does when a peer says that a session is over (SR §20)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import error_of, settled, submit
from tests.contract.sessions.scenes import Scene, busy_turn, nodes, one_turn
from tests.contract.sessions.test_release import listening
from zlinkpy.sessions.errors import SessionEvictedError
from zlinkpy.sessions.events import InterruptedAt, OutputDelta, TurnEvent
from zlinkpy.sessions.types import InterruptReason, RouterConfig, SignalKind, StatusSource

GONE = {"reason": "SESSION_RELEASED"}


@pytest.mark.contract("SR-322", "SR-369", "SR-344")
async def test_everything_of_an_evicted_session_goes(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig(status_broadcast=True))
    scene.hears_events = True
    async with trio.open_nursery() as nursery, nodes(scene, "n1", "n2") as [one, two]:
        listeners = [*await listening(nursery, one), *await listening(nursery, one)]
        submitted = await submit(two)
        (await scene.turn(0)).finish()
        await settled(submitted)
        await scene.say(SignalKind.YIELD)
        await trio.sleep(1)
        probe = await one_turn(scene, one)
        assert one._status.projection.get("s") is not None
        await scene.reserve("k", "waiting")
        waiting = await submit(one, "waiting", key="k")
        await scene.say(SignalKind.EVICT, GONE, origin="the evicting node")
        assert probe.closed == 1
        assert await scene.holder() is None
        error = await error_of(waiting)
        assert isinstance(error, SessionEvictedError)
        assert "the evicting node" in str(error)
        assert ("n1", "s") in scene.purged
        assert one.status("s").source is StatusSource.UNKNOWN
        assert "s" not in one._core.seats
        for each in listeners:
            assert each.ended_at is not None
            assert isinstance(each.seen[-1], InterruptedAt)
            assert each.seen[-1].reason is InterruptReason.SESSION_RELEASED


@pytest.mark.contract("SR-323")
async def test_a_pinned_handle_is_closed_at_the_end_of_its_turn(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        await scene.say(SignalKind.EVICT, GONE)
        await trio.sleep(60)
        assert "handles 0" in repr(one)
        assert turn.session.closed == 0
        turn.finish("to its end")
        assert (await settled(submitted)).answer == "to its end"
        await wait_all_tasks_blocked()
        assert turn.session.closed == 1
        assert await scene.holder() is None


@pytest.mark.contract("SR-324")
async def test_an_unknown_session_is_not_made_by_its_eviction(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery, nodes(scene, "n1") as [one]:
        [listener] = await listening(nursery, one)
        scene.log.clear()
        await scene.say(SignalKind.EVICT, GONE)
        await scene.say(SignalKind.EVICT, {})
        await trio.sleep(1)
        assert listener.ended_at is not None
        assert {"open", "try_acquire", "provision", "deliver"}.isdisjoint(scene.calls())
        assert await scene.stores.records.load("s") is None
        assert "s" not in one._core.seats


@pytest.mark.contract("SR-325")
async def test_who_subscribes_after_the_end_gets_a_new_stream(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery, nodes(scene, "n1") as [one]:
        await one_turn(scene, one)
        [before] = await listening(nursery, one)
        await scene.say(SignalKind.EVICT, GONE)
        assert before.ended_at is not None
        [after] = await listening(nursery, one)
        submitted, turn = await busy_turn(scene, one)
        turn.ctx.emit(OutputDelta("new"))
        turn.finish()
        await settled(submitted)
        await wait_all_tasks_blocked()
        texts = [each.text for each in after.seen if isinstance(each, OutputDelta)]
        assert texts == ["new"]
        assert after.ended_at is None
        assert not [each for each in before.seen if isinstance(each, TurnEvent) and each.turn_id == submitted.turn_id]
        nursery.cancel_scope.cancel()


@pytest.mark.contract("SR-322", "SR-344")
@pytest.mark.parametrize("end", ["release", "delete"])
async def test_a_node_that_only_listens_hears_of_the_end(autojump_clock: trio.abc.Clock, end: str) -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery, nodes(scene, "n1", "n2") as [one, two]:
        [listener] = await listening(nursery, two)
        await one_turn(scene, one)
        await (one.release("s") if end == "release" else one.delete("s"))
        await wait_all_tasks_blocked()
        assert listener.ended_at is not None
        assert isinstance(listener.seen[-1], InterruptedAt)
        assert ("n2", "s") in scene.purged
        nursery.cancel_scope.cancel()
