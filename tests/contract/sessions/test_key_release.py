"""When the key of a message that has no result is free again (SR §28a)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import World, cluster, error_of, queued, settled, submit, wait_for
from zlinkpy.sessions.errors import (
    ConflictingHandlerError,
    SessionBackendError,
    SessionError,
    SessionLeaseError,
    SessionRecordError,
)
from zlinkpy.sessions.futures import SubmitDisposition
from zlinkpy.sessions.types import (
    CollectedBatch,
    DispositionKind,
    IdempotencyEntry,
    SessionSignal,
    SignalKind,
    UnreadableEntry,
)


@pytest.mark.contract("SR-414")
async def test_a_retry_from_the_failure_of_a_local_turn_reserves_its_key_while_the_pass_goes_on(
    autojump_clock: trio.abc.Clock,
) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        first = await submit(one, "first", key="k")
        turn = await world.turn()
        for number in range(2):
            await submit(two, f"behind {number}")
        retried: list[SubmitDisposition] = []

        async def retry() -> None:
            retried.append(await submit(one, "first", key="k"))

        first.future.add_done_callback(lambda _: one._core.background_nursery.start_soon(retry))
        turn.finish(ValueError("no"))
        await error_of(first)
        following = await world.turn(1)
        await wait_all_tasks_blocked()
        [again] = retried
        assert (following.text, again.kind) == ("behind 0", DispositionKind.FORWARDED)
        # Had the key been taken, the retry would wait for the attempt that has failed.
        assert again.inbox_id != "idem-k"
        assert again.turn_id != first.turn_id
        for number in (1, 2, 3):
            (await world.turn(number)).finish("again")
        assert (await settled(again)).answer == "again"
        assert [each.text for each in world.turns] == ["first", "behind 0", "behind 1", "first"]


@pytest.mark.contract("SR-416")
@pytest.mark.parametrize(
    "path", ["turn raised", "conflict", "unreadable", "open failed", "forced shutdown", "lease lost"]
)
async def test_a_failure_is_told_when_its_key_is_free(autojump_clock: trio.abc.Clock, path: str) -> None:
    world = World()
    world.obedient = False
    told: list[IdempotencyEntry | None] = []
    publish = world.bus.publish

    async def look(signal: SessionSignal) -> None:
        if signal.kind is SignalKind.TURN_RESULT:
            told.append(await world.stores.idempotency.find("k"))
        await publish(signal)

    world.bus.publish = look  # type: ignore[method-assign]
    if path == "open failed":
        world.open_error = ValueError("no handle")
    if path == "conflict":
        await world.stores.records.provision("s", "other")
    async with cluster(world, "n1", "n2", refs=("chat", "other")) as [one, two]:
        await queued(world, "k")
        if path == "unreadable":
            collect = world.stores.inbox.collect

            async def garbled(*arguments: Any) -> CollectedBatch:
                batch = await collect(*arguments)
                entries = [UnreadableEntry(each.id, each.turn_id, "k", "broken") for each in batch.messages]
                return CollectedBatch((), tuple(entries))

            world.stores.inbox.collect = garbled  # type: ignore[method-assign]
        await two._subscriptions.ensure("s")
        found = wait_for(two, "t-k", "k")
        one._core.ring("s")
        if path in ("turn raised", "forced shutdown", "lease lost"):
            turn = await world.turn()
            if path == "turn raised":
                turn.finish(ValueError("no"))
            elif path == "forced shutdown":
                await one.close()
            else:
                lease = one._core.seat("s").lease
                assert lease is not None
                one._core.lease_lost(lease)
                turn.finish()
        assert isinstance(await error_of(found), SessionError)
        assert told == [None]


@pytest.mark.contract("SR-420")
@pytest.mark.parametrize("path", ["lease store", "record store", "other handler", "cancelled"])
@pytest.mark.parametrize("applied", ["no", "unknown"])
async def test_a_submit_that_could_not_claim_leaves_no_reservation(
    autojump_clock: trio.abc.Clock, path: str, applied: Any
) -> None:
    world = World()
    errors: dict[str, tuple[str, SessionBackendError]] = {
        "lease store": ("try_acquire", SessionLeaseError("down", applied=applied)),
        "record store": ("provision", SessionRecordError("down", applied=applied)),
    }
    async with cluster(world, "n1", refs=("chat", "other")) as [router]:
        with trio.CancelScope() as scope:

            async def hook(_: str, name: str, __: tuple[Any, ...]) -> None:
                if path in errors and name == errors[path][0]:
                    raise errors[path][1]
                if name == "try_acquire" and path == "other handler":
                    # Bound by somebody between the look at the record and the claim.
                    await world.stores.records.provision("s", "other")
                if name == "try_acquire" and path == "cancelled":
                    scope.cancel()

            world.before_call = hook
            raised: type[SessionError] = type(errors[path][1]) if path in errors else ConflictingHandlerError
            if path == "cancelled":
                await submit(router, key="k")
            else:
                with pytest.raises(raised):
                    await submit(router, key="k")
        assert scope.cancelled_caught == (path == "cancelled")
        assert await world.stores.idempotency.find("k") is None
        await wait_all_tasks_blocked()
        assert await world.holder() is None
        assert not router._core.seats
