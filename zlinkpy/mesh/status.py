"""Frozen copies of what a mesh or channel knows: topology status for programs, diagnostics for people (OB-16, OB-22,
LV-164..169).

The topology status names states only; endpoints, identities of connections and times stand in the diagnostic snapshot,
which is bounded (LV [D12]).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from attrs import frozen

from zlinkpy.link import Failure

SNAPSHOT_PEER_LIMIT = 256
"""A diagnostic snapshot lists at most so many peers; the rest is counted in `omitted` (LV [D12])."""


class PeerState(StrEnum):
    """A peer as a topology status shows it (OB-13)."""

    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"
    NOT_CONNECTED = "not_connected"
    NOT_REQUIRED = "not_required"


class PeerPhase(StrEnum):
    """Where a connection stands, for diagnosis (LV-164)."""

    CONFIGURED = "configured"
    CONNECTING = "connecting"
    ADMITTED = "admitted"
    READY = "ready"
    RECONNECTING = "reconnecting"
    NOT_REQUIRED = "not_required"


class TopologyState(StrEnum):
    """The state of a whole mesh or channel (OB-13)."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    STOPPING = "stopping"
    STOPPED = "stopped"


class ChannelRole(StrEnum):
    """What a host is on a ClientServer channel (OB-13)."""

    CLIENT = "client"
    SERVER = "server"
    CLIENT_AND_SERVER = "client_and_server"


@frozen(kw_only=True)
class PeerStatus:
    """One peer in a topology status."""

    node_rid: str | None
    """None for a configured endpoint that has not said who it is."""
    state: PeerState
    reason: str | None
    """Why it is not ready, in the closed words of `FailureReason`; None where nothing failed."""


@frozen(kw_only=True)
class MeshStatus:
    """A RouteMesh at one instant (OB-16)."""

    mesh_name: str
    node_rid: str
    state: TopologyState
    reason: str | None
    is_ready: bool
    ready_peers: int
    ready_targets: Mapping[str, int]
    """Channel name -> selectable servers, this node included."""
    channel_weights: Mapping[str, int]
    """Own weights of the channels this node serves."""
    peers: tuple[PeerStatus, ...]


@frozen(kw_only=True)
class PeerSnapshot:
    """One peer for diagnosis. Times are seconds of the host's monotonic clock."""

    node_rid: str | None
    endpoint: str | None
    state: PeerState
    """As a topology status shows it."""
    phase: PeerPhase
    last_failure: Failure | None
    last_receive: float | None
    paused: bool
    """True while the peer told us to hold application records back."""
    waiting: int
    """Calls here that wait for this peer to take their record."""
    runtime_state: str | None
    channels: Mapping[str, int]
    dials: int


@frozen(kw_only=True)
class MeshSnapshot:
    """The bounded diagnostic view of a mesh (LV-168)."""

    mesh_name: str
    node_rid: str
    endpoint: str | None
    peers: tuple[PeerSnapshot, ...]
    omitted: int


@frozen(kw_only=True)
class ClientSnapshot:
    """One client of a ClientServer server. It has no name; its connection has a number of ours."""

    connection: int | None
    phase: PeerPhase
    last_receive: float | None
    paused: bool
    """True while the client told us to hold back; replies go nevertheless."""


@frozen(kw_only=True)
class ChannelStatus:
    """A ClientServer channel at one instant, in the role or roles this host has (OB-13, OB-14, LV-164..169)."""

    channel_name: str
    role: ChannelRole
    state: TopologyState
    reason: str | None
    is_ready: bool

    # The client's part; empty for a server alone.
    ready_targets: int
    """Servers a call can choose from."""
    waiting_calls: int
    """Calls that wait for a connection that is being made."""
    peers: tuple[PeerSnapshot, ...]
    """The servers, configured and discovered ones; at most SNAPSHOT_PEER_LIMIT."""
    omitted: int
    """Servers left out of `peers`."""

    # The server's part; None and empty for a client alone.
    server_rid: str | None
    endpoint: str | None
    weight: int | None
    ready_clients: int
    clients: tuple[ClientSnapshot, ...]
    """At most SNAPSHOT_PEER_LIMIT."""
    clients_omitted: int
    last_client_failure: Failure | None
    """Why the client that was lost last was lost."""
