"""Futures of turns that run on another node: polls, the deadline, ringing again (SR §13)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import error_of, settled, submit
from tests.contract.sessions.scenes import Scene, busy_turn, ends_at, nodes, on_end, one_turn
from zlinkpy.sessions.errors import (
    ForwardTimeoutError,
    IdempotencyStoreError,
    ReservationLostError,
    RouterClosedError,
    SessionEvictedError,
)
from zlinkpy.sessions.types import DispositionKind, RouterConfig, SignalKind, TurnResult


@pytest.mark.contract("SR-226", "SR-227")
@pytest.mark.parametrize(("secondary", "interval"), [(30.0, 15.0), (1.0, 1.0)])
async def test_a_forward_polls_at_half_the_secondary_ttl_until_it_is_settled(
    autojump_clock: trio.abc.Clock, secondary: float, interval: float
) -> None:
    scene = Scene(RouterConfig(idempotency_secondary_ttl=secondary))
    async with nodes(scene, "n1", "n2") as [one, two]:
        _, turn = await busy_turn(scene, one)
        began = trio.current_time()
        waiting = await submit(two, key="k")
        await trio.sleep(4.5 * interval)
        assert scene.at("find", "n2") == pytest.approx([began + n * interval for n in (1, 2, 3, 4)])
        turn.finish()
        (await scene.turn(1)).finish("answer")
        assert (await settled(waiting)).answer == "answer"
        seen = len(scene.at("find", "n2"))
        await trio.sleep(10 * interval)
        assert len(scene.at("find", "n2")) == seen


@pytest.mark.contract("SR-228")
@pytest.mark.parametrize("entry", ["done", "in flight", "absent", "stale"])
async def test_what_a_poll_makes_of_the_entry(autojump_clock: trio.abc.Clock, entry: str) -> None:
    scene = Scene(RouterConfig(holder_loss_sweep_interval=10_000.0))
    idempotency = scene.stores.idempotency
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one)
        waiting = await submit(two, key="k")
        ended = ends_at(waiting)
        began = trio.current_time()
        if entry == "done":
            await idempotency.mark_done("k", TurnResult(True, "stored"), "n9/x/1", allow_unheld=True)
        elif entry == "absent":
            assert await idempotency.discard_reservation("k")
        elif entry == "stale":
            assert await idempotency.acquire_holder("k", "n9/x/1", 30)
            await trio.sleep(31)
            found = await scene.entry()
            assert found is not None
            assert found.stale
        await trio.sleep_until(began + 46)
        if entry == "done":
            assert (await settled(waiting)).answer == "stored"
        elif entry == "absent":
            assert type(await error_of(waiting)) is ReservationLostError
        if entry in ("done", "absent"):
            assert ended == pytest.approx([began + 15], abs=0.5)
        else:
            assert not waiting.future.done()


@pytest.mark.contract("SR-229", "SR-134")
async def test_the_deadline_names_turn_and_session(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one, "the session")
        began = trio.current_time()
        waiting = await submit(two, session="the session")
        ended = ends_at(waiting)
        error = await error_of(waiting, 302)
        assert isinstance(error, ForwardTimeoutError)
        assert waiting.turn_id in str(error)
        assert "the session" in str(error)
        assert began + 299.9 <= ended[0] <= began + 301


@pytest.mark.contract("SR-230")
async def test_a_poll_rings_again_for_what_nobody_collected(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one)
        waiting = await submit(two)
        await trio.sleep(14)
        assert len(scene.published(SignalKind.MESSAGE_ENQUEUED)) == 1
        tried = len(scene.at("try_acquire", "n2"))
        await trio.sleep(2)
        rings = scene.published(SignalKind.MESSAGE_ENQUEUED, "n2")
        assert [dict(each.payload) for each in rings] == [
            {"inboxId": waiting.inbox_id, "turnId": waiting.turn_id},
        ] * 2
        assert len(scene.at("try_acquire", "n2")) == tried + 1
        assert scene.counted["n2"].count("on_forward_doorbell_rerung") == 1


@pytest.mark.contract("SR-231")
async def test_nothing_rings_for_an_empty_inbox(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        waiting = await submit(two)
        turn = await scene.turn(1)
        before = len(scene.at("try_acquire")), len(scene.published(SignalKind.MESSAGE_ENQUEUED))
        await trio.sleep(50)
        assert len([at for at in scene.at("is_empty", "n2") if at > 1]) == 3
        assert (len(scene.at("try_acquire")), len(scene.published(SignalKind.MESSAGE_ENQUEUED))) == before
        assert scene.counted["n2"].count("on_forward_doorbell_rerung") == 0
        turn.finish()
        await settled(waiting)


@pytest.mark.contract("SR-232")
async def test_an_inbox_that_does_not_answer_is_rung_for(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        await submit(two)
        await scene.turn(1)
        await scene.fail_calls("n2", "is_empty")
        await trio.sleep(16)
        assert len(scene.published(SignalKind.MESSAGE_ENQUEUED, "n2")) == 2
        assert scene.counted["n2"].count("on_forward_doorbell_rerung") == 1


@pytest.mark.contract("SR-233")
async def test_a_ring_that_starts_a_long_turn_delays_no_other_poll(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2", "n3") as [one, two, three]:
        await busy_turn(scene, one, "lost")
        await busy_turn(scene, three, "other")
        own = await submit(two, session="lost")
        await submit(two, session="other", key="k")
        await wait_all_tasks_blocked()
        scene.cut.add("n1")
        turn = await scene.turn(2)
        taken_over = trio.current_time()
        assert (turn.session.node, turn.ctx.turn_id) == ("n2", own.turn_id)
        await trio.sleep(150)
        polls = [at for at in scene.at("find", "n2") if at > taken_over + 1]
        assert len(polls) in (9, 10)
        assert [later - earlier for earlier, later in itertools.pairwise(polls)] == pytest.approx(
            [15.0] * (len(polls) - 1)
        )
        turn.finish()
        await settled(own)


@pytest.mark.contract("SR-234")
async def test_a_live_holder_is_rung_for_and_not_disturbed(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        _, turn = await busy_turn(scene, one)
        waiting = await submit(two)
        await wait_all_tasks_blocked()
        tried, rung = len(scene.at("try_acquire", "n2")), len(scene.published(SignalKind.MESSAGE_ENQUEUED))
        await trio.sleep(61)
        assert len(scene.at("try_acquire", "n2")) - tried == 4
        assert len(scene.published(SignalKind.MESSAGE_ENQUEUED)) - rung == 4
        assert turn.session.interrupts == []
        assert len(scene.turns) == 1
        assert await scene.holder() == "n1"
        turn.finish()
        (await scene.turn(1)).finish()
        await settled(waiting)
        await trio.sleep(60)
        assert [each.text for each in scene.turns] == ["busy", "hello"]


@pytest.mark.contract("SR-235", "SR-417")
@pytest.mark.parametrize("poll", [15.0, 60.0])
async def test_the_waiting_node_takes_over_from_a_dead_holder(autojump_clock: trio.abc.Clock, poll: float) -> None:
    scene = Scene(RouterConfig(forward_poll_interval=poll, forward_rering_interval=15.0))
    scene.lost_kinds = {SignalKind.MESSAGE_ENQUEUED}
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one)
        await trio.sleep(9)
        waiting = await submit(two, key="k")
        await trio.sleep(2)
        # Its last renewal has just been.
        scene.cut.add("n1")
        died = trio.current_time()
        turn = await scene.turn(1)
        assert turn.session.node == "n2"
        assert trio.current_time() - died <= 45
        turn.finish()
        await settled(waiting)


@pytest.mark.contract("SR-236")
async def test_nothing_is_rung_for_a_deleted_session(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    scene.lost_kinds = {SignalKind.EVICT}
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one)
        await submit(two)
        await one.delete("s")
        before = len(scene.published(SignalKind.MESSAGE_ENQUEUED)), len(scene.at("try_acquire"))
        await trio.sleep(100)
        assert (len(scene.published(SignalKind.MESSAGE_ENQUEUED)), len(scene.at("try_acquire"))) == before
        assert len(scene.at("is_empty", "n2")) >= 6
        assert await scene.stores.records.load("s") is None


@pytest.mark.contract("SR-237", "SR-435", "SR-436", "SR-229")
async def test_an_expired_forward_is_withdrawn_with_its_message_before_it_fails(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig(forward_poll_interval=299.5))
    async with nodes(scene, "n1", "n2") as [one, two]:
        _, turn = await busy_turn(scene, one)
        began = trio.current_time()
        first = await submit(two, key="k")
        seen: list[str] = []
        again: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def retry() -> None:
                again.append(await submit(two, key="k"))

            def failed() -> None:
                seen.append(repr(two))
                nursery.start_soon(retry)

            on_end(first.future, failed)
            error = await error_of(first, 301)
        # No poll in the last second, in which the reservation expires, too.
        assert [at for at in scene.at("find", "n2") if began + 299 < at < began + 300] == []
        assert isinstance(error, ForwardTimeoutError)
        assert "forwards 0" in seen[0]
        assert scene.calls("withdraw", "put_if_absent", node="n2") == ["put_if_absent", "withdraw", "put_if_absent"]
        [second] = again
        assert second.kind is DispositionKind.FORWARDED
        assert not second.inbox_id.startswith("idem-")
        assert second.turn_id != first.turn_id
        turn.finish()
        (await scene.turn(1)).finish("once")
        assert (await settled(second)).answer == "once"
        await trio.sleep(30)
        assert [each.text for each in scene.turns] == ["busy", "hello"]


@pytest.mark.contract("SR-238", "SR-213")
async def test_one_result_settles_the_original_and_the_retry_on_another_node(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2", "n3") as [one, two, three]:
        _, turn = await busy_turn(scene, one)
        original = await submit(two, key="k")
        retry = await submit(three, key="k")
        assert (retry.kind, retry.inbox_id) == (DispositionKind.FORWARDED, "idem-k")
        turn.finish()
        (await scene.turn(1)).finish("for both")
        assert (await settled(original)).answer == (await settled(retry)).answer == "for both"
        [result] = [each for each in scene.published(SignalKind.TURN_RESULT) if each.payload.get("idem") == "k"]
        assert result.payload["turn"] == original.turn_id
        assert "find" not in [name for at, node, name in scene.times if node == "n2"]


@pytest.mark.contract("SR-239")
async def test_closing_fails_what_waits_before_its_tasks_stop(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one], nodes(scene, "n2") as [two]:
        _, turn = await busy_turn(scene, one)
        found = [await submit(two, str(n), key=f"k{n}") for n in range(2)]
        tasks: list[int] = []
        on_end(found[-1].future, lambda: tasks.append(len(two._core.forward_nursery.child_tasks)))
        await two.close()
        for each in found:
            assert each.future.done()
            assert type(await error_of(each)) is RouterClosedError
        assert tasks[0] > 0
        turn.finish()


@pytest.mark.contract("SR-411")
async def test_a_store_that_raises_does_not_move_the_deadline(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one)
        began = trio.current_time()
        waiting = await submit(two, key="k")
        ended = ends_at(waiting)
        last = IdempotencyStoreError("the last one")
        await scene.fail_calls("n2", "find", error=last)
        error = await error_of(waiting, 302)
        assert isinstance(error, ForwardTimeoutError)
        assert error.__cause__ is last
        assert ended[0] <= began + 301
        assert scene.counted["n2"].count("on_forward_doorbell_rerung") == 19


@pytest.mark.contract("SR-412")
async def test_a_store_that_hangs_does_not_move_the_deadline(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one)
        began = trio.current_time()
        waiting = await submit(two, key="k")
        ended = ends_at(waiting)

        async def hang(node: str, name: str, _: object) -> None:
            if (node, name) == ("n2", "find"):
                await trio.sleep_forever()

        scene.hooks.append(hang)
        assert isinstance(await error_of(waiting, 302), ForwardTimeoutError)
        assert ended[0] <= began + 301


@pytest.mark.contract("SR-413")
async def test_the_last_look_finds_a_result_at_the_deadline(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one)
        began = trio.current_time()
        waiting = await submit(two, key="k")
        refused = await scene.fail_calls("n2", "find")
        await trio.sleep_until(began + 299.5)
        scene.hooks.remove(refused)
        await scene.stores.idempotency.mark_done("k", TurnResult(True, "late"), "n9/x/1", allow_unheld=True)
        looks = len(scene.at("find", "n2"))
        assert (await settled(waiting, 2)).answer == "late"
        assert len(scene.at("find", "n2")) == looks + 1


@pytest.mark.contract("SR-432")
async def test_an_idle_holder_that_missed_the_doorbell_hears_the_next_one(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        scene.lost_kinds = {SignalKind.MESSAGE_ENQUEUED}
        began = trio.current_time()
        waiting = await submit(two)
        await wait_all_tasks_blocked()
        scene.lost_kinds = set()
        turn = await scene.turn(1)
        assert turn.session.node == "n1"
        assert trio.current_time() - began <= 16
        turn.finish()
        await settled(waiting)


@pytest.mark.contract("SR-437", "SR-275")
@pytest.mark.parametrize("end", ["release", "delete"])
async def test_what_waits_for_an_ended_session_fails_after_its_key_was_freed(
    autojump_clock: trio.abc.Clock, end: str
) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await busy_turn(scene, one)
        waiting = {
            "k1": (one, await submit(one, "first", key="k1")),
            "k2": (two, await submit(two, "second", key="k2")),
        }
        again: dict[str, Any] = {}
        async with trio.open_nursery() as nursery:

            async def retry(key: str, text: str) -> None:
                again[key] = await submit(waiting[key][0], text, session="s", key=key)

            for key, text in (("k1", "first"), ("k2", "second")):
                on_end(waiting[key][1].future, lambda key=key, text=text: nursery.start_soon(retry, key, text))
            await (one.release("s") if end == "release" else one.delete("s"))
            for _, each in waiting.values():
                assert type(await error_of(each)) is SessionEvictedError
            await wait_all_tasks_blocked()
        for each in again.values():
            assert not (each.inbox_id or "").startswith("idem-")
        for number in (1, 2):
            (await scene.turn(number)).finish("again")
        for each in again.values():
            assert (await settled(each, 31)).answer == "again"
        assert sorted(each.text for each in scene.turns) == ["busy", "first", "second"]
