"""Stores and buses that are down, data that is lost, nodes that are cut off (SR §25)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import error_of, settled, submit
from tests.contract.sessions.scenes import Scene, busy_turn, ends_at, nodes, one_turn
from tests.contract.sessions.test_release import listening
from zlinkpy.sessions.errors import LeaseLostError, SessionLeaseError, SessionSignalError
from zlinkpy.sessions.events import InterruptedAt
from zlinkpy.sessions.types import InterruptReason, SignalKind


@pytest.mark.contract("SR-379", "SR-420")
@pytest.mark.parametrize("applied", ["no", "unknown"])
async def test_a_lease_store_that_is_down_costs_the_submit_only(autojump_clock: trio.abc.Clock, applied: str) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        error = SessionLeaseError("down", applied=applied)  # type: ignore[arg-type]
        down = await scene.fail_calls("n1", "try_acquire", error=error)
        with pytest.raises(SessionLeaseError) as refused:
            await submit(one, key="k")
        assert refused.value.status_hint == 503
        assert await scene.entry() is None
        assert "s" not in one._core.seats
        scene.hooks.remove(down)
        submitted = await submit(one, key="k")
        (await scene.turn(0)).finish("ran")
        assert (await settled(submitted)).answer == "ran"


@pytest.mark.contract("SR-380")
async def test_a_bus_that_comes_back_needs_no_restart(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        waiting = await submit(two, key="k")
        queued = await submit(two, "queued")
        turn = await scene.turn(1)
        scene.bus_cut = scene.deaf = {"n1", "n2"}
        with pytest.raises(SessionSignalError):
            await two.interrupt("s")
        await trio.sleep(5)
        assert turn.session.interrupts == []
        turn.finish("in the dark")
        await trio.sleep(5)
        scene.bus_cut, scene.deaf = set(), set()
        assert (await settled(waiting, 16)).answer == "in the dark"
        following = await scene.turn(2)
        assert following.session.interrupts == []
        await two.interrupt("s")
        assert (await settled(queued)).completion == "interrupted"
        assert following.session.interrupts == [InterruptReason.USER]
        after = await submit(two, "after")
        (await scene.turn(3)).finish("heard at once")
        assert (await settled(after)).answer == "heard at once"


@pytest.mark.contract("SR-381", "SR-168")
async def test_the_record_alone_is_enough_to_go_on(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        turn.ctx.state = b"history"
        turn.finish()
        await settled(submitted)
        submitted, turn = await busy_turn(scene, one, key="k")
        turn.ctx.state = b"lost"
        for store in (scene.stores.leases, scene.stores.inbox, scene.stores.idempotency):
            store.wipe()  # type: ignore[attr-defined]
        assert type(await error_of(submitted, 11)) is LeaseLostError
        assert turn.session.interrupts == [InterruptReason.LEASE_LOST]
        await wait_all_tasks_blocked()
        submitted, turn = await busy_turn(scene, one)
        assert (turn.ctx.state, turn.ctx.version) == (b"history", 1)
        turn.ctx.state = b"goes on"
        turn.finish()
        await settled(submitted)
        record = await scene.stores.records.load("s")
        assert record is not None
        assert (record.state, record.version) == (b"goes on", 2)


@pytest.mark.contract("SR-382")
async def test_what_a_dead_node_left_behind_runs_elsewhere(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery, nodes(scene, "n1", "n2") as [one, two]:
        [listener] = await listening(nursery, two)
        _, turn = await busy_turn(scene, one, key="dead")
        turn.ctx.state = b"of the dead"
        waiting = [await submit(two, f"queued {n}", key=f"k{n}") for n in range(2)]
        await wait_all_tasks_blocked()
        scene.cut.add("n1")
        turn.finish()
        died = trio.current_time()
        for number in (1, 2):
            following = await scene.turn(number)
            assert following.session.node == "n2"
            assert following.ctx.state is None
            following.finish(f"by n2: {following.text}")
        for number, each in enumerate(waiting):
            assert (await settled(each)).answer == f"by n2: queued {number}"
        await trio.sleep_until(died + 47)
        assert await scene.entry("dead") is None
        record = await scene.stores.records.load("s")
        assert record is not None
        assert record.state is None
        lost = [each for each in listener.seen if isinstance(each, InterruptedAt)]
        assert [each.reason for each in lost] == [InterruptReason.HOLDER_LOST]
        nursery.cancel_scope.cancel()


@pytest.mark.contract("SR-383", "SR-384")
@pytest.mark.parametrize("phase", [0.5, 5.0, 9.5])
async def test_of_two_who_believe_to_hold_a_session_one_writes(autojump_clock: trio.abc.Clock, phase: float) -> None:
    scene = Scene()
    scene.obedient = False
    async with nodes(scene, "n1", "n2") as [one, two]:
        first, cut_off = await busy_turn(scene, one)
        await trio.sleep(20 + phase)
        renewed = scene.at("extend", "n1")[-1]
        scene.cut.add("n1")
        second = await submit(two)
        turn = await scene.turn(1)
        assert turn.session.node == "n2"
        interrupted = cut_off.session.interrupts == [InterruptReason.LEASE_LOST]
        assert interrupted
        assert trio.current_time() >= renewed + scene.config.lock_lease
        scene.cut.clear()
        cut_off.ctx.state, turn.ctx.state = b"of n1", b"of n2"
        cut_off.finish()
        assert type(await error_of(first)) is LeaseLostError
        turn.finish("of n2")
        assert (await settled(second)).answer == "of n2"
        record = await scene.stores.records.load("s")
        assert record is not None
        assert (record.state, record.version) == (b"of n2", 1)


@pytest.mark.contract("SR-384")
@pytest.mark.parametrize("phase", [0.5, 5.0, 9.5])
async def test_a_node_that_is_cut_off_stops_in_time(autojump_clock: trio.abc.Clock, phase: float) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        ended = ends_at(submitted)
        await trio.sleep(20 + phase)
        renewed = scene.at("extend", "n1")[-1]
        scene.cut.add("n1")
        assert type(await error_of(submitted, 40)) is LeaseLostError
        assert turn.session.interrupts == [InterruptReason.LEASE_LOST]
        assert ended[0] <= renewed + scene.config.lock_lease + 0.01


@pytest.mark.contract("SR-463")
async def test_two_nodes_of_one_name_are_told_apart(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "a", node_id="web") as [one], nodes(scene, "b", node_id="web") as [two]:
        submitted, turn = await busy_turn(scene, one, key="k1")
        waiting = await submit(two, "forwarded", key="k2")
        assert waiting.inbox_id
        await wait_all_tasks_blocked()
        assert scene.published(SignalKind.MESSAGE_ENQUEUED, "b")
        turn.finish()
        await settled(submitted)
        following = await scene.turn(1)
        assert following.session.node == "a"
        following.finish("from the other")
        assert (await settled(waiting)).answer == "from the other"
        reservers = [entry[5] for entry in scene.log if entry[1] == "put_if_absent"]
        reservers += [entry[3] for entry in scene.log if entry[1] == "acquire_holder"]
        assert len(set(reservers)) == len(reservers) == 3
        assert all(each.startswith("web/") for each in reservers)
