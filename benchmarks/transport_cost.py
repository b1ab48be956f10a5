"""What a record costs in the transport, in microseconds of the loop's thread: `python -m benchmarks.transport_cost`.

Two processes over loopback TCP, records of three frames (20 bytes, 24 bytes, payload). One sends as fast as it can, the
other counts; then the same with the accepted end sending. The figures are the thread's own CPU time per record,
everything included: `send` and waiting for room on one side; turn, sink call and task switches on the other. libzmq's
I/O threads are left out. Beside them stands what pyzmq alone takes for the same frames, in a loop without any event
loop.

usage: python -m benchmarks.transport_cost [--records 200000] [--size 128]
Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe

import trio
import zmq

from zlinkpy.entropy import SystemEntropy
from zlinkpy.transport import Connection, ZmqTransport

HEAD = [b"h" * 20, b"m" * 24]
HELLO = [b"hello"]


class Counter:
    """A sink that counts, and takes the time of the first and the last record."""

    def __init__(self, expected: int) -> None:
        self.opened_event = trio.Event()
        self.greeted = trio.Event()
        self.done = trio.Event()
        self.connection: Connection | None = None
        self.spent = 0.0
        self._left = expected
        self._expected = expected

    def opened(self, connection: Connection) -> None:
        self.connection = connection
        self.opened_event.set()

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        if frames == HELLO:
            self.greeted.set()
            return
        if self._left == self._expected:
            self.spent = -time.thread_time()
        self._left -= 1
        if not self._left:
            self.spent += time.thread_time()
            self.done.set()

    def closed(self, connection: Connection, cause: str) -> None:
        self.connection = None


async def send_all(connection: Connection, record: list[bytes], records: int) -> float:
    """Send and return the thread's CPU time."""
    started = time.thread_time()
    send = connection.send
    for number in range(records):
        while not send(record):
            await connection.wait_writable()
        if number % 64 == 0:
            await trio.lowlevel.checkpoint()
    return time.thread_time() - started


async def accept_side(pipe: Pipe, records: int, size: int) -> None:
    sink = Counter(records)
    async with ZmqTransport(entropy=SystemEntropy()) as transport:
        listener = await transport.listen("tcp://127.0.0.1:0", lambda _: sink)
        pipe.send(listener.endpoint)
        await sink.done.wait()
        assert sink.connection is not None
        spent = await send_all(sink.connection, [*HEAD, b"x" * size], records)
        pipe.send((sink.spent, spent))
        await trio.to_thread.run_sync(pipe.recv)


async def dial_side(pipe: Pipe, records: int, size: int) -> dict[str, float]:
    sink = Counter(records)
    async with ZmqTransport(entropy=SystemEntropy()) as transport:
        connection = transport.dial(pipe.recv(), sink)
        await sink.opened_event.wait()
        connection.send(HELLO)
        sent = await send_all(connection, [*HEAD, b"x" * size], records)
        await sink.done.wait()
        accepted_received, accepted_sent = pipe.recv()
        pipe.send("leave")
    return {
        "dialled_send_us": sent / records * 1e6,
        "accepted_receive_us": accepted_received / records * 1e6,
        "accepted_send_us": accepted_sent / records * 1e6,
        "dialled_receive_us": sink.spent / records * 1e6,
    }


def bare(records: int, size: int) -> dict[str, float]:
    """The same frames through pyzmq alone, sent and then received by one thread."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    near, far = context.socket(zmq.DEALER), context.socket(zmq.ROUTER)
    try:
        for socket in (near, far):
            socket.linger = 0
            socket.set_hwm(0)
        near.connect(f"tcp://127.0.0.1:{far.bind_to_random_port('tcp://127.0.0.1')}")
        payload = b"x" * size
        more, last = int(zmq.SNDMORE), 0
        first, second = HEAD
        started = time.thread_time()
        for _ in range(records):
            near.send(first, more)
            near.send(second, more)
            near.send(payload, last)
        sent = time.thread_time() - started
        started = time.thread_time()
        receive, get, rcvmore = far.recv, far.get, int(zmq.RCVMORE)
        for _ in range(records):
            receive()
            receive()
            while get(rcvmore):
                receive()
        received = time.thread_time() - started
    finally:
        near.close()
        far.close()
        context.term()
    return {"pyzmq_send_us": sent / records * 1e6, "pyzmq_receive_us": received / records * 1e6}


def other_process(pipe: Pipe, records: int, size: int) -> None:
    trio.run(accept_side, pipe, records, size)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transport_cost")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=128, help="bytes of payload")
    options = parser.parse_args(arguments)
    near, far = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=other_process, args=(far, options.records, options.size), daemon=True
    )
    process.start()
    figures = trio.run(dial_side, near, options.records, options.size)
    process.join()
    figures |= bare(options.records, options.size)
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
