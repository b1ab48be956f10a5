"""The worker that leads: it waits for input, hands it to the sinks and drains what they submit, in one task."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.execution.jobs import Bench
from zlinkpy.execution import in_turn
from zlinkpy.execution.workers import DRAIN_SECONDS, SUSPENDED_JOBS


class Inbox:
    """A receiver whose input is what a test puts there. It checks that one task at a time leads."""

    def __init__(self) -> None:
        self.batches: deque[list[Callable[[], Any]]] = deque()
        self.lent = False
        self.failures: list[BaseException | None] = []
        self.served_in: list[trio.lowlevel.Task] = []
        self.busy_waits = 0
        self.waiting = 0
        self._something = trio.Event()

    def arrive(self, *batches: list[Callable[[], Any]]) -> None:
        """Let `serve` make the calls of one batch after the other; they play the sinks."""
        self.batches.extend(batches)
        self._something.set()

    async def borrow(self) -> None:
        await trio.lowlevel.checkpoint()
        assert not self.lent
        self.lent = True

    def give_back(self, failure: BaseException | None = None) -> None:
        assert self.lent
        self.lent = False
        self.failures.append(failure)

    async def wait(self, *, busy: bool = False) -> None:
        assert self.lent
        assert not self.waiting
        self.waiting += 1
        self.busy_waits += busy
        try:
            if busy or self.batches:
                await trio.lowlevel.checkpoint()
            else:
                self._something = trio.Event()
                await self._something.wait()
        finally:
            self.waiting -= 1

    def serve(self) -> bool:
        assert self.lent
        assert not self.waiting
        self.served_in.append(trio.lowlevel.current_task())
        if self.batches:
            for sink in self.batches.popleft():
                sink()
        return bool(self.batches)


@asynccontextmanager
async def leading() -> AsyncIterator[tuple[Bench, Inbox]]:
    """Workers that lead an inbox, which has the lead back when they have ended."""
    bench, inbox = Bench(), Inbox()
    bench.workers.lead(inbox)
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            await nursery.start(bench.workers.run)
            await wait_all_tasks_blocked()
            yield bench, inbox
            bench.workers.cancel_remaining()
    assert inbox.failures == [None]
    assert not inbox.lent
    statistics = bench.workers.statistics()
    assert (statistics.queued, statistics.running, statistics.workers, statistics.spares) == (0, 0, 0, 0)
    assert bench.permits.in_use == 0


async def test_what_a_record_brings_is_worked_on_in_the_task_that_took_it() -> None:
    ran: list[Any] = []

    async def handler() -> None:
        ran.append(trio.lowlevel.current_task())

    async with leading() as (bench, inbox):
        inbox.arrive([lambda: bench.start(handler), lambda: ran.append("sink")])
        await wait_all_tasks_blocked()
        assert ran == ["sink", inbox.served_in[-1]]
        assert bench.workers.statistics().workers == 1


async def test_each_slice_is_worked_on_before_the_next_is_taken() -> None:
    order: list[str] = []

    def sink(number: int) -> None:
        order.append(f"take {number}")
        bench.call(lambda: order.append(f"work {number}"))

    async with leading() as (bench, inbox):
        inbox.arrive([lambda: sink(1), lambda: sink(2)], [lambda: sink(3)])
        await wait_all_tasks_blocked()
    assert order == ["take 1", "take 2", "work 1", "work 2", "take 3", "work 3"]


@pytest.mark.contract("SA-232", "LV-116")
async def test_what_comes_faster_than_handlers_that_wait_are_started_is_seen_in_the_queue() -> None:
    """Not left unread, where nobody counts it: then peers are told to pause, and their probes do not wait behind it."""
    queued: list[int] = []
    ended = 0

    async def handler() -> None:
        nonlocal ended
        await trio.lowlevel.checkpoint()
        ended += 1

    def rotation() -> None:
        queued.append(bench.workers.queued)
        for _ in range(64):
            bench.start(handler)

    async with leading() as (bench, inbox):
        inbox.arrive(*[[rotation]] * 20)
        await until_served(inbox)
        await wait_all_tasks_blocked()
        assert ended == 20 * 64
    # Each rotation brings more than is worked on before the next.
    assert all(later - earlier >= 63 - SUSPENDED_JOBS for earlier, later in pairwise(queued))
    assert queued[-1] >= 19 * (63 - SUSPENDED_JOBS)


async def until_served(inbox: Inbox) -> None:
    while inbox.batches:
        await trio.lowlevel.checkpoint()


async def test_input_is_served_while_handlers_wait(autojump_clock: MockClock) -> None:
    ran: list[str] = []
    gate = trio.Event()

    async def waiting() -> None:
        await gate.wait()
        ran.append("waited")

    async with leading() as (bench, inbox):
        for _ in range(3):
            inbox.arrive([lambda: bench.start(waiting)])
            await wait_all_tasks_blocked()
        inbox.arrive([lambda: bench.call(lambda: ran.append("next"))])
        await wait_all_tasks_blocked()
        assert ran == ["next"]
        inbox.arrive([gate.set])
        await bench.idle()
        assert ran == ["next", *["waited"] * 3]


async def test_a_job_from_elsewhere_does_not_wait_for_input() -> None:
    ran: list[str] = []
    async with leading() as (bench, inbox):
        bench.call(lambda: ran.append("ours"))
        assert ran == []
        await wait_all_tasks_blocked()
        assert ran == ["ours"]
        assert inbox.waiting == 1


async def test_the_queue_is_drained_by_one_worker_at_a_time_and_in_order() -> None:
    dice = random.Random(7)
    began: list[int] = []
    in_hand: list[int] = []

    async def handler(number: int, waits: bool) -> None:
        assert not in_hand
        in_hand.append(number)
        began.append(number)
        in_hand.remove(number)
        if waits:
            await trio.lowlevel.checkpoint()

    async with leading() as (bench, inbox):
        number = 0

        def submit() -> None:
            nonlocal number
            taken, waits = number, dice.random() < 0.3
            number += 1
            bench.start(lambda: handler(taken, waits))

        for _ in range(300):
            inbox.arrive(*[[submit] * dice.randrange(4) for _ in range(dice.randrange(4))])
            for _ in range(dice.randrange(3)):
                submit()
            for _ in range(dice.randrange(3)):
                await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        assert began == list(range(number))
        assert bench.workers.statistics().completed == number


async def test_a_leader_that_finds_another_draining_leaves_the_jobs_to_it() -> None:
    began: list[str] = []

    async with leading() as (bench, inbox):
        # Both are scheduled in the same pass, in whatever order: a worker for the first job, the leader for the second.
        for _ in range(50):
            bench.call(lambda: began.append("first"))
            inbox.arrive([lambda: bench.call(lambda: began.append("second"))])
            await wait_all_tasks_blocked()
    assert began == ["first", "second"] * 50


async def test_a_long_drain_gives_way_to_the_input(mock_clock: MockClock) -> None:
    order: list[str] = []

    def slow() -> None:
        order.append("slow")
        mock_clock.jump(DRAIN_SECONDS / 4)

    async with leading() as (bench, inbox):
        inbox.arrive([lambda: bench.call(slow)] * 20, [lambda: order.append("input")], [lambda: order.append("more")])
        await wait_all_tasks_blocked()
        assert order.count("slow") == 20
        assert order.index("input") == 4
        assert order.index("more") == 9
        assert inbox.busy_waits >= 4


async def test_input_that_never_ends_lets_other_tasks_run(mock_clock: MockClock) -> None:
    taken = 0
    async with leading() as (_, inbox):

        def sink() -> None:
            nonlocal taken
            taken += 1
            mock_clock.jump(DRAIN_SECONDS / 4)
            if taken < 1000:
                inbox.arrive([sink])

        inbox.arrive([sink], [sink])
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        assert 4 <= taken <= 50
        inbox.batches.clear()


async def test_sinks_are_not_inside_a_turn() -> None:
    seen: list[bool] = []

    async def waiting() -> None:
        # Nobody holds the token by then: the job gets a worker of its own, which leads later on.
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        assert in_turn()
        bench.start(trio.lowlevel.checkpoint)
        await trio.sleep_forever()

    async with leading() as (bench, inbox):
        for _ in range(5):
            inbox.arrive([lambda: seen.append(in_turn()), lambda: bench.start(waiting)])
            await wait_all_tasks_blocked()
    assert seen == [False] * 5


@pytest.mark.parametrize("when", ["waiting", "in a handler"])
async def test_the_lead_goes_back_when_the_workers_are_cancelled(when: str) -> None:
    async with leading() as (bench, inbox):
        if when == "in a handler":
            for _ in range(3):
                inbox.arrive([lambda: bench.start(trio.sleep_forever)])
                await wait_all_tasks_blocked()


async def test_the_lead_goes_back_when_the_end_comes_while_it_is_on_its_way() -> None:
    for _ in range(20):
        async with leading() as (bench, inbox):

            async def handler(cut: Callable[[], Any] = bench.workers.cancel_remaining) -> None:
                # Runs in the same pass as the one that takes over, before it or after it.
                trio.lowlevel.current_trio_token().run_sync_soon(cut)
                await trio.lowlevel.cancel_shielded_checkpoint()

            inbox.arrive([lambda bench=bench, handler=handler: bench.start(handler)])
            await wait_all_tasks_blocked()


async def test_handlers_that_clean_up_find_the_receiver_served_by_its_owner() -> None:
    served_by_owner: list[bool] = []

    async def handler() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
                served_by_owner.append(not inbox.lent)

    async with leading() as (bench, inbox):
        inbox.arrive([lambda: bench.start(handler)])
        await wait_all_tasks_blocked()
    assert served_by_owner == [True]


async def test_ctrl_c_in_a_handler_gives_the_lead_back() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True):
        async with leading() as (bench, inbox):
            inbox.arrive([lambda: bench.call(interrupted)])
            await trio.sleep(10)
    assert inbox.failures == [None]


async def test_a_failure_of_the_receiver_is_its_own() -> None:
    ran: list[str] = []
    bench, inbox = Bench(), Inbox()
    bench.workers.lead(inbox)
    fault = ZeroDivisionError()

    def fail() -> None:
        raise fault

    async with trio.open_nursery() as nursery:
        await nursery.start(bench.workers.run)
        inbox.arrive([fail])
        await wait_all_tasks_blocked()
        assert inbox.failures == [fault]
        bench.call(lambda: ran.append("still working"))
        await bench.idle()
        bench.workers.cancel_remaining()
    assert ran == ["still working"]
    assert inbox.failures == [fault]


async def test_cancelled_while_borrowing() -> None:
    bench, inbox = Bench(), Inbox()
    bench.workers.lead(inbox)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.workers.run)
        nursery.cancel_scope.cancel()
    assert inbox.failures == []
    assert bench.workers.statistics().workers == 0
