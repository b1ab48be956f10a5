"""Renewal of one lease, driven with numbers."""

from __future__ import annotations

import pytest

from zlinkpy.sessions.lease_machine import LeaseRenewal, RenewalState, RenewalStep, TouchSlot


def renewal(sent_at: float = 0.0) -> LeaseRenewal:
    return LeaseRenewal(sent_at, interval=10.0, duration=30.0)


def test_it_renews_on_a_grid() -> None:
    one = renewal()
    for due in (10.0, 20.0, 30.0, 40.0):
        assert one.next_deadline() == due
        assert one.poll(due - 0.1) is None
        assert one.poll(due) is RenewalStep.RENEW
        assert one.poll(due) is None
        assert one.settle(True, due, due + 0.5) is RenewalStep.TOUCH


@pytest.mark.contract("SR-162")
def test_a_renewal_that_raises_is_repeated_in_time() -> None:
    one = renewal()
    sent = []
    now = 0.0
    while now < 30.0 and not (sent and sent[-1] >= 21.0):
        now = one.next_deadline() or 99.0
        if one.poll(now) is RenewalStep.RENEW:
            sent.append(now)
            one.settle(None if now < 21.0 else True, now, now)
    assert sent == [10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0]
    assert one.state is RenewalState.HELD
    assert one.lapses_at == 52.0


@pytest.mark.contract("SR-167", "SR-384")
def test_without_a_success_it_is_lost_when_the_store_may_think_so() -> None:
    one = renewal()
    lost_at = None
    while lost_at is None:
        now = one.next_deadline()
        assert now is not None
        step = one.poll(now)
        if step is RenewalStep.RENEW:
            one.settle(None, now, now)
        elif step is RenewalStep.LOST:
            lost_at = now
    assert lost_at == 30.0
    assert one.next_deadline() is None


@pytest.mark.contract("SR-384")
def test_the_deadline_counts_from_when_the_last_success_was_sent() -> None:
    one = renewal()
    one.poll(10.0)
    one.settle(True, 10.0, 17.0)
    assert one.lapses_at == 40.0
    one.poll(20.0)
    assert one.next_deadline() == 40.0
    assert one.poll(40.0) is RenewalStep.LOST
    assert one.settle(True, 20.0, 41.0) is None


@pytest.mark.contract("SR-166")
def test_a_refusal_loses_it_once() -> None:
    one = renewal()
    one.poll(10.0)
    assert one.settle(False, 10.0, 10.1) is RenewalStep.LOST
    assert one.poll(20.0) is None
    assert not one.stop()
    assert not one.lose()


@pytest.mark.contract("SR-155")
def test_a_returned_lease_is_not_lost_as_well() -> None:
    one = renewal()
    one.poll(10.0)
    assert one.stop()
    assert one.settle(False, 10.0, 10.1) is None
    assert one.poll(99.0) is None
    assert one.state is RenewalState.RETURNED


def test_a_driver_that_comes_late_does_not_catch_up() -> None:
    one = renewal()
    assert one.poll(25.0) is RenewalStep.RENEW
    one.settle(True, 25.0, 25.0)
    assert one.next_deadline() == 25.0 or one.next_deadline() == 35.0
    one.poll(25.0)
    one.settle(True, 25.0, 25.0)
    assert (one.next_deadline() or 0) > 25.0


@pytest.mark.contract("SR-175", "SR-176")
def test_the_slot_holds_pairs_that_never_mix() -> None:
    slot = TouchSlot()
    slot.bind("k1", "n/1")
    before = slot.bound
    slot.unbind("k1", "n/2")
    assert slot.bound == (("k1", "n/1"),)
    slot.bind("k5", "n/5")
    slot.unbind("k1", "n/1")
    assert slot.bound == (("k5", "n/5"),)
    assert before == (("k1", "n/1"),)
    slot.clear()
    assert slot.bound == ()
