"""The activation coordinator: from a resolver's result to what a call does, for one call to one Spot. Pure (facts §7,
LO-246..251, LO-342, LV-163).

Its only input is the resolver's result. It has no event for a lost peer or a lapsed lease, on purpose: those make the
result Unavailable, and Unavailable never leads to a new instance (SA-166). Only Missing does, and only with Instance
intent.

| State | Event | Next state | Action |
| --- | --- | --- | --- |
| NEW | `start` | RESOLVING | Resolve |
| RESOLVING | Ready, Moving | ENDED | Deliver, or Fail TYPE_MISMATCH when the intent names what is not there |
| RESOLVING | Missing, with intent | ENDED | Activate |
| RESOLVING | Creating, with intent | WAITING | - |
| RESOLVING | Closing, with intent | ENDED | Deliver: its owner begins the next incarnation |
| RESOLVING | Missing, Creating, Closing without intent | ENDED | Fail NOT_FOUND |
| RESOLVING | Unavailable, StoreFailure | ENDED | Fail UNAVAILABLE |
| WAITING | pause over | RESOLVING | Resolve |
| RESOLVING, WAITING | deadline | ENDED | Fail DEADLINE_EXCEEDED |
| ENDED | anything | ENDED | - |

Invariants: the call ends exactly once; it ends with at most one Deliver or Activate, so an accepted message is never
sent twice or to a second owner (LO-265); nothing is cached between two results (LO-258).
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from attrs import frozen

from zlinkpy.errors import ErrorKind
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

FIRST_PAUSE = 0.05
"""Seconds before a row in state Creating is read again; doubled each time."""
LAST_PAUSE = 1.0
"""Seconds that the pause rises to."""


@frozen
class InstanceIntent:
    """The caller's permission to build the Spot. `stable_type` None: the only Instance type there is (SA-156)."""

    stable_type: str | None = None


class CallState(Enum):
    """Where the call stands; see the module's table."""

    NEW = "new"
    RESOLVING = "resolving"
    WAITING = "waiting"
    ENDED = "ended"


@frozen
class Resolve:
    """Ask the resolver and report `resolved`."""


@frozen
class Deliver:
    """Send the message along this route."""

    route: Route


@frozen
class Activate:
    """Choose a node and send it the message as the first one of a new Instance Spot."""

    intent: InstanceIntent


@frozen
class Fail:
    """End the call with an error of this kind. `cause` as in `ZlinkError`."""

    kind: ErrorKind
    reason: str
    cause: str | None = None


Action: TypeAlias = Resolve | Deliver | Activate | Fail

_CAUSES = {Lacking.LEASE: "OwnerLease", Lacking.LINK: "RouteNotConnected", Lacking.MESH: "RouteNotConnected"}


class ActivationCall:
    """See the module. Times are seconds of one monotonic clock.

    Args:
        intent: None for a call that may not build anything.
        deadline: when the call ends whatever happens.
    """

    def __init__(self, intent: InstanceIntent | None, deadline: float) -> None:
        self.state = CallState.NEW
        self._intent = intent
        self._deadline = deadline
        self._pause = FIRST_PAUSE
        self._due = deadline

    def next_deadline(self) -> float | None:
        """When `tick` has something to say."""
        if self.state is CallState.WAITING:
            return min(self._due, self._deadline)
        return self._deadline if self.state is CallState.RESOLVING else None

    def start(self, now: float) -> list[Action]:
        """Begin. Raises RuntimeError when it has begun already."""
        if self.state is not CallState.NEW:
            raise RuntimeError(f"a call that is {self.state.value} was started again")
        return self._resolve() if now < self._deadline else self._late()

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        due = self.next_deadline()
        if due is None or now < due:
            return []
        return self._late() if now >= self._deadline else self._resolve()

    def resolved(self, resolution: Resolution, now: float) -> list[Action]:
        """The resolver's answer to the last `Resolve`. One that comes after the call ended changes nothing."""
        if self.state is CallState.ENDED:
            return []
        if self.state is not CallState.RESOLVING:
            raise RuntimeError(f"a call that is {self.state.value} did not ask the resolver")
        if now >= self._deadline:
            return self._late()
        match resolution:
            case Ready(route) | Moving(route):
                return self._deliver(route)
            case Unavailable(why, _):
                return self._end(Fail(ErrorKind.UNAVAILABLE, why.value, _CAUSES[why]))
            case StoreFailure(problem):
                return self._end(Fail(ErrorKind.UNAVAILABLE, problem.message, "LocationStore"))
        if self._intent is None:
            return self._end(Fail(ErrorKind.NOT_FOUND, "there is no such Spot"))
        match resolution:
            case Closing(route):
                return self._deliver(route)
            case Creating():
                return self._wait(now)
            case Missing():
                return self._end(Activate(self._intent))

    def _resolve(self) -> list[Action]:
        self.state = CallState.RESOLVING
        return [Resolve()]

    def _wait(self, now: float) -> list[Action]:
        self.state = CallState.WAITING
        self._due = now + self._pause
        self._pause = min(2 * self._pause, LAST_PAUSE)
        return []

    def _deliver(self, route: Route) -> list[Action]:
        intent = self._intent
        if intent is not None:
            other = intent.stable_type not in (None, route.stable_type)
            if route.object_kind != "instanceSpot" or other:
                found = f"{route.object_kind} of type {route.stable_type}"
                return self._end(Fail(ErrorKind.TYPE_MISMATCH, f"there is a {found} under this id"))
        return self._end(Deliver(route))

    def _late(self) -> list[Action]:
        return self._end(Fail(ErrorKind.DEADLINE_EXCEEDED, "the Spot was not ready before the deadline"))

    def _end(self, action: Action) -> list[Action]:
        self.state = CallState.ENDED
        return [action]
