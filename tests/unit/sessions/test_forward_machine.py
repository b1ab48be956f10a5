"""Waiting forwards, driven with numbers."""

from __future__ import annotations

import pytest

from zlinkpy.sessions.forward_machine import Forward, ForwardRegistry, ForwardStep, Looked


def forward(turn: str = "t1", *, key: str | None = "k", epoch: str | None = "e1", session: str = "s") -> Forward[str]:
    made: Forward[str] = Forward(
        session_id=session,
        turn_id=turn,
        future=f"future of {turn}",
        deadline=300.0,
        key=key,
        epoch=epoch,
        poll_interval=15.0,
        rering_interval=15.0,
    )
    made.start(0.0)
    return made


def times(one: Forward[str]) -> list[tuple[float, list[ForwardStep]]]:
    found = []
    while True:
        now = one.next_deadline()
        steps = one.due(now)
        found.append((now, steps))
        if ForwardStep.EXPIRE in steps:
            return found


@pytest.mark.contract("SR-226", "SR-436")
def test_it_polls_on_its_interval_and_not_in_the_last_second() -> None:
    found = times(forward())
    both = [ForwardStep.POLL, ForwardStep.RERING]
    assert found == [*((15.0 * n, both) for n in range(1, 20)), (300.0, [ForwardStep.EXPIRE])]


@pytest.mark.contract("SR-417")
def test_polls_and_rings_have_intervals_of_their_own() -> None:
    one = forward()
    one.poll_interval, one.rering_interval = 60.0, 15.0
    one.start(0.0)
    found = times(one)
    assert [at for at, steps in found if ForwardStep.POLL in steps] == [60.0, 120.0, 180.0, 240.0]
    assert [at for at, steps in found if ForwardStep.RERING in steps] == [15.0 * n for n in range(1, 20)]


def test_a_keyless_forward_only_rings() -> None:
    found = times(forward(key=None))
    assert all(ForwardStep.POLL not in steps for _, steps in found)
    assert found[0] == (15.0, [ForwardStep.RERING])


@pytest.mark.contract("SR-227")
def test_a_settled_forward_has_nothing_to_do() -> None:
    registry: ForwardRegistry[str] = ForwardRegistry()
    one = forward()
    registry.add(one)
    assert registry.withdraw(one)
    assert not registry.withdraw(one)
    assert one.due(500.0) == []


@pytest.mark.contract("SR-228")
def test_what_a_look_says() -> None:
    one = forward()
    assert one.looked(found=False, done=False, epoch=None) is Looked.GONE
    assert one.looked(found=True, done=True, epoch="e1") is Looked.COMPLETE
    assert one.looked(found=True, done=False, epoch="e1") is Looked.KEEP
    assert one.looked(found=True, done=False, epoch="e2") is Looked.KEEP
    assert one.epoch == "e2"


@pytest.mark.contract("SR-238", "SR-237")
def test_one_result_settles_by_turn_and_by_key_once() -> None:
    registry: ForwardRegistry[str] = ForwardRegistry()
    original, retry, other = forward("t1"), forward("t2"), forward("t3", key="other")
    for each in (original, retry, other):
        registry.add(each)
    assert registry.resolve("t1", "k", "e1") == [original, retry]
    assert registry.resolve("t1", "k", "e1") == []
    assert list(registry) == [other]
    assert registry.of_session("s") == [other]
    assert registry.sharing("k", "e1") is None


@pytest.mark.contract("SR-225")
def test_a_result_of_an_earlier_attempt_settles_nobody() -> None:
    registry: ForwardRegistry[str] = ForwardRegistry()
    second = forward("t2", epoch="e2")
    registry.add(second)
    assert registry.resolve("t1", "k", "e1") == []
    assert registry.resolve("t1", "k", None) == [second]


@pytest.mark.contract("SR-214")
def test_retries_of_one_attempt_share_a_forward() -> None:
    registry: ForwardRegistry[str] = ForwardRegistry()
    one = forward()
    registry.add(one)
    assert registry.sharing("k", "e1") is one
    assert registry.sharing("k", "e2") is None
