"""From a submit to the turn's first event at a subscriber, on the node that holds the session, with a real store.

Prints one JSON line: p50_ms, p95_ms. Turns one after the other, a little apart, each with an idempotency key.
"""

from __future__ import annotations

import argparse
import json
import statistics
from contextlib import aclosing

import trio

from benchmarks.sessions.bare import Bare, real_store
from zlinkpy.sessions.events import OutputDelta
from zlinkpy.sessions.router import SessionRouter

WARM_UP = 20
PAUSE = 0.01


async def measure(store: str, turns: int) -> dict[str, float]:
    """One router, one session."""
    took: list[float] = []
    async with SessionRouter(Bare, store=store, node_id="bench") as router, aclosing(router.events("s")) as events:
        for number in range(WARM_UP + turns):
            began = trio.current_time()
            submitted = await router.submit("s", "x", handler="bare", key=f"k{number}")
            async for event in events:
                if isinstance(event, OutputDelta):
                    break
            took.append(trio.current_time() - began)
            await submitted.future.result()
            await trio.sleep(PAUSE)
    quantiles = statistics.quantiles(took[WARM_UP:], n=20)
    return {"p50_ms": round(quantiles[9] * 1000, 3), "p95_ms": round(quantiles[18] * 1000, 3)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=500)
    options = parser.parse_args()
    with real_store() as server:
        print(json.dumps(trio.run(measure, server.url, options.turns)))
