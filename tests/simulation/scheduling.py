"""A run that repeats exactly: trio picks the next task at random, so its dice are given a seed.

trio has no public way to do that; hypothesis reaches for the same private objects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
from trio.testing import MockClock

ResultT = TypeVar("ResultT")


def run_seeded(seed: int, main: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Run `main` under virtual time with every scheduling choice decided by `seed`."""
    internals: Any = trio._core._run
    before = internals._r.getstate(), internals._ALLOW_DETERMINISTIC_SCHEDULING
    internals._r.seed(seed)
    # Tasks that wait for one event stand in a set, whose order is that of their addresses: another one in each process.
    internals._ALLOW_DETERMINISTIC_SCHEDULING = True
    try:
        return trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        internals._r.setstate(before[0])
        internals._ALLOW_DETERMINISTIC_SCHEDULING = before[1]
