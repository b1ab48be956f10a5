"""One handler per session, whoever came first (SR §15)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import error_of, settled, submit
from tests.contract.sessions.scenes import Scene, nodes, one_turn
from zlinkpy.sessions.errors import ConflictingHandlerError
from zlinkpy.sessions.events import RejectedAt
from zlinkpy.sessions.futures import SubmitDisposition

BOTH = ("h1", "h2")


def held_back(scene: Scene, node: str, name: str) -> tuple[trio.Event, trio.Event]:
    """Stop a node's first call of this name: (it got there, let it go on)."""
    there, go_on = trio.Event(), trio.Event()

    async def hold(by: str, what: str, _: Any) -> None:
        if (by, what) == (node, name) and not there.is_set():
            there.set()
            await go_on.wait()

    scene.hooks.append(hold)
    return there, go_on


@pytest.mark.contract("SR-253", "SR-254")
async def test_the_first_turn_decides_on_the_handler(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2", refs=BOTH) as [one, two]:
        await one_turn(scene, one, handler="h1")
        for router in (one, two):
            with pytest.raises(ConflictingHandlerError) as refused:
                await submit(router, handler="h2")
            assert (refused.value.requested, refused.value.bound) == ("h2", "h1")
            assert "handles 1" in repr(one)
        await one_turn(scene, one, handler="h1")
        assert [entry[3] for entry in scene.log if entry[1] == "open"] == ["h1"]
        assert "handles 0" in repr(two)


@pytest.mark.contract("SR-255", "SR-192")
async def test_who_loses_the_race_for_a_first_turn_is_rejected_by_the_winner(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2", refs=BOTH) as [one, two]:
        there, go_on = held_back(scene, "n2", "try_acquire")
        found: list[SubmitDisposition] = []

        async def late() -> None:
            found.append(await submit(two, "late", handler="h2", key="k"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(late)
            await there.wait()
            first = await submit(one, handler="h1")
            turn = await scene.turn(0)
            go_on.set()
        record = await scene.stores.records.load("s")
        assert record is not None
        assert record.handler_ref == "h1"
        assert not await scene.stores.inbox.is_empty("s")
        turn.finish()
        await settled(first)
        error = await error_of(found[0])
        assert isinstance(error, ConflictingHandlerError)
        assert (error.requested, error.bound) == ("h2", "h1")
        [rejected] = [each for each in scene.events("emit", "n1") if isinstance(each, RejectedAt)]
        assert (rejected.requested, rejected.existing, rejected.inbox_id) == ("h2", "h1", found[0].inbox_id)
        assert len(scene.turns) == 1
        assert await scene.entry() is None


@pytest.mark.contract("SR-256", "SR-121")
async def test_who_claims_after_the_first_turn_is_told_of_the_conflict(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2", refs=BOTH) as [one, two]:
        there, go_on = held_back(scene, "n2", "try_acquire")
        errors: list[ConflictingHandlerError] = []

        async def late() -> None:
            with pytest.raises(ConflictingHandlerError) as refused:
                await submit(two, handler="h2", key="k")
            errors.append(refused.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(late)
            await there.wait()
            await one_turn(scene, one, handler="h1")
            await one.release("s")
            go_on.set()
        assert (errors[0].requested, errors[0].bound) == ("h2", "h1")
        await wait_all_tasks_blocked()
        assert await scene.holder() is None
        assert await scene.entry() is None
        assert "open" not in scene.calls(node="n2")
