"""Sockets that connect to one endpoint and are used once: dialled connections, and what subscriptions share with them.

Their life:

    connecting --handshake--> open --close()--> closing --monitor stopped--> closed
         |                      |
         +--failed, timed out---+--disconnect seen, then what was received is read--> closed

Received before sent away: at an observed disconnect the records that had arrived are handed over first and `closed`
comes behind them, so that a peer's last words count (LV-119). A paused connection takes them later: they wait for
`resume`, `LEFTOVERS_SECONDS` at most, so that an owner that never resumes holds no socket for ever. An owner that has
asked for the close gets none of them.

No socket here has `ZMQ_IMMEDIATE`: with it libzmq throws the pipe away at a disconnect, last words and all. Nothing can
queue before the handshake nevertheless, because nothing is sent outside OPEN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import zmq
from attrs import frozen

from zlinkpy.telemetry import get_logger
from zlinkpy.transport.curve import DialHandshake, HandshakeFailure
from zlinkpy.transport.interface import DIAL_SECONDS, LEFTOVERS_SECONDS, Connection, ConnectionClosed, Sink, SinkOf
from zlinkpy.transport.monitor import Monitor, MonitorEvent, descriptor_of, pending_events
from zlinkpy.transport.receive_stage import SLICE_RECORDS, ReceiveStage, TurnEnd
from zlinkpy.transport.rotation import Budgets, Turn
from zlinkpy.transport.sockets import SocketFactory
from zlinkpy.transport.zmq_connection import PhysicalConnection
from zlinkpy.transport.zmq_physical import HandleT, Phase, Physical

LOGGER = get_logger("zlinkpy.transport")

_MORE = int(zmq.SNDMORE | zmq.NOBLOCK)
_LAST = int(zmq.NOBLOCK)
_NOBLOCK = int(zmq.NOBLOCK)
_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)


@frozen(kw_only=True, eq=False)
class Dial:
    """A socket that was told to connect, and what is known of it."""

    stage: ReceiveStage
    sockets: SocketFactory
    socket: zmq.Socket[bytes]
    monitor: Monitor
    number: int
    endpoint: str
    handshake: DialHandshake
    ask: Callable[[str, Callable[[str | None], None]], None]
    """Asks an endpoint for its mechanism, and tells it in the receive stage."""


class ConnectingSocket(Physical[HandleT]):
    """The source of a socket that was told to connect. Subclasses call `_start` at the end of their `__init__`."""

    _enveloped: ClassVar[bool] = False
    """Every record comes behind a routing id."""

    def _start(self, dial: Dial, sink: SinkOf[HandleT], forget: Callable[[], None]) -> None:
        self.touch_level = 0
        self._sink = sink
        self._sockets = dial.sockets
        self._socket = dial.socket
        self._socket_fd = descriptor_of(dial.socket)
        self._monitor = dial.monitor
        self._forget = forget
        self._handshake = dial.handshake
        self._ask = dial.ask
        # The peer hung up, and is being asked for its mechanism.
        self._asking = False
        self._peer_key = dial.handshake.server_key
        self._paused = False
        self._ended: str | None = None
        self._turn: Turn
        self._leftovers_until = 0.0
        self._linger_until = 0.0
        stage = self._stage
        stage.add(self, self._socket_fd, dial.monitor.fd)
        stage.at(stage.clock() + DIAL_SECONDS, self._dial_timed_out)

    def pause(self) -> None:
        self._paused = True
        if self._ended is not None and self._stage.clock() >= self._leftovers_until:
            self._stage.chore(self._finish)

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._stage.schedule(self)

    # -- receiving

    def take_turn(self, budgets: Budgets, clock: Callable[[], float], *, fresh: bool) -> TurnEnd:
        socket = self._socket
        if self._takes_none():
            # Pending events are processed all the same: room for blocked senders, and a descriptor that comes to rest.
            if not pending_events(socket) & _POLLIN:
                self._finish()
            return TurnEnd.PAUSED
        receive = socket.recv
        sink = self._sink
        assert sink is not None
        handle = self._self
        enveloped = self._enveloped
        if fresh:
            self._turn = Turn(budgets, clock())
        spend = self._turn.spend
        for _ in range(SLICE_RECORDS):
            try:
                if enveloped:
                    receive(_NOBLOCK)  # the routing id: our own alias, every time
                # A Frame says whether more follow; asking the socket costs twice as much as the copy out of the frame.
                part = receive(_NOBLOCK, False)
            except zmq.Again:
                self._finish()
                return TurnEnd.EMPTY
            frame = part.bytes
            frames = [frame]
            size = len(frame)
            while part.more:
                part = receive(_NOBLOCK, False)
                frame = part.bytes
                frames.append(frame)
                size += len(frame)
            try:
                sink.received(handle, frames)
            except Exception:
                LOGGER.exception("the sink of %r failed; this connection is closed", self)
                self._sink_failed()
            if self._socket_is_gone:
                return TurnEnd.EMPTY
            if self._takes_none():
                return TurnEnd.PAUSED
            if spend(size, clock()):
                return TurnEnd.BOUND
        return TurnEnd.SLICE

    def _takes_none(self) -> bool:
        return self._paused or self._closed_here

    def look(self) -> bool:
        events = pending_events(self._socket)
        if events & _POLLOUT and self.is_blocked:
            self._stage.request_relief(self)
        return bool(events & _POLLIN) and not self._takes_none()

    # -- the monitor

    def observe(self) -> None:
        for event, value in self._monitor.drain():
            failure = self._handshake.failure(event, value) if self._phase is Phase.CONNECTING else None
            if failure is not None:
                self._handshake_failed(failure)
            elif event is MonitorEvent.HANDSHAKE_SUCCEEDED:
                if self._phase is Phase.CONNECTING:
                    self._phase = Phase.OPEN
                    self._tell_opened()
            elif event is MonitorEvent.CONNECT_FAILED:
                self.disconnected("connection refused or no route")
            elif event is MonitorEvent.DISCONNECTED:
                self.disconnected("disconnected")
            elif event is MonitorEvent.STOPPED:
                self._bury()

    def _handshake_failed(self, failure: HandshakeFailure) -> None:
        if self._asking:
            return
        if failure.is_vague:
            self._asking = True
            self._ask(self._endpoint, self._told_mechanism)
        else:
            self._fail_handshake(failure)

    def _told_mechanism(self, mechanism: str | None) -> None:
        self._fail_handshake(self._handshake.after_asking(mechanism))

    def _fail_handshake(self, failure: HandshakeFailure) -> None:
        if self._phase is Phase.CONNECTING and self._ended is None:
            self._security_failed = failure.is_security
            self.disconnected(failure.text)

    def disconnected(self, cause: str) -> None:
        if self._ended is not None or self._phase is Phase.CLOSED or self._socket_is_gone:
            return
        self._ended = cause
        leftovers_matter = self._phase is Phase.OPEN
        self._stop_sending()
        self._drop_posted()
        if leftovers_matter:
            self._leftovers_until = self._stage.clock() + LEFTOVERS_SECONDS
            self._stage.at(self._leftovers_until, self._leftovers_over)
            self._stage.schedule(self)
        else:
            self._stage.chore(self._finish)

    # -- endings

    def _close_requested(self) -> bool:
        """The owner wants no more; True: the socket is to be closed for that."""
        if self._closed_here or self._phase is Phase.CLOSED:
            return False
        self._closed_here = True
        if self._ended is not None:
            # Seen to be gone already; its owner wants no leftovers.
            self._stage.chore(self._finish)
            return False
        return True

    @property
    def linger_left(self) -> float:
        """Seconds for which a requested close may still flush."""
        return max(0.0, self._linger_until - self._stage.clock())

    @property
    def _socket_is_gone(self) -> bool:
        return self._socket.closed

    def _close_socket(self) -> None:
        if self._socket_is_gone:
            return
        self._drop_posted()
        self._stage.remove_socket(self, self._socket_fd)
        self._sockets.close(self._socket, linger=self.linger_left)

    def _dial_timed_out(self) -> None:
        self._fail_handshake(self._handshake.timed_out())

    def _leftovers_over(self) -> None:
        # Who is reading them gets to their end.
        if self._paused:
            self._finish()

    def _finish(self) -> None:
        """Report an end that was observed from outside, if there was one."""
        if self._phase is not Phase.CLOSED and self._ended is not None:
            self._close_socket()
            self._tell_closed(self._ended)

    def _bury(self) -> None:
        """The closed socket is really gone, and with it the physical connection."""
        self._stage.remove_monitor(self._monitor.fd)
        self._sockets.close(self._monitor.socket)
        self._forget()
        if self._phase is not Phase.CLOSED:
            self._tell_closed("closed here")


class DialledConnection(ConnectingSocket[Connection], PhysicalConnection):
    """A connection dialled from here with a ROUTER, and the source of its socket."""

    _enveloped = True

    def __init__(self, dial: Dial, *, alias: bytes, sink: Sink, forget: Callable[[], None]) -> None:
        super().__init__(
            stage=dial.stage, source=self, socket=dial.socket, routing_id=alias, number=dial.number,
            endpoint=dial.endpoint,
        )  # fmt: skip
        self._start(dial, sink, forget)

    @property
    def dialled(self) -> bool:
        return True

    @property
    def _self(self) -> Connection:
        return self

    def close(self, *, linger: float = 0.0) -> None:
        flush = self._phase is Phase.OPEN and linger > 0
        if not self._close_requested():
            return
        if flush:
            self.uncork()
        self._stop_sending()
        if flush:
            self._linger_until = self._stage.clock() + linger
            if self._posts:
                self._stage.at(self._linger_until, self._close_socket)
                return
        self._close_socket()

    def _posts_flushed(self) -> None:
        if self._phase is Phase.CLOSING and self._ended is None:
            self._close_socket()


class DealerConnection(DialledConnection):
    """A connection dialled from here with a DEALER, which has one peer and names it nowhere."""

    _enveloped = False

    def __init__(self, dial: Dial, *, sink: Sink, forget: Callable[[], None]) -> None:
        super().__init__(dial, alias=b"", sink=sink, forget=forget)

    def _submit(self, frames: Sequence[bytes], *, touch: bool = True) -> bool:
        """Hand one record to libzmq whole, or nothing of it."""
        send = self._send_frame
        first = True
        try:
            # The DEALER decides at the first frame: once it took that, it takes the whole record.
            for frame in frames[:-1]:
                send(frame, _MORE)
                first = False
            send(frames[-1], _LAST)
        except zmq.Again:
            if first:
                return self._refused(touch)
            # libzmq found its pipe gone in the middle of the record, and forgot the beginning.
            self.disconnected("disconnected")
            raise ConnectionClosed(f"{self!r} takes no records") from None
        except BaseException:
            # The beginning goes with the socket: nothing ever completes it.
            self._cause = "a record could not be sent whole"
            self.close()
            raise
        if touch:
            self._stage.touch(self._source, 2)
        return True
