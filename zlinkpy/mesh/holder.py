"""What owns connections: a mesh node, a ClientServer server, a ClientServer client. What all three do the same way.

A holder is told by its links what became of them (`LinkOwner`), tells them what changed here (weights, state, receive
flow, preparation), makes jobs of what they carry, and closes them in order. Who may connect, who is dialled and who is
chosen is up to the kinds of holder.

Everything here is synchronous and driven from three sides: the transport's receive stage (records, closes), the shared
timer and the host (weights, state). Only `aclose` waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import trio

from zlinkpy.link import Ended, Failure
from zlinkpy.mesh.dispatch import HandlerTable, Job
from zlinkpy.mesh.peer_link import CLOSE_LINGER, LaneSink, PeerLink
from zlinkpy.mesh.refusals import Refusals
from zlinkpy.telemetry import catalogue, get_logger
from zlinkpy.transport import Connection, Listener, Transport
from zlinkpy.wire import (
    ChannelRequest,
    CloseReason,
    FailureCode,
    FlowState,
    Lane,
    NodeRequest,
    Record,
    TerminalResult,
)

if TYPE_CHECKING:
    from zlinkpy.mesh.core import MeshCore
    from zlinkpy.mesh.member_channel import MemberChannel

log = get_logger("zlinkpy.mesh")


class LinkHolder:
    """The owner of links, by name."""

    scope_kind: ClassVar[str]
    """What `name` names, as metrics call it: ``mesh`` or ``channel``."""
    kind: ClassVar[str]
    """What people call it."""

    def __init__(self, core: MeshCore, name: str, handlers: HandlerTable) -> None:
        self.core = core
        self.name = name
        self.handlers = handlers
        self.requests = core.requests
        self.endpoint: str | None = None
        """What is advertised; None before the start, and for what does not listen."""
        # Ordered, so that a seeded simulation closes and tells in the same order every time.
        self.links: dict[PeerLink, None] = {}
        self.member_channels: dict[str, MemberChannel | None] = {}
        """The framework's published channels of a mesh; None where nobody in this process uses one. Empty elsewhere."""
        self.on_content: Callable[[Any], None] | None = None
        """Set by the host: the published content changed (publish a new descriptor revision)."""
        self.on_status: Callable[[Any], None] | None = None
        """Set by the host: the status would say something new."""
        self.closing = False
        self.refusals = Refusals(f"{self.kind} {name}")
        self._transport: Transport | None = None
        self._listener: Listener | None = None
        self._revision = 1
        self._prepared = False
        self._idle = trio.Event()

    # -- what kinds of holder add --------------------------------------------------------------------------------------

    @property
    def mesh_name(self) -> str | None:
        """The mesh a handler is told its message came over; None where there is none."""
        return None

    def _rebuild(self) -> None:
        """Bring the candidate lists up to date and say that the status changed."""
        if self.on_status is not None:
            self.on_status(self)

    def _content_is_old(self) -> None:
        """What this side says about itself has to be made anew."""

    def _leave(self) -> None:
        """Take and start no further connection."""

    # -- life ----------------------------------------------------------------------------------------------------------

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
        self._leave()
        for link in tuple(self.links):
            link.perform(link.pair.close(CloseReason.ORDERLY, now))
        with trio.move_on_after(CLOSE_LINGER * 2, shield=True):
            if any(link.open_lanes for link in self.links):
                await self._idle.wait()
        self.core.remove(self)
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

    # -- what changed here ---------------------------------------------------------------------------------------------

    def content_changed(self) -> None:
        """Something an `update` may carry changed: next revision, to the peers and to the Store (wire.md §4)."""
        if self.endpoint is not None:
            self._revision += 1
            self._content_is_old()
            now = self.now()
            for link in tuple(self.links):
                link.perform(link.pair.announce(now))
        self._rebuild()
        if self.endpoint is not None and self.on_content is not None:
            self.on_content(self)

    @property
    def revision(self) -> int:
        """The descriptor revision of what this side says about itself."""
        return self._revision

    def flow_changed(self, state: FlowState) -> None:
        """The job queue's pressure changed: every ready peer is told (wire.md §12)."""
        now = self.now()
        for link in tuple(self.links):
            link.perform(link.pair.set_flow(state, now))

    # -- what links report ---------------------------------------------------------------------------------------------

    def _hold(self, link: PeerLink) -> None:
        """Own `link` from now on; the host's one liveness owner judges it (LV-05)."""
        self.links[link] = None
        self.core.liveness.register(link, link.pair)

    def dial_lane(self, link: PeerLink, lane: Lane) -> Connection:
        """Open one physical connection of a dialled link; only who dials has any."""
        raise NotImplementedError

    def first_record(self, sink: LaneSink, connection: Connection, frames: list[bytes]) -> None:
        """A record on an accepted connection that no link owns yet; only a mesh has such connections."""
        raise NotImplementedError

    def unadmitted_closed(self, sink: LaneSink) -> None:
        """A connection that never became part of a link is gone."""
        raise NotImplementedError

    def deadline_moved(self, link: PeerLink) -> None:
        """A machine may have a new deadline."""
        self.core.timer.touch(link.pair.next_deadline())

    def link_admitted(self, link: PeerLink) -> None:
        """The peer said who it is, and may be who it says."""
        self.refusals.admitted(link)
        self._rebuild()

    def link_ready(self, link: PeerLink) -> None:
        """The connection is up and every check passed."""
        self.core.telemetry.counter(catalogue.PEER_CONNECTS, scope_kind=self.scope_kind, scope_name=self.name)
        log.info("%s of %s %s is ready", link.title, self.kind, self.name)
        self._rebuild()

    def link_not_ready(self, link: PeerLink, failure: Failure) -> None:
        """Out of every selection set in this instant; what was asked over this route ends (LV-76, LV-140)."""
        self.core.telemetry.counter(
            catalogue.PEER_DISCONNECTS, scope_kind=self.scope_kind, scope_name=self.name, reason=failure.reason.value
        )
        log.info(
            "%s of %s %s is not ready any more: %s (%s)",
            link.title,
            self.kind,
            self.name,
            failure.reason.value,
            failure.detail,
        )
        self._rebuild()
        if not link.awaits_replies:
            self.requests.fail_route(link)
        elif not self.requests.awaits(link):
            link.answered()

    def link_updated(self, link: PeerLink) -> None:
        """Weights or state of a peer changed."""
        self._rebuild()

    def link_ended(self, link: PeerLink, ended: Ended) -> None:
        """The attempt is over; its lanes may still be closing."""
        if not link.open_lanes:
            self.links.pop(link, None)
        self.requests.fail_route(link)
        self.refusals.ended(link, ended)

    def lane_closed(self, link: PeerLink) -> None:
        """A physical connection of `link` was seen closed."""
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
