"""The sending half that a dialled and an accepted ZeroMQ connection share.

Sending happens frame by frame with `SNDMORE | NOBLOCK`: a third of the cost of `send_multipart`.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence

import trio
import zmq

from zlinkpy.telemetry import get_logger
from zlinkpy.transport.interface import POST_LIMIT, Connection, ConnectionClosed
from zlinkpy.transport.receive_stage import ReceiveStage, Source
from zlinkpy.transport.zmq_physical import Phase, Physical, frame_sender

LOGGER = get_logger("zlinkpy.transport")

# The first record of a scheduler pass leaves at once, so that a lone request waits for nobody; those that follow on the
# same socket are submitted together when the pass is over. Submitting to an idle I/O thread wakes it, which costs more
# than the rest of a submission, and records submitted together also share its system calls. Large records are not held.
CORK_RECORDS = 16
CORK_BYTES = 16 << 10

# Plain ints: pyzmq's flag enum costs a quarter of a microsecond for every `|`.
_MORE = int(zmq.SNDMORE | zmq.NOBLOCK)
_LAST = int(zmq.NOBLOCK)


_OPEN = Phase.OPEN


class PhysicalConnection(Physical[Connection]):
    """What a dialled and an accepted connection have in common: sending, posted records, blocked senders."""

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
        super().__init__(stage=stage, number=number, endpoint=endpoint)
        self._source = source
        self._send_frame = frame_sender(socket)
        self._routing_id = routing_id
        self._full = False
        self._posts: deque[list[bytes]] = deque()
        # Taken, and to leave together with what else this scheduler pass sends.
        self._corked: list[Sequence[bytes]] = []
        self._waiters: deque[trio.lowlevel.Task] = deque()

    @property
    def is_blocked(self) -> bool:
        """The send queue was full when last tried, or records or senders still wait for their try."""
        return bool(self._full or self._posts or self._waiters)

    @property
    def posted(self) -> int:
        return len(self._posts)

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
            return self._refused(touch)
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

    def _refused(self, touch: bool) -> bool:
        """The send queue is full."""
        source = self._source
        self._full = True
        self._became_blocked()
        if touch:
            self._stage.touch(source, source.touch_level or 1)
        return False

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

    def _became_blocked(self) -> None:
        """The send queue turned out to be full."""

    def _posts_flushed(self) -> None:
        """No posted record is left."""

    def _stop_sending(self) -> None:
        """Leave OPEN for good: every blocked sender gets ConnectionClosed."""
        super()._stop_sending()
        self._corked.clear()
        while self._waiters:
            trio.lowlevel.reschedule(self._waiters.popleft())

    def _drop_posted(self) -> None:
        self._posts.clear()
