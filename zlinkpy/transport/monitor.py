"""What libzmq reports about one socket, as a small closed list of events.

The value of `ACCEPTED` and `DISCONNECTED` is a file descriptor. It serves to find the connection an event belongs to
and nothing else (LV-131). The value of `PROTOCOL_FAILED` is libzmq's code, that of `AUTHENTICATION_FAILED` the
authenticator's status, that of `HANDSHAKE_FAILED` an errno. `STOPPED` comes when a closed socket is really gone, after
its linger: that is the *observation* of a close of one's own, for which libzmq raises no other event (LV-128, LV-129).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import ClassVar

import zmq
from attrs import frozen
from zmq.utils.monitor import parse_monitor_message

_EVENTS_OPTION = int(zmq.EVENTS)


def descriptor_of(socket: zmq.Socket[bytes]) -> int:
    """The edge-triggered descriptor that says "look at the socket"."""
    return int(socket.get(zmq.FD))


def pending_events(socket: zmq.Socket[bytes]) -> int:
    """`POLLIN | POLLOUT` as far as they apply now. Reading them swallows what the descriptor announced."""
    return int(socket.get(_EVENTS_OPTION))


class MonitorEvent(Enum):
    ACCEPTED = auto()
    CONNECTED = auto()
    HANDSHAKE_SUCCEEDED = auto()
    HANDSHAKE_FAILED = auto()
    PROTOCOL_FAILED = auto()
    AUTHENTICATION_FAILED = auto()
    CONNECT_FAILED = auto()
    DISCONNECTED = auto()
    STOPPED = auto()


_REPORTED: dict[int, MonitorEvent] = {
    zmq.EVENT_ACCEPTED: MonitorEvent.ACCEPTED,
    # On a dialling socket: the other side took the connection; no handshake yet.
    zmq.EVENT_CONNECTED: MonitorEvent.CONNECTED,
    zmq.EVENT_HANDSHAKE_SUCCEEDED: MonitorEvent.HANDSHAKE_SUCCEEDED,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: MonitorEvent.HANDSHAKE_FAILED,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: MonitorEvent.PROTOCOL_FAILED,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: MonitorEvent.AUTHENTICATION_FAILED,
    # On a dialling socket: the attempt ended without a connection (refused, no route).
    zmq.EVENT_CLOSED: MonitorEvent.CONNECT_FAILED,
    zmq.EVENT_DISCONNECTED: MonitorEvent.DISCONNECTED,
    zmq.EVENT_MONITOR_STOPPED: MonitorEvent.STOPPED,
}


HANDSHAKE_FAILURES = (
    MonitorEvent.HANDSHAKE_FAILED,
    MonitorEvent.PROTOCOL_FAILED,
    MonitorEvent.AUTHENTICATION_FAILED,
)


@frozen(eq=False)
class Monitor:
    """The receiving end of one socket's monitor.

    It must outlive the socket until `STOPPED` was read: the reporting thread of libzmq waits for a reader that is gone.
    """

    EVENTS: ClassVar[int] = sum(_REPORTED)

    socket: zmq.Socket[bytes]

    @property
    def fd(self) -> int:
        return descriptor_of(self.socket)

    def drain(self) -> Iterator[tuple[MonitorEvent, int]]:
        """Every event reported so far with its value; reading to the end re-arms the edge-triggered descriptor."""
        receive = self.socket.recv_multipart
        while not self.socket.closed:
            try:
                message = receive(zmq.NOBLOCK)
            except zmq.Again:
                return
            parsed = parse_monitor_message(message)
            yield _REPORTED[int(parsed["event"])], int(parsed["value"])
