"""The benchmark harness, with programs that only pretend to measure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import harness, run
from benchmarks.harness import BenchmarkError, Measure, Program, Result, compare, run_program, table

BASE = Program(module="baseline")
MINE = Program(module="subject", arguments=("--fast",))


def measure(**changes: object) -> Measure:
    values = {"name": "speed", "metric": "rps", "unit": "/s", "better": "higher", "baseline": BASE, "subject": MINE}
    return Measure(**(values | changes))  # type: ignore[arg-type]


class Machine:
    """Gives each run the next figure of its program and remembers the order of the runs."""

    def __init__(self, figures: Mapping[Program, list[Mapping[str, float]]]) -> None:
        self._figures = {program: iter(values) for program, values in figures.items()}
        self.order: list[str] = []

    def __call__(self, program: Program) -> Mapping[str, float]:
        self.order.append(program.module)
        return next(self._figures[program])


def test_the_sides_alternate_and_the_median_of_the_pairs_decides() -> None:
    # A drifting machine: each pair is slower than the one before, and the third one was disturbed.
    machine = Machine(
        {
            BASE: [{"rps": value} for value in (1000, 800, 600, 500, 400)],
            MINE: [{"rps": value} for value in (1100, 880, 60, 560, 440)],
        }
    )
    (result,) = compare([measure(bar=1.1)], run=machine)
    assert machine.order == ["baseline", "subject"] * 5
    assert result.ratios == [1.1, 1.1, 0.1, 1.12, 1.1]
    assert result.ratio == 1.1
    assert result.passed


@pytest.mark.parametrize(
    ("better", "bar", "subject", "passed"),
    [
        ("higher", 1.0, 100, True),
        ("higher", 1.0, 99, False),
        ("lower", 1.0, 100, True),
        ("lower", 1.0, 101, False),
        ("lower", 2.5, 250, True),
        ("higher", None, 1, True),
    ],
)
def test_the_bar_is_read_in_the_direction_of_the_measure(
    better: str, bar: float | None, subject: float, passed: bool
) -> None:
    result = Result(measure=measure(better=better, bar=bar), baseline=(100.0,), subject=(subject,))
    assert result.passed is passed
    assert result.as_json()["passed"] is passed


def test_measures_of_the_same_programs_share_their_runs() -> None:
    machine = Machine(
        {
            BASE: [{"rps": 10, "p50_us": 7}] * 2,
            MINE: [{"rps": 20, "p50_us": 14}] * 2,
        }
    )
    measures = [measure(), measure(name="latency", metric="p50_us", better="lower", bar=1.5)]
    speed, latency = compare(measures, pairs=2, run=machine)
    assert len(machine.order) == 4
    assert (speed.ratio, latency.ratio) == (2, 2)
    assert speed.passed
    assert not latency.passed


def test_a_baseline_alone_is_shown_and_not_judged() -> None:
    (result,) = compare([measure(subject=None)], pairs=1, run=Machine({BASE: [{"rps": 10}]}))
    assert result.ratio is None
    assert result.passed
    assert result.as_json()["ratios"] == []


@pytest.mark.parametrize(("value", "passed"), [(0.9, True), (1.0, True), (1.1, False)])
def test_a_measure_without_a_baseline_is_judged_by_its_own_median(value: float, passed: bool) -> None:
    subject = Program(module="idle")
    measure = Measure(name="processor", metric="cpu", unit="%", better="lower", subject=subject, bar=1.0)
    [result] = compare([measure], pairs=3, run=lambda program: {"cpu": value})
    assert result.subject == (value,) * 3
    assert result.judged == value
    assert result.passed is passed
    assert result.as_json()["median_ratio"] is None


def test_a_metric_that_is_not_printed_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match="baseline printed no 'rps', only"):
        compare([measure()], run=Machine({BASE: [{"speed": 1}]}))


def test_the_table_shows_bar_and_verdict() -> None:
    console = Console(width=160)
    good = Result(measure=measure(bar=0.5), baseline=(1000.0, 1000.0), subject=(900.0, 700.0))
    bad = Result(measure=measure(name="latency", better="lower", bar=2, unit="us"), baseline=(10.0,), subject=(30.0,))
    with console.capture() as captured:
        console.print(table([good, bad]))
    lines = captured.get().splitlines()
    assert any("1,000 /s" in line and "0.80" in line and "0.70..0.90" in line and ">= 0.5" in line for line in lines)
    assert any("<= 2" in line and "MISSED" in line for line in lines)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("raise SystemExit('no socket')", "ended with status 1: no socket"),
        ("pass", "ended with status 0"),
        ("print('fast')", "did not print JSON last: 'fast'"),
        ("while True: pass", "did not end within"),
    ],
)
def test_a_program_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, problem: str
) -> None:
    (tmp_path / "program.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "RUN_SECONDS", 1.0 if "while" in source else 30.0)
    with pytest.raises(BenchmarkError, match=problem):
        run_program(Program(module="program"))


def test_the_last_line_of_a_program_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text("print('warming up')\nprint('{\"rps\": 5}')", encoding="utf-8")
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    assert run_program(Program(module="program")) == {"rps": 5}


@pytest.mark.parametrize(("rps", "status"), [(90, 1), (110, 0)])
def test_make_bench_writes_the_figures_and_fails_on_a_missed_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rps: int, status: int
) -> None:
    for name, value in (("baseline", 100), ("subject", rps)):
        (tmp_path / f"{name}.py").write_text(f"print('{{\"rps\": {value}}}')", encoding="utf-8")
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(run, "MEASURES", (measure(bar=1.0),))
    figures = tmp_path / "out" / "bench.json"
    assert run.main(["--pairs", "1", "--json", str(figures)]) == status
    written = json.loads(figures.read_text(encoding="utf-8"))
    assert written["measures"][0]["median_ratio"] == rps / 100
    assert written["machine"]["processors"] >= 1
    assert ("MISSED" in capsys.readouterr().out) is bool(status)


def test_the_programs_of_the_registry_exist() -> None:
    programs = {program for each in run.MEASURES for program in (each.baseline, each.subject) if program}
    assert programs
    for program in programs:
        assert (harness.ROOT / (program.module.replace(".", "/") + ".py")).is_file()
    names = [each.name for each in run.MEASURES]
    assert len(names) == len(set(names))
