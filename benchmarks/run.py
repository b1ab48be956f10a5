"""All measures of the project, run and judged: `make bench`.

usage: python -m benchmarks.run [--pairs 5] [--json build/bench.json] [NAME ...]

Exit status 1 when a bar is missed, 2 when a program fails. To add a measure, put a program that prints one JSON line
into benchmarks/subjects and an entry into `MEASURES`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console

from benchmarks.harness import PAIRS, ROOT, BenchmarkError, Measure, Program, compare, machine, table

ECHO = Program(module="benchmarks.baselines.zmq_asyncio_echo")
ONE_WAY = Program(module="benchmarks.baselines.zmq_blocking_pair")

MESH_ECHO = Program(module="benchmarks.subjects.mesh_echo")
IDLE = Program(module="benchmarks.subjects.idle_node")
CALM = Program(module="benchmarks.subjects.flood", arguments=("--share", "0"))
FLOODED = Program(module="benchmarks.subjects.flood")

SOCKETS_PACED = Program(module="benchmarks.baselines.resp_sockets", arguments=("--load", "paced"))


def bus(kind: str, *load: str) -> Program:
    """The session bus of one kind under a load."""
    return Program(module="benchmarks.subjects.session_bus", arguments=("--bus", kind, "--load", *load))


def session_bus(
    name: str,
    metric: str,
    unit: str,
    subject: Program,
    bar: float | None,
    *,
    baseline: Program | None = None,
    better: Literal["higher", "lower"] = "lower",
) -> Measure:
    """One number of a bus."""
    return Measure(
        name=f"session bus, {name}",
        metric=metric,
        unit=unit,
        better=better,
        baseline=baseline,
        subject=subject,
        bar=bar,
    )


REDIS_PACED = bus("redis", "paced")
REDIS_OFFERED = bus("redis", "offered", "--seconds", "10")
REDIS_CLOSED = bus("redis", "closed")
MESH_PACED = bus("mesh", "paced")
MESH_OFFERED = bus("mesh", "offered", "--seconds", "10", "--rate", "20000")
MESH_CLOSED = bus("mesh", "closed")

MEASURES: tuple[Measure, ...] = (
    Measure(
        name="requests, 64 callers", metric="rps", unit="/s", better="higher", baseline=ECHO, subject=MESH_ECHO, bar=2.0
    ),
    Measure(
        name="request latency, median",
        metric="p50_us",
        unit="us",
        better="lower",
        baseline=ECHO,
        subject=MESH_ECHO,
        bar=1.3,
    ),
    Measure(name="request latency, 99 %", metric="p99_us", unit="us", better="lower", baseline=ECHO, subject=MESH_ECHO),
    Measure(
        name="one-way messages",
        metric="messages_per_s",
        unit="/s",
        better="higher",
        baseline=ONE_WAY,
        subject=MESH_ECHO,
        bar=0.6,
    ),
    Measure(
        name="request latency, 99 %, another peer floods at half saturation",
        metric="p99_us",
        unit="us",
        better="lower",
        baseline=CALM,
        subject=FLOODED,
        bar=5.0,
    ),
    Measure(
        name="idle node, 10 peers: processor", metric="cpu_percent", unit="%", better="lower", subject=IDLE, bar=1.0
    ),
    Measure(name="idle node, 10 peers: memory", metric="rss_mb", unit="MB", better="lower", subject=IDLE, bar=70.0),
    session_bus("Redis, paced: median", "p50_ms", "ms", REDIS_PACED, 1.73),
    session_bus("Redis, paced: 95 %", "p95_ms", "ms", REDIS_PACED, 2.97),
    session_bus("Redis, paced: 99 %", "p99_ms", "ms", REDIS_PACED, 1.5, baseline=SOCKETS_PACED),
    session_bus("Redis, 6,300/s: median", "p50_ms", "ms", REDIS_OFFERED, 1.0),
    session_bus("Redis, 6,300/s: 99 %", "p99_ms", "ms", REDIS_OFFERED, None),
    session_bus("Redis, 6,300/s: lost", "lost", "events", REDIS_OFFERED, 0.0),
    session_bus("Redis, 5,000 at once: lost", "lost", "events", REDIS_CLOSED, 0.0),
    session_bus("mesh against Redis, paced: median", "p50_ms", "ms", MESH_PACED, 0.5, baseline=REDIS_PACED),
    session_bus("mesh, paced: 99 %", "p99_ms", "ms", MESH_PACED, 1.0),
    session_bus("mesh, 20,000/s: rate", "events_per_s", "/s", MESH_OFFERED, 19_900.0, better="higher"),
    session_bus("mesh, 20,000/s: lost", "lost", "events", MESH_OFFERED, 0.0),
    session_bus("mesh, 5,000 at once: lost", "lost", "events", MESH_CLOSED, 0.0),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Measure beside the baselines.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="measures whose name contains this")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"runs of each side (default {PAIRS})")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json", help="where the figures go")
    options = parser.parse_args(arguments)
    chosen = [each for each in MEASURES if not options.names or any(name in each.name for name in options.names)]
    if not chosen:
        parser.error("no measure has such a name; there are: " + "; ".join(each.name for each in MEASURES))
    try:
        results = compare(chosen, pairs=options.pairs, progress=lambda line: print(line, file=sys.stderr, flush=True))
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 2
    figures = {"machine": machine(), "measures": [result.as_json() for result in results]}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    Console().print(table(results))
    print(json.dumps(figures["machine"]))
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
