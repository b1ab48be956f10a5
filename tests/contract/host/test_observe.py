"""The stream of a host's status: first item, coalescing, loss, end (OB §4 as far as the host has it)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH, Ask, Lan, Note
from zlinkpy.runtime.status import COUNT_MAX, StatusSource

quiet = trio.testing.wait_all_tasks_blocked


async def test_the_first_item_comes_at_once_and_has_lost_nothing(autojump_clock: object) -> None:
    source = StatusSource()
    for _ in range(3):
        source.publish()
    changes = source.changes()
    began = trio.current_time()
    assert (await anext(changes)).coalesced == 0
    assert trio.current_time() == began
    with trio.move_on_after(10) as scope:
        await anext(changes)
    assert scope.cancelled_caught


async def test_changes_between_two_reads_become_one_item_that_counts_them(autojump_clock: object) -> None:
    source = StatusSource()
    changes = source.changes()
    await anext(changes)
    source.publish()
    assert (await anext(changes)).coalesced == 0
    for _ in range(5):
        source.publish()
    assert (await anext(changes)).coalesced == 4
    # The number is of the whole subscription, so nothing is forgotten when two items are compared.
    source.publish()
    assert (await anext(changes)).coalesced == 4
    for _ in range(2):
        source.publish()
    assert (await anext(changes)).coalesced == 5


async def test_subscribers_are_independent(autojump_clock: object) -> None:
    source = StatusSource()
    slow, fast = source.changes(), source.changes()
    await anext(slow)
    await anext(fast)
    for _ in range(4):
        source.publish()
        assert (await anext(fast)).coalesced == 0
    assert (await anext(slow)).coalesced == 3
    late = source.changes()
    assert (await anext(late)).coalesced == 0


async def test_the_end_delivers_the_last_change_first(autojump_clock: object) -> None:
    source = StatusSource()
    waiting, behind = source.changes(), source.changes()
    for stream in (waiting, behind):
        await anext(stream)
    seen: list[int] = []

    async def read() -> None:
        seen.extend([loss.coalesced async for loss in waiting])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await quiet()
        source.end()
    assert seen == [0]
    assert [loss.coalesced async for loss in behind] == [0]
    # Who comes after the end gets the last status and no more.
    assert len([loss async for loss in source.changes()]) == 1


async def test_the_count_of_losses_stops_at_its_maximum(autojump_clock: object) -> None:
    source = StatusSource()
    changes = source.changes()
    await anext(changes)
    source._sequence += COUNT_MAX + 5
    assert (await anext(changes)).coalesced == COUNT_MAX


async def test_a_cancelled_reader_loses_nothing(autojump_clock: object) -> None:
    source = StatusSource()
    changes = source.changes()
    await anext(changes)
    for _ in range(3):
        with trio.move_on_after(1):
            await anext(changes)
    source.publish()
    source.publish()
    with trio.CancelScope() as scope:
        scope.cancel()
        await anext(changes)
    assert scope.cancelled_caught
    assert (await anext(changes)).coalesced == 1


@pytest.mark.contract("SA-281")
async def test_a_host_is_observed_from_serving_to_stopped(autojump_clock: object, lan: Lan) -> None:
    seen: list[zl.Observed] = []
    async with trio.open_nursery() as nursery:
        async with lan.node("n", weight=100) as n:

            async def watch() -> None:
                async for item in n.rt.observe():
                    seen.append(item)  # noqa: PERF401 - looked at before the stream has ended

            nursery.start_soon(watch)
            await quiet()
            assert [item.status.state for item in seen] == [zl.HostState.SERVING]
            n.rt.set_channel_weight(MESH, CHANNEL, 7)
            await quiet()
            assert len(seen) > 1
            await n.rt.send_to_channel(CHANNEL, Note(1, hold=1.0))  # so that draining lasts long enough to be seen
    states = [item.status.state for item in seen]
    assert states == sorted(states)
    assert {zl.HostState.SERVING, zl.HostState.DRAINING, zl.HostState.STOPPED} <= set(states)
    sequences = [item.status.sequence for item in seen]
    assert sequences == sorted(set(sequences))
    # What was not delivered was counted.
    assert sequences[-1] - sequences[0] == len(seen) - 1 + seen[-1].loss.coalesced
    last = seen[-1].status
    assert last.state is zl.HostState.STOPPED
    assert last.termination is not None
    assert last.termination.outcome is zl.TerminationOutcome.STOPPED
    assert not last.is_ready
    assert not last.accepting_work


async def test_a_reader_that_does_not_read_holds_nobody_up(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n", weight=100) as n:
        items = n.rt.observe()
        first = await anext(items)
        for weight in range(1000):
            n.rt.set_channel_weight(MESH, CHANNEL, weight)
        assert (await n.rt.request_to_channel(CHANNEL, Ask(1))).n == 1
        second = await anext(items)
        assert second.status.sequence - first.status.sequence == second.loss.coalesced + 1


async def test_waiting_for_a_target_ends_when_there_is_one(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("z", port=9, peers=[1]) as z:
        with pytest.raises(zl.NotFoundError):
            await z.rt.wait_ready_target("elsewhere")
        ready = trio.Event()

        async def wait() -> None:
            await z.rt.wait_ready_target(CHANNEL)
            ready.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(20)
            assert not ready.is_set()
            async with lan.node("a", port=1, weight=100):
                with trio.fail_after(10):
                    await ready.wait()
                began = trio.current_time()
                await z.rt.wait_ready_target(CHANNEL)
                assert trio.current_time() == began


async def test_waiting_for_a_target_ends_with_the_host(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("z") as z:
        ends: list[str] = []

        async def wait() -> None:
            try:
                await z.rt.wait_ready_target(CHANNEL)
                ends.append("ready")
            except zl.ShuttingDownError:
                ends.append("shutting down")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await quiet()
            nursery.start_soon(z.rt.shutdown)
        assert ends == ["shutting down"]
