"""Leases that end while something else goes on: what is lost is neither used nor waited for (SR §9, §10)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import (
    Probe,
    World,
    cluster,
    ended_by_everybody,
    error_of,
    held,
    settled,
    submit,
)
from zlinkpy.sessions.core import HeldLease
from zlinkpy.sessions.errors import IdempotencyStoreError, LeaseLostError, SessionNotHeldError
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.types import DispositionKind, SessionRecordView


def lease_of(router: SessionRouter) -> HeldLease:
    lease = router._core.seat("s").lease
    assert lease is not None
    return lease


@pytest.mark.contract("SR-152")
async def test_a_handle_that_closes_slowly_keeps_nobody_from_the_session(autojump_clock: trio.abc.Clock) -> None:
    world = World()

    async def slow(probe: Probe) -> None:
        await trio.sleep(100 if probe.node == "n1" else 0)

    world.closing = slow
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        one._core.lease_lost(lease_of(one))
        await wait_all_tasks_blocked()
        found = await submit(two, "second")
        assert found.kind is DispositionKind.EXECUTED_LOCALLY
        turn = await world.turn(1)
        assert [probe.node for probe in world.probes] == ["n1", "n2"]
        assert ("n1", "close", "s") in world.log
        assert await world.holder() == "n2"
        with pytest.raises(SessionNotHeldError):
            await one._core.store.records().commit("s", b"n1", {}, turn_id="late")
        turn.ctx.state = b"n2"
        turn.finish()
        await settled(found)
        await trio.sleep(110)
        # The end of the slow close gives nothing back that is not its own.
        assert await world.holder() == "n2"
        view = await world.stores.records.load("s")
        assert view is not None
        assert (view.state, view.version) == (b"n2", 2)


@pytest.mark.contract("SR-155")
async def test_a_lease_that_everybody_ends_under_a_turn_is_given_back_once(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router)
        await world.turn()
        lease = lease_of(router)
        await ended_by_everybody(router, lease)
        assert type(await error_of(found)) is LeaseLostError
        await wait_all_tasks_blocked()
        assert [entry[2].token for entry in world.log if entry[1] == "release"] == [lease.lease.token]


@pytest.mark.contract("SR-156")
async def test_a_submit_that_meets_a_lease_as_it_is_lost_elects_afresh(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        lost, load = lease_of(router), router._core.store.load

        async def and_lose_it(session_id: str) -> SessionRecordView | None:
            view = await load(session_id)
            router._core.store.load = load  # type: ignore[method-assign]
            # No checkpoint lies between this and the look at the lease.
            router._core.lease_lost(lost)
            return view

        router._core.store.load = and_lose_it  # type: ignore[method-assign]
        world.log.clear()
        found = await submit(router, "second")
        assert "try_acquire" in world.calls()
        turn = await world.turn(1)
        assert lease_of(router).lease.token > lost.lease.token
        turn.finish("under a new one")
        assert (await settled(found)).answer == "under a new one"


@pytest.mark.contract("SR-179")
async def test_a_touch_that_raises_keeps_no_other_key_from_its_own(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    touched: list[str] = []

    async def one_is_down(_: str, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "touch":
            touched.append(arguments[0])
            if arguments[0] == "k":
                raise IdempotencyStoreError("down")

    async with cluster(world, "n1") as [router]:
        found = await submit(router, key="k")
        turn = await world.turn()
        lease_of(router).slot.bind("behind", "n1/x/9")
        world.before_call = one_is_down
        await trio.sleep(21)
        assert touched == ["k", "behind"] * 2
        assert world.calls("extend") == ["extend"] * 2
        assert not turn.session.interrupts
        turn.finish("all the same")
        assert (await settled(found)).answer == "all the same"
