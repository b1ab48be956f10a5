"""The demo's sums: what counts as lost, and what the summary says."""

from __future__ import annotations

import pytest

from zlinkpy.cli.demo.stage import Summary
from zlinkpy.cli.demo.traffic import WINDOW_SECONDS, Tally, percentile


def test_percentiles_are_measured_values() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([7.0], 0.01) == 7
    assert percentile([], 0.5) is None


def test_every_request_is_counted_by_its_one_end() -> None:
    tally = Tally(started=10)
    for number in range(6):
        tally.answer("a", at=number, seconds=0.1)
    tally.cut_off, tally.wrong, tally.timed_out = 2, 1, 1
    assert tally.answered == 6
    assert tally.lost == 1


def test_rates_forget_what_is_older_than_the_window() -> None:
    tally = Tally()
    tally.answer("a", at=0.0, seconds=9.0)
    tally.answer("a", at=10.0, seconds=1.0)
    rates = tally.rates("a", 10.0 + WINDOW_SECONDS / 2)
    assert (rates.per_second, rates.p99) == (1 / WINDOW_SECONDS, 1.0)
    assert tally.rates("b", 10.0).per_second == 0
    assert tally.last_answer("a") == 10.0
    assert tally.last_answer("b") < 0


@pytest.mark.parametrize(("lost", "wrong", "good"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_lost_or_wrong_requests_make_a_bad_demo(lost: int, wrong: int, good: bool) -> None:
    summary = Summary(
        nodes=3,
        requests=10,
        lost=lost,
        cut_off=2,
        wrong=wrong,
        timed_out=lost,
        p50=0.001,
        p99=0.0025,
        events=7,
        back_in=3.21,
        problems=("why",),
    )
    assert summary.is_good is good
    assert summary.line().startswith(
        f"demo: 3 nodes, 10 requests, {lost} lost, 2 cut off, p50 1.0 ms, p99 2.5 ms, 7 events, "
        "node killed and back in 3.2 s"
    )
    assert (f"{wrong} wrong, {lost} timed out: why" in summary.line()) is not good
