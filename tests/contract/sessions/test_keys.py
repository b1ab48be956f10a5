"""Idempotency as callers see it (SR §12, §28b)."""

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
    HolderLostError,
    IdempotencyConflictError,
    SessionInboxError,
)
from zlinkpy.sessions.events import InterruptedAt
from zlinkpy.sessions.input_hash import input_hash
from zlinkpy.sessions.types import (
    DispositionKind,
    IdempotencyStatus,
    InterruptReason,
    Part,
    RouterConfig,
    TurnInput,
)


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
