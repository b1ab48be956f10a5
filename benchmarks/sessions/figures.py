"""The figures of the session router that need a whole one, with a real store: the second half of `make bench-sessions`.

usage: python -m benchmarks.sessions.figures [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks.harness import BenchmarkError, Measure, Program, compare, machine, table

FIRST_EVENT = Program(module="benchmarks.subjects.session_first_event")
RENEWAL = Program(module="benchmarks.subjects.session_renewal", limit=600.0)
RUNS = 3

MEASURES: tuple[Measure, ...] = (
    Measure(
        name="submit to first event on the holder's own node, median",
        metric="p50_ms",
        unit="ms",
        better="lower",
        subject=FIRST_EVENT,
        bar=5.0,
    ),
    Measure(
        name="10,000 leases on one node, latest renewal after its tick",
        metric="worst_late_ms",
        unit="ms",
        better="lower",
        subject=RENEWAL,
        bar=1000.0,
    ),
    Measure(name="10,000 leases on one node, lost", metric="lost", unit="", better="lower", subject=RENEWAL, bar=0.0),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge; exit status 1 when a bar is missed, 2 when a program fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sessions.figures", description="Measure the router.")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of each program (default {RUNS})")
    options = parser.parse_args(arguments)
    try:
        results = compare(MEASURES, pairs=options.runs, progress=lambda line: print(line, file=sys.stderr, flush=True))
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 2
    Console().print(table(results))
    print(json.dumps({"machine": machine(), "measures": [result.as_json() for result in results]}))
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
