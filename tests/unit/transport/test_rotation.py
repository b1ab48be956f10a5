"""Fairness as numbers: no socket, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.transport.rotation import Budgets, Rotation, SharedTurn, Turn

FAR = Budgets(bytes=1 << 60, seconds=1e9)


@pytest.mark.contract("LV-109")
def test_a_turn_is_over_after_64_records() -> None:
    turn = Turn(FAR, now=0.0)
    assert [turn.spend(1, 0.0) for _ in range(64)] == [False] * 63 + [True]


@pytest.mark.contract("LV-110")
@pytest.mark.parametrize(("sizes", "ends_after"), [([400] * 5, 3), ([1000], 1), ([999, 1], 2), ([5000], 1)])
def test_a_turn_is_over_at_its_bytes(sizes: list[int], ends_after: int) -> None:
    turn = Turn(Budgets(bytes=1000, seconds=1e9), now=0.0)
    assert [turn.spend(size, 0.0) for size in sizes[:ends_after]] == [False] * (ends_after - 1) + [True]


@pytest.mark.contract("LV-111")
def test_a_turn_is_over_at_its_time() -> None:
    turn = Turn(Budgets(seconds=0.005), now=100.0)
    assert not turn.spend(1, 100.0049)
    assert turn.spend(1, 100.005)


@pytest.mark.contract("LV-112")
@pytest.mark.parametrize("wrong", [{"records": 0}, {"bytes": 0}, {"seconds": 0.0}, {"seconds": float("inf")}])
def test_a_budget_is_finite_and_positive(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="finite and positive"):
        Budgets(**wrong)  # type: ignore[arg-type]


@pytest.mark.contract("LV-113")
def test_the_next_rotation_starts_behind_the_one_that_stopped() -> None:
    rotation: Rotation[str] = Rotation()
    names = ["C1", "C2", "C3", "C4"]
    for name in names:
        rotation.add(name)
    assert rotation.plan(names) == ["C1", "C2", "C3", "C4"]
    rotation.stopped("C2")
    assert rotation.plan(reversed(names)) == ["C3", "C4", "C1", "C2"]
    rotation.stopped("C4")
    assert rotation.plan(names) == ["C1", "C2", "C3", "C4"]
    # Where the one that stopped is not ready any more, its place still counts.
    rotation.stopped("C2")
    assert rotation.plan(["C1", "C4"]) == ["C4", "C1"]


def test_a_source_that_left_is_not_planned() -> None:
    rotation: Rotation[str] = Rotation()
    for name in ("a", "b", "c"):
        rotation.add(name)
    rotation.stopped("b")
    rotation.discard("b")
    rotation.discard("never there")
    assert "b" not in rotation
    assert rotation.plan(["a", "b", "c"]) == ["c", "a"]
    # A stop of one that is gone moves nothing.
    rotation.stopped("b")
    assert rotation.plan(["a", "c"]) == ["c", "a"]


@pytest.mark.contract("LV-114")
def test_peers_of_one_socket_have_accounts_of_their_own() -> None:
    turn: SharedTurn[str] = SharedTurn(FAR, now=0.0)
    for _ in range(64):
        assert turn.admits("P")
        assert not turn.spend("P", 1, 0.0)
    assert not turn.admits("P")
    for _ in range(64):
        assert turn.admits("Q")
        turn.spend("Q", 1, 0.0)
    assert not turn.admits("Q")


def test_the_bytes_of_a_shared_turn_are_counted_per_peer_and_its_time_together() -> None:
    turn: SharedTurn[str] = SharedTurn(Budgets(bytes=1000, seconds=1.0), now=0.0)
    assert not turn.spend("P", 1000, 0.0)
    assert not turn.admits("P")
    assert turn.admits("Q")
    assert turn.spend("Q", 1, 1.0)


@given(
    waiting=st.dictionaries(st.integers(0, 7), st.integers(0, 300), min_size=1),
    served_per_rotation=st.integers(1, 8),
)
@pytest.mark.contract("LV-109", "LV-113")
def test_everybody_is_reached_and_nobody_takes_more_than_its_turn(
    waiting: dict[int, int], served_per_rotation: int
) -> None:
    """Over as many rotations as there are sources, each one that waits is served, whatever ends a rotation."""
    rotation: Rotation[int] = Rotation()
    for source in waiting:
        rotation.add(source)
    left = dict(waiting)
    unserved_for = dict.fromkeys(waiting, 0)
    while any(left.values()):
        served = rotation.plan([source for source in left if left[source]])[:served_per_rotation]
        for source in served:
            turn = Turn(FAR, now=0.0)
            taken = 0
            while left[source]:
                left[source] -= 1
                taken += 1
                if turn.spend(1, 0.0):
                    break
            assert taken <= 64
        rotation.stopped(served[-1])
        for source in left:
            unserved_for[source] = 0 if source in served or not left[source] else unserved_for[source] + 1
            assert unserved_for[source] < len(waiting)
