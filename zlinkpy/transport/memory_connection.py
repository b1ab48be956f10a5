"""Both ends of a simulated connection, and the name that accepts them; see `memory_network` for what lies between.

One class serves the dialling and the accepting end: they differ in what calls `opened`, the handshake or the first
record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from zlinkpy.telemetry import get_logger
from zlinkpy.transport.interface import (
    FIRST_RECORD_SECONDS,
    LEFTOVERS_SECONDS,
    POST_LIMIT,
    Connection,
    ConnectionClosed,
    Sink,
)
from zlinkpy.transport.memory_network import Direction, Parcel, Wire
from zlinkpy.transport.rotation import Budgets, Turn

if TYPE_CHECKING:
    from zlinkpy.transport.memory_transport import MemoryTransport

LOGGER = get_logger("zlinkpy.transport")


class MemoryConnection:
    """One end of a `Wire`."""

    def __init__(
        self, transport: MemoryTransport, endpoint: str, sink: Sink | None, listener: MemoryListener | None
    ) -> None:
        self.transport = transport
        self._network = transport.network
        self._number = self._network.next_number()
        self._endpoint = endpoint
        self._sink = sink
        self._listener = listener
        self._wire: Wire | None = None
        self._out: Direction | None = None
        self._into: Direction | None = None
        self._open = False
        self._closing = False
        self._done = False
        self._paused = False
        # The peer is gone, and records that had arrived wait for `resume`.
        self._end_seen = False
        self._leftovers_until = 0.0
        self._cause: str | None = None
        self._end_sent = False
        self._posts: deque[list[bytes]] = deque()
        self._waiters: deque[trio.lowlevel.Task] = deque()

    @property
    def id(self) -> int:
        return self._number

    @property
    def endpoint(self) -> str:
        return self._endpoint

    @property
    def dialled(self) -> bool:
        return self._listener is None

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def posted(self) -> int:
        return len(self._posts)

    @property
    def met(self) -> bool:
        """Dialled, or accepted with its first record."""
        return self._sink is not None

    def __repr__(self) -> str:
        return f"<MemoryConnection {self._number} {self._endpoint} {'open' if self._open else 'not open'}>"

    # -- sending

    def send(self, frames: Sequence[bytes]) -> bool:
        wire, out = self._must_be_open()
        if not frames:
            raise ValueError("a record has at least one frame")
        if self._posts or not out.has_room:
            return False
        self._network.push(wire, out, list(frames))
        return True

    def post(self, frames: Sequence[bytes]) -> None:
        if not self._open or self.send(frames):
            return
        self._posts.append(list(frames))
        if len(self._posts) > POST_LIMIT:
            self._cause = f"the peer does not read: more than {POST_LIMIT} infrastructure records wait"
            self.close()

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        _, out = self._must_be_open()
        if out.has_room and not self._posts:
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            task = trio.lowlevel.current_task()
            self._waiters.append(task)

            def abort(_: object) -> trio.lowlevel.Abort:
                self._waiters.remove(task)
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        self._must_be_open()

    def room_came(self) -> None:
        """The network took a record of ours."""
        assert self._wire is not None
        assert self._out is not None
        while self._posts and self._out.has_room:
            self._network.push(self._wire, self._out, self._posts.popleft())
        if self._closing and not self._posts:
            # Everything accepted before a lingering close is on its way: now the end of the stream.
            self._send_end()
            if not self._out.parcels:
                self._finish_soon("closed here")
        if self._waiters and self._out.has_room and not self._posts:
            trio.lowlevel.reschedule(self._waiters.popleft())
            while self._waiters and not self._out.parcels:
                # No record is left whose departure could wake them.
                trio.lowlevel.reschedule(self._waiters.popleft())

    def _must_be_open(self) -> tuple[Wire, Direction]:
        if not self._open:
            raise ConnectionClosed(f"{self!r} takes no records")
        assert self._wire is not None
        assert self._out is not None
        return self._wire, self._out

    # -- receiving

    def pause(self) -> None:
        if self._listener is None:
            self._paused = True
            self.transport.look()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.look()

    @property
    def is_paused(self) -> bool:
        return self._paused or (self._listener is not None and self._listener.is_paused)

    @property
    def expects(self) -> bool:
        """Something is on its way, or held."""
        return self._into is not None and bool(self._into.parcels)

    def next_due(self) -> float | None:
        """When something can be taken; None: nothing is on its way, or not before the network changes."""
        into = self._into
        if self._done or into is None or not into.parcels:
            return None
        if self._end_seen and not self._closing:
            return self._leftovers_until if self.is_paused else into.parcels[0].due
        if not self._network.passes(into):
            return None
        if self._closing or not self.is_paused:
            return into.parcels[0].due
        # Paused: an end is seen nevertheless, by an owner who was told of the connection.
        return into.parcels[-1].due if into.ends and self.met else None

    def take_turn(self, budgets: Budgets, now: float) -> bool:
        """Take what is due; True: a bound was reached."""
        into = self._into
        wire = self._wire
        turn = Turn(budgets, now)
        while True:
            due = self.next_due()
            if due is None or due > now or into is None or wire is None:
                return False
            if self.is_paused and not self._closing:
                if self._open and len(into.parcels) > 1:
                    self._see_end()
                else:
                    self._ended_by_peer()
                return False
            frames = into.parcels.popleft().frames
            if frames is None:
                self._network.took(wire, into)
                self._ended_by_peer()
                return False
            if not self._closing:
                self._receive(frames)
            self._network.took(wire, into)
            if turn.spend(sum(map(len, frames)), trio.current_time()):
                return True

    def _receive(self, frames: list[bytes]) -> None:
        if self._sink is None:
            assert self._listener is not None
            if not self._listener.present(self):
                return
        sink = self._sink
        if sink is None or self._closing:
            return
        self._network.note("received", self._number, len(frames), sum(map(len, frames)))
        try:
            sink.received(self, frames)
        except Exception:
            LOGGER.exception("the sink of %r failed; this connection is closed", self)
            self._fail()

    # -- life

    def attach(self, wire: Wire, *, out: Direction, into: Direction) -> None:
        self._wire, self._out, self._into = wire, out, into

    def established(self, when: float) -> None:
        self.transport.at(when, self._open_now)

    def begin(self, sink: Sink) -> None:
        """The first record of an accepted connection is here."""
        self._sink = sink
        self._open = True
        self._tell_opened()

    def refused(self) -> None:
        self._finish_soon("connection refused")

    def broken(self) -> None:
        """Cut from outside."""
        if self._end_seen:
            return
        into = self._into
        if into is not None and into.parcels and not self._closing and (self._open or not self.dialled):
            # What had arrived is handed over first.
            into.parcels.append(Parcel(trio.current_time(), None))
            if self._open:
                self._see_end()
            return
        self._ended_by_peer()

    def first_record_due(self) -> None:
        """The dial was accepted a while ago: end it unless its first record is here, taken or not."""
        if self.met or self._closing or self._done or self._into is None:
            return
        if self._into.parcels and self._into.parcels[0].due <= self._network.arrived_until(self._into):
            return
        assert self._listener is not None
        if self._listener.is_paused:
            self._listener.overdue[self] = None
        else:
            self.close()

    def dial_timed_out(self) -> None:
        if not self._open and not self._closing and not self._done and not self._end_seen:
            self._stop("dial timed out")
            self._drop_wire()
            self._finish_soon("dial timed out")

    def close(self, *, linger: float = 0.0) -> None:
        if self._closing or self._done:
            return
        was_open = self._open
        self._stop(self._cause or "closed here")
        if not was_open or linger <= 0:
            self._drop_wire()
            self._finish_soon("closed here")
            return
        self.room_came()
        self.transport.at(trio.current_time() + linger, self._linger_ended)

    def _linger_ended(self) -> None:
        if not self._done:
            self._drop_wire()
            self._finish_soon("closed here")

    def _open_now(self) -> None:
        if not self._closing and not self._done:
            self._open = True
            self._tell_opened()

    def _stop(self, cause: str) -> None:
        self._closing = True
        self._cause = cause
        self._network.give_up(self)
        self._stop_sending()

    def _stop_sending(self) -> None:
        self._open = False
        while self._waiters:
            trio.lowlevel.reschedule(self._waiters.popleft())

    def _see_end(self) -> None:
        """The peer is gone: no more sending, and its records wait for `resume`."""
        self._end_seen = True
        self._leftovers_until = trio.current_time() + LEFTOVERS_SECONDS
        self._cause = self._cause or "disconnected"
        self._posts.clear()
        self._stop_sending()
        self.transport.expect(self)

    def _drop_wire(self) -> None:
        """Give up what is not delivered; the peer learns of the end."""
        self._posts.clear()
        if self._wire is not None and self._out is not None and not self._out.mute:
            self._network.lose_what_is_under_way(self._out)
            self._end_sent = self._out.ends
            self._send_end()

    def _send_end(self) -> None:
        if not self._end_sent and self._wire is not None and self._out is not None:
            self._end_sent = True
            self._network.push(self._wire, self._out, None)

    def _ended_by_peer(self) -> None:
        if not self._closing:
            self._stop("disconnected")
        self._finish_soon(self._cause or "disconnected")

    def _finish_soon(self, cause: str) -> None:
        if not self._done:
            self._done = True
            self._open = False
            self._closing = True
            self._cause = self._cause or cause
            self.transport.at(trio.current_time(), self._finish)

    def _finish(self) -> None:
        self._posts.clear()
        while self._waiters:
            trio.lowlevel.reschedule(self._waiters.popleft())
        if self._into is not None and self._wire is not None:
            # Nobody reads here any more.
            self._into.parcels.clear()
            self._into.mute = True
            self._network.took(self._wire, self._into)
            if self._wire.forth.mute and self._wire.back.mute:
                self._network.forget(self._wire)
        sink, self._sink = self._sink, None
        self.transport.forget(self)
        if sink is not None:
            cause = self._cause or "disconnected"
            self._network.note("closed", self._number, cause)
            try:
                sink.closed(self, cause)
            except Exception:
                LOGGER.exception("the sink of %r failed in closed()", self)
        if self._listener is not None:
            self._listener.forget(self)

    def _tell_opened(self) -> None:
        self._network.note("opened", self._number, self._endpoint)
        assert self._sink is not None
        try:
            self._sink.opened(self)
        except Exception:
            LOGGER.exception("the sink of %r failed in opened(); this connection is closed", self)
            self._fail()

    def _fail(self) -> None:
        self._cause = "its owner failed"
        self.close()


class MemoryListener:
    """A bound name."""

    def __init__(self, transport: MemoryTransport, endpoint: str, accept: Callable[[Connection], Sink]) -> None:
        self.transport = transport
        self._endpoint = endpoint
        self._accept = accept
        self._ends: dict[MemoryConnection, None] = {}
        # Without a first record in time while nothing was read: looked at again at `resume`.
        self.overdue: dict[MemoryConnection, None] = {}
        self._nobody_left = trio.Event()
        self.is_paused = False
        self._closing = False

    @property
    def endpoint(self) -> str:
        return self._endpoint

    def pause(self) -> None:
        self.is_paused = True
        self.transport.look()

    def resume(self) -> None:
        self.is_paused = False
        overdue, self.overdue = self.overdue, {}
        for end in overdue:
            self.transport.at(trio.current_time(), end.first_record_due)
        self.transport.look()

    def accepted_end(self) -> MemoryConnection:
        """The near end of a new wire; invisible above until its first record."""
        end = MemoryConnection(self.transport, self._endpoint, None, self)
        self._ends[end] = None
        self.transport.adopt(end)
        self.transport.at(trio.current_time() + FIRST_RECORD_SECONDS, end.first_record_due)
        return end

    def present(self, end: MemoryConnection) -> bool:
        """Ask who owns `end`; False: nobody, it is closed."""
        if self._closing:
            end.close()
            return False
        try:
            sink = self._accept(end)
        except Exception:
            LOGGER.exception("accepting %r failed; this connection is closed", end)
            end.close()
            return False
        end.begin(sink)
        return True

    def forget(self, end: MemoryConnection) -> None:
        self._ends.pop(end, None)
        self.overdue.pop(end, None)
        if not self._ends:
            self._nobody_left.set()

    async def aclose(self) -> None:
        self._closing = True
        self.transport.network.unbind(self)
        for end in list(self._ends):
            end.close()
        self.transport.forget_listener(self)
        with trio.CancelScope(shield=True):
            while self._ends:
                self._nobody_left = trio.Event()
                await self._nobody_left.wait()
            await trio.lowlevel.checkpoint()
