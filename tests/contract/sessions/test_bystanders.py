"""A router that holds nothing: what it submits runs elsewhere, and what it hears of a session it only listens to."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import World, cluster, settled, submit
from zlinkpy.errors import ConfigurationError
from zlinkpy.sessions.bystander import BystanderLeases, open_bystander
from zlinkpy.sessions.errors import SessionBusyError, SessionRecordError
from zlinkpy.sessions.events import Gap, TurnCompleted, TurnEvent
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.types import DispositionKind, InboundMessage


def bystander(world: World, name: str = "by") -> tuple[SessionRouter, BystanderLeases]:
    leases = BystanderLeases(world.stores.leases)
    return world.router(name, lease_store=leases), leases


async def test_what_it_submits_runs_where_the_session_is_held(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    router, _ = bystander(world)
    async with cluster(world, "n1") as [one], router:
        first = await submit(one)
        (await world.turn()).finish()
        await settled(first)
        found = await submit(router, "from outside", key="k")
        assert found.kind is DispositionKind.FORWARDED
        turn = await world.turn(1)
        assert turn.session.node == "n1"
        turn.finish("done")
        assert (await settled(found)).answer == "done"
        assert await world.holder() == "n1"


async def test_what_nobody_holds_is_left_for_a_node_that_finds_it(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    router, _ = bystander(world)
    async with cluster(world, "n1"), router:
        found = await submit(router, key="k")
        with trio.fail_after(world.config.orphan_age + world.config.orphan_scan_interval + 1):
            turn = await world.turn(0)
        assert turn.session.node == "n1"
        turn.finish("found")
        assert (await settled(found)).answer == "found"
        assert "open" not in world.calls(node="by")


async def test_it_gets_a_lease_for_a_delete_and_for_nothing_that_follows(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    router, leases = bystander(world)
    async with router:
        await world.stores.records.provision("s", "chat")
        refused = True

        async def look(node: str, name: str, arguments: tuple[Any, ...]) -> None:
            if name == "delete" and refused:
                # What comes while it has the lease must not be run by it, whether the delete succeeds or not.
                await world.stores.inbox.deliver(InboundMessage("s", "chat", "hello"))
                router._core.ring("s")
                raise SessionRecordError("down", applied="no")

        world.before_call = look
        with pytest.raises(SessionRecordError), leases.allowing("s"):
            await router.delete("s")
        await wait_all_tasks_blocked()
        await trio.sleep(60)
        assert await world.holder() is None
        assert not await world.stores.inbox.is_empty("s")
        assert "open" not in world.calls()
        refused = False
        with leases.allowing("s"):
            await router.delete("s")
        assert await world.stores.records.load("s") is None
        assert await world.holder() is None
        with pytest.raises(SessionBusyError):
            await router.delete("s")


async def test_a_store_of_one_process_has_no_bystanders() -> None:
    with pytest.raises(ConfigurationError, match="memory://"):
        async with open_bystander("memory://"):
            pass


@pytest.mark.contract("SR-344")
@pytest.mark.parametrize("end", ["release", "delete"])
async def test_who_only_listens_sees_the_events_and_the_end(autojump_clock: trio.abc.Clock, end: str) -> None:
    world = World()
    seen: list[TurnEvent | Gap] = []
    async with cluster(world, "n1", "n2") as [one, two], trio.open_nursery() as nursery:
        over = trio.Event()

        async def listen() -> None:
            async for event in two.events("s"):
                seen.append(event)  # noqa: PERF401 - looked at while it grows
            over.set()

        nursery.start_soon(listen)
        await wait_all_tasks_blocked()
        found = await submit(one)
        (await world.turn()).finish("done")
        await settled(found)
        await wait_all_tasks_blocked()
        assert [type(event) for event in seen] == [TurnCompleted]
        assert not over.is_set()
        await getattr(one, end)("s")
        with trio.fail_after(6):
            await over.wait()
