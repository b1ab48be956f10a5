"""The probe machine alone: grid, outstanding id, evidence, expiry."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.link import CHECK_INTERVAL, PEER_DEADLINE, Expired, ProbeLiveness, SendProbe


def started(now: float = 0.0) -> ProbeLiveness:
    liveness = ProbeLiveness(itertools.count(1).__next__)
    liveness.start(now)
    return liveness


def test_nothing_is_due_before_start_and_after_stop() -> None:
    liveness = ProbeLiveness(itertools.count(1).__next__)
    assert liveness.next_deadline() is None
    assert liveness.tick(100.0) == []
    assert not liveness.expired(100.0)
    liveness.start(0.0)
    liveness.tick(5.0)
    liveness.stop()
    assert (liveness.outstanding, liveness.deadline, liveness.next_deadline()) == (None, None, None)
    assert liveness.tick(15.0) == []
    assert not liveness.acknowledge(1, 6.0)


@pytest.mark.contract("LV-40")
def test_late_tick_fires_once_and_the_grid_stays() -> None:
    liveness = started(100.0)
    assert liveness.tick(112.5) == [SendProbe(1)]
    assert liveness.next_deadline() == 115.0
    assert liveness.acknowledge(1, 113.0)
    assert liveness.next_deadline() == 115.0
    assert liveness.tick(114.999) == []
    assert liveness.tick(115.0) == [SendProbe(2)]
    assert liveness.next_deadline() == 120.0


def test_a_tick_that_comes_early_does_nothing() -> None:
    liveness = started()
    assert liveness.tick(4.999) == []
    assert liveness.outstanding is None
    assert liveness.next_deadline() == 5.0


def test_expiry_wins_over_the_probe_of_the_same_tick() -> None:
    liveness = started()
    assert liveness.tick(5.0) == [SendProbe(1)]
    assert liveness.tick(10.0) == [SendProbe(1)]
    assert liveness.tick(15.0) == [Expired(15.0)]
    assert liveness.next_deadline() is None
    assert liveness.tick(20.0) == []


def test_an_ack_at_the_deadline_is_no_evidence() -> None:
    liveness = started()
    liveness.tick(5.0)
    assert not liveness.acknowledge(1, 15.0)
    assert liveness.tick(15.0) == [Expired(15.0)]


def test_the_grid_does_not_drift_over_years() -> None:
    start = 0.1
    liveness = started(start)
    now = start
    for step in range(1, 20_000):
        now = start + step * CHECK_INTERVAL
        (probe,) = liveness.tick(now)
        assert isinstance(probe, SendProbe)
        assert liveness.acknowledge(probe.probe_id, now)
        assert liveness.next_deadline() == start + (step + 1) * CHECK_INTERVAL


steps = st.lists(
    st.tuples(
        st.floats(0.0, 7.0, allow_nan=False),
        st.sampled_from(["tick", "ack", "ack again", "ack old", "ack future", "nothing"]),
    ),
    max_size=60,
)


@pytest.mark.contract("LV-45")
@given(start=st.floats(0.0, 1e6), steps=steps)
def test_at_most_one_id_is_outstanding_and_only_its_first_ack_is_evidence(
    start: float, steps: list[tuple[float, str]]
) -> None:
    """Whatever happens, an id is sent until it is answered in time, and no other id exists meanwhile."""
    liveness = started(start)
    now, waiting, deadline, answered, expired = start, None, start + PEER_DEADLINE, [], False
    for elapsed, what in steps:
        now += elapsed
        if what in ("tick", "nothing"):
            for judgement in liveness.tick(now) if what == "tick" else []:
                if isinstance(judgement, Expired):
                    assert now >= deadline
                    assert not expired
                    expired = True
                else:
                    assert not expired
                    assert now < deadline
                    assert judgement.probe_id not in answered
                    assert waiting in (None, judgement.probe_id)
                    waiting = judgement.probe_id
        else:
            probe_id = {
                "ack": waiting or 999_999,
                "ack again": answered[-1] if answered else 999_999,
                "ack old": answered[0] if answered else 999_999,
                "ack future": (waiting or 0) + 1_000_000,
            }[what]
            counts = what == "ack" and waiting is not None and now < deadline and not expired
            assert liveness.acknowledge(probe_id, now) is counts
            if counts:
                answered.append(waiting)
                waiting, deadline = None, now + PEER_DEADLINE
        if not expired:
            assert liveness.outstanding == waiting
            assert liveness.deadline == deadline
            upcoming = liveness.next_deadline()
            assert upcoming is not None
            if what == "tick":
                assert upcoming > now
