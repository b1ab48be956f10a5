"""What one peer's flood does to another peer's requests: a node, a peer that measures, and a peer that floods.

Prints one JSON line: p99_us and p50_us of one request at a time, saturation_per_s (one-way messages that the node
handled when it was sent as many as go out), flood_per_s (those it handled while the requests were measured). With
``--share 0`` the flooder is admitted and silent: that is the baseline.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from multiprocessing.connection import Connection

import trio

import zlinkpy as zl
from zlinkpy.messages import Codecs

MESH = "bench"
CHANNEL = "bench"
PAYLOAD = b"x" * 128
SETTLE_SECONDS = 0.5
SATURATE_SECONDS = 1.5


@zl.message
class Echoed:
    data: bytes
    notes: int


@zl.message
class Echo(zl.Request[Echoed]):
    data: bytes


@zl.message
class Note:
    data: bytes


def serve(pipe: Connection) -> None:
    """The node under the flood."""
    host = zl.Host()
    mesh = host.mesh(MESH)
    mesh.serve_channel(CHANNEL)
    notes = 0

    @mesh.on_channel_request(CHANNEL)
    async def echo(request: Echo) -> Echoed:
        return Echoed(request.data, notes)

    @mesh.on_node_send
    def note(message: Note) -> None:
        nonlocal notes
        notes += 1

    async def main() -> None:
        async with host.run() as rt:
            pipe.send(rt.endpoint(MESH))
            await trio.to_thread.run_sync(pipe.recv)

    trio.run(main)


class Flood:
    """The flooding process."""

    def __init__(self, endpoint: str) -> None:
        payload = Codecs().default.encode(Note(PAYLOAD)).hex()
        arguments = ["--mesh", MESH, "--packet", "Note", "--payload", payload]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.flooder", endpoint, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit("the flooder was not admitted")

    def send(self, rate: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rate}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.communicate(timeout=10)


async def measure(endpoint: str, flood: Flood, share: float, requests: int) -> dict[str, float]:
    """The peer whose requests count."""
    host = zl.Host()
    mesh = host.mesh(MESH, peers=[endpoint])
    mesh.use_channel(CHANNEL)
    async with host.run() as rt:
        with trio.fail_after(10):
            await rt.wait_ready_target(CHANNEL)

        async def ask() -> Echoed:
            return await rt.request_to_channel(CHANNEL, Echo(PAYLOAD), timeout=60)

        async def handled(seconds: float) -> float:
            """Notes per second that the node handles."""
            first, start = (await ask()).notes, time.perf_counter()
            await trio.sleep(seconds)
            last, end = (await ask()).notes, time.perf_counter()
            return (last - first) / (end - start)

        async def silence() -> None:
            flood.send("0")
            before = -1
            while (now := (await ask()).notes) != before:
                before = now
                await trio.sleep(0.1)

        for _ in range(500):
            await ask()
        flood.send("max")
        await trio.sleep(SETTLE_SECONDS)
        saturation = await handled(SATURATE_SECONDS)
        await silence()
        flood.send(f"{saturation * share:.0f}")
        await trio.sleep(SETTLE_SECONDS)
        laps = []
        first, began = (await ask()).notes, time.perf_counter()
        for _ in range(requests):
            start = time.perf_counter()
            await ask()
            laps.append(time.perf_counter() - start)
        rate = ((await ask()).notes - first) / (time.perf_counter() - began)
        is_ready = rt.mesh_status(MESH).ready_peers == 1
    if not is_ready:
        raise SystemExit("the flood cost the measuring peer its connection")
    laps.sort()
    return {
        "p50_us": round(laps[len(laps) // 2] * 1e6),
        "p99_us": round(laps[len(laps) * 99 // 100] * 1e6),
        "saturation_per_s": round(saturation),
        "flood_per_s": round(rate),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.5, help="of the node's saturation rate")
    parser.add_argument("--requests", type=int, default=4000)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    endpoint = ours.recv()
    flood = Flood(endpoint)
    try:
        figures = trio.run(measure, endpoint, flood, options.share, options.requests)
    finally:
        flood.close()
    ours.send("stop")
    server.join(10)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
