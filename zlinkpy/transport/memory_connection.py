"""Simulated connections that carry records both ways, and the name that accepts them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from zlinkpy.telemetry import get_logger
from zlinkpy.transport.interface import FIRST_RECORD_SECONDS, POST_LIMIT, Connection, ConnectionClosed, Sink
from zlinkpy.transport.memory_end import MemoryBound, MemoryEnd
from zlinkpy.transport.memory_network import Direction, Wire

if TYPE_CHECKING:
    from zlinkpy.transport.memory_transport import MemoryTransport

LOGGER = get_logger("zlinkpy.transport")


class MemoryConnection(MemoryEnd[Connection]):
    """One end of a `Wire` on which both ends send."""

    def __init__(
        self,
        transport: MemoryTransport,
        endpoint: str,
        sink: Sink | None,
        listener: MemoryListener | None,
        max_message_bytes: int | None,
    ) -> None:
        super().__init__(transport, endpoint, sink, listener, max_message_bytes)
        self._listener = listener
        self._posts: deque[list[bytes]] = deque()
        self._waiters: deque[trio.lowlevel.Task] = deque()

    @property
    def posted(self) -> int:
        return len(self._posts)

    @property
    def _self(self) -> Connection:
        return self

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
        assert self._wire is not None
        assert self._out is not None
        while self._posts and self._out.has_room:
            self._network.push(self._wire, self._out, self._posts.popleft())
        if not self._posts:
            super().room_came()
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

    def _stop_sending(self) -> None:
        super()._stop_sending()
        while self._waiters:
            trio.lowlevel.reschedule(self._waiters.popleft())

    def _drop_posted(self) -> None:
        self._posts.clear()

    # -- being accepted

    def begin(self, sink: Sink) -> None:
        """The first record of an accepted connection is here."""
        self._sink = sink
        self._open = True
        self._tell_opened()

    def _receive(self, frames: list[bytes]) -> None:
        if self._sink is None:
            assert self._listener is not None
            if not self._listener.present(self):
                return
        super()._receive(frames)

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


class MemoryListener(MemoryBound[MemoryConnection]):
    """A bound name that accepts connections."""

    def __init__(
        self,
        transport: MemoryTransport,
        endpoint: str,
        accept: Callable[[Connection], Sink],
        max_message_bytes: int | None,
    ) -> None:
        super().__init__(transport, endpoint)
        self._accept = accept
        self._max_message_bytes = max_message_bytes
        # Without a first record in time while nothing was read: looked at again at `resume`.
        self.overdue: dict[MemoryConnection, None] = {}

    def pause(self) -> None:
        self.is_paused = True
        self.transport.look()

    def resume(self) -> None:
        self.is_paused = False
        overdue, self.overdue = self.overdue, {}
        for end in overdue:
            self.transport.at(trio.current_time(), end.first_record_due)
        self.transport.look()

    def _make_end(self) -> MemoryConnection:
        """Invisible above until its first record."""
        end = MemoryConnection(self.transport, self._endpoint, None, self, self._max_message_bytes)
        self.transport.at(trio.current_time() + FIRST_RECORD_SECONDS, end.first_record_due)
        return end

    def present(self, end: MemoryConnection) -> bool:
        """Ask who owns `end`; False: nobody, it is closed."""
        if self._closing or not self.transport.curve.admits(end.peer_key):
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
        self.overdue.pop(end, None)
        super().forget(end)

    async def aclose(self) -> None:
        await self._close_all()
