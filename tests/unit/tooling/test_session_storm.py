"""The storm's judge, with runs that somebody made up; tests/integration/sessions has a small storm."""

from __future__ import annotations

import redis

from benchmarks.sessions.ledger import GRACE, Ledger, Run, judge, read_runs
from tests.location_server import TestServer, valkey, valkey_session  # noqa: F401


def run(key: str, node: str = "a", began: int = 0, *, ended: int | None = None, overlaps: bool = False) -> Run:
    return Run(key, node, began, True, overlaps, ended)


def test_a_key_that_ran_twice_has_to_have_a_reason() -> None:
    died = {"a": 1000}
    in_the_middle = [run("k"), run("k", "b", 2000, ended=2010)]
    assert judge(in_the_middle, died, frozenset()).doubles == []
    assert judge(in_the_middle, died, frozenset()).doubles_by_death == 1
    before_it_was_kept = [run("k", ended=1000 - GRACE + 1), run("k", "b", 2000)]
    assert judge(before_it_was_kept, died, frozenset()).bad["double executions without a death"] == 0
    long_before = [run("k", ended=1000 - GRACE), run("k", "b", 2000)]
    assert judge(long_before, died, frozenset()).doubles == ["k"]
    assert judge(in_the_middle, {}, frozenset()).doubles == ["k"]
    told = judge(in_the_middle, {}, frozenset({"k"}))
    assert (told.doubles, told.doubles_by_failure) == ([], 1)
    # The death of whoever ran it last explains nothing.
    assert judge([run("k", "b"), run("k", "a", 900)], died, frozenset()).doubles == ["k"]


def test_overlaps_and_runs_without_a_fence_are_counted() -> None:
    verdict = judge([run("k", overlaps=True), Run("l", "a", 0, False, False)], {}, frozenset())
    assert (verdict.runs, verdict.unfenced, verdict.bad["overlapping turns"]) == (2, 1, 1)


def test_a_turn_that_begins_beside_another_one_of_the_same_lease_overlaps(valkey: TestServer) -> None:  # noqa: F811
    server: redis.Redis = valkey.client()
    try:
        a, b = Ledger(server, "a"), Ledger(server, "b")

        def hold(node: str, token: int) -> None:
            server.hset("zl:{s}:lease", mapping={"h": node, "t": token})

        hold("a", 1)
        a.begin("s", "t1", "k1")
        a.end("s", "t1")
        a.begin("s", "t2", "k2")
        a.begin("s", "t3", "k3")
        hold("b", 2)
        # The lease has passed on: the turns under the old token count no more, and a new one of the old node is none.
        b.begin("s", "t4", "k4")
        a.begin("s", "t5", "k5")
        runs = read_runs(server)
    finally:
        server.close()
    assert [(each.key, each.valid, each.overlaps) for each in runs] == [
        ("k1", True, False),
        ("k2", True, False),
        ("k3", True, True),
        ("k4", True, False),
        ("k5", False, False),
    ]
    assert [each.ended is not None for each in runs] == [True, False, False, False, False]
