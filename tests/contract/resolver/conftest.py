"""A resolver of a node `me` in front of a gate, with link evidence that the test sets."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define, field

from tests.authority_hosts import (
    FAR,
    Cluster,
    committed_move,
    owner,
)
from tests.location_hosts import OPTIONS, Gate
from zlinkpy.location import MemoryStore
from zlinkpy.location.authority import (
    AuthorityRecord,
    ObjectState,
    Owner,
    Resolver,
    RouteCache,
    SpaceReserved,
    Written,
    unit_slots,
)

READY, CLOSING = ObjectState.READY, ObjectState.CLOSING
P, Q = owner("p"), owner("q")
RELOCATION = (1).to_bytes(16, "big")


@define
class Links:
    """Link evidence as the test sets it: which runs are connected."""

    ready: set[tuple[str, int]] = field(factory=set)
    asked: int = 0

    def evidence(self, rid: str, generation: int = 0) -> bool:
        self.asked += 1
        return (rid, generation) in self.ready


@define
class Bench:
    cluster: Cluster
    gate: Gate
    links: Links
    cache: RouteCache
    resolver: Resolver
    nodes: dict[str, tuple[str, int]]

    def reads(self) -> list[bytes]:
        return [call.key for call in self.gate.calls if call.operation == "read"]

    async def moved(self, record: AuthorityRecord, to: Owner = Q, **more: Any) -> AuthorityRecord:
        slots = unit_slots(record.row)
        target = self.cluster[to.rid]
        space = await target.reserve_space(to, RELOCATION, slots, self.cluster.descriptors[to.rid], FAR)
        assert space == SpaceReserved()
        written = await target.change_owner(committed_move(record, to, relocation_id=RELOCATION, **more), FAR)
        assert isinstance(written, Written), written
        return written.record


@pytest.fixture
async def bench() -> Bench:
    """The resolver of a node `me`, connected to p and q."""
    cluster = Cluster(MemoryStore())
    for rid in ("p", "q", "me"):
        await cluster.start(rid)
    gate = Gate(cluster.store)
    links, nodes = Links({("p", 7), ("q", 7)}), {"main": ("me", 7)}
    cache = RouteCache(OPTIONS)
    resolver = Resolver(gate, cluster["me"], links, nodes, OPTIONS, cache)
    return Bench(cluster, gate, links, cache, resolver, nodes)
