"""Submitting, on one node and on two: the order of the steps, and what is undone (SR §7, §8)."""

from __future__ import annotations

import logging
import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Turn, World, cluster, error_of, settled, submit
from zlinkpy.sessions import errors
from zlinkpy.sessions.errors import (
    ConflictingHandlerError,
    ForwardTimeoutError,
    HolderLostError,
    IdempotencyStoreError,
    ReentrantSubmitError,
    RouterClosedError,
    SessionEvictedError,
    SessionInboxError,
    SessionLeaseError,
    SessionSignalError,
    TurnFailedError,
)
from zlinkpy.sessions.futures import SubmitDisposition
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.types import DispositionKind, InboundMessage, Priority, SessionSignal, SignalKind, TurnResult


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
        registered: list[int] = []
        rung: list[str] = []
        ring = two._core.ring

        async def look(node: str, name: str, _: tuple[object, ...]) -> None:
            if (node, name) == ("n2", "deliver"):
                registered.append(len(two._core.forwards))

        def rings(session_id: str) -> None:
            rung.append(session_id)
            ring(session_id)

        world.before_call = look
        two._core.ring = rings  # type: ignore[method-assign]
        second = await submit(two, "forward me", key="k")
        assert (registered, rung) == ([1], ["s"])
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
        ended = TurnResult(False, "from n1", "not quite", completion="half way", streamed=True)
        turn.finish(ended)
        assert await settled(second) == ended
        assert "open" not in world.calls(node="n2")


@pytest.mark.contract("SR-112")
async def test_another_handler_is_refused_before_anything(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", refs=("chat", "other")) as [router]:
        (first, turn) = (await submit(router), await world.turn())
        turn.finish()
        await settled(first)
        await wait_all_tasks_blocked()
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


@pytest.mark.contract("SR-110")
async def test_an_answer_that_comes_before_submit_returns(autojump_clock: trio.abc.Clock) -> None:
    world = World()

    async def at_once(turn: Turn) -> None:
        turn.finish("quick")

    async with cluster(world, "n1", "n2") as [one, two]:
        await settled(await _first(world, one))
        world.behave = at_once
        slow = world.bus.publish

        async def late(signal: SessionSignal) -> None:
            await slow(signal)
            if signal.kind is SignalKind.MESSAGE_ENQUEUED:
                await trio.sleep(1)

        world.bus.publish = late  # type: ignore[method-assign]
        found = await submit(two, key="k")
        assert found.future.done()
        assert (await found.future.result()).answer == "quick"
        assert "find" not in world.calls(node="n2")


async def _first(world: World, router: SessionRouter) -> SubmitDisposition:
    """One turn that is over: the router holds the session now."""
    found = await submit(router)
    (await world.turn()).finish()
    await found.future.result()
    await wait_all_tasks_blocked()
    return found


@pytest.mark.contract("SR-111")
async def test_a_bus_that_cannot_subscribe_is_no_reason_not_to_run(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.bus_down = SessionSignalError("down")
    async with cluster(world, "n1") as [router]:
        with caplog.at_level(logging.WARNING, logger="zlinkpy.sessions"):
            assert (await settled(await _first(world, router))).answer == "ok"
        assert any("not heard" in each.getMessage() for each in caplog.records)


@pytest.mark.contract("SR-113", "SR-300")
async def test_a_deleted_session_is_a_new_one(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2", refs=("chat", "other")) as [one, two]:
        await _first(world, one)
        await two.delete("s")
        found = await submit(one, handler="other")
        turn = await world.turn(1)
        assert (turn.ctx.state, turn.ctx.version) == (None, 0)
        turn.finish()
        await settled(found)
        view = await world.stores.records.load("s")
        assert view is not None
        assert view.handler_ref == "other"


@pytest.mark.contract("SR-115", "SR-149", "SR-124")
async def test_a_busy_session_is_not_claimed_again(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        first = await submit(router)
        turn = await world.turn()
        world.log.clear()
        second = await submit(router, "second")
        assert second.kind is DispositionKind.FORWARDED
        assert not world.calls("try_acquire", "extend", "find_holder")
        await wait_all_tasks_blocked()
        assert len(world.turns) == 1
        turn.finish()
        await settled(first)
        (await world.turn(1)).finish("2")
        assert (await settled(second)).answer == "2"
        assert len(world.probes) == 1


@pytest.mark.contract("SR-118")
async def test_a_refused_delivery_leaves_nothing(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await _first(world, one)
        world.stores.inbox.backend.plan("before", operation="deliver", applied="no")
        with pytest.raises(SessionInboxError):
            await submit(two, key="k")
        assert await world.stores.idempotency.find("k") is None
        assert not len(two._core.forwards)
        found = await submit(two, key="k")
        (await world.turn(1)).finish("again")
        assert (await settled(found)).answer == "again"


@pytest.mark.contract("SR-119")
async def test_a_doorbell_that_fails_fails_no_submit(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await _first(world, one)
        world.bus_down = SessionSignalError("down")
        found = await submit(two)
        assert found.kind is DispositionKind.FORWARDED
        world.bus_down = None
        await trio.sleep(15.5)
        (await world.turn(1)).finish("late")
        assert (await settled(found)).answer == "late"


@pytest.mark.contract("SR-120", "SR-379", "SR-420")
async def test_a_lease_store_that_fails(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        world.stores.leases.backend.plan("before", operation="try_acquire", times=2)
        with pytest.raises(SessionLeaseError):
            await submit(router, key="k")
        assert await world.stores.idempotency.find("k") is None
        assert not router._core.seats
        await submit(router, key="k")
        (await world.turn()).finish()


@pytest.mark.contract("SR-121", "SR-256")
async def test_a_conflict_that_only_the_claim_sees(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2", refs=("chat", "other")) as [one, two]:

        async def first_wins(node: str, name: str, _: tuple[object, ...]) -> None:
            if (node, name) == ("n2", "put_if_absent"):
                world.before_call = None
                await settled(await _first(world, one))
                await one.release("s")

        world.before_call = first_wins
        with pytest.raises(ConflictingHandlerError) as caught:
            await submit(two, handler="other", key="k")
        assert (caught.value.requested, caught.value.bound) == ("other", "chat")
        assert await world.stores.idempotency.find("k") is None
        assert await world.holder() is None
        assert not two._core.seats


@pytest.mark.contract("SR-122")
async def test_a_pass_that_cannot_start_is_undone(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        nursery = router._core.turn_nursery

        class Closing:
            def start_soon(self, *_: object) -> None:
                raise RuntimeError("Nursery is closed to new arrivals")

        router._core.turn_nursery = Closing()  # type: ignore[assignment]
        with pytest.raises(RuntimeError):
            await submit(router, key="k")
        router._core.turn_nursery = nursery
        assert await world.stores.idempotency.find("k") is None
        assert await world.holder() is None
        assert not router._core.seats
        assert router._core.busy == 0


@pytest.mark.contract("SR-123")
async def test_an_orphan_is_run_by_who_hears_the_bell(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await settled(await _first(world, one))
        await settled(await _forwarded(world, two, 1))
        await one.release("s")
        await two._subscriptions.ensure("s")
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "orphan", turn_id="t9"))
        await world.bus.publish(SessionSignal("s", SignalKind.MESSAGE_ENQUEUED, "x", {"inboxId": "1"}))
        # The bell, not the scan for old messages that every node makes.
        with trio.fail_after(1):
            turn = await world.turn(2)
        assert (turn.text, turn.ctx.turn_id, turn.session.node) == ("orphan", "t9", "n2")
        turn.finish()


async def _forwarded(world: World, router: SessionRouter, number: int) -> SubmitDisposition:
    found = await submit(router)
    (await world.turn(number)).finish()
    return found


@pytest.mark.contract("SR-125", "SR-126")
@pytest.mark.parametrize("priority", [Priority.NEXT, Priority.NOW])
async def test_orphans_run_before_the_submit_that_finds_them(
    autojump_clock: trio.abc.Clock, priority: Priority
) -> None:
    world = World()
    world.behave = _at_once
    async with cluster(world, "n1") as [router]:
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "orphan", priority=priority))
        await settled(await submit(router, "mine"))
        await wait_all_tasks_blocked()
        assert [turn.text for turn in world.turns] == ["orphan", "mine"]
        assert await world.stores.inbox.is_empty("s")


async def _at_once(turn: Turn) -> None:
    turn.finish(turn.text)


@pytest.mark.contract("SR-129", "SR-224")
async def test_the_result_is_kept_before_it_is_told(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await _first(world, one)
        held: list[tuple[str | None, float]] = []

        async def look(_: str, name: str, arguments: tuple[object, ...]) -> None:
            entry = await world.stores.idempotency.find("k")
            if entry is not None and (not held or held[-1] != (entry.holder_id, entry.ttl)):
                held.append((entry.holder_id, entry.ttl))

        world.before_call = look
        found = await submit(two, key="k")
        turn = await world.turn(1)
        await trio.sleep(11)
        turn.finish("kept")
        await settled(found)
        world.before_call = None
        steps = [
            entry[1] if entry[1] != "publish" else entry[2].name
            for entry in world.log
            if entry[0] == "n1" and (entry[1] == "mark_done" or entry[1] == "publish")
        ]
        assert [step for step in steps if step != "EVENT"] == ["mark_done", "TURN_RESULT"]
        [(first, _), (second, forward), (third, secondary)] = held
        assert (str(first).startswith("n2/"), second, str(third).startswith("n1/")) == (True, None, True)
        assert (forward, secondary) == (300.0, 30.0)
        entry = await world.stores.idempotency.find("k")
        assert entry is not None
        assert (entry.status.name, entry.holder_id) == ("DONE", None)


@pytest.mark.contract("SR-130")
async def test_a_result_that_cannot_be_kept_is_told_all_the_same(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await _first(world, one)
        world.stores.idempotency.backend.plan("before", operation="mark_done", times=3)
        found = await submit(two, key="k")
        (await world.turn(1)).finish("told")
        assert (await settled(found)).answer == "told"


@pytest.mark.contract("SR-131")
async def test_a_bus_that_fails_at_the_end(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        first = await submit(router)
        turn = await world.turn()
        waiting = [await submit(router, f"w{n}") for n in range(2)]
        world.bus_down = SessionSignalError("down")
        turn.finish()
        await settled(first)
        for number, each in enumerate(waiting):
            (await world.turn(number + 1)).finish(f"{number}")
            assert (await settled(each)).answer == f"{number}"


@pytest.mark.contract("SR-133", "SR-134")
@pytest.mark.parametrize(("key", "after"), [("k", 15.0), (None, 300.0)])
async def test_results_that_get_lost(autojump_clock: trio.abc.Clock, key: str | None, after: float) -> None:
    world = World()
    world.behave = _at_once
    async with cluster(world, "n1", "n2") as [one, two]:
        await settled(await submit(one))
        world.lost_kinds.add(SignalKind.TURN_RESULT)
        begin = trio.current_time()
        found = await submit(two, "x", key=key)
        if key is not None:
            assert (await settled(found, 400)).answer == "x"
        else:
            assert isinstance(await error_of(found, 400), ForwardTimeoutError)
        assert trio.current_time() - begin == pytest.approx(after, abs=1.1)


@pytest.mark.contract("SR-135")
async def test_losing_opens_nothing(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    misses: list[str] = []

    class Counting:
        def on_cache_miss(self) -> None:
            misses.append("miss")

    async with cluster(world, "n1") as [one]:
        await submit(one)
        turn = await world.turn()
        async with cluster(world, "n2", metrics=Counting()) as [two]:
            found = await submit(two)
            assert (len(two._core.cache), misses) == (0, [])
            turn.finish()
            (await world.turn(1)).finish()
            await settled(found)


@pytest.mark.contract("SR-137")
async def test_many_submits_on_three_nodes(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    chance = random.Random(4)

    async def a_while(turn: Turn) -> None:
        await trio.sleep(chance.uniform(0, 0.05))
        turn.finish(turn.text)

    world.behave = a_while
    found: list[SubmitDisposition] = []
    async with cluster(world, "n1", "n2", "n3") as routers, trio.open_nursery() as nursery:

        async def one(number: int) -> None:
            await trio.sleep(chance.uniform(0, 5))
            found.append(await submit(chance.choice(routers), str(number), session=f"s{number % 5}"))

        for number in range(300):
            nursery.start_soon(one, number)
        await trio.sleep(20)
        answers = [(await settled(each)).answer for each in found]
        assert sorted(answers, key=lambda each: int(str(each))) == [str(number) for number in range(300)]
    assert world.most_at_once == 1


@pytest.mark.contract("SR-138", "SR-150")
async def test_two_first_submits_at_once(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    found: dict[str, SubmitDisposition] = {}
    async with cluster(world, "n1", "n2") as [one, two]:
        async with trio.open_nursery() as nursery:
            for name, router in (("n1", one), ("n2", two)):

                async def go(name: str = name, router: SessionRouter = router) -> None:
                    found[name] = await submit(router, name, key=f"k-{name}")

                nursery.start_soon(go)
        assert sorted(each.kind.value for each in found.values()) == ["executed_locally", "forwarded"]
        turn = await world.turn()
        winner = turn.session.node
        held = await world.stores.idempotency.find(f"k-{winner}")
        assert held is not None
        assert held.holder_id is not None
        assert await world.holder() == winner
        assert held.holder_id.startswith(f"{winner}/")
        assert held.holder_id != winner
        turn.finish()
        loser = await world.turn(1)
        assert loser.session.node == winner
        # Whichever message came first is run first; both run on the node that won.
        assert {turn.text, loser.text} == {"n1", "n2"}
        loser.finish()
        for each in found.values():
            await settled(each)
        attempts = [(entry[0], entry[5]) for entry in world.log if entry[1] == "put_if_absent"]
        attempts += [(entry[0], entry[3]) for entry in world.log if entry[1] == "acquire_holder"]
        assert len(attempts) == len({reserver for _, reserver in attempts}) == 3
        assert all(reserver.startswith(f"{node}/") for node, reserver in attempts)


@pytest.mark.contract("SR-139", "SR-443")
async def test_a_turn_cannot_wait_for_itself(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    raised: list[str] = []
    async with cluster(world, "n1") as [router]:

        async def reenter(turn: Turn) -> None:
            if turn.session.session_id == "s":
                for call in (lambda: submit(router), lambda: router.release("s"), lambda: router.delete("s")):
                    try:
                        await call()
                    except ReentrantSubmitError as error:
                        raised.append(str(error))
                inner = await submit(router, session="other")
                await inner.future.result()
                turn.ctx.nursery.start_soon(child)
                await trio.sleep(1)
            turn.finish()

        async def child() -> None:
            with pytest.raises(ReentrantSubmitError):
                await submit(router)
            raised.append("child")

        world.behave = reenter
        await settled(await submit(router), 5)
        assert len(raised) == 4
        await settled(await submit(router, session="other"), 5)


@pytest.mark.contract("SR-140", "SR-304")
async def test_a_closed_router_takes_nothing(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await router.close()
        world.log.clear()
        with pytest.raises(RouterClosedError):
            await submit(router)
        with pytest.raises(RouterClosedError):
            await router.delete("s")
        assert not world.log


@pytest.mark.contract("SR-144")
def test_the_statuses_an_adapter_may_answer_with() -> None:
    hinted = {
        name: kind.status_hint
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.SessionError) and kind.status_hint is not None
    }
    assert hinted == {"ConflictingHandlerError": 409, "IdempotencyConflictError": 409, "SessionLeaseError": 503}


@pytest.mark.contract("SR-143")
@pytest.mark.parametrize("how", ["conflict", "release", "delete", "deadline", "loss", "failure"])
async def test_how_forwarded_turns_fail(autojump_clock: trio.abc.Clock, how: str) -> None:
    world = World()
    kinds: dict[str, tuple[type[Exception], float]] = {
        "conflict": (ConflictingHandlerError, 20.0),
        "release": (SessionEvictedError, 20.0),
        "delete": (SessionEvictedError, 20.0),
        "deadline": (ForwardTimeoutError, 301.0),
        "loss": (HolderLostError, 50.0),
        "failure": (TurnFailedError, 20.0),
    }
    async with cluster(world, "n1", "n2", refs=("chat", "other")) as [one, two]:
        await submit(one)
        turn = await world.turn()
        found = await submit(two, "x", key="k")
        if how == "conflict":
            await world.stores.idempotency.discard_reservation("k")
            await world.stores.inbox.purge("s")
            rejected = InboundMessage("s", "other", "x", turn_id=found.turn_id)
            await world.stores.inbox.deliver(rejected)
            turn.finish()
        elif how == "release":
            await one.release("s")
        elif how == "delete":
            await one.delete("s")
        elif how == "deadline":
            pass
        else:
            turn.finish()
            turn = await world.turn(1)
            if how == "failure":
                turn.finish(ValueError("no"))
            else:

                async def no_touch(_: str, name: str, __: tuple[object, ...]) -> None:
                    if name == "touch":
                        raise IdempotencyStoreError("down")

                world.before_call = no_touch
        kind, seconds = kinds[how]
        assert type(await error_of(found, seconds)) is kind
        turn.finish()
