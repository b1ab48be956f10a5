"""Two hosts in two processes over loopback TCP: channel requests with 64 callers, one request at a time, one-way sends.

Prints one JSON line: rps, p50_us, p99_us, messages_per_s. Messages are typed, carry 128 bytes and run a handler; a
request is answered by a typed reply. Nothing of the framework is switched off.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from multiprocessing.connection import Connection

import trio

import zlinkpy as zl

CHANNEL = "bench"
MESH = "bench"
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


def serve(pipe: Connection) -> None:
    """The serving process: listens, tells its endpoint, ends when the pipe says so."""
    host = zl.Host()
    mesh = host.mesh(MESH)
    mesh.serve_channel(CHANNEL)
    received = 0
    waiting: list[tuple[int, trio.Event]] = []

    @mesh.on_channel_request(CHANNEL)
    async def echo(request: Echo) -> Echoed:
        return Echoed(request.data)

    @mesh.on_channel_send(CHANNEL)
    def note(message: Note) -> None:
        nonlocal received
        received += 1
        if waiting and received >= waiting[0][0]:
            waiting.pop()[1].set()

    @mesh.on_channel_request(CHANNEL)
    async def count(request: Count) -> Counted:
        if received < request.expected:
            event = trio.Event()
            waiting.append((request.expected, event))
            await event.wait()
        return Counted(received)

    async def main() -> None:
        async with host.run() as rt:
            pipe.send(rt.endpoint(MESH))
            await trio.to_thread.run_sync(pipe.recv)

    trio.run(main)


async def measure(endpoint: str, callers: int, requests: int, sends: int) -> dict[str, float]:
    """The calling process."""
    host = zl.Host()
    mesh = host.mesh(MESH, peers=[endpoint])
    mesh.use_channel(CHANNEL)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--sends", type=int, default=100_000)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    figures = trio.run(measure, ours.recv(), options.callers, options.requests, options.sends)
    ours.send("stop")
    server.join(10)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
