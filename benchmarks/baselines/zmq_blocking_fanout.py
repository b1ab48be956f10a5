"""Baseline: events over blocking PUB/SUB sockets, one publisher and three subscribers, four processes, loopback TCP.

usage: zmq_blocking_fanout.py [--events 60000] [--size 128]
Prints one JSON line: {"deliveries_per_s": ...}: events times subscribers, from the first to the last.

PUB drops what a subscriber has no room for, so the publisher goes in windows: it sends one, waits until every
subscriber has said (over a pipe) that it has all of it, and sends the next. Nothing is lost, and what is measured is
the work. `benchmarks.subjects.fanout` does the same with the same windows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from multiprocessing.connection import Connection

import zmq

SUBSCRIBERS = 3
WINDOW = 500
TOPIC = b"bench"


def subscribe(port: int, pipe: Connection) -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.subscribe(TOPIC)
        count = 0
        while True:
            _, number, _ = socket.recv_multipart()
            if not number:
                pipe.send("connected")
                continue
            count += 1
            if count % WINDOW == 0:
                pipe.send(count)


def publish(events: int, size: int) -> dict[str, int]:
    payload = b"x" * size
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        pipes = []
        processes = []
        for _ in range(SUBSCRIBERS):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=subscribe, args=(port, theirs), daemon=True)
            process.start()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            while not pipe.poll(0.05):
                socket.send_multipart([TOPIC, b"", b""])
            pipe.recv()
        time.sleep(0.3)
        for pipe in pipes:
            while pipe.poll():
                pipe.recv()
        start = time.perf_counter()
        for number in range(0, events, WINDOW):
            for each in range(number, number + WINDOW):
                socket.send_multipart([TOPIC, each.to_bytes(8, "big"), payload])
            for pipe in pipes:
                pipe.recv()
        elapsed = time.perf_counter() - start
        for process in processes:
            process.kill()
    return {"deliveries_per_s": round(events * SUBSCRIBERS / elapsed)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--size", type=int, default=128)
    args = parser.parse_args()
    print(json.dumps(publish(args.events - args.events % WINDOW, args.size)))


if __name__ == "__main__":
    main()
