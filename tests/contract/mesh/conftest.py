"""Whole nodes for the liveness contract: hosts and puppets on one in-memory network, or on real sockets.

A test names its clock itself, because a clock counts only when the test function asks for it:
``async def test_x(autojump_clock: object, world: World)`` or ``(fast_clock: object, sockets: World)``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from tests.contract.mesh.nodes import World
from tests.patient_clock import patient_clock


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """An in-memory network. Hosts that a test starts are stopped with it."""
    assert isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock), "name autojump_clock in the test"
    async with World.in_memory() as made:
        yield made


@pytest.fixture
def fast_clock() -> trio.testing.MockClock:
    """Twenty seconds in one: for real sockets, where a clock that jumps would not wait for them."""
    return patient_clock(rate=20)


@pytest.fixture
async def sockets() -> AsyncIterator[World]:
    """Real ZeroMQ sockets on the loopback interface."""
    assert isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock), "name fast_clock in the test"
    async with World.on_sockets() as made:
        yield made
