"""Published records on ZeroMQ: a PUB socket that is never read, and a SUB socket that is used once.

A PUB socket never makes its owner wait: what a subscriber's pipe has no room for is dropped for that subscriber alone.
It reads what subscribers ask for whenever it is sent to; what they leave behind when nobody publishes is cleared at
the next event of its monitor, so that passers-by cannot pile up.

Rejected: XPUB, which shows subscriptions to the owner. Nobody here acts on them, and reading them costs a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import zmq

from zlinkpy.transport.descriptors import shut_down, socket_identity
from zlinkpy.transport.interface import ConnectionClosed, Subscription, SubscriptionSink
from zlinkpy.transport.monitor import HANDSHAKE_FAILURES, MonitorEvent, pending_events
from zlinkpy.transport.topics import check_published
from zlinkpy.transport.zmq_bound import Binding, BoundSocket
from zlinkpy.transport.zmq_dialled import ConnectingSocket, Dial
from zlinkpy.transport.zmq_physical import frame_sender

_MORE = int(zmq.SNDMORE | zmq.NOBLOCK)
_LAST = int(zmq.NOBLOCK)


class ZmqSubscription(ConnectingSocket[Subscription]):
    """One SUB socket, and its source."""

    def __init__(self, dial: Dial, *, sink: SubscriptionSink, forget: Callable[[], None]) -> None:
        super().__init__(stage=dial.stage, number=dial.number, endpoint=dial.endpoint)
        self._start(dial, sink, forget)

    @property
    def _self(self) -> Subscription:
        return self

    def close(self) -> None:
        if self._close_requested():
            self._stop_sending()
            self._close_socket()


class ZmqPublisher(BoundSocket):
    """One PUB socket."""

    def __init__(self, binding: Binding, forget: Callable[[], None]) -> None:
        super().__init__(binding, forget)
        self._send_frame = frame_sender(binding.socket)
        self._published = 0
        # By descriptor, with what tells it from a later one of the same number.
        self._subscribers: dict[int, tuple[object, int] | None] = {}
        self._stage.add_monitor(self._monitor.fd, self.observe)

    @property
    def published(self) -> int:
        return self._published

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    def __repr__(self) -> str:
        return f"<ZmqPublisher {self._endpoint} subscribers={len(self._subscribers)}>"

    def publish(self, frames: Sequence[bytes]) -> None:
        if self._closing:
            raise ConnectionClosed(f"{self!r} takes no records")
        # Afterwards is too late: half a record would swallow the next one.
        check_published(frames)
        send = self._send_frame
        for frame in frames[:-1]:
            send(frame, _MORE)
        send(frames[-1], _LAST)
        self._published += 1

    async def aclose(self, *, linger: float = 0.0) -> None:
        self._closing = True
        self._close_socket(linger=linger)
        await self._until_gone(linger=linger)

    def observe(self) -> None:
        for event, fd in self._monitor.drain():
            if event is MonitorEvent.ACCEPTED:
                self._subscribers[fd] = socket_identity(fd)
            elif event is MonitorEvent.DISCONNECTED:
                self._subscribers.pop(fd, None)
            elif event in HANDSHAKE_FAILURES:
                self._stranger_came(event, fd)
            elif event is MonitorEvent.STOPPED:
                self._subscribers.clear()
                self._bury()
        if not self._socket.closed:
            pending_events(self._socket)

    def keys_removed(self) -> None:
        """Which subscriber has which key is not known here: all go, and those that are still listed come back."""
        self.observe()
        for fd, identity in self._subscribers.items():
            shut_down(fd, identity)
