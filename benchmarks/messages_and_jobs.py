"""What a message and a turn cost inside one process: coding beside bare msgpack, and turns per second of the workers.

usage: python -m benchmarks.messages_and_jobs

Prints one line per measure, the best of five rounds. Not one of the comparisons of `make bench`: there is no baseline
of another project to compare a turn with, so the numbers are for finding out what a change did.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgpack
import trio

from zlinkpy.execution import JobQueueOptions, Permits, Workers
from zlinkpy.messages import Codec, message

ROUNDS = 5
CALLS = 100_000


@message
class Small:
    """Two fields: the size of a typical request."""

    cell: int
    by: str


@message
class Nested:
    """Ten messages in a list."""

    seats: list[Small]
    note: str | None = None


def microseconds(function: Callable[[], object], calls: int = CALLS) -> float:
    """The best time of one call."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(calls):
            function()
        best = min(best, time.perf_counter() - began)
    return best / calls * 1e6


def codec() -> None:
    """Encode and decode, each beside msgpack on the same map."""
    codec = Codec()
    for value in (Small(4, "Ann"), Nested([Small(number, "Ann") for number in range(10)])):
        payload = codec.encode(value)
        plain = msgpack.unpackb(payload)
        decode = codec.decoder_for(type(value))
        for name, ours, bare in (
            ("encode", lambda v=value: codec.encode(v), lambda p=plain: msgpack.packb(p)),
            ("decode", lambda d=decode, p=payload: d(p), lambda p=payload: msgpack.unpackb(p)),
        ):
            print(
                f"{type(value).__name__} {name}: {microseconds(ours):.2f} us, msgpack alone {microseconds(bare):.2f} us"
            )


class Turn:
    """A job around one handler."""

    label = "benchmarks:turn"

    def __init__(self, handler: Callable[[], object], *, awaits: bool) -> None:
        self._handler = handler
        self.run = self._run_async if awaits else self._run_sync

    async def _run_async(self) -> None:
        await self._handler()  # type: ignore[misc]

    def _run_sync(self) -> None:
        self._handler()


async def nothing() -> None:
    """A handler that does not wait."""


async def turns() -> None:
    """Turns per second of one queue, submission included."""
    permits = Permits(JobQueueOptions(max_queued_application_jobs=CALLS))
    workers = Workers(permits)
    async with trio.open_nursery() as nursery:
        await nursery.start(workers.run)
        for name, turn, count in (
            ("a sync handler", Turn(lambda: None, awaits=False), CALLS),
            ("an async handler that does not wait", Turn(nothing, awaits=True), CALLS),
            ("an async handler with one checkpoint", Turn(trio.lowlevel.checkpoint, awaits=True), CALLS // 10),
        ):
            best = float("inf")
            for _ in range(ROUNDS):
                began = time.perf_counter()
                for _ in range(count):
                    permits.try_take()
                    workers.submit(turn)
                await workers.drain(trio.current_time() + 60)
                best = min(best, time.perf_counter() - began)
            print(f"{name}: {count / best:,.0f} turns/s")
        workers.cancel_remaining()


if __name__ == "__main__":
    codec()
    trio.run(turns)
