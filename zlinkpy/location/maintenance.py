"""Removing what dead nodes left in the store, on an operator's word (LO-146, C12).

Descriptors do not expire and no host deletes another's: a lapsed lease hides them, and a host that was merely cut off
finds its own again. Only a person knows that a node will not come back. Even then each row goes only if, read again
after the scan, it is still the row that was seen and its owner still has no lease; a host that came back in between
keeps its row.
"""

from __future__ import annotations

from attrs import frozen

from zlinkpy.location import keys
from zlinkpy.location.descriptors import decode_mesh_node
from zlinkpy.location.directory import NodeEntry, list_nodes
from zlinkpy.location.store import Applied, Delete, Found, IfMissing, IfVersion, LocationStore, StoreCorruption


@frozen(kw_only=True)
class Cleaned:
    """What `clean_nodes` did. `kept`: dead when listed, alive or changed when looked at again."""

    removed: tuple[NodeEntry, ...]
    kept: tuple[NodeEntry, ...]
    unreadable: int
    """Rows that cannot be understood; they are left alone."""


async def clean_nodes(store: LocationStore, mesh: str | None = None) -> Cleaned:
    """Delete the descriptors of nodes whose owner has no lease, of one mesh or of all.

    Raises StoreFailure when the store does not answer; what was removed until then stays removed.
    """
    listed = await list_nodes(store, mesh)
    removed: list[NodeEntry] = []
    kept: list[NodeEntry] = []
    for node in listed.nodes:
        if not node.is_live:
            (removed if await _remove(store, node) else kept).append(node)
    return Cleaned(removed=tuple(removed), kept=tuple(kept), unreadable=len(listed.unreadable))


async def _remove(store: LocationStore, node: NodeEntry) -> bool:
    key = keys.mesh_node(node.mesh_name, node.rid)
    row = await store.read(key)
    if not isinstance(row, Found):
        return False
    try:
        owner = decode_mesh_node(row.value).owner_id
    except StoreCorruption:
        return False
    answer = await store.write([IfVersion(key, row.version), IfMissing(keys.owner_lease(owner))], [Delete(key)])
    return isinstance(answer, Applied)
