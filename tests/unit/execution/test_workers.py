"""The workers: order, suspension, permits, errors, draining and stopping."""

from __future__ import annotations

import contextvars
import random
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.execution.jobs import AsyncJob, Bench, SyncJob, errors_in, running
from zlinkpy.execution import in_turn
from zlinkpy.execution.workers import DRAIN_JOBS, DRAIN_SECONDS, SPARE_WORKERS

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


class Tasks(trio.abc.Instrument):
    """Counts how often each task was run."""

    def __init__(self) -> None:
        self.steps = 0
        self.spawned = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += task.name == "zlinkpy worker"

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.spawned += task.name == "zlinkpy worker"


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


async def test_jobs_start_in_the_order_they_were_submitted() -> None:
    order: list[int] = []

    async def start(number: int) -> None:
        order.append(number)
        await trio.lowlevel.checkpoint()

    async with running() as bench:
        for number in range(500):
            if number % 3:
                bench.start(lambda n=number: start(n))
            else:
                bench.call(lambda n=number: order.append(n))
        await bench.idle()
    assert order == list(range(500))


async def test_no_job_runs_inside_submit() -> None:
    ran: list[str] = []
    async with running() as bench:
        bench.call(lambda: ran.append("a"))
        assert ran == []

        def outer() -> None:
            bench.call(lambda: ran.append("inner"))
            ran.append("outer")

        bench.call(outer)
        await bench.idle()
    assert ran == ["a", "outer", "inner"]


async def test_jobs_submitted_before_the_workers_run_are_not_forgotten() -> None:
    ran: list[int] = []
    bench = Bench()
    for number in range(3):
        bench.call(lambda n=number: ran.append(n))
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.workers.run)
        await bench.idle()
        bench.workers.cancel_remaining()
    assert ran == [0, 1, 2]


async def test_a_handler_that_never_suspends_costs_no_scheduling(tasks: Tasks) -> None:
    async def nothing() -> None: ...

    async with running() as bench:
        trio.lowlevel.add_instrument(tasks)
        for _ in range(DRAIN_JOBS - 1):
            bench.start(nothing)
        await bench.idle()
        trio.lowlevel.remove_instrument(tasks)
    assert (tasks.steps, tasks.spawned) == (1, 1)


@pytest.mark.contract("SA-233")
async def test_the_permit_goes_back_just_before_the_first_instruction_of_the_callback() -> None:
    async with running() as bench:
        seen: list[int] = []
        inside = trio.Event()

        async def handler() -> None:
            seen.append(bench.permits.in_use)
            await inside.wait()
            seen.append(bench.permits.in_use)

        for _ in range(3):
            bench.start(handler)
        bench.call(lambda: seen.append(bench.permits.in_use))
        assert bench.permits.in_use == 4
        await wait_all_tasks_blocked()
        # The first callback finds the permits of the other three, the last one none: its own is back already.
        assert seen == [3, 2, 1, 0]
        assert bench.permits.in_use == 0
        inside.set()
        await bench.idle()
        assert seen == [3, 2, 1, 0, 0, 0, 0]


async def test_a_suspended_handler_holds_up_nobody() -> None:
    order: list[str] = []
    gate = trio.Event()

    async def waiting() -> None:
        order.append("begins")
        await gate.wait()
        order.append("ends")

    async with running() as bench:
        bench.start(waiting)
        bench.call(lambda: order.append("next"))
        await wait_all_tasks_blocked()
        assert order == ["begins", "next"]
        bench.call(lambda: order.append("later"))
        await wait_all_tasks_blocked()
        assert order == ["begins", "next", "later"]
        statistics = bench.workers.statistics()
        assert (statistics.running, statistics.suspended, statistics.queued) == (1, 1, 0)
        gate.set()
        await bench.idle()
    assert order[-1] == "ends"


async def test_a_worker_that_comes_back_does_not_run_jobs_beside_the_one_that_took_over(tasks: Tasks) -> None:
    active = 0
    most = 0

    def turn() -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        active -= 1

    async def handler() -> None:
        for _ in range(3):
            turn()
            await trio.lowlevel.checkpoint()

    async with running() as bench:
        for _ in range(200):
            bench.start(handler)
            bench.call(turn)
        await bench.idle()
        assert bench.workers.statistics().completed == 400
    assert most == 1


async def test_idle_workers_above_the_bound_end(autojump_clock: MockClock) -> None:
    async with running() as bench:
        for _ in range(3 * SPARE_WORKERS):
            bench.start(partial(trio.sleep, 1))
        await wait_all_tasks_blocked()
        assert bench.workers.statistics().workers >= 3 * SPARE_WORKERS
        await bench.idle()
        await wait_all_tasks_blocked()
        statistics = bench.workers.statistics()
        assert statistics.workers == statistics.spares == SPARE_WORKERS
        assert statistics.peak_running == 3 * SPARE_WORKERS


async def test_spares_are_used_again(tasks: Tasks) -> None:
    async with running() as bench:
        trio.lowlevel.add_instrument(tasks)
        for _ in range(50):
            for _ in range(2):
                bench.start(trio.lowlevel.checkpoint)
            await bench.idle()
            await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(tasks)
    assert tasks.spawned <= 3


async def test_after_ten_milliseconds_of_turns_other_tasks_run(mock_clock: MockClock, tasks: Tasks) -> None:
    per_step: dict[int, int] = {}

    def turn() -> None:
        per_step[tasks.steps] = per_step.get(tasks.steps, 0) + 1
        mock_clock.jump(DRAIN_SECONDS / 4)

    async with running() as bench:
        trio.lowlevel.add_instrument(tasks)
        for _ in range(10):
            bench.call(turn)
        await bench.idle()
        trio.lowlevel.remove_instrument(tasks)
    # Four turns take the ten milliseconds; each step of the worker's task ends in a checkpoint.
    assert list(per_step.values()) == [4, 4, 2]


async def test_an_endless_backlog_of_quick_jobs_starves_nobody(mock_clock: MockClock) -> None:
    # The clock stands still: only the number of turns can end the stretch.
    count = 0
    async with running() as bench:

        def again() -> None:
            nonlocal count
            count += 1
            if count < 10 * DRAIN_JOBS:
                bench.call(again)

        bench.call(again)
        for _ in range(4):
            await trio.lowlevel.checkpoint()
        assert 0 < count <= 4 * DRAIN_JOBS
        await bench.idle()
    assert count == 10 * DRAIN_JOBS


async def test_handlers_do_not_see_each_others_context_variables() -> None:
    seen: list[str] = []

    async def polite() -> None:
        seen.append(WHO.get())
        WHO.set("me")
        await trio.lowlevel.checkpoint()
        seen.append(WHO.get())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    async def child() -> None:
        seen.append(f"child of {WHO.get()}")

    WHO.set("host")
    async with running() as bench:
        bench.start(polite)
        await bench.idle()
        bench.start(polite)
        bench.call(lambda: seen.append(WHO.get()))
        await bench.idle()
    assert sorted(seen) == sorted(["host", "me", "child of me"] * 2 + ["host"])
    assert WHO.get() == "host"


async def test_in_turn_is_true_in_handlers_and_their_children_only() -> None:
    seen: list[bool] = []

    async def child() -> None:
        seen.append(in_turn())

    async def handler() -> None:
        seen.append(in_turn())
        await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    assert not in_turn()
    async with running() as bench:
        bench.start(handler)
        bench.call(lambda: seen.append(in_turn()))
        await bench.idle()
        assert not in_turn()
    assert seen == [True] * 3


async def test_handlers_are_outside_the_submitters_cancel_scope() -> None:
    done: list[str] = []

    async def handler() -> None:
        await trio.lowlevel.checkpoint()
        done.append("done")

    async with running() as bench:
        with trio.CancelScope() as scope:
            scope.cancel()
            bench.start(handler)
            with trio.CancelScope(shield=True):
                await bench.idle()
    assert done == ["done"]


class Odd(BaseException):
    pass


async def later(error: BaseException) -> None:
    await trio.lowlevel.checkpoint()
    raise error


def now(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), Odd(), ExceptionGroup("g", [ValueError()])], ids=repr
)
@pytest.mark.parametrize("suspends", [False, True])
async def test_an_exception_that_escapes_ends_its_job_and_nothing_else(
    error: BaseException, suspends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    escaped: list[tuple[str, BaseException]] = []
    ran: list[str] = []
    async with running(on_escape=lambda job, error: escaped.append((job.label, error))) as bench:
        for number in range(3):
            if suspends:
                bench.start(lambda: later(error), f"bad {number}")
            else:
                bench.call(lambda: now(error), f"bad {number}")
            bench.call(lambda: ran.append("next"))
        await bench.idle()
        statistics = bench.workers.statistics()
        assert (statistics.completed, statistics.escaped) == (6, 3)
    assert ran == ["next"] * 3
    assert sorted(escaped, key=lambda pair: pair[0]) == [(f"bad {number}", error) for number in range(3)]
    assert sorted(errors_in(caplog)) == [f"job bad {number} let an exception out" for number in range(3)]


async def stray_cancelled() -> trio.Cancelled:
    """A Cancelled that belongs to a scope which is over."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            kept = error
            raise
    return kept


async def test_a_stray_cancelled_is_the_jobs_failure_and_stops_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    async def handler() -> None:
        raise await stray_cancelled()

    ran: list[str] = []
    async with running() as bench:
        bench.start(handler, "stray")
        await bench.idle()
        bench.call(lambda: ran.append("next"))
        await bench.idle()
    assert ran == ["next"]
    assert errors_in(caplog) == ["job stray let an exception out"]


@pytest.mark.parametrize("wrapped", [False, True])
async def test_ctrl_c_inside_a_handler_ends_the_program(wrapped: bool) -> None:
    error: BaseException = KeyboardInterrupt()
    if wrapped:
        error = BaseExceptionGroup("nursery", [error, ValueError()])
    bench = Bench()

    async def host() -> None:
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                await nursery.start(bench.workers.run)
                bench.call(lambda: now(error))
                await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await host()
    assert caught.group_contains(KeyboardInterrupt)
    assert not caught.group_contains(ValueError)
    assert bench.permits.in_use == 0


async def test_drain_waits_for_queued_running_and_newly_submitted_jobs(autojump_clock: MockClock) -> None:
    ended: list[str] = []
    async with running() as bench:

        async def first() -> None:
            await trio.sleep(1)
            bench.start(second)
            ended.append("first")

        async def second() -> None:
            await trio.sleep(2)
            ended.append("second")

        bench.start(first)
        began = trio.current_time()
        assert await bench.workers.drain(began + 10)
        assert trio.current_time() - began == 3
        assert ended == ["first", "second"]
        assert bench.workers.cancel_remaining() == []


async def test_drain_gives_up_at_its_deadline_and_cuts_nothing(autojump_clock: MockClock) -> None:
    async with running() as bench:
        ended: list[str] = []

        async def slow() -> None:
            await trio.sleep(5)
            ended.append("slow")

        bench.start(slow)
        began = trio.current_time()
        assert not await bench.workers.drain(began + 2)
        assert trio.current_time() - began == 2
        assert await bench.workers.drain(began + 100)
        assert ended == ["slow"]


async def test_drain_of_nothing_is_immediate_even_past_its_deadline(autojump_clock: MockClock) -> None:
    async with running() as bench:
        assert await bench.workers.drain(trio.current_time() - 1)


async def test_two_drains_end_together(autojump_clock: MockClock) -> None:
    async with running() as bench:
        bench.start(partial(trio.sleep, 1))
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(bench.idle)


async def test_what_is_cut_is_named_and_cancelled_and_its_permits_returned() -> None:
    events: list[str] = []

    async def stubborn(name: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            events.append(f"{name} unwound")

    bench = Bench()
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.workers.run)
        bench.start(lambda: stubborn("a"), "job a")
        bench.start(lambda: stubborn("b"), "job b")
        await wait_all_tasks_blocked()
        bench.call(lambda: events.append("never"), "job c")
        bench.call(lambda: events.append("never"), "job d")
        assert bench.permits.in_use == 2
        assert bench.workers.cancel_remaining() == ["job a", "job b", "job c", "job d"]
        assert bench.permits.in_use == 0
    assert sorted(events) == ["a unwound", "b unwound"]
    # The nursery has ended although nobody cancelled it: run() returned.
    assert bench.workers.statistics().workers == 0


async def test_a_handler_may_end_the_workers_it_runs_on() -> None:
    cut: list[str] = []
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.workers.run)
        bench.call(lambda: cut.extend(bench.workers.cancel_remaining()), "ends it")
        bench.call(lambda: cut.append("never"), "after")
    assert cut == ["ends it", "after"]
    assert bench.permits.in_use == 0


async def test_nothing_starts_after_the_end() -> None:
    ran: list[str] = []
    async with running() as bench:
        await bench.idle()
    bench.call(lambda: ran.append("x"))
    assert bench.permits.in_use == 0
    assert bench.workers.queued == 0
    await wait_all_tasks_blocked()
    assert ran == []


async def test_cancelling_run_from_outside_returns_every_permit() -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.workers.run)
        bench.start(trio.sleep_forever)
        await wait_all_tasks_blocked()
        for _ in range(5):
            bench.start(trio.sleep_forever)
        nursery.cancel_scope.cancel()
    assert bench.permits.in_use == 0
    assert bench.workers.statistics().workers == 0


async def test_handlers_that_use_scopes_nurseries_and_shields_work_as_in_any_task(autojump_clock: MockClock) -> None:
    seen: list[Any] = []

    async def handler() -> None:
        with trio.move_on_after(1) as scope:
            await trio.sleep_forever()
        seen.append(scope.cancelled_caught)
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(1):
                await trio.sleep(2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 3)
        seen.append(trio.current_time())

    async with running() as bench:
        began = trio.current_time()
        bench.start(handler)
        await bench.idle()
    assert seen == [True, began + 5]


async def test_handlers_may_use_threads() -> None:
    seen: list[str] = []

    async def handler() -> None:
        seen.append(await trio.to_thread.run_sync(lambda: "thread"))
        seen.append(await trio.to_thread.run_sync(trio.from_thread.run_sync, lambda: "loop"))

    async with running() as bench:
        bench.start(handler)
        await bench.idle()
    assert seen == ["thread", "loop"]


async def test_the_repr_is_an_operators_view() -> None:
    async with running() as bench:
        bench.start(trio.sleep_forever)
        await wait_all_tasks_blocked()
        bench.call(lambda: None)
        assert repr(bench.workers) == "<Workers 1 queued, 1 running, 0 spare>"
        await wait_all_tasks_blocked()
        assert repr(bench.workers) == "<Workers 0 queued, 1 running, 1 spare>"


@pytest.mark.parametrize("seed", range(30))
async def test_no_job_is_lost_doubled_or_left_waiting(seed: int, autojump_clock: MockClock) -> None:
    """Whatever jobs do and whenever they are submitted, each begins once, ends once, and the queue never stalls."""
    dice = random.Random(seed)
    begun: list[int] = []
    ended: list[int] = []
    expected = 0

    async with running() as bench:

        def submit(depth: int) -> None:
            nonlocal expected
            number, expected = expected, expected + 1
            steps = dice.choice([0, 0, 0, 1, 2, 5])
            children = dice.choice([0, 0, 1, 2]) if depth < 3 else 0

            def begin() -> None:
                begun.append(number)
                for _ in range(children):
                    submit(depth + 1)

            async def handler() -> None:
                begin()
                for _ in range(steps):
                    if dice.random() < 0.5:
                        await trio.sleep(dice.choice([0, 0.001, 0.1]))
                    else:
                        await trio.lowlevel.checkpoint()
                    if dice.random() < 0.1 and depth < 3:
                        submit(3)
                ended.append(number)
                if dice.random() < 0.1:
                    raise ValueError("by chance")

            def plain() -> None:
                begin()
                ended.append(number)

            bench.submit(AsyncJob(handler) if dice.random() < 0.7 else SyncJob(plain))

        for _ in range(40):
            for _ in range(dice.randint(0, 8)):
                submit(0)
            await trio.sleep(dice.choice([0, 0, 0.001, 0.05]))
        # Nothing but the jobs' own sleeping may be left to wait for.
        began = trio.current_time()
        await bench.idle()
        assert trio.current_time() - began < 5
    assert begun == sorted(begun) == list(range(expected))
    assert sorted(ended) == list(range(expected))
    assert bench.workers.statistics().completed == expected > 40
