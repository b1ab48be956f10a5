"""One node with ten idle peers, each in a process of its own: processor time and memory of the node.

Prints one JSON line: cpu_percent (of one core, over the whole time measured) and rss_mb (resident memory at its end).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection
from pathlib import Path

import trio

import zlinkpy as zl

MESH = "idle"
CHANNEL = "idle"


def peer(pipe: Connection) -> None:
    """A peer: listens, tells where, ends when the pipe says so."""
    host = zl.Host()
    mesh = host.mesh(MESH)
    mesh.serve_channel(CHANNEL)

    async def main() -> None:
        async with host.run() as rt:
            pipe.send(rt.endpoint(MESH))
            await trio.to_thread.run_sync(pipe.recv)

    trio.run(main)


def resident_mb() -> float:
    """This process's resident memory."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def measure(endpoints: list[str], seconds: float) -> dict[str, float]:
    """Connect to everybody, then do nothing for a while."""
    host = zl.Host()
    mesh = host.mesh(MESH, peers=endpoints)
    mesh.use_channel(CHANNEL)
    async with host.run() as rt:
        with trio.fail_after(30):
            async for _ in rt.observe():
                if rt.mesh_status(MESH).ready_peers == len(endpoints):
                    break
        start, used = time.perf_counter(), time.process_time()
        await trio.sleep(seconds)
        used = time.process_time() - used
        elapsed = time.perf_counter() - start
        if rt.mesh_status(MESH).ready_peers != len(endpoints):
            raise RuntimeError("a peer was lost while nothing happened")
        return {"cpu_percent": round(100 * used / elapsed, 3), "rss_mb": round(resident_mb(), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=11.0)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    for _ in range(options.peers):
        ours, theirs = context.Pipe()
        process = context.Process(target=peer, args=(theirs,), daemon=True)
        process.start()
        processes.append(process)
        pipes.append(ours)
    figures = trio.run(measure, [pipe.recv() for pipe in pipes], options.seconds)
    for pipe in pipes:
        pipe.send("stop")
    for process in processes:
        process.join(10)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
