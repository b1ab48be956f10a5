"""A bound ROUTER socket and the connections it accepted.

libzmq shows an accepted connection as a routing id and as a file descriptor, and never says which belongs to which. The
listener finds out at the first record of an unknown id: the frame carries its descriptor (`SRCFD`), and the monitor
says which descriptors are live. Descriptors are numbers that the kernel gives out again at once, so the monitor is
read first, then the id is bound. Should the record of a dead connection be read after its descriptor went to a new
one, it is bound to the new one at first; the next unknown id on that descriptor settles it (`_claim`).

Closing one connection has no call in libzmq. A duplicate of the descriptor is shut down, after a check that the
descriptor still means the socket it meant when it was accepted; the disconnect follows from that. There is no way to
see when libzmq has written everything, so a close with linger waits for the *peer* to hang up, which a peer that read
a `close` record does, and shuts down at the end of that time. Rejected: shutting down when the kernel's send queue is
empty; it is empty too while libzmq has not written yet.

Records of one socket are fair-queued: each connection with input is served once before any is served again. So a
connection whose disconnect was seen is read to its end once as many records came from others as there are
connections.

An accepted connection is invisible above until its first record. One that sends none in time is a stranger and is shut
down, or silent connections would use up the descriptors of the process. It is judged only when everything that had
arrived was read, so that neither a pause nor a busy loop passes for a silent peer. Behind a paused listener the records
of a peer that is gone wait like those of a dialled connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio
import zmq
from attrs import define

from zlinkpy.telemetry import get_logger
from zlinkpy.transport.descriptors import shut_down, socket_identity
from zlinkpy.transport.interface import FIRST_RECORD_SECONDS, LEFTOVERS_SECONDS, Connection, Sink
from zlinkpy.transport.monitor import HANDSHAKE_FAILURES, MonitorEvent, descriptor_of, pending_events
from zlinkpy.transport.receive_stage import BLOCKED_TICK, SLICE_RECORDS, ReceiveStage, TurnEnd
from zlinkpy.transport.rotation import Budgets, SharedTurn
from zlinkpy.transport.zmq_bound import Binding, BoundSocket
from zlinkpy.transport.zmq_connection import PhysicalConnection
from zlinkpy.transport.zmq_physical import Phase

LOGGER = get_logger("zlinkpy.transport")

_NOBLOCK = int(zmq.NOBLOCK)
_POLLIN = int(zmq.POLLIN)

# How many records beyond the fair-queue bound a disconnected connection is kept for: connections without a record yet
# take part in the queue unseen.
_LAP_MARGIN = 64


@define(eq=False)
class Descriptor:
    """One accepted TCP or ipc connection, from `ACCEPTED` to `DISCONNECTED`."""

    fd: int
    identity: tuple[object, int] | None
    connection: AcceptedConnection | None = None


class AcceptedConnection(PhysicalConnection):
    """One peer of a listener."""

    def __init__(
        self, *, listener: ZmqListener, stage: ReceiveStage, socket: zmq.Socket[bytes], routing_id: bytes, number: int,
        endpoint: str, descriptor: Descriptor | None, peer_key: str | None,
    ) -> None:  # fmt: skip
        super().__init__(
            stage=stage, source=listener, socket=socket, routing_id=routing_id, number=number, endpoint=endpoint
        )
        self._listener = listener
        self._peer_key = peer_key
        self._phase = Phase.OPEN
        self.descriptor = descriptor
        self.ended: str | None = None
        self.last_record = 0

    @property
    def dialled(self) -> bool:
        return False

    @property
    def _self(self) -> Connection:
        return self

    @property
    def routing_id(self) -> bytes:
        return self._routing_id

    def pause(self) -> None:
        """No effect: see Listener.pause."""

    def resume(self) -> None:
        """No effect: see Listener.resume."""

    @property
    def takes_records(self) -> bool:
        """Until its owner closed it, also after its end was seen."""
        return self._sink is not None and not self._closed_here

    def begin(self, sink: Sink) -> None:
        self._sink = sink
        self._tell_opened()

    def deliver(self, frames: list[bytes]) -> None:
        sink = self._sink
        if sink is not None:
            try:
                sink.received(self, frames)
            except Exception:
                LOGGER.exception("the sink of %r failed; this connection is closed", self)
                self._sink_failed()

    def close(self, *, linger: float = 0.0) -> None:
        if self._closed_here or self._phase is Phase.CLOSED:
            return
        self._closed_here = True
        if self.ended is not None:
            self._stage.chore(partial(self._listener.finish, self))
            return
        if linger > 0:
            self.uncork()
        self._stop_sending()
        if linger > 0:
            self._listener.lingering[self] = None
            self._stage.at(self._stage.clock() + linger, self._linger_ended)
        else:
            self._posts.clear()
            # Not inside the caller: an unknown id that waits in the same turn may still claim the descriptor.
            self._stage.chore(self._shut_down)

    def disconnected(self, cause: str) -> None:
        if self._phase is Phase.CLOSED or self.ended is not None:
            return
        if self._closed_here:
            self.ended = "closed here"
            self._stage.chore(partial(self._listener.finish, self))
        else:
            self.ended = cause
            self._stop_sending()
            self._posts.clear()
            self._listener.ending(self)

    def report_closed(self) -> None:
        """Tell the sink. Idempotent."""
        if self._phase is not Phase.CLOSED:
            self._stop_sending()
            self._posts.clear()
            self._tell_closed(self.ended or "closed here")

    def _linger_ended(self) -> None:
        self._shut_down()
        self._listener.linger_ended(self)

    def _shut_down(self) -> None:
        if self._phase is not Phase.CLOSED and self.descriptor is not None and self.descriptor.connection is self:
            shut_down(self.descriptor.fd, self.descriptor.identity)

    def _became_blocked(self) -> None:
        self._listener.blocked_now(self)


class ZmqListener(BoundSocket):
    """A bound endpoint, and the source of its socket."""

    def __init__(
        self,
        binding: Binding,
        *,
        accept: Callable[[Connection], Sink],
        next_number: Callable[[], int],
        forget: Callable[[], None],
    ) -> None:
        super().__init__(binding, forget)
        self.touch_level = 0
        self.lingering: dict[AcceptedConnection, None] = {}
        self._socket_fd = descriptor_of(binding.socket)
        self._accept = accept
        self._next_number = next_number
        self._paused = False
        self._nobody_lingers = trio.Event()
        self._live: dict[int, Descriptor] = {}
        self._by_id: dict[bytes, AcceptedConnection] = {}
        # Until when those of them that a pause keeps from being read to their end may wait.
        self._ending: dict[AcceptedConnection, float] = {}
        # Without a record in time, with the count of records at which that was noticed.
        self._overdue: dict[Descriptor, int] = {}
        # Ids whose frames are dropped, with the count of records at which they retired.
        self._retired: dict[bytes, int] = {}
        self._blocked: dict[AcceptedConnection, None] = {}
        self._ticking = False
        self._turn: SharedTurn[AcceptedConnection]
        self._carry_over: tuple[AcceptedConnection, list[bytes], int] | None = None
        self._taken = 0
        self._stage.add(self, self._socket_fd, self._monitor.fd)

    @property
    def accepted(self) -> int:
        return len(self._by_id)

    @property
    def posted(self) -> int:
        return sum(connection.posted for connection in self._blocked)

    @property
    def is_blocked(self) -> bool:
        return bool(self._blocked)

    def __repr__(self) -> str:
        return f"<ZmqListener {self._endpoint} accepted={len(self._by_id)}{' paused' if self._paused else ''}>"

    def pause(self) -> None:
        self._paused = True
        for connection, until in self._ending.items():
            if self._stage.clock() >= until:
                self._stage.chore(partial(self.finish, connection))

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._stage.schedule(self)

    # -- receiving

    def take_turn(self, budgets: Budgets, clock: Callable[[], float], *, fresh: bool) -> TurnEnd:
        socket = self._socket
        if self._paused:
            if not pending_events(socket) & _POLLIN and self._carry_over is None:
                self._finish_the_ended()
            return TurnEnd.PAUSED
        receive = socket.recv
        by_id = self._by_id
        if fresh:
            self._turn = SharedTurn(budgets, clock())
        turn = self._turn
        for _ in range(SLICE_RECORDS):
            if self._carry_over is not None:
                (connection, frames, size), self._carry_over = self._carry_over, None
            else:
                try:
                    routing_id = receive(_NOBLOCK)
                except zmq.Again:
                    self._everything_was_read()
                    return TurnEnd.EMPTY
                self._taken += 1
                known = by_id.get(routing_id)
                if known is None:
                    met = self._meet(routing_id)
                    if met is None:
                        continue
                    connection, frames, size = met
                else:
                    connection = known
                    part = receive(_NOBLOCK, False)
                    frame = part.bytes
                    frames = [frame]
                    size = len(frame)
                    while part.more:
                        part = receive(_NOBLOCK, False)
                        frame = part.bytes
                        frames.append(frame)
                        size += len(frame)
            if not connection.takes_records:
                continue
            connection.last_record = self._taken
            if not turn.admits(connection):
                self._carry_over = (connection, frames, size)
                self._finish_what_was_read()
                return TurnEnd.BOUND
            connection.deliver(frames)
            if self._paused or socket.closed:
                return TurnEnd.PAUSED
            if turn.spend(connection, size, clock()):
                self._finish_what_was_read()
                return TurnEnd.BOUND
        return TurnEnd.SLICE

    def look(self) -> bool:
        return bool(pending_events(self._socket) & _POLLIN) and not self._paused

    def _meet(self, routing_id: bytes) -> tuple[AcceptedConnection, list[bytes], int] | None:
        """Take the first record of an unknown id and bind the id to its descriptor. None: it is dropped."""
        socket = self._socket
        first = socket.recv(zmq.NOBLOCK, copy=False)
        frames = [first.bytes]
        while socket.get(zmq.RCVMORE):
            frames.append(socket.recv(_NOBLOCK))
        if routing_id in self._retired:
            return None
        try:
            fd: int = first.get(zmq.SRCFD)
        except zmq.ZMQError:
            # libzmq takes a stranger's bytes for a peer of its first version, whose frames say nothing of where they
            # came from. Nothing of ours speaks that.
            LOGGER.debug("dropped a record of a stranger at %s", self._endpoint)
            return None
        self.observe()
        descriptor = self._live.get(fd)
        if self._closing:
            self._retired[routing_id] = self._taken
            if descriptor is not None:
                shut_down(fd, descriptor.identity)
            return None
        connection = self._claim(descriptor, routing_id, self._curve.peer_key(first))
        if not self._curve.admits(connection.peer_key):
            # Taken off the list between its handshake and its first record.
            connection.close()
            return None
        try:
            sink = self._accept(connection)
        except Exception:
            LOGGER.exception("accepting %r failed; this connection is closed", connection)
            connection.close()
            return None
        connection.begin(sink)
        if descriptor is None:
            connection.disconnected("disconnected")
        return connection, frames, sum(map(len, frames))

    def _claim(
        self, descriptor: Descriptor | None, routing_id: bytes, peer_key: str | None = None
    ) -> AcceptedConnection:
        """Bind an id to its descriptor; None: the peer sent and was gone before it was read."""
        earlier = descriptor.connection if descriptor is not None else None
        connection = AcceptedConnection(
            listener=self, stage=self._stage, socket=self._socket, routing_id=routing_id, number=self._next_number(),
            endpoint=self._endpoint, descriptor=descriptor, peer_key=peer_key,
        )  # fmt: skip
        if descriptor is not None:
            descriptor.connection = connection
        self._by_id[routing_id] = connection
        if earlier is not None:
            # One descriptor is one connection: the earlier id came from a connection that was dead before it was read.
            earlier.disconnected("disconnected")
        return connection

    # -- endings of single connections

    def ending(self, connection: AcceptedConnection) -> None:
        """Its disconnect was seen: read what it had sent, then tell its sink."""
        connection.last_record = self._taken
        self._ending[connection] = until = self._stage.clock() + LEFTOVERS_SECONDS
        self._stage.at(until, partial(self._leftovers_over, connection))
        self._stage.schedule(self)

    def _leftovers_over(self, connection: AcceptedConnection) -> None:
        # Who is reading them gets to their end.
        if self._paused:
            self.finish(connection)

    def finish(self, connection: AcceptedConnection) -> None:
        """Forget a connection whose end was observed, and tell its sink."""
        self._ending.pop(connection, None)
        self._blocked.pop(connection, None)
        if self._by_id.pop(connection.routing_id, None) is not None:
            self._retired[connection.routing_id] = self._taken
            connection.report_closed()
        self.linger_ended(connection)

    def linger_ended(self, connection: AcceptedConnection) -> None:
        """Its peer hung up, or its time is over."""
        self.lingering.pop(connection, None)
        if not self.lingering:
            self._nobody_lingers.set()

    def _everything_was_read(self) -> None:
        """The socket was empty: no frame of a disconnected peer can follow."""
        self._finish_the_ended()
        self._retired.clear()
        while self._overdue:
            self._drop_silent(self._overdue.popitem()[0])

    def _finish_the_ended(self) -> None:
        for connection in list(self._ending):
            self.finish(connection)

    def _finish_what_was_read(self) -> None:
        """Under load the socket is never empty: go by the fair queue instead."""
        carried = self._carry_over[0] if self._carry_over is not None else None
        lap = len(self._by_id) + _LAP_MARGIN
        for connection in [each for each in self._ending if self._taken - each.last_record > lap]:
            if connection is not carried:
                self.finish(connection)
        if len(self._retired) > lap:
            self._retired = {key: at for key, at in self._retired.items() if self._taken - at <= lap}
        for descriptor in [each for each, at in self._overdue.items() if self._taken - at > lap + len(self._live)]:
            del self._overdue[descriptor]
            self._drop_silent(descriptor)

    # -- connections that say nothing

    def _first_record_due(self, descriptor: Descriptor) -> None:
        if self._is_silent(descriptor):
            self._overdue[descriptor] = self._taken
            self._stage.schedule(self)

    def _drop_silent(self, descriptor: Descriptor) -> None:
        if self._is_silent(descriptor):
            LOGGER.debug("a connection at %s sent no record in time; it is shut down", self._endpoint)
            shut_down(descriptor.fd, descriptor.identity)

    def _is_silent(self, descriptor: Descriptor) -> bool:
        return descriptor.connection is None and self._live.get(descriptor.fd) is descriptor

    # -- senders that wait

    def blocked_now(self, connection: AcceptedConnection) -> None:
        self._blocked[connection] = None
        if not self._ticking:
            self._ticking = True
            self._stage.at(self._stage.clock() + BLOCKED_TICK, self._tick)

    def relieve(self, *, fresh: bool) -> bool:
        again = False
        for connection in list(self._blocked):
            again |= connection.relieve(fresh=fresh)
            if not connection.is_blocked:
                self._blocked.pop(connection, None)
        return again

    def _tick(self) -> None:
        self._ticking = False
        if self._blocked and not self._socket.closed:
            self._ticking = True
            self._stage.at(self._stage.clock() + BLOCKED_TICK, self._tick)
            self._stage.request_relief(self)

    # -- the monitor

    def observe(self) -> None:
        for event, fd in self._monitor.drain():
            if event is MonitorEvent.ACCEPTED:
                self._live[fd] = accepted = Descriptor(fd, socket_identity(fd))
                self._stage.at(self._stage.clock() + FIRST_RECORD_SECONDS, partial(self._first_record_due, accepted))
            elif event is MonitorEvent.DISCONNECTED:
                descriptor = self._live.pop(fd, None)
                if descriptor is not None and descriptor.connection is not None:
                    descriptor.connection.disconnected("disconnected")
            elif event in HANDSHAKE_FAILURES:
                self._stranger_came(event, fd)
            elif event is MonitorEvent.STOPPED:
                self._bury()

    def keys_removed(self) -> None:
        for connection in list(self._by_id.values()):
            connection.check_key(self._curve.admits)

    # -- closing the whole

    async def aclose(self) -> None:
        """Close every accepted connection, the lingering ones when they are done. Cancelled: at once."""
        self._closing = True
        try:
            if self.lingering:
                self._nobody_lingers = trio.Event()
                await self._nobody_lingers.wait()
        finally:
            if not self._socket.closed:
                self._stage.remove_socket(self, self._socket_fd)
            self._close_socket()
            await self._until_gone()

    def _bury(self) -> None:
        for connection in list(self._by_id.values()):
            self.finish(connection)
        self._carry_over = None
        self._live.clear()
        super()._bury()
