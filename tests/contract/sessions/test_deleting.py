"""Delete (SR §18)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import (
    World,
    at_once,
    cluster,
    error_of,
    held,
    settled,
    submit,
)
from zlinkpy.sessions.errors import (
    SessionBusyError,
    SessionEvictedError,
    SessionNotHeldError,
)
from zlinkpy.sessions.events import InterruptedAt
from zlinkpy.sessions.futures import SubmitDisposition
from zlinkpy.sessions.types import (
    InboundMessage,
    InterruptReason,
    RouterConfig,
    SignalKind,
    StatusSource,
)

RELEASED = InterruptReason.SESSION_RELEASED


@pytest.mark.contract("SR-293")
async def test_deleting_what_is_held_here(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        world.log.clear()
        await router.delete("s")
        wanted = ("try_acquire", "close", "purge", "delete", "publish", "release")
        steps = [entry[1] for entry in world.log if entry[1] in wanted]
        assert steps == ["close", "purge", "delete", "publish", "release"]
        assert await world.stores.records.load("s") is None
        assert router._core.events.completed == ["s"]  # type: ignore[attr-defined]
        assert not router._core.seats


@pytest.mark.contract("SR-294")
async def test_deleting_what_nobody_holds(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await router.delete("s")
        names = [name for name in world.calls() if name in ("try_acquire", "provision", "delete", "load")]
        assert names[0] == "try_acquire"
        assert "delete" in names


@pytest.mark.contract("SR-295", "SR-296", "SR-305", "SR-439")
@pytest.mark.parametrize("running", [False, True])
async def test_deleting_what_a_peer_holds(autojump_clock: trio.abc.Clock, running: bool) -> None:
    world = World()
    async with cluster(world, "n1", "n2", "n3") as [one, two, three]:
        await held(world, one)
        found: list[SubmitDisposition] = []
        if running:
            await submit(one)
            turn = await world.turn(1)
            found = [await submit(three, f"m{n}") for n in range(2)]
            turn.unconsumed = []
        begin = trio.current_time()
        await two.delete("s")
        assert trio.current_time() - begin < 1
        assert await world.stores.records.load("s") is None
        assert world.probes[0].closed == 1
        if running:
            assert world.probes[0].interrupts == [RELEASED]
            for each in found:
                assert type(await error_of(each)) is SessionEvictedError
            bells = world.published(SignalKind.MESSAGE_ENQUEUED, "n1")
            assert not bells
            assert len(world.turns) == 2


@pytest.mark.contract("SR-297", "SR-299", "SR-302")
async def test_a_delete_that_cannot_get_the_session(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        await world.stores.leases.try_acquire("s", "deaf", 100)
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "stays"))
        times: list[float] = []

        async def note(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "try_acquire":
                times.append(trio.current_time())
                router._core.seat("s").doorbell = True

        world.before_call = note
        begin = trio.current_time()
        with pytest.raises(SessionBusyError):
            await router.delete("s")
        assert trio.current_time() - begin == pytest.approx(5.0, abs=0.3)
        gaps = {round(after - before, 2) for before, after in zip(times, times[1:], strict=False)}
        assert gaps == {0.2}
        assert not await world.stores.inbox.is_empty("s")
        world.before_call = None
        await wait_all_tasks_blocked()
        assert len(world.calls("try_acquire")) == len(times) + 1
        await trio.sleep(100)
        await router.delete("s")


@pytest.mark.contract("SR-298")
async def test_deleting_under_a_turn_of_this_node(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router)
        turn = await world.turn()
        begin = trio.current_time()
        await router.delete("s")
        assert trio.current_time() - begin < 1
        assert turn.session.interrupts == [RELEASED]
        assert (await settled(found)).completion == "interrupted"
        world.obedient = False
        await submit(router)
        await world.turn(1)
        begin = trio.current_time()
        with pytest.raises(SessionBusyError):
            await router.delete("s")
        assert trio.current_time() - begin == pytest.approx(5.0, abs=0.1)
        world.turns[1].finish()


@pytest.mark.contract("SR-301", "SR-322", "SR-369")
async def test_a_delete_is_seen_on_every_node(autojump_clock: trio.abc.Clock) -> None:
    world = World(RouterConfig(status_broadcast=True))
    async with cluster(world, "n1", "n2") as [one, two]:
        stream = two.events("s")
        await trio.sleep(1)
        await held(world, one)
        found = await submit(two, "waits")
        await world.turn(1)
        assert two.status("s").source is StatusSource.REMOTE_PROJECTION
        await one.delete("s")
        assert (await settled(found)).completion == "interrupted"
        await wait_all_tasks_blocked()
        assert sorted(world.purged) == [("n1", "s"), ("n2", "s")]
        assert two.status("s").source is StatusSource.UNKNOWN
        events = [event async for event in stream]
        assert [event.reason for event in events if isinstance(event, InterruptedAt)] == [RELEASED]


@pytest.mark.contract("SR-303")
async def test_a_lease_that_is_lost_in_a_delete(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        lease = router._core.seat("s").lease
        assert lease is not None

        async def lose(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "purge":
                world.before_call = None
                await world.stores.leases.release(lease.lease)
                await world.stores.leases.try_acquire("s", "other", 30)

        world.before_call = lose
        with pytest.raises(SessionNotHeldError):
            await router.delete("s")
        view = await world.stores.records.load("s")
        assert view is not None
        assert view.state == b"kept"
        assert not world.published(SignalKind.EVICT)
        assert not router._core.seats
        await world.stores.leases.release(lease.lease)


# -- yield
