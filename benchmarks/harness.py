"""Compare a subject with a baseline in interleaved pairs.

A shared machine drifts: its speed changes by tens of percent between one minute and the next. So baseline and subject
run alternately, each time in a new process, and what counts is the median of the *pairwise* ratios; both runs of a pair
saw nearly the same machine. Comparing the best of each side was rejected: it rewards one lucky run.

A program prints one JSON line with its metrics as the last line of its output. Its exit status must be 0.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import trio
import zmq
from attrs import field, frozen
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PAIRS = 5
RUN_SECONDS = 120.0
"""One run of one program may take this long; what hangs is an error, not a slow result."""


class BenchmarkError(Exception):
    """A program failed, hung, or did not print what its measure reads."""


@frozen(kw_only=True)
class Program:
    """What to run: a module of benchmarks/ and its arguments."""

    module: str
    arguments: tuple[str, ...] = ()
    limit: float | None = None
    """Seconds instead of `RUN_SECONDS`, for programs whose set-up alone takes long."""


@frozen(kw_only=True)
class Measure:
    """One number and what it is held against."""

    name: str
    metric: str
    """Key in the JSON line, of baseline and subject alike."""
    unit: str
    better: Literal["higher", "lower"]
    baseline: Program | None = None
    """None: the subject's own number is held against the bar."""
    subject: Program | None = None
    """None: the baseline is only shown."""
    bar: float | None = None
    """What is judged, the ratio subject / baseline or the subject's own median, has to be at least this where higher
    is better, at most this where lower is."""

    def passes(self, judged: float) -> bool:
        """Whether a ratio or number clears the bar; without a bar everything does."""
        if self.bar is None:
            return True
        return judged >= self.bar if self.better == "higher" else judged <= self.bar


@frozen(kw_only=True)
class Result:
    """All runs of one measure, in the order in which they ran."""

    measure: Measure
    baseline: Sequence[float]
    subject: Sequence[float] = field(factory=tuple)

    @property
    def ratios(self) -> list[float]:
        """subject / baseline of each pair."""
        return [mine / theirs for theirs, mine in zip(self.baseline, self.subject, strict=True)]

    @property
    def ratio(self) -> float | None:
        """Median of the pairwise ratios, None unless there are two sides."""
        return statistics.median(self.ratios) if self.subject and self.baseline else None

    @property
    def judged(self) -> float | None:
        """The number the bar is about."""
        if self.measure.baseline is None:
            return statistics.median(self.subject)
        return self.ratio

    @property
    def passed(self) -> bool:
        return self.judged is None or self.measure.passes(self.judged)

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.measure.name,
            "metric": self.measure.metric,
            "unit": self.measure.unit,
            "better": self.measure.better,
            "bar": self.measure.bar,
            "baseline": list(self.baseline),
            "subject": list(self.subject),
            "ratios": [round(ratio, 4) for ratio in self.ratios] if self.subject and self.baseline else [],
            "median_ratio": None if self.ratio is None else round(self.ratio, 4),
            "passed": self.passed,
        }


Runner = Callable[[Program], Mapping[str, float]]


def run_program(program: Program) -> Mapping[str, float]:
    """Run a program in a process of its own and return its metrics. Raises BenchmarkError."""
    limit = program.limit or RUN_SECONDS
    try:
        done = subprocess.run(
            [sys.executable, "-m", program.module, *program.arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{program.module} did not end within {limit:.0f} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise BenchmarkError(f"{program.module} ended with status {done.returncode}: {done.stderr.strip()[-2000:]}")
    try:
        metrics: dict[str, float] = json.loads(lines[-1])
    except json.JSONDecodeError:
        raise BenchmarkError(f"{program.module} did not print JSON last: {lines[-1][:200]!r}") from None
    return metrics


def compare(
    measures: Sequence[Measure],
    *,
    pairs: int = PAIRS,
    run: Runner = run_program,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Result]:
    """Run all measures. Those with the same programs share their runs. Raises BenchmarkError."""
    groups: dict[tuple[Program | None, Program | None], list[Measure]] = {}
    for measure in measures:
        groups.setdefault((measure.baseline, measure.subject), []).append(measure)
    results: dict[str, Result] = {}
    for programs, group in groups.items():
        columns: dict[str, dict[Program, list[float]]] = {measure.name: {} for measure in group}
        for number in range(1, pairs + 1):
            for program in programs:
                if program is None:
                    continue
                metrics = run(program)
                for measure in group:
                    if measure.metric not in metrics:
                        raise BenchmarkError(f"{program.module} printed no {measure.metric!r}, only {sorted(metrics)}")
                    columns[measure.name].setdefault(program, []).append(metrics[measure.metric])
                progress(f"{number}/{pairs} {program.module.rpartition('.')[2]}: {json.dumps(metrics)}")
        baseline, subject = programs
        for measure in group:
            column = columns[measure.name]
            results[measure.name] = Result(
                measure=measure,
                baseline=tuple(column[baseline]) if baseline else (),
                subject=tuple(column[subject]) if subject else (),
            )
    return [results[measure.name] for measure in measures]


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "libzmq": zmq.zmq_version(),
        "pyzmq": zmq.pyzmq_version(),
        "trio": trio.__version__,
    }


def table(results: Sequence[Result]) -> Table:
    """The results for people: medians of both sides, the median ratio with its range, the bar and the verdict."""
    runs = max(len(result.baseline) or len(result.subject) for result in results)
    drawn = Table(title=f"medians of {runs} interleaved pairs")
    drawn.add_column("measure")
    for title in ("baseline", "zlinkpy", "ratio", "range", "bar", "verdict"):
        drawn.add_column(title, justify="right")
    for result in results:
        measure = result.measure
        sign = ">=" if measure.better == "higher" else "<="
        bar = "" if measure.bar is None else f"{sign} {measure.bar:g}"
        verdict = "" if measure.bar is None else "ok" if result.passed else "MISSED"
        cells = [measure.name, _shown(result.baseline, measure)]
        if not result.subject:
            cells += ["", "", "", "", "baseline only"]
        elif result.ratio is None:
            cells += [_shown(result.subject, measure), "", "", f"{bar} {measure.unit}", verdict]
        else:
            spread = f"{min(result.ratios):.2f}..{max(result.ratios):.2f}"
            cells += [_shown(result.subject, measure), f"{result.ratio:.2f}", spread, bar, verdict]
        drawn.add_row(*cells)
    return drawn


def _shown(values: Sequence[float], measure: Measure) -> str:
    if not values:
        return ""
    median = statistics.median(values)
    return f"{median:,.0f} {measure.unit}" if median >= 100 else f"{median:.2f} {measure.unit}"
