"""Removing what dead nodes left in the store (LO §8)."""

from __future__ import annotations

import json

import pytest
import trio
from click.testing import CliRunner

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH
from tests.location_hosts import node, plant, put
from tests.location_kinds import CHANNEL as CHANNEL_NAME
from tests.location_kinds import Subject, channel_kinds, publisher, server
from tests.location_server import TestServer, valkey, valkey_session  # noqa: F401
from zlinkpy.cli import main
from zlinkpy.entropy import SystemEntropy
from zlinkpy.location import (
    DescriptorPublisher,
    LeaseDriver,
    LocationOptions,
    MeshNodeDescriptor,
    OwnerLease,
    keys,
    open_store,
)
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
    host.mesh(MESH, listen="tcp://127.0.0.1:0").serve_channel(CHANNEL)
    async with host.run() as rt:
        cleaned = await clean_store(store, mesh=MESH)
        assert [node.rid for node in cleaned.removed] == ["dead"]
        assert cleaned.kept == ()
        assert {node.rid for node in (await list_nodes(store)).nodes} == {rt.node_rid(MESH), "elsewhere"}
        assert [node.rid for node in (await clean_store(store)).removed] == ["elsewhere"]


@pytest.mark.contract("LO-146")
@channel_kinds
async def test_what_dead_providers_left_goes_by_kind_and_channel(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    await plant(store, subject.describe("live"))
    await plant(store, subject.describe("dead"), lease=False)
    await plant(store, subject.describe("dead2", channel_name="other"), lease=False)
    await dead_node(store, "node")
    for nothing in (await clean_store(store, channel="unknown"), await clean_store(store, mesh="other")):
        assert (nothing.removed, nothing.kept, nothing.unreadable) == ((), (), 0)
    cleaned = await clean_store(store, channel=CHANNEL_NAME)
    assert [(entry.descriptor.kind, entry.rid) for entry in cleaned.removed] == [(subject.kind, "dead")]
    assert await subject.stored(store, "dead") is None
    assert await subject.stored(store, "live") is not None
    everything = await clean_store(store)
    assert [entry.rid for entry in everything.removed] == ["node", "dead2"]
    assert await subject.stored(store, "live") is not None


@pytest.mark.contract("LO-146")
@channel_kinds
async def test_a_provider_that_comes_back_in_between_keeps_its_row(autojump_clock: object, subject: Subject) -> None:
    store = ComesBack()
    await plant(store, subject.describe("sleeper"), lease=False)
    await put(store, subject.key("bad"), b"{}")
    store.owner = "sleeper"
    cleaned = await clean_store(store)
    assert cleaned.removed == ()
    assert [entry.rid for entry in cleaned.kept] == ["sleeper"]
    assert cleaned.unreadable == 1
    assert await subject.stored(store, "sleeper") is not None


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
    host.mesh(MESH, listen="tcp://127.0.0.1:0").use_channel(CHANNEL)
    async with host.run():
        [node] = (await list_nodes(store)).nodes
        assert dict(node.channel_weights) == {}


@pytest.mark.contract("LO-003")
async def test_a_host_with_manual_peers_serves_without_a_store(autojump_clock: object) -> None:
    network = MemoryNetwork(seed=1)
    host = zl.Host(transport=lambda _: network.transport("a"), watchdog=False)
    host.mesh(MESH, listen="tcp://127.0.0.1:0", peers=["tcp://127.0.0.1:5501"]).serve_channel(CHANNEL)
    async with host.run() as rt:
        await trio.sleep(60)
        assert rt.status.is_ready
        assert rt.status.store.state == "not_configured"


@pytest.mark.contract("LO-146")
def test_the_command_says_what_it_removed(valkey: TestServer) -> None:  # noqa: F811
    async def plant_dead() -> None:
        store = open_store(valkey.url)
        for descriptor in (node("n"), server("s"), publisher("p"), publisher("q", channel_name="other")):
            await put(
                store, descriptor.kind.key_of(descriptor), descriptor.kind.encode(descriptor.signed(1, "x", 1), 0)
            )
        await store.aclose()

    trio.run(plant_dead)
    by_channel = CliRunner().invoke(main, ["store", "clean", "--store", valkey.url, "--channel", "other"])
    assert by_channel.stdout == "removed fanout publisher other q\n1 removed, 0 kept, 0 unreadable\n"
    everything = CliRunner().invoke(main, ["store", "clean", "--store", valkey.url, "--json"])
    assert json.loads(everything.stdout) == {
        "removed": [
            {"kind": "mesh node", "mesh": "main", "rid": "n"},
            {"kind": "ClientServer server", "channel": CHANNEL_NAME, "rid": "s"},
            {"kind": "fanout publisher", "channel": CHANNEL_NAME, "rid": "p"},
        ],
        "kept": [],
        "unreadable": 0,
    }
