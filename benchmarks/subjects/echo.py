"""What the echo subjects of both topologies share: messages, handlers, the calling process and the two processes.

Prints one JSON line: rps, p50_us, p99_us, messages_per_s. Messages are typed, carry 128 bytes and run a handler; a
request is answered by a typed reply. Nothing of the framework is switched off.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import trio

import zlinkpy as zl

CHANNEL = "bench"
PAYLOAD = b"x" * 128


@zl.message
class Echoed:
    data: bytes


@zl.message
class Echo(zl.Request[Echoed]):
    data: bytes


@zl.message
class Note:
    data: bytes


@zl.message
class Counted:
    count: int


@zl.message
class Count(zl.Request[Counted]):
    expected: int


Decorator = Callable[[Any], Any]


def add_handlers(on_request: Decorator, on_send: Decorator) -> None:
    """Register the three handlers of a server."""
    received = 0
    waiting: list[tuple[int, trio.Event]] = []

    @on_request
    async def echo(request: Echo) -> Echoed:
        return Echoed(request.data)

    @on_send
    def note(message: Note) -> None:
        nonlocal received
        received += 1
        if waiting and received >= waiting[0][0]:
            waiting.pop()[1].set()

    @on_request
    async def count(request: Count) -> Counted:
        if received < request.expected:
            event = trio.Event()
            waiting.append((request.expected, event))
            await event.wait()
        return Counted(received)


def serve(host: zl.Host, endpoint: Callable[[zl.Runtime], str], pipe: Connection) -> None:
    """The serving process: tells its endpoint, ends when the pipe says so."""

    async def main() -> None:
        async with host.run() as rt:
            pipe.send(endpoint(rt))
            await trio.to_thread.run_sync(pipe.recv)

    trio.run(main)


async def measure(host: zl.Host, callers: int, requests: int, sends: int) -> dict[str, float]:
    """The calling process; `host` can call CHANNEL."""
    async with host.run() as rt:
        with trio.fail_after(10):
            await rt.wait_ready_target(CHANNEL)

        async def call(times: int) -> None:
            for _ in range(times):
                await rt.request_to_channel(CHANNEL, Echo(PAYLOAD))

        await call(500)
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(callers):
                nursery.start_soon(call, requests // callers)
        rps = requests / (time.perf_counter() - start)
        laps = []
        for _ in range(2000):
            start = time.perf_counter()
            await rt.request_to_channel(CHANNEL, Echo(PAYLOAD))
            laps.append(time.perf_counter() - start)
        laps.sort()
        start = time.perf_counter()
        for _ in range(sends):
            await rt.send_to_channel(CHANNEL, Note(PAYLOAD))
        counted = await rt.request_to_channel(CHANNEL, Count(sends), timeout=60)
        rate = counted.count / (time.perf_counter() - start)
    return {
        "rps": round(rps),
        "p50_us": round(laps[len(laps) // 2] * 1e6),
        "p99_us": round(laps[len(laps) * 99 // 100] * 1e6),
        "messages_per_s": round(rate),
    }


def run(description: str | None, serving: Callable[[Connection], None], caller: Callable[[str], zl.Host]) -> None:
    """Run a subject: `serving` in a process of its own, `caller` makes the calling host for its endpoint."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--sends", type=int, default=100_000)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serving, args=(theirs,), daemon=True)
    server.start()
    figures = trio.run(measure, caller(ours.recv()), options.callers, options.requests, options.sends)
    ours.send("stop")
    server.join(10)
    print(json.dumps(figures))
