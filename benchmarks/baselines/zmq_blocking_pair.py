"""Baseline: one-way messages over a blocking DEALER-ROUTER pair, two processes, loopback TCP.

usage: zmq_blocking_pair.py [--messages 200000] [--size 128]
Prints one JSON line: {"messages_per_s": ...}, counted where they arrive, from the first to the last.

Plain `send_multipart` and `recv_multipart` of two frames (a counter and the payload), no event loop: what pyzmq does
when nothing stands around it. DEALER-ROUTER and not PUSH-PULL, because a ROUTER is what a mesh receives on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time

import zmq

WARM_UP = 2000


def send(port: int, messages: int, size: int) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(f"tcp://127.0.0.1:{port}")
        payload = b"x" * size
        for number in range(WARM_UP + messages):
            socket.send_multipart([number.to_bytes(8, "big"), payload])
        socket.recv()  # everything arrived


def receive(messages: int, size: int) -> dict[str, int]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        sender = multiprocessing.Process(target=send, args=(port, messages, size), daemon=True)
        sender.start()
        for _ in range(WARM_UP):
            socket.recv_multipart()
        start = time.perf_counter()
        for _ in range(messages):
            peer, _, _ = socket.recv_multipart()
        elapsed = time.perf_counter() - start
        socket.send_multipart([peer, b""])
        sender.join(timeout=10)
    return {"messages_per_s": round(messages / elapsed)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=128)
    args = parser.parse_args()
    print(json.dumps(receive(args.messages, args.size)))


if __name__ == "__main__":
    main()
