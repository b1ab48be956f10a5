"""Stopping a turn from anywhere (SR §19)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Probe, settled, submit
from tests.contract.sessions.scenes import Scene, busy_turn, nodes, one_turn
from zlinkpy.sessions.errors import SessionSignalError
from zlinkpy.sessions.types import InterruptReason, SignalKind


@pytest.mark.contract("SR-313")
async def test_an_interrupt_reaches_the_turn_wherever_it_runs(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2", "n3") as [one, two, three]:
        submitted, turn = await busy_turn(scene, one)
        queued = await submit(three)
        await two.interrupt("s", InterruptReason.USER)
        assert (await settled(submitted)).completion == "interrupted"
        assert turn.session.interrupts == [InterruptReason.USER]
        (await scene.turn(1)).finish("went on")
        assert (await settled(queued)).answer == "went on"
        assert {each.node for each in scene.probes} == {"n1"}


@pytest.mark.contract("SR-314")
async def test_what_an_interrupt_says(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        await one.interrupt("s")
        await one.interrupt("s", InterruptReason.SYSTEM_SHUTDOWN, turn_id="t1")
        plain, aimed = scene.published(SignalKind.INTERRUPT)
        assert (dict(plain.payload), plain.origin_node) == ({"reason": "USER"}, "n1")
        assert dict(aimed.payload) == {"reason": "SYSTEM_SHUTDOWN", "turnId": "t1"}


@pytest.mark.contract("SR-315")
@pytest.mark.parametrize("remote", [False, True])
async def test_an_aimed_interrupt_hits_that_turn_and_no_other(autojump_clock: trio.abc.Clock, remote: bool) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as routers:
        asking = routers[1 if remote else 0]
        first, turn = await busy_turn(scene, routers[0])
        second = await submit(routers[0], "next")
        await asking.interrupt("s", turn_id="unknown")
        await asking.interrupt("s", turn_id=second.turn_id)
        await wait_all_tasks_blocked()
        assert turn.session.interrupts == []
        await asking.interrupt("s", turn_id=first.turn_id)
        await settled(first)
        following = await scene.turn(1)
        await asking.interrupt("s", turn_id=first.turn_id)
        await wait_all_tasks_blocked()
        assert following.session.interrupts == [InterruptReason.USER]
        assert not following.end.is_set()
        await asking.interrupt("s", turn_id=second.turn_id)
        await settled(second)
        assert following.session.interrupts == [InterruptReason.USER] * 2


@pytest.mark.contract("SR-316")
async def test_a_forwarded_turn_is_interrupted_where_it_runs(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        other, local = await busy_turn(scene, two, "local")
        forwarded = await submit(two)
        turn = await scene.turn(2)
        assert turn.session.node == "n1"
        await two.interrupt("s", turn_id=forwarded.turn_id)
        assert (await settled(forwarded)).completion == "interrupted"
        assert turn.session.interrupts == [InterruptReason.USER]
        assert local.session.interrupts == []
        local.finish()
        await settled(other)


@pytest.mark.contract("SR-317")
async def test_the_running_turns_handle_is_interrupted_not_the_cached_one(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        one._core.cache.evict("s")
        fresh = Probe("n1", "s", scene, {}, {})

        async def opened() -> Probe:
            await trio.lowlevel.checkpoint()
            return fresh

        entry = await one._core.cache.acquire("s", opened)
        await one.interrupt("s")
        assert turn.session.interrupts == [InterruptReason.USER]
        assert fresh.interrupts == []
        await settled(submitted)
        await one._core.cache.unpin(entry)


@pytest.mark.contract("SR-318")
async def test_without_a_turn_an_interrupt_does_nothing(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        probe = await one_turn(scene, one)
        lease, record = await scene.stores.leases.find_holder("s"), await scene.stores.records.load("s")
        scene.log.clear()
        for router in (one, two):
            await router.interrupt("s")
            await router.interrupt("never seen")
        await wait_all_tasks_blocked()
        assert (probe.interrupts, probe.closed) == ([], 0)
        assert "handles 1" in repr(one)
        found = await scene.stores.leases.find_holder("s")
        assert lease is not None
        assert found is not None
        assert found.token == lease.token
        assert await scene.stores.records.load("s") == record
        assert set(scene.calls()) == {"publish"}


@pytest.mark.contract("SR-319")
async def test_an_unknown_reason_counts_as_user(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        await scene.say(SignalKind.INTERRUPT, {"reason": "OF_A_NEWER_NODE"})
        await settled(submitted)
        assert turn.session.interrupts == [InterruptReason.USER]


@pytest.mark.contract("SR-320")
async def test_an_interrupted_session_goes_on_with_its_queue(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        submitted, turn = await busy_turn(scene, one)
        queued = await submit(two, "queued")
        await one.interrupt("s", InterruptReason.USER)
        await settled(submitted)
        following = await scene.turn(1)
        assert (following.text, following.session) == ("queued", turn.session)
        assert turn.session.closed == 0
        assert await scene.holder() == "n1"
        assert scene.calls("release", "purge") == []
        following.finish()
        await settled(queued)


@pytest.mark.contract("SR-321")
async def test_a_bus_that_is_down_stops_no_local_interrupt(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        scene.bus_cut = {"n1"}
        with pytest.raises(SessionSignalError):
            await one.interrupt("s")
        assert turn.session.interrupts == [InterruptReason.USER]
        await settled(submitted)


@pytest.mark.contract("SR-313", "SR-407")
async def test_a_turn_that_the_orphan_scan_began_hears_an_interrupt(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await scene.queue("orphan")
        turn = await scene.turn(0)
        others = {"n1": two, "n2": one}
        await others[turn.session.node].interrupt("s")
        await wait_all_tasks_blocked()
        assert turn.session.interrupts == [InterruptReason.USER]
        turn.finish()
