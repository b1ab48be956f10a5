"""The request table: one terminal for each request (SA §M, LV §13)."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from zlinkpy.errors import DeadlineExceededError, ShuttingDownError, UnavailableError, ZlinkError
from zlinkpy.mesh.request_table import Pending, RequestTable
from zlinkpy.wire import Reply


def make() -> RequestTable:
    return RequestTable(lambda deadline: None)


def reply_to(entry: Pending) -> Reply:
    return Reply(entry.corr, 0, 0, None, None)


ROUTE = object()
ENDINGS = ("reply", "timeout", "cancel", "disconnect", "shutdown")
EXPECTED = {
    "reply": "reply",
    "timeout": DeadlineExceededError,
    "cancel": "cancelled",
    "disconnect": UnavailableError,
    "shutdown": ShuttingDownError,
}


async def run(endings: tuple[str, ...], *, park: bool = True) -> tuple[list[object], RequestTable]:
    """Start one request, let `endings` happen in one tick in that order, and say what its caller saw."""
    table = make()
    seen: list[object] = []
    entry = table.open(ROUTE, 10.0, "packet")
    scope = trio.CancelScope()

    async def call() -> None:
        with scope:
            try:
                await table.wait(entry)
                seen.append("reply")
            except ZlinkError as error:
                seen.append(type(error))
        if scope.cancelled_caught:
            seen.append("cancelled")

    def happen() -> None:
        for ending in endings:
            if ending == "reply":
                table.reply(ROUTE, reply_to(entry), [])
            elif ending == "timeout":
                table.tick(10.0)
            elif ending == "cancel":
                scope.cancel()
            elif ending == "disconnect":
                table.fail_route(ROUTE)
            else:
                table.close()

    async with trio.open_nursery() as nursery:
        if not park:
            happen()
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        if park:
            happen()
    return seen, table


@pytest.mark.contract("LV-140", "SA-198")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_each_ending_ends_the_request_once_with_its_own_result(ending: str) -> None:
    seen, table = await run((ending,))
    assert seen == [EXPECTED[ending]]
    assert len(table) == 0
    statistics = table.statistics()
    assert statistics.started == 1
    counted = {
        "reply": statistics.replied,
        "timeout": statistics.timed_out,
        "cancel": statistics.cancelled,
        "disconnect": statistics.route_failed,
        "shutdown": statistics.shut_down,
    }
    assert counted == {name: int(name == ending) for name in ENDINGS}


@pytest.mark.contract("LV-141", "SA-198")
@pytest.mark.parametrize("endings", list(itertools.permutations(ENDINGS, 2)))
async def test_of_two_endings_in_one_tick_the_first_one_counts(endings: tuple[str, str]) -> None:
    seen, table = await run(endings)
    # A cancellation is delivered to its caller after the tick; what took the entry out before is what the caller sees.
    first = endings[1] if endings[0] == "cancel" and seen != ["cancelled"] else endings[0]
    assert seen == [EXPECTED[first]]
    assert len(table) == 0


@pytest.mark.contract("LV-141")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=6))
def test_any_race_gives_exactly_one_result(endings: list[str]) -> None:
    seen, table = trio.run(run, tuple(endings))
    assert len(seen) == 1
    assert len(table) == 0
    assert table.next_deadline() is None


@pytest.mark.contract("SA-200")
@pytest.mark.parametrize("ending", ["reply", "timeout", "disconnect", "shutdown"])
async def test_an_ending_before_the_caller_parks_is_kept_for_it(ending: str) -> None:
    table = make()
    entry = table.open(ROUTE, 10.0, "packet")
    if ending == "reply":
        assert table.reply(ROUTE, reply_to(entry), [b"x"])
        assert (await table.wait(entry))[1] == [b"x"]
        return
    {"timeout": lambda: table.tick(10.0), "disconnect": lambda: table.fail_route(ROUTE), "shutdown": table.close}[
        ending
    ]()
    with pytest.raises(EXPECTED[ending]):
        await table.wait(entry)


@pytest.mark.contract("LV-142", "SA-204")
async def test_a_late_reply_changes_nothing_and_completes_nobody_else() -> None:
    table = make()
    first = table.open(ROUTE, 1.0, "first")
    second = table.open(ROUTE, 50.0, "second")
    table.tick(1.0)
    assert not table.reply(ROUTE, reply_to(first), [])
    assert len(table) == 1
    assert second.outcome is None
    assert table.statistics().late_replies == 1


@pytest.mark.contract("LV-146")
async def test_a_reply_over_another_route_completes_nothing() -> None:
    table = make()
    entry = table.open(ROUTE, 10.0, "packet")
    assert not table.reply(object(), reply_to(entry), [])
    assert len(table) == 1


async def test_only_the_requests_of_the_lost_route_end() -> None:
    table = make()
    other = object()
    mine, theirs = table.open(ROUTE, 10.0, "a"), table.open(other, 10.0, "b")
    assert table.fail_route(ROUTE) == 1
    assert mine.outcome is not None
    assert theirs.outcome is None


@pytest.mark.contract("SA-212")
def test_a_closed_table_takes_nothing_new() -> None:
    table = make()
    table.open(ROUTE, 10.0, "left over")
    assert table.close() == ["left over"]
    with pytest.raises(ShuttingDownError):
        table.open(ROUTE, 10.0, "new")


@pytest.mark.contract("SA-204", "LV-08")
@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=40))
def test_each_deadline_fires_at_its_own_time_and_not_before(deadlines: list[float]) -> None:
    told: list[float] = []
    table = RequestTable(told.append)
    entries = [table.open(ROUTE, deadline, str(deadline)) for deadline in deadlines]
    for _ in range(len(deadlines)):
        due = table.next_deadline()
        if due is None:
            break
        assert due == min(entry.deadline for entry in entries if entry.outcome is None)
        assert min(told) <= min(deadlines)
        table.tick(due - 1e-9)
        assert all(entry.outcome is None for entry in entries if entry.deadline >= due)
        table.tick(due)
        assert all(entry.outcome is not None for entry in entries if entry.deadline <= due)
    assert len(table) == 0


async def test_answered_requests_leave_nothing_behind() -> None:
    table = make()
    for _ in range(10_000):
        table.reply(ROUTE, reply_to(table.open(ROUTE, 30.0, "packet")), [])
    assert len(table) == 0
    assert table.next_deadline() is None
