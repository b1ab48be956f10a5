"""One node of a RouteMesh: its listener, its peers, its channels (wire.md §4, §8-§12; LV, SA §H).

Everything here is synchronous and driven from three sides: the transport's receive stage (records, closes), the shared
timer (dials that are due, held handshakes that are too old) and the host (weights, state, discovery lists). Only
`start` and `aclose` wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import trio

from zlinkpy.errors import ConfigurationError, NotFoundError, UnavailableError
from zlinkpy.link import Backoff, DialIntent, Ended, Expectation, Failure, Pair, roles_not_required
from zlinkpy.mesh.channels import Channel
from zlinkpy.mesh.dispatch import HandlerTable, Job
from zlinkpy.mesh.local import LocalTarget
from zlinkpy.mesh.observation import mesh_snapshot, mesh_status
from zlinkpy.mesh.options import MeshOptions
from zlinkpy.mesh.peer_link import CLOSE_LINGER, LaneSink, PeerLink
from zlinkpy.mesh.peers import ListedNode, Peer, PeerBook
from zlinkpy.mesh.reception import Reception
from zlinkpy.mesh.refusals import Refusals
from zlinkpy.mesh.selection import check_weight
from zlinkpy.mesh.status import MeshSnapshot, MeshStatus
from zlinkpy.telemetry import catalogue
from zlinkpy.transport import Connection, Listener, Transport
from zlinkpy.wire import (
    REQUIRED_CAPABILITY,
    ChannelRequest,
    CloseReason,
    Ext,
    FailureCode,
    FlowState,
    Hello,
    Lane,
    NodeRequest,
    ObjectRole,
    Record,
    RejectReason,
    RouteMeshAdmission,
    RuntimeState,
    TerminalResult,
)

if TYPE_CHECKING:
    from zlinkpy.mesh.core import MeshCore

log = logging.getLogger("zlinkpy.mesh")


class RouteMesh:
    """This process's member of one mesh."""

    def __init__(self, core: MeshCore, options: MeshOptions, handlers: HandlerTable) -> None:
        self.core = core
        self.options = options
        self.name = options.name
        self.rid = options.rid
        self.handlers = handlers
        self.requests = core.requests
        self.default_timeout_ms = options.default_request_timeout_ms
        self.generation = core.entropy.generation()
        self.endpoint: str | None = None
        self.local = LocalTarget(self)
        self.channels: dict[str, Channel] = {}
        self.book = PeerBook(self.rid)
        # Ordered, so that a seeded simulation closes and tells in the same order every time.
        self.links: dict[PeerLink, None] = {}
        self.refresh_discovery: Callable[[], None] | None = None
        """Set by the host: ask discovery for a fresh list now."""
        self.on_content: Callable[[RouteMesh], None] | None = None
        """Set by the host: the published content changed (publish a new descriptor revision)."""
        self.on_status: Callable[[RouteMesh], None] | None = None
        """Set by the host: `status()` would say something new."""
        self.first_dials = True
        """False while the Store has failed for longer than its grace: nodes never reached before are not dialled
        (LO-187)."""
        self._transport: Transport | None = None
        self._listener: Listener | None = None
        self._revision = 1
        self._admission: RouteMeshAdmission | None = None
        self._pairs: dict[bytes, PeerLink] = {}
        self._reception = Reception(self)
        self.refusals = Refusals(self.name)
        self._prepared = False
        self.closing = False
        self._idle = trio.Event()

    # -- registration -------------------------------------------------------------------------------------------------

    def add_channel(self, name: str, *, serves: bool, weight: int) -> None:
        """Register a channel before the start; the host has checked that the name is free."""
        self.channels[name] = self.core.channels[name] = Channel(name, self, serves, weight)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, transport: Transport) -> None:
        """Bind the listener and begin to dial manual peers. Raises ConfigurationError when it cannot bind."""
        self._transport = transport
        listener = await transport.listen(
            str(self.options.listener.bind), lambda _connection: LaneSink(self, None, Lane.APPLICATION)
        )
        self._listener = listener
        self.endpoint = self.options.listener.advertised(listener.endpoint)
        now = self.now()
        for endpoint in self.options.peers:
            if endpoint != self.endpoint:
                peer = self.book.configure(endpoint)
                peer.intent = DialIntent(endpoint, Expectation(), Backoff(self.core.entropy), now)
        self.core.meshes[self.name] = self
        self.core.timer.add(self)
        self._rebuild()

    def prepare(self) -> None:
        """Handler preparation is done: admitted connections become ready now (LV-23, LV-24)."""
        self._prepared = True
        now = self.now()
        for link in tuple(self.links):
            link.perform(link.pair.prepare(now))

    async def aclose(self) -> None:
        """Close every connection in order, then the listener; bounded by the linger of the closing records."""
        self.closing = True
        now = self.now()
        for peer in self.book:
            if peer.intent is not None:
                peer.intent.withdraw()
        self._reception.close()
        self.core.timer.remove(self)
        for link in tuple(self.links):
            link.perform(link.pair.close(CloseReason.ORDERLY, now))
        with trio.move_on_after(CLOSE_LINGER * 2, shield=True):
            if any(link.open_lanes for link in self.links):
                await self._idle.wait()
        self.core.meshes.pop(self.name, None)
        if self._listener is not None:
            with trio.CancelScope(shield=True):
                await self._listener.aclose()

    @property
    def shutting_down(self) -> bool:
        """True once this host takes no new calls."""
        return self.closing or not self.core.accepting

    def now(self) -> float:
        """Seconds of trio's clock."""
        return trio.current_time()

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
        return {channel.name: channel.weight for channel in self.channels.values() if channel.serves}

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

    def content_changed(self) -> None:
        """Something an `update` may carry changed: next revision, to the peers and to the Store (wire.md §4)."""
        if self.endpoint is None:
            return
        self._revision += 1
        self._admission = None
        now = self.now()
        for link in tuple(self.links):
            link.perform(link.pair.announce(now))
        self._rebuild()
        if self.on_content is not None:
            self.on_content(self)

    @property
    def revision(self) -> int:
        """The descriptor revision of `admission()`."""
        return self._revision

    def flow_changed(self, state: FlowState) -> None:
        """The job queue's pressure changed: every ready peer is told (wire.md §12)."""
        now = self.now()
        for link in tuple(self.links):
            link.perform(link.pair.set_flow(state, now))

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
        """Bring every channel's candidate list up to date; calls only read it (wire.md §10)."""
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
        if self.on_status is not None:
            self.on_status(self)

    # -- discovery ----------------------------------------------------------------------------------------------------

    def apply_list(self, nodes: Mapping[str, ListedNode]) -> None:
        """Take a complete, lease-checked list of the other nodes of this mesh (LO §10). Never called with a partial
        one."""
        now = self.now()
        for node in nodes.values():
            self._list(self.book.list_node(node), node, now)
        for peer in self.book.unlisted(nodes):
            peer.listed = None
            if not peer.manual:
                if peer.intent is not None:
                    # Terminal: a late READY does not revive it. A live connection stays as long as its probes are
                    # answered.
                    peer.intent.withdraw()
                    peer.intent = None
                if peer.link is None or not peer.link.admitted:
                    self._drop(peer, now)
        self._reception.settle(now)
        self._rebuild()
        self.core.timer.touch(self.next_deadline())

    def _list(self, peer: Peer, node: ListedNode, now: float) -> None:
        own_channels = bool(self.server_weights)
        peer.not_required = roles_not_required(
            self.options.object_role, own_channels, node.object_role, bool(node.channels)
        )
        if peer.not_required:
            if not peer.manual:
                peer.intent = None
            return
        expectation = node.expectation
        link = peer.link
        remote = link.pair.remote if link is not None else None
        if link is not None and remote is not None and remote.lifecycle_generation != node.lifecycle_generation:
            # The descriptor speaks of another run: the connection belongs to a process that is gone (LO-170).
            link.perform(link.pair.close(CloseReason.REPLACED, now))
        if peer.intent is not None:
            endpoint = peer.intent.endpoint if peer.manual else node.endpoint
            if (
                peer.intent.retarget(endpoint, expectation, now)
                and link is not None
                and link.dialler
                and not link.admitted
            ):
                link.perform(link.pair.close(CloseReason.REPLACED, now))
        elif not peer.manual and self.rid.encode() < node.rid.encode():
            peer.intent = DialIntent(node.endpoint, expectation, Backoff(self.core.entropy), now)
            if link is not None and link.admitted:
                peer.intent.hold()

    def _drop(self, peer: Peer, now: float) -> None:
        link = peer.link
        if link is not None:
            link.perform(link.pair.close(CloseReason.ORDERLY, now))
        if peer.link is None and peer in self.book and not peer.is_wanted:
            self.book.forget(peer)

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
            return peer.listed.expectation if peer is not None and peer.listed is not None else None

        link = self._new_link(hello.pair_id, expected, endpoint=remote.advertised_endpoint, dialler=False)
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
        held = self._reception.next_deadline()
        deadlines = [] if held is None else [held]
        for peer in self.book:
            if peer.intent is not None and self._may_dial(peer):
                deadline = peer.intent.next_deadline()
                if deadline is not None:
                    deadlines.append(deadline)
        return min(deadlines, default=None)

    def _may_dial(self, peer: Peer) -> bool:
        return self.first_dials or peer.manual or peer.was_ready

    def tick(self, now: float) -> None:
        """Timer source: dial what is due, refuse handshakes nobody vouched for."""
        self._reception.tick(now)
        for peer in self.book:
            intent = peer.intent
            if intent is not None and intent.due(now) and self._may_dial(peer):
                self._dial(peer, intent)

    def _dial(self, peer: Peer, intent: DialIntent) -> None:
        if peer.link is not None and peer.link.admitted and not peer.link.ended:
            intent.hold()
            return

        def expected() -> Expectation | None:
            known = peer.listed.expectation if peer.listed is not None else intent.expectation
            return known.strengthened(self.book.expectation_for_endpoint(intent.endpoint))

        link = self._new_link(self.core.entropy.token(8), expected, endpoint=intent.endpoint, dialler=True)
        link.intent = intent
        peer.link = link
        intent.dialled()
        link.start()

    def dial_lane(self, link: PeerLink, lane: Lane) -> Connection:
        """Open one physical connection of a dialled pair. Raises ConfigurationError for an endpoint nobody can dial."""
        assert self._transport is not None
        connection = self._transport.dial(link.endpoint, LaneSink(self, link, lane))
        if link.intent is not None:
            link.intent.lane_opened()
        return connection

    def _new_link(
        self, pair_id: bytes, expected: Callable[[], Expectation | None], *, endpoint: str, dialler: bool
    ) -> PeerLink:
        entropy = self.core.entropy
        # Judged through a cell: the pair needs its judge at birth, the judge needs the link around the pair.
        cell: list[PeerLink] = []

        def judge(remote: RouteMeshAdmission) -> RejectReason | None:
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
        self.links[link] = None
        self._pairs[pair_id] = link
        self.core.liveness.register(link, pair)
        return link

    # -- what links report --------------------------------------------------------------------------------------------

    def deadline_moved(self, link: PeerLink) -> None:
        """A machine may have a new deadline."""
        self.core.timer.touch(link.pair.next_deadline())

    def link_admitted(self, link: PeerLink) -> None:
        """The peer said who it is, and may be who it says."""
        self.refusals.admitted(link)
        self.book.attach(link)
        self._rebuild()

    def link_ready(self, link: PeerLink) -> None:
        """Both lanes are up and every check passed."""
        peer = self.book.peer_of(link)
        if peer is not None:
            peer.was_ready = True
            peer.not_required = False
        if link.intent is not None:
            link.intent.ready()
        self.core.telemetry.counter(catalogue.PEER_CONNECTS, scope_kind="mesh", scope_name=self.name)
        log.info("peer %s of mesh %s is ready", link.rid, self.name)
        self._rebuild()

    def link_not_ready(self, link: PeerLink, failure: Failure) -> None:
        """Out of every selection set in this instant; what was asked over this route ends (LV-76, LV-140)."""
        peer = self.book.peer_of(link)
        if peer is not None:
            peer.last_failure = failure
        self.core.telemetry.counter(
            catalogue.PEER_DISCONNECTS, scope_kind="mesh", scope_name=self.name, reason=failure.reason.value
        )
        log.info(
            "peer %s of mesh %s is not ready any more: %s (%s)",
            link.rid,
            self.name,
            failure.reason.value,
            failure.detail,
        )
        self._rebuild()
        if not link.pair.awaits_replies:
            self.requests.fail_route(link)
        elif not self.requests.awaits(link):
            link.perform(link.pair.answered(self.now()))

    def link_updated(self, link: PeerLink) -> None:
        """Weights or state of a peer changed."""
        peer = self.book.peer_of(link)
        if peer is not None:
            peer.remote = link.pair.remote
        self._rebuild()

    def link_ended(self, link: PeerLink, ended: Ended) -> None:
        """The attempt is over; its lanes may still be closing."""
        now = self.now()
        self._pairs.pop(link.pair.pair_id, None)
        if not link.open_lanes:
            self.links.pop(link, None)
        self.requests.fail_route(link)
        self.refusals.ended(link, ended)
        peer = self.book.peer_of(link)
        if peer is not None:
            peer.link = None
            if ended.failure is not None:
                if (not peer.was_ready or peer.last_failure is None) and ended.reject is None:
                    log.info("no connection with %s: %s", link.rid or link.endpoint, ended.failure.detail)
                peer.last_failure = ended.failure
            if ended.not_required:
                peer.not_required = True
        if link.intent is not None:
            link.intent.ended(now, not_required=ended.not_required)
            if peer is not None:
                self.book.settle_alias(peer, link, link.intent)
        if peer is not None and peer.intent is not None and peer.intent is not link.intent:
            peer.intent.release(now)
        if link.same_as is None:
            self.book.release_aliases(link.rid, now)
        if peer is not None and not peer.is_wanted and self.options.discovers:
            self.book.forget(peer)
        self._rebuild()
        self.core.timer.touch(self.next_deadline())
        self._check_idle()

    def lane_closed(self, link: PeerLink) -> None:
        """A physical connection of `link` was seen closed."""
        if link.intent is not None:
            link.intent.lane_closed(self.now())
            self.core.timer.touch(self.next_deadline())
        if link.pair.ended and not link.open_lanes:
            self.links.pop(link, None)
        self._check_idle()

    def _check_idle(self) -> None:
        if self.closing and not any(link.open_lanes for link in self.links):
            self._idle.set()

    def application_record(self, link: PeerLink, connection: Connection, record: Record, now: float) -> None:
        """Queue an application record for its handler, or wait for a permit for it."""
        command = record.command
        is_request = type(command) is ChannelRequest or type(command) is NodeRequest
        core = self.core
        deadline = now + command.ms / 1000 if is_request else None
        job = Job(self, record, link.rid or "", link if is_request else None, deadline)
        if job.handler is None and core.framework.take(link, record):
            return
        if not core.taking:
            job.refuse(TerminalResult.TERMINATED, FailureCode.NONE, "this host is shutting down")
        core.last_taken = now
        core.ingress.accept(job, len(record.parts[0]), connection, None if link.dialler else self._listener)

    # -- observation ---------------------------------------------------------------------------------------------------

    def status(self) -> MeshStatus:
        """The topology status (OB-16): states only, no endpoints or generations."""
        return mesh_status(self)

    def snapshot(self) -> MeshSnapshot:
        """The bounded diagnostic view (LV-164..169)."""
        return mesh_snapshot(self)
