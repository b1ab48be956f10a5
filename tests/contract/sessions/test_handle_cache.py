"""Handles of a node: how long they stay, who closes them, and when their lease goes back (SR §16)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import Probe, settled, submit
from tests.contract.sessions.scenes import Counted, Scene, busy_turn, nodes, one_turn
from zlinkpy.sessions.cache_machine import Eviction
from zlinkpy.sessions.errors import SessionError
from zlinkpy.sessions.handle_cache import PIN_ATTEMPTS, HandleCache
from zlinkpy.sessions.metrics import MetricsPort
from zlinkpy.sessions.types import DispositionKind, RouterConfig

EVERY_SECOND = RouterConfig(cache_sweep_interval=1.0)


@pytest.mark.contract("SR-257")
async def test_an_idle_handle_is_closed_once_and_its_lease_returned(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(EVERY_SECOND)
    async with nodes(scene, "n1") as [one]:
        probe = await one_turn(scene, one)
        ended = trio.current_time()
        await trio.sleep_until(ended + 599)
        assert (probe.closed, await scene.holder()) == (0, "n1")
        await trio.sleep_until(ended + 602)
        assert (probe.closed, await scene.holder()) == (1, None)
        await trio.sleep(700)
        assert probe.closed == 1


@pytest.mark.contract("SR-258")
async def test_activity_moves_the_expiry(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(EVERY_SECOND)
    async with nodes(scene, "n1") as [one]:
        probe = await one_turn(scene, one)
        await trio.sleep(300)
        await one_turn(scene, one)
        moved = trio.current_time()
        await trio.sleep_until(moved + 599)
        assert probe.closed == 0
        await trio.sleep_until(moved + 602)
        assert probe.closed == 1


@pytest.mark.contract("SR-259")
async def test_a_pinned_handle_is_not_idle(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(EVERY_SECOND)
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one)
        await trio.sleep(1800)
        assert "handles 1" in repr(one)
        turn.finish()
        await settled(submitted)
        ended = trio.current_time()
        await trio.sleep_until(ended + 599)
        assert (turn.session.closed, "handles 1" in repr(one)) == (0, True)
        await trio.sleep_until(ended + 602)
        assert turn.session.closed == 1


@pytest.mark.contract("SR-261", "SR-265")
async def test_a_full_cache_dooms_a_pinned_handle_and_leaves_its_turn_alone(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig(max_cached_sessions=2))
    async with nodes(scene, "n1") as [one]:
        submitted, turn = await busy_turn(scene, one, "a")
        await busy_turn(scene, one, "b")
        await busy_turn(scene, one, "c")
        assert "handles 2" in repr(one)
        await trio.sleep(100)
        assert (turn.session.closed, turn.session.interrupts) == (0, [])
        assert await scene.holder("a") == "n1"
        scene.log.clear()
        turn.finish("unharmed")
        assert (await settled(submitted)).answer == "unharmed"
        await wait_all_tasks_blocked()
        assert scene.calls("close", "release") == ["close", "release"]
        assert await scene.holder("a") is None


@pytest.mark.contract("SR-262")
async def test_no_second_handle_before_the_first_is_gone(
    autojump_clock: trio.abc.Clock,
) -> None:
    scene = Scene(RouterConfig(max_cached_sessions=1))

    async def slowly(probe: Probe) -> None:
        await trio.sleep(3)
        scene.log.append(("n1", "closed", probe.session_id))

    async with nodes(scene, "n1") as [one]:
        _, turn = await busy_turn(scene, one, "a")
        await busy_turn(scene, one, "b")
        scene.closing = slowly
        more = await submit(one, "more", "a")
        assert more.kind is DispositionKind.FORWARDED
        turn.finish()
        (await scene.turn(2)).finish()
        await settled(more, 10)
        again = await submit(one, "again", "a")
        last = await scene.turn(3)
        last.finish()
        await settled(again, 10)
        wanted = ("open", "close", "closed", "release")
        steps = [entry[1] for entry in scene.log if entry[1] in wanted and "b" not in entry[2:]]
        assert steps[:5] == ["open", "close", "closed", "release", "open"]


@pytest.mark.contract("SR-269")
async def test_the_router_sweeps_without_traffic(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig(idle_ttl=30.0))
    async with nodes(scene, "n1") as [one]:
        probe = await one_turn(scene, one)
        await trio.sleep_until(59)
        assert probe.closed == 0
        await trio.sleep_until(61)
        assert probe.closed == 1


@pytest.mark.contract("SR-270", "SR-372")
async def test_evictions_hits_and_misses_are_counted(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene(RouterConfig(max_cached_sessions=1))
    async with nodes(scene, "n1") as [one]:
        counted = scene.counted["n1"]
        await one_turn(scene, one, "a")
        await one_turn(scene, one, "a")
        assert (counted.count("on_cache_miss"), counted.count("on_cache_hit")) == (1, 1)
        await one_turn(scene, one, "b")
        assert (counted.count("on_cache_miss"), counted.count("on_cache_hit")) == (2, 1)
        await one.release("b")
        await one_turn(scene, one, "c")
        await trio.sleep(700)
        assert counted.of("on_cache_eviction") == [("LRU",), ("EXPLICIT_RELEASE",), ("IDLE",)]


class Handle:
    """As much of a live session as the cache needs."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self.closing, self.closed = 0, 0
        self._error = error

    async def aclose(self) -> None:
        self.closing += 1
        await trio.sleep(1)
        if self._error is not None:
            raise self._error
        self.closed += 1


class Caches:
    """A cache, and what it said to whom."""

    def __init__(self, nursery: trio.Nursery, *, limit: int = 10) -> None:
        self.told: list[tuple[str, Any]] = []
        self.look: Callable[[str], Any] = lambda _: None
        self.opened = 0
        self.handle = Handle()
        self.open_error: Exception | None = None
        self.cache = HandleCache(
            idle_ttl=600,
            limit=limit,
            metrics=MetricsPort(Counted()),
            on_closed=lambda session_id: self.told.append((session_id, self.look(session_id))),
            spawn=lambda close: nursery.start_soon(close),
        )

    async def opener(self) -> Any:
        self.opened += 1
        await trio.sleep(1)
        if self.open_error is not None:
            raise self.open_error
        return self.handle

    async def acquire(self) -> Any:
        return await self.cache.acquire("s", self.opener)


@pytest.mark.contract("SR-260")
async def test_reads_do_not_undo_a_pin(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        given = Caches(nursery)
        entry = await given.acquire()
        assert given.cache.peek("s") is entry
        await given.cache.unpin(await given.acquire())
        await trio.sleep(601)
        await given.cache.sweep()
        assert given.cache.peek("s") is entry
        assert given.handle.closing == 0


@pytest.mark.contract("SR-265")
@pytest.mark.parametrize("how", ["evicted", "made room for"])
async def test_the_listener_hears_nothing_of_a_pinned_handle_before_its_close(
    autojump_clock: trio.abc.Clock, how: str
) -> None:
    async with trio.open_nursery() as nursery:
        given = Caches(nursery, limit=1)
        entry = await given.acquire()
        if how == "evicted":
            given.cache.evict("s")
        else:
            await given.cache.acquire("another", given.opener)
        await trio.sleep(60)
        assert given.cache.peek("s") is None
        assert (given.handle.closing, given.told) == (0, [])
        given.look = lambda _: given.handle.closed
        await given.cache.unpin(entry)
        assert given.told == [("s", 1)]


@pytest.mark.contract("SR-263")
async def test_whatever_races_closes_a_handle_once(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        given = Caches(nursery)
        entry = await given.acquire()
        await trio.sleep(601)
        ends: list[Callable[[], Awaitable[Any]]] = [
            lambda: given.cache.evict_and_close("s"),
            given.cache.sweep,
            given.cache.close_all,
            lambda: given.cache.unpin(entry),
            given.cache.close_all,
        ]
        given.cache.evict("s")
        async with trio.open_nursery() as racing:
            for each in ends:
                racing.start_soon(each)
        await trio.sleep(5)
        assert (given.handle.closing, len(given.told)) == (1, 1)


@pytest.mark.contract("SR-264")
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("end", ["idle", "explicit", "deferred", "all"])
async def test_the_listener_is_called_after_the_close(autojump_clock: trio.abc.Clock, end: str, raises: bool) -> None:
    async with trio.open_nursery() as nursery:
        given = Caches(nursery)
        given.handle = handle = Handle(error=ValueError("cannot close") if raises else None)
        given.look = lambda _: trio.current_time()
        entry = await given.acquire()
        if end == "deferred":
            given.cache.evict("s")
        began = trio.current_time()
        await given.cache.unpin(entry)
        if end == "idle":
            began += 601
            await trio.sleep(601)
            await given.cache.sweep()
        elif end == "explicit":
            given.cache.evict("s", Eviction.EXPLICIT_RELEASE)
            assert given.told == []
        elif end == "all":
            await given.cache.close_all()
        await trio.sleep(5)
        assert handle.closing == 1
        assert given.told == [("s", pytest.approx(began + 1))]


@pytest.mark.contract("SR-266")
async def test_an_entry_that_closes_under_the_callers_hands_is_replaced(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        given = Caches(nursery)
        old = await given.acquire()
        await given.cache.unpin(old)
        pin = given.cache._map.pin
        refusals = PIN_ATTEMPTS - 1

        def closing(entry: Any, now: float) -> bool:
            nonlocal refusals
            refusals -= 1
            if not refusals:
                given.cache.evict("s")
            return refusals < 0 and pin(entry, now)

        given.cache._map.pin = closing  # type: ignore[method-assign]
        fresh = await given.acquire()
        assert fresh is not old
        assert (fresh.pins, given.opened) == (1, 2)
        refusals = 10**6
        with pytest.raises(SessionError, match=str(PIN_ATTEMPTS)):
            await given.acquire()
        assert 10**6 - refusals == PIN_ATTEMPTS == 8


@pytest.mark.contract("SR-267")
async def test_the_callback_of_the_last_unpin_sees_what_is_true(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        given = Caches(nursery)
        entry = await given.acquire()
        given.look = lambda session_id: (entry.pins, given.cache.peek(session_id))
        given.cache.evict("s")
        with trio.fail_after(2):
            await given.cache.unpin(entry)
        assert given.told == [("s", (0, None))]


@pytest.mark.contract("SR-268")
async def test_two_who_open_at_once_open_once_and_a_failure_leaves_nothing(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        given = Caches(nursery)
        found: list[Any] = []

        async def acquire() -> None:
            found.append(await given.acquire())

        async with trio.open_nursery() as racing:
            racing.start_soon(acquire)
            racing.start_soon(acquire)
        assert given.opened == 1
        assert found[0] is found[1]
        assert found[0].pins == 2
        other = Caches(nursery)
        other.open_error = ValueError("cannot open")
        with pytest.raises(ValueError, match="cannot open"):
            await other.acquire()
        assert (other.cache.peek("s"), len(other.cache)) == (None, 0)
        other.open_error = None
        assert (await other.acquire()).pins == 1
