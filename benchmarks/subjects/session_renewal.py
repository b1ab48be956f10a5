"""One node that holds many leases, with a real store: are they all renewed when it is time?

Prints one JSON line: worst_late_ms, how long after its tick the latest renewal came; lost, leases that the router gave
up; extended, renewals while it was watched; set_up_s. What is looked at is the server's own time to live.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import redis
import trio

from benchmarks.sessions.bare import Bare, real_store
from zlinkpy.sessions.metrics import SessionMetrics
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.types import RouterConfig

AT_ONCE = 64
LOOK_SECONDS = 1.0


class Counted(SessionMetrics):
    """Renewals of the node."""

    extended = lost = 0

    def on_lease_extend_succeeded(self) -> None:
        self.extended += 1

    def on_lease_extend_failed(self) -> None:
        self.lost += 1


def shortest(server: redis.Redis, leases: int) -> int:
    """Milliseconds that the lease with the least left has left; -2 when one is gone."""
    calls = server.pipeline(transaction=False)
    for number in range(leases):
        calls.pttl(f"zl:{{s{number}}}:lease")
    return int(min(calls.execute()))


async def measure(store: str, server: redis.Redis, leases: int, seconds: float) -> dict[str, float]:
    """Hold `leases` sessions and look at their leases for `seconds`."""
    config = RouterConfig(max_cached_sessions=2 * leases)
    late = config.lock_lease - config.lock_extend_interval
    metrics, limit = Counted(), trio.CapacityLimiter(AT_ONCE)
    began = trio.current_time()
    async with SessionRouter(Bare, store=store, node_id="bench", config=config, metrics=metrics) as router:

        async def hold(number: int) -> None:
            async with limit:
                await (await router.submit(f"s{number}", "x", handler="bare")).future.result()

        async with trio.open_nursery() as nursery:
            for number in range(leases):
                nursery.start_soon(hold, number)
        set_up = trio.current_time() - began
        before, least = metrics.extended, 10**9
        with trio.move_on_after(seconds):
            while True:
                least = min(least, await trio.to_thread.run_sync(partial(shortest, server, leases)))
                await trio.sleep(LOOK_SECONDS)
        extended, lost = metrics.extended - before, metrics.lost
    return {
        "worst_late_ms": max(0.0, late * 1000 - least),
        "lost": lost,
        "extended": extended,
        "set_up_s": round(set_up, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=35.0)
    options = parser.parse_args()
    with real_store() as embedded:
        client = redis.Redis(unix_socket_path=embedded.socket_path, protocol=2)
        print(json.dumps(trio.run(measure, embedded.url, client, options.leases, options.seconds)))
        client.close()
