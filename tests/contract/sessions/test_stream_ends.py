"""What ends the streams of a session and what does not (SR §22)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.scenes import Scene, nodes, one_turn
from tests.contract.sessions.test_release import listening
from zlinkpy.sessions.events import InterruptedAt, TurnCompleted
from zlinkpy.sessions.types import InterruptReason, RouterConfig, SignalKind


@pytest.mark.contract("SR-344")
@pytest.mark.parametrize("end", ["release", "delete", "EVICT", "close"])
async def test_streams_end_with_their_session_where_it_is_ended_and_elsewhere(
    autojump_clock: trio.abc.Clock, end: str
) -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery, nodes(scene, "n1", "n2") as [one, two]:
        here, there = await listening(nursery, one, two)
        await one_turn(scene, one)
        assert (here.ended_at, there.ended_at) == (None, None)
        if end == "EVICT":
            await scene.say(SignalKind.EVICT, {"reason": "SESSION_RELEASED"})
        else:
            await (one.close() if end == "close" else getattr(one, end)("s"))
        await wait_all_tasks_blocked()
        assert here.ended_at is not None
        # Who closes ends nobody else's session.
        assert (there.ended_at is None) == (end == "close")
        nursery.cancel_scope.cancel()


@pytest.mark.contract("SR-344")
@pytest.mark.parametrize("what", ["turn end", "YIELD", "idle eviction", "holder loss"])
async def test_streams_go_on_when_only_a_holder_changes(autojump_clock: trio.abc.Clock, what: str) -> None:
    scene = Scene(RouterConfig(idle_ttl=30.0, cache_sweep_interval=1.0))
    async with trio.open_nursery() as nursery, nodes(scene, "n1", "n2") as [one, two]:
        listeners = await listening(nursery, one, two)
        probe = await one_turn(scene, one)
        if what == "YIELD":
            await scene.say(SignalKind.YIELD)
        elif what == "idle eviction":
            await trio.sleep(32)
        elif what == "holder loss":
            await scene.reserve("lost")
            await trio.sleep(50)
            for each in listeners:
                lost = [event.reason for event in each.seen if isinstance(event, InterruptedAt)]
                assert lost == [InterruptReason.HOLDER_LOST]
        assert probe.closed == (what != "turn end")
        await one_turn(scene, one)
        await wait_all_tasks_blocked()
        for each in listeners:
            assert each.ended_at is None
            assert len([event for event in each.seen if isinstance(event, TurnCompleted)]) == 2
        nursery.cancel_scope.cancel()
