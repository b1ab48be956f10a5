"""The RouteMesh as signal bus (facts: docs/sessions.md).

Every router's node is a member of the channel ``zlink.sessions`` of its mesh. A signal is one one-way message for each
peer it concerns: control signals for every ready member, events for those that said they want the session's. It is
handed to the transport at once; what finds no room waits in the peer's outbox, never in the publisher.

A received control signal reaches its handlers in the receive turn itself, an event through the intake; but for the
first one after nothing was waiting, which need not stand in a line of one. A peer that is
not ready loses the signal, and what a node wants to hear ends with the connection and is said again on the next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Final, Protocol

import trio
from attrs import define, field, frozen

from zlinkpy.errors import ShuttingDownError, UnavailableError, ZlinkError
from zlinkpy.mesh import Member, MemberChannel
from zlinkpy.sessions.errors import SessionSignalError, SignalPayloadError
from zlinkpy.sessions.interest_machine import Announcements, Interest, Interests
from zlinkpy.sessions.outbox_machine import Outbox
from zlinkpy.sessions.signal_codec import (
    decode_signal,
    decode_signals,
    encode_signal,
    grade_of_signal,
    join_signals,
)
from zlinkpy.sessions.signal_intake import (
    IntakeStatistics,
    Place,
    SignalIntake,
    SubscriberTable,
    TableSubscription,
)
from zlinkpy.sessions.spi import SignalHandler, Subscription
from zlinkpy.sessions.types import SessionSignal
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.sessions")

CHANNEL: Final = "zlink.sessions"
SIGNAL: Final = "zlink.session.signal"
SIGNALS: Final = "zlink.session.signals"
INTEREST: Final = "zlink.session.interest"

BATCH_SIGNALS: Final = 64
BATCH_BYTES: Final = 32 << 10
"""What one message holds of the events of a session that are published together: little against a receive turn, and
less than any mesh may bound its messages to."""

INTEREST_SECONDS: Final = 1.0
"""How long a subscribe waits for the peers to know of it, and how long one of them may take to answer."""

RETRY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Between two tries to tell a peer; its host may be up and its router not."""

SENDS_PER_CHECKPOINT: Final = 64


class SessionMesh(Protocol):
    """What `Host.mesh` returns, as far as the bus is concerned."""

    def serve_member_channel(self, name: str) -> None: ...
    def member_channel(self, name: str) -> MemberChannel: ...


@frozen(kw_only=True)
class MeshBusStatistics:
    """What the bus of one node holds and has lost."""

    peers: int
    intake: IntakeStatistics
    waiting: int
    """Signals that wait for a peer to take them."""
    control_lost: int
    """Control signals a peer did not take in time."""
    events_lost: int


@define(eq=False)
class _Peer:
    """A member of the channel, and what goes on with it."""

    member: Member
    interests: Interests = field(factory=Interests)
    announcements: Announcements | None = None
    """None until it is ready."""
    outbox: Outbox = field(factory=Outbox)
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    due: trio.Event = field(factory=trio.Event)
    """Something is to be announced."""
    backlog: trio.Event = field(factory=trio.Event)
    """Something is in the outbox."""
    patience: trio.CancelScope | None = None
    """The wait for room, ends when a control signal has waited too long."""


@define(eq=False)
class _Batch:
    """What goes as one message: one control signal, or events of one session."""

    signals: list[SessionSignal] = field(factory=list)
    coded: list[bytes] = field(factory=list)
    size: int = 0

    def takes(self, signal: SessionSignal, size: int) -> bool:
        """True when `signal`, of so many bytes, may go with the others."""
        if not self.signals:
            return True
        first = self.signals[0]
        return (
            first.session_id == signal.session_id
            and not first.kind.is_control
            and not signal.kind.is_control
            and len(self.signals) < BATCH_SIGNALS
            and self.size + size <= BATCH_BYTES
        )

    def add(self, signal: SessionSignal, data: bytes) -> None:
        """Take it in."""
        self.signals.append(signal)
        self.coded.append(data)
        self.size += len(data)


class MeshSignalBus:
    """A `SessionSignalBus` over the mesh that `mesh` registers.

    Make it before `host.run()`, use it inside: ``async with MeshSignalBus(mesh) as bus``. One per mesh of a process.
    """

    def __init__(self, mesh: SessionMesh) -> None:
        mesh.serve_member_channel(CHANNEL)
        self._mesh = mesh
        self._table = SubscriberTable()
        self._intake = SignalIntake(self._table)
        self._peers: dict[Member, _Peer] = {}
        self._channel: MemberChannel | None = None
        self._nursery: trio.Nursery | None = None
        self._progress = trio.Event()
        self._arrived = trio.Event()
        """Events are to be handed out."""
        self._lost = [0, 0]
        self._opened: AbstractAsyncContextManager[None] | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> MeshSignalBus:
        """Raises InvalidOperationError when the host does not run, or another bus is open on this mesh."""
        opened = self._running()
        await opened.__aenter__()
        self._opened = opened
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        opened, self._opened = self._opened, None
        assert opened is not None
        return await opened.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        channel = self._mesh.member_channel(CHANNEL)
        body: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._channel, self._nursery = channel, nursery
                # What was left when the bus was closed the last time is handed out first.
                self._arrived.set()
                nursery.start_soon(self._hand_out)
                channel.told[SIGNAL] = self._told
                channel.told[SIGNALS] = self._told_several
                channel.asked[INTEREST] = self._asked
                channel.on_joined, channel.on_left = self._joined, self._left
                channel.refresh()
                try:
                    yield
                except BaseException as error:  # noqa: BLE001 - raised below, without the group a nursery puts around it
                    body = error
                nursery.cancel_scope.cancel()
        finally:
            channel.close()
            self._channel = self._nursery = None
            self._peers.clear()
        if body is not None:
            raise body

    @property
    def is_open(self) -> bool:
        """True inside ``async with``."""
        return self._channel is not None

    def _open_channel(self) -> MemberChannel:
        if self._channel is None:
            raise SessionSignalError("the signal bus of the mesh is not open", applied="no")
        return self._channel

    # -- subscribing ---------------------------------------------------------------------------------------------------

    async def subscribe(self, session_id: str, handler: SignalHandler, events: bool = True) -> Subscription:
        """Effective for control signals at once; for events when every ready peer knows of it, or after 1 s (a peer
        that has not answered by then learns of it later). Raises SessionSignalError when the bus is not open."""
        self._open_channel()
        await trio.lowlevel.checkpoint_if_cancelled()
        place = self._table.add(session_id, handler, events=events)
        if events:
            try:
                await self._announce(session_id)
            except BaseException:
                self._unsubscribe(place)
                raise
        return TableSubscription(place, self._unsubscribe)

    async def _announce(self, session_id: str) -> None:
        told = [peer for peer in self._peers.values() if peer.announcements is not None]
        for peer in told:
            self._wants(peer, session_id, on=True)
        with trio.move_on_after(INTEREST_SECONDS):
            while any(
                peer.member in self._peers
                and peer.announcements is not None
                and not peer.announcements.knows(session_id)
                for peer in told
            ):
                await self._progress.wait()

    def _unsubscribe(self, place: Place) -> None:
        if self._table.remove(place) and place.wants_events and not self._table.has_event_handlers(place.session_id):
            for peer in self._peers.values():
                self._wants(peer, place.session_id, on=False)

    @staticmethod
    def _wants(peer: _Peer, session_id: str, *, on: bool) -> None:
        if peer.announcements is not None:
            peer.announcements.change(session_id, on=on)
            peer.due.set()

    def _progressed(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def publish(self, signal: SessionSignal) -> None:
        """Raises SignalPayloadError, and SessionSignalError when the bus is not open. Waits for no peer."""
        await self.publish_all((signal,))

    async def publish_all(self, signals: Sequence[SessionSignal]) -> None:
        """Raises as `publish`, for the first signal that cannot be sent, once the others are on their way."""
        channel = self._open_channel()
        await trio.lowlevel.checkpoint_if_cancelled()
        failure: SignalPayloadError | None = None
        batch = _Batch()
        for signal in signals:
            try:
                data = encode_signal(signal)
                if channel.limit is not None and len(data) > channel.limit:
                    raise SignalPayloadError(
                        f"{signal.kind.value}: the signal has {len(data)} bytes, the mesh takes {channel.limit} "
                        "(max_message_bytes)"
                    )
            except SignalPayloadError as error:
                failure = failure or error
                continue
            if not batch.takes(signal, len(data)):
                self._publish(channel, batch)
                batch = _Batch()
            batch.add(signal, data)
        if batch.signals:
            self._publish(channel, batch)
        if failure is not None:
            raise failure
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _publish(self, channel: MemberChannel, batch: _Batch) -> None:
        signals = batch.signals
        session_id = signals[0].session_id
        control = signals[0].kind.is_control
        together: list[bytes] | None = None
        one_by_one: list[list[bytes]] | None = None
        for peer in self._peers.values():
            if peer.announcements is None or not (control or session_id in peer.interests):
                continue
            if len(signals) > 1 and not len(peer.outbox):
                if together is None:
                    together = channel.frames(SIGNALS, join_signals(batch.coded))
                if self._tell_now(peer, together):
                    continue
            # What has to wait is lost one by one, if it is.
            if one_by_one is None:
                one_by_one = [channel.frames(SIGNAL, data) for data in batch.coded]
            for signal, frames in zip(signals, one_by_one, strict=True):
                self._tell(peer, frames, control=control, grade=0 if control else grade_of_signal(signal))
        if session_id in self._table:
            # Routers of this very process, if there are several, hear each other through here.
            for data in batch.coded:
                local = decode_signal(data)
                if local is not None:
                    self._queue(local, len(data))

    @staticmethod
    def _tell_now(peer: _Peer, frames: list[bytes]) -> bool:
        """False: it has to wait. What a peer that is not ready any more is told is lost, as for every such peer."""
        try:
            return peer.member.tell(frames)
        except (UnavailableError, ShuttingDownError):
            return True

    def _tell(self, peer: _Peer, frames: list[bytes], *, control: bool, grade: int) -> None:
        if not len(peer.outbox) and self._tell_now(peer, frames):
            return
        if control:
            peer.outbox.put_control(frames, trio.current_time())
            deadline = peer.outbox.deadline()
            if peer.patience is not None and deadline is not None:
                peer.patience.deadline = deadline
        else:
            peer.outbox.put_event(frames, grade)
        peer.backlog.set()

    async def _empty(self, peer: _Peer) -> None:
        """Hand over what waits for `peer`, as it takes it."""
        outbox, member = peer.outbox, peer.member
        while True:
            await peer.backlog.wait()
            peer.backlog = trio.Event()
            sent = 0
            while len(outbox):
                lost = outbox.expire(trio.current_time())
                if lost:
                    log.warning("lost %d control signals for %s: it took none for a second", lost, member.rid)
                    continue
                try:
                    if member.tell(outbox.offer()):
                        outbox.taken()
                        sent += 1
                        if sent % SENDS_PER_CHECKPOINT == 0:
                            await trio.lowlevel.checkpoint()
                        continue
                    await self._hand_over_later(peer)
                except (UnavailableError, ShuttingDownError):
                    return

    @staticmethod
    async def _hand_over_later(peer: _Peer) -> None:
        deadline = peer.outbox.deadline()
        with trio.CancelScope() as peer.patience:
            if deadline is not None:
                peer.patience.deadline = deadline
            await peer.member.tell_later(peer.outbox.offer)
            peer.outbox.taken()
        peer.patience = None

    # -- peers ---------------------------------------------------------------------------------------------------------

    def _peer(self, member: Member) -> _Peer:
        peer = self._peers.get(member)
        if peer is None:
            peer = self._peers[member] = _Peer(member)
        return peer

    def _joined(self, member: Member) -> None:
        assert self._nursery is not None
        peer = self._peer(member)
        peer.announcements = Announcements(self._table.with_events())
        self._nursery.start_soon(self._serve, peer)

    def _left(self, member: Member) -> None:
        peer = self._peers.pop(member, None)
        if peer is not None:
            self._lost[0] += peer.outbox.control_lost
            self._lost[1] += peer.outbox.events_lost
            peer.scope.cancel()
            self._progressed()

    async def _serve(self, peer: _Peer) -> None:
        with peer.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_interests, peer)
                nursery.start_soon(self._empty, peer)

    async def _tell_interests(self, peer: _Peer) -> None:
        announcements = peer.announcements
        assert announcements is not None
        failures = 0
        while True:
            interest = announcements.next()
            if interest is None:
                await peer.due.wait()
                peer.due = trio.Event()
                continue
            try:
                await peer.member.ask(INTEREST, interest.encode(), timeout=INTEREST_SECONDS)
            except ZlinkError as error:
                announcements.failed()
                log.debug("%s did not take what this node wants to hear: %s", peer.member.rid, error)
                pause = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures += 1
                with trio.move_on_after(pause):
                    await peer.due.wait()
                peer.due = trio.Event()
            else:
                failures = 0
                announcements.confirmed()
                self._progressed()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _told(self, member: Member, data: bytes) -> None:
        signal = decode_signal(data)
        if signal is not None:
            self._hear(signal, len(data))

    def _told_several(self, member: Member, data: bytes) -> None:
        signals = decode_signals(data)
        for signal in signals:
            self._hear(signal, len(data) // len(signals))

    def _hear(self, signal: SessionSignal, size: int) -> None:
        if signal.session_id not in self._table:
            return
        if signal.kind.is_control or self._intake.claim():
            self._table.dispatch(signal)
            if not signal.kind.is_control:
                self._arrived.set()
        else:
            self._queue(signal, size)

    def _queue(self, signal: SessionSignal, size: int) -> None:
        if self._intake.put(signal, size):
            self._arrived.set()

    async def _hand_out(self) -> None:
        # A task, and not the loop's queue of calls: that one wakes the loop through a socket, which costs more than all
        # the rest of the way through this process.
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            while self._intake.burst():
                await trio.lowlevel.checkpoint()

    def _asked(self, member: Member, data: bytes) -> None:
        peer = self._peer(member)
        starts_over = peer.interests.take(Interest.decode(data))
        if peer.announcements is not None:
            if starts_over:
                peer.announcements.restart(self._table.with_events())
            # Whoever speaks is there: what it did not take before is worth saying at once.
            peer.due.set()

    # -- observation ---------------------------------------------------------------------------------------------------

    def statistics(self) -> MeshBusStatistics:
        """A copy of the counters."""
        outboxes = [peer.outbox for peer in self._peers.values()]
        return MeshBusStatistics(
            peers=sum(peer.announcements is not None for peer in self._peers.values()),
            intake=self._intake.statistics(),
            waiting=sum(len(outbox) for outbox in outboxes),
            control_lost=self._lost[0] + sum(outbox.control_lost for outbox in outboxes),
            events_lost=self._lost[1] + sum(outbox.events_lost for outbox in outboxes),
        )
