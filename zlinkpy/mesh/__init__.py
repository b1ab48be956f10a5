"""RouteMesh and ClientServer: peers, channels, selection, requests. `docs/mesh.md` shows how the parts fit together."""

from __future__ import annotations

from zlinkpy.mesh.calls import Calls
from zlinkpy.mesh.client_server_client import ClientOptions, ClientServerClient
from zlinkpy.mesh.client_server_server import ClientServerServer, ServerOptions
from zlinkpy.mesh.connections import (
    CONNECTIONS_CHANNEL,
    ConnectionReport,
    ConnectionsAsked,
    NodeConnections,
    ago,
    channel_reports,
    mesh_reports,
)
from zlinkpy.mesh.core import MeshCore
from zlinkpy.mesh.dispatch import HandlerTable
from zlinkpy.mesh.framework import FRAMEWORK_PREFIX
from zlinkpy.mesh.holder import LinkHolder
from zlinkpy.mesh.identity import (
    ListenPlan,
    automatic_rid,
    check_fixed_rid,
    check_peer_endpoint,
    check_prefix,
    plan_listener,
)
from zlinkpy.mesh.limits import DEFAULT_MAX_MESSAGE_BYTES, check_max_message_bytes
from zlinkpy.mesh.member_channel import Member, MemberChannel, open_member_channel
from zlinkpy.mesh.observation import channel_status
from zlinkpy.mesh.options import ANONYMOUS, MeshOptions
from zlinkpy.mesh.peers import ListedNode
from zlinkpy.mesh.request_table import RequestStatistics
from zlinkpy.mesh.route_mesh import RouteMesh
from zlinkpy.mesh.selection import DEFAULT_WEIGHT, check_weight
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
    "CONNECTIONS_CHANNEL",
    "DEFAULT_MAX_MESSAGE_BYTES",
    "DEFAULT_WEIGHT",
    "FRAMEWORK_PREFIX",
    "SNAPSHOT_PEER_LIMIT",
    "Calls",
    "ChannelRole",
    "ChannelStatus",
    "ClientOptions",
    "ClientServerClient",
    "ClientServerServer",
    "ClientSnapshot",
    "ConnectionReport",
    "ConnectionsAsked",
    "HandlerTable",
    "LinkHolder",
    "ListedNode",
    "ListenPlan",
    "Member",
    "MemberChannel",
    "MeshCore",
    "MeshOptions",
    "MeshSnapshot",
    "MeshStatus",
    "NodeConnections",
    "PeerPhase",
    "PeerSnapshot",
    "PeerState",
    "PeerStatus",
    "RequestStatistics",
    "RouteMesh",
    "ServerOptions",
    "TopologyState",
    "ago",
    "automatic_rid",
    "channel_reports",
    "channel_status",
    "check_fixed_rid",
    "check_max_message_bytes",
    "check_peer_endpoint",
    "check_prefix",
    "check_weight",
    "mesh_reports",
    "open_member_channel",
    "plan_listener",
]
