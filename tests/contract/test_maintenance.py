"""Removing what dead nodes left in the store (LO §8)."""

from __future__ import annotations

import pytest
import trio

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH
from zlinkpy.entropy import SystemEntropy
from zlinkpy.location import DescriptorPublisher, LeaseDriver, LocationOptions, MeshNodeDescriptor, OwnerLease, keys
from zlinkpy.location.directory import list_nodes
from zlinkpy.location.maintenance import clean_store
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Applied, Conflict, Found, Put
from zlinkpy.transport import MemoryNetwork


async def dead_node(store: MemoryStore, rid: str, mesh: str = MESH) -> str:
    """Publish a node and let its process vanish without a word; returns its owner id."""
    options = LocationOptions()
    descriptor = MeshNodeDescriptor(
        mesh_name=mesh, rid=rid, lifecycle_generation=1, endpoint="tcp://127.0.0.1:5501", security_identity="anonymous"
    )
    async with OwnerLease(store, options, SystemEntropy(), driver=LeaseDriver.LOOP) as lease:
        async with DescriptorPublisher(store, lease, options) as publisher:
            await publisher.publish(descriptor)
            row = await store.read(keys.mesh_node(mesh, rid))
    assert isinstance(row, Found)
    await store.write([], [Put(keys.mesh_node(mesh, rid), row.value)])
    return lease.owner_id


@pytest.mark.contract("LO-146")
async def test_only_rows_of_nodes_without_a_lease_go(autojump_clock: object) -> None:
    store = MemoryStore()
    await dead_node(store, "dead")
    await dead_node(store, "elsewhere", "other")
    network = MemoryNetwork(seed=1)
    host = zl.Host(
        location_store=store, transport=lambda _: network.transport("a"), lease_driver=LeaseDriver.LOOP, watchdog=False
    )
    host.mesh(MESH, listen="tcp://a:0").serve_channel(CHANNEL)
    async with host.run() as rt:
        cleaned = await clean_store(store, mesh=MESH)
        assert [node.rid for node in cleaned.removed] == ["dead"]
        assert cleaned.kept == ()
        assert {node.rid for node in (await list_nodes(store)).nodes} == {rt.node_rid(MESH), "elsewhere"}
        assert [node.rid for node in (await clean_store(store)).removed] == ["elsewhere"]


class ComesBack(MemoryStore):
    """A store in which the owner of a dead node claims its lease again right before its row is deleted."""

    owner = ""

    async def write(self, conditions: object, mutations: object) -> Applied | Conflict:  # type: ignore[override]
        if self.owner:
            owner, self.owner = self.owner, ""
            row = LeaseRow(owner_id=owner, lease_generation=7).encode()
            await super().write([], [Put(keys.owner_lease(owner), row, 15_000)])
        return await super().write(conditions, mutations)  # type: ignore[arg-type]


@pytest.mark.contract("LO-146")
async def test_a_node_that_comes_back_in_between_keeps_its_row(autojump_clock: object) -> None:
    store = ComesBack()
    owner = await dead_node(store, "sleeper")
    store.owner = owner
    cleaned = await clean_store(store)
    assert cleaned.removed == ()
    assert [node.rid for node in cleaned.kept] == ["sleeper"]
    assert isinstance(await store.read(keys.mesh_node(MESH, "sleeper")), Found)


@pytest.mark.contract("LO-140")
async def test_a_node_that_only_calls_channels_publishes_no_weights(autojump_clock: object) -> None:
    store = MemoryStore()
    network = MemoryNetwork(seed=1)
    host = zl.Host(
        location_store=store, transport=lambda _: network.transport("a"), lease_driver=LeaseDriver.LOOP, watchdog=False
    )
    host.mesh(MESH, listen="tcp://a:0").use_channel(CHANNEL)
    async with host.run():
        [node] = (await list_nodes(store)).nodes
        assert dict(node.channel_weights) == {}


@pytest.mark.contract("LO-003")
async def test_a_host_with_manual_peers_serves_without_a_store(autojump_clock: object) -> None:
    network = MemoryNetwork(seed=1)
    host = zl.Host(transport=lambda _: network.transport("a"), watchdog=False)
    host.mesh(MESH, listen="tcp://a:0", peers=["tcp://b:5501"]).serve_channel(CHANNEL)
    async with host.run() as rt:
        await trio.sleep(60)
        assert rt.status.is_ready
        assert rt.status.store.state == "not_configured"
