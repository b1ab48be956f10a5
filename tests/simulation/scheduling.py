"""A run that repeats exactly: trio picks the next task at random, so its dice are given a seed.

trio has no public way to do that; hypothesis reaches for the same private object.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from trio.testing import MockClock

ResultT = TypeVar("ResultT")


def run_seeded(seed: int, main: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Run `main` under virtual time with every scheduling choice decided by `seed`."""
    dice = trio._core._run._r  # type: ignore[attr-defined]
    before = dice.getstate()
    dice.seed(seed)
    try:
        return trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        dice.setstate(before)
