"""What the in-memory session stores share: a clock, checkpoints, and misbehaviour on request.

They keep what the Redis stores keep, by the same rules, in one process. Every call changes its rows without a
checkpoint in between and has one before and one after, so that interleaving and cancellation exist as they do with a
server. Values are kept encoded: a typed object that could not cross a network does not get in here either.

The clock follows trio's, so that virtual time in tests moves expiry too.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import trio
from attrs import define

from zlinkpy.sessions.errors import AppliedHint, SessionBackendError

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
Stage: TypeAlias = Literal["before", "after"]
Clock: TypeAlias = Callable[[], int]

EPOCH_MS: Final = 1_700_000_000_000
"""Where the clock starts, so that store times have the size of real ones."""


def trio_millis() -> int:
    """Store milliseconds that follow trio's clock."""
    return EPOCH_MS + int(trio.current_time() * 1000)


@define
class Fault:
    """One planned misbehaviour: matching calls wait `delay` seconds and then fail at `stage` (None: only wait).

    ``"before"`` fails with nothing changed, as a refused connection (`applied` ``"no"``) or as a request that was
    lost (``"unknown"``); ``"after"`` changes the rows and then loses the answer.
    """

    stage: Stage | None
    operation: str | None
    name: str | None
    delay: float
    times: int | None
    applied: AppliedHint

    def matches(self, operation: str, name: str) -> bool:
        return (
            (self.times is None or self.times > 0) and self.operation in (None, operation) and self.name in (None, name)
        )


class MemoryBackend:
    """One "system": stores that share it are down together. `clock` returns store milliseconds."""

    def __init__(self, clock: Clock = trio_millis) -> None:
        self.clock = clock
        self._faults: list[Fault] = []

    def plan(
        self,
        stage: Stage | None,
        *,
        operation: str | None = None,
        name: str | None = None,
        delay: float = 0.0,
        times: int | None = 1,
        applied: AppliedHint = "unknown",
    ) -> Fault:
        """Make the next `times` matching calls (None: all of them) misbehave.

        `operation` is a method's name, `name` the session id or idempotency key of the call.
        """
        fault = Fault(stage, operation, name, delay, times, applied if stage == "before" else "unknown")
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Drop every planned fault."""
        self._faults.clear()

    async def perform(self, family: type[SessionBackendError], operation: str, name: str, action: Callable[[], T]) -> T:
        """Do `action` as one call to a server. Errors are of `family`."""
        await trio.lowlevel.checkpoint()
        fault = self._take(operation, name)
        if fault is not None and fault.stage != "after":
            await trio.sleep(fault.delay)
            if fault.stage == "before":
                raise family(f"{operation} of the session store memory:// was not done", applied=fault.applied)
        result = action()
        if fault is not None and fault.stage == "after":
            await trio.sleep(fault.delay)
            raise family(f"{operation} of the session store memory://: the answer was lost", applied="unknown")
        await trio.lowlevel.checkpoint()
        return result

    def _take(self, operation: str, name: str) -> Fault | None:
        for fault in self._faults:
            if fault.matches(operation, name):
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None


class Expiring(Generic[K, V]):
    """Values that vanish at an instant; each write forgets a few that are over, so that none is kept for long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: dict[K, tuple[V, int]] = {}
        self._ends: list[tuple[int, int, K]] = []
        self._writes = 0

    def get(self, key: K) -> V | None:
        """The value, unless it is over."""
        found = self._values.get(key)
        return None if found is None or self._clock() >= found[1] else found[0]

    def ends_at(self, key: K) -> int:
        """When a value that is there will be over."""
        return self._values[key][1]

    def put(self, key: K, value: V, life: int) -> None:
        """Keep `value` for `life` milliseconds from now."""
        now = self._clock()
        self._values[key] = (value, now + life)
        self._writes += 1
        heappush(self._ends, (now + life, self._writes, key))
        for _ in range(4):
            if not self._ends or self._ends[0][0] > now:
                break
            _, _, over = heappop(self._ends)
            if over in self._values and self._values[over][1] <= now:
                del self._values[over]

    def drop(self, key: K) -> None:
        """Forget a value."""
        self._values.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        self._values.clear()
        self._ends.clear()
