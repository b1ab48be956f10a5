"""The drain loop: order, priorities, takeovers, injections, unreadable entries, lost answers (SR §11, §28b)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Turn, World, cluster, error_of, settled, submit
from zlinkpy.sessions.errors import (
    ConflictingHandlerError,
    IdempotencyStoreError,
    SessionInboxError,
    TurnFailedError,
    UnreadableMessageError,
)
from zlinkpy.sessions.events import RejectedAt
from zlinkpy.sessions.forward_machine import Forward
from zlinkpy.sessions.futures import SubmitDisposition
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.types import (
    CollectedBatch,
    IdempotencyStatus,
    InboundMessage,
    InterruptReason,
    Priority,
    SessionSignal,
    SignalKind,
    TurnResult,
    UnreadableEntry,
)


async def held(world: World, router: SessionRouter) -> None:
    found = await submit(router)
    (await world.turn()).finish()
    await settled(found)
    await wait_all_tasks_blocked()


def texts(world: World) -> list[str]:
    return [turn.text for turn in world.turns]


async def at_once(turn: Turn) -> None:
    turn.finish(turn.text)


async def queued(world: World, key: str, text: str = "queued", **more: Any) -> None:
    """A message whose reservation waits without holder, as a submit elsewhere leaves it."""
    idempotency = world.stores.idempotency
    await idempotency.put_if_absent(key, "s", "h", f"x/{key}", 30)
    await idempotency.release_holder(key, f"x/{key}", 300)
    message = InboundMessage("s", "chat", text, idempotency_key=key, turn_id=f"t-{key}", epoch=f"x/{key}", **more)
    await world.stores.inbox.deliver(message)


@pytest.mark.contract("SR-182", "SR-145")
async def test_it_goes_on_until_nothing_is_left(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
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


def seen(router: SessionRouter) -> list[Any]:
    return router._core.events.seen  # type: ignore[attr-defined, no-any-return]


@pytest.mark.contract("SR-193", "SR-194", "SR-201", "SR-202")
async def test_reservations_are_taken_over_one_by_one(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one, key="own")
        turn = await world.turn()
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
            world.log.clear()
            (await world.turn(n)).finish()
            await settled(found[n - 2])
        world.log.clear()
        await settled(keyless)
        await wait_all_tasks_blocked()
        assert not world.calls("acquire_holder", "touch", "mark_done", "compare_and_reset")


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
        future = _wait_for(router, "t-k")
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


def _wait_for(router: SessionRouter, turn_id: str, key: str | None = None) -> SubmitDisposition:
    """A forward of a submit that somebody else made."""
    from zlinkpy.sessions.futures import TurnFuture
    from zlinkpy.sessions.types import DispositionKind

    future = TurnFuture()
    forward: Forward[TurnFuture] = router._forwards.register("s", turn_id, future, key=key, epoch=None)
    router._forwards.watch(forward)
    return SubmitDisposition(DispositionKind.FORWARDED, turn_id, future, "x")


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
        future = _wait_for(router, "t-k", "k")
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
        UnreadableEntry("1", "t-both", "both", "broken"),
        UnreadableEntry("2", None, "key", "broken"),
        UnreadableEntry("3", None, None, "broken"),
    ]
    async with cluster(world, "n1", inbox=Unreadable(world.stores.inbox, *entries)) as [router]:
        for key in ("both", "key"):
            await world.stores.idempotency.put_if_absent(key, "s", "h", f"x/{key}", 30)
            await world.stores.idempotency.release_holder(key, f"x/{key}", 300)
        waiting = [_wait_for(router, "t-both", "both"), _wait_for(router, "t-other", "key")]
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
        future = _wait_for(router, "t1")
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
            waiting.append(_wait_for(router, f"t-{key}", key))
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
        late = _wait_for(two, "t-late")

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


@pytest.mark.contract("SR-433")
async def test_an_inbox_that_fails_at_the_end_of_a_pass(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    times: list[float] = []
    down = True
    async with cluster(world, "n1", "n2") as [one, two]:
        begin = trio.current_time()

        async def fail(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "collect":
                times.append(trio.current_time() - begin)
                if down:
                    raise SessionInboxError("down", applied="no")

        world.before_call = fail
        await settled(await submit(one))
        world.lost_kinds.add(SignalKind.MESSAGE_ENQUEUED)
        found = await submit(two, "waits")
        await trio.sleep(9.5)
        assert len(times) <= 22
        assert len(times) >= 9
        down = False
        assert (await settled(found, 1.1)).answer == "waits"


@pytest.mark.contract("SR-426")
async def test_a_batch_whose_answer_is_lost(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        for number in range(3):
            await world.stores.inbox.deliver(InboundMessage("s", "chat", str(number)))
        world.stores.inbox.backend.plan("after", operation="collect", times=2)
        router._core.ring("s")
        await trio.sleep(5)
        assert texts(world) == ["0", "1", "2"]
        world.stores.inbox.backend.plan("after", operation="collect")
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "3"))
        await settled(await submit(router, "mine"))
        await trio.sleep(5)
        assert sorted(texts(world)) == ["0", "1", "2", "3", "mine"]


@pytest.mark.contract("SR-428")
@pytest.mark.parametrize("stage", ["before", "after"])
async def test_a_result_that_cannot_be_written_for_a_while(autojump_clock: trio.abc.Clock, stage: Any) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        found = await submit(two, key="k")
        turn = await world.turn(1)
        world.stores.idempotency.backend.plan(stage, operation="mark_done", times=20)
        turn.finish("kept")
        assert (await settled(found)).answer == "kept"
        await trio.sleep(50)
        again = await submit(two, key="k")
        assert again.future.done()
        assert (await again.future.result()).answer == "kept"
        assert len(world.turns) == 2
        assert not world.calls("compare_and_reset")


@pytest.mark.contract("SR-430")
async def test_a_commit_whose_answer_is_lost(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router)
        turn = await world.turn()
        turn.ctx.state = b"new"
        world.stores.records.backend.plan("after", operation="commit", times=2)
        turn.finish()
        await settled(found, 5)
        view = await world.stores.records.load("s")
        assert view is not None
        assert (view.state, view.version) == (b"new", 1)


@pytest.mark.contract("SR-447")
@pytest.mark.parametrize(
    "reason", [InterruptReason.SYSTEM_SHUTDOWN, InterruptReason.SESSION_RELEASED, InterruptReason.USER]
)
async def test_what_is_kept_of_an_interrupted_turn(autojump_clock: trio.abc.Clock, reason: InterruptReason) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        found = await submit(router, key="k")
        await world.turn()
        await router.interrupt("s", reason)
        assert (await settled(found)).completion == "interrupted"
        await wait_all_tasks_blocked()
        entry = await world.stores.idempotency.find("k")
        if reason is InterruptReason.USER:
            assert entry is not None
            assert entry.status is IdempotencyStatus.DONE
        else:
            assert entry is None


@pytest.mark.contract("SR-458", "SR-409")
async def test_a_node_without_the_handler(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with world.router("n1", refs=("chat",)) as one, world.router("n2", refs=("other",)) as two:
        await settled(await submit(one))
        await one.release("s")
        await one._subscriptions.ensure("s")
        await two._subscriptions.ensure("s")
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "x"))
        world.log.clear()
        two._core.ring("s")
        await wait_all_tasks_blocked()
        await trio.sleep(50)
        await two._orphans.scan()
        await wait_all_tasks_blocked()
        assert not world.calls("try_acquire", "collect", node="n2")
        await trio.sleep(50)
        assert [(turn.text, turn.session.node) for turn in world.turns[1:]] == [("x", "n1")]


STEPS = ("load", "collect", "acquire_holder", "mark_done", "publish", "commit", "open")


@pytest.mark.contract("SR-445")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", ["raises", "cancelled"])
async def test_a_pass_that_breaks(autojump_clock: trio.abc.Clock, step: str, how: str) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await world.stores.idempotency.put_if_absent("x", "s", "h", "x", 1)
        for key in ("a", "b"):
            await queued(world, key)
        waiting = [_wait_for(router, f"t-{key}", key) for key in ("a", "b")]

        async def write(turn: Turn) -> None:
            turn.ctx.state = b"s"
            turn.finish(turn.text)

        world.behave = write
        broken = False

        def break_it() -> None:
            nonlocal broken
            broken = True
            if how == "raises":
                raise RuntimeError("unexpected")
            router._core.turn_nursery.cancel_scope.cancel()

        async def hook(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == step and not broken and world.log_of_pass:  # type: ignore[attr-defined]
                break_it()
                await trio.lowlevel.checkpoint()

        world.log_of_pass = True  # type: ignore[attr-defined]
        world.before_call = hook
        if step == "open":

            async def broken_open(*_: Any) -> Any:
                break_it()
                await trio.lowlevel.checkpoint()

            router._core.cache.acquire = broken_open  # type: ignore[method-assign]
        if step == "publish":
            publish = router._core.bus.publish

            async def broken_publish(signal: SessionSignal) -> None:
                if not broken:
                    break_it()
                    await trio.lowlevel.checkpoint()
                await publish(signal)

            router._core.bus.publish = broken_publish  # type: ignore[method-assign]
        router._core.ring("s")
        await trio.sleep(1.5)
        assert broken
        world.before_call = None
        # What was taken out of the inbox has ended; what was not is still there.
        waits = not await world.stores.inbox.is_empty("s")
        assert waits != all(each.future.done() for each in waiting)
        assert step in ("load", "collect") or not waits
        for key in ("a", "b"):
            entry = await world.stores.idempotency.find(key)
            assert entry is None or entry.holder_id is None
        seat = router._core.seats.get("s")
        assert seat is None or seat.gate is None
        assert await world.holder() is None or router._core.cache.peek("s") is not None
        assert router._core.busy == 0


@pytest.mark.contract("SR-427")
async def test_a_key_that_cannot_be_handed_over(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        world.stores.idempotency.backend.plan("before", operation="release_holder")
        with pytest.raises(IdempotencyStoreError):
            await submit(two, key="k")
        assert await world.stores.idempotency.find("k") is None
        assert not world.calls("deliver")

        async def swept(_: str, name: str, arguments: tuple[Any, ...]) -> None:
            if name == "release_holder":
                world.before_call = None
                await world.stores.idempotency.compare_and_reset(arguments[0], arguments[1])

        world.before_call = swept
        found = await submit(two, key="k")
        assert world.calls("put_if_absent", node="n2") == ["put_if_absent"] * 3
        (await world.turn(1)).finish("on")
        assert (await settled(found)).answer == "on"
