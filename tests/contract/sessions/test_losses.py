"""Holder loss, orphans, freed keys (SR §14, §28)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import (
    World,
    at_once,
    cluster,
    counting,
    error_of,
    held,
    kill,
    settled,
    submit,
)
from zlinkpy.sessions.errors import (
    ForwardTimeoutError,
    HolderLostError,
    SessionEvictedError,
)
from zlinkpy.sessions.events import InterruptedAt
from zlinkpy.sessions.futures import SubmitDisposition
from zlinkpy.sessions.input_hash import input_hash
from zlinkpy.sessions.types import (
    DispositionKind,
    InboundMessage,
    InterruptReason,
    SignalKind,
    TurnInput,
)


@pytest.mark.contract("SR-241", "SR-242", "SR-245", "SR-375", "SR-243")
async def test_one_of_three_recovers(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    metrics, counted = counting("on_holder_loss_recovered")
    idempotency = world.stores.idempotency
    async with cluster(world, "n1", "n2", "n3", metrics=metrics) as routers:
        await idempotency.put_if_absent("k", "s", input_hash(TurnInput("hello")), "dead/1", 30)
        waiting = [await submit(router, key="k") for router in routers]
        successor = await submit(routers[0], "successor")
        turn = await world.turn()
        world.log.clear()
        await trio.sleep(46)
        for each in waiting:
            assert type(await error_of(each)) is HolderLostError
        assert counted == ["on_holder_loss_recovered"]
        [announced] = world.published(SignalKind.TURN_RESULT)
        assert (announced.payload["idem"], announced.payload["outcome"]) == ("k", "HOLDER_LOST")
        assert "turn" not in announced.payload
        shown = [event for router in routers for _, event in router._core.events.seen]  # type: ignore[attr-defined]
        assert shown == [InterruptedAt(InterruptReason.HOLDER_LOST)]
        assert shown[0].turn_id is None
        assert not world.published(SignalKind.EVICT)
        assert not world.purged
        assert not turn.session.interrupts
        assert not [each for router in routers for each in router._core.events.completed]  # type: ignore[attr-defined]
        turn.finish("fine")
        assert (await settled(successor)).answer == "fine"


@pytest.mark.contract("SR-244")
def test_a_turns_sink_can_only_emit() -> None:
    from zlinkpy.sessions.spi import EventSink

    assert [name for name in vars(EventSink) if not name.startswith("_")] == ["emit"]


@pytest.mark.contract("SR-246", "SR-247", "SR-429")
async def test_a_sweep_in_trouble(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    idempotency = world.stores.idempotency
    async with cluster(world, "n1") as [router]:
        digest = input_hash(TurnInput("hello"))
        waiting = []
        for key in ("a", "b", "c"):
            await idempotency.put_if_absent(key, "s", digest, f"dead/{key}", 30)
            waiting.append(await submit(router, key=key))
        await idempotency.release_holder("c", "dead/c", 300)
        stale = idempotency.find_stale_in_flight

        async def with_a_mistake(older_than: float, limit: int) -> Any:
            entry = await idempotency.find("c")
            return [entry, *await stale(older_than, limit)]

        idempotency.find_stale_in_flight = with_a_mistake  # type: ignore[method-assign]
        idempotency.backend.plan("before", operation="compare_and_reset", name="a", applied="no")
        idempotency.backend.plan("after", operation="compare_and_reset", name="b")
        raised: list[str] = []

        def sink(*_: Any) -> None:
            raised.append("sink")
            raise ValueError("a subscriber")

        router._core.events.emit = sink  # type: ignore[method-assign]
        await trio.sleep(31)
        await router._recovery.sweep()
        assert type(await error_of(waiting[1])) is HolderLostError
        assert not waiting[0].future.done()
        await trio.sleep(16)
        assert type(await error_of(waiting[0])) is HolderLostError
        assert not waiting[2].future.done()
        idempotency.backend.plan("before", operation="find_stale_in_flight")
        await trio.sleep(31)
        assert len(raised) == 2


@pytest.mark.contract("SR-249")
async def test_a_drained_message_of_a_dead_node(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [one]:
        async with cluster(world, "n2") as [two]:
            await held(world, one)
            found = await submit(two, key="k")
            await world.turn(1)
            await trio.sleep(25)
            kill(world, one, "n1")
            assert type(await error_of(found, 46)) is HolderLostError
        world.before_call = None


@pytest.mark.contract("SR-250")
async def test_touches_that_fail_while_renewals_work(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        first = await submit(one, key="k")
        waiting = await submit(two, key="k")
        turn = await world.turn()
        world.stores.idempotency.backend.plan("before", operation="touch", times=None)
        assert type(await error_of(waiting, 50)) is HolderLostError
        assert await world.holder() == "n1"
        assert not turn.session.interrupts
        turn.finish("alive")
        assert (await settled(first)).answer == "alive"


@pytest.mark.contract("SR-252")
async def test_a_keyless_message_of_a_dead_node(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [one]:
        async with cluster(world, "n2") as [two]:
            await held(world, one)
            found = await submit(two)
            await world.turn(1)
            kill(world, one, "n1")
            await trio.sleep(100)
            assert not found.future.done()
            assert type(await error_of(found, 202)) is ForwardTimeoutError
        world.before_call = None


# -- orphans


@pytest.mark.contract("SR-407", "SR-388")
async def test_a_message_that_nobody_waits_for(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    metrics, counted = counting("on_orphan_rescued")
    async with cluster(world, "n1", "n2", metrics=metrics):
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "orphan"))
        await trio.sleep(76)
        assert [turn.text for turn in world.turns] == ["orphan"]
        assert counted == ["on_orphan_rescued"]


@pytest.mark.contract("SR-408")
async def test_a_live_holder_is_left_alone_by_other_nodes_scans(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        turn = await world.turn()
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "waits"))
        await trio.sleep(50)
        world.log.clear()
        await two._orphans.scan()
        await wait_all_tasks_blocked()
        assert not world.calls("try_acquire", "publish", node="n2")
        turn.finish()
        (await world.turn(1)).finish()


@pytest.mark.contract("SR-434")
async def test_an_idle_holder_drains_what_it_missed(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        await settled(await submit(router))
        await world.stores.inbox.deliver(InboundMessage("s", "chat", "missed"))
        await trio.sleep(76)
        assert [turn.text for turn in world.turns] == ["hello", "missed"]
        assert world.calls("try_acquire") == ["try_acquire"]


@pytest.mark.contract("SR-410", "SR-437")
async def test_a_message_between_purge_and_evict(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        found: list[SubmitDisposition] = []

        async def deliver_late(_: str, name: str, __: tuple[Any, ...]) -> None:
            if name == "delete":
                world.before_call = None
                found.append(await submit(two, "late", key="k"))

        world.before_call = deliver_late
        await one.delete("s")
        assert type(await error_of(found[0])) is SessionEvictedError
        assert await world.stores.inbox.is_empty("s")
        assert await world.stores.idempotency.find("k") is None
        await trio.sleep(120)
        assert await world.stores.records.load("s") is None
        assert len(world.turns) == 1


@pytest.mark.contract("SR-415")
async def test_a_freed_key_is_nobodys_business_any_more(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        first = await submit(one, key="k")
        turn = await world.turn()
        behind = [await submit(two, f"{n}") for n in range(2)]
        turn.finish(ValueError("no"))
        await error_of(first)
        turn = await world.turn(1)
        retry = await submit(two, key="k")
        assert retry.inbox_id != "idem-k"
        entry = await world.stores.idempotency.find("k")
        world.log.clear()
        await trio.sleep(25)
        assert not [each for each in world.log if each[1] == "touch"]
        assert await world.stores.idempotency.find("k") == entry
        turn.finish()
        (await world.turn(2)).finish()
        for each in behind:
            await settled(each)
        (await world.turn(3)).finish("again")
        assert (await settled(retry)).answer == "again"


@pytest.mark.contract("SR-463", "SR-088")
async def test_two_workers_of_one_name(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "same", "same") as [one, two]:
        await settled(await submit(one))
        await wait_all_tasks_blocked()
        found = await submit(two, "over there", key="k")
        assert found.kind is DispositionKind.FORWARDED
        assert (await settled(found)).answer == "over there"
        assert one._core.reserver_id() != two._core.reserver_id()
        own = one._core.signal("s", SignalKind.EVICT, {"reason": "USER"})
        await world.bus.publish(own)
        await wait_all_tasks_blocked()
        assert one._core.cache.peek("s") is not None
