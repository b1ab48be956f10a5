"""Everything the store knows, for people and tools: whole kinds at once, lapsed leases and unreadable rows included.

Discovery (`zlinkpy.location.discovery`) answers "whom may I connect to" and leaves out everybody else. Whoever
operates a system asks the opposite: what is in the store that should not be. So nothing is left out here and one bad
row does not hide the others. Nothing is written, and no decision may be based on the answer; it is old when it
arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import trio
from attrs import frozen

from zlinkpy.errors import UnavailableError
from zlinkpy.location import keys
from zlinkpy.location.channel_descriptors import CLIENT_SERVER, FANOUT, ClientServerDescriptor, FanoutDescriptor
from zlinkpy.location.descriptor_kind import D, Descriptor, DescriptorKind
from zlinkpy.location.descriptors import MESH_NODE, MeshNodeDescriptor
from zlinkpy.location.discovery import SCAN_ATTEMPTS
from zlinkpy.location.rows import decode_lease, lease_remaining
from zlinkpy.location.store import Expired, Item, LocationStore, Missing, StoreCorruption
from zlinkpy.wire import RuntimeState

D_co = TypeVar("D_co", bound=Descriptor, covariant=True)


@frozen
class Listed(Generic[D_co]):
    """One descriptor as published.

    Attributes:
        lease_seconds: What the owner's lease had left when it was read; None when it has lapsed, is missing, or is
            held by another run. Nobody connects without a lease.
    """

    descriptor: D_co
    lease_seconds: float | None

    @property
    def rid(self) -> str:
        """The routing id."""
        return self.descriptor.rid

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
class Listing(Generic[D_co]):
    """What the store holds of one kind, sorted by mesh or channel and routing id."""

    entries: tuple[Listed[D_co], ...]
    unreadable: tuple[UnreadableNode, ...]


@frozen(kw_only=True)
class NodeEntry:
    """One MeshNode as published; `lease_seconds` as in `Listed`."""

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
class NodeList:
    """What the store holds: nodes sorted by mesh and routing id."""

    nodes: tuple[NodeEntry, ...]
    unreadable: tuple[UnreadableNode, ...]


async def list_nodes(store: LocationStore, mesh: str | None = None) -> NodeList:
    """Read every node's descriptor, of one mesh or of all, and the leases of their owners.

    Raises StoreFailure when the store does not answer, UnavailableError when it cannot keep a snapshot for the time
    of a scan.
    """
    found = await list_kind(store, MESH_NODE, mesh)
    return NodeList(nodes=tuple(_node(entry) for entry in found.entries), unreadable=found.unreadable)


async def list_servers(store: LocationStore, channel: str | None = None) -> Listing[ClientServerDescriptor]:
    """Read the descriptors of ClientServer servers, of one channel or of all; raises as `list_nodes`."""
    return await list_kind(store, CLIENT_SERVER, channel)


async def list_publishers(store: LocationStore, channel: str | None = None) -> Listing[FanoutDescriptor]:
    """Read the descriptors of fanout publishers, of one channel or of all; raises as `list_nodes`."""
    return await list_kind(store, FANOUT, channel)


async def list_kind(store: LocationStore, kind: DescriptorKind[D], scope: str | None = None) -> Listing[D]:
    """Read the descriptors of one kind, of one mesh or channel or of all; raises as `list_nodes`."""
    descriptors: list[D] = []
    unreadable: list[UnreadableNode] = []
    for item in await _snapshot(store, kind.all_prefix if scope is None else kind.prefix(scope)):
        try:
            descriptors.append(kind.decode_at(item.key, item.value))
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
            for owner_id in {descriptor.owner_id for descriptor in descriptors}:
                nursery.start_soon(read, owner_id)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    descriptors.sort(key=lambda descriptor: (descriptor.scope, descriptor.rid))
    return Listing(
        entries=tuple(Listed(each, leases.get((each.owner_id, each.lease_generation))) for each in descriptors),
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


def _node(entry: Listed[MeshNodeDescriptor]) -> NodeEntry:
    node = entry.descriptor
    return NodeEntry(
        mesh_name=node.mesh_name,
        rid=node.rid,
        endpoint=node.endpoint,
        state=node.state,
        channel_weights=node.channel_weights,
        application_version=node.application_version,
        owner_id=node.owner_id,
        lease_seconds=entry.lease_seconds,
    )


def _unreadable(key: bytes, problem: StoreCorruption) -> UnreadableNode:
    return UnreadableNode(key=key.decode("utf-8", "backslashreplace").replace("\0", "/"), problem=problem.message)
