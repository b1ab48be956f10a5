"""A client of one ClientServer channel: its connections to the servers, and whose turn is next (wire.md §4, §10).

It is the channel's send path in this process. Its peers are the configured endpoints and the servers that discovery
shows; it dials all of them, and none of them ever dials it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio
from attrs import field, frozen

from zlinkpy.errors import NotFoundError, ShuttingDownError, UnavailableError, ZlinkError
from zlinkpy.link import ServiceAdmission, ServicePair
from zlinkpy.mesh.dialler import Dialler, Expected
from zlinkpy.mesh.dispatch import HandlerTable
from zlinkpy.mesh.limits import advertised_limit, transport_limit
from zlinkpy.mesh.local import LocalTarget
from zlinkpy.mesh.options import ANONYMOUS
from zlinkpy.mesh.peer_link import LaneSink, PeerLink
from zlinkpy.mesh.peers import Peer
from zlinkpy.mesh.remote import remote_of
from zlinkpy.mesh.selection import SmoothWeighted
from zlinkpy.mesh.service_link import ServiceLink, ServiceSink
from zlinkpy.telemetry import get_logger
from zlinkpy.transport import Pattern, Transport
from zlinkpy.wire import ClientAdmission, Lane, RejectReason, RuntimeState

if TYPE_CHECKING:
    from zlinkpy.mesh.core import MeshCore

log = get_logger("zlinkpy.mesh")

# From `relocating` on a server takes no new client; those it has stay while work is left (LO-175).
_TAKES_CLIENTS = frozenset({RuntimeState.PREPARING, RuntimeState.SERVING})


@frozen(kw_only=True)
class ClientOptions:
    """What a client is told at its start."""

    channel: str
    servers: tuple[str, ...] = ()
    """Configured endpoints."""
    discovers: bool = False
    """True when a Location Store shows the servers."""
    max_message_bytes: int
    """0: no cap."""
    key_names: Mapping[str, str] = field(factory=dict)
    """As `MeshOptions.key_names`."""
    security_identity: str = ANONYMOUS
    default_request_timeout_ms: int = 30_000


class ClientServerClient(Dialler):
    """This process's client of one ClientServer channel; a `SendPath`."""

    scope_kind = "channel"
    kind = "ClientServer channel"
    pattern = Pattern.DEALER

    def __init__(self, core: MeshCore, options: ClientOptions) -> None:
        # Without handlers: nothing but replies comes back.
        handlers = HandlerTable(options.channel, core.codecs)
        super().__init__(core, options.channel, handlers, own_rid="", discovers=options.discovers)
        self.options = options
        self.key_names = options.key_names
        self.default_timeout_ms = options.default_request_timeout_ms
        self.cycle: SmoothWeighted[PeerLink | LocalTarget] = SmoothWeighted()
        self.max_frame = transport_limit(options.max_message_bytes)
        self._admission = ClientAdmission(
            channel_name=options.channel,
            security_identity=options.security_identity,
            max_message_bytes=advertised_limit(options.max_message_bytes),
        )
        self._list_is_due = options.discovers
        self._waiting = trio.lowlevel.ParkingLot()

    def start(self, transport: Transport) -> None:
        """Begin to dial the configured servers."""
        self._transport = transport
        self._configure(self.options.servers, self.now())
        self.core.channels[self.name] = self
        self.core.add(self)
        self.core.timer.add(self)
        self._rebuild()

    # -- the send path -------------------------------------------------------------------------------------------------

    @property
    def waiting_calls(self) -> int:
        """Calls that wait for a connection that is being made."""
        return len(self._waiting)

    def select(self) -> PeerLink | LocalTarget | None:
        """The next server; None while a connection is being made that may give one (LV [D6])."""
        target = self.cycle.select()
        if target is None and not self._is_under_way():
            raise self._no_target()
        return target

    async def wait_for_target(self, seconds: float) -> PeerLink | LocalTarget:
        """Wait for the connections that are being made, at most `seconds`, then choose (LV [D6], LV-137)."""
        with trio.move_on_after(seconds):
            while True:
                await self._waiting.park()
                if self.shutting_down:
                    raise ShuttingDownError("this host is shutting down and takes no new calls")
                target = self.select()
                if target is not None:
                    return target
        target = self.cycle.select()
        if target is None:
            raise self._no_target()
        return target

    def _is_under_way(self) -> bool:
        now = self.now()
        return self._list_is_due or any(self._is_connecting(peer, now) for peer in self.book)

    def _is_connecting(self, peer: Peer, now: float) -> bool:
        if peer.link is not None:
            return peer.link.is_connecting
        return peer.intent is not None and peer.intent.due(now) and self._may_dial(peer)

    def _no_target(self) -> ZlinkError:
        known = sum(1 for peer in self.book if peer.is_wanted or peer.link is not None)
        if not known:
            return NotFoundError(
                f"channel {self.name!r}: no server of it is known; start one that uses the same Location Store, or "
                "name its endpoint in servers"
            )
        return UnavailableError(
            f"channel {self.name!r}: none of its {known} known server(s) is ready, serving and of weight above 0",
            cause="RouteNotConnected",
        )

    def _rebuild(self) -> None:
        """Calls only read the candidate list (wire.md §10)."""
        candidates: list[tuple[str, int, PeerLink | LocalTarget]] = []
        for peer in self.book:
            link = peer.link
            if link is None or link.rid is None or not link.pair.selectable:
                continue
            # As on a mesh: a server that is gone from a complete list is no target for new selection (LO-171).
            shown = not self.discovers or peer.listed is not None or peer.manual
            weight = peer.channels.get(self.name, 0)
            if shown and weight > 0:
                candidates.append((link.rid, weight, link))
        self.cycle.rebuild(candidates)
        self._waiting.unpark_all()
        super()._rebuild()

    # -- dialling ------------------------------------------------------------------------------------------------------

    def _list_applied(self, now: float) -> None:
        self._list_is_due = False

    def _may_dial(self, peer: Peer) -> bool:
        if peer.listed is not None and peer.listed.runtime_state not in _TAKES_CLIENTS:
            return False
        return super()._may_dial(peer)

    def _dialled_link(self, endpoint: str, expected: Expected) -> PeerLink:
        core = self.core
        # Judged through a cell: the pair needs its judge at birth, the judge needs the link around the pair.
        cell: list[ServiceLink] = []
        pair = ServicePair(
            dialler=True,
            local=lambda: self._admission,
            expected=expected,
            judge=lambda admission: self._judge(cell[0], admission),
            probe_ids=core.entropy.generation,
            flow=lambda: core.flow,
            prepared=self._prepared,
        )
        link = ServiceLink(self, pair, endpoint=endpoint, dialler=True, own_limit=self._admission.max_message_bytes)
        cell.append(link)
        self._hold(link)
        return link

    def _judge(self, link: ServiceLink, admission: ServiceAdmission) -> RejectReason | None:
        """One connection per server: of two endpoints that lead to one, the second waits until the first is gone."""
        remote = remote_of(admission)
        peer = self.book.by_rid(remote.rid) if remote is not None else None
        current = peer.link if peer is not None else None
        if remote is None or current is None or current is link or current.ended or not current.admitted:
            return None
        if current.remote is not None and current.remote.lifecycle_generation != remote.lifecycle_generation:
            # Two processes use one id. The one that answers stays; were the newer one right, as after a restart on
            # another port, the older connection ends by its probes. Replacing it would let two live ones take turns.
            return RejectReason.IDENTITY_MISMATCH
        link.same_as = remote.rid
        return RejectReason.DUPLICATE_CONNECTION

    def _sink(self, link: PeerLink, lane: Lane) -> LaneSink:
        assert isinstance(link, ServiceLink)
        return ServiceSink(self, link, self.max_frame)
