"""Deleting a session, on the node that holds it and on others (SR §18)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Turn, error_of, settled, submit
from tests.contract.sessions.scenes import Scene, busy_turn, nodes, one_turn
from tests.contract.sessions.test_release import listening
from zlinkpy.sessions.errors import RouterClosedError, SessionBusyError, SessionError, SessionNotHeldError
from zlinkpy.sessions.types import (
    InterruptReason,
    LeaseHolder,
    RouterConfig,
    SessionLease,
    SignalKind,
    StatusSource,
)


def steps(scene: Scene, node: str = "n1") -> list[str]:
    """The visible steps of a delete, in order; the record's is "delete"."""
    names = ("try_acquire", "close", "purge", "delete", "publish", "complete", "release")
    return scene.calls(*names, node=node)


@pytest.mark.contract("SR-293")
async def test_an_idle_session_held_here_is_deleted_under_its_lease(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery, nodes(scene, "n1") as [one]:
        probe = await one_turn(scene, one)
        [listener] = await listening(nursery, one)
        holder = await scene.stores.leases.find_holder("s")
        scene.log.clear()
        await one.delete("s")
        assert steps(scene) == ["close", "purge", "delete", "publish", "complete", "release"]
        [told] = scene.published(SignalKind.EVICT)
        [fenced] = [entry for entry in scene.log if entry[1] == "delete"]
        assert holder is not None
        assert fenced[2:] == ("s", holder.token)
        assert told.payload["token"] == holder.token
        assert await scene.stores.records.load("s") is None
        assert await scene.holder() is None
        assert probe.closed == 1
        await wait_all_tasks_blocked()
        assert listener.ended_at is not None


@pytest.mark.contract("SR-294")
async def test_an_unheld_session_is_acquired_before_its_record_is_touched(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    await scene.stores.records.provision("s", "chat")
    async with nodes(scene, "n1") as [one]:
        await one.delete("s")
        assert scene.calls("try_acquire", "load", "provision", "commit", "delete")[0] == "try_acquire"
        assert scene.calls("delete") == ["delete"]
        assert await scene.stores.records.load("s") is None


@pytest.mark.contract("SR-295", "SR-309")
async def test_an_idle_holder_yields_to_a_delete(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        probe = await one_turn(scene, one)
        scene.log.clear()
        began = trio.current_time()
        await two.delete("s")
        assert trio.current_time() - began < 1
        assert scene.published(SignalKind.YIELD, "n2")
        assert scene.published(SignalKind.YIELD)[0].kind is SignalKind.YIELD
        [legacy, *_] = scene.published(SignalKind.INTERRUPT, "n2")
        assert legacy.payload["reason"] == "SESSION_RELEASED"
        assert "turnId" not in legacy.payload
        assert probe.closed == 1
        assert scene.calls("release", node="n1") == ["release"]
        assert await scene.stores.records.load("s") is None


@pytest.mark.contract("SR-296")
async def test_a_running_holder_yields_to_a_delete(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()

    async def two_seconds_more(turn: Turn) -> None:
        await turn.end.wait()
        await trio.sleep(2)

    scene.behave = two_seconds_more
    async with nodes(scene, "n1", "n2") as [one, two]:
        submitted, turn = await busy_turn(scene, one)
        began = trio.current_time()
        await two.delete("s")
        assert 2 <= trio.current_time() - began < 5
        assert set(turn.session.interrupts) == {InterruptReason.SESSION_RELEASED}
        await settled(submitted)
        assert turn.session.closed == 1
        assert await scene.stores.records.load("s") is None


@pytest.mark.contract("SR-297", "SR-299")
async def test_a_holder_that_never_yields_is_busy(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    scene.deaf = {"n1"}
    async with nodes(scene, "n1", "n2") as [one, two]:
        submitted, turn = await busy_turn(scene, one)
        turn.ctx.state = b"kept"
        await scene.queue("waits")
        before = await scene.stores.records.load("s")
        began = trio.current_time()
        with pytest.raises(SessionBusyError):
            await two.delete("s")
        assert 4.5 <= trio.current_time() - began <= 5
        tries = scene.at("try_acquire", "n2")
        pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert pauses == pytest.approx([0.2] * len(pauses), abs=0.01)
        assert len(tries) > 20
        assert await scene.stores.records.load("s") == before
        assert not await scene.stores.inbox.is_empty("s")
        assert scene.calls("purge", "delete") == []
        assert scene.published(SignalKind.EVICT) == []
        turn.finish()
        await settled(submitted)
        (await scene.turn(1)).finish()
        await wait_all_tasks_blocked()
        scene.deaf = set()
        await two.delete("s")
        assert await scene.stores.records.load("s") is None


@pytest.mark.contract("SR-298")
@pytest.mark.parametrize("obedient", [True, False])
async def test_a_turn_here_is_interrupted_for_a_delete(autojump_clock: trio.abc.Clock, obedient: bool) -> None:
    scene = Scene()
    scene.obedient = obedient
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        began = trio.current_time()
        if obedient:
            await one.delete("s")
            assert trio.current_time() - began < 1
            assert await scene.stores.records.load("s") is None
            await settled(submitted)
        else:
            with pytest.raises(SessionBusyError):
                await one.delete("s")
            assert trio.current_time() - began == pytest.approx(5, abs=0.1)
            assert await scene.stores.records.load("s") is not None
            turn.finish()
            await settled(submitted)
        assert turn.session.interrupts == [InterruptReason.SESSION_RELEASED]


@pytest.mark.contract("SR-300")
async def test_a_deleted_session_begins_anew_under_any_handler(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2", refs=("chat", "other")) as [one, two]:
        submitted, turn = await busy_turn(scene, one)
        turn.ctx.state, turn.ctx.attrs["a"] = b"old", 1
        turn.finish()
        await settled(submitted)
        await two.delete("s")
        submitted, turn = await busy_turn(scene, one, handler="other")
        assert (turn.ctx.state, turn.ctx.version, turn.ctx.attrs) == (None, 0, {})
        record = await scene.stores.records.load("s")
        assert record is not None
        assert record.handler_ref == "other"
        turn.finish()
        await settled(submitted)


@pytest.mark.contract("SR-301", "SR-369", "SR-113")
async def test_nothing_is_known_of_a_deleted_session_on_any_node(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig(status_broadcast=True))
    scene.hears_events = True
    async with nodes(scene, "n1", "n2", refs=("chat", "other")) as [one, two]:
        submitted = await submit(two, handler="chat")
        (await scene.turn(0)).finish()
        await settled(submitted)
        await two.release("s")
        await wait_all_tasks_blocked()
        scene.purged.clear()
        waiting = await submit(one)
        await scene.turn(1)
        seen_by_two = await submit(two, "more")
        (await scene.turn(1)).finish()
        (await scene.turn(2)).finish()
        await settled(waiting)
        await settled(seen_by_two)
        await wait_all_tasks_blocked()
        assert one.status("s").source is StatusSource.LOCAL_HOLDER
        assert two.status("s").source is StatusSource.REMOTE_PROJECTION
        await one.delete("s")
        await wait_all_tasks_blocked()
        assert sorted(scene.purged) == [("n1", "s"), ("n2", "s")]
        assert {each.status("s").source for each in (one, two)} == {StatusSource.UNKNOWN}
        submitted = await submit(two, handler="other")
        (await scene.turn(3)).finish("bound anew")
        assert (await settled(submitted)).answer == "bound anew"


@pytest.mark.contract("SR-302")
@pytest.mark.parametrize("fails", [True, False])
async def test_a_ring_during_a_delete_is_answered_if_it_fails(autojump_clock: trio.abc.Clock, fails: bool) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        await one_turn(scene, one)
        refused = await scene.fail_calls("n1", "delete")
        if not fails:
            scene.hooks.remove(refused)

        async def rings(node: str, name: str, _: Any) -> None:
            if name == "delete":
                await scene.say(SignalKind.MESSAGE_ENQUEUED, {"inboxId": "1:1-0"})

        scene.hooks.insert(0, rings)
        scene.log.clear()
        if fails:
            with pytest.raises(SessionError):
                await one.delete("s")
            assert scene.published(SignalKind.EVICT) == []
        else:
            await one.delete("s")
        released = len(scene.log)
        await scene.queue("came meanwhile")
        await trio.sleep(5)
        if fails:
            turn = await scene.turn(1)
            assert turn.text == "came meanwhile"
            turn.finish()
        else:
            after = [entry[1] for entry in scene.log[released:]]
            assert {"try_acquire", "collect", "is_empty", "load"}.isdisjoint(after)
            assert len(scene.turns) == 1


@pytest.mark.contract("SR-303")
@pytest.mark.parametrize("when", ["find_holder", "delete"])
async def test_a_lease_lost_in_a_delete_keeps_the_record(autojump_clock: trio.abc.Clock, when: str) -> None:
    scene = Scene()
    await scene.stores.records.provision("s", "chat")
    async with nodes(scene, "n1") as [one]:

        async def superseded(node: str, name: str, arguments: Any) -> None:
            if name == when and "provision" in scene.calls():
                scene.hooks.clear()
                held = await scene.stores.leases.find_holder("s")
                assert isinstance(held, LeaseHolder)
                await scene.stores.leases.release(SessionLease("s", "n1", held.token, 0, 30))
                await scene.stores.leases.try_acquire("s", "n9", 30)

        scene.hooks.append(superseded)
        with pytest.raises(SessionNotHeldError):
            await one.delete("s")
        record = await scene.stores.records.load("s")
        assert record is not None
        assert record.handler_ref == "chat"
        assert scene.published(SignalKind.EVICT) == []
        assert await scene.holder() == "n9"


@pytest.mark.contract("SR-304")
async def test_a_closing_router_deletes_nothing(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        await one_turn(scene, one)
        await one.close()
        scene.log.clear()
        with pytest.raises(RouterClosedError):
            await one.delete("s")
        assert scene.calls() == []


@pytest.mark.contract("SR-439")
async def test_who_asked_for_the_session_gets_it_before_what_was_queued(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    for number in (1, 2):
        await scene.queue(f"queued {number}", key=f"k{number}", turn_id=f"t{number}")
    async with nodes(scene, "n1", "n2", "n3") as [one, two, three]:
        # All three know the session.
        for each in (two, three):
            await submit(each, session="warm up", handler="chat")
        waiting = await submit(one, "own")
        turn = await scene.turn(1)
        assert turn.text == "queued 1"
        for each in (two, three):
            each._core.ring("s")
        await trio.sleep(1)
        scene.log.clear()
        began = trio.current_time()
        purged: list[list[str]] = []

        async def look(node: str, name: str, _: Any) -> None:
            if (node, name) == ("n2", "purge"):
                batch = await scene.stores.inbox.collect("s", 2, "look")  # type: ignore[arg-type]
                purged.append([each.turn_id or "" for each in batch.messages])
                for each in batch.messages:
                    await scene.stores.inbox.deliver(each)

        scene.hooks.append(look)
        await two.delete("s")
        assert [each.text for each in scene.turns if each.session.session_id == "s"] == ["queued 1"]
        assert purged == [["t2", waiting.turn_id]]
        won = [entry[0] for entry in scene.log if entry[1] == "provision"]
        assert won[0] == "n2"
        returned = [at for at in scene.at("release", "n1") if at >= began][0]
        rings = [at for at in scene.at("publish MESSAGE_ENQUEUED") if at >= returned]
        assert not [at for at in rings if at < returned + 0.5]
        assert type(await error_of(waiting)).__name__ == "SessionEvictedError"
