"""RouteMesh and ClientServer: peers, channels, selection, requests. `docs/mesh.md` shows how the parts fit together."""

from __future__ import annotations

from zlinkpy.mesh.calls import Calls
from zlinkpy.mesh.client_server_client import ClientOptions, ClientServerClient
from zlinkpy.mesh.client_server_server import ClientServerServer, ServerOptions
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
from zlinkpy.mesh.limits import DEFAULT_MAX_MESSAGE_BYTES, check_max_message_bytes
from zlinkpy.mesh.observation import channel_status
from zlinkpy.mesh.peers import ListedNode
from zlinkpy.mesh.request_table import RequestStatistics
from zlinkpy.mesh.route_mesh import ANONYMOUS, MeshOptions, RouteMesh
from zlinkpy.mesh.selection import DEFAULT_WEIGHT, check_weight
from zlinkpy.mesh.shapes import RawMessage
from zlinkpy.mesh.status import (
    SNAPSHOT_PEER_LIMIT,
    ChannelRole,
    ChannelStatus,
    ClientSnapshot,
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
    "DEFAULT_MAX_MESSAGE_BYTES",
    "DEFAULT_WEIGHT",
    "SNAPSHOT_PEER_LIMIT",
    "Calls",
    "ChannelRole",
    "ChannelStatus",
    "ClientOptions",
    "ClientServerClient",
    "ClientServerServer",
    "ClientSnapshot",
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
    "ServerOptions",
    "TopologyState",
    "automatic_rid",
    "channel_status",
    "check_fixed_rid",
    "check_max_message_bytes",
    "check_peer_endpoint",
    "check_prefix",
    "check_weight",
    "plan_listener",
]
