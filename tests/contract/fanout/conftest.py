"""Publishers and subscribers on one in-memory network, or on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from tests.contract.fanout.world import World
from tests.patient_clock import kept_awake, patient_clock


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """An in-memory network. Hosts that a test starts are stopped with it."""
    assert isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock), "name autojump_clock in the test"
    async with World.in_memory() as made:
        yield made


@pytest.fixture
def fast_clock() -> trio.testing.MockClock:
    """Twenty seconds in one: for real sockets."""
    return patient_clock(rate=20)


@pytest.fixture
async def sockets() -> AsyncIterator[World]:
    """Real ZeroMQ sockets on the loopback interface."""
    assert isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock), "name fast_clock in the test"
    async with kept_awake(), World.on_sockets() as made:
        yield made
