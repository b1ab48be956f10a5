"""Jobs of the tests."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from zlinkpy.execution import JobQueueOptions, Permits, Workers


class AsyncJob:
    """A job that awaits what it is given."""

    def __init__(self, function: Callable[[], Awaitable[Any]], label: str = "async") -> None:
        self.function = function
        self.label = label

    async def run(self) -> None:
        await self.function()


class SyncJob:
    """A job that calls what it is given."""

    def __init__(self, function: Callable[[], Any], label: str = "sync") -> None:
        self.function = function
        self.label = label

    def run(self) -> None:
        self.function()


class Bench:
    """Workers with their permits; every job is submitted with one."""

    def __init__(self, **options: Any) -> None:
        self.permits = Permits(JobQueueOptions(max_queued_application_jobs=1_000_000))
        self.workers = Workers(self.permits, **options)

    def submit(self, job: AsyncJob | SyncJob) -> None:
        assert self.permits.try_take()
        self.workers.submit(job)

    def call(self, function: Callable[[], Any], label: str = "sync") -> None:
        self.submit(SyncJob(function, label))

    def start(self, function: Callable[[], Awaitable[Any]], label: str = "async") -> None:
        self.submit(AsyncJob(function, label))

    async def idle(self) -> None:
        assert await self.workers.drain(trio.current_time() + 1000)


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Bench]:
    """Workers that run; on the way out everything must have ended, with every permit returned."""
    bench = Bench(**options)
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.workers.run)
        yield bench
        bench.workers.cancel_remaining()
    statistics = bench.workers.statistics()
    assert (statistics.queued, statistics.running, statistics.workers, statistics.spares) == (0, 0, 0, 0)
    assert bench.permits.in_use == 0


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The texts of what was logged as an error."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
