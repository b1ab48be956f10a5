"""The activation coordinator: every result of the resolver, with and without Instance intent."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.authority_hosts import owner, spot
from zlinkpy.errors import ErrorKind
from zlinkpy.location import StoreFailure as StoreProblem
from zlinkpy.location.authority.resolution import (
    Closing,
    Creating,
    Lacking,
    Missing,
    Moving,
    Ready,
    Resolution,
    Route,
    StoreFailure,
    Unavailable,
)
from zlinkpy.spots import Activate, ActivationCall, CallState, Deliver, Fail, InstanceIntent, Resolve

ROUTE = Route(
    key=spot("cart"),
    object_kind="instanceSpot",
    stable_type="cart",
    object_generation=1,
    owner_generation=1,
    owner=owner("p"),
    version="1",
)
INTENT = InstanceIntent("cart")
PROBLEM = StoreProblem("the store is away", applied="no", operation="read")
RESULTS: list[Resolution] = [
    Ready(ROUTE),
    Missing(),
    Creating(ROUTE, "r1"),
    Closing(ROUTE),
    Moving(ROUTE),
    *(Unavailable(why, ROUTE) for why in Lacking),
    StoreFailure(PROBLEM),
]


def started(intent: InstanceIntent | None, deadline: float = 30.0) -> ActivationCall:
    call = ActivationCall(intent, deadline)
    assert call.state is CallState.NEW
    assert call.next_deadline() is None
    assert call.start(0.0) == [Resolve()]
    return call


def end_of(intent: InstanceIntent | None, result: Resolution) -> Any:
    call = started(intent)
    actions = call.resolved(result, 1.0)
    if not actions:
        return None
    assert call.state is CallState.ENDED
    assert call.next_deadline() is None
    assert call.resolved(result, 2.0) == call.tick(99.0) == []
    (action,) = actions
    return action.kind if isinstance(action, Fail) else action


@pytest.mark.contract("LO-246")
def test_without_intent_nothing_is_ever_built() -> None:
    not_found, unavailable = ErrorKind.NOT_FOUND, ErrorKind.UNAVAILABLE
    assert [end_of(None, result) for result in RESULTS] == [
        Deliver(ROUTE),
        not_found,
        not_found,
        not_found,
        Deliver(ROUTE),
        unavailable,
        unavailable,
        unavailable,
        unavailable,
    ]


@pytest.mark.contract("LV-163", "LO-246", "LO-247", "LO-250")
def test_with_intent_only_missing_leads_to_a_new_instance() -> None:
    unavailable = ErrorKind.UNAVAILABLE
    assert [end_of(INTENT, result) for result in RESULTS] == [
        Deliver(ROUTE),
        Activate(INTENT),
        None,
        Deliver(ROUTE),
        Deliver(ROUTE),
        unavailable,
        unavailable,
        unavailable,
        unavailable,
    ]


def test_a_failure_names_its_cause() -> None:
    causes = [started(INTENT).resolved(result, 1.0)[0] for result in RESULTS[5:]]
    assert [failure.cause for failure in causes if isinstance(failure, Fail)] == [
        "OwnerLease",
        "RouteNotConnected",
        "RouteNotConnected",
        "LocationStore",
    ]


def test_what_is_there_is_used_unless_the_call_names_something_else() -> None:
    assert end_of(InstanceIntent(), Ready(ROUTE)) == Deliver(ROUTE)
    assert end_of(InstanceIntent("other"), Ready(ROUTE)) is ErrorKind.TYPE_MISMATCH
    assert end_of(InstanceIntent("other"), Closing(ROUTE)) is ErrorKind.TYPE_MISMATCH
    room = evolve(ROUTE, object_kind="userSpot", stable_type="room")
    for intent in (InstanceIntent(), InstanceIntent("room")):
        assert end_of(intent, Ready(room)) is ErrorKind.TYPE_MISMATCH
    assert end_of(None, Ready(room)) == Deliver(room)


@pytest.mark.contract("LO-258")
def test_a_spot_that_is_being_created_is_looked_at_again_until_it_is_ready() -> None:
    call, now, looks = started(INTENT), 0.0, []
    for _ in range(8):
        assert call.resolved(Creating(ROUTE, "r1"), now) == []
        assert call.state is CallState.WAITING
        due = call.next_deadline()
        assert due is not None
        assert call.tick(due - 0.001) == []
        assert call.tick(due) == [Resolve()]
        looks.append(round(due - now, 6))
        now = due
    assert looks == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert call.resolved(Ready(ROUTE), now) == [Deliver(ROUTE)]


@pytest.mark.parametrize("where", ["new", "resolving", "waiting", "answered too late"])
def test_the_deadline_ends_the_call_wherever_it_is(where: str) -> None:
    if where == "new":
        actions = ActivationCall(INTENT, 5.0).start(5.0)
    else:
        call = started(INTENT, 5.0)
        if where == "waiting":
            assert call.resolved(Creating(ROUTE, "r1"), 4.97) == []
        assert call.next_deadline() == 5.0
        assert call.tick(4.999) == []
        actions = call.resolved(Ready(ROUTE), 5.0) if where == "answered too late" else call.tick(5.0)
        assert call.state is CallState.ENDED
    (action,) = actions
    assert isinstance(action, Fail)
    assert action.kind is ErrorKind.DEADLINE_EXCEEDED


def test_events_out_of_order_are_a_defect() -> None:
    call = ActivationCall(INTENT, 5.0)
    with pytest.raises(RuntimeError, match="did not ask"):
        call.resolved(Missing(), 0.0)
    call.start(0.0)
    with pytest.raises(RuntimeError, match="started again"):
        call.start(0.0)


@pytest.mark.contract("LV-163")
@given(st.lists(st.tuples(st.sampled_from(["tick", "resolved"]), st.sampled_from(RESULTS), st.floats(0, 5))))
def test_a_call_ends_once_and_builds_only_from_missing(steps: list[tuple[str, Resolution, float]]) -> None:
    call, now = started(INTENT), 0.0
    ends: list[Any] = []
    last: Resolution | None = None
    for event, result, later in steps:
        now += later
        if event == "tick":
            actions = call.tick(now)
        elif call.state is CallState.WAITING:
            continue
        else:
            last, actions = result, call.resolved(result, now)
        ends += [action for action in actions if not isinstance(action, Resolve)]
        if any(isinstance(action, Activate) for action in actions):
            assert last == Missing()
    assert len(ends) == (call.state is CallState.ENDED)
