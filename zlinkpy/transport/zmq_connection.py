"""One physical ZeroMQ connection: the sending half that both kinds share, and the dialled kind.

A dialled connection owns a ROUTER socket that is used once. Its life:

    connecting --handshake--> open --close()--> closing --monitor stopped--> closed
         |                      |
         +--failed, timed out---+--disconnect seen, then what was received is read--> closed

Received before sent away: at an observed disconnect the records that had arrived are handed over first and `closed`
comes behind them, so that a peer's last words count (LV-119). A paused connection takes them later: they wait for
`resume`, `LEFTOVERS_SECONDS` at most, so that an owner that never resumes holds no socket for ever. An owner that has
asked for the close gets none of them.

Sending happens frame by frame with `SNDMORE | NOBLOCK`: a third of the cost of `send_multipart`.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto

import trio
import zmq

from zlinkpy.transport.interface import DIAL_SECONDS, LEFTOVERS_SECONDS, POST_LIMIT, Connection, ConnectionClosed, Sink
from zlinkpy.transport.monitor import Monitor, MonitorEvent, descriptor_of, pending_events
from zlinkpy.transport.receive_stage import SLICE_RECORDS, ReceiveStage, Source, TurnEnd
from zlinkpy.transport.rotation import Budgets, Turn
from zlinkpy.transport.sockets import SocketFactory

LOGGER = logging.getLogger("zlinkpy.transport")

# The first record of a scheduler pass leaves at once, so that a lone request waits for nobody; those that follow on the
# same socket are submitted together when the pass is over. Submitting to an idle I/O thread wakes it, which costs more
# than the rest of a submission, and records submitted together also share its system calls. Large records are not held.
CORK_RECORDS = 16
CORK_BYTES = 16 << 10

# Plain ints: pyzmq's flag enum costs a quarter of a microsecond for every `|`.
_MORE = int(zmq.SNDMORE | zmq.NOBLOCK)
_LAST = int(zmq.NOBLOCK)
_NOBLOCK = int(zmq.NOBLOCK)
_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)


class Phase(Enum):
    CONNECTING = auto()
    OPEN = auto()
    CLOSING = auto()
    """The close was requested here, or the disconnect was seen and leftovers are being read."""
    CLOSED = auto()


_OPEN = Phase.OPEN


class PhysicalConnection:
    """What a dialled and an accepted connection have in common: phases, sending, blocked senders, calls to the sink."""

    def __init__(
        self,
        *,
        stage: ReceiveStage,
        source: Source,
        socket: zmq.Socket[bytes],
        routing_id: bytes,
        number: int,
        endpoint: str,
    ) -> None:
        self._stage = stage
        self._source = source
        # Without pyzmq's Python wrapper, which only serves draft sockets: 0.45 us for three frames against 0.83.
        self._send_frame: Callable[[bytes, int], object] = zmq.backend.Socket.send.__get__(socket)
        self._routing_id = routing_id
        self._number = number
        self._endpoint = endpoint
        self._sink: Sink | None = None
        self._phase = Phase.CONNECTING
        self._full = False
        self._posts: deque[list[bytes]] = deque()
        # Taken, and to leave together with what else this scheduler pass sends.
        self._corked: list[Sequence[bytes]] = []
        self._waiters: deque[trio.lowlevel.Task] = deque()
        self._cause: str | None = None
        # The owner asked for the close: it gets no record from then on, whatever is still to be read.
        self._closed_here = False

    @property
    def id(self) -> int:
        return self._number

    @property
    def endpoint(self) -> str:
        return self._endpoint

    @property
    def is_open(self) -> bool:
        return self._phase is Phase.OPEN

    @property
    def is_blocked(self) -> bool:
        """The send queue was full when last tried, or records or senders still wait for their try."""
        return bool(self._full or self._posts or self._waiters)

    @property
    def posted(self) -> int:
        return len(self._posts)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self._number} {self._endpoint} {self._phase.name.lower()}>"

    # -- sending

    def send(self, frames: Sequence[bytes]) -> bool:
        if self._phase is not _OPEN:
            raise ConnectionClosed(f"{self!r} takes no records")
        if not frames:
            raise ValueError("a record has at least one frame")
        if self._posts:
            return False
        if self._source.touch_level != 2 or len(frames[-1]) > CORK_BYTES:
            if self._corked:
                self.uncork()
                if self._posts:
                    return False
            return self._submit(frames)
        self._cork(frames)
        return True

    def post(self, frames: Sequence[bytes]) -> None:
        if self._phase is not Phase.OPEN:
            return
        if not frames:
            raise ValueError("a record has at least one frame")
        if self._corked:
            # Behind what was submitted before it, whatever its kind (LV-60).
            self._cork(frames)
            return
        if not self._posts:
            try:
                if self._submit(frames):
                    return
            except ConnectionClosed:
                return
        self._posts.append(list(frames))
        if len(self._posts) > POST_LIMIT:
            self._posts.clear()
            self._cause = f"the peer does not read: more than {POST_LIMIT} infrastructure records wait"
            self.close()

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._phase is not Phase.OPEN:
            raise ConnectionClosed(f"{self!r} takes no records")
        if not self._full and not self._posts:
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            task = trio.lowlevel.current_task()
            self._waiters.append(task)

            def abort(_: object) -> trio.lowlevel.Abort:
                self._waiters.remove(task)
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        if self._phase is not Phase.OPEN:
            raise ConnectionClosed(f"{self!r} takes no records")

    def _cork(self, frames: Sequence[bytes]) -> None:
        corked = self._corked
        corked.append(frames)
        if len(corked) == 1:
            self._stage.cork(self)
        elif len(corked) >= CORK_RECORDS:
            self.uncork()

    def uncork(self) -> None:
        """Submit what was corked; what the send queue has no room for goes on as posted records, in order."""
        corked, self._corked = self._corked, []
        if self._phase is not _OPEN and self._phase is not Phase.CLOSING:
            return
        try:
            for number, frames in enumerate(corked):
                # Whoever uncorks looks at the source afterwards.
                if not self._submit(frames, touch=False):
                    self._posts.extend(list(rest) for rest in corked[number:])
                    return
        except ConnectionClosed:
            return
        except Exception:
            # Its sender has gone on long ago: nobody but the log can be told, and the stage serves others too.
            LOGGER.exception("%r was given what is no record; this connection is closed", self)

    def _submit(self, frames: Sequence[bytes], *, touch: bool = True) -> bool:
        """Hand one record to libzmq whole, or nothing of it."""
        source = self._source
        send = self._send_frame
        try:
            # The ROUTER decides here: once it took the routing id, it takes the whole record.
            send(self._routing_id, _MORE)
        except zmq.Again:
            self._full = True
            self._became_blocked()
            if touch:
                self._stage.touch(source, source.touch_level or 1)
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            # The peer is gone: as good an observation as the monitor's (LV-128).
            self.disconnected("disconnected")
            raise ConnectionClosed(f"{self!r} takes no records") from None
        try:
            for frame in frames[:-1]:
                send(frame, _MORE)
            send(frames[-1], _LAST)
        except BaseException:
            # Half a record would swallow the next one, of another peer even. End it and its connection.
            send(b"", _LAST)
            self._cause = "a record could not be sent whole"
            self.close()
            raise
        if touch:
            self._stage.touch(source, 2)
        return True

    def relieve(self, *, fresh: bool) -> bool:
        """Submit what was posted, then let the oldest blocked sender try again; True: another one next cycle.

        One at a time keeps their order; a sender that is woken and then does not send does not strand the others.
        Without a `fresh` sign of room it goes on only until one of them is refused.
        """
        while self._posts:
            if not self._submit_posted():
                return False
        if fresh:
            self._full = False
        self._posts_flushed()
        if self._full or not self._waiters:
            return False
        trio.lowlevel.reschedule(self._waiters.popleft())
        return bool(self._waiters)

    def _submit_posted(self) -> bool:
        try:
            accepted = self._submit(self._posts[0])
        except ConnectionClosed:
            return False
        if accepted:
            self._posts.popleft()
        return accepted

    # -- endings

    def close(self, *, linger: float = 0.0) -> None:
        raise NotImplementedError

    def disconnected(self, cause: str) -> None:
        """The end was observed from outside."""
        raise NotImplementedError

    def _became_blocked(self) -> None:
        """The send queue turned out to be full."""

    def _posts_flushed(self) -> None:
        """No posted record is left."""

    def _stop_sending(self) -> None:
        """Leave OPEN for good: every blocked sender gets ConnectionClosed."""
        self._phase = Phase.CLOSING
        self._corked.clear()
        while self._waiters:
            trio.lowlevel.reschedule(self._waiters.popleft())

    # -- the sink. It must not raise; where it does, the fault is logged and costs this connection only.

    def _tell_opened(self) -> None:
        assert self._sink is not None
        try:
            self._sink.opened(self._self)
        except Exception:
            LOGGER.exception("the sink of %r failed in opened(); this connection is closed", self)
            self._sink_failed()

    def _tell_closed(self, cause: str) -> None:
        self._phase = Phase.CLOSED
        sink, self._sink = self._sink, None
        if sink is not None:
            try:
                sink.closed(self._self, self._cause or cause)
            except Exception:
                LOGGER.exception("the sink of %r failed in closed()", self)

    @property
    def _self(self) -> Connection:
        """This object as what its subclasses make it."""
        raise NotImplementedError

    def _sink_failed(self) -> None:
        self._cause = "its owner failed"
        self.close()


class DialledConnection(PhysicalConnection):
    """A connection dialled from here, and the source of its socket."""

    def __init__(
        self,
        *,
        stage: ReceiveStage,
        sockets: SocketFactory,
        socket: zmq.Socket[bytes],
        monitor: Monitor,
        alias: bytes,
        number: int,
        endpoint: str,
        sink: Sink,
        forget: Callable[[DialledConnection], None],
    ) -> None:
        super().__init__(stage=stage, source=self, socket=socket, routing_id=alias, number=number, endpoint=endpoint)
        self.touch_level = 0
        self._sink = sink
        self._sockets = sockets
        self._socket = socket
        self._socket_fd = descriptor_of(socket)
        self._monitor = monitor
        self._forget = forget
        self._paused = False
        self._ended: str | None = None
        self._turn: Turn
        self._leftovers_until = 0.0
        self._linger_until = 0.0
        stage.add(self, self._socket_fd, monitor.fd)
        stage.at(stage.clock() + DIAL_SECONDS, self._dial_timed_out)

    @property
    def dialled(self) -> bool:
        return True

    @property
    def _self(self) -> Connection:
        return self

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
        if fresh:
            self._turn = Turn(budgets, clock())
        spend = self._turn.spend
        for _ in range(SLICE_RECORDS):
            try:
                receive(_NOBLOCK)  # the routing id: our own alias, every time
            except zmq.Again:
                self._finish()
                return TurnEnd.EMPTY
            # A Frame says whether more follow; asking the socket costs twice as much as the copy out of the frame.
            part = receive(_NOBLOCK, False)
            frame = part.bytes
            frames = [frame]
            size = len(frame)
            while part.more:
                part = receive(_NOBLOCK, False)
                frame = part.bytes
                frames.append(frame)
                size += len(frame)
            try:
                sink.received(self, frames)
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
        for event, _ in self._monitor.drain():
            if event is MonitorEvent.HANDSHAKE_SUCCEEDED:
                if self._phase is Phase.CONNECTING:
                    self._phase = Phase.OPEN
                    self._tell_opened()
            elif event is MonitorEvent.CONNECT_FAILED:
                self.disconnected("connection refused or no route")
            elif event is MonitorEvent.AUTHENTICATION_FAILED:
                self.disconnected("authentication failed")
            elif event is MonitorEvent.HANDSHAKE_FAILED:
                self.disconnected("transport handshake failed")
            elif event is MonitorEvent.DISCONNECTED:
                self.disconnected("disconnected")
            elif event is MonitorEvent.STOPPED:
                self._bury()

    def disconnected(self, cause: str) -> None:
        if self._ended is not None or self._phase is Phase.CLOSED or self._socket_is_gone:
            return
        self._ended = cause
        leftovers_matter = self._phase is Phase.OPEN
        self._stop_sending()
        self._posts.clear()
        if leftovers_matter:
            self._leftovers_until = self._stage.clock() + LEFTOVERS_SECONDS
            self._stage.at(self._leftovers_until, self._leftovers_over)
            self._stage.schedule(self)
        else:
            self._stage.chore(self._finish)

    # -- endings

    def close(self, *, linger: float = 0.0) -> None:
        if self._closed_here or self._phase is Phase.CLOSED:
            return
        self._closed_here = True
        if self._ended is not None:
            # Seen to be gone already; its owner wants no leftovers.
            self._stage.chore(self._finish)
            return
        flush = self._phase is Phase.OPEN and linger > 0
        if flush:
            self.uncork()
        self._stop_sending()
        if flush:
            self._linger_until = self._stage.clock() + linger
            if self._posts:
                self._stage.at(self._linger_until, self._close_socket)
                return
        self._close_socket()

    @property
    def linger_left(self) -> float:
        """Seconds for which a requested close may still flush."""
        return max(0.0, self._linger_until - self._stage.clock())

    @property
    def _socket_is_gone(self) -> bool:
        return self._socket.closed

    def _posts_flushed(self) -> None:
        if self._phase is Phase.CLOSING and self._ended is None:
            self._close_socket()

    def _close_socket(self) -> None:
        if self._socket_is_gone:
            return
        self._posts.clear()
        self._stage.remove_socket(self, self._socket_fd)
        self._sockets.close(self._socket, linger=self.linger_left)

    def _dial_timed_out(self) -> None:
        if self._phase is Phase.CONNECTING:
            self.disconnected("dial timed out")

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
        self._forget(self)
        if self._phase is not Phase.CLOSED:
            self._tell_closed("closed here")
