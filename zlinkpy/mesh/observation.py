"""Reading a mesh: topology status and diagnostic snapshot, computed from the peers when asked (OB-16, LV-164)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from zlinkpy.mesh.peers import Peer
from zlinkpy.mesh.status import (
    SNAPSHOT_PEER_LIMIT,
    MeshSnapshot,
    MeshStatus,
    PeerSnapshot,
    PeerState,
    PeerStatus,
    TopologyState,
)
from zlinkpy.wire import FlowState, RuntimeState

if TYPE_CHECKING:
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
        phase=peer.phase,
        last_failure=peer.last_failure,
        last_receive=link.pair.last_receive if link is not None else None,
        paused=link is not None and link.pair.remote_flow is FlowState.PAUSED,
        waiting=link.waiting if link is not None else 0,
        runtime_state=remote.runtime_state.name.lower() if remote is not None else None,
        channels=MappingProxyType(dict(peer.channels)),
        dials=peer.intent.dials if peer.intent is not None else 0,
    )
