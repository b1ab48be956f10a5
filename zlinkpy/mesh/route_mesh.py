"""One node of a RouteMesh: its listener, its peers, its channels (wire.md §4, §8-§12; LV, SA §H).

What every owner of connections does is in `holder.py`, what is known of peers and when they are dialled in
`dialler.py`; here is what makes it a mesh: two lanes, connections from either side, channels of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zlinkpy.errors import ConfigurationError, NotFoundError, UnavailableError
from zlinkpy.link import Ended, Expectation, Pair, roles_not_required
from zlinkpy.mesh.channels import Channel
from zlinkpy.mesh.dialler import Dialler, Expected
from zlinkpy.mesh.dispatch import HandlerTable
from zlinkpy.mesh.local import LocalTarget
from zlinkpy.mesh.observation import mesh_snapshot, mesh_status
from zlinkpy.mesh.options import MeshOptions
from zlinkpy.mesh.peer_link import LaneSink, PeerLink
from zlinkpy.mesh.peers import ListedNode, Peer
from zlinkpy.mesh.reception import Reception
from zlinkpy.mesh.remote import remote_of
from zlinkpy.mesh.selection import check_weight
from zlinkpy.mesh.status import MeshSnapshot, MeshStatus
from zlinkpy.transport import Connection, Transport
from zlinkpy.wire import (
    REQUIRED_CAPABILITY,
    CloseReason,
    Ext,
    Hello,
    Lane,
    ObjectRole,
    RejectReason,
    RouteMeshAdmission,
    RuntimeState,
)

if TYPE_CHECKING:
    from zlinkpy.mesh.core import MeshCore


class RouteMesh(Dialler):
    """This process's member of one mesh."""

    scope_kind = "mesh"
    kind = "mesh"

    def __init__(self, core: MeshCore, options: MeshOptions, handlers: HandlerTable) -> None:
        super().__init__(core, options.name, handlers, own_rid=options.rid, discovers=options.discovers)
        self.options = options
        self.key_names = options.key_names
        self.max_frame = options.max_message_bytes
        self.rid = options.rid
        self.default_timeout_ms = options.default_request_timeout_ms
        self.generation = core.entropy.generation()
        self.local = LocalTarget(self)
        self.channels: dict[str, Channel] = {}
        self._admission: RouteMeshAdmission | None = None
        self._pairs: dict[bytes, PeerLink] = {}
        self._reception = Reception(self)

    @property
    def mesh_name(self) -> str:
        return self.name

    # -- registration -------------------------------------------------------------------------------------------------

    def add_channel(self, name: str, *, serves: bool, weight: int) -> None:
        """Register a channel before the start; the host has checked that the name is free."""
        self.channels[name] = self.core.channels[name] = Channel(name, self, serves, weight)

    def add_member_channel(self, name: str) -> None:
        """Publish a channel of the framework, before the start: a member of weight 0 that no call can name."""
        self.member_channels[name] = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, transport: Transport) -> None:
        """Bind the listener and begin to dial manual peers. Raises ConfigurationError when it cannot bind."""
        self._transport = transport
        listener = await transport.listen(
            str(self.options.listener.bind),
            lambda _connection: LaneSink(self, None, Lane.APPLICATION),
            max_message_bytes=self.max_frame,
        )
        self._listener = listener
        self.endpoint = self.options.listener.advertised(listener.endpoint)
        self._configure((peer for peer in self.options.peers if peer != self.endpoint), self.now())
        self.core.meshes[self.name] = self
        self.core.add(self)
        self.core.timer.add(self)
        self._rebuild()

    # -- what this node says about itself -----------------------------------------------------------------------------

    def admission(self) -> RouteMeshAdmission:
        """The current admission record of this node (wire.md §4)."""
        if self._admission is None:
            assert self.endpoint is not None
            options = self.options
            self._admission = RouteMeshAdmission(
                mesh_name=self.name,
                node_rid=self.rid,
                security_identity=options.security_identity,
                lifecycle_generation=self.generation,
                descriptor_revision=self._revision,
                advertised_endpoint=self.endpoint,
                channels=tuple(sorted(self.server_weights.items(), key=lambda item: item[0].encode())),
                ext=Ext(
                    runtime_state=self.core.runtime_state,
                    application_version=options.application_version,
                    maintenance_wave=None,
                    protocol_capabilities=(REQUIRED_CAPABILITY,),
                    object_role=options.object_role,
                    placement_weight=options.placement_weight,
                ),
            )
        return self._admission

    @property
    def server_weights(self) -> dict[str, int]:
        """Channels this node serves, with its weight in each."""
        own = {channel.name: channel.weight for channel in self.channels.values() if channel.serves}
        return own | dict.fromkeys(self.member_channels, 0)

    def set_channel_weight(self, channel: str, weight: int) -> None:
        """Change this node's weight in a channel it serves: the candidate list and the peers know at once, without a
        reconnect.

        Raises ValueError for a weight outside 0..10000 (the old one stays), NotFoundError for a channel it does not
        serve.
        """
        own = self.channels.get(channel)
        if own is None or not own.serves:
            raise NotFoundError(f"mesh {self.name!r} does not serve channel {channel!r} in this process")
        try:
            check_weight(weight, f"channel {channel!r}")
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        if own.weight != weight:
            own.weight = weight
            self.content_changed()

    def _content_is_old(self) -> None:
        self._admission = None

    # -- targets ------------------------------------------------------------------------------------------------------

    def node(self, rid: str) -> PeerLink | LocalTarget:
        """The target of a node direct call. Raises NotFoundError or UnavailableError (SA-122, SA-123)."""
        if rid == self.rid:
            return self.local
        peer = self._known(rid)
        if peer.object_role is ObjectRole.CLIENT:
            raise NotFoundError(
                f"node {rid!r} of mesh {self.name!r} is an object client and takes no node direct messages"
            )
        return self._connected(peer)

    def member(self, rid: str) -> PeerLink:
        """The connection with another node, whatever its role. Raises NotFoundError or UnavailableError."""
        return self._connected(self._known(rid))

    def _known(self, rid: str) -> Peer:
        peer = self.book.by_rid(rid)
        if peer is None:
            raise NotFoundError(f"node {rid!r} is not a member of mesh {self.name!r}")
        return peer

    def _connected(self, peer: Peer) -> PeerLink:
        if not peer.ready:
            raise UnavailableError(
                f"node {peer.rid!r} of mesh {self.name!r} is known, but its connection is not ready",
                cause="RouteNotConnected",
            )
        assert peer.link is not None
        return peer.link

    def members_of(self, channel: str) -> tuple[int, int]:
        """(nodes known to serve `channel`, configured peers that have not said yet what they serve)."""
        known = sum(1 for peer in self.book if channel in peer.channels)
        own = self.channels.get(channel)
        if own is not None and own.serves:
            known += 1
        silent = (peer for peer in self.book if peer.manual and peer.is_wanted and peer.remote is None)
        undecided = sum(not peer.not_required for peer in silent)
        return known, undecided

    def _rebuild(self) -> None:
        """Calls only read the candidate lists (wire.md §10)."""
        serving = self.core.runtime_state is RuntimeState.SERVING and not self.closing
        ready = [peer for peer in self.book if peer.link is not None and peer.link.pair.selectable]
        if self.options.discovers:
            # A node whose descriptor or lease is gone from a complete list is no target for new selection; its
            # connection stays, and the probes alone decide about that (LO-171, decision 0003).
            ready = [peer for peer in ready if peer.listed is not None or peer.manual]
        if not self.core.accepting:
            # A host that leaves selects nobody: what accepted work still waits for is a connection, no target (LV-156).
            ready = []
        for channel in self.channels.values():
            candidates: list[tuple[str, int, PeerLink | LocalTarget]] = []
            for peer in ready:
                weight = peer.channels.get(channel.name, 0)
                if weight > 0 and peer.rid is not None and peer.link is not None:
                    candidates.append((peer.rid, weight, peer.link))
            if channel.serves and channel.weight > 0 and serving:
                candidates.append((self.rid, channel.weight, self.local))
            channel.cycle.rebuild(candidates)
        for members in self.member_channels.values():
            if members is not None:
                members.refresh()
        super()._rebuild()

    # -- discovery ----------------------------------------------------------------------------------------------------

    def _list_applied(self, now: float) -> None:
        self._reception.settle(now)

    def _is_not_required(self, node: ListedNode) -> bool:
        own_channels = bool(self.server_weights)
        return roles_not_required(self.options.object_role, own_channels, node.object_role, bool(node.channels))

    def _dials(self, node: ListedNode) -> bool:
        return self.rid.encode() < node.rid.encode()

    def _leave(self) -> None:
        super()._leave()
        self._reception.close()

    # -- accepting ----------------------------------------------------------------------------------------------------

    def is_unknown(self, remote: RouteMeshAdmission) -> bool:
        """True when only discovery can vouch for a node and it has not shown this run of it yet."""
        if not self.options.discovers or self.options.peers or remote.mesh_name != self.name:
            return False
        peer = self.book.by_rid(remote.node_rid)
        return peer is None or peer.listed is None or peer.listed.lifecycle_generation != remote.lifecycle_generation

    def is_listed(self, rid: str) -> bool:
        """True when discovery shows some run of the node."""
        peer = self.book.by_rid(rid)
        return peer is not None and peer.listed is not None

    def pair_link(self, pair_id: bytes) -> PeerLink | None:
        """The live link of a pair id."""
        return self._pairs.get(pair_id)

    def begin_accepted(self, sink: LaneSink, connection: Connection, hello: Hello) -> None:
        """Start a link on an accepted application lane."""
        remote = hello.admission
        assert isinstance(remote, RouteMeshAdmission)
        assert hello.pair_id is not None
        rid = remote.node_rid

        def expected() -> Expectation | None:
            peer = self.book.by_rid(rid)
            known = peer.listed.expectation if peer is not None and peer.listed is not None else Expectation()
            return known.strengthened(Expectation(proved=connection.peer_key))

        link = self._new_link(hello.pair_id, expected, endpoint=remote.advertised_endpoint, dialler=False)
        link.peer_key = connection.peer_key
        link.claim = remote
        link.adopt(sink, Lane.APPLICATION, connection)
        link.perform(link.pair.receive(Lane.APPLICATION, hello, self.now()))

    def first_record(self, sink: LaneSink, connection: Connection, frames: list[bytes]) -> None:
        """A record on an accepted connection that no link owns yet."""
        self._reception.first_record(sink, connection, frames)

    def unadmitted_closed(self, sink: LaneSink) -> None:
        """A connection that never became part of a link is gone."""
        self._reception.closed(sink)

    # -- dialling -----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Timer source: the next dial, or the oldest held handshake."""
        deadlines = [each for each in (super().next_deadline(), self._reception.next_deadline()) if each is not None]
        return min(deadlines, default=None)

    def tick(self, now: float) -> None:
        """Timer source: refuse handshakes nobody vouched for, dial what is due."""
        self._reception.tick(now)
        super().tick(now)

    def _dialled_link(self, endpoint: str, expected: Expected) -> PeerLink:
        return self._new_link(self.core.entropy.token(8), expected, endpoint=endpoint, dialler=True)

    def _new_link(self, pair_id: bytes, expected: Expected, *, endpoint: str, dialler: bool) -> PeerLink:
        entropy = self.core.entropy
        # Judged through a cell: the pair needs its judge at birth, the judge needs the link around the pair.
        cell: list[PeerLink] = []

        def judge(admission: RouteMeshAdmission) -> RejectReason | None:
            remote = remote_of(admission)
            assert remote is not None
            reason, replaced = self.book.judge(cell[0], remote)
            if replaced is not None:
                replaced.perform(replaced.pair.close(CloseReason.REPLACED, self.now()))
            return reason

        pair = Pair(
            dialler=dialler,
            pair_id=pair_id,
            local=self.admission,
            expected=expected,
            judge=judge,
            probe_ids=entropy.generation,
            flow=lambda: self.core.flow,
            prepared=self._prepared,
        )
        link = PeerLink(self, pair, endpoint=endpoint, dialler=dialler)
        cell.append(link)
        link.pair_id = pair_id
        self._pairs[pair_id] = link
        self._hold(link)
        return link

    # -- what links report --------------------------------------------------------------------------------------------

    def link_ended(self, link: PeerLink, ended: Ended) -> None:
        self._pairs.pop(link.pair_id, None)
        super().link_ended(link, ended)

    # -- observation ---------------------------------------------------------------------------------------------------

    def status(self) -> MeshStatus:
        """The topology status (OB-16): states only, no endpoints or generations."""
        return mesh_status(self)

    def snapshot(self) -> MeshSnapshot:
        """The bounded diagnostic view (LV-164..169)."""
        return mesh_snapshot(self)
