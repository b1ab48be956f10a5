"""Baseline: pub/sub over one bare socket on each side, two processes and a server on one machine.

usage: resp_sockets.py --load paced|offered|closed [--seconds 5] [--rate 6300]
Prints one JSON line: p50_ms, p95_ms, p99_ms, lost, events_per_s. No client library, no event loop, no codec: what this
takes is the server's and the machine's. Not what anybody should build: nothing is checked.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import struct
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.load import TICK, WARM_UP, Load, arguments, figures, loads
from zlinkpy.location.embedded_server import EmbeddedServer

CHANNEL = b"bench"
SIZE = 200
"""Bytes of a message; about what a signal takes."""
STAMP = struct.Struct(">qd")


def connect(path: str) -> socket.socket:
    """A connection to the server."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    return link


def command(*words: bytes) -> bytes:
    """A command as the server reads it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def hear(path: str, expected: int, pipe: Connection) -> None:
    """The subscribing process."""
    with connect(path) as link:
        link.sendall(command(b"SUBSCRIBE", CHANNEL))
        link.recv(1024)
        link.settimeout(2.0)
        pipe.send("listening")
        head = b"*3\r\n$7\r\nmessage\r\n$%d\r\n%s\r\n$%d\r\n" % (len(CHANNEL), CHANNEL, SIZE)
        size = len(head) + SIZE + 2
        latencies: list[float] = []
        last = time.perf_counter()
        buffer = b""
        try:
            while len(latencies) < expected:
                buffer += link.recv(65536)
                now = time.perf_counter()
                while len(buffer) >= size:
                    number, at = STAMP.unpack_from(buffer, len(head))
                    buffer = buffer[size:]
                    if number >= 0:
                        latencies.append(now - at)
                        last = now
        except TimeoutError:
            pass
        pipe.send((latencies, last))


def publish(link: socket.socket, numbers: range) -> None:
    """Publish and read the answers."""
    stamps = (STAMP.pack(number, time.perf_counter()) for number in numbers)
    link.sendall(b"".join(command(b"PUBLISH", CHANNEL, stamp.ljust(SIZE, b".")) for stamp in stamps))
    missing = len(numbers) * 4
    while missing > 0:
        missing -= len(link.recv(65536))


def measure(path: str, load: Load) -> dict[str, float]:
    """The publishing process."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    listener = multiprocessing.get_context("spawn").Process(target=hear, args=(path, load.events, theirs), daemon=True)
    listener.start()
    ours.recv()
    with connect(path) as link:
        for number in range(-WARM_UP, 0):
            publish(link, range(number, number + 1))
        begin = time.perf_counter()
        for numbers in load.ticks(lambda: time.perf_counter() - begin):
            if numbers:
                publish(link, range(numbers[0], numbers[-1] + 1))
            if load.due is not None:
                time.sleep(TICK)
        latencies, last = ours.recv()
    listener.join(5)
    return figures(latencies, load.events, last - begin)


def main() -> None:
    options = arguments(__doc__).parse_args()
    load = loads(options.load, options.seconds, options.rate)
    with tempfile.TemporaryDirectory(prefix="zl-bench-") as directory:
        server = EmbeddedServer(Path(directory))
        server.start()
        try:
            print(json.dumps(measure(server.socket_path, load)))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
