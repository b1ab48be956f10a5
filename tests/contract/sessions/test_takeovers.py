"""Takeovers, unreadable entries, doorbells (SR §11)."""

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
    queued,
    settled,
    submit,
    texts,
    wait_for,
)
from zlinkpy.sessions.errors import (
    ConflictingHandlerError,
    TurnFailedError,
    UnreadableMessageError,
)
from zlinkpy.sessions.futures import SubmitDisposition
from zlinkpy.sessions.types import (
    CollectedBatch,
    InboundMessage,
    Priority,
    SessionSignal,
    SignalKind,
    TurnResult,
    UnreadableEntry,
)


@pytest.mark.contract("SR-193", "SR-194", "SR-201", "SR-202")
async def test_reservations_are_taken_over_one_by_one(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        own = await submit(one, key="own")
        turn = await world.turn()
        publish, lease = one._core.publish, one._core.seat("s").lease
        assert lease is not None
        kept: list[object] = []

        async def told(signal: SessionSignal) -> bool:
            if signal.kind is SignalKind.TURN_RESULT:
                kept.extend(key for key, _ in lease.slot.bound if key == signal.payload.get("idem"))
            return await publish(signal)

        one._core.publish = told  # type: ignore[method-assign]
        found = [await submit(two, key=f"k{n}") for n in range(3)]
        keyless = await submit(two, "keyless")
        turn.finish()
        turn = await world.turn(1)
        holders = []
        for n in range(3):
            entry = await world.stores.idempotency.find(f"k{n}")
            assert entry is not None
            holders.append(entry.holder_id)
        assert (str(holders[0]).startswith("n1/"), holders[1:]) == (True, [None, None])
        await trio.sleep(11)
        assert ("k0", holders[0]) in [entry[2:4] for entry in world.log if entry[1] == "touch"]
        turn.finish()
        for n in (2, 3, 4):
            (await world.turn(n)).finish()
            await settled(found[n - 2])
        await settled(own)
        await settled(keyless)
        await wait_all_tasks_blocked()
        for name, keys in (
            ("acquire_holder", ["k0", "k1", "k2"]),
            ("mark_done", ["own", "k0", "k1", "k2"]),
            ("compare_and_reset", []),
            ("discard_reservation", []),
        ):
            assert [entry[2] for entry in world.log if entry[1] == name] == keys
        assert {entry[2] for entry in world.log if entry[1] == "touch"} <= {"own", "k0", "k1", "k2"}
        assert kept == ["own", "k0", "k1", "k2"]
        world.log.clear()
        await trio.sleep(11)
        # What was announced is no longer kept alive.
        assert world.calls("extend", "touch") == ["extend"]


@pytest.mark.contract("SR-195", "SR-221", "SR-414", "SR-416")
async def test_a_failed_turn_frees_its_key_before_it_is_told(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        found = await submit(two, key="k")
        retried: list[SubmitDisposition] = []

        async def retry() -> None:
            retried.append(await submit(two, key="k"))

        found.future.add_done_callback(lambda _: two._core.background_nursery.start_soon(retry))
        world.log.clear()
        (await world.turn(1)).finish(ValueError("no"))
        await error_of(found)
        steps = [entry[1] if entry[1] != "publish" else entry[2].name for entry in world.log if entry[0] == "n1"]
        assert [step for step in steps if step in ("compare_and_reset", "TURN_RESULT")] == [
            "compare_and_reset",
            "TURN_RESULT",
        ]
        (await world.turn(2)).finish("again")
        assert (await settled(retried[0])).answer == "again"


@pytest.mark.contract("SR-196", "SR-197", "SR-376")
@pytest.mark.parametrize("why", ["done", "held", "absent"])
async def test_a_refused_takeover_runs_and_keeps_its_hands_off(autojump_clock: trio.abc.Clock, why: str) -> None:
    world = World()
    refused: list[str] = []

    class Counting:
        def on_reservation_takeover_refused(self) -> None:
            refused.append("refused")

    idempotency = world.stores.idempotency
    async with cluster(world, "n1", metrics=Counting()) as [router]:
        await queued(world, "k")
        if why == "absent":
            await idempotency.discard_reservation("k")
        else:
            await idempotency.acquire_holder("k", "y/1", 30)
        if why == "done":
            await idempotency.mark_done("k", TurnResult(True, "X"), "y/1")
        future = wait_for(router, "t-k")
        router._core.ring("s")
        turn = await world.turn()
        await trio.sleep(11)
        assert not world.calls("touch")
        turn.finish("Y")
        assert (await settled(future)).answer == "Y"
        await wait_all_tasks_blocked()
        assert refused == ["refused"]
        assert not world.calls("mark_done", "compare_and_reset", "discard_reservation")
        entry = await idempotency.find("k")
        if why == "done":
            assert entry is not None
            assert entry.result is not None
            assert entry.result.answer == "X"


@pytest.mark.contract("SR-198", "SR-199", "SR-200", "SR-376")
@pytest.mark.parametrize("stage", ["before", "after"])
@pytest.mark.parametrize("fails", [False, True])
async def test_an_unknown_takeover(autojump_clock: trio.abc.Clock, stage: Any, fails: bool) -> None:
    world = World()
    refused: list[str] = []

    class Counting:
        def on_reservation_takeover_refused(self) -> None:
            refused.append("refused")

    idempotency = world.stores.idempotency
    async with cluster(world, "n1", metrics=Counting()) as [router]:
        await queued(world, "k")
        idempotency.backend.plan(stage, operation="acquire_holder")
        future = wait_for(router, "t-k", "k")
        router._core.ring("s")
        turn = await world.turn()
        await trio.sleep(91)
        assert len(world.calls("touch")) == 9
        assert not future.future.done()
        turn.finish(ValueError("no") if fails else "kept")
        if fails:
            await error_of(future)
            assert await idempotency.find("k") is None
        else:
            assert (await settled(future)).answer == "kept"
            entry = await idempotency.find("k")
            assert entry is not None
            assert entry.result == TurnResult(True, "kept")
        assert refused == []


class Unreadable:
    """An inbox with entries that cannot be read."""

    def __init__(self, inner: Any, *entries: UnreadableEntry) -> None:
        self._inner, self._entries = inner, list(entries)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def is_empty(self, session_id: str) -> bool:
        return not self._entries and await self._inner.is_empty(session_id)

    async def collect(self, session_id: str, upto: Priority, batch_id: str | None = None) -> CollectedBatch:
        batch = await self._inner.collect(session_id, upto, batch_id)
        found, self._entries = self._entries, []
        return CollectedBatch(batch.messages, found)


@pytest.mark.contract("SR-203", "SR-204")
async def test_entries_that_cannot_be_read(autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    entries = [
        UnreadableEntry("1", None, None, "broken"),
        UnreadableEntry("2", "t-both", "both", "broken"),
        UnreadableEntry("3", None, "key", "broken"),
    ]
    async with cluster(world, "n1", inbox=Unreadable(world.stores.inbox, *entries)) as [router]:
        for key in ("both", "key"):
            await world.stores.idempotency.put_if_absent(key, "s", "h", f"x/{key}", 30)
            await world.stores.idempotency.release_holder(key, f"x/{key}", 300)
        waiting = [wait_for(router, "t-both", "both"), wait_for(router, "t-other", "key")]
        with caplog.at_level("DEBUG"):
            router._core.ring("s")
            await wait_all_tasks_blocked()
        for each in waiting:
            assert type(await error_of(each)) is UnreadableMessageError
        for key in ("both", "key"):
            assert await world.stores.idempotency.find(key) is None
        assert "open" not in world.calls()
        assert len(world.published(SignalKind.TURN_RESULT)) == 2
        assert "has no address" in caplog.text
        assert await world.holder() is None


@pytest.mark.contract("SR-205")
async def test_a_bound_session_opens_its_own_handler(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1", refs=("chat", "other")) as [router]:
        await settled(await submit(router))
        await router.release("s")
        await world.stores.inbox.deliver(InboundMessage("s", "other", "wrong", turn_id="t1"))
        future = wait_for(router, "t1")
        world.log.clear()
        router._core.ring("s")
        assert isinstance(await error_of(future), ConflictingHandlerError)
        assert [entry for entry in world.log if entry[1] == "open"] == [("n1", "open", "s", "chat", None)]


@pytest.mark.contract("SR-206")
async def test_an_unbound_session_is_bound_by_its_first_message(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1", refs=("chat", "chat:t1")) as [router]:
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "x", handler_variant="t1"))
        router._core.ring("s")
        await wait_all_tasks_blocked()
        view = await world.stores.records.load("s")
        assert view is not None
        assert view.handler_ref == "chat"
        assert [entry for entry in world.log if entry[1] == "open"] == [("n1", "open", "s", "chat", "t1")]
        assert (dict(world.probes[0].options), dict(world.probes[0].attributes)) == ({}, {})


@pytest.mark.contract("SR-207", "SR-416")
async def test_a_handle_that_cannot_be_opened(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.open_error = ValueError("no handle")
    async with cluster(world, "n1") as [router]:
        waiting = []
        for key in ("a", "b"):
            await queued(world, key)
            waiting.append(wait_for(router, f"t-{key}", key))
        router._core.ring("s")
        for each in waiting:
            assert type(await error_of(each)) is TurnFailedError
        await wait_all_tasks_blocked()
        assert await world.stores.idempotency.find("a") is None
        assert await world.stores.idempotency.find("b") is None
        assert await world.holder() is None
        assert not router._core.seats


@pytest.mark.contract("SR-208", "SR-209")
@pytest.mark.parametrize("moment", ["collect", "mark_done"])
async def test_messages_that_come_at_bad_moments(autojump_clock: trio.abc.Clock, moment: str) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1", "n2") as [one, two]:
        late = wait_for(two, "t-late")

        async def then(node: str, name: str, _: tuple[Any, ...]) -> None:
            if (node, name) == ("n1", moment):
                world.before_call = None
                await world.stores.inbox.deliver(InboundMessage("s", "chat", "late", turn_id="t-late"))
                one._core.ring("s")

        await two._subscriptions.ensure("s")
        world.before_call = then
        await settled(await submit(one, "first", key="k"))
        await trio.sleep(1)
        assert (await settled(late)).answer == "late"
        assert sorted(texts(world)) == ["first", "late"]


@pytest.mark.contract("SR-208")
async def test_a_message_that_comes_with_the_answer_of_an_empty_collect(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    collect = world.stores.inbox.collect
    late = InboundMessage("s", "chat", "late")
    async with cluster(world, "n1") as [router]:

        async def answered_late(*arguments: Any) -> CollectedBatch:
            batch = await collect(*arguments)
            if not batch.messages and world.turns:
                world.stores.inbox.collect = collect  # type: ignore[method-assign]
                await world.stores.inbox.deliver(late)
                router._core.ring("s")
            return batch

        world.stores.inbox.collect = answered_late  # type: ignore[method-assign]
        await settled(await submit(router, "first"))
        await trio.sleep(30)
        assert texts(world) == ["first", "late"]
        # Two of the submit's pass, two of the one it rang for: none of them only looked.
        assert world.calls("collect") == ["collect"] * 4


@pytest.mark.contract("SR-209")
async def test_a_message_after_the_last_collect(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1", "n2") as [one, two]:
        await settled(await submit(one))
        await wait_all_tasks_blocked()
        unpin = one._core.cache.unpin
        found: list[SubmitDisposition] = []

        async def late(entry: Any) -> None:
            if not found:
                found.append(await submit(two, "late"))
            await unpin(entry)

        one._core.cache.unpin = late  # type: ignore[method-assign]
        await settled(await submit(one, "second"))
        await trio.sleep(1)
        assert (await settled(found[0])).answer == "late"


@pytest.mark.contract("SR-210")
async def test_who_returns_a_lease_answers_the_bell(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1", "n2") as [one, two]:
        await settled(await submit(two, session="s"))
        await one._subscriptions.ensure("s")

        async def slow_return(node: str, name: str, _: tuple[Any, ...]) -> None:
            if (node, name) == ("n2", "release"):
                world.before_call = None
                await world.stores.inbox.deliver(InboundMessage("s", "chat", "meanwhile"))
                await world.bus.publish(SessionSignal("s", SignalKind.MESSAGE_ENQUEUED, "x", {"inboxId": "1"}))
                await trio.sleep(1)

        world.before_call = slow_return
        await two._core.cache.evict_and_close("s")
        await trio.sleep(3)
        assert texts(world) == ["hello", "meanwhile"]
        assert world.turns[1].session.node == "n2"
