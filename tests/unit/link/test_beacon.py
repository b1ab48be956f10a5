"""When beacons leave, and what they are (LV §7)."""

from __future__ import annotations

import pytest

from zlinkpy.link import BeaconSchedule
from zlinkpy.wire import BEACON_FRAMES

from .harness import LINKS, ready_link


def beacons(schedule: BeaconSchedule, until: float) -> list[float]:
    """The instants of all beacons that a shell that sleeps until the next deadline sends."""
    sent: list[float] = []
    while (due := schedule.next_deadline()) <= until:
        if schedule.tick(due):
            sent.append(due)
        assert schedule.next_deadline() > due
    return sent


@pytest.mark.contract("LV-83")
def test_beacons_leave_at_the_bind_and_every_five_seconds() -> None:
    assert beacons(BeaconSchedule(100.0), 130.0) == [100.0, 105.0, 110.0, 115.0, 120.0, 125.0, 130.0]


@pytest.mark.contract("LV-84")
def test_a_thousand_looks_a_second_change_nothing() -> None:
    schedule = BeaconSchedule(0.0)
    assert [step / 1000 for step in range(15_001) if schedule.tick(step / 1000)] == [0.0, 5.0, 10.0, 15.0]


@pytest.mark.contract("LV-83")
def test_a_late_beacon_leaves_once_and_the_grid_stays() -> None:
    schedule = BeaconSchedule(100.0)
    assert schedule.tick(100.0)
    assert schedule.tick(117.5)
    assert not schedule.tick(117.6)
    assert schedule.next_deadline() == 120.0
    assert not schedule.tick(119.999)
    assert schedule.tick(120.0)


@pytest.mark.contract("LV-85")
def test_a_beacon_is_these_two_frames() -> None:
    assert [frame.hex(" ") for frame in BEACON_FRAMES] == ["01 5a 4c 46 31", "5a 46 01 01"]


@pytest.mark.contract("LV-02")
def test_idle_pairs_and_an_idle_publisher_signal_on_the_same_grid() -> None:
    for topology in LINKS:
        wire = ready_link(topology)
        wire.run_until(15.0)
        for node in wire.nodes:
            assert [at for at, _ in node.probes] == [5.0, 10.0, 15.0]
    assert beacons(BeaconSchedule(0.0), 15.0)[1:] == [5.0, 10.0, 15.0]
