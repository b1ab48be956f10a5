"""One end of a simulated connection, whatever it carries, and the name that accepts the other; see `memory_network` for
what lies between.

One class serves the dialling and the accepting end: they differ in what calls `opened`, the handshake or the first
record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import trio

from zlinkpy.telemetry import get_logger
from zlinkpy.transport.curve import off_the_list
from zlinkpy.transport.interface import LEFTOVERS_SECONDS, SinkOf
from zlinkpy.transport.memory_network import Direction, Parcel, Wire
from zlinkpy.transport.rotation import Budgets, Turn

if TYPE_CHECKING:
    from zlinkpy.transport.memory_transport import MemoryTransport

LOGGER = get_logger("zlinkpy.transport")

HandleT = TypeVar("HandleT")


class MemoryEnd(Generic[HandleT]):
    """One end of a `Wire`: what it receives, and its life."""

    carries: ClassVar[str] = "records both ways"
    """What both ends of a wire must agree about."""

    def __init__(
        self,
        transport: MemoryTransport,
        endpoint: str,
        sink: SinkOf[HandleT] | None,
        bound: MemoryBound[Any] | None,
        max_message_bytes: int | None,
    ) -> None:
        self.transport = transport
        self._network = transport.network
        self._number = self._network.next_number()
        self._endpoint = endpoint
        self._sink = sink
        self._bound = bound
        self._max_message_bytes = max_message_bytes
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
        self._peer_key: str | None = None
        self._security_failed = False
        self._end_sent = False

    @property
    def id(self) -> int:
        return self._number

    @property
    def endpoint(self) -> str:
        return self._endpoint

    @property
    def dialled(self) -> bool:
        return self._bound is None

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def peer_key(self) -> str | None:
        return self._peer_key

    @property
    def security_failed(self) -> bool:
        return self._security_failed

    @property
    def posted(self) -> int:
        return 0

    @property
    def met(self) -> bool:
        """Dialled, or accepted with its first record."""
        return self._sink is not None

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self._number} {self._endpoint} {'open' if self._open else 'not open'}>"

    # -- receiving

    def pause(self) -> None:
        if self.dialled:
            self._paused = True
            self.transport.look()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.look()

    @property
    def is_paused(self) -> bool:
        return self._paused or (self._bound is not None and self._bound.is_paused)

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
            if self._is_too_large(frames):
                into.parcels.clear()
                self._network.break_down(wire)
                self._ended_by_peer()
                return False
            if not self._closing:
                self._receive(frames)
            self._network.took(wire, into)
            if turn.spend(sum(map(len, frames)), trio.current_time()):
                return True

    def _is_too_large(self, frames: list[bytes]) -> bool:
        limit = self._max_message_bytes
        return limit is not None and any(len(frame) > limit for frame in frames)

    def _receive(self, frames: list[bytes]) -> None:
        sink = self._sink
        if sink is None or self._closing:
            return
        self._network.note("received", self._number, len(frames), sum(map(len, frames)))
        try:
            sink.received(self._self, frames)
        except Exception:
            LOGGER.exception("the sink of %r failed; this connection is closed", self)
            self._fail()

    # -- life

    def attach(self, wire: Wire, *, out: Direction, into: Direction) -> None:
        self._wire, self._out, self._into = wire, out, into

    def established(self, when: float) -> None:
        self.transport.at(when, self._open_now)

    def proved(self, key: str | None) -> None:
        """What the transport handshake says of the peer."""
        self._peer_key = key

    def refused(self, cause: str = "connection refused", *, for_security: bool = False) -> None:
        self._security_failed = for_security
        self._finish_soon(cause)

    def check_key(self, admits: Callable[[str | None], bool]) -> None:
        """The allow-list is another one: end the connection with a peer that is off it."""
        if not self._closing and not self._done and not admits(self._peer_key):
            self._cause = off_the_list(self._peer_key)
            self._security_failed = True
            self.close()

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

    def room_came(self) -> None:
        """The network took a record of ours."""
        assert self._out is not None
        if self._closing:
            # Everything accepted before a lingering close is on its way: now the end of the stream.
            self._send_end()
            if not self._out.parcels:
                self._finish_soon("closed here")

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

    def _drop_posted(self) -> None:
        """Nothing that waits for room will be sent."""

    def _see_end(self) -> None:
        """The peer is gone: no more sending, and its records wait for `resume`."""
        self._end_seen = True
        self._leftovers_until = trio.current_time() + LEFTOVERS_SECONDS
        self._cause = self._cause or "disconnected"
        self._drop_posted()
        self._stop_sending()
        self.transport.expect(self)

    def _drop_wire(self) -> None:
        """Give up what is not delivered; the peer learns of the end."""
        self._drop_posted()
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
        self._drop_posted()
        self._stop_sending()
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
                sink.closed(self._self, cause)
            except Exception:
                LOGGER.exception("the sink of %r failed in closed()", self)
        if self._bound is not None:
            self._bound.forget(self)

    def _tell_opened(self) -> None:
        self._network.note("opened", self._number, self._endpoint)
        assert self._sink is not None
        try:
            self._sink.opened(self._self)
        except Exception:
            LOGGER.exception("the sink of %r failed in opened(); this connection is closed", self)
            self._fail()

    @property
    def _self(self) -> HandleT:
        """This object as what its subclasses make it."""
        raise NotImplementedError

    def _fail(self) -> None:
        self._cause = "its owner failed"
        self.close()


EndT = TypeVar("EndT", bound=MemoryEnd[Any])


class MemoryBound(Generic[EndT]):
    """A bound name, and the near ends of the wires that lead to it."""

    carries: ClassVar[str] = MemoryEnd.carries
    is_paused = False

    def __init__(self, transport: MemoryTransport, endpoint: str) -> None:
        self.transport = transport
        self._endpoint = endpoint
        self._ends: dict[EndT, None] = {}
        self._nobody_left = trio.Event()
        self._closing = False

    @property
    def endpoint(self) -> str:
        return self._endpoint

    def accepted_end(self) -> EndT:
        """The near end of a new wire."""
        end = self._make_end()
        self._ends[end] = None
        self.transport.adopt(end)
        return end

    def _make_end(self) -> EndT:
        raise NotImplementedError

    def forget(self, end: EndT) -> None:
        self._ends.pop(end, None)
        if not self._ends:
            self._nobody_left.set()

    async def aclose(self) -> None:
        raise NotImplementedError

    async def _close_all(self, *, linger: float = 0.0) -> None:
        self._closing = True
        self.transport.network.unbind(self)
        for end in list(self._ends):
            end.close(linger=linger)
        self.transport.forget_bound(self)
        with trio.CancelScope(shield=True):
            while self._ends:
                self._nobody_left = trio.Event()
                await self._nobody_left.wait()
            await trio.lowlevel.checkpoint()
