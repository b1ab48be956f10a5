"""Submitting, on one node and on two: the order of the steps, and what is undone (SR §7, §8)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import World, cluster, error_of, settled, submit
from zlinkpy.sessions.errors import ConflictingHandlerError
from zlinkpy.sessions.types import DispositionKind, SignalKind


@pytest.mark.contract("SR-019", "SR-114", "SR-109", "SR-141", "SR-145", "SR-146")
async def test_a_turn_here(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router, key="k")
        assert found.kind is DispositionKind.EXECUTED_LOCALLY
        assert found.inbox_id is None
        turn = await world.turn()
        turn.ctx.state = b"new"
        turn.finish("done")
        assert (await settled(found)).answer == "done"
        assert world.calls("subscribe", "load", "put_if_absent", "try_acquire", "provision", "open")[:6] == [
            "subscribe",
            "load",
            "put_if_absent",
            "try_acquire",
            "provision",
            "open",
        ]
        for n in range(1, 5):
            later = await submit(router, f"turn {n}")
            (await world.turn(n)).finish()
            await settled(later)
            await wait_all_tasks_blocked()
        assert world.calls("try_acquire", "release") == ["try_acquire"]
        assert await world.holder() == "n1"
        assert world.turns[-1].ctx.state == b"new"
    assert await world.holder() is None


@pytest.mark.contract("SR-116", "SR-117", "SR-132", "SR-142", "SR-136")
async def test_a_turn_on_the_holder(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        first = await submit(one)
        (await world.turn()).finish()
        await settled(first)
        await wait_all_tasks_blocked()
        world.log.clear()
        second = await submit(two, "forward me", key="k")
        assert second.kind is DispositionKind.FORWARDED
        assert second.inbox_id
        assert [name for name in world.calls(node="n2") if name in ("release_holder", "deliver", "publish")] == [
            "release_holder",
            "deliver",
            "publish",
        ]
        [bell] = world.published(SignalKind.MESSAGE_ENQUEUED)
        assert dict(bell.payload) == {"inboxId": second.inbox_id, "turnId": second.turn_id}
        turn = await world.turn(1)
        assert (turn.session.node, turn.ctx.turn_id) == ("n1", second.turn_id)
        turn.finish("from n1")
        assert (await settled(second)).answer == "from n1"
        assert "open" not in world.calls(node="n2")


@pytest.mark.contract("SR-112")
async def test_another_handler_is_refused_before_anything(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", refs=("chat", "other")) as [router]:
        (first, turn) = (await submit(router), await world.turn())
        turn.finish()
        await settled(first)
        world.log.clear()
        with pytest.raises(ConflictingHandlerError):
            await submit(router, handler="other", key="k")
        assert set(world.calls()) <= {"load", "subscribe"}


async def test_errors_reach_the_caller(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router)
        (await world.turn()).finish(ValueError("no"))
        error = await error_of(found)
        assert type(error).__name__ == "TurnFailedError"
