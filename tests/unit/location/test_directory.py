"""The list of nodes leaves nothing out and lets nothing hide the rest."""

from __future__ import annotations

import pytest

from tests.location_hosts import plant
from tests.location_kinds import CHANNEL, publisher, server
from zlinkpy.errors import UnavailableError
from zlinkpy.location import FANOUT, keys, list_nodes, list_publishers, list_servers
from zlinkpy.location.descriptors import MeshNodeDescriptor, encode_mesh_node
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Expired, Page, Put
from zlinkpy.wire import RuntimeState


def descriptor(mesh: str, rid: str, owner: str, generation: int = 1) -> MeshNodeDescriptor:
    return MeshNodeDescriptor(
        mesh_name=mesh,
        rid=rid,
        lifecycle_generation=5,
        endpoint=f"tcp://127.0.0.1:{len(rid)}",
        security_identity="anonymous",
        state=RuntimeState.SERVING,
        channel_weights={"echo": 70},
    ).signed(1, owner, generation)


async def publish(store: MemoryStore, *nodes: MeshNodeDescriptor) -> None:
    for node in nodes:
        await store.write([], [Put(keys.mesh_node(node.mesh_name, node.rid), encode_mesh_node(node, 0))])


async def lease(store: MemoryStore, owner: str, generation: int = 1, retention_ms: int | None = 15_000) -> None:
    await store.write([], [Put(keys.owner_lease(owner), LeaseRow(owner, generation).encode(), retention_ms)])


async def test_nodes_of_all_meshes_come_sorted_with_what_their_lease_has_left() -> None:
    now = 1_000_000
    store = MemoryStore(clock=lambda: now)
    await publish(store, descriptor("b", "r1", "o1"), descriptor("a", "r2", "o1"), descriptor("a", "r10", "o2"))
    await lease(store, "o1")
    await lease(store, "o2")
    now += 5_000
    found = await list_nodes(store)
    assert [(node.mesh_name, node.rid, node.lease_seconds) for node in found.nodes] == [
        ("a", "r10", 10.0),
        ("a", "r2", 10.0),
        ("b", "r1", 10.0),
    ]
    node = found.nodes[0]
    assert (node.endpoint, node.state, dict(node.channel_weights), node.owner_id, node.is_live) == (
        "tcp://127.0.0.1:3",
        RuntimeState.SERVING,
        {"echo": 70},
        "o2",
        True,
    )
    assert [node.rid for node in (await list_nodes(store, "b")).nodes] == ["r1"]
    assert found.unreadable == ()


async def test_a_node_without_its_own_lease_is_listed_as_lapsed() -> None:
    now = 1_000_000
    store = MemoryStore(clock=lambda: now)
    await publish(store, descriptor("a", "gone", "o1"), descriptor("a", "older", "o2", generation=1))
    await lease(store, "o2", generation=2)
    found = await list_nodes(store)
    assert [(node.rid, node.is_live) for node in found.nodes] == [("gone", False), ("older", False)]


async def test_rows_that_cannot_be_read_are_named_and_hide_nothing() -> None:
    store = MemoryStore(clock=lambda: 1)
    await publish(store, descriptor("a", "r1", "o1"), descriptor("a", "r2", "o2"))
    await store.write([], [Put(keys.mesh_node("a", "r3"), b"{}")])
    await lease(store, "o1")
    await lease(store, "o2", retention_ms=None)
    found = await list_nodes(store)
    assert [(node.rid, node.is_live) for node in found.nodes] == [("r1", True), ("r2", False)]
    assert [row.key for row in found.unreadable] == ["mesh-node/a/7233", "owner-lease/o2"]
    assert "no expiry" in found.unreadable[1].problem


async def test_servers_and_publishers_come_with_their_leases_and_leave_each_other_out() -> None:
    now = 1_000_000
    store = MemoryStore(clock=lambda: now)
    for rid in ("r2", "r1"):
        await plant(store, server(rid))
        await plant(store, publisher(rid, channel_name="news"), lease=False)
    await plant(store, server("r3", channel_name="a"), generation=2, lease=False)
    await plant(store, publisher("r9", channel_name="a"))
    await publish(store, descriptor("a", "node", "r1"))
    await store.write([], [Put(keys.client_server(CHANNEL, "bad"), b"{}")])
    await store.write([], [Put(keys.fanout("a", "r7"), FANOUT.encode(publisher("r8").signed(1, "r8", 1), 0))])
    now += 5_000
    servers = await list_servers(store)
    assert [(entry.descriptor.channel_name, entry.rid, entry.lease_seconds) for entry in servers.entries] == [
        ("a", "r3", None),
        (CHANNEL, "r1", 10.0),
        (CHANNEL, "r2", 10.0),
    ]
    assert servers.entries[1].descriptor == server("r1").signed(1, "r1", 1)
    assert [row.key for row in servers.unreadable] == [f"client-server/{CHANNEL}/{b'bad'.hex()}"]
    publishers = await list_publishers(store)
    assert [(entry.rid, entry.is_live) for entry in publishers.entries] == [("r9", True), ("r1", True), ("r2", True)]
    assert [row.key for row in publishers.unreadable] == [f"fanout-publisher/a/{b'r7'.hex()}"]
    assert [entry.rid for entry in (await list_servers(store, "a")).entries] == ["r3"]
    assert [entry.rid for entry in (await list_publishers(store, "a")).entries] == ["r9"]
    assert [node.rid for node in (await list_nodes(store)).nodes] == ["node"]


class Forgetful(MemoryStore):
    """Loses the snapshot of every scan after the first page, `losses` times."""

    losses = 0

    async def scan(self, prefix: bytes, *, cursor: str | None = None, limit: int = 1000) -> Page | Expired:
        if cursor is not None and self.losses:
            self.losses -= 1
            return Expired()
        return await super().scan(prefix, cursor=cursor, limit=1)


@pytest.mark.parametrize(("losses", "works"), [(0, True), (2, True), (3, False)])
async def test_a_lost_snapshot_is_read_again_from_the_start(losses: int, works: bool) -> None:
    store = Forgetful(clock=lambda: 1)
    await publish(store, *(descriptor("a", f"r{number}", "o1") for number in range(3)))
    store.losses = losses
    if works:
        assert [node.rid for node in (await list_nodes(store)).nodes] == ["r0", "r1", "r2"]
    else:
        with pytest.raises(UnavailableError, match="snapshot"):
            await list_nodes(store)
