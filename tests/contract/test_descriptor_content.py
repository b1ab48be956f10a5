"""LO section 8: what a descriptor may say, and which of it may change under one key."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from attrs import evolve

from tests.location_hosts import (
    MESH,
    Gate,
    host,
    node,
    stored_node,
)
from tests.location_kinds import NODE
from zlinkpy.errors import ConfigurationError, InvalidOperationError
from zlinkpy.location import (
    NodeCapacity,
    ObjectCapability,
    Usage,
    keys,
)
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.wire import ObjectRole, RuntimeState

NODES = keys.mesh_node_prefix(MESH)


@pytest.mark.contract("LO-137")
async def test_counts_alone_are_published_with_the_next_change_only(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    own = node("a", capacity=NodeCapacity(actors=Usage(limit=10)))
    busy = evolve(own, capacity=NodeCapacity(actors=Usage(3, 1, 10), activations_active=2))
    async with host(store, "a", gate=gate, own=own, discover=False) as running:
        running.publisher.update(busy)
        assert await running.publisher.settled()
        await trio.sleep(3)
        assert len(NODE.sent(gate)) == 1
        running.publisher.update(evolve(busy, placement_weight=1))
        assert await running.publisher.settled()
        assert NODE.sent(gate)[-1].capacity == busy.capacity


IDENTITY = {
    "endpoint": "tcp://10.0.0.1:9999",
    "rid": "b",
    "mesh_name": "other",
    "lifecycle_generation": 8,
    "channel_weights": {"chat": 1, "jobs": 1},
    "object_role": ObjectRole.CLIENT,
    "object_capabilities": (ObjectCapability("actor", "user"),),
    "capacity": NodeCapacity(actors=Usage(limit=11)),
    "entry_spot_id": "a-entry",
    "security_identity": "curve",
    "application_version": 2,
}
MUTABLE = {
    "state": RuntimeState.RELOCATING,
    "channel_weights": {"chat": 2},
    "placement_weight": 1,
    "maintenance_wave": "w2",
}


@pytest.mark.contract("LO-138")
@pytest.mark.parametrize("name", IDENTITY)
async def test_identity_cannot_change_under_one_key(autojump_clock: object, name: str) -> None:
    store = MemoryStore()
    gate = Gate(store)
    own = node("a", channel_weights={"chat": 1}, application_version=1, capacity=NodeCapacity(actors=Usage(limit=10)))
    async with host(store, "a", gate=gate, own=own, discover=False) as running:
        with pytest.raises(InvalidOperationError, match=name):
            running.publisher.update(evolve(own, **{name: IDENTITY[name]}))
        await trio.sleep(3)
        assert len(NODE.sent(gate)) == 1


@pytest.mark.contract("LO-138")
@pytest.mark.parametrize("name", MUTABLE)
async def test_what_may_change_is_published(autojump_clock: object, name: str) -> None:
    store = MemoryStore()
    own = node("a", channel_weights={"chat": 1})
    async with host(store, "a", own=own, discover=False) as running:
        running.publisher.update(evolve(own, **{name: MUTABLE[name]}))
        assert await running.publisher.settled()
        stored = await stored_node(store, "a")
        assert stored is not None
        assert getattr(stored, name) == MUTABLE[name]
        assert stored.descriptor_revision == 2


@pytest.mark.contract("LO-081")
async def test_too_many_capabilities_end_the_start_with_nothing_published(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    types = tuple(ObjectCapability("actor", f"t{n}") for n in range(1025))
    with pytest.raises(ConfigurationError, match="1024"):
        async with host(store, "a", gate=gate, own=node("a", object_capabilities=types)):
            raise AssertionError("the host must not start")
    assert gate.writes(NODES) == []
    async with host(store, "a", gate=gate, own=node("a", object_capabilities=types[:-1])):
        stored = await stored_node(store, "a")
        assert stored is not None
        assert stored.object_capabilities == types[:-1]
