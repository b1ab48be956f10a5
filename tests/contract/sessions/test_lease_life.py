"""Gate and lease lifetime, renewal and touches, with store calls that fail when told to (SR §9, §10)."""

from __future__ import annotations

import inspect

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import (
    Probe,
    Turn,
    World,
    cluster,
    ended_by_everybody,
    error_of,
    settled,
    submit,
)
from zlinkpy.sessions.core import HeldLease, RouterCore
from zlinkpy.sessions.errors import IdempotencyStoreError, LeaseLostError, SessionLeaseError, TurnFailedError
from zlinkpy.sessions.gate_machine import Gate
from zlinkpy.sessions.lease_machine import LeaseRenewal
from zlinkpy.sessions.renewal import LeaseRenewer
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.types import InterruptReason, Priority, RouterConfig, SessionLease, SessionSignal, SignalKind


async def held(world: World, router: SessionRouter, session: str = "s") -> None:
    """One turn that is over: the router holds the session, with a handle."""
    found = await submit(router, session=session)
    (await world.turn()).finish()
    await settled(found)
    await wait_all_tasks_blocked()


class Failing:
    """Makes calls of some names raise while it is on."""

    def __init__(self, world: World, *names: str, node: str = "n1") -> None:
        self.on = True
        self.times: list[float] = []

        async def hook(caller: str, name: str, _: tuple[object, ...]) -> None:
            if name in names and caller == node:
                self.times.append(trio.current_time())
                if self.on:
                    raise IdempotencyStoreError("down") if name == "touch" else SessionLeaseError("down")

        world.before_call = hook


@pytest.mark.contract("SR-147", "SR-092")
async def test_an_empty_inbox_opens_nothing(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await router._subscriptions.ensure("s")
        doorbell = SessionSignal("s", SignalKind.MESSAGE_ENQUEUED, "n2", {}, "instance of n2")
        await world.bus.publish(doorbell)
        await wait_all_tasks_blocked()
        assert world.calls("is_empty") == ["is_empty"]
        assert "try_acquire" not in world.calls()
        # Not to be told is no answer: then the lease is won, and given back at once.
        world.stores.inbox.backend.plan("before", operation="is_empty")
        await world.bus.publish(doorbell)
        await wait_all_tasks_blocked()
        assert world.calls("try_acquire", "release") == ["try_acquire", "release"]
        assert "open" not in world.calls()
        assert await world.holder() is None
        assert not router._core.seats


@pytest.mark.contract("SR-148")
async def test_one_gate_for_turns_drains_and_deletes(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await submit(router)
        turn = await world.turn()
        assert not router._core.seat("s").enter(Gate.TURN)
        turn.finish()
        await wait_all_tasks_blocked()
        seen: list[bool] = []

        async def during(_: str, name: str, __: tuple[object, ...]) -> None:
            if name in ("collect", "purge"):
                seen.append(router._core.seat("s").enter(Gate.TURN))

        world.before_call = during
        router._core.ring("s")
        await wait_all_tasks_blocked()
        await router.delete("s")
        assert seen == [False, False]


@pytest.mark.contract("SR-151", "SR-225")
async def test_a_late_reset_of_an_earlier_attempt(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    idempotency = world.stores.idempotency
    async with cluster(world, "n1") as [router]:
        first = await submit(router, key="k")
        entry = await idempotency.find("k")
        assert entry is not None
        assert entry.holder_id is not None
        await idempotency.compare_and_reset("k", entry.holder_id)
        (await world.turn()).finish(ValueError("first fails"))
        await error_of(first)
        await wait_all_tasks_blocked()
        await submit(router, key="k")
        assert not await idempotency.compare_and_reset("k", entry.holder_id)
        second = await idempotency.find("k")
        assert second is not None
        assert second.epoch != entry.epoch
        (await world.turn()).finish()


@pytest.mark.contract("SR-152", "SR-383")
async def test_two_handles_one_lease(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.obedient = False

    async def slow(probe: Probe) -> None:
        await trio.sleep(100 if probe.node == "n1" else 0)

    world.closing = slow
    async with cluster(world, "n1", "n2") as [one, two]:
        first = await submit(one)
        turn = await world.turn()
        Failing(world, "extend")
        second = await submit(two, "second")
        await trio.sleep(50)
        other = await world.turn(1)
        assert (other.session.node, await world.holder()) == ("n2", "n2")
        other.ctx.state = b"n2"
        other.finish()
        await settled(second)
        turn.ctx.state = b"n1"
        turn.finish()
        assert isinstance(await error_of(first), LeaseLostError)
        view = await world.stores.records.load("s")
        assert view is not None
        assert (view.state, view.version) == (b"n2", 1)
        assert len(world.probes) == 2


@pytest.mark.contract("SR-153", "SR-154")
async def test_every_turn_starts_from_the_record(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await submit(router)
        turn = await world.turn()
        turn.ctx.state = b"one"
        turn.finish()
        await wait_all_tasks_blocked()
        turn.ctx.state = b"edited outside"
        found = await world.stores.leases.find_holder("s")
        assert found is not None
        await world.stores.records.commit("s", b"two", {"a": 1}, found.token, "raw")
        await submit(router)
        turn = await world.turn(1)
        assert (turn.ctx.state, turn.ctx.version, turn.ctx.attrs) == (b"two", 2, {"a": 1})
        turn.finish()


@pytest.mark.contract("SR-155")
async def test_whoever_ends_a_lease_it_is_given_back_once(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        lease = router._core.seat("s").lease
        assert lease is not None
        await ended_by_everybody(router, lease)
        await wait_all_tasks_blocked()
        assert world.calls("release") == ["release"]


@pytest.mark.contract("SR-156")
async def test_a_lost_lease_is_not_used_again(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await held(world, router)
        lease = router._core.seat("s").lease
        assert lease is not None
        world.log.clear()
        router._core.lease_lost(lease)
        await wait_all_tasks_blocked()
        await submit(router)
        await wait_all_tasks_blocked()
        assert world.calls("try_acquire") == ["try_acquire"]
        now = router._core.seat("s").lease
        assert now is not None
        assert now.lease.token > lease.lease.token
        (await world.turn(1)).finish()


@pytest.mark.contract("SR-157", "SR-158", "SR-261", "SR-262", "SR-265")
async def test_a_handle_that_is_evicted_in_a_turn(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        first = await submit(router)
        turn = await world.turn()
        router._core.cache.evict("s")
        second = await submit(router, "second")
        await trio.sleep(1)
        assert turn.session.closed == 0
        assert await world.holder() == "n1"
        world.log.clear()
        turn.finish()
        await settled(first)
        again = await world.turn(1)
        # The pass runs what it collects under its handle; the close comes at its end.
        assert again.session is turn.session
        again.finish()
        await settled(second)
        await wait_all_tasks_blocked()
        assert [name for name in world.calls() if name in ("close", "release")] == ["close", "release"]
        assert await world.holder() is None
        third = await submit(router, "third")
        assert (await world.turn(2)).session is not turn.session
        world.turns[-1].finish()
        await settled(third)


@pytest.mark.contract("SR-159")
async def test_children_end_with_their_turn(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    seen: list[str] = []

    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            seen.append("joined")

    async with cluster(world, "n1") as [router]:
        found = await submit(router)
        turn = await world.turn()
        turn.ctx.nursery.start_soon(child)
        await wait_all_tasks_blocked()
        turn.finish()
        await settled(found)
        assert seen == ["joined"]
        assert world.calls("try_acquire") == ["try_acquire"]


@pytest.mark.contract("SR-160", "SR-307")
async def test_waiting_behind_a_peer_disturbs_nobody(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        found = await submit(two)
        await trio.sleep(100)
        assert turn.session.interrupts == []
        assert not world.published(SignalKind.YIELD)
        assert not world.published(SignalKind.INTERRUPT)
        turn.finish()
        (await world.turn(1)).finish()
        assert (await settled(found)).success


@pytest.mark.contract("SR-161", "SR-163", "SR-107", "SR-174")
async def test_a_turn_of_ten_minutes(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, _]:
        renewed: list[str] = []
        renew = one._core.store.renew

        async def counted(lease: SessionLease, duration: float) -> bool:
            renewed.append(lease.session_id)
            return await renew(lease, duration)

        one._core.store.renew = counted  # type: ignore[method-assign]
        found = await submit(one, key="k")
        turn = await world.turn()
        await trio.sleep(601)
        assert len(renewed) == 60
        steps = [name for name in world.calls(node="n1") if name in ("extend", "touch")]
        assert steps == ["extend", "touch"] * 60
        assert not turn.session.interrupts
        assert await world.holder() == "n1"
        turn.finish("long")
        assert (await settled(found)).answer == "long"


@pytest.mark.contract("SR-162")
async def test_renewals_that_raise_for_a_while(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await submit(router)
        turn = await world.turn()
        lease = router._core.seat("s").lease
        failing = Failing(world, "extend")
        begin = trio.current_time()
        await trio.sleep(21)
        failing.on = False
        await trio.sleep(15)
        assert [round(at - begin) for at in failing.times] == [10, 12, 14, 16, 18, 20, 22, 32]
        assert router._core.seat("s").lease is lease
        assert not turn.session.interrupts
        turn.finish()


@pytest.mark.contract("SR-166")
async def test_a_refused_renewal_loses_the_lease_once(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    lost: list[str] = []

    class Counting:
        def on_lease_extend_failed(self) -> None:
            lost.append("lost")

    async with cluster(world, "n1", metrics=Counting()) as [router]:
        found = await submit(router)
        turn = await world.turn()
        held_lease = await world.stores.leases.find_holder("s")
        assert held_lease is not None
        lease = router._core.seat("s").lease
        assert lease is not None
        await world.stores.leases.release(lease.lease)
        await trio.sleep(11)
        assert turn.session.interrupts == [InterruptReason.LEASE_LOST]
        assert isinstance(await error_of(found), LeaseLostError)
        extended = world.calls("extend")
        await trio.sleep(60)
        assert (lost, world.calls("extend")) == (["lost"], extended)


@pytest.mark.contract("SR-167", "SR-384")
@pytest.mark.parametrize("hangs", [False, True])
async def test_renewals_that_never_come_through(autojump_clock: trio.abc.Clock, hangs: bool) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        begin = trio.current_time()
        found = await submit(router)
        turn = await world.turn()
        failing = Failing(world, "extend")
        if hangs:

            async def hang(_: str, name: str, __: tuple[object, ...]) -> None:
                if name == "extend":
                    await trio.sleep_forever()

            world.before_call = hang
        assert isinstance(await error_of(found, 40), LeaseLostError)
        assert trio.current_time() - begin == pytest.approx(30.0, abs=0.3)
        assert turn.session.interrupts == [InterruptReason.LEASE_LOST]
        assert hangs or len(failing.times) == 10


@pytest.mark.contract("SR-168")
@pytest.mark.parametrize("forwarded", [False, True])
async def test_a_turn_that_lost_its_lease_writes_nothing(autojump_clock: trio.abc.Clock, forwarded: bool) -> None:
    world = World()
    world.obedient = False
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        found = await submit(two if forwarded else one, key="k")
        turn = await world.turn(1)
        turn.ctx.state = b"never"
        lease = one._core.seat("s").lease
        assert lease is not None
        one._core.lease_lost(lease)
        turn.finish()
        assert type(await error_of(found)) is LeaseLostError
        view = await world.stores.records.load("s")
        assert view is not None
        assert (view.state, view.version) == (None, 0)
        assert "mark_done" not in world.calls()
        assert await world.stores.idempotency.find("k") is None


@pytest.mark.contract("SR-169")
async def test_a_slow_close_after_a_loss_delays_no_renewal(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:

        async def slow(_: Probe) -> None:
            await trio.sleep(60)

        world.closing = slow
        # More than are closed at once.
        lost = [f"lost {number}" for number in range(10)]
        for session in lost:
            await held(world, router, session)
        await submit(router, session="kept")
        begin = trio.current_time()
        for session in lost:
            lease = router._core.seat(session).lease
            assert lease is not None
            router._core.lease_lost(lease)
        await trio.sleep(55)
        kept = [entry for entry in world.log if entry[1] == "extend" and entry[2].session_id == "kept"]
        assert len(kept) == 5
        assert trio.current_time() - begin == 55
        world.turns[-1].finish()
        world.closing = world.at_once


@pytest.mark.contract("SR-170", "SR-317")
async def test_the_turn_is_found_though_its_handle_left_the_cache(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.obedient = False
    async with cluster(world, "n1") as [router]:
        await submit(router)
        turn = await world.turn()
        router._core.cache.evict("s")
        lease = router._core.seat("s").lease
        assert lease is not None
        await router.interrupt("s")
        router._core.lease_lost(lease)
        assert turn.session.interrupts == [InterruptReason.USER, InterruptReason.LEASE_LOST]
        turn.finish()


@pytest.mark.contract("SR-171")
def test_a_schedule_that_is_attached_too_late_ends_at_once() -> None:
    lease = SessionLease("s", "n1", 1, 0, 30.0)
    ended: list[str] = []
    one = HeldLease(lease, LeaseRenewal(0.0, interval=10.0, duration=30.0))
    one.lost = True
    one.end()
    one.attach(lambda: ended.append("stopped"))
    assert ended == ["stopped"]
    other = HeldLease(lease, LeaseRenewal(0.0, interval=10.0, duration=30.0))
    other.attach(lambda: ended.append("later"))
    assert ended == ["stopped"]
    other.end()
    assert ended == ["stopped", "later"]


@pytest.mark.contract("SR-172")
async def test_what_a_lost_lease_leaves_unstarted_runs_elsewhere(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        waiting = [await submit(two, f"m{n}", key=f"k{n}") for n in range(3)]
        turn.finish()
        turn = await world.turn(1)
        lease = one._core.seat("s").lease
        assert lease is not None
        await trio.sleep(0.1)
        one._core.lease_lost(lease)
        assert type(await error_of(waiting[0])) is LeaseLostError
        for number in (1, 2):
            turn = await world.turn(number + 1)
            assert (turn.text, turn.ctx.turn_id) == (f"m{number}", waiting[number].turn_id)
            turn.finish(f"{number}")
            assert (await settled(waiting[number])).answer == f"{number}"
        await trio.sleep(60)
        assert len(world.turns) == 4
        assert world.published(SignalKind.MESSAGE_ENQUEUED, "n1")


@pytest.mark.contract("SR-438")
async def test_the_own_message_of_a_pass_that_loses_its_lease(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await world.stores.inbox.deliver(_message("orphan"))
        found = await submit(router, "mine", key="k")
        turn = await world.turn()
        assert turn.text == "orphan"
        lease = router._core.seat("s").lease
        assert lease is not None
        seen: list[object] = []

        async def look(_: str, name: str, arguments: tuple[object, ...]) -> None:
            if name == "deliver":
                entry = await world.stores.idempotency.find("k")
                assert entry is not None
                seen.append((arguments[0].turn_id, arguments[0].idempotency_key, entry.holder_id))  # type: ignore[attr-defined]

        world.before_call = look
        router._core.lease_lost(lease)
        again = await world.turn(1)
        assert seen == [(found.turn_id, "k", None)]
        assert (again.text, again.ctx.turn_id) == ("mine", found.turn_id)
        again.finish("once")
        assert (await settled(found)).answer == "once"
        await trio.sleep(30)
        assert len(world.turns) == 2


def _message(text: str, **more: object) -> object:
    from zlinkpy.sessions.types import InboundMessage

    return InboundMessage("s", "chat", text, **more)  # type: ignore[arg-type]


@pytest.mark.contract("SR-173")
@pytest.mark.parametrize("raises", [False, True])
async def test_a_handlers_own_budget(autojump_clock: trio.abc.Clock, raises: bool) -> None:
    world = World()

    async def five_seconds(turn: Turn) -> None:
        with trio.fail_after(5) if raises else trio.move_on_after(5):
            await trio.sleep_forever()
        turn.finish("out of time")

    world.behave = five_seconds
    async with cluster(world, "n1") as [router]:
        begin = trio.current_time()
        found = await submit(router)
        if raises:
            assert type(await error_of(found, 6)) is TurnFailedError
        else:
            assert (await settled(found, 6)).answer == "out of time"
        assert trio.current_time() - begin == 5
        assert not world.probes[0].interrupts
        lease = router._core.usable(router._core.seat("s"))
        assert lease is not None


@pytest.mark.contract("SR-174", "SR-179")
async def test_touches_follow_successes_only(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await submit(router, key="k")
        await world.turn()
        failing = Failing(world, "extend")
        await trio.sleep(11)
        assert world.calls("touch") == []
        failing.on = False
        await trio.sleep(2)
        assert world.calls("touch") == ["touch"]
        world.before_call = None
        both = Failing(world, "touch")
        await trio.sleep(11)
        assert len(both.times) == 1
        assert not world.probes[0].interrupts
        world.turns[-1].finish()


@pytest.mark.contract("SR-175", "SR-180", "SR-181", "SR-396")
async def test_what_is_touched_is_what_is_bound_now(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        for number in range(1, 6):
            found = await submit(router, key=f"K{number}")
            turn = await world.turn(number - 1)
            if number < 5:
                turn.finish()
                await settled(found)
                await wait_all_tasks_blocked()
        world.log.clear()
        await trio.sleep(10.5)
        [(_, _, key, reserver)] = [entry for entry in world.log if entry[1] == "touch"]
        entry = await world.stores.idempotency.find("K5")
        assert entry is not None
        assert (key, reserver) == ("K5", entry.holder_id)
        assert reserver != "n1"
        turn.finish()
        await wait_all_tasks_blocked()
        world.log.clear()
        await trio.sleep(10.5)
        assert world.calls("touch", "extend") == ["extend"]
    parameters = inspect.signature(LeaseRenewer._renew_on_loop).parameters
    assert list(parameters) == ["self", "held", "scope"]


@pytest.mark.contract("SR-177", "SR-178")
async def test_the_submits_key_lives_while_others_run_before_it(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, two)
        await two.release("s")
        await one._subscriptions.ensure("s")
        idempotency = world.stores.idempotency
        await idempotency.put_if_absent("q", "s", "h", "x/1", 30)
        await idempotency.release_holder("q", "x/1", 300)
        await world.stores.inbox.deliver(_message("queued", idempotency_key="q", turn_id="tq"))  # type: ignore[arg-type]
        found = await submit(one, "mine", key="k")
        turn = await world.turn(1)
        assert turn.text == "queued"
        world.log.clear()
        await trio.sleep(91)
        touched = [entry[2] for entry in world.log if entry[1] == "touch"]
        assert touched == ["k", "q"] * 9
        turn.finish()
        turn = await world.turn(2)
        world.log.clear()
        await trio.sleep(10)
        assert [entry[2] for entry in world.log if entry[1] == "touch"] == ["k"]
        turn.finish("mine")
        assert (await settled(found)).answer == "mine"


@pytest.mark.contract("SR-394")
async def test_losing_a_lease_is_plain_and_quick(autojump_clock: trio.abc.Clock) -> None:
    assert not inspect.iscoroutinefunction(RouterCore.lease_lost)
    world = World(RouterConfig())
    async with cluster(world, "n1") as [router]:
        await submit(router)
        lease = router._core.seat("s").lease
        assert lease is not None
        before = trio.current_time()
        router._core.lease_lost(lease)
        assert trio.current_time() == before
        assert Priority.NOW == 0
