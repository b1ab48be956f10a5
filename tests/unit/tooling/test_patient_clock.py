"""The clock that does not count what the loop did not see."""

from __future__ import annotations

import time

import pytest
import trio
from trio.testing import MockClock

from tests.patient_clock import STEP_SECONDS, patient_clock


@pytest.fixture
def clock() -> MockClock:
    return patient_clock(20)


async def test_a_loop_that_stood_still_has_seen_one_step(clock: MockClock) -> None:
    before = trio.current_time()
    time.sleep(0.2)  # noqa: ASYNC251 - what a machine does that has no time for this process
    after = trio.current_time()
    assert after - before == pytest.approx(20 * STEP_SECONDS)
    assert trio.current_time() - after <= 20 * STEP_SECONDS


async def test_a_loop_that_is_awake_sees_time_pass_at_the_rate(clock: MockClock) -> None:
    began, real = trio.current_time(), time.perf_counter()
    while trio.current_time() < began + 2:  # noqa: ASYNC110 - a loop that is awake
        await trio.sleep(0.01)
    # Never faster than the rate.
    assert (time.perf_counter() - real) * 20 >= 2 - 20 * STEP_SECONDS
    assert trio.current_time() - began < 2 + 20 * STEP_SECONDS


async def test_a_long_sleep_is_not_shortened(clock: MockClock) -> None:
    began, real = trio.current_time(), time.perf_counter()
    await trio.sleep(1)
    assert trio.current_time() - began >= 1
    assert (time.perf_counter() - real) * 20 >= 1 - 20 * STEP_SECONDS
