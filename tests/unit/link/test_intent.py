"""When an endpoint is dialled: the intent machine (LV §3, §11, §14)."""

from __future__ import annotations

import pytest

from zlinkpy.entropy import SeededEntropy
from zlinkpy.link import Backoff, Expectation
from zlinkpy.link.intent import DialIntent, IntentState

ENDPOINT = "tcp://127.0.0.1:5501"


def intent(now: float = 0.0) -> DialIntent:
    return DialIntent(ENDPOINT, Expectation(), Backoff(SeededEntropy(1)), now)


def connected() -> DialIntent:
    made = intent()
    made.dialled()
    made.lane_opened()
    made.lane_opened()
    made.ready()
    return made


def test_a_new_intent_dials_at_once() -> None:
    assert intent(3.0).due(3.0)


@pytest.mark.contract("LV-128", "LV-129")
def test_nothing_is_dialled_before_both_closes_were_observed() -> None:
    made = connected()
    made.ended(10.0)
    assert made.state is IntentState.CLOSING
    assert made.next_deadline() is None
    made.lane_closed(11.0)
    assert not made.due(1000.0), "one physical connection still counts as existing"
    assert made.next_deadline() is None


@pytest.mark.contract("LV-130", "LV-144")
def test_after_the_observed_close_one_new_dial_is_due() -> None:
    made = connected()
    made.ended(10.0)
    made.lane_closed(10.0)
    made.lane_closed(12.0)
    due = made.next_deadline()
    assert due is not None
    assert 12.08 <= due <= 12.12, "100 ms with 20 % jitter, counted from the observed close"
    assert not made.due(due - 0.001)
    assert made.due(due)
    made.dialled()
    assert not made.due(due + 100), "one dial, not one per tick"


def test_the_delay_doubles_to_five_seconds_and_ready_resets_it() -> None:
    made = intent()
    now, delays = 0.0, []
    for _ in range(9):
        made.dialled()
        made.ended(now)
        due = made.next_deadline()
        assert due is not None
        delays.append(due - now)
        now = due
    for delay, base in zip(delays, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0], strict=True):
        assert 0.8 * base <= delay <= 1.2 * base
    made.dialled()
    made.ready()
    made.ended(now)
    due = made.next_deadline()
    assert due is not None
    assert due - now <= 0.12


@pytest.mark.contract("LV-34", "LV-39")
def test_not_required_is_terminal_for_a_configuration() -> None:
    made = intent()
    made.dialled()
    made.ended(1.0, not_required=True)
    assert made.state is IntentState.NOT_REQUIRED
    assert made.next_deadline() is None
    assert not made.due(600.0)
    assert made.dials == 1


@pytest.mark.contract("LV-35")
@pytest.mark.parametrize("change", ["endpoint", "rid", "configuration"])
def test_a_changed_configuration_is_checked_once_more(change: str) -> None:
    made = intent()
    made.dialled()
    made.ended(1.0, not_required=True)
    if change == "endpoint":
        made.retarget("tcp://127.0.0.1:5502", Expectation(), 2.0)
    elif change == "rid":
        made.retarget(ENDPOINT, Expectation(rid="other"), 2.0)
    else:
        made.reconfigure(2.0)
    assert made.due(2.0)
    made.dialled()
    made.ended(3.0, not_required=True)
    assert not made.due(1000.0)
    assert made.dials == 2


@pytest.mark.contract("LV-150")
def test_a_new_descriptor_is_dialled_instead_of_the_old_one() -> None:
    made = connected()
    assert made.retarget("tcp://127.0.0.1:5999", Expectation(rid="n", generation=7), 5.0)
    made.ended(5.0)
    made.lane_closed(5.0)
    assert not made.due(5.0)
    made.lane_closed(5.5)
    assert made.due(5.5), "without a delay: nothing has failed"
    assert (made.endpoint, made.expectation.generation) == ("tcp://127.0.0.1:5999", 7)
    assert not made.retarget("tcp://127.0.0.1:5999", Expectation(rid="n", generation=7), 6.0)


def test_a_withdrawn_intent_is_not_revived_by_a_late_ready_or_end() -> None:
    made = intent()
    made.dialled()
    made.withdraw()
    made.ended(1.0)
    assert not made.due(100.0)
    assert not made.retarget("tcp://127.0.0.1:1", Expectation(), 2.0)
    assert made.state is IntentState.WITHDRAWN


def test_a_held_intent_dials_only_after_its_release() -> None:
    made = intent()
    made.hold()
    assert made.next_deadline() is None
    assert not made.due(100.0)
    made.release(100.0)
    due = made.next_deadline()
    assert due is not None
    assert due > 100.0
