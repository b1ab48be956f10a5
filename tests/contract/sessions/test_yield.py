"""Handing a session over when a peer asks for it (SR §18)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import settled, submit
from tests.contract.sessions.scenes import Scene, busy_turn, nodes, one_turn
from tests.contract.sessions.test_release import listening
from zlinkpy.sessions.types import DispositionKind, InterruptReason, RouterConfig, SignalKind, StatusSource

LEGACY = {"reason": "SESSION_RELEASED"}


@pytest.mark.contract("SR-305", "SR-344")
async def test_an_idle_session_is_handed_over_and_that_is_all(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig(status_broadcast=True))
    scene.hears_events = True
    async with trio.open_nursery() as nursery, nodes(scene, "n1", "n2") as [one, two]:
        [listener] = await listening(nursery, one)
        submitted = await submit(two)
        (await scene.turn(0)).finish()
        await settled(submitted)
        await scene.say(SignalKind.YIELD)
        await trio.sleep(1)
        probe = await one_turn(scene, one)
        await scene.reserve("k", "waiting")
        waiting = await submit(one, "waiting", key="k")
        assert one._status.projection.get("s") is not None
        scene.log.clear()
        refused = await scene.fail_calls("n1", "collect")
        await scene.queue("stays")
        await scene.say(SignalKind.YIELD)
        assert probe.closed == 1
        assert await scene.holder() is None
        assert not await scene.stores.inbox.is_empty("s")
        assert not waiting.future.done()
        assert listener.ended_at is None
        assert scene.purged == []
        assert {"complete", "unsubscribe", "purge", "purge hook"}.isdisjoint(scene.calls())
        assert one.status("s").source is StatusSource.REMOTE_PROJECTION
        scene.hooks.remove(refused)
        nursery.cancel_scope.cancel()


@pytest.mark.contract("SR-306")
async def test_a_running_session_is_handed_over_at_the_end_of_its_turn(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        submitted, turn = await busy_turn(scene, one)
        queued = [await submit(two, f"queued {n}") for n in range(2)]
        await scene.say(SignalKind.YIELD)
        assert turn.session.interrupts == [InterruptReason.SESSION_RELEASED]
        await settled(submitted)
        await wait_all_tasks_blocked()
        assert turn.session.closed == 1
        asker = await submit(two, "asker")
        assert asker.kind is DispositionKind.EXECUTED_LOCALLY
        for number in range(1, 4):
            (await scene.turn(number)).finish()
            await wait_all_tasks_blocked()
        for each in [*queued, asker]:
            await settled(each)
        assert [each.text for each in scene.turns[1:]] == ["queued 0", "queued 1", "asker"]
        assert {each.session.node for each in scene.turns[1:]} == {"n2"}


@pytest.mark.contract("SR-307")
async def test_ordinary_submits_ask_for_no_yield(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        submitted, turn = await busy_turn(scene, one)
        for number in range(5):
            await submit(two, str(number), key=f"k{number}")
        await trio.sleep(60)
        assert scene.published(SignalKind.YIELD) == []
        assert scene.published(SignalKind.INTERRUPT) == []
        assert turn.session.interrupts == []
        turn.finish("undisturbed")
        assert (await settled(submitted)).answer == "undisturbed"


@pytest.mark.contract("SR-308")
async def test_a_lease_without_handle_is_returned(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig(idle_ttl=30.0, cache_sweep_interval=1.0))

    async def slowly(_: object) -> None:
        await trio.sleep(20)

    scene.closing = slowly
    async with nodes(scene, "n1") as [one]:
        await one_turn(scene, one)
        await trio.sleep(32)
        assert "handles 0" in repr(one)
        assert await scene.holder() == "n1"
        await scene.say(SignalKind.YIELD)
        await trio.sleep(1)
        assert await scene.holder() is None


@pytest.mark.contract("SR-310")
@pytest.mark.parametrize("aimed", [False, True])
async def test_the_legacy_form_is_a_yield_unless_it_names_a_turn(autojump_clock: trio.abc.Clock, aimed: bool) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        await scene.say(SignalKind.INTERRUPT, {**LEGACY, **({"turnId": submitted.turn_id} if aimed else {})})
        await settled(submitted)
        assert turn.session.interrupts == [InterruptReason.SESSION_RELEASED]
        await wait_all_tasks_blocked()
        assert turn.session.closed == (0 if aimed else 1)
        assert await scene.holder() == ("n1" if aimed else None)


@pytest.mark.contract("SR-311", "SR-087")
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("first", [SignalKind.YIELD, SignalKind.INTERRUPT])
async def test_both_forms_are_one_yield(autojump_clock: trio.abc.Clock, first: SignalKind, running: bool) -> None:
    scene = Scene()
    scene.obedient = False
    async with nodes(scene, "n1") as [one]:
        if running:
            submitted, turn = await busy_turn(scene, one)
            probe = turn.session
        else:
            probe = await one_turn(scene, one)
        scene.log.clear()
        second = SignalKind.YIELD if first is SignalKind.INTERRUPT else SignalKind.INTERRUPT
        for kind in (first, second):
            await scene.say(kind, LEGACY if kind is SignalKind.INTERRUPT else {})
        if running:
            turn.finish()
            await settled(submitted)
        await trio.sleep(2)
        assert probe.interrupts == [InterruptReason.SESSION_RELEASED] * running
        assert scene.calls("close", "release", "try_acquire") == ["close", "release"]


@pytest.mark.contract("SR-312")
async def test_without_the_shim_only_yield_yields(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig(legacy_yield_shim=False))
    async with nodes(scene, "n1", "n2") as [one, two]:
        submitted, turn = await busy_turn(scene, one)
        await scene.say(SignalKind.INTERRUPT, LEGACY)
        await settled(submitted)
        await wait_all_tasks_blocked()
        assert turn.session.interrupts == [InterruptReason.SESSION_RELEASED]
        assert (turn.session.closed, await scene.holder()) == (0, "n1")
        await two.delete("s")
        assert scene.published(SignalKind.YIELD, "n2")
        assert scene.published(SignalKind.INTERRUPT, "n2") == []
        assert turn.session.closed == 1


@pytest.mark.contract("SR-440")
@pytest.mark.parametrize("kind", [SignalKind.YIELD, SignalKind.EVICT, SignalKind.INTERRUPT])
async def test_a_signal_about_an_earlier_lease_is_ignored(autojump_clock: trio.abc.Clock, kind: SignalKind) -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery, nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        [listener] = await listening(nursery, one)
        holder = await scene.stores.leases.find_holder("s")
        assert holder is not None
        reason: dict[str, Any] = {} if kind is SignalKind.YIELD else LEGACY
        await scene.say(kind, {**reason, "token": holder.token - 1})
        assert turn.session.interrupts == []
        assert "handles 1" in repr(one)
        assert listener.ended_at is None
        assert scene.purged == []
        await scene.say(kind, {**reason, "token": holder.token})
        assert "handles 0" in repr(one)
        turn.finish()
        await settled(submitted)
        nursery.cancel_scope.cancel()
