"""Removing what dead processes left in the store, on an operator's word (LO-146, C12).

Descriptors do not expire and no host deletes another's: a lapsed lease hides them, and a host that was merely cut off
finds its own again. Only a person knows that a process will not come back. Even then each row goes only if, read again
after the scan, it is still the row that was seen and its owner still has no lease; a host that came back in between
keeps its rows.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from zlinkpy.location import keys
from zlinkpy.location.channel_descriptors import CLIENT_SERVER, FANOUT
from zlinkpy.location.descriptor_kind import Descriptor, DescriptorKind
from zlinkpy.location.descriptors import MESH_NODE
from zlinkpy.location.directory import Listed, list_kind
from zlinkpy.location.store import Applied, Delete, Found, IfMissing, IfVersion, LocationStore, StoreCorruption


@frozen(kw_only=True)
class Cleaned:
    """What `clean_store` did. `kept`: dead when listed, alive or changed when looked at again."""

    removed: tuple[Listed[Descriptor], ...]
    kept: tuple[Listed[Descriptor], ...]
    unreadable: int
    """Rows that cannot be understood; they are left alone."""


async def clean_store(store: LocationStore, *, mesh: str | None = None, channel: str | None = None) -> Cleaned:
    """Delete the descriptors whose owner has no lease: of nodes, of ClientServer servers, of fanout publishers.

    `mesh` limits it to the nodes of one mesh, `channel` to the servers and publishers of one channel; with both,
    exactly those. Raises StoreFailure when the store does not answer; what was removed until then stays removed.
    """
    every = mesh is None and channel is None
    scopes: list[tuple[DescriptorKind[Any], str | None]] = []
    if every or mesh is not None:
        scopes.append((MESH_NODE, mesh))
    if every or channel is not None:
        scopes += [(CLIENT_SERVER, channel), (FANOUT, channel)]
    removed: list[Listed[Descriptor]] = []
    kept: list[Listed[Descriptor]] = []
    unreadable: set[str] = set()
    for kind, scope in scopes:
        listed = await list_kind(store, kind, scope)
        unreadable.update(row.key for row in listed.unreadable)
        for entry in listed.entries:
            if not entry.is_live:
                (removed if await _remove(store, kind, entry.descriptor) else kept).append(entry)
    return Cleaned(removed=tuple(removed), kept=tuple(kept), unreadable=len(unreadable))


async def _remove(store: LocationStore, kind: DescriptorKind[Any], descriptor: Descriptor) -> bool:
    key = kind.key_of(descriptor)
    row = await store.read(key)
    if not isinstance(row, Found):
        return False
    try:
        owner = kind.decode(row.value).owner_id
    except StoreCorruption:
        return False
    answer = await store.write([IfVersion(key, row.version), IfMissing(keys.owner_lease(owner))], [Delete(key)])
    return isinstance(answer, Applied)
