"""What a node says about its own connections when an operator asks it: ``zlink peers`` (LV-164, LV-168).

The answer is a message like any other, so it may grow: a reader ignores fields it does not know. Times are ages in
seconds, since the clocks of two machines cannot be compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import field

from zlinkpy.link import Failure
from zlinkpy.mesh.status import ChannelStatus, MeshSnapshot, PeerSnapshot
from zlinkpy.messages import Request, message

CONNECTIONS_CHANNEL = "zlink.connections"
"""The framework's channel on which every node answers `ConnectionsAsked`."""


@message("zlink.connection")
class ConnectionReport:
    """One connection, or the lack of one, as its own node sees it.

    Attributes:
        kind: ``mesh``, ``client_server`` or ``fanout``.
        name: Of the mesh or channel.
        peer: The other side's RID; None until it has said who it is, and for a ClientServer client, which has none.
        phase: ``configured``, ``connecting``, ``admitted``, ``ready``, ``reconnecting`` or ``not_required``.
        last_failure: Reason of the last failure, one of LV [D4]; None where nothing failed.
        failed_ago, heard_ago: Seconds since the last failure, since the last record of the peer.
        paused: The peer told this node to hold application records back.
        waiting: Calls that wait for the peer to take their record.
    """

    kind: str
    name: str
    peer: str | None
    endpoint: str | None
    phase: str
    state: str | None = None
    channels: dict[str, int] = field(factory=dict)
    dials: int = 0
    last_failure: str | None = None
    failure_detail: str | None = None
    failed_ago: float | None = None
    heard_ago: float | None = None
    paused: bool = False
    waiting: int = 0


@message("zlink.nodeConnections")
class NodeConnections:
    """All connections of one node, at most `SNAPSHOT_PEER_LIMIT` of each mesh or channel.

    Attributes:
        state: The host's state: ``preparing``, ``serving``, ….
        omitted: Connections that did not fit.
    """

    state: str
    connections: tuple[ConnectionReport, ...]
    omitted: int = 0


@message("zlink.connectionsAsked")
class ConnectionsAsked(Request[NodeConnections]):
    """Ask a node for its connections."""


def mesh_reports(snapshot: MeshSnapshot, now: float) -> Iterator[ConnectionReport]:
    """The reports of one mesh."""
    for peer in snapshot.peers:
        yield peer_report("mesh", snapshot.mesh_name, peer, now)


def channel_reports(status: ChannelStatus, now: float) -> Iterator[ConnectionReport]:
    """The reports of one ClientServer channel: its servers, and the clients of the own server."""
    for peer in status.peers:
        yield peer_report("client_server", status.channel_name, peer, now)
    for client in status.clients:
        yield ConnectionReport(
            kind="client_server",
            name=status.channel_name,
            peer=None,
            endpoint=None,
            phase=client.phase.value,
            heard_ago=ago(client.last_receive, now),
            paused=client.paused,
        )


def peer_report(kind: str, name: str, peer: PeerSnapshot, now: float) -> ConnectionReport:
    """One peer's snapshot as a report; `now` is the clock the snapshot was taken on."""
    failure: Failure | None = peer.last_failure
    return ConnectionReport(
        kind=kind,
        name=name,
        peer=peer.node_rid,
        endpoint=peer.endpoint,
        phase=peer.phase.value,
        state=peer.runtime_state,
        channels=dict(peer.channels),
        dials=peer.dials,
        last_failure=failure.reason.value if failure is not None else None,
        failure_detail=failure.detail if failure is not None else None,
        failed_ago=ago(failure.at if failure is not None else None, now),
        heard_ago=ago(peer.last_receive, now),
        paused=peer.paused,
        waiting=peer.waiting,
    )


def ago(at: float | None, now: float) -> float | None:
    """Seconds from `at` to `now`, None for never."""
    return None if at is None else round(max(0.0, now - at), 3)
