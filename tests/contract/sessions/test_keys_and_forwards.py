"""Idempotency as callers see it, forwarded futures, holder loss, orphans (SR §12, §13, §14, §28, §28b)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Turn, World, cluster, error_of, settled, submit
from zlinkpy.sessions.errors import (
    ForwardTimeoutError,
    HolderLostError,
    IdempotencyConflictError,
    IdempotencyStoreError,
    ReservationLostError,
    RouterClosedError,
    SessionEvictedError,
    SessionInboxError,
)
from zlinkpy.sessions.events import InterruptedAt
from zlinkpy.sessions.futures import SubmitDisposition
from zlinkpy.sessions.input_hash import input_hash
from zlinkpy.sessions.payloads import TurnFailure, TurnOutcome, encode_outcome
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.types import (
    DispositionKind,
    FailureCode,
    IdempotencyStatus,
    InboundMessage,
    InterruptReason,
    Part,
    RouterConfig,
    SessionSignal,
    SignalKind,
    TurnInput,
    TurnResult,
)


async def held(world: World, router: SessionRouter) -> None:
    found = await submit(router)
    (await world.turn()).finish()
    await settled(found)
    await wait_all_tasks_blocked()


async def at_once(turn: Turn) -> None:
    turn.finish(turn.text)


def counting(*names: str) -> tuple[Any, list[str]]:
    """A metrics object with these hooks, and the list of their calls."""
    calls: list[str] = []
    hooks = {name: (lambda self, *_, name=name: calls.append(name)) for name in names}
    return type("Counting", (), hooks)(), calls


def kill(world: World, router: SessionRouter, node: str) -> None:
    """Nothing that the node says or asks gets out from here on, and nothing gets in."""
    world.dead.add(node)
    router._core.is_closed = True


# -- keys


@pytest.mark.contract("SR-211")
async def test_without_a_key(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        for _ in range(2):
            await settled(await submit(router))
        assert len(world.turns) == 2
        assert not [name for name in world.calls() if name in ("put_if_absent", "mark_done", "touch", "find")]


@pytest.mark.contract("SR-212", "SR-215", "SR-216", "SR-223", "SR-217")
async def test_a_key_over_its_life(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        first = await submit(router, key="k")
        entry = await world.stores.idempotency.find("k")
        assert entry is not None
        assert (entry.status, entry.ttl, entry.input_hash) == (
            IdempotencyStatus.IN_FLIGHT,
            30.0,
            input_hash(TurnInput("hello")),
        )
        with pytest.raises(IdempotencyConflictError):
            await submit(router, "other", key="k")
        (await world.turn()).finish("X")
        await settled(first)
        await wait_all_tasks_blocked()
        with pytest.raises(IdempotencyConflictError):
            await submit(router, "other", key="k")
        await trio.sleep(86_400 - 60)
        world.log.clear()
        again = await submit(router, key="k")
        assert (again.kind, again.future.done()) == (DispositionKind.EXECUTED_LOCALLY, True)
        assert (await again.future.result()).answer == "X"
        assert not world.calls("try_acquire", "open")
        await trio.sleep(61)
        await submit(router, key="k")
        (await world.turn(1)).finish()


@pytest.mark.contract("SR-213", "SR-214")
async def test_a_key_in_flight(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        first = await submit(one, key="k")
        turn = await world.turn()
        here = await submit(one, key="k")
        there = [await submit(two, key="k") for _ in range(2)]
        for each in (here, *there):
            assert (each.kind, each.inbox_id) == (DispositionKind.FORWARDED, "idem-k")
        assert there[0].future is there[1].future
        assert there[0].turn_id == there[1].turn_id
        assert len(two._core.forwards) == 1
        turn.finish("one")
        for each in (first, here, *there):
            assert (await settled(each)).answer == "one"
        assert len(world.turns) == 1


@pytest.mark.contract("SR-218")
async def test_a_stale_key(autojump_clock: trio.abc.Clock) -> None:
    world = World(RouterConfig(holder_loss_sweep_interval=10_000.0))
    metrics, counted = counting("on_holder_loss_recovered")
    idempotency = world.stores.idempotency
    async with cluster(world, "n1", metrics=metrics) as [router]:
        await idempotency.put_if_absent("k", "s", input_hash(TurnInput("hello")), "dead/1", 30)
        waiting = await submit(router, key="k")
        assert waiting.inbox_id == "idem-k"
        await trio.sleep(31)
        world.log.clear()
        found = await submit(router, key="k")
        assert type(await error_of(waiting)) is HolderLostError
        assert counted == ["on_holder_loss_recovered"]
        steps = [entry[1] for entry in world.log if entry[1] in ("compare_and_reset", "publish", "put_if_absent")]
        assert steps == ["put_if_absent", "compare_and_reset", "publish", "put_if_absent"]
        assert found.kind is DispositionKind.EXECUTED_LOCALLY
        (await world.turn()).finish()
        await settled(found)


@pytest.mark.contract("SR-219")
def test_the_hash_of_an_input() -> None:
    def digest(text: str, *parts: Part) -> str:
        return input_hash(TurnInput(text, parts))

    one, two = Part("image", "image/png", b"1"), Part("image", "image/png", b"2")
    assert digest("caf\u00e9\r\n") == digest("cafe\u0301\n")
    assert len(digest("")) == 64
    different = [
        digest("x"),
        digest("x", one),
        digest("x", two),
        digest("x", one, two),
        digest("x", two, one),
        digest("y"),
    ]
    different.append(digest("x", Part("image", "image/jpeg", b"1")))
    assert len(set(different)) == len(different)


@pytest.mark.contract("SR-220")
async def test_a_key_belongs_to_a_session(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        await settled(await submit(router, key="k"))
        with pytest.raises(IdempotencyConflictError):
            await submit(router, session="other", key="k")


@pytest.mark.contract("SR-222", "SR-240", "SR-248", "SR-251", "SR-382", "SR-388")
async def test_a_holder_that_dies(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    metrics, counted = counting("on_holder_loss_recovered")
    async with cluster(world, "n1") as [one]:
        async with cluster(world, "n2", metrics=metrics) as [two]:
            await held(world, one)
            found = await submit(two, key="k")
            await world.turn(1)
            more = await submit(two, "more")
            begin = trio.current_time()
            kill(world, one, "n1")
            assert type(await error_of(found, 46)) is HolderLostError
            assert trio.current_time() - begin <= 46
            assert [event for _, event in two._core.events.seen] == [InterruptedAt(InterruptReason.HOLDER_LOST)]  # type: ignore[attr-defined]
            assert counted == ["on_holder_loss_recovered"]
            turn = await world.turn(2)
            assert (turn.text, turn.session.node) == ("more", "n2")
            turn.finish()
            await settled(more)
            again = await submit(two, key="k")
            (await world.turn(3)).finish("again")
            assert (await settled(again)).answer == "again"


@pytest.mark.contract("SR-423", "SR-422")
@pytest.mark.parametrize("operation", ["put_if_absent", "try_acquire"])
async def test_answers_that_get_lost_in_a_submit(autojump_clock: trio.abc.Clock, operation: str) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        world.stores.leases.backend.plan("after", operation=operation)
        found = await submit(router, key="k")
        assert found.kind is DispositionKind.EXECUTED_LOCALLY
        (await world.turn()).finish("ran")
        assert (await settled(found)).answer == "ran"


@pytest.mark.contract("SR-448")
async def test_a_turn_that_ends_before_the_attaching_forward_listens(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        first = await submit(one, key="k")
        turn = await world.turn()
        put = world.stores.idempotency.put_if_absent

        async def then_ends(*arguments: Any) -> Any:
            answer = await put(*arguments)
            turn.finish("ended")
            await trio.sleep(1)
            return answer

        world.stores.idempotency.put_if_absent = then_ends  # type: ignore[method-assign]
        begin = trio.current_time()
        second = await submit(two, key="k")
        assert (await settled(second)).answer == "ended"
        assert trio.current_time() - begin < 2
        await settled(first)


@pytest.mark.contract("SR-425")
async def test_deliveries_that_stay_unknown(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        fault = world.stores.inbox.backend.plan("after", operation="deliver", times=None)
        begin = trio.current_time()
        with pytest.raises(SessionInboxError):
            await submit(two, "x", key="k")
        assert trio.current_time() - begin <= 2
        assert len(world.calls("deliver")) <= 4
        entry = await world.stores.idempotency.find("k")
        assert entry is not None
        assert entry.holder_id is None
        world.stores.inbox.backend.heal()
        assert fault.times is None
        again = await submit(two, "x", key="k")
        assert again.inbox_id == "idem-k"
        turn.finish()
        (await world.turn(1)).finish("once")
        assert (await settled(again)).answer == "once"
        assert len(world.turns) == 2


@pytest.mark.contract("SR-424")
async def test_a_delivery_whose_answer_is_lost(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1", "n2") as [one, two]:
        await settled(await submit(one))
        await wait_all_tasks_blocked()
        world.stores.inbox.backend.plan("after", operation="deliver")
        assert (await settled(await submit(two, "x"))).answer == "x"
        await trio.sleep(20)
        assert [turn.text for turn in world.turns] == ["hello", "x"]


# -- forwards


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


@pytest.mark.contract("SR-241", "SR-242", "SR-245", "SR-375", "SR-243")
async def test_one_of_three_recovers(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    metrics, counted = counting("on_holder_loss_recovered")
    idempotency = world.stores.idempotency
    async with cluster(world, "n1", "n2", "n3", metrics=metrics) as routers:
        await idempotency.put_if_absent("k", "s", input_hash(TurnInput("hello")), "dead/1", 30)
        waiting = [await submit(router, key="k") for router in routers]
        successor = await submit(routers[0], "successor")
        turn = await world.turn()
        world.log.clear()
        await trio.sleep(46)
        for each in waiting:
            assert type(await error_of(each)) is HolderLostError
        assert counted == ["on_holder_loss_recovered"]
        [announced] = world.published(SignalKind.TURN_RESULT)
        assert (announced.payload["idem"], announced.payload["outcome"]) == ("k", "HOLDER_LOST")
        assert "turn" not in announced.payload
        shown = [event for router in routers for _, event in router._core.events.seen]  # type: ignore[attr-defined]
        assert shown == [InterruptedAt(InterruptReason.HOLDER_LOST)]
        assert shown[0].turn_id is None
        assert not world.published(SignalKind.EVICT)
        assert not world.purged
        assert not turn.session.interrupts
        assert not [each for router in routers for each in router._core.events.completed]  # type: ignore[attr-defined]
        turn.finish("fine")
        assert (await settled(successor)).answer == "fine"


@pytest.mark.contract("SR-244")
def test_a_turns_sink_can_only_emit() -> None:
    from zlinkpy.sessions.spi import EventSink

    assert [name for name in vars(EventSink) if not name.startswith("_")] == ["emit"]


@pytest.mark.contract("SR-246", "SR-247", "SR-429")
async def test_a_sweep_in_trouble(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    idempotency = world.stores.idempotency
    async with cluster(world, "n1") as [router]:
        digest = input_hash(TurnInput("hello"))
        waiting = []
        for key in ("a", "b", "c"):
            await idempotency.put_if_absent(key, "s", digest, f"dead/{key}", 30)
            waiting.append(await submit(router, key=key))
        await idempotency.release_holder("c", "dead/c", 300)
        stale = idempotency.find_stale_in_flight

        async def with_a_mistake(older_than: float, limit: int) -> Any:
            entry = await idempotency.find("c")
            return [entry, *await stale(older_than, limit)]

        idempotency.find_stale_in_flight = with_a_mistake  # type: ignore[method-assign]
        idempotency.backend.plan("before", operation="compare_and_reset", name="a", applied="no")
        idempotency.backend.plan("after", operation="compare_and_reset", name="b")
        raised: list[str] = []

        def sink(*_: Any) -> None:
            raised.append("sink")
            raise ValueError("a subscriber")

        router._core.events.emit = sink  # type: ignore[method-assign]
        await trio.sleep(31)
        await router._recovery.sweep()
        assert type(await error_of(waiting[1])) is HolderLostError
        assert not waiting[0].future.done()
        await trio.sleep(16)
        assert type(await error_of(waiting[0])) is HolderLostError
        assert not waiting[2].future.done()
        idempotency.backend.plan("before", operation="find_stale_in_flight")
        await trio.sleep(31)
        assert len(raised) == 2


@pytest.mark.contract("SR-249")
async def test_a_drained_message_of_a_dead_node(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [one]:
        async with cluster(world, "n2") as [two]:
            await held(world, one)
            found = await submit(two, key="k")
            await world.turn(1)
            await trio.sleep(25)
            kill(world, one, "n1")
            assert type(await error_of(found, 46)) is HolderLostError
        world.before_call = None


@pytest.mark.contract("SR-250")
async def test_touches_that_fail_while_renewals_work(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        first = await submit(one, key="k")
        waiting = await submit(two, key="k")
        turn = await world.turn()
        world.stores.idempotency.backend.plan("before", operation="touch", times=None)
        assert type(await error_of(waiting, 50)) is HolderLostError
        assert await world.holder() == "n1"
        assert not turn.session.interrupts
        turn.finish("alive")
        assert (await settled(first)).answer == "alive"


@pytest.mark.contract("SR-252")
async def test_a_keyless_message_of_a_dead_node(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [one]:
        async with cluster(world, "n2") as [two]:
            await held(world, one)
            found = await submit(two)
            await world.turn(1)
            kill(world, one, "n1")
            await trio.sleep(100)
            assert not found.future.done()
            assert type(await error_of(found, 202)) is ForwardTimeoutError
        world.before_call = None


# -- orphans


@pytest.mark.contract("SR-407", "SR-388")
async def test_a_message_that_nobody_waits_for(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    metrics, counted = counting("on_orphan_rescued")
    async with cluster(world, "n1", "n2", metrics=metrics):
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "orphan"))
        await trio.sleep(76)
        assert [turn.text for turn in world.turns] == ["orphan"]
        assert counted == ["on_orphan_rescued"]


@pytest.mark.contract("SR-408")
async def test_a_live_holder_is_left_alone_by_other_nodes_scans(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "waits"))
        await trio.sleep(50)
        world.log.clear()
        await two._orphans.scan()
        await wait_all_tasks_blocked()
        assert not world.calls("try_acquire", "publish", node="n2")
        turn.finish()
        (await world.turn(1)).finish()


@pytest.mark.contract("SR-434")
async def test_an_idle_holder_drains_what_it_missed(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        await settled(await submit(router))
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "missed"))
        await trio.sleep(76)
        assert [turn.text for turn in world.turns] == ["hello", "missed"]
        assert world.calls("try_acquire") == ["try_acquire"]


@pytest.mark.contract("SR-410", "SR-437")
async def test_a_message_between_purge_and_evict(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        found: list[SubmitDisposition] = []

        async def deliver_late(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "delete":
                world.before_call = None
                found.append(await submit(two, "late", key="k"))

        world.before_call = deliver_late
        await one.delete("s")
        assert type(await error_of(found[0])) is SessionEvictedError
        assert await world.stores.inbox.is_empty("s")
        assert await world.stores.idempotency.find("k") is None
        await trio.sleep(120)
        assert await world.stores.records.load("s") is None
        assert len(world.turns) == 1


@pytest.mark.contract("SR-415")
async def test_a_freed_key_is_nobodys_business_any_more(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        first = await submit(one, key="k")
        turn = await world.turn()
        behind = [await submit(two, f"{n}") for n in range(2)]
        turn.finish(ValueError("no"))
        await error_of(first)
        turn = await world.turn(1)
        retry = await submit(two, key="k")
        assert retry.inbox_id != "idem-k"
        entry = await world.stores.idempotency.find("k")
        world.log.clear()
        await trio.sleep(25)
        assert not [each for each in world.log if each[1] == "touch"]
        assert await world.stores.idempotency.find("k") == entry
        turn.finish()
        (await world.turn(2)).finish()
        for each in behind:
            await settled(each)
        (await world.turn(3)).finish("again")
        assert (await settled(retry)).answer == "again"


@pytest.mark.contract("SR-463", "SR-088")
async def test_two_workers_of_one_name(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "same", "same") as [one, two]:
        await settled(await submit(one))
        await wait_all_tasks_blocked()
        found = await submit(two, "over there", key="k")
        assert found.kind is DispositionKind.FORWARDED
        assert (await settled(found)).answer == "over there"
        assert one._core.reserver_id() != two._core.reserver_id()
        own = one._core.signal("s", SignalKind.EVICT, {"reason": "USER"})
        await world.bus.publish(own)
        await wait_all_tasks_blocked()
        assert one._core.cache.peek("s") is not None
