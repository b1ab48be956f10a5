"""Who is dialled, when, and what is known of it: the half of a holder that has peers (wire.md §12, LV §3, §11, §14).

The peers are configured endpoints and what discovery shows. A holder says which of the shown ones it dials, how a link
to one is made and which targets follow from them; the rest is the same for a mesh node and for a ClientServer client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from zlinkpy.link import Backoff, DialIntent, Ended, Expectation, Failure
from zlinkpy.mesh.dispatch import HandlerTable
from zlinkpy.mesh.holder import LinkHolder
from zlinkpy.mesh.options import ANONYMOUS
from zlinkpy.mesh.peer_link import LaneSink, PeerLink
from zlinkpy.mesh.peers import ListedNode, Peer, PeerBook
from zlinkpy.telemetry import get_logger
from zlinkpy.transport import Connection, Pattern
from zlinkpy.wire import CloseReason, Lane

if TYPE_CHECKING:
    from zlinkpy.mesh.core import MeshCore

log = get_logger("zlinkpy.mesh")

Expected = Callable[[], Expectation | None]


class Dialler(LinkHolder):
    """A holder that keeps connections to peers of its own choice."""

    pattern: ClassVar[Pattern] = Pattern.ROUTER
    """What kind of socket dials."""

    def __init__(self, core: MeshCore, name: str, handlers: HandlerTable, *, own_rid: str, discovers: bool) -> None:
        super().__init__(core, name, handlers)
        self.book = PeerBook(own_rid)
        self.key_names: Mapping[str, str] = {}
        """The names of configured endpoints on the allow-list."""
        self.max_frame: int | None = None
        """A larger frame drops the connection it comes on; None for no bound."""
        self.discovers = discovers
        """True when a Location Store shows the peers."""
        self.refresh_discovery: Callable[[], None] | None = None
        """Set by the host: ask discovery for a fresh list now."""
        self.first_dials = True
        """False while the Store has failed for longer than its grace: nodes never reached before are not dialled
        (LO-187)."""

    # -- what kinds of dialler add -------------------------------------------------------------------------------------

    def _dialled_link(self, endpoint: str, expected: Expected) -> PeerLink:
        """A new link that dials `endpoint`."""
        raise NotImplementedError

    def _sink(self, link: PeerLink, lane: Lane) -> LaneSink:
        """The sink of a dialled connection."""
        return LaneSink(self, link, lane)

    def _open(self, endpoint: str, sink: LaneSink) -> Connection:
        """Dial. Raises ConfigurationError for an endpoint nobody can dial."""
        assert self._transport is not None
        return self._transport.dial(
            endpoint,
            sink,
            pattern=self.pattern,
            max_message_bytes=self.max_frame,
            server_key=sink.link.peer_key if sink.link is not None else None,
        )

    def _dials(self, node: ListedNode) -> bool:
        """True when this side is the one that dials a node which discovery shows."""
        return True

    def _is_not_required(self, node: ListedNode) -> bool:
        """True when no connection with the node is needed (LV §3)."""
        return False

    # -- configuration and discovery -----------------------------------------------------------------------------------

    def _configure(self, endpoints: Iterable[str], now: float) -> None:
        for endpoint in endpoints:
            peer = self.book.configure(endpoint)
            peer.intent = DialIntent(endpoint, Expectation(), Backoff(self.core.entropy), now)

    def apply_list(self, nodes: Mapping[str, ListedNode]) -> None:
        """Take a complete, lease-checked list of the other nodes (LO §10). Never called with a partial one."""
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
        self._list_applied(now)
        self._rebuild()
        self.core.timer.touch(self.next_deadline())

    def _list_applied(self, now: float) -> None:
        """The book holds a new list; candidates are about to be rebuilt."""

    def _list(self, peer: Peer, node: ListedNode, now: float) -> None:
        peer.not_required = self._is_not_required(node)
        if peer.not_required:
            if not peer.manual:
                peer.intent = None
            return
        expectation = node.expectation
        link = peer.link
        remote = link.remote if link is not None else None
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
        elif not peer.manual and self._dials(node):
            peer.intent = DialIntent(node.endpoint, expectation, Backoff(self.core.entropy), now)
            if link is not None and link.admitted:
                peer.intent.hold()

    def _drop(self, peer: Peer, now: float) -> None:
        link = peer.link
        if link is not None:
            link.perform(link.pair.close(CloseReason.ORDERLY, now))
        if peer.link is None and peer in self.book and not peer.is_wanted:
            self.book.forget(peer)

    def _leave(self) -> None:
        for peer in self.book:
            if peer.intent is not None:
                peer.intent.withdraw()
        self.core.timer.remove(self)

    # -- dialling ------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Timer source: the next dial."""
        deadlines = []
        for peer in self.book:
            if peer.intent is not None and self._may_dial(peer):
                deadline = peer.intent.next_deadline()
                if deadline is not None:
                    deadlines.append(deadline)
        return min(deadlines, default=None)

    def _may_dial(self, peer: Peer) -> bool:
        return self.first_dials or peer.manual or peer.was_ready

    def tick(self, now: float) -> None:
        """Timer source: dial what is due."""
        for peer in self.book:
            intent = peer.intent
            if intent is not None and intent.due(now) and self._may_dial(peer):
                self._dial(peer, intent)

    def _dial(self, peer: Peer, intent: DialIntent) -> None:
        if peer.link is not None and peer.link.admitted and not peer.link.ended:
            intent.hold()
            return

        key = self._key_of(peer, intent.endpoint)

        def expected() -> Expectation | None:
            known = peer.listed.expectation if peer.listed is not None else intent.expectation
            known = known.strengthened(self.book.expectation_for_endpoint(intent.endpoint))
            return known.strengthened(Expectation(proved=key))

        link = self._dialled_link(intent.endpoint, expected)
        link.peer_key = key
        link.intent = intent
        peer.link = link
        intent.dialled()
        link.start()

    def _key_of(self, peer: Peer, endpoint: str) -> str | None:
        """The CURVE key to expect at `endpoint`: the operator's word, else the descriptor's; None without keys.

        Where they differ, the admission fails: what the peer says of itself cannot be both.
        """
        keys = self.core.keys
        if keys is None:
            return None
        name = self.key_names.get(endpoint)
        if name is not None:
            return keys.key_of(name)
        listed = peer.listed
        return listed.security_identity if listed is not None and listed.security_identity != ANONYMOUS else None

    def dial_lane(self, link: PeerLink, lane: Lane) -> Connection:
        """Open one physical connection of a dialled pair. Raises ConfigurationError for an endpoint nobody can dial."""
        connection = self._open(link.endpoint, self._sink(link, lane))
        if link.intent is not None:
            link.intent.lane_opened()
        return connection

    # -- what links report ---------------------------------------------------------------------------------------------

    def link_admitted(self, link: PeerLink) -> None:
        self.book.attach(link)
        super().link_admitted(link)

    def link_ready(self, link: PeerLink) -> None:
        peer = self.book.peer_of(link)
        if peer is not None:
            peer.was_ready = True
            peer.not_required = False
        if link.intent is not None:
            link.intent.ready()
        super().link_ready(link)

    def link_not_ready(self, link: PeerLink, failure: Failure) -> None:
        peer = self.book.peer_of(link)
        if peer is not None:
            peer.last_failure = failure
        super().link_not_ready(link, failure)

    def link_updated(self, link: PeerLink) -> None:
        peer = self.book.peer_of(link)
        if peer is not None:
            peer.remote = link.remote
        super().link_updated(link)

    def link_ended(self, link: PeerLink, ended: Ended) -> None:
        now = self.now()
        super().link_ended(link, ended)
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
        if peer is not None and not peer.is_wanted and self.discovers:
            self.book.forget(peer)
        self._rebuild()
        self.core.timer.touch(self.next_deadline())
        self._check_idle()

    def lane_closed(self, link: PeerLink) -> None:
        if link.intent is not None:
            link.intent.lane_closed(self.now())
            self.core.timer.touch(self.next_deadline())
        super().lane_closed(link)
