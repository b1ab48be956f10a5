"""Reading a mesh or a ClientServer channel: statuses and snapshots, computed when asked (OB-13, OB-16, LV-164)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from zlinkpy.mesh.peers import Peer
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
from zlinkpy.wire import FlowState, RuntimeState

if TYPE_CHECKING:
    from zlinkpy.mesh.client_server_client import ClientServerClient
    from zlinkpy.mesh.client_server_server import ClientServerServer
    from zlinkpy.mesh.peer_link import PeerLink
    from zlinkpy.mesh.route_mesh import RouteMesh


def mesh_status(mesh: RouteMesh) -> MeshStatus:
    """The topology status (OB-16): states only, no endpoints or generations."""
    # An endpoint that leads to a node which is listed already, or to this one, is no peer of its own.
    book = [peer for peer in mesh.book if peer.same_as is None]
    peers = tuple(
        PeerStatus(
            node_rid=peer.rid,
            state=peer.state,
            reason=peer.last_failure.reason.value if peer.last_failure is not None and not peer.ready else None,
        )
        for peer in book
    )
    ready = sum(1 for peer in book if peer.ready)
    serving = mesh.core.runtime_state is RuntimeState.SERVING
    missing = any(
        peer.state is PeerState.NOT_CONNECTED and known.is_wanted for peer, known in zip(peers, book, strict=True)
    )
    if mesh.closing:
        state, reason = TopologyState.STOPPING, "draining"
    elif mesh.core.runtime_state is RuntimeState.PREPARING:
        state, reason = TopologyState.STARTING, "runtime_not_ready"
    elif missing:
        state, reason = TopologyState.DEGRADED, "no_ready_peer"
    else:
        state, reason = TopologyState.READY, None
    return MeshStatus(
        mesh_name=mesh.name,
        node_rid=mesh.rid,
        state=state,
        reason=reason,
        is_ready=serving and not mesh.closing,
        ready_peers=ready,
        ready_targets=MappingProxyType({channel.name: len(channel.cycle) for channel in mesh.channels.values()}),
        channel_weights=MappingProxyType(mesh.server_weights),
        peers=peers,
    )


def mesh_snapshot(mesh: RouteMesh) -> MeshSnapshot:
    """The bounded diagnostic view (LV-164..169)."""
    everyone = list(mesh.book)
    return MeshSnapshot(
        mesh_name=mesh.name,
        node_rid=mesh.rid,
        endpoint=mesh.endpoint,
        peers=tuple(_snapshot(peer) for peer in everyone[:SNAPSHOT_PEER_LIMIT]),
        omitted=max(0, len(everyone) - SNAPSHOT_PEER_LIMIT),
    )


def _snapshot(peer: Peer) -> PeerSnapshot:
    link = peer.link
    remote = peer.remote
    return PeerSnapshot(
        node_rid=peer.rid,
        endpoint=peer.endpoint or (remote.advertised_endpoint if remote is not None else None),
        state=peer.state,
        phase=peer.phase,
        last_failure=peer.last_failure,
        last_receive=link.pair.last_receive if link is not None else None,
        paused=link is not None and link.pair.remote_flow is FlowState.PAUSED,
        waiting=link.waiting if link is not None else 0,
        runtime_state=remote.runtime_state.name.lower() if remote is not None else None,
        channels=MappingProxyType(dict(peer.channels)),
        dials=peer.intent.dials if peer.intent is not None else 0,
    )


def channel_status(server: ClientServerServer | None, client: ClientServerClient | None) -> ChannelStatus:
    """The status of a ClientServer channel; at least one of its roles is given."""
    one = server or client
    assert one is not None
    core = one.core
    role = ChannelRole.SERVER
    if client is not None:
        role = ChannelRole.CLIENT if server is None else ChannelRole.CLIENT_AND_SERVER
    peers = [peer for peer in client.book if peer.same_as is None] if client is not None else []
    clients = [link for link in server.links if not link.pair.ended] if server is not None else []
    state, reason = TopologyState.READY, None
    if one.closing:
        state, reason = TopologyState.STOPPING, "draining"
    elif core.runtime_state is RuntimeState.PREPARING:
        state, reason = TopologyState.STARTING, "runtime_not_ready"
    elif client is not None and not len(client.cycle):
        state, reason = TopologyState.DEGRADED, "no_ready_target"
    elif any(peer.state is PeerState.NOT_CONNECTED and peer.is_wanted for peer in peers):
        state, reason = TopologyState.DEGRADED, "no_ready_peer"
    return ChannelStatus(
        channel_name=one.name,
        role=role,
        state=state,
        reason=reason,
        is_ready=core.runtime_state is RuntimeState.SERVING and not one.closing,
        ready_targets=len(client.cycle) if client is not None else 0,
        waiting_calls=client.waiting_calls if client is not None else 0,
        peers=tuple(_snapshot(peer) for peer in peers[:SNAPSHOT_PEER_LIMIT]),
        omitted=max(0, len(peers) - SNAPSHOT_PEER_LIMIT),
        server_rid=server.rid if server is not None else None,
        endpoint=server.endpoint if server is not None else None,
        weight=server.weight if server is not None else None,
        ready_clients=sum(1 for link in clients if link.is_ready),
        clients=tuple(_client(link) for link in clients[:SNAPSHOT_PEER_LIMIT]),
        clients_omitted=max(0, len(clients) - SNAPSHOT_PEER_LIMIT),
        last_client_failure=server.last_failure if server is not None else None,
    )


def _client(link: PeerLink) -> ClientSnapshot:
    connection = next(iter(link.lanes.values()), None)
    return ClientSnapshot(
        connection=connection.id if connection is not None else None,
        phase=_client_phase(link),
        last_receive=link.pair.last_receive,
        paused=link.pair.remote_flow is FlowState.PAUSED,
    )


def _client_phase(link: PeerLink) -> PeerPhase:
    if link.is_ready:
        return PeerPhase.READY
    return PeerPhase.ADMITTED if link.admitted else PeerPhase.CONNECTING
