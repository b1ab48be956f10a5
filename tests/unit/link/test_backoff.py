"""Retry delays: doubling to a bound, spread, replayable."""

from __future__ import annotations

from zlinkpy.entropy import SeededEntropy
from zlinkpy.link import BACKOFF_JITTER, BACKOFF_MAX, Backoff


class Middle(SeededEntropy):
    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


def test_delays_double_up_to_the_bound_and_start_again_after_reset() -> None:
    backoff = Backoff(Middle(1))
    assert [round(backoff.next_delay(), 6) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    backoff.reset()
    assert round(backoff.next_delay(), 6) == 0.1


def test_delays_are_spread_within_the_jitter_and_replay_from_the_seed() -> None:
    backoff = Backoff(SeededEntropy(7))
    for _ in range(6):
        backoff.next_delay()
    delays = [backoff.next_delay() for _ in range(500)]
    assert all(BACKOFF_MAX * (1 - BACKOFF_JITTER) <= delay <= BACKOFF_MAX * (1 + BACKOFF_JITTER) for delay in delays)
    assert min(delays) < BACKOFF_MAX * 0.9
    assert max(delays) > BACKOFF_MAX * 1.1
    first, second = Backoff(SeededEntropy(9)), Backoff(SeededEntropy(9))
    assert [first.next_delay() for _ in range(20)] == [second.next_delay() for _ in range(20)]
