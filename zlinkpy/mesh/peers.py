"""The peers of one mesh node or client: who is wanted, who is connected, and which connection counts (LV §3, §11,
wire.md §4, §9).

A `Peer` is known by its RID (from discovery or from its `hello`) or, as long as it has not spoken, by the endpoint that
was configured. It holds the wish to dial (if this side dials at all), the link in force and what was last learnt. The
book makes the decisions that need more than one connection: duplicates, replacement, NotRequired by descriptor. It
performs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from attrs import define, frozen

from zlinkpy.link import DialIntent, Expectation, Failure, IntentState, PairPhase
from zlinkpy.mesh.remote import Remote
from zlinkpy.mesh.status import PeerPhase, PeerState
from zlinkpy.telemetry import get_logger
from zlinkpy.wire import ObjectRole, RejectReason, RuntimeState

if TYPE_CHECKING:
    from zlinkpy.mesh.peer_link import PeerLink

log = get_logger("zlinkpy.mesh")

# Peers that nobody configured or published and whose connection ended are remembered for diagnosis, so many at most: a
# node that restarts under ever new RIDs must not fill the book.
REMEMBERED_STRANGERS = 64


@frozen(kw_only=True)
class ListedNode:
    """What discovery says about one node or server: the part of its descriptor that is needed here."""

    rid: str
    endpoint: str
    security_identity: str
    lifecycle_generation: int
    object_role: ObjectRole
    channels: Mapping[str, int]
    runtime_state: RuntimeState

    @property
    def expectation(self) -> Expectation:
        """All three of RID, security identity and generation must match exactly (wire.md §4)."""
        return Expectation(rid=self.rid, security_identity=self.security_identity, generation=self.lifecycle_generation)


@define(eq=False)
class Peer:
    """One peer, connected or not."""

    rid: str | None = None
    endpoint: str | None = None
    manual: bool = False
    listed: ListedNode | None = None
    intent: DialIntent | None = None
    link: PeerLink | None = None
    """The link in force: admitted, or the current attempt. A link that was replaced is no longer here."""
    remote: Remote | None = None
    """What the peer last said about itself; kept after a loss, so that its channels stay known."""
    last_failure: Failure | None = None
    not_required: bool = False
    was_ready: bool = False
    same_as: str | None = None
    """The RID of the node this endpoint also leads to: another peer stands for it, or it is this node itself."""

    @property
    def channels(self) -> Mapping[str, int]:
        """The channels the peer is known to serve, with their weights."""
        if self.remote is not None:
            return self.remote.channels
        return self.listed.channels if self.listed is not None else {}

    @property
    def object_role(self) -> ObjectRole | None:
        """Its object role, as far as known."""
        if self.remote is not None:
            return self.remote.object_role
        return self.listed.object_role if self.listed is not None else None

    @property
    def ready(self) -> bool:
        """Answered by the pair's one predicate (LV-25)."""
        return self.link is not None and self.link.is_ready

    @property
    def is_wanted(self) -> bool:
        """False for strangers: peers that are neither configured nor listed."""
        return (self.manual and self.same_as is None) or self.listed is not None

    @property
    def phase(self) -> PeerPhase:
        """For the diagnostic snapshot (LV-164)."""
        if self.not_required:
            return PeerPhase.NOT_REQUIRED
        link = self.link
        if link is not None and link.is_ready:
            return PeerPhase.READY
        if link is not None and link.pair.phase is PairPhase.ADMITTED:
            return PeerPhase.ADMITTED
        if self.was_ready:
            return PeerPhase.RECONNECTING
        if link is not None or (self.intent is not None and self.intent.dials):
            return PeerPhase.CONNECTING
        return PeerPhase.CONFIGURED

    @property
    def state(self) -> PeerState:
        """For the topology status (OB-13)."""
        if self.not_required:
            return PeerState.NOT_REQUIRED
        link = self.link
        if link is not None and link.is_ready:
            serving = self.remote is None or self.remote.runtime_state is RuntimeState.SERVING
            return PeerState.READY if serving else PeerState.DRAINING
        if link is not None and link.pair.phase is PairPhase.ADMITTED:
            return PeerState.CONNECTING
        return PeerState.NOT_CONNECTED


class PeerBook:
    """Every peer of one holder. Iteration gives each peer once."""

    def __init__(self, own_rid: str) -> None:
        self._own_rid = own_rid
        self._peers: list[Peer] = []
        self._by_rid: dict[str, Peer] = {}
        self._by_endpoint: dict[str, Peer] = {}

    def __iter__(self) -> Iterator[Peer]:
        return iter(tuple(self._peers))

    def __len__(self) -> int:
        return len(self._peers)

    def by_rid(self, rid: str) -> Peer | None:
        """The peer known under `rid`."""
        return self._by_rid.get(rid)

    def configure(self, endpoint: str) -> Peer:
        """A manual endpoint; its RID is not known yet."""
        peer = self._by_endpoint.get(endpoint)
        if peer is None:
            peer = Peer(endpoint=endpoint)
            self._peers.append(peer)
            self._by_endpoint[endpoint] = peer
        peer.manual = True
        return peer

    def list_node(self, node: ListedNode) -> Peer:
        """Discovery shows `node`. A manual peer at the same endpoint is the same peer, with the complete expectation
        (LV-127)."""
        peer = self._by_rid.get(node.rid)
        at_endpoint = self._by_endpoint.get(node.endpoint)
        if peer is None and at_endpoint is not None and at_endpoint.manual:
            peer = at_endpoint
        if peer is None:
            peer = Peer()
            self._peers.append(peer)
        self.identify(peer, node.rid)
        peer.listed = node
        if not peer.manual:
            peer.endpoint = node.endpoint
        return peer

    def identify(self, peer: Peer, rid: str) -> None:
        """`peer` turned out to be the node `rid`."""
        if peer.rid != rid:
            if peer.rid is not None and self._by_rid.get(peer.rid) is peer:
                # Another process now answers at a configured endpoint; what was learnt of the old one is void.
                del self._by_rid[peer.rid]
                peer.remote = None
            peer.rid = rid
        self._by_rid[rid] = peer

    def stranger(self, rid: str) -> Peer:
        """The peer for an accepted connection of a node that nobody configured or listed."""
        peer = self._by_rid.get(rid)
        if peer is None:
            self._forget_strangers()
            peer = Peer()
            self._peers.append(peer)
            self.identify(peer, rid)
        return peer

    def peer_of(self, link: PeerLink) -> Peer | None:
        """The peer whose link in force is `link`."""
        for peer in self._peers:
            if peer.link is link:
                return peer
        return None

    def settle_alias(self, peer: Peer, link: PeerLink, intent: DialIntent) -> None:
        """`link` to a configured endpoint ended: the endpoint leads to this node, or to one that is connected."""
        if link.leads_home:
            peer.same_as = self._own_rid
            intent.withdraw()
        elif link.same_as is not None:
            peer.same_as = link.same_as
            intent.hold()
        else:
            return
        log.info("the configured peer %s is node %s, under another name", link.endpoint, peer.same_as)

    def release_aliases(self, rid: str | None, now: float) -> None:
        """The link of node `rid` is gone: its other endpoints are tried again."""
        for peer in self._peers:
            if rid is not None and peer.same_as == rid:
                peer.same_as = None
                if peer.intent is not None:
                    peer.intent.release(now)

    def attach(self, link: PeerLink) -> Peer:
        """`link` was admitted: it is the link in force of the node it turned out to lead to."""
        remote = link.remote
        assert remote is not None
        rid = remote.rid
        known = self._by_rid.get(rid)
        peer = self.peer_of(link)
        if peer is None:
            at_endpoint = self._by_endpoint.get(remote.advertised_endpoint)
            configured = at_endpoint if at_endpoint is not None and at_endpoint.manual else None
            peer = known or configured or self.stranger(rid)
        elif known is not None and known is not peer:
            # A configured endpoint turned out to be a node that is known already: one peer from now on.
            peer.listed = peer.listed or known.listed
            peer.last_failure = peer.last_failure or known.last_failure
            peer.was_ready = peer.was_ready or known.was_ready
            if not known.manual:
                self.forget(known)
        self.identify(peer, rid)
        peer.link = link
        peer.remote = remote
        if peer.intent is not None and not link.dialler:
            peer.intent.hold()
        return peer

    def forget(self, peer: Peer) -> None:
        """Drop a peer for good."""
        self._peers.remove(peer)
        if peer.rid is not None and self._by_rid.get(peer.rid) is peer:
            del self._by_rid[peer.rid]
        if peer.endpoint is not None and self._by_endpoint.get(peer.endpoint) is peer:
            del self._by_endpoint[peer.endpoint]

    def _forget_strangers(self) -> None:
        idle = [peer for peer in self._peers if not peer.is_wanted and peer.link is None]
        for peer in idle[: max(0, len(idle) - REMEMBERED_STRANGERS + 1)]:
            self.forget(peer)

    def unlisted(self, listed: Iterable[str]) -> list[Peer]:
        """Peers that discovery showed before and that are not among the rids of `listed` now."""
        current = set(listed)
        return [peer for peer in self._peers if peer.listed is not None and peer.listed.rid not in current]

    def expectation_for_endpoint(self, endpoint: str) -> Expectation | None:
        """What the Store says about whoever answers at a configured endpoint (LV-127, LO-159)."""
        peer = self._by_endpoint.get(endpoint)
        return peer.listed.expectation if peer is not None and peer.listed is not None else None

    # -- duplicates ---------------------------------------------------------------------------------------------------

    def judge(self, link: PeerLink, remote: Remote) -> tuple[RejectReason | None, PeerLink | None]:
        """May `link` with `remote` be admitted beside what is there? Returns (reject reason, link to replace).

        Of one RID and generation: from the same dialler the newer pair replaces the older; between two diallers the
        pair dialled by the smaller RID stays (wire.md §4). Another generation is another run, and the admission checks
        have already decided which one is current (LV-132, LV-149).
        """
        peer = self._by_rid.get(remote.rid)
        current = peer.link if peer is not None else None
        if current is None or current is link or current.ended or not current.admitted:
            if not link.dialler and self._own_rid.encode() < remote.rid.encode() and self._is_dialling(remote):
                # Both dial at once and ours is the one that will stay.
                return RejectReason.DUPLICATE_CONNECTION, None
            return None, None
        if current.peer_key != link.peer_key:
            # Both keys are listed, but only one of their owners can be this node: the one that is connected.
            return RejectReason.SECURITY_IDENTITY_MISMATCH, None
        same_run = current.remote is not None and current.remote.lifecycle_generation == remote.lifecycle_generation
        if same_run and current.dialler and link.dialler and current.intent is not link.intent:
            # Two configured endpoints of one node. Its side has replaced the older pair already; that one's endpoint
            # must not be dialled again while this pair lives, or the two would replace each other for ever.
            current.same_as = remote.rid
            return None, current
        if not same_run or current.dialler == link.dialler:
            return None, current
        dialler = self._own_rid if link.dialler else remote.rid
        if dialler == min(self._own_rid, remote.rid, key=str.encode):
            return None, current
        return RejectReason.DUPLICATE_CONNECTION, None

    def _is_dialling(self, remote: Remote) -> bool:
        for peer in (self._by_rid.get(remote.rid), self._by_endpoint.get(remote.advertised_endpoint)):
            if peer is not None and peer.intent is not None and peer.intent.state is IntentState.DIALLING:
                return True
        return False
