"""A small one of `make bench-sessions`."""

from __future__ import annotations

import json

import pytest

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
