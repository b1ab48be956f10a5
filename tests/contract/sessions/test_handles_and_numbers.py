"""Handle cache, status, metrics, cancelled callers, and the rules that stay visible (SR §16, §23 to §25, §27, §28b)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Probe, Turn, World, cluster, error_of, settled, submit
from tests.house.source import ROOT
from zlinkpy.sessions.errors import LeaseLostError, SessionError, SessionLeaseError, SessionSignalError
from zlinkpy.sessions.events import Gap, OutputDelta
from zlinkpy.sessions.handle_cache import HandleCache
from zlinkpy.sessions.metrics import HOOKS, MetricsPort, SessionMetrics
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.types import DispositionKind, InterruptReason, RouterConfig, SignalKind, StatusSource

SESSIONS = ROOT / "zlinkpy" / "sessions"


async def at_once(turn: Turn) -> None:
    turn.finish(turn.text)


class Counting(SessionMetrics):
    """Every hook, counted."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []


def _counting(name: str) -> Callable[..., None]:
    return lambda self, *arguments: self.calls.append((name, *arguments))


for _name in HOOKS:
    setattr(Counting, _name, _counting(_name))


# -- handles


class Handles:
    """A cache with handles that only count."""

    def __init__(self, nursery: trio.Nursery, *, limit: int = 10, idle_ttl: float = 600.0) -> None:
        self.metrics = Counting()
        self.closed: list[str] = []
        self.told: list[str] = []
        self.opened = 0
        self.world = World()
        self.cache = HandleCache(
            idle_ttl=idle_ttl,
            limit=limit,
            metrics=MetricsPort(self.metrics),
            on_closed=self.told.append,
            spawn=lambda close: nursery.start_soon(close),
        )

    async def open(self) -> Probe:
        self.opened += 1
        await trio.sleep(0.1)
        return Probe("n1", "s", self.world, {}, {})


@pytest.mark.contract("SR-268")
async def test_two_at_once_open_once(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        handles = Handles(nursery)
        for _ in range(2):
            nursery.start_soon(handles.cache.acquire, "s", handles.open)
        await trio.sleep(1)
        entry = handles.cache.peek("s")
        assert entry is not None
        assert (handles.opened, entry.pins) == (1, 2)

        async def fails() -> Probe:
            raise ValueError("no handle")

        with pytest.raises(ValueError, match="no handle"):
            await handles.cache.acquire("t", fails)
        assert handles.cache.peek("t") is None


@pytest.mark.contract("SR-266")
async def test_an_entry_that_closes_under_the_hands(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        handles = Handles(nursery)
        entry = await handles.cache.acquire("s", handles.open)
        tries: list[int] = []

        class Closing:
            def pin(self, *_: object) -> bool:
                tries.append(1)
                return False

            def peek(self, _: str) -> object:
                return entry

        handles.cache._map = Closing()  # type: ignore[assignment]
        with pytest.raises(SessionError):
            await handles.cache.acquire("s", handles.open)
        assert len(tries) == 8


@pytest.mark.contract("SR-264", "SR-263", "SR-267", "SR-270", "SR-372")
async def test_closing_tells_once_and_afterwards(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        handles = Handles(nursery, limit=1, idle_ttl=10.0)
        first = await handles.cache.acquire("a", handles.open)

        async def slow(_: Probe) -> None:
            assert handles.told == []
            await trio.sleep(1)
            raise ValueError("close fails")

        handles.world.closing = slow
        second = await handles.cache.acquire("b", handles.open)
        assert handles.cache.peek("a") is None
        assert handles.told == []
        nursery.start_soon(handles.cache.unpin, first)
        await trio.sleep(0.5)
        assert handles.told == []
        await trio.sleep(1)
        assert handles.told == ["a"]
        handles.world.closing = World.at_once
        await handles.cache.unpin(second)
        await trio.sleep(11)
        await handles.cache.sweep()
        assert handles.told == ["a", "b"]
        third = await handles.cache.acquire("c", handles.open)
        await handles.cache.unpin(await handles.cache.acquire("c", handles.open))
        await handles.cache.unpin(third)
        await handles.cache.evict_and_close("c")
        await handles.cache.evict_and_close("c")
        counted = handles.metrics.calls
        assert [call[1] for call in counted if call[0] == "on_cache_eviction"] == ["LRU", "IDLE", "EXPLICIT_RELEASE"]
        assert [call[0] for call in counted if call[0] in ("on_cache_hit", "on_cache_miss")] == [
            "on_cache_miss",
            "on_cache_miss",
            "on_cache_miss",
            "on_cache_hit",
        ]


@pytest.mark.contract("SR-259", "SR-261")
async def test_long_turns_and_few_places(autojump_clock: trio.abc.Clock) -> None:
    world = World(RouterConfig(max_cached_sessions=2))
    async with cluster(world, "n1") as [router]:
        found = [await submit(router, session=name) for name in ("a", "b", "c")]
        await trio.sleep(2000)
        assert len(router._core.cache) == 2
        assert [probe.closed for probe in world.probes] == [0, 0, 0]
        for turn in world.turns:
            turn.finish()
        for each in found:
            await settled(each)
        await wait_all_tasks_blocked()
        assert [probe.closed for probe in world.probes] == [1, 0, 0]
        assert await world.holder("a") is None
        assert await world.holder("b") == "n1"


# -- status


@pytest.mark.contract("SR-365", "SR-366")
@pytest.mark.parametrize("on", [True, False])
async def test_what_is_broadcast(autojump_clock: trio.abc.Clock, on: bool) -> None:
    world = World(RouterConfig(status_broadcast=on))
    async with cluster(world, "n1", "n2") as [one, two]:
        assert one.status("s").source is StatusSource.UNKNOWN
        stream = two.events("s")
        await trio.sleep(1)
        found = await submit(one)
        turn = await world.turn()
        await trio.sleep(25)
        assert one.status("s").source is StatusSource.LOCAL_HOLDER
        turn.finish()
        await settled(found)
        await wait_all_tasks_blocked()
        sent = world.published(SignalKind.STATUS)
        assert len(sent) == (4 if on else 0)
        numbers = [signal.payload["seq"] for signal in sent]
        assert numbers == sorted(set(numbers))
        seen = two.status("s")
        assert seen.source is (StatusSource.REMOTE_PROJECTION if on else StatusSource.UNKNOWN)
        if on:
            assert seen.origin_node == "n1"
            assert seen.observed_at is not None
        await stream.aclose()  # type: ignore[attr-defined]


@pytest.mark.contract("SR-368")
async def test_a_status_that_cannot_be_had(autojump_clock: trio.abc.Clock) -> None:
    world = World(RouterConfig(status_broadcast=True))
    world.behave = at_once

    def broken(self: Probe) -> Any:
        raise ValueError("no status")

    async with cluster(world, "n1") as [router]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Probe, "status", broken)
            assert (await settled(await submit(router))).success
            assert router.status("s").status is None
        assert not world.published(SignalKind.STATUS)


@pytest.mark.contract("SR-367", "SR-391")
def test_nothing_is_decided_from_a_status() -> None:
    for name in ("submission", "turn_pass", "turn", "settlement", "forwarding", "recovery", "core", "renewal"):
        tree = ast.parse((SESSIONS / f"{name}.py").read_text(encoding="utf-8"))
        read = [
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr in ("projection", "status")
        ]
        assert not [each for each in read if each != "status"], name
        # `entry.status` of an idempotency entry is another thing.
        allowed = {"submission": 2, "forwarding": 1}.get(name, 0)
        assert read.count("status") == allowed, name
    tree = ast.parse((SESSIONS / "endings.py").read_text(encoding="utf-8"))
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if ast.unparse(node.value).endswith("projection")}
    assert used == {"forget"}


@pytest.mark.contract("SR-392")
def test_records_are_deleted_in_one_place() -> None:
    deletes = [
        path.stem
        for path in SESSIONS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("records().delete")
    ]
    assert deletes == ["endings"]


# -- numbers


@pytest.mark.contract("SR-370", "SR-378")
@pytest.mark.parametrize("how", ["none", "empty", "raises"])
async def test_metrics_change_nothing(
    autojump_clock: trio.abc.Clock, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    def boom(self: object, *_: object) -> None:
        raise ValueError("a counter")

    given: Any = None
    if how == "empty":
        given = object()
    elif how == "raises":
        given = type("Raising", (), dict.fromkeys(HOOKS, boom))()
    world = World()
    world.behave = at_once
    async with cluster(world, "n1", "n2", metrics=given) as [one, two]:
        for key in (None, "k", "k"):
            assert (await settled(await submit(one, key=key))).success
        assert (await settled(await submit(two, key="k2"))).answer == "hello"
        await one.release("s")
    assert ("metrics hook" in caplog.text) == (how == "raises")


def test_a_hook_that_nobody_overrides_is_empty() -> None:
    class One(SessionMetrics):
        def on_cache_hit(self) -> None:
            raise ValueError("fenced")

    port = MetricsPort(One())
    assert port.on_cache_miss is port.on_cache_eviction
    port.on_cache_hit()
    assert MetricsPort(None).on_cache_hit is port.on_cache_miss


@pytest.mark.contract("SR-371", "SR-373", "SR-374", "SR-372")
async def test_what_is_counted(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    counted = Counting()
    async with cluster(world, "n1") as [one]:
        async with cluster(world, "n2", metrics=counted) as [two]:
            found = await submit(two, key="k")
            turn = await world.turn()
            gate = await submit(two)
            attached = await submit(two, key="k")
            await trio.sleep(10.5)
            turn.finish()
            await settled(found)
            (await world.turn(1)).finish()
            await settled(gate)
            await settled(attached)
            await submit(two)
            (await world.turn(2)).finish()
            await wait_all_tasks_blocked()
            replayed = await submit(two, key="k")
            assert replayed.future.done()
            await two.release("s")
            other = await submit(one)
            turn = await world.turn(3)
            elsewhere = await submit(two)
            turn.finish()
            (await world.turn(4)).finish()
            await settled(other)
            await settled(elsewhere)
            names = [call[0] for call in counted.calls]
            assert names.count("on_lease_acquire_succeeded") == 2
            assert names.count("on_lease_acquire_rejected") == 2
            assert all(call[1] >= 0 for call in counted.calls if call[0].startswith("on_lease_acquire"))
            kinds = [call[1] for call in counted.calls if call[0] == "on_submit_outcome"]
            here, away = DispositionKind.EXECUTED_LOCALLY, DispositionKind.FORWARDED
            assert kinds == [here, away, away, here, here, away]
            assert names.count("on_lease_extend_succeeded") == 1
            assert names.count("on_cache_miss") == 1
            assert names.count("on_cache_hit") >= 1
            await submit(two, session="lost")
            lease = two._core.seat("lost").lease
            assert lease is not None
            await world.stores.leases.release(lease.lease)
            await trio.sleep(11)
            assert [call[0] for call in counted.calls].count("on_lease_extend_failed") == 1


@pytest.mark.contract("SR-389")
async def test_what_a_cached_turn_costs(autojump_clock: trio.abc.Clock) -> None:
    world = World()

    async def write(turn: Turn) -> None:
        turn.ctx.state = turn.text.encode()
        turn.finish()

    world.behave = write
    async with cluster(world, "n1") as [router]:
        for number in range(20):
            await settled(await submit(router, session=f"s{number}"))
        await wait_all_tasks_blocked()
        world.log.clear()
        await settled(await submit(router, "again", session="s7"))
        await wait_all_tasks_blocked()
        assert not world.calls("try_acquire", "extend", "release")
        assert world.calls("load", "commit", "provision") == ["load", "load", "commit"]


# -- events


@pytest.mark.contract("SR-397", "SR-400", "SR-456", "SR-418", "SR-327")
async def test_who_comes_late_sees_it_all(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    from zlinkpy.sessions.memory_journal import MemoryEventJournal

    journal = MemoryEventJournal()
    async with cluster(world, "n1", "n2", journal=journal) as [one, two]:
        await submit(one, key="k")
        turn = await world.turn()
        for number in range(40):
            turn.ctx.emit(OutputDelta(str(number + 1)))
        await trio.sleep(1)
        retry = await submit(two, key="k")
        assert retry.inbox_id == "idem-k"
        streams = [router.events("s", from_seq=first) for router, first in ((two, 1), (two, 31), (one, 31))]
        heard: list[list[Any]] = [[], [], []]

        async def read(number: int) -> None:
            async for event in streams[number]:
                heard[number].append(event)

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(read, number)
            await trio.sleep(4)
            turn.ctx.emit(OutputDelta("41"))
            turn.finish()
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        for events, first in zip(heard, (1, 31, 31), strict=True):
            assert not [event for event in events if isinstance(event, Gap)]
            assert [event.seq for event in events] == list(range(first, 43))
            assert {event.turn_id for event in events} == {turn.ctx.turn_id}
        assert heard[1] == heard[2]


# -- faults


@pytest.mark.contract("SR-380")
async def test_a_bus_that_is_away_for_a_while(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await submit(one)
        (await world.turn()).finish()
        await wait_all_tasks_blocked()
        found = await submit(two, key="k")
        turn = await world.turn(1)
        world.bus_down = SessionSignalError("down")
        with pytest.raises(SessionSignalError):
            await two.interrupt("s")
        await trio.sleep(10)
        world.bus_down = None
        assert not turn.session.interrupts
        turn.finish("delivered")
        assert (await settled(found)).answer == "delivered"
        await submit(one)
        turn = await world.turn(2)
        await two.interrupt("s")
        await wait_all_tasks_blocked()
        assert turn.session.interrupts == [InterruptReason.USER]


@pytest.mark.contract("SR-381")
async def test_everything_but_the_records_is_wiped(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        first = await submit(router)
        turn = await world.turn()
        turn.ctx.state = b"history"
        turn.finish()
        await settled(first)
        await wait_all_tasks_blocked()
        second = await submit(router)
        await world.turn(1)
        lease = router._core.seat("s").lease
        assert lease is not None
        await world.stores.leases.release(lease.lease)
        await world.stores.inbox.purge("s")
        assert isinstance(await error_of(second, 11), LeaseLostError)
        await submit(router)
        turn = await world.turn(2)
        assert turn.ctx.state == b"history"
        turn.finish()


STEPS = (
    "subscribe",
    "load",
    "put_if_absent",
    "try_acquire",
    "provision",
    "release_holder",
    "deliver",
    "publish",
)


@pytest.mark.contract("SR-444")
@pytest.mark.parametrize("forwarded", [False, True])
@pytest.mark.parametrize("step", STEPS)
async def test_a_caller_that_is_cancelled(autojump_clock: trio.abc.Clock, step: str, forwarded: bool) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        if forwarded:
            await submit(one)
            (await world.turn()).finish()
            await wait_all_tasks_blocked()
        count = len(world.turns)
        cancelled: list[str] = []
        scope = trio.CancelScope()

        async def cancel(node: str, name: str, _: tuple[Any, ...]) -> None:
            if (node, name) == ("n2", step) and not cancelled:
                cancelled.append(name)
                scope.cancel()
                await trio.lowlevel.checkpoint()

        world.before_call = cancel
        bus = two._core.bus
        for name in ("subscribe", "publish"):

            async def hooked(*arguments: Any, name: str = name, real: Any = getattr(bus, name), **more: Any) -> Any:
                if not (name == "publish" and not arguments[0].kind.is_control):
                    await cancel("n2", name, ())
                return await real(*arguments, **more)

            setattr(bus, name, hooked)
        with scope:
            await submit(two, "mine", key="k")
        reached = bool(cancelled)
        assert reached == (step in _reached(forwarded))
        world.before_call = None
        if not reached:
            return
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        entry = await world.stores.idempotency.find("k")
        assert entry is None or not str(entry.holder_id).startswith("n2/")
        assert not len(two._core.forwards)
        assert two._core.busy == 0
        assert not [seat for seat in two._core.seats.values() if seat.gate is not None or seat.lease is not None]
        if step in ("deliver", "publish"):
            # What was queued runs, once.
            turn = await world.turn(count)
            assert turn.text == "mine"
            turn.finish()
            await trio.sleep(60)
            assert len(world.turns) == count + 1
        else:
            assert len(world.turns) == count
            assert entry is None


def _reached(forwarded: bool) -> tuple[str, ...]:
    common = ("subscribe", "load", "put_if_absent", "try_acquire")
    return (*common, "release_holder", "deliver", "publish") if forwarded else (*common, "provision")


async def test_a_router_shows_what_it_does(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1") as [router]:
        await submit(router)
        await submit(router)
        await world.turn()
        assert repr(router) == "<SessionRouter n1 open [turns 1 | handles 1 | leases 1 | forwards 1]>"
    assert "closed" in repr(router)
    with pytest.raises(SessionError):
        await router.release("s")


async def test_a_router_is_entered_once(autojump_clock: trio.abc.Clock) -> None:
    router: SessionRouter = World().router()
    async with router:
        pass
    with pytest.raises(Exception, match="entered once"):
        async with router:
            pass
    assert SessionLeaseError.status_hint == 503
