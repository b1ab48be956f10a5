"""Events from one publisher to three subscribers, four processes, loopback TCP; typed messages, handlers run.

Prints one JSON line: deliveries_per_s, events times subscribers. In windows like its baseline, so that nothing is
lost.
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
TOPIC = "bench"
SUBSCRIBERS = 3
WINDOW = 500
PAYLOAD = b"x" * 128


@zl.message
class Event:
    data: bytes


def subscribe(endpoint: str, pipe: Connection) -> None:
    """A subscriber: says when it hears the publisher, and after every window; ends when it is killed."""
    host = zl.Host()
    feed = host.fanout_subscriber(CHANNEL, publishers=[endpoint])
    count = 0

    @feed.on_event(TOPIC)
    def received(event: Event) -> None:
        nonlocal count
        count += 1
        if count % WINDOW == 0:
            pipe.send(count)

    async def main() -> None:
        async with host.run() as rt:
            await rt.wait_ready_publisher(CHANNEL)
            pipe.send("connected")
            await trio.sleep_forever()

    trio.run(main)


async def publish(events: int) -> dict[str, float]:
    """The publishing process."""
    host = zl.Host()
    host.fanout_publisher(CHANNEL)
    context = multiprocessing.get_context("spawn")
    async with host.run() as rt:
        pipes = []
        for _ in range(SUBSCRIBERS):
            ours, theirs = context.Pipe()
            arguments = (rt.publisher_endpoint(CHANNEL), theirs)
            context.Process(target=subscribe, args=arguments, daemon=True).start()
            pipes.append(ours)

        async def everybody() -> None:
            for pipe in pipes:
                while not pipe.poll():
                    await trio.lowlevel.wait_readable(pipe)
                pipe.recv()

        with trio.fail_after(30):
            await everybody()
        start = time.perf_counter()
        for _ in range(0, events, WINDOW):
            for _ in range(WINDOW):
                await rt.publish(CHANNEL, TOPIC, Event(PAYLOAD))
            await everybody()
        elapsed = time.perf_counter() - start
    return {"deliveries_per_s": round(events * SUBSCRIBERS / elapsed)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=60_000)
    options = parser.parse_args()
    print(json.dumps(trio.run(publish, options.events - options.events % WINDOW)))


if __name__ == "__main__":
    main()
