"""Every node the store knows, for people and tools: all meshes at once, lapsed leases and unreadable rows included.

Discovery (`zlinkpy.location.discovery`) answers "whom may I connect to" and leaves out everybody else. Whoever
operates a mesh asks the opposite: what is in the store that should not be. So nothing is left out here and one bad
row does not hide the others. Nothing is written, and no decision may be based on the answer; it is old when it
arrives.
"""

from __future__ import annotations

from collections.abc import Mapping

import trio
from attrs import frozen

from zlinkpy.errors import UnavailableError
from zlinkpy.location import keys
from zlinkpy.location.descriptors import MeshNodeDescriptor, decode_mesh_node
from zlinkpy.location.discovery import SCAN_ATTEMPTS
from zlinkpy.location.rows import decode_lease, lease_remaining
from zlinkpy.location.store import Expired, Item, LocationStore, Missing, StoreCorruption
from zlinkpy.wire import RuntimeState


@frozen(kw_only=True)
class NodeEntry:
    """One MeshNode as published.

    Attributes:
        lease_seconds: What the owner's lease had left when it was read; None when it has lapsed, is missing, or is
        held by another
            run. A node without a lease is never connected to.
    """

    mesh_name: str
    rid: str
    endpoint: str
    state: RuntimeState
    channel_weights: Mapping[str, int]
    application_version: int
    owner_id: str
    lease_seconds: float | None

    @property
    def is_live(self) -> bool:
        """True while the owner's lease was valid."""
        return self.lease_seconds is not None


@frozen(kw_only=True)
class UnreadableNode:
    """A descriptor or lease row that cannot be understood."""

    key: str
    problem: str


@frozen(kw_only=True)
class NodeList:
    """What the store holds: nodes sorted by mesh and routing id."""

    nodes: tuple[NodeEntry, ...]
    unreadable: tuple[UnreadableNode, ...]


async def list_nodes(store: LocationStore, mesh: str | None = None) -> NodeList:
    """Read every node's descriptor, of one mesh or of all, and the leases of their owners.

    Raises StoreFailure when the store does not answer, UnavailableError when it cannot keep a snapshot for the time
    of a scan.
    """
    nodes: list[MeshNodeDescriptor] = []
    unreadable: list[UnreadableNode] = []
    for item in await _snapshot(store, keys.MESH_NODES_PREFIX if mesh is None else keys.mesh_node_prefix(mesh)):
        try:
            nodes.append(decode_mesh_node(item.value))
        except StoreCorruption as problem:
            unreadable.append(_unreadable(item.key, problem))
    leases: dict[tuple[str, int], float] = {}

    async def read(owner_id: str) -> None:
        key = keys.owner_lease(owner_id)
        try:
            answer = await store.read(key)
            if not isinstance(answer, Missing) and (remaining := lease_remaining(answer)) > 0:
                leases[owner_id, decode_lease(answer.value).lease_generation] = remaining
        except StoreCorruption as problem:
            unreadable.append(_unreadable(key, problem))

    try:
        async with trio.open_nursery() as nursery:
            for owner_id in {node.owner_id for node in nodes}:
                nursery.start_soon(read, owner_id)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    entries = (_entry(node, leases.get((node.owner_id, node.lease_generation))) for node in nodes)
    return NodeList(
        nodes=tuple(sorted(entries, key=lambda entry: (entry.mesh_name, entry.rid))),
        unreadable=tuple(sorted(unreadable, key=lambda row: row.key)),
    )


async def _snapshot(store: LocationStore, prefix: bytes) -> list[Item]:
    """Every row of one instant; a scan whose snapshot expired starts over (LO-041)."""
    for _ in range(SCAN_ATTEMPTS):
        items: list[Item] = []
        cursor: str | None = None
        while not isinstance(page := await store.scan(prefix, cursor=cursor), Expired):
            items.extend(page.items)
            if page.cursor is None:
                return items
            cursor = page.cursor
    raise UnavailableError("the store does not keep a snapshot as long as a scan takes", cause="LocationStore")


def _entry(node: MeshNodeDescriptor, lease_seconds: float | None) -> NodeEntry:
    return NodeEntry(
        mesh_name=node.mesh_name,
        rid=node.rid,
        endpoint=node.endpoint,
        state=node.state,
        channel_weights=node.channel_weights,
        application_version=node.application_version,
        owner_id=node.owner_id,
        lease_seconds=lease_seconds,
    )


def _unreadable(key: bytes, problem: StoreCorruption) -> UnreadableNode:
    return UnreadableNode(key=key.decode("utf-8", "backslashreplace").replace("\0", "/"), problem=problem.message)
