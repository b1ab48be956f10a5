"""What a router counts (SR §24)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import settled, submit
from tests.contract.sessions.scenes import Scene, busy_turn, nodes, one_turn
from zlinkpy.sessions.metrics import HOOKS
from zlinkpy.sessions.types import DispositionKind, RouterConfig, SignalKind


class NoHooks:
    """An object that counts nothing."""


class Raising:
    """Every hook raises."""

    def __getattr__(self, name: str) -> Any:
        if name not in HOOKS:
            raise AttributeError(name)

        def hook(*_: Any) -> None:
            raise ValueError(f"{name} is broken")

        return hook


async def every_flow(scene: Scene, one: Any, two: Any) -> None:
    """Something of everything: runs, forwards, retries, losses, evictions."""
    submitted, turn = await busy_turn(scene, one, key="k")
    attached = await submit(two, "busy", key="k")
    forwarded = await submit(two, key="f")
    await trio.sleep(16)
    turn.finish("first")
    assert (await settled(submitted)).answer == (await settled(attached)).answer == "first"
    (await scene.turn(1)).finish("second")
    assert (await settled(forwarded)).answer == "second"
    replayed = await submit(two, "busy", key="k")
    assert (await settled(replayed)).answer == "first"
    await scene.reserve("lost", "lost", "t")
    await trio.sleep(50)
    assert await scene.entry("lost") is None
    await one.release("s")
    await wait_all_tasks_blocked()
    await one_turn(scene, two)


@pytest.mark.contract("SR-370")
@pytest.mark.parametrize("metrics", [None, NoHooks()])
async def test_hooks_are_optional(autojump_clock: trio.abc.Clock, metrics: object) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2", metrics=metrics) as [one, two]:
        await every_flow(scene, one, two)


@pytest.mark.contract("SR-378")
async def test_hooks_that_raise_change_nothing_and_are_logged(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    with caplog.at_level(logging.ERROR, logger="zlinkpy.sessions"):
        async with nodes(scene, "n1", "n2", metrics=Raising()) as [one, two]:
            await every_flow(scene, one, two)
    logged = " ".join(each.getMessage() for each in caplog.records)
    for name in ("on_lease_acquire_succeeded", "on_submit_outcome", "on_cache_miss", "on_holder_loss_recovered"):
        assert name in logged


@pytest.mark.contract("SR-371")
async def test_acquires_are_counted_with_their_latency(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:

        async def slow(_: str, name: str, __: Any) -> None:
            if name == "try_acquire":
                await trio.sleep(0.5)

        scene.hooks.append(slow)
        mine, peers = scene.counted["n1"], scene.counted["n2"]
        await one_turn(scene, one)
        await busy_turn(scene, one)
        await submit(one, "gate lost")
        await wait_all_tasks_blocked()
        await submit(two, "held elsewhere")
        await wait_all_tasks_blocked()
        assert mine.of("on_lease_acquire_succeeded") == [(pytest.approx(0.5),), (pytest.approx(0.0),)]
        assert mine.of("on_lease_acquire_rejected") == [(pytest.approx(0.0),)]
        assert peers.of("on_lease_acquire_succeeded") == []
        assert peers.of("on_lease_acquire_rejected") == [(pytest.approx(0.5),)]


@pytest.mark.contract("SR-372")
async def test_cache_hits_misses_and_evictions_are_counted_once_each(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        await one_turn(scene, one)
        await one_turn(scene, one)
        await one.release("s")
        counted = scene.counted["n1"]
        assert [counted.count(name) for name in ("on_cache_miss", "on_cache_hit", "on_cache_eviction")] == [1, 1, 1]
        assert counted.of("on_cache_eviction") == [("EXPLICIT_RELEASE",)]


@pytest.mark.contract("SR-373")
async def test_renewals_are_counted(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        await busy_turn(scene, one)
        await trio.sleep(11)
        counted = scene.counted["n1"]
        assert (counted.count("on_lease_extend_succeeded"), counted.count("on_lease_extend_failed")) == (1, 0)
        scene.stores.leases.wipe()  # type: ignore[attr-defined]
        await trio.sleep(30)
        assert (counted.count("on_lease_extend_succeeded"), counted.count("on_lease_extend_failed")) == (1, 1)


@pytest.mark.contract("SR-374")
async def test_outcomes_of_submits_are_counted(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        here, there = DispositionKind.EXECUTED_LOCALLY, DispositionKind.FORWARDED
        submitted, turn = await busy_turn(scene, one, key="k")
        await submit(two, "busy", key="k")
        await submit(two)
        assert scene.counted["n2"].of("on_submit_outcome") == [(there,), (there,)]
        turn.finish()
        await settled(submitted)
        await submit(one, "busy", key="k")
        assert scene.counted["n1"].of("on_submit_outcome") == [(here,), (here,)]


@pytest.mark.contract("SR-376")
@pytest.mark.parametrize(("takeover", "refused"), [("won", 0), ("refused", 1), ("raised", 0)])
async def test_refused_takeovers_are_counted(autojump_clock: trio.abc.Clock, takeover: str, refused: int) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        submitted, turn = await busy_turn(scene, one)
        waiting = await submit(two, key="k")
        if takeover == "refused":
            await scene.stores.idempotency.acquire_holder("k", "n9/a/1", 30)
        elif takeover == "raised":
            scene.stores.idempotency.backend.plan("after", operation="acquire_holder")
        turn.finish()
        await settled(submitted)
        (await scene.turn(1)).finish("answer")
        assert (await settled(waiting)).answer == "answer"
        assert sum(each.count("on_reservation_takeover_refused") for each in scene.counted.values()) == refused


@pytest.mark.contract("SR-377")
async def test_a_ring_that_wins_the_session_is_counted_as_a_ring_only(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig())
    scene.lost_kinds = {SignalKind.MESSAGE_ENQUEUED}
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one)
        waiting = await submit(two)
        counted = scene.counted["n2"]
        acquires = ("on_lease_acquire_succeeded", "on_lease_acquire_rejected")
        before = [counted.count(name) for name in acquires]
        await wait_all_tasks_blocked()
        scene.cut.add("n1")
        turn = await scene.turn(1)
        assert turn.session.node == "n2"
        rung = counted.count("on_forward_doorbell_rerung")
        assert rung >= 2
        await trio.sleep(60)
        assert counted.count("on_forward_doorbell_rerung") == rung
        assert [counted.count(name) for name in acquires] == before
        turn.finish()
        await settled(waiting)
