"""The drain loop: order, priorities, NOW injections, conflicts (SR §11)."""

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
    seen,
    settled,
    submit,
    texts,
    wait_for,
)
from zlinkpy.sessions.core import HeldLease
from zlinkpy.sessions.errors import (
    ConflictingHandlerError,
    TurnFailedError,
)
from zlinkpy.sessions.events import RejectedAt
from zlinkpy.sessions.gate_machine import SessionSeat
from zlinkpy.sessions.types import (
    IdempotencyStatus,
    InboundMessage,
    Priority,
)


@pytest.mark.contract("SR-182", "SR-145")
async def test_it_goes_on_until_nothing_is_left(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        drains, start_drain = [], router._core.start_drain

        def counted(seat: SessionSeat[HeldLease]) -> None:
            drains.append(seat.session_id)
            start_drain(seat)

        router._core.start_drain = counted
        await submit(router, "0")
        for number in range(3):
            turn = await world.turn(number)
            await submit(router, str(number + 1))
            turn.finish()
        (await world.turn(3)).finish()
        await wait_all_tasks_blocked()
        assert texts(world) == ["0", "1", "2", "3"]
        assert await world.stores.inbox.is_empty("s")
        assert router._core.seat("s").gate is None
        # One pass: its first collect, and one after each turn.
        assert len([entry for entry in world.log if entry[1] == "collect" and entry[3] is Priority.LATER]) == 5
        assert not drains


@pytest.mark.contract("SR-183", "SR-127")
async def test_a_failing_turn_ends_its_own_message_only(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await submit(router, "0")
        turn = await world.turn()
        found = [await submit(router, str(number)) for number in (1, 2, 3)]
        turn.finish()
        for number, outcome in enumerate(["one", ValueError("no"), "three"]):
            (await world.turn(number + 1)).finish(outcome)
        assert (await settled(found[0])).answer == "one"
        assert type(await error_of(found[1])) is TurnFailedError
        assert (await settled(found[2])).answer == "three"


@pytest.mark.contract("SR-186", "SR-187")
async def test_a_now_message_goes_into_the_running_turn(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        first = await submit(one)
        turn = await world.turn()
        waiting = [await submit(two, each.name, priority=each) for each in (Priority.NEXT, Priority.LATER)]
        urgent = await submit(two, "urgent", priority=Priority.NOW, key="u")
        await trio.sleep(1)
        assert [each.text for each in turn.offered] == ["urgent"]
        assert not await world.stores.inbox.is_empty("s")
        left = await world.stores.inbox.collect("s", Priority.LATER, "look")
        assert [message.priority for message in left.messages] == [Priority.NEXT, Priority.LATER]
        turn.finish("both")
        assert (await settled(first)).answer == "both"
        assert (await settled(urgent)).answer == "both"
        entry = await world.stores.idempotency.find("u")
        assert entry is not None
        assert entry.status is IdempotencyStatus.DONE
        assert not any(each.future.done() for each in waiting)


@pytest.mark.contract("SR-188")
async def test_an_input_that_was_not_consumed_is_the_next_turn(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        waiting = await submit(two, "next")
        urgent = await submit(two, "urgent", priority=Priority.NOW, key="u")
        await trio.sleep(1)
        turn.unconsumed = list(turn.offered)
        turn.finish("first")
        turn = await world.turn(1)
        assert (turn.text, turn.ctx.turn_id) == ("urgent", urgent.turn_id)
        turn.finish("own")
        assert (await settled(urgent)).answer == "own"
        (await world.turn(2)).finish()
        await settled(waiting)
        assert world.calls("acquire_holder") == ["acquire_holder"]


@pytest.mark.contract("SR-189")
async def test_a_session_that_takes_no_offers(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        turn.session.accepts_offers = False
        await submit(two, "next")
        await submit(two, "urgent", priority=Priority.NOW)
        await trio.sleep(1)
        assert "collect" not in [entry[1] for entry in world.log if entry[1] == "collect" and entry[3] is Priority.NOW]
        assert not turn.offered
        turn.finish()
        assert (await world.turn(1)).text == "urgent"
        for number in (1, 2):
            (await world.turn(number)).finish()


@pytest.mark.contract("SR-190")
async def test_a_now_submit_on_the_holders_own_node(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await submit(router)
        turn = await world.turn()
        urgent = await submit(router, "urgent", priority=Priority.NOW)
        await trio.sleep(1)
        assert urgent.kind.value == "forwarded"
        assert [each.text for each in turn.offered] == ["urgent"]
        turn.finish("both")
        assert (await settled(urgent)).answer == "both"


@pytest.mark.contract("SR-191")
async def test_a_now_message_without_a_turn(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        for name, priority in (("next", Priority.NEXT), ("now", Priority.NOW)):
            await world.stores.inbox.deliver(InboundMessage("s", "chat", name, priority=priority))
        router._core.ring("s")
        await wait_all_tasks_blocked()
        assert texts(world) == ["now", "next"]


@pytest.mark.contract("SR-446")
async def test_a_turn_that_ends_between_collect_and_offer(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        first = await submit(router)
        turn = await world.turn()

        async def slow(_: str, name: str, arguments: tuple[Any, ...]) -> None:
            if name == "acquire_holder":
                turn.finish("first")
                await trio.sleep(2)

        world.before_call = slow
        urgent = await submit(router, "urgent", priority=Priority.NOW, key="u")
        assert (await settled(first, 5)).answer == "first"
        again = await world.turn(1)
        assert (again.text, again.ctx.turn_id) == ("urgent", urgent.turn_id)
        again.finish("second")
        assert (await settled(urgent)).answer == "second"


@pytest.mark.contract("SR-127")
async def test_one_message_for_another_handler_is_passed_over(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1", refs=("chat", "other")) as [router]:
        await settled(await submit(router, "0"))
        await wait_all_tasks_blocked()
        for text, ref in (("1", "chat"), ("2", "other"), ("3", "chat")):
            await world.stores.inbox.deliver(InboundMessage("s", ref, text, turn_id=f"t{text}"))
        waiting = wait_for(router, "t2")
        router._core.ring("s")
        assert isinstance(await error_of(waiting), ConflictingHandlerError)
        await wait_all_tasks_blocked()
        assert texts(world) == ["0", "1", "3"]
        assert [event.turn_id for _, event in seen(router) if isinstance(event, RejectedAt)] == ["t2"]
        assert await world.stores.inbox.is_empty("s")


@pytest.mark.contract("SR-192", "SR-255", "SR-127")
async def test_a_message_for_another_handler(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2", refs=("chat", "other")) as [one, two]:

        async def n2_is_late(node: str, name: str, _: tuple[Any, ...]) -> None:
            if (node, name) == ("n2", "put_if_absent"):
                world.before_call = None
                await submit(one)

        world.before_call = n2_is_late
        found = await submit(two, "for other", handler="other", key="k")
        (await world.turn()).finish()
        error = await error_of(found)
        assert isinstance(error, ConflictingHandlerError)
        assert (error.requested, error.bound) == ("other", "chat")
        ends = [entry[1] for entry in world.log if entry[0] == "n1" and entry[1] in ("discard_reservation", "publish")]
        assert ends == ["discard_reservation", "publish"]
        assert await world.stores.idempotency.find("k") is None
        [rejected] = [event for _, event in seen(one) if isinstance(event, RejectedAt)]
        assert (rejected.requested, rejected.existing, rejected.reason) == ("other", "chat", "CONFLICTING_HANDLER")
        assert rejected.inbox_id == found.inbox_id
        assert len(world.turns) == 1
