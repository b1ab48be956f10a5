"""Smooth weighted round robin (wire.md §10)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.errors import ConfigurationError
from zlinkpy.mesh import check_weight
from zlinkpy.mesh.selection import SmoothWeighted


def cycle(*servers: tuple[str, int]) -> SmoothWeighted[str]:
    made: SmoothWeighted[str] = SmoothWeighted()
    made.rebuild([(rid, weight, rid) for rid, weight in servers])
    return made


@pytest.mark.contract("SA-127")
def test_100_to_300_gives_b_a_b_b() -> None:
    servers = cycle(("A", 100), ("B", 300))
    assert [servers.select() for _ in range(8)] == list("BABBBABB")


@pytest.mark.contract("SA-127")
@given(st.dictionaries(st.text(min_size=1, max_size=5), st.integers(1, 10_000), min_size=1, max_size=6))
def test_long_run_shares_are_the_weights(weights: dict[str, int]) -> None:
    servers = cycle(*weights.items())
    total = sum(weights.values())
    chosen = Counter(servers.select() for _ in range(min(total, 2000)))
    rounds = sum(chosen.values())
    for rid, weight in weights.items():
        assert abs(chosen[rid] - rounds * weight / total) <= len(weights)


@pytest.mark.contract("SA-127")
def test_ties_go_to_the_smaller_rid_in_bytes_whatever_the_order_of_arrival() -> None:
    # "Z" < "a" in bytes, "é" sorts behind every ASCII letter, and a prefix comes before what it begins.
    assert cycle(("a", 1), ("Z", 1), ("é", 1), ("Za", 1)).select() == "Z"
    servers = cycle(("b", 5), ("a", 5))
    assert [servers.select() for _ in range(4)] == ["a", "b", "a", "b"]


@pytest.mark.contract("SA-128")
def test_accumulators_of_those_that_stay_survive_a_rebuild() -> None:
    servers = cycle(("A", 100), ("B", 300))
    assert servers.select() == "B"  # A has 100, B has -100
    servers.rebuild([("B", 300, "B"), ("A", 100, "A"), ("C", 1, "C")])
    # Fresh accumulators would choose B again; A is owed more.
    assert servers.select() == "A" or servers.select() == "A"
    servers.rebuild([("C", 1, "C")])
    servers.rebuild([("A", 100, "A"), ("B", 300, "B")])
    assert [servers.select() for _ in range(4)] == ["B", "A", "B", "B"], "what left starts from zero when it returns"


@pytest.mark.contract("SA-128")
def test_a_rebuild_in_mid_cycle_does_not_restart_it() -> None:
    interrupted, straight = cycle(("A", 100), ("B", 300)), cycle(("A", 100), ("B", 300))
    seen = []
    for _ in range(12):
        seen.append(interrupted.select())
        interrupted.rebuild([("A", 100, "A"), ("B", 300, "B")])
    assert seen == [straight.select() for _ in range(12)]


def test_nobody_to_select() -> None:
    assert cycle().select() is None


@pytest.mark.contract("SA-20", "LO-139")
@pytest.mark.parametrize("weight", [-1, 10_001, 1.5, "100", True, None])
def test_a_weight_outside_0_to_10000_is_refused_by_name(weight: object) -> None:
    with pytest.raises(ConfigurationError, match=r"mesh\.play\.channels\.echo: weight .* 10000"):
        check_weight(weight, "mesh.play.channels.echo")  # type: ignore[arg-type]


@pytest.mark.contract("SA-20")
@pytest.mark.parametrize("weight", [0, 1, 10_000])
def test_the_whole_range_of_weights_is_taken(weight: int) -> None:
    assert check_weight(weight, "w") == weight
