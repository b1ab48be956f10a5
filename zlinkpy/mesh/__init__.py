"""RouteMesh: peers, channels, selection, requests. `docs/mesh.md` shows how the parts fit together."""

from __future__ import annotations

from zlinkpy.mesh.calls import Calls
from zlinkpy.mesh.core import MeshCore
from zlinkpy.mesh.dispatch import HandlerTable
from zlinkpy.mesh.identity import (
    ListenPlan,
    automatic_rid,
    check_fixed_rid,
    check_peer_endpoint,
    check_prefix,
    plan_listener,
)
from zlinkpy.mesh.peers import ListedNode
from zlinkpy.mesh.request_table import RequestStatistics
from zlinkpy.mesh.route_mesh import ANONYMOUS, MeshOptions, RouteMesh
from zlinkpy.mesh.selection import DEFAULT_WEIGHT, check_weight
from zlinkpy.mesh.shapes import RawMessage
from zlinkpy.mesh.status import (
    SNAPSHOT_PEER_LIMIT,
    MeshSnapshot,
    MeshStatus,
    PeerPhase,
    PeerSnapshot,
    PeerState,
    PeerStatus,
    TopologyState,
)

__all__ = [
    "ANONYMOUS",
    "DEFAULT_WEIGHT",
    "SNAPSHOT_PEER_LIMIT",
    "Calls",
    "HandlerTable",
    "ListedNode",
    "ListenPlan",
    "MeshCore",
    "MeshOptions",
    "MeshSnapshot",
    "MeshStatus",
    "PeerPhase",
    "PeerSnapshot",
    "PeerState",
    "PeerStatus",
    "RawMessage",
    "RequestStatistics",
    "RouteMesh",
    "TopologyState",
    "automatic_rid",
    "check_fixed_rid",
    "check_peer_endpoint",
    "check_prefix",
    "check_weight",
    "plan_listener",
]
