"""What is known of a session's status, and that nothing depends on it (SR §23)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Probe, settled, submit
from tests.contract.sessions.scenes import Scene, busy_turn, nodes, one_turn
from zlinkpy.sessions.payloads import decode_status, encode_status
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.types import (
    ClusterSessionStatus,
    LiveSessionStatus,
    RouterConfig,
    SignalKind,
    StatusSnapshot,
    StatusSource,
)

BROADCAST = RouterConfig(status_broadcast=True)


def phase(router: SessionRouter) -> str | None:
    found: ClusterSessionStatus = router.status("s")
    return found.status.phase if found.status is not None else None


@pytest.mark.contract("SR-363", "SR-364", "SR-365")
async def test_the_last_word_of_an_origin_and_any_word_of_another(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    scene.hears_events = True
    async with nodes(scene, "n1") as [one]:
        submitted = await submit(one)
        (await scene.turn(0)).finish()
        await settled(submitted)
        assert one.status("s").source is StatusSource.LOCAL_HOLDER
        await scene.say(SignalKind.YIELD)
        await trio.sleep(1)
        assert one.status("s").source is StatusSource.UNKNOWN

        async def say(origin: str, seq: int, text: str) -> None:
            snapshot = StatusSnapshot(LiveSessionStatus(text), 1000 + seq, seq)
            await scene.say(SignalKind.STATUS, encode_status(snapshot), origin=origin)

        for seq, text in ((5, "five"), (7, "seven"), (6, "six"), (7, "seven again")):
            await say("a", seq, text)
        found = one.status("s")
        assert found.status is not None
        assert (found.source, found.origin_node, found.observed_at, found.status.phase) == (
            StatusSource.REMOTE_PROJECTION,
            "a",
            1007,
            "seven",
        )
        await say("a", 100, "hundred")
        await say("b", 1, "moved")
        assert (phase(one), one.status("s").origin_node) == ("moved", "b")
        # What others said last is nothing against the handle that is here now.
        await one_turn(scene, one)
        assert (one.status("s").source, phase(one)) == (StatusSource.LOCAL_HOLDER, "IDLE")


@pytest.mark.contract("SR-365")
async def test_a_handle_says_what_it_does_and_nobody_knows_the_unknown(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        assert one.status("s") == ClusterSessionStatus(StatusSource.UNKNOWN)
        submitted, turn = await busy_turn(scene, one)
        found = one.status("s")
        assert (found.source, phase(one), found.origin_node) == (StatusSource.LOCAL_HOLDER, "RUNNING", "n1")
        assert found.observed_at is not None
        turn.finish()
        await settled(submitted)
        await wait_all_tasks_blocked()
        assert phase(one) == "IDLE"


@pytest.mark.contract("SR-366")
async def test_snapshots_at_the_start_every_heartbeat_and_at_the_end(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(BROADCAST)
    async with nodes(scene, "n1") as [one]:
        began = trio.current_time()
        submitted, turn = await busy_turn(scene, one)
        await trio.sleep(25)
        turn.finish()
        await settled(submitted)
        await wait_all_tasks_blocked()
        at = [when - began for when in scene.at("publish STATUS", "n1")]
        assert at == pytest.approx([0, 10, 20, 25], abs=0.1)
        sent = [decode_status(each.payload) for each in scene.published(SignalKind.STATUS)]
        numbers = [each.seq for each in sent if each is not None]
        assert len(numbers) == 4
        assert numbers == sorted(set(numbers))
        await trio.sleep(30)
        assert len(scene.published(SignalKind.STATUS)) == 4


@pytest.mark.contract("SR-366")
async def test_no_snapshots_unless_they_are_asked_for(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        await trio.sleep(25)
        turn.finish()
        await settled(submitted)
        assert scene.published(SignalKind.STATUS) == []


@pytest.mark.contract("SR-367")
async def test_a_submit_runs_whatever_the_status_says(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    scene.hears_events = True
    async with nodes(scene, "n1", "n2") as [one, two]:
        submitted = await submit(one)
        (await scene.turn(0)).finish()
        await settled(submitted)
        await one.release("s")
        await wait_all_tasks_blocked()
        submitted = await submit(two)
        (await scene.turn(1)).finish()
        await settled(submitted)
        busy = StatusSnapshot(LiveSessionStatus("RUNNING", queue_depth=9), 1, 1)
        await scene.say(SignalKind.STATUS, encode_status(busy))
        await scene.say(SignalKind.YIELD)
        await trio.sleep(1)
        assert phase(two) == "RUNNING"
        submitted = await submit(two)
        (await scene.turn(2)).finish("ran")
        assert (await settled(submitted)).answer == "ran"
        assert scene.turns[2].session.node == "n2"


@pytest.mark.contract("SR-368")
async def test_a_status_that_raises_costs_the_snapshot_only(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Probe) -> LiveSessionStatus:
        raise ValueError("no status")

    monkeypatch.setattr(Probe, "status", broken)
    scene = Scene(BROADCAST)
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        await trio.sleep(25)
        assert one.status("s").status is None
        turn.finish("all the same")
        assert (await settled(submitted)).answer == "all the same"
        assert scene.published(SignalKind.STATUS) == []


@pytest.mark.contract("SR-369")
async def test_an_evicted_session_has_no_status(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    scene.hears_events = True
    async with nodes(scene, "n1") as [one]:
        await one_turn(scene, one)
        await scene.say(SignalKind.YIELD)
        await scene.say(SignalKind.STATUS, encode_status(StatusSnapshot(LiveSessionStatus("RUNNING"), 1, 1)))
        assert one.status("s").source is StatusSource.REMOTE_PROJECTION
        await scene.say(SignalKind.EVICT, {"reason": "SESSION_RELEASED"})
        assert one.status("s").source is StatusSource.UNKNOWN
