"""`make bench-sessions`, with small numbers."""

from __future__ import annotations

import json

import pytest

from benchmarks.harness import Program, run_program
from benchmarks.sessions import storm


@pytest.mark.slow
@pytest.mark.contract("SR-462")
def test_nodes_die_and_nothing_runs_twice_for_another_reason(capfd: pytest.CaptureFixture[str]) -> None:
    status = storm.main(
        ["--submits", "2000", "--sessions", "200", "--kill-every", "2", "--scale", "0.1", "--limit", "200"]
    )
    output = capfd.readouterr()
    figures = json.loads(output.out.splitlines()[-1])
    assert (status, set(figures["bad"].values())) == (0, {0}), output.out + output.err
    # It was one.
    assert figures["nodes_killed"] >= 2
    assert figures["turns"] >= figures["submits"]
    assert set(figures["errors_told"]) <= {"HolderLostError", "ReservationLostError", "ForwardTimeoutError"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "metrics"),
    [
        (Program(module="benchmarks.subjects.session_first_event", arguments=("--turns", "20")), {"p50_ms", "p95_ms"}),
        (
            Program(module="benchmarks.subjects.session_renewal", arguments=("--leases", "50", "--seconds", "12")),
            {"worst_late_ms", "lost", "extended", "set_up_s"},
        ),
    ],
)
def test_the_programs_that_measure_still_run(program: Program, metrics: set[str]) -> None:
    figures = run_program(program)
    assert set(figures) == metrics
    assert figures.get("lost", 0) == 0
    assert figures.get("extended", 50) >= 50
