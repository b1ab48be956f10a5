"""EVENT signals from one node to another, two processes on one machine: latency at handler entry, and losses.

usage: python -m benchmarks.subjects.session_bus --bus redis|mesh --load paced|offered|closed
           [--seconds 5] [--rate 6300]
Prints one JSON line: p50_ms, p95_ms, p99_ms, lost, events_per_s. ``redis`` starts a server of its own unless --url
names one; ``mesh`` is two hosts over loopback TCP. `benchmarks.baselines.resp_sockets` does the same with bare sockets.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import trio

import zlinkpy as zl
from benchmarks.load import TICK, WARM_UP, Load, arguments, figures, loads
from zlinkpy.location.embedded_server import EmbeddedServer
from zlinkpy.sessions.mesh_bus import MeshSignalBus
from zlinkpy.sessions.redis_bus import RedisSignalBus
from zlinkpy.sessions.spi import SessionSignalBus
from zlinkpy.sessions.types import SessionSignal, SignalKind

MESH = "bench"
SESSION = "bench"
SILENCE = 2.0
"""Seconds without an event after which what has not come is lost."""


@asynccontextmanager
async def open_bus(kind: str, place: str) -> AsyncIterator[tuple[SessionSignalBus, str]]:
    """A bus, and where the other process finds it."""
    if kind == "redis":
        async with RedisSignalBus(place) as bus:
            yield bus, place
        return
    host = zl.Host()
    mesh = host.mesh(MESH, peers=[place] if place else [])
    mesh_bus = MeshSignalBus(mesh)
    async with host.run() as rt, mesh_bus:
        yield mesh_bus, rt.endpoint(MESH)


def hear(kind: str, place: str, expected: int, pipe: Connection) -> None:
    """The subscribing process: says when it listens, and its figures in the end."""

    async def main() -> None:
        latencies: list[float] = []
        last = time.perf_counter()
        everything = trio.Event()

        def handler(signal: SessionSignal) -> None:
            nonlocal last
            last = time.perf_counter()
            if signal.payload["seq"] >= 0:
                latencies.append(last - signal.payload["at"])
                if len(latencies) == expected:
                    everything.set()

        async with open_bus(kind, place) as (bus, _):
            if isinstance(bus, MeshSignalBus):
                while not bus.statistics().peers:  # noqa: ASYNC110 - what is waited for has no event
                    await trio.sleep(0.01)
            await bus.subscribe(SESSION, handler)
            pipe.send("listening")
            while not everything.is_set():
                with trio.move_on_after(0.1):
                    await everything.wait()
                if latencies and time.perf_counter() - last > SILENCE:
                    break
            pipe.send((latencies, last))
            await trio.to_thread.run_sync(pipe.recv)

    trio.run(main)


def event(number: int) -> SessionSignal:
    """A piece of output, as a relay would send it."""
    payload: dict[str, Any] = {"type": "OutputDelta", "ts": 1_700_000_000_000, "ctx": "", "iter": 1, "turn": "t" * 36}
    payload |= {"seq": number, "text": "a piece of the answer", "at": time.perf_counter()}
    return SessionSignal(SESSION, SignalKind.EVENT, "one", payload, "one")


async def publish(bus: SessionSignalBus, load: Load) -> float:
    """Publish the load; when it began."""
    for number in range(-WARM_UP, 0):
        await bus.publish(event(number))
    begin = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for numbers in load.ticks(lambda: time.perf_counter() - begin):
            if load.due is None:
                await bus.publish_all([event(number) for number in numbers])
            else:
                if numbers:
                    # What is due, as a relay would hand it over; nobody waits for the one before.
                    nursery.start_soon(bus.publish_all, [event(number) for number in numbers])
                await trio.sleep(TICK)
    return begin


async def measure(kind: str, place: str, load: Load) -> dict[str, float]:
    """The publishing process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()

    async def answer() -> Any:
        while not ours.poll():
            await trio.lowlevel.wait_readable(ours)
        return ours.recv()

    async with open_bus(kind, place) as (bus, here):
        listener = context.Process(target=hear, args=(kind, here, load.events, theirs), daemon=True)
        listener.start()
        with trio.fail_after(30):
            await answer()
        begin = await publish(bus, load)
        with trio.fail_after(30):
            latencies, last = await answer()
        ours.send("done")
        await trio.to_thread.run_sync(listener.join, 5)
    return figures(latencies, load.events, last - begin)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--bus", choices=["redis", "mesh"], default="redis")
    parser.add_argument("--url", help="of a Redis or Valkey to use")
    options = parser.parse_args()
    load = loads(options.load, options.seconds, options.rate)
    if options.bus == "mesh" or options.url:
        print(json.dumps(trio.run(measure, options.bus, options.url or "", load)))
        return
    with tempfile.TemporaryDirectory(prefix="zl-bench-") as directory:
        server = EmbeddedServer(Path(directory))
        server.start()
        try:
            print(json.dumps(trio.run(measure, "redis", server.url, load)))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
