"""Closing a router: turns, leases, messages, streams, tasks (SR §17)."""

from __future__ import annotations

import threading

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Turn, error_of, settled, submit
from tests.contract.sessions.scenes import Scene, busy_turn, ends_at, nodes, one_turn, store_error, stubborn
from tests.contract.sessions.test_release import listening
from zlinkpy.sessions.errors import NotHolderError, RouterClosedError
from zlinkpy.sessions.types import InterruptReason, Priority, SignalKind


async def finish_at(turn: Turn, at: float) -> None:
    await trio.sleep_until(at)
    turn.finish("in time")


async def let_go(turn: Turn) -> None:
    await turn.end.wait()


@pytest.mark.contract("SR-282", "SR-140")
async def test_a_graceful_close_waits_for_the_turn(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery, nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        began = trio.current_time()
        nursery.start_soon(finish_at, turn, began + 2)
        results: list[bool] = []

        async def close() -> None:
            results.append(await one.close(10))

        nursery.start_soon(close)
        await wait_all_tasks_blocked()
        scene.log.clear()
        with pytest.raises(RouterClosedError):
            await submit(one, session="another")
        assert scene.calls() == []
        assert (await settled(submitted, 3)).answer == "in time"
        await trio.sleep(0.1)
        assert results == [True]
        assert trio.current_time() - began < 3
        assert turn.session.interrupts == []


@pytest.mark.contract("SR-283", "SR-288")
@pytest.mark.parametrize("timeout", [0.0, 1.0])
async def test_a_turn_that_does_not_end_is_interrupted(autojump_clock: trio.abc.Clock, timeout: float) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        ended = ends_at(submitted)
        began = trio.current_time()
        assert await (one.close(timeout) if timeout else one.close()) is False
        assert ended == [pytest.approx(began + timeout)]
        assert turn.session.interrupts == [InterruptReason.SYSTEM_SHUTDOWN]
        assert trio.current_time() - began < timeout + 1
        await settled(submitted)


@pytest.mark.contract("SR-284")
async def test_leases_are_given_back_on_closing(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        for session in ("a", "b"):
            await one_turn(scene, one, session)
        await one.close()
        assert sorted(entry[2].session_id for entry in scene.log if entry[:2] == ("n1", "release")) == ["a", "b"]
        closed = trio.current_time()
        for session in ("a", "b"):
            probe = await one_turn(scene, two, session)
            assert probe.node == "n2"
        assert trio.current_time() - closed < 1


@pytest.mark.contract("SR-285")
async def test_a_lease_store_that_raises_keeps_nobody_from_closing(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        await trio.sleep(1)
        await scene.fail_calls("n1", "release")
        began = trio.current_time()
        await one.close()
        assert trio.current_time() - began < 1
        assert any("lease" in each.getMessage() for each in caplog.records)
        assert await scene.holder() == "n1"
        await trio.sleep(31)
        assert await scene.holder() is None
        assert (await one_turn(scene, two)).node == "n2"


@pytest.mark.contract("SR-286", "SR-344")
async def test_nothing_is_left_of_a_closed_router(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    tasks = trio.lowlevel.current_statistics().tasks_living
    threads = set(threading.enumerate())
    async with trio.open_nursery() as nursery:
        async with nodes(scene, "n1") as [one]:
            for session in ("a", "b"):
                await one_turn(scene, one, session)
            listeners = [*await listening(nursery, one), *await listening(nursery, one)]
            await busy_turn(scene, one)
        await wait_all_tasks_blocked()
        assert None not in [each.ended_at for each in listeners]
        subscribed, ended = scene.calls("subscribe"), scene.calls("unsubscribe")
        assert len(subscribed) == len(ended) >= 3
    assert trio.lowlevel.current_statistics().tasks_living == tasks
    assert not set(threading.enumerate()) - threads


@pytest.mark.contract("SR-287")
async def test_closing_twice_closes_once(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        probe = await one_turn(scene, one)
        results: list[bool] = []

        async def close() -> None:
            results.append(await one.close(1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            nursery.start_soon(close)
        await close()
        assert results == [True] * 3
        assert scene.calls("complete all", "release", "close") == ["close", "release", "complete all"]
        assert probe.closed == 1


@pytest.mark.contract("SR-289")
async def test_a_turn_that_cannot_be_stopped_keeps_its_lease_until_it_expires(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    scene.behave = stubborn
    scene.obedient = False
    async with nodes(scene, "n1") as [one], nodes(scene, "n2") as [two]:
        await trio.sleep(3)
        await busy_turn(scene, one)
        try:
            await trio.sleep(12)
            waiting = await submit(two, "next")
            assert await one.close() is False
            renewed, closed = scene.at("extend", "n1")[-1], trio.current_time()
            await trio.sleep_until(renewed + 29)
            assert await scene.holder() == "n1"
            assert len(scene.turns) == 1
            scene.behave = let_go
            with trio.fail_after(20):
                following = await scene.turn(1)
            assert following.session.node == "n2"
            assert trio.current_time() >= renewed + 30
            assert scene.at("extend", "n1")[-1] <= closed
            assert scene.calls("release", node="n1") == []
            following.finish()
            await settled(waiting)
        finally:
            # Nothing else ends them, and the routers wait for it.
            for each in scene.turns:
                each.finish()


@pytest.mark.contract("SR-290", "SR-291")
async def test_a_closing_holder_hands_what_is_rung_for_to_a_peer(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery, nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        _, other = await busy_turn(scene, one, "other")
        nursery.start_soon(one.close, 30)
        await wait_all_tasks_blocked()
        scene.log.clear()
        began = trio.current_time()
        waiting = await submit(two, "queued")
        turn = await scene.turn(2)
        assert (turn.session.node, turn.text) == ("n2", "queued")
        assert trio.current_time() - began < 2
        assert scene.calls("collect", node="n1") == []
        assert len(scene.published(SignalKind.MESSAGE_ENQUEUED, "n1")) == 1
        await scene.say(SignalKind.MESSAGE_ENQUEUED, {"inboxId": "1:1-0"})
        await trio.sleep(5)
        assert len(scene.published(SignalKind.MESSAGE_ENQUEUED, "n1")) == 1
        turn.finish()
        await settled(waiting)
        other.finish()


@pytest.mark.contract("SR-291")
async def test_closing_nodes_do_not_bounce_a_doorbell(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery, nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        submitted = await submit(two)
        (await scene.turn(1)).finish()
        await settled(submitted)
        others = [(await busy_turn(scene, each, f"of {each.node_id}"))[1] for each in (one, two)]
        nursery.start_soon(one.close, 60)
        nursery.start_soon(two.close, 60)
        await wait_all_tasks_blocked()
        scene.log.clear()
        await scene.queue("nobody wants it")
        for _ in range(3):
            await scene.say(SignalKind.MESSAGE_ENQUEUED, {"inboxId": "1:1-0"})
            await trio.sleep(3)
        assert len(scene.published(SignalKind.MESSAGE_ENQUEUED, "n1")) <= 1
        assert scene.published(SignalKind.MESSAGE_ENQUEUED, "n2") == []
        assert scene.calls("collect") == []
        for turn in others:
            turn.finish()


@pytest.mark.contract("SR-292")
@pytest.mark.parametrize("refused", [False, True])
async def test_what_was_collected_and_not_started_is_put_back(autojump_clock: trio.abc.Clock, refused: bool) -> None:
    scene = Scene()
    for number in (1, 2, 3):
        await scene.queue(f"queued {number}", key=f"k{number}", turn_id=f"t{number}")
    async with nodes(scene, "n1") as [one]:
        waiting = await submit(one, "own", key="own")
        turn = await scene.turn(0)
        assert turn.text == "queued 1"
        assert await scene.stores.inbox.is_empty("s")
        if refused:
            await scene.fail_calls("n1", "deliver", error=store_error("deliver", applied="no"))
        scene.log.clear()
        await one.close()
        await wait_all_tasks_blocked()
        ended = {each.payload["turn"]: each.payload["outcome"] for each in scene.published(SignalKind.TURN_RESULT)}
        if refused:
            assert (ended["t2"], ended["t3"]) == ("NOT_HOLDER", "NOT_HOLDER")
            assert type(await error_of(waiting)) is NotHolderError
            for key in ("k2", "k3", "own"):
                assert await scene.entry(key) is None
            assert await scene.stores.inbox.is_empty("s")
        else:
            assert len(scene.published(SignalKind.MESSAGE_ENQUEUED, "n1")) == 1
            batch = await scene.stores.inbox.collect("s", Priority.LATER)
            assert [each.input.text for each in batch.messages] == ["queued 2", "queued 3", "own"]
            assert [each.turn_id for each in batch.messages] == ["t2", "t3", waiting.turn_id]
            for key in ("k2", "k3", "own"):
                entry = await scene.entry(key)
                assert entry is not None
                assert entry.holder_id is None
        assert len(scene.turns) == 1


@pytest.mark.contract("SR-290")
async def test_what_was_rung_for_before_the_closing_goes_to_a_peer_at_once(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one)
        waiting = await submit(two, "queued")
        await trio.sleep(1)
        scene.log.clear()
        closed = trio.current_time()
        await one.close()
        turn = await scene.turn(1)
        assert (turn.session.node, turn.text) == ("n2", "queued")
        assert trio.current_time() - closed < 2
        assert len(scene.published(SignalKind.MESSAGE_ENQUEUED, "n1")) == 1
        turn.finish()
        await settled(waiting)
