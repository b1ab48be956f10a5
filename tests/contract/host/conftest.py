"""Hosts and puppets on one in-memory network in virtual time.

The clock of a run is the one a test itself names: ``async def test_x(autojump_clock: object, lan: Lan)``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from tests.contract.host.hosts import Lan
from zlinkpy.transport import MemoryNetwork


@pytest.fixture
async def lan(request: pytest.FixtureRequest) -> AsyncIterator[Lan]:
    """A network of mesh nodes, or with `both_kinds` of the ends of a ClientServer channel, too."""
    assert isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock), "name autojump_clock in the test"
    network = MemoryNetwork(seed=1)
    async with network.transport("puppet") as wire:
        yield Lan(network, wire, on_mesh=getattr(request, "param", "mesh") == "mesh")
