"""Shutdown (SR §17)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import (
    Turn,
    World,
    at_once,
    cluster,
    error_of,
    held,
    settled,
    submit,
)
from zlinkpy.sessions.errors import (
    RouterClosedError,
    SessionLeaseError,
)
from zlinkpy.sessions.types import (
    InterruptReason,
    SignalKind,
)

RELEASED = InterruptReason.SESSION_RELEASED


@pytest.mark.contract("SR-282", "SR-284", "SR-286")
async def test_a_graceful_end(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        threads = set(threading.enumerate())
        stream = router.events("s")
        found = await submit(router)
        turn = await world.turn()

        async def two_seconds() -> None:
            await trio.sleep(2)
            with pytest.raises(RouterClosedError):
                await submit(router)
            turn.finish("whole")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(two_seconds)
            assert await router.close(10)
        assert (await settled(found)).answer == "whole"
        assert not turn.session.interrupts
        assert await world.holder() is None
        assert world.calls("release") == ["release"]
        with trio.fail_after(1):
            names = [type(event).__name__ async for event in stream]
        assert names == ["TurnCompleted"]
        assert not set(threading.enumerate()) - threads
        assert not router._subscriptions._places


@pytest.mark.contract("SR-283", "SR-288")
@pytest.mark.parametrize("timeout", [1.0, 0.0])
async def test_a_turn_that_does_not_end(autojump_clock: trio.abc.Clock, timeout: float) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router, key="k")
        turn = await world.turn()
        begin = trio.current_time()
        assert not await router.close(timeout)
        assert trio.current_time() - begin == pytest.approx(timeout, abs=0.1)
        assert turn.session.interrupts == [InterruptReason.SYSTEM_SHUTDOWN]
        assert (await settled(found)).completion == "interrupted"
        assert await world.stores.idempotency.find("k") is None


@pytest.mark.contract("SR-284", "SR-140")
async def test_a_lease_that_is_won_while_the_router_closes(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:

        async def slow(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "try_acquire":
                await trio.sleep(5)

        world.before_call = slow
        async with trio.open_nursery() as nursery:

            async def late() -> None:
                with pytest.raises(RouterClosedError):
                    await submit(router, key="k")

            nursery.start_soon(late)
            await trio.sleep(1)
            assert not await router.close()
        assert await world.holder() is None
        assert await world.stores.idempotency.find("k") is None


@pytest.mark.contract("SR-285")
async def test_a_lease_store_that_fails_at_the_end(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)

        async def fail(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "release":
                raise SessionLeaseError("down")

        world.before_call = fail
        assert await router.close()
        assert await world.holder() == "n1"
        await trio.sleep(31)
        assert await world.holder() is None


@pytest.mark.contract("SR-287")
async def test_closing_twice(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        answers: list[bool] = []

        async def close() -> None:
            answers.append(await router.close())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            nursery.start_soon(close)
        await close()
        assert answers == [True] * 3
        assert (world.calls("release"), world.probes[0].closed) == (["release"], 1)


@pytest.mark.contract("SR-289")
async def test_a_turn_that_cannot_be_stopped(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.obedient = False

    async def stuck(turn: Turn) -> None:
        with trio.CancelScope(shield=True):
            await turn.end.wait()

    world.behave = stuck
    async with cluster(world, "n1", "n2") as [one, two]:
        found = await submit(one)
        turn = await world.turn()
        try:
            begin = trio.current_time()
            assert not await one.close()
            assert "release" not in world.calls(node="n1")
            world.behave = at_once
            second = await submit(two, "second")
            world.log.clear()
            assert (await settled(second, 50)).answer == "second"
            assert 29 <= world_began(world, 1) - begin <= 46
            assert not world.calls("extend", node="n1")
        finally:
            turn.finish()
        await error_of(found)


def world_began(world: World, number: int) -> float:
    assert len(world.turns) > number
    return trio.current_time()


@pytest.mark.contract("SR-290", "SR-291")
async def test_a_bell_while_closing(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.obedient = False
    async with cluster(world, "n1", "n2") as [one, two]:
        first = await submit(one)
        turn = await world.turn()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.close, 60)
            await trio.sleep(1)
            world.log.clear()
            found = await submit(two, "passed on")
            await trio.sleep(1)
            assert turn.session.interrupts == [RELEASED]
            assert "collect" not in world.calls(node="n1")
            turn.finish()
            again = await world.turn(1)
            assert (again.text, again.session.node) == ("passed on", "n2")
            again.finish("n2")
        await settled(first)
        assert (await settled(found)).answer == "n2"
        assert len(world.published(SignalKind.MESSAGE_ENQUEUED, "n1")) == 1
        await two.close()
        one._core.ring("s")
        assert len(world.published(SignalKind.MESSAGE_ENQUEUED, "n1")) == 1


@pytest.mark.contract("SR-292")
@pytest.mark.parametrize("works", [True, False])
async def test_what_was_collected_when_the_time_is_up(autojump_clock: trio.abc.Clock, works: bool) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        found = [await submit(two, f"m{n}", key=f"k{n}") for n in range(3)]
        turn.finish()
        await world.turn(1)
        await wait_all_tasks_blocked()
        if not works:
            world.stores.inbox.backend.plan("before", operation="deliver", applied="no", times=None)
        await one.close()
        await settled(found[0])
        if works:
            for n in (1, 2):
                again = await world.turn(n + 1)
                assert (again.text, again.session.node) == (f"m{n}", "n2")
                again.finish()
                await settled(found[n])
        else:
            for n in (1, 2):
                assert type(await error_of(found[n])).__name__ == "NotHolderError"
                assert await world.stores.idempotency.find(f"k{n}") is None


# -- delete
