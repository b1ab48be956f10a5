"""Holders that die, and messages that nobody waits for any more (SR §14, SR-406..410)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import error_of, settled, submit
from tests.contract.sessions.scenes import Scene, busy_turn, ends_at, nodes, one_turn, store_error
from zlinkpy.sessions.errors import ForwardTimeoutError, HolderLostError, SessionEvictedError
from zlinkpy.sessions.events import InterruptedAt
from zlinkpy.sessions.spi import EventSink
from zlinkpy.sessions.types import (
    DispositionKind,
    IdempotencyEntry,
    IdempotencyStatus,
    InterruptReason,
    SignalKind,
)


@pytest.mark.contract("SR-240")
async def test_the_sweep_resets_what_nobody_touched_for_long(
    autojump_clock: trio.abc.Clock,
) -> None:
    scene = Scene()
    async with nodes(scene, "n1"):
        await trio.sleep(14.5)
        await scene.reserve("older", holder="n9/a/1")
        await trio.sleep(1)
        await scene.reserve("younger", holder="n9/a/2")
        await trio.sleep_until(46)
        resets = [entry[2:] for entry in scene.log if entry[1] == "compare_and_reset"]
        assert resets == [("older", "n9/a/1")]
        assert await scene.entry("older") is None
        assert await scene.entry("younger") is not None


@pytest.mark.contract("SR-241", "SR-245", "SR-375", "SR-143")
async def test_one_node_recovers_and_all_who_wait_hear_of_it(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2", "n3") as routers:
        await scene.reserve("k")
        waiting = [await submit(each, key="k") for each in routers]
        assert {each.inbox_id for each in waiting} == {"idem-k"}
        await trio.sleep(46)
        for each in waiting:
            assert type(await error_of(each)) is HolderLostError
        assert sum(each.count("on_holder_loss_recovered") for each in scene.counted.values()) == 1
        assert len(scene.at("compare_and_reset")) >= 1
        [emitted] = scene.events("emit")
        [sent] = scene.events("rail")
        assert emitted == sent == InterruptedAt(InterruptReason.HOLDER_LOST)
        told = [entry[1] for entry in scene.log if entry[1] in ("emit", "rail", "publish")]
        assert told == ["emit", "rail", "publish"]
        [announced] = scene.published(SignalKind.TURN_RESULT)
        assert announced.payload["idem"] == "k"
        assert announced.payload["outcome"] == "HOLDER_LOST"
        assert "turn" not in announced.payload


@pytest.mark.contract("SR-243")
async def test_recovering_leaves_a_successor_alone(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n2") as [two]:
        await scene.reserve("k")
        submitted, turn = await busy_turn(scene, two)
        before = await scene.stores.leases.find_holder("s")
        await trio.sleep(50)
        assert await scene.entry() is None
        after = await scene.stores.leases.find_holder("s")
        assert before is not None
        assert after is not None
        assert (after.holder_id, after.token) == ("n2", before.token)
        assert scene.published(SignalKind.EVICT) == []
        assert {"complete", "complete all", "purge hook"}.isdisjoint(scene.calls())
        assert (turn.session.interrupts, turn.session.closed) == ([], 0)
        turn.finish("undisturbed")
        assert (await settled(submitted)).answer == "undisturbed"
        await wait_all_tasks_blocked()
        assert turn.session.closed == 0
        assert await scene.holder() == "n2"


@pytest.mark.contract("SR-244")
def test_an_event_sink_can_emit_and_nothing_else() -> None:
    assert [name for name in vars(EventSink) if not name.startswith("_")] == ["emit"]


@pytest.mark.contract("SR-246")
async def test_an_entry_without_holder_is_skipped(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    waiting = IdempotencyEntry("k", "s", "h", IdempotencyStatus.IN_FLIGHT, None, "n9/a/1", None, 0, 0, 300.0)

    class Mistaken:
        def __getattr__(self, name: str) -> Any:
            return getattr(scene.stores.idempotency, name)

        async def find_stale_in_flight(self, older_than: float, limit: int) -> list[IdempotencyEntry]:
            await trio.lowlevel.checkpoint()
            return [waiting]

    async with nodes(scene, "n1", idempotency_store=scene.own(Mistaken(), "n1")):
        await trio.sleep(31)
        assert len(scene.at("find_stale_in_flight")) == 2
        assert "compare_and_reset" not in scene.calls()
        assert scene.published(SignalKind.TURN_RESULT) == []


@pytest.mark.contract("SR-247")
async def test_one_failure_in_a_sweep_keeps_no_other_entry(
    autojump_clock: trio.abc.Clock,
) -> None:
    scene = Scene()
    async with nodes(scene, "n1"):
        for key in ("k1", "k2"):
            await scene.reserve(key, holder=f"n9/{key}")
        search = await scene.fail_calls("n1", "find_stale_in_flight")
        await trio.sleep_until(46)
        assert await scene.entry("k2") is not None
        scene.hooks.remove(search)
        reset = await scene.fail_calls("n1", "compare_and_reset", "k1", error=store_error("find", applied="no"))
        scene.sink_error = ValueError("a bad subscriber")
        await trio.sleep_until(61)
        assert (await scene.entry("k1"), await scene.entry("k2")) != (None, None)
        assert await scene.entry("k2") is None
        assert [each.payload["idem"] for each in scene.published(SignalKind.TURN_RESULT)] == ["k2"]
        scene.hooks.remove(reset)
        await trio.sleep_until(76)
        assert [each.payload["idem"] for each in scene.published(SignalKind.TURN_RESULT)] == ["k2", "k1"]


@pytest.mark.contract("SR-248", "SR-251", "SR-388")
@pytest.mark.parametrize("moment", [0.0, 4.9, 9.9, 14.9])
async def test_a_killed_holder_is_found_in_45_seconds(autojump_clock: trio.abc.Clock, moment: float) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await trio.sleep(moment)
        await busy_turn(scene, one, key="k")
        waiting = await submit(two, "busy", key="k")
        ended = ends_at(waiting)
        await trio.sleep(20)
        scene.cut.add("n1")
        died = trio.current_time()
        assert type(await error_of(waiting, 50)) is HolderLostError
        assert ended[0] - died <= 46
        await trio.sleep(1)
        again = await submit(two, "busy", key="k")
        turn = await scene.turn(1)
        assert turn.session.node == "n2"
        turn.finish("again")
        assert (await settled(again)).answer == "again"


@pytest.mark.contract("SR-249")
async def test_the_loss_of_a_forwarded_message_that_ran_is_announced(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        waiting = await submit(two, key="k")
        ended = ends_at(waiting)
        await scene.turn(1)
        await trio.sleep(12)
        scene.cut.add("n1")
        died = trio.current_time()
        assert type(await error_of(waiting, 300)) is HolderLostError
        assert ended[0] - died <= 46


@pytest.mark.contract("SR-250")
async def test_a_turn_that_cannot_touch_is_reported_lost_and_goes_on(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        submitted, turn = await busy_turn(scene, one, key="k")
        waiting = await submit(two, "busy", key="k")
        await scene.fail_calls("n1", "touch")
        assert type(await error_of(waiting, 46)) is HolderLostError
        assert await scene.entry() is None
        assert await scene.holder() == "n1"
        assert (turn.session.interrupts, turn.session.closed) == ([], 0)
        turn.finish("all the same")
        assert (await settled(submitted)).answer == "all the same"


@pytest.mark.contract("SR-252")
async def test_nobody_sees_the_loss_of_a_keyless_turn(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        began = trio.current_time()
        waiting = await submit(two)
        ended = ends_at(waiting)
        await scene.turn(1)
        scene.cut.add("n1")
        assert type(await error_of(waiting, 302)) is ForwardTimeoutError
        assert ended[0] - began == pytest.approx(300, abs=1)
        assert sum(each.count("on_holder_loss_recovered") for each in scene.counted.values()) == 0


@pytest.mark.contract("SR-429")
async def test_a_reset_whose_answer_was_lost_is_announced(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [_, two]:
        await scene.reserve("k")
        waiting = await submit(two, key="k")
        ends = ends_at(waiting)
        scene.stores.idempotency.backend.plan("after", operation="compare_and_reset")
        assert type(await error_of(waiting, 50)) is HolderLostError
        await trio.sleep(60)
        assert len(ends) == 1
        assert len(scene.published(SignalKind.TURN_RESULT)) in (1, 2)


@pytest.mark.contract("SR-407", "SR-388")
async def test_a_message_whose_holder_and_sender_died_runs_once_elsewhere(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2", "n3", "n4") as [one, two, *_]:
        await busy_turn(scene, one)
        await submit(two)
        await wait_all_tasks_blocked()
        scene.cut |= {"n1", "n2"}
        free = scene.at("extend", "n1")[-1] + scene.config.lock_lease if scene.at("extend", "n1") else 30.0
        turn = await scene.turn(1)
        assert turn.text == "hello"
        assert turn.session.node in ("n3", "n4")
        assert trio.current_time() - free <= 75
        turn.finish()
        await trio.sleep(120)
        assert len(scene.turns) == 2
        assert sum(scene.counted[node].count("on_orphan_rescued") for node in ("n3", "n4")) == 1


@pytest.mark.contract("SR-408")
async def test_the_scan_leaves_a_live_holder_alone(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, _]:
        _, turn = await busy_turn(scene, one)
        await scene.queue("old")
        await trio.sleep(121)
        assert len(scene.at("scan_pending", "n2")) == 4
        assert len(scene.at("find_holder", "n2")) >= 2
        assert scene.calls("try_acquire", node="n2") == []
        assert scene.published(SignalKind.MESSAGE_ENQUEUED) == []
        assert turn.session.interrupts == []


@pytest.mark.contract("SR-409")
async def test_the_scan_takes_no_session_of_a_handler_that_is_not_here(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    await scene.stores.records.provision("s", "chat")
    await scene.queue("old")
    async with nodes(scene, "n1", refs=("other",)):
        await trio.sleep(120)
        assert len(scene.at("load", "n1")) >= 2
        assert scene.calls("try_acquire", "collect") == []
        async with nodes(scene, "n2"):
            turn = await scene.turn(0)
            assert (turn.session.node, turn.text) == ("n2", "old")
            turn.finish()


@pytest.mark.contract("SR-410")
async def test_a_message_delivered_into_a_delete_is_taken_back(
    autojump_clock: trio.abc.Clock,
) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        late: list[Any] = []

        async def between(node: str, name: str, _: object) -> None:
            if (node, name) == ("n1", "delete") and not late:
                late.append(await submit(two, "too late", key="k"))

        scene.hooks.append(between)
        await one.delete("s")
        [waiting] = late
        assert waiting.kind is DispositionKind.FORWARDED
        assert type(await error_of(waiting)) is SessionEvictedError
        assert "withdraw" in scene.calls(node="n2")
        assert await scene.entry() is None
        scene.log.clear()
        await trio.sleep(200)
        assert await scene.stores.inbox.is_empty("s")
        record = await scene.stores.records.load("s")
        assert record is None or record.handler_ref is None
        assert len(scene.turns) == 1
        assert scene.calls("open", "try_acquire") == []


@pytest.mark.contract("SR-434")
async def test_the_scan_finds_what_an_idle_holder_missed(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1") as [one]:
        await one_turn(scene, one)
        began = trio.current_time()
        await scene.queue("missed")
        turn = await scene.turn(1)
        assert turn.text == "missed"
        assert 45 <= trio.current_time() - began <= 76
        turn.finish()
        assert scene.calls("try_acquire") == ["try_acquire"]


@pytest.mark.contract("SR-242")
async def test_the_recovery_frame_belongs_to_no_turn(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [_, two]:
        await scene.reserve("k")
        _, turn = await busy_turn(scene, two)
        await trio.sleep(50)
        [frame] = scene.events("rail")
        assert (frame.turn_id, frame.seq, frame.reason) == (None, None, InterruptReason.HOLDER_LOST)
        turn.finish()


@pytest.mark.contract("SR-404", "SR-225")
async def test_who_was_taken_for_dead_does_not_write_over_the_retry(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, one)
        first = await submit(two, key="k")
        turn = await scene.turn(1)
        untouched = await scene.fail_calls("n1", "touch")
        assert type(await error_of(first, 60)) is HolderLostError
        scene.hooks.remove(untouched)
        retry = await submit(two, key="k")
        assert retry.kind is DispositionKind.FORWARDED
        before = await scene.entry()
        turn.finish("the old result")
        following = await scene.turn(2)
        refused = [entry for entry in scene.log if entry[1] == "mark_done"]
        assert len(refused) == 1
        told = [each.payload for each in scene.published(SignalKind.TURN_RESULT, "n1") if "turn" in each.payload]
        assert [(each["turn"], each["answer"]) for each in told if each.get("idem")] == [
            (first.turn_id, "the old result")
        ]
        assert not retry.future.done()
        now = await scene.entry()
        assert before is not None
        assert now is not None
        assert (now.status, now.epoch, now.result) == (IdempotencyStatus.IN_FLIGHT, before.epoch, None)
        following.finish("the new result")
        assert (await settled(retry)).answer == "the new result"
        found = await scene.entry()
        assert found is not None
        assert found.result is not None
        assert found.result.answer == "the new result"
