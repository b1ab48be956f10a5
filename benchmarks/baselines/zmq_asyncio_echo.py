"""Baseline: an idiomatic zmq.asyncio DEALER-ROUTER echo, two processes, loopback TCP.

usage: zmq_asyncio_echo.py [--callers 64] [--requests 20000] [--size 128]
Prints one JSON line: {"rps": ..., "p50_us": ..., "p99_us": ...} (rps with that many callers, latencies with one).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time

import zmq
import zmq.asyncio

WARM_UP = 500
LAPS = 2000


def serve(ports: multiprocessing.Queue[int]) -> None:
    async def main() -> None:
        socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
        ports.put(socket.bind_to_random_port("tcp://127.0.0.1"))
        while True:
            await socket.send_multipart(await socket.recv_multipart())

    asyncio.run(main())


async def measure(port: int, callers: int, requests: int, size: int) -> dict[str, int]:
    socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{port}")
    pending: dict[bytes, asyncio.Future[bytes]] = {}
    payload = b"x" * size
    counter = 0

    async def receive() -> None:
        while True:
            key, data = await socket.recv_multipart()
            pending.pop(key).set_result(data)

    async def call() -> bytes:
        nonlocal counter
        counter += 1
        key = counter.to_bytes(8, "big")
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        pending[key] = future
        await socket.send_multipart([key, payload])
        return await future

    async def caller(count: int) -> None:
        for _ in range(count):
            await call()

    receiver = asyncio.create_task(receive())
    await caller(WARM_UP)
    count = requests // callers
    start = time.perf_counter()
    await asyncio.gather(*(caller(count) for _ in range(callers)))
    rps = count * callers / (time.perf_counter() - start)
    laps = []
    for _ in range(LAPS):
        start = time.perf_counter()
        await call()
        laps.append(time.perf_counter() - start)
    laps.sort()
    receiver.cancel()
    return {
        "rps": round(rps),
        "p50_us": round(laps[LAPS // 2] * 1e6),
        "p99_us": round(laps[LAPS * 99 // 100] * 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--size", type=int, default=128)
    args = parser.parse_args()
    ports: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(ports,), daemon=True)
    server.start()
    print(json.dumps(asyncio.run(measure(ports.get(timeout=10), args.callers, args.requests, args.size))))
    server.terminate()


if __name__ == "__main__":
    main()
