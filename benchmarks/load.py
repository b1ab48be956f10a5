"""Loads of signals and their latencies, shared by the bus benchmark and its baseline. Latency is from just before the
publish to the entry of the handler in the other process; both read one monotonic clock of the system."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

from attrs import frozen

PACED = 0.005
"""Seconds between two events of the paced load."""
TICK = 0.001
BATCH = 256
WARM_UP = 200
"""Events before the load proper, whose latency does not count: connections, first pages of code."""


@frozen
class Load:
    """Events and when they are due, in seconds from the start; None: as fast as they are taken."""

    events: int
    due: Callable[[int], float] | None

    def ticks(self, elapsed: Callable[[], float]) -> Iterator[Sequence[int]]:
        """What is to be published at each look at the clock; the caller waits a tick between two looks."""
        done = 0
        while done < self.events:
            first = done
            if self.due is None:
                done = min(self.events, done + BATCH)
            else:
                now = elapsed()
                while done < self.events and self.due(done) <= now:
                    done += 1
            yield range(first, done)


def loads(name: str, seconds: float, rate: float) -> Load:
    """``paced`` 5 ms apart, ``offered`` at `rate`, or ``closed``: the next batch when the last one was taken."""
    if name == "paced":
        return Load(int(seconds / PACED), lambda number: number * PACED)
    if name == "offered":
        return Load(int(seconds * rate), lambda number: number / rate)
    return Load(5000, None)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What both programs take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--load", choices=["paced", "offered", "closed"], default="paced")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the paced and the offered load")
    parser.add_argument("--rate", type=float, default=6300.0, help="events per second of the offered load")
    return parser


def figures(latencies: Sequence[float], expected: int, elapsed: float) -> dict[str, float]:
    """Percentiles in milliseconds, what was lost, and the rate from the first publish to the last arrival."""
    ordered = sorted(latencies)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3) if ordered else 0.0

    return {
        "p50_ms": at(0.50),
        "p95_ms": at(0.95),
        "p99_ms": at(0.99),
        "lost": expected - len(ordered),
        "events_per_s": round(len(ordered) / elapsed) if elapsed else 0,
    }
