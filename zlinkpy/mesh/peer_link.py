"""The shell around one `link.Pair`: two physical connections, one peer.

It owns no judgement. Records and closes go into the machine, the machine's actions are performed here, and application
records pass by it on their way to the mesh. One PeerLink lives as long as one attempt to be connected; a reconnect is a
new one, so nothing of an old connection (reply routes, probe ids, ready state) can leak into the next (LV-145).

Application records of callers that must wait (peer paused, or send queue full) leave in the order in which the calls
came; a caller waits holding nothing, and only the first in line is woken (SA-245).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, get_args

import trio

from zlinkpy.errors import ConfigurationError, ProtocolError, ShuttingDownError, UnavailableError, ZlinkError
from zlinkpy.link import (
    Action,
    Admitted,
    CloseLane,
    Dial,
    Ended,
    Failure,
    FailureReason,
    LinkCommand,
    NotReady,
    Pair,
    PairPhase,
    Ready,
    RemoteFlow,
    Send,
    ServicePair,
    Updated,
)
from zlinkpy.mesh.remote import Remote, remote_of
from zlinkpy.security import KeyRefusedError
from zlinkpy.telemetry import get_logger
from zlinkpy.transport import Connection, ConnectionClosed
from zlinkpy.wire import (
    Admission,
    ChannelRequest,
    ChannelSend,
    Direction,
    FlowState,
    Lane,
    NodeRequest,
    NodeSend,
    Record,
    Reply,
    RouteMeshAdmission,
    Topology,
    addressee_of_malformed,
    decode,
    encode,
)

if TYPE_CHECKING:
    from zlinkpy.link import DialIntent
    from zlinkpy.mesh.member_channel import MemberChannel
    from zlinkpy.mesh.request_table import RequestTable

log = get_logger("zlinkpy.mesh")

# How long the final records of a connection that we close (the `close` record behind a backlog) may take to leave.
CLOSE_LINGER = 1.0

# Replies that may wait for one peer to read its completion lane. Two full queues of a connection are before them.
REPLIES_WAITING = 1024

_APPLICATION = frozenset({ChannelRequest, ChannelSend, NodeRequest, NodeSend})
_LINK = frozenset(get_args(LinkCommand))


class LinkOwner(Protocol):
    """What a PeerLink tells its holder."""

    requests: RequestTable
    member_channels: dict[str, MemberChannel | None]

    def now(self) -> float: ...
    def dial_lane(self, link: PeerLink, lane: Lane) -> Connection: ...
    def link_admitted(self, link: PeerLink) -> None: ...
    def link_ready(self, link: PeerLink) -> None: ...
    def link_not_ready(self, link: PeerLink, failure: Failure) -> None: ...
    def link_updated(self, link: PeerLink) -> None: ...
    def link_ended(self, link: PeerLink, ended: Ended) -> None: ...
    def lane_closed(self, link: PeerLink) -> None: ...
    def deadline_moved(self, link: PeerLink) -> None: ...
    def application_record(self, link: PeerLink, connection: Connection, record: Record, now: float) -> None: ...
    def first_record(self, sink: LaneSink, connection: Connection, frames: list[bytes]) -> None: ...
    def unadmitted_closed(self, sink: LaneSink) -> None: ...
    @property
    def shutting_down(self) -> bool: ...


class LaneSink:
    """One physical connection's owner. An accepted connection has no link until its `hello` was read."""

    __slots__ = ("connection", "lane", "link", "mesh")

    # What may arrive, as `decode` takes it.
    topology: ClassVar[Topology] = Topology.ROUTE_MESH
    direction: Direction | None = None
    max_bytes: int | None = None

    def __init__(self, mesh: LinkOwner, link: PeerLink | None, lane: Lane) -> None:
        self.mesh = mesh
        self.link = link
        self.lane = lane
        self.connection: Connection | None = None

    def opened(self, connection: Connection) -> None:
        self.connection = connection
        if self.link is not None:
            self.link.perform(self.link.pair.opened(self.lane, self.mesh.now()))

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        link = self.link
        if link is None:
            self.mesh.first_record(self, connection, frames)
            return
        try:
            record = decode(
                frames, topology=self.topology, lane=self.lane, direction=self.direction, max_bytes=self.max_bytes
            )
        except ProtocolError as error:
            corr = addressee_of_malformed(frames[0]) if frames else None
            if corr is not None:
                problem = ProtocolError(f"the reply does not decode: {error.problem}", field=error.field)
                self.mesh.requests.fail(link, corr, problem)
            link.violated(self.lane, error)
            return
        command = record.command
        kind = type(command)
        if kind is Reply:
            if link.admitted:
                self.mesh.requests.reply(link, command, record.parts)
                if link.ended and not self.mesh.requests.awaits(link):
                    link.answered()
            else:
                link.violated(
                    self.lane, ProtocolError("reply on a connection that is not admitted", field="prefix.command")
                )
        elif kind in _APPLICATION:
            now = self.mesh.now()
            if link.admitted:
                link.pair.last_receive = now
                self.mesh.application_record(link, connection, record, now)
            else:
                link.perform(link.pair.touch(now, self.lane))
        elif kind in _LINK:
            link.perform(link.pair.receive(self.lane, command, self.mesh.now()))
        else:
            # Of a part this node does not have: well formed, so the connection stays, and no evidence (LV-70).
            log.info("ignoring %s from %s: nothing here takes it", kind.__name__, link.rid or link.endpoint)
            link.perform(link.pair.touch(self.mesh.now(), self.lane))

    def closed(self, connection: Connection, cause: str) -> None:
        link = self.link
        if link is None:
            self.mesh.unadmitted_closed(self)
            return
        link.lane_closed(self.lane)
        self.mesh.lane_closed(link)
        reason = FailureReason.SECURITY_MISMATCH if connection.security_failed else FailureReason.TRANSPORT_ERROR
        link.perform(link.pair.lost(self.lane, cause, self.mesh.now(), reason))


class PeerLink:
    """One attempt to be connected with one peer, from the first dial or `hello` to its end."""

    def __init__(self, mesh: LinkOwner, pair: Pair | ServicePair, *, endpoint: str, dialler: bool) -> None:
        self.mesh = mesh
        self.pair: Pair | ServicePair = pair
        self.endpoint = endpoint
        self.dialler = dialler
        self.lanes: dict[Lane, Connection] = {}
        self.intent: DialIntent | None = None
        """The intent that dialled, None on the accepting side."""
        self.pair_id = b""
        """Names the two lanes of a mesh's pair as one connection."""
        self.claim: RouteMeshAdmission | None = None
        """What the dialling peer said of itself before it was admitted (accepting side only)."""
        self.leads_home = False
        """True when the dialled endpoint turned out to be this node's own."""
        self.same_as: str | None = None
        """The RID of the node when a connection to another endpoint of it took this one's place."""
        self.peer_key: str | None = None
        """The CURVE key that every connection of this link has to prove; None without keys."""
        self.rid: str | None = None
        self.remote: Remote | None = None
        """What the peer last said about itself, once it was admitted."""
        self.admitted = False
        self.ended = False
        self.open_lanes = 0
        """Physical connections of this link whose close has not been observed."""
        self._close_after: dict[Lane, tuple[Lane, bool]] = {}
        self._application: Connection | None = None
        self._completion: Connection | None = None
        self._paused = False
        self._replying = 0
        self._waiting: deque[trio.Event] = deque()

    def __repr__(self) -> str:
        return f"<PeerLink {self.rid or self.endpoint} {self.pair.phase.value} waiting={len(self._waiting)}>"

    @property
    def title(self) -> str:
        """What people call the other end."""
        return f"peer {self.rid or self.endpoint}"

    # -- events in ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Dial (dialler only)."""
        self.perform(self.pair.start(self.mesh.now()))

    def adopt(self, sink: LaneSink, lane: Lane, connection: Connection) -> None:
        """Take over an accepted connection whose `hello` named this link."""
        sink.link, sink.lane = self, lane
        self._connected(lane, connection)

    def _connected(self, lane: Lane, connection: Connection) -> None:
        self.lanes[lane] = connection
        self.open_lanes += 1
        if lane is Lane.APPLICATION:
            self._application = connection
        else:
            self._completion = connection

    @property
    def awaits_replies(self) -> bool:
        """True while a peer that said `close` may still have replies under way. On one connection nothing can."""
        return isinstance(self.pair, Pair) and self.pair.awaits_replies

    def answered(self) -> None:
        """No request waits for this peer any more."""
        if isinstance(self.pair, Pair):
            self.perform(self.pair.answered(self.mesh.now()))

    def violated(self, lane: Lane, error: ProtocolError) -> None:
        """The peer broke the wire format on `lane`: this peer's connection ends, no other is touched (LV [D7])."""
        if self.pair.ended:
            return
        log.warning("closing the connection with %s: it sent a malformed record (%s)", self.rid or self.endpoint, error)
        self.perform(self.pair.violated(lane, error, self.mesh.now()))

    # -- actions out -------------------------------------------------------------------------------------------------

    def perform(self, actions: Sequence[Action]) -> None:
        """Carry out what the machine decided, in its order."""
        mesh = self.mesh
        for action in actions:
            match action:
                case Send(lane=lane, command=command):
                    connection = self.lanes.get(lane)
                    if connection is not None:
                        connection.post(encode(command))
                case Dial(lane=lane):
                    self._dial(lane)
                case CloseLane(lane=lane, linger=linger, after=after):
                    if after is not None and after in self.lanes:
                        self._close_after[after] = (lane, linger)
                    else:
                        self._close_lane(lane, linger=linger)
                case Admitted(remote=remote):
                    self.admitted = True
                    self._heard(remote)
                    mesh.link_admitted(self)
                case Ready():
                    mesh.link_ready(self)
                case NotReady(failure=failure):
                    self._stop()
                    mesh.link_not_ready(self, failure)
                case Updated(remote=remote):
                    self._heard(remote)
                    mesh.link_updated(self)
                case RemoteFlow(state=state):
                    self._paused = state is FlowState.PAUSED
                    if not self._paused:
                        self._wake_first()
                case Ended():
                    self.admitted = False
                    self._stop()
                    mesh.link_ended(self, action)
        mesh.deadline_moved(self)

    def _heard(self, admission: Admission) -> None:
        self.remote = remote_of(admission)
        if self.remote is not None:
            self.rid = self.remote.rid

    def _dial(self, lane: Lane) -> None:
        try:
            connection = self.mesh.dial_lane(self, lane)
        except ConfigurationError as error:
            # What a descriptor says is not ours to trust: a failed attempt like any other.
            refused = isinstance(error, KeyRefusedError)
            reason = FailureReason.SECURITY_MISMATCH if refused else FailureReason.TRANSPORT_ERROR
            self.perform(self.pair.lost(lane, error.message, self.mesh.now(), reason))
        else:
            self._connected(lane, connection)

    def _close_lane(self, lane: Lane, *, linger: bool) -> None:
        connection = self.lanes.get(lane)
        if connection is not None:
            connection.close(linger=CLOSE_LINGER if linger else 0.0)

    def lane_closed(self, lane: Lane) -> None:
        """The close of `lane` was observed: what had to wait for it is closed now (`CloseLane.after`)."""
        self.open_lanes -= 1
        waiting = self._close_after.pop(lane, None)
        if waiting is not None:
            other, linger = waiting
            self._close_lane(other, linger=linger)

    def _stop(self) -> None:
        if not self.ended:
            self.ended = True
            for event in self._waiting:
                event.set()

    # -- application records out ---------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """The pair's one predicate (LV-25)."""
        return self.pair.ready

    @property
    def waiting(self) -> int:
        """Calls that wait for this peer to take their record."""
        return len(self._waiting)

    def submit(self, frames: list[bytes]) -> bool:
        """Hand one application record to the transport now. False: it has to wait its turn with `submit_later`."""
        if self._paused or self._waiting:
            return False
        connection = self._application
        if connection is None:
            raise self.gone()
        try:
            return connection.send(frames)
        except ConnectionClosed:
            raise self.gone() from None

    async def submit_later(self, frames: Callable[[], list[bytes]]) -> None:
        """Wait in line, then submit once what `frames` makes at that moment: a request carries the time that is left
        then (SA-203). Raises UnavailableError or ShuttingDownError when the route goes away."""
        turn = trio.Event()
        self._waiting.append(turn)
        try:
            while True:
                if self.ended or self._application is None:
                    raise self.gone()
                if self._waiting[0] is turn and not self._paused:
                    try:
                        if self._application.send(frames()):
                            return
                        await self._application.wait_writable()
                    except ConnectionClosed:
                        raise self.gone() from None
                else:
                    await turn.wait()
                    if self._paused and not self.ended:
                        # Woken as the first in line while the peer is still paused: wait for its next word.
                        fresh = trio.Event()
                        self._waiting[self._waiting.index(turn)] = fresh
                        turn = fresh
        finally:
            self._waiting.remove(turn)
            self._wake_first()

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0].set()

    async def reply(self, frames: list[bytes], deadline: float | None) -> bool:
        """Send a reply on the completion lane, waiting for room until `deadline`. False: nobody is there to take it.

        Completion traffic needs no permit and moves while both sides are paused (wire.md §8). A peer that does not
        read its replies could pile them up here without bound: above `REPLIES_WAITING` its connection ends.
        """
        connection = self._completion
        if connection is None:
            return False
        try:
            if connection.send(frames):
                return True
            if self._replying >= REPLIES_WAITING:
                detail = f"the peer does not read its replies: {REPLIES_WAITING} wait"
                self.perform(self.pair.fail(FailureReason.TRANSPORT_ERROR, detail, self.mesh.now()))
                return False
            self._replying += 1
            try:
                # Past the deadline its caller has long got DeadlineExceeded.
                with trio.CancelScope(deadline=math.inf if deadline is None else deadline):
                    await connection.wait_writable()
                    while not connection.send(frames):
                        await connection.wait_writable()
                    return True
            finally:
                self._replying -= 1
        except ConnectionClosed:
            return False
        return False

    def answer(self, frames: list[bytes]) -> None:
        """Submit the framework's own reply without waiting: bounded and in order, as every infrastructure record."""
        if self._completion is not None:
            self._completion.post(frames)

    def gone(self) -> ZlinkError:
        """The error of a call whose route went away before its record was taken (LV [D11])."""
        if self.mesh.shutting_down:
            return ShuttingDownError("this host is shutting down")
        return UnavailableError(
            f"the connection with {self.rid or self.endpoint} is gone; the message was not sent",
            cause="RouteNotConnected",
        )

    @property
    def is_connecting(self) -> bool:
        """True until the pair is ready or ended."""
        return self.pair.phase in (PairPhase.CONNECTING, PairPhase.ADMITTED)
