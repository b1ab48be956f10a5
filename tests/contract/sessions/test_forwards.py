"""Forwarded futures: poll, deadline, re-ring (SR §13, §28)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import (
    World,
    at_once,
    cluster,
    counting,
    error_of,
    held,
    kill,
    settled,
    submit,
)
from zlinkpy.sessions.errors import (
    ForwardTimeoutError,
    IdempotencyStoreError,
    ReservationLostError,
    RouterClosedError,
)
from zlinkpy.sessions.futures import SubmitDisposition
from zlinkpy.sessions.input_hash import input_hash
from zlinkpy.sessions.payloads import TurnFailure, TurnOutcome, encode_outcome
from zlinkpy.sessions.types import (
    FailureCode,
    InboundMessage,
    RouterConfig,
    SessionSignal,
    SignalKind,
    TurnInput,
    TurnResult,
)


@pytest.mark.contract("SR-226", "SR-227", "SR-231")
@pytest.mark.parametrize(("secondary", "interval"), [(30.0, 15.0), (1.0, 1.0)])
async def test_how_often_a_forward_polls(autojump_clock: trio.abc.Clock, secondary: float, interval: float) -> None:
    world = World(RouterConfig(idempotency_secondary_ttl=secondary, lock_lease=3.0, lock_extend_interval=0.3))
    metrics, rung = counting("on_forward_doorbell_rerung")
    async with cluster(world, "n1") as [one]:
        async with cluster(world, "n2", metrics=metrics) as [two]:
            await held(world, one)
            found = await submit(two, key="k")
            turn = await world.turn(1)
            begin = trio.current_time()
            times: list[float] = []

            async def look(node: str, name: str, _: tuple[Any, ...]) -> None:
                if (node, name) == ("n2", "find"):
                    times.append(trio.current_time() - begin)

            world.before_call = look
            await trio.sleep(4.5 * interval)
            assert times == pytest.approx([interval * n for n in (1, 2, 3, 4)], abs=0.1)
            turn.finish()
            await settled(found)
            await trio.sleep(10 * interval)
            assert len(times) == 4
            assert rung == []


@pytest.mark.contract("SR-228", "SR-133")
@pytest.mark.parametrize("state", ["done", "absent", "stale"])
async def test_what_a_poll_finds(autojump_clock: trio.abc.Clock, state: str) -> None:
    world = World(RouterConfig(holder_loss_sweep_interval=1000.0))
    idempotency = world.stores.idempotency
    async with cluster(world, "n1") as [router]:
        await idempotency.put_if_absent("k", "s", input_hash(TurnInput("hello")), "x/1", 30)
        found = await submit(router, key="k")
        await trio.sleep(1)
        if state == "done":
            await idempotency.mark_done("k", TurnResult(True, "kept"), "x/1")
            assert (await settled(found, 15)).answer == "kept"
        elif state == "absent":
            await idempotency.compare_and_reset("k", "x/1")
            assert type(await error_of(found, 15)) is ReservationLostError
        else:
            await trio.sleep(60)
            assert not found.future.done()


@pytest.mark.contract("SR-229", "SR-435", "SR-436", "SR-437")
async def test_a_message_that_nobody_collects(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        await world.turn()
        world.probes[0].accepts_offers = False
        begin = trio.current_time()
        found = await submit(two, "x", key="k")
        retried: list[SubmitDisposition] = []

        async def retry() -> None:
            retried.append(await submit(two, "x", key="k"))

        found.future.add_done_callback(lambda _: two._core.background_nursery.start_soon(retry))
        error = await error_of(found, 301)
        assert type(error) is ForwardTimeoutError
        assert found.turn_id in str(error)
        assert "'s'" in str(error)
        assert trio.current_time() - begin == pytest.approx(300.0, abs=1.0)
        await trio.sleep(1)
        assert retried[0].inbox_id != "idem-k"
        world.turns[0].finish()
        (await world.turn(1)).finish("once")
        assert (await settled(retried[0])).answer == "once"
        assert len(world.turns) == 2


@pytest.mark.contract("SR-230", "SR-232", "SR-234", "SR-432")
@pytest.mark.parametrize("blind", [False, True])
async def test_a_signal_that_was_missed_is_sent_again(autojump_clock: trio.abc.Clock, blind: bool) -> None:
    world = World()
    world.behave = at_once
    metrics, rung = counting("on_forward_doorbell_rerung", "on_lease_acquire_succeeded", "on_lease_acquire_rejected")
    async with cluster(world, "n1") as [one]:
        async with cluster(world, "n2", metrics=metrics) as [two]:
            await settled(await submit(one))
            await wait_all_tasks_blocked()
            world.lost_kinds.add(SignalKind.MESSAGE_ENQUEUED)
            begin = trio.current_time()
            found = await submit(two, "missed")
            world.lost_kinds.clear()
            if blind:
                world.stores.inbox.backend.plan("before", operation="is_empty")
            world.log.clear()
            rung.clear()
            assert (await settled(found, 16)).answer == "missed"
            assert trio.current_time() - begin <= 16
            assert rung == ["on_forward_doorbell_rerung"]
            assert len(world.published(SignalKind.MESSAGE_ENQUEUED)) == 1
            await trio.sleep(30)
            assert len(world.turns) == 2


@pytest.mark.contract("SR-233")
async def test_a_ring_that_starts_a_long_turn_delays_no_poll(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        world.lost_kinds.add(SignalKind.MESSAGE_ENQUEUED)
        await submit(two, "long")
        await one.close()
        other = await world.stores.idempotency.put_if_absent("k", "t", input_hash(TurnInput("y")), "x/1", 600)
        assert other is not None
        found = await submit(two, "y", session="t", key="k")
        await trio.sleep(40)
        turn = await world.turn(1)
        assert (turn.text, turn.session.node) == ("long", "n2")
        await world.stores.idempotency.mark_done("k", TurnResult(True, "found"), "x/1")
        assert (await settled(found, 15)).answer == "found"
        turn.finish()


@pytest.mark.contract("SR-235", "SR-377", "SR-417")
async def test_a_holder_that_dies_with_a_message_uncollected(autojump_clock: trio.abc.Clock) -> None:
    world = World(RouterConfig(forward_poll_interval=60.0, forward_rering_interval=15.0))
    world.behave = at_once
    metrics, rung = counting("on_forward_doorbell_rerung", "on_lease_acquire_succeeded")
    async with cluster(world, "n1") as [one]:
        async with cluster(world, "n2", metrics=metrics) as [two]:
            await settled(await submit(one))
            await wait_all_tasks_blocked()
            world.lost_kinds.add(SignalKind.MESSAGE_ENQUEUED)
            kill(world, one, "n1")
            begin = trio.current_time()
            found = await submit(two, "left", key="k")
            assert (await settled(found, 46)).answer == "left"
            assert trio.current_time() - begin <= 45.5
            assert rung
            count = len(rung)
            await trio.sleep(60)
            assert len(rung) == count
            assert "on_lease_acquire_succeeded" not in rung
        world.before_call = None


@pytest.mark.contract("SR-236")
async def test_a_deleted_session_is_not_brought_back(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        await world.turn()
        found = await submit(two, "x")
        world.lost_kinds.add(SignalKind.EVICT)
        await one.delete("s")
        world.log.clear()
        await trio.sleep(200)
        assert not world.published(SignalKind.MESSAGE_ENQUEUED)
        assert await world.stores.records.load("s") is None
        assert not found.future.done()


@pytest.mark.contract("SR-238")
async def test_an_original_and_a_retry_on_different_nodes(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2", "n3") as [one, two, three]:
        await held(world, one)
        original = await submit(two, key="k")
        retry = await submit(three, key="k")
        (await world.turn(1)).finish("both")
        assert (await settled(original)).answer == "both"
        assert (await settled(retry)).answer == "both"
        assert len(world.published(SignalKind.TURN_RESULT)) == 1


@pytest.mark.contract("SR-239")
async def test_closing_ends_every_wait(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        found = [await submit(two), await submit(two, key="k")]
        await two.close()
        for each in found:
            assert type(await error_of(each)) is RouterClosedError
        turn.finish()


@pytest.mark.contract("SR-411", "SR-412", "SR-413")
@pytest.mark.parametrize("how", ["raises", "hangs", "recovers"])
async def test_a_store_that_never_answers_a_poll(autojump_clock: trio.abc.Clock, how: str) -> None:
    world = World()
    idempotency = world.stores.idempotency
    async with cluster(world, "n1") as [router]:
        await idempotency.put_if_absent("k", "s", input_hash(TurnInput("hello")), "x/1", 1000)
        found = await submit(router, key="k")
        await world.stores.inbox.deliver(InboundMessage("s", "nobody", "x"))
        await idempotency.mark_done("k", TurnResult(True, "kept"), "x/1")
        begin = trio.current_time()

        async def hook(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "find" and (how != "recovers" or trio.current_time() - begin < 299):
                if how == "hangs":
                    await trio.sleep_forever()
                raise IdempotencyStoreError("down")

        world.before_call = hook
        rung = world.published(SignalKind.MESSAGE_ENQUEUED)
        if how == "recovers":
            assert (await settled(found, 301)).answer == "kept"
        else:
            error = await error_of(found, 301)
            assert type(error) is ForwardTimeoutError
            assert isinstance(error.__cause__, IdempotencyStoreError) == (how == "raises")
        assert trio.current_time() - begin <= 301
        assert rung == []
        assert how == "hangs" or len(world.calls("is_empty")) >= 19


@pytest.mark.contract("SR-225")
async def test_a_late_answer_to_an_earlier_attempt(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        second = await submit(two, "x", key="k")
        late = TurnOutcome(TurnFailure(FailureCode.HOLDER_LOST, "late"), None, "k", "an earlier attempt")
        await world.bus.publish(SessionSignal("s", SignalKind.TURN_RESULT, "n9", encode_outcome(late)))
        await wait_all_tasks_blocked()
        assert not second.future.done()
        turn.finish()
        (await world.turn(1)).finish("own")
        assert (await settled(second)).answer == "own"


# -- loss
