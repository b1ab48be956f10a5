"""One fixture for every kind of bus; the real clock, since one of them is on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.contract.sessions.buses.nodes import (
    Buses,
    Keeper,
    MemoryBuses,
    MeshBuses,
    RedisBuses,
    SplitBuses,
)
from tests.location_server import TestServer, valkey, valkey_session  # noqa: F401

KINDS = ("memory", "redis", "mesh", "split")


@pytest.fixture
async def keeper() -> AsyncIterator[Keeper]:
    async with Keeper.running() as made:
        yield made


@pytest.fixture(params=KINDS)
async def buses(request: pytest.FixtureRequest, keeper: Keeper) -> Buses:
    """An empty bus of each kind."""
    kind = request.param
    if kind == "memory":
        return MemoryBuses()
    if kind == "mesh":
        return MeshBuses(keeper)
    server = request.getfixturevalue("valkey")
    redis = RedisBuses(keeper, server)
    return redis if kind == "redis" else SplitBuses(redis, MeshBuses(keeper))


@pytest.fixture
def redis_buses(keeper: Keeper, valkey: TestServer) -> RedisBuses:  # noqa: F811
    return RedisBuses(keeper, valkey)


@pytest.fixture
def mesh_buses(keeper: Keeper) -> MeshBuses:
    """Hosts on one in-memory network; name autojump_clock in the test."""
    return MeshBuses(keeper)
