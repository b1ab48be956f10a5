"""Passes under lost answers, cancellations and unexpected errors (SR §28b)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import (
    Probe,
    Turn,
    World,
    at_once,
    cluster,
    error_of,
    held,
    queued,
    settled,
    submit,
    tell,
    texts,
    wait_for,
)
from zlinkpy.sessions.errors import (
    IdempotencyStoreError,
    SessionInboxError,
    TurnFailedError,
)
from zlinkpy.sessions.payloads import TurnFailure, decode_outcome
from zlinkpy.sessions.types import (
    IdempotencyEntry,
    IdempotencyStatus,
    InboundMessage,
    InterruptReason,
    SessionSignal,
    SignalKind,
)


@pytest.mark.contract("SR-433")
async def test_an_inbox_that_fails_at_the_end_of_a_pass(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    times: list[float] = []
    down = True
    async with cluster(world, "n1", "n2") as [one, two]:
        begin = trio.current_time()

        async def fail(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "collect":
                times.append(trio.current_time() - begin)
                if down:
                    raise SessionInboxError("down", applied="no")

        world.before_call = fail
        await settled(await submit(one))
        world.lost_kinds.add(SignalKind.MESSAGE_ENQUEUED)
        found = await submit(two, "waits")
        await trio.sleep(9.5)
        assert len(times) <= 22
        assert len(times) >= 9
        down = False
        assert (await settled(found, 1.1)).answer == "waits"


@pytest.mark.contract("SR-426")
async def test_a_batch_whose_answer_is_lost(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        for number in range(3):
            await world.stores.inbox.deliver(InboundMessage("s", "chat", str(number)))
        world.stores.inbox.backend.plan("after", operation="collect", times=2)
        router._core.ring("s")
        await trio.sleep(5)
        assert texts(world) == ["0", "1", "2"]
        world.stores.inbox.backend.plan("after", operation="collect")
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "3"))
        await settled(await submit(router, "mine"))
        await trio.sleep(5)
        assert sorted(texts(world)) == ["0", "1", "2", "3", "mine"]


@pytest.mark.contract("SR-282")
async def test_a_batch_that_is_never_answered_does_not_hold_a_closing_router(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "x"))
        world.stores.inbox.backend.plan("after", operation="collect", times=1_000)
        router._core.ring("s")
        await trio.sleep(5)
        began = trio.current_time()
    # The bounds of a close, and one pause between two questions.
    assert trio.current_time() - began < 60


@pytest.mark.contract("SR-428")
@pytest.mark.parametrize("stage", ["before", "after"])
async def test_a_result_that_cannot_be_written_for_a_while(autojump_clock: trio.abc.Clock, stage: Any) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        found = await submit(two, key="k")
        turn = await world.turn(1)
        world.stores.idempotency.backend.plan(stage, operation="mark_done", times=20)
        turn.finish("kept")
        assert (await settled(found)).answer == "kept"
        await trio.sleep(50)
        again = await submit(two, key="k")
        assert again.future.done()
        assert (await again.future.result()).answer == "kept"
        assert len(world.turns) == 2
        assert not world.calls("compare_and_reset")


@pytest.mark.contract("SR-430")
async def test_a_commit_whose_answer_is_lost(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router)
        turn = await world.turn()
        turn.ctx.state = b"new"
        world.stores.records.backend.plan("after", operation="commit", times=2)
        turn.finish()
        await settled(found, 5)
        view = await world.stores.records.load("s")
        assert view is not None
        assert (view.state, view.version) == (b"new", 1)


@pytest.mark.contract("SR-447")
@pytest.mark.parametrize(
    "reason", [InterruptReason.SYSTEM_SHUTDOWN, InterruptReason.SESSION_RELEASED, InterruptReason.USER]
)
async def test_what_is_kept_of_an_interrupted_turn(autojump_clock: trio.abc.Clock, reason: InterruptReason) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router, key="k")
        await world.turn()
        await router.interrupt("s", reason)
        assert (await settled(found)).completion == "interrupted"
        await wait_all_tasks_blocked()
        entry = await world.stores.idempotency.find("k")
        if reason is InterruptReason.USER:
            assert entry is not None
            assert entry.status is IdempotencyStatus.DONE
        else:
            assert entry is None


@pytest.mark.contract("SR-447")
async def test_an_interrupt_that_comes_after_the_handler_returned(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router, key="k")
        turn = await world.turn()
        turn.ctx.state = b"new"

        async def late(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "commit":
                await router.interrupt("s", InterruptReason.SESSION_RELEASED)

        world.before_call = late
        turn.finish("whole")
        assert (await settled(found)).answer == "whole"
        entry = await world.stores.idempotency.find("k")
        assert entry is not None
        assert entry.status is IdempotencyStatus.DONE


@pytest.mark.contract("SR-458", "SR-409")
async def test_a_node_without_the_handler(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with world.router("n1", refs=("chat",)) as one, world.router("n2", refs=("other",)) as two:
        await settled(await submit(one))
        await one.release("s")
        await one._subscriptions.ensure("s")
        await two._subscriptions.ensure("s")
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "x"))
        world.log.clear()
        two._core.ring("s")
        await wait_all_tasks_blocked()
        await trio.sleep(50)
        await two._orphans.scan()
        await wait_all_tasks_blocked()
        assert not world.calls("try_acquire", "collect", node="n2")
        await trio.sleep(50)
        assert [(turn.text, turn.session.node) for turn in world.turns[1:]] == [("x", "n1")]


STEPS = (
    "load",
    "is_empty",
    "try_acquire",
    "provision",
    "collect",
    "open",
    "acquire_holder",
    "find_holder",
    "commit",
    "mark_done",
    "publish",
)
KEYS = ("a", "b", "c")


class CancelledAlone:
    """A nursery whose tasks can be cancelled one by one."""

    def __init__(self, inner: trio.Nursery) -> None:
        self._inner = inner
        self.scopes: list[trio.CancelScope] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start_soon(self, run: Callable[[], Any]) -> None:
        async def scoped() -> None:
            with trio.CancelScope() as scope:
                self.scopes.append(scope)
                await run()

        self._inner.start_soon(scoped)


@pytest.mark.contract("SR-445")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", ["raises", "cancelled"])
async def test_a_pass_that_breaks(autojump_clock: trio.abc.Clock, step: str, how: str) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        passes = CancelledAlone(router._core.turn_nursery)
        router._core.turn_nursery = passes  # type: ignore[assignment]
        for key in KEYS:
            await queued(world, key)
        waiting = [wait_for(router, f"t-{key}", key) for key in KEYS]
        failed_with: list[IdempotencyEntry | None] = []
        shared = world.bus.publish

        async def look(signal: SessionSignal) -> None:
            outcome = decode_outcome(signal.payload) if signal.kind is SignalKind.TURN_RESULT else None
            if outcome is not None and isinstance(outcome.ended, TurnFailure):
                failed_with.append(await world.stores.idempotency.find(str(outcome.idempotency_key)))
            await shared(signal)

        world.bus.publish = look  # type: ignore[method-assign]

        async def write(turn: Turn) -> None:
            turn.ctx.state = b"s"
            turn.finish(turn.text)

        world.behave = write
        broken = False

        def break_it() -> None:
            nonlocal broken
            broken = True
            if how == "raises":
                raise RuntimeError("unexpected")
            passes.scopes[-1].cancel()

        async def hook(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == step and not broken:
                break_it()
                await trio.lowlevel.checkpoint()

        world.before_call = hook
        acquire = router._core.cache.acquire
        if step == "open":

            async def broken_open(*_: Any) -> Any:
                break_it()
                await trio.lowlevel.checkpoint()

            router._core.cache.acquire = broken_open  # type: ignore[method-assign]
        if step == "publish":
            publish = router._core.bus.publish

            async def broken_publish(signal: SessionSignal) -> None:
                if not broken:
                    break_it()
                    await trio.lowlevel.checkpoint()
                await publish(signal)

            router._core.bus.publish = broken_publish  # type: ignore[method-assign]
        router._core.ring("s")
        await trio.sleep(1.5)
        assert broken
        assert failed_with == [None] * len(failed_with)
        world.before_call = None
        router._core.cache.acquire = acquire  # type: ignore[method-assign]
        # What was taken out of the inbox has ended; what was not is still there.
        waits = not await world.stores.inbox.is_empty("s")
        assert waits != all(each.future.done() for each in waiting)
        assert step in ("load", "collect") or not waits
        for key in KEYS:
            entry = await world.stores.idempotency.find(key)
            assert entry is None or entry.holder_id is None
        seat = router._core.seats.get("s")
        assert seat is None or seat.gate is None
        assert await world.holder() is None or router._core.cache.peek("s") is not None
        assert router._core.busy == 0
        assert (await settled(await submit(router, "next"), 2)).answer == "next"
        assert await world.stores.inbox.is_empty("s")


@pytest.mark.contract("SR-445")
async def test_a_cancelled_pass_closes_an_evicted_handle_and_leaves(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.obedient = False

    async def slow(_: Probe) -> None:
        await trio.sleep(1)

    world.closing = slow
    async with cluster(world, "n1") as [router]:
        passes = CancelledAlone(router._core.turn_nursery)
        router._core.turn_nursery = passes  # type: ignore[assignment]
        found = await submit(router, key="k")
        await world.turn()
        await tell(world, SignalKind.EVICT, reason="USER")
        passes.scopes[-1].cancel()
        assert isinstance(await error_of(found), TurnFailedError)
        assert await world.stores.idempotency.find("k") is None
        await trio.sleep(2)
        assert world.probes[0].closed == 1
        assert await world.holder() is None
        assert "s" not in router._core.seats
        world.behave = at_once
        assert (await settled(await submit(router, "next"), 2)).answer == "next"


@pytest.mark.contract("SR-427")
async def test_a_key_that_cannot_be_handed_over(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        world.stores.idempotency.backend.plan("before", operation="release_holder")
        with pytest.raises(IdempotencyStoreError):
            await submit(two, key="k")
        assert await world.stores.idempotency.find("k") is None
        assert not world.calls("deliver")

        async def swept(_: str, name: str, arguments: tuple[Any, ...]) -> None:
            if name == "release_holder":
                world.before_call = None
                await world.stores.idempotency.compare_and_reset(arguments[0], arguments[1])

        world.before_call = swept
        found = await submit(two, key="k")
        assert world.calls("put_if_absent", node="n2") == ["put_if_absent"] * 3
        (await world.turn(1)).finish("on")
        assert (await settled(found)).answer == "on"
