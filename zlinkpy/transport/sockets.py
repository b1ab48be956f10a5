"""The one place where ZeroMQ sockets are made, so that every option is set before anything can happen on them.

`LINGER` is set at creation: a later blanket setting cannot reach a socket that was closed before. Whoever closes with
a flush raises it for that socket alone.

Rejected: `RECONNECT_IVL=-1` to keep libzmq from reconnecting. With it, libzmq tears the dialled pipe down from the
inside at the disconnect, and every record that was received but not read yet is thrown away: a peer's last words
(`close`) get lost whenever the reader is a moment late. An interval of one day is as good as never, because the
transport closes the socket as soon as it has read what was left.
"""

from __future__ import annotations

import zmq
from attrs import define, field, frozen

from zlinkpy.transport.interface import DIAL_SECONDS
from zlinkpy.transport.monitor import Monitor

# libzmq's own default for both directions, in records per connection; a full send queue makes `Connection.send`
# answer False.
QUEUE_RECORDS = 1000

# Far beyond any moment in which a disconnect can stay unnoticed; see the module docstring.
NEVER_RECONNECT_MS = 24 * 3600 * 1000

# Connections the kernel may hold until libzmq accepts them: a whole cluster may dial a restarted node at once.
BACKLOG = 1024


# Probes ride the application lane only, so nothing above TCP would notice a completion lane that a firewall or NAT
# dropped while it was idle: every request over it would time out and its peer stay ready. The kernel notices: an idle
# connection is asked after 15 s, three times 5 s apart; sent data that nobody acknowledges ends it after 20 s. Both are
# above the peer deadline, so on an application lane the probes decide first.
KEEPALIVE_IDLE_SECONDS = 15
KEEPALIVE_INTERVAL_SECONDS = 5
KEEPALIVE_COUNT = 3
UNACKNOWLEDGED_MS = 20_000


@frozen(kw_only=True)
class SocketOptions:
    """What all sockets of one transport have in common."""

    max_message_bytes: int | None = None
    """A larger frame drops the connection before it is allocated. None: no cap."""
    send_queue: int = QUEUE_RECORDS
    """Records per connection that wait for the network before `send` answers False."""
    receive_queue: int = QUEUE_RECORDS
    """Records per connection that wait to be read before the peer is held back."""
    handshake_seconds: float = DIAL_SECONDS
    """A connection whose ZMTP handshake takes longer is dropped. Real time: libzmq has its own clock."""


@define(eq=False)
class SocketFactory:
    """Makes monitored sockets of every kind, and knows how many there are (a leak is a number, not a suspicion)."""

    _context: zmq.Context[zmq.Socket[bytes]]
    _options: SocketOptions
    _open: set[zmq.Socket[bytes]] = field(factory=set, init=False)
    _monitors: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        # A dialled connection holds three (its ROUTER and both ends of the monitor); libzmq's default of 1023 is gone
        # soon.
        self._context.set(zmq.MAX_SOCKETS, min(65535, self._context.get(zmq.SOCKET_LIMIT)))

    @property
    def open_count(self) -> int:
        return len(self._open)

    def monitored(
        self, kind: int, *, ipv6: bool, max_message_bytes: int | None = None
    ) -> tuple[zmq.Socket[bytes], Monitor]:
        """A socket of `kind` that is neither bound nor connected, and its monitor.

        No IDENTITY is set: who a peer is, is said in `hello` (wire.md §4). `max_message_bytes` stands in place of the
        common one.
        """
        socket = self._make(kind)
        try:
            options = self._options
            if kind == zmq.ROUTER:
                socket.set(zmq.ROUTER_MANDATORY, 1)
            socket.set(zmq.RECONNECT_IVL, NEVER_RECONNECT_MS)
            socket.set(zmq.SNDHWM, options.send_queue)
            socket.set(zmq.RCVHWM, options.receive_queue)
            socket.set(zmq.HANDSHAKE_IVL, max(1, round(options.handshake_seconds * 1000)))
            socket.set(zmq.BACKLOG, BACKLOG)
            socket.set(zmq.TCP_KEEPALIVE, 1)
            socket.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_SECONDS)
            socket.set(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL_SECONDS)
            socket.set(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT)
            socket.set(zmq.TCP_MAXRT, UNACKNOWLEDGED_MS)
            if ipv6:
                socket.set(zmq.IPV6, 1)
            limit = options.max_message_bytes if max_message_bytes is None else max_message_bytes
            if limit is not None:
                socket.set(zmq.MAXMSGSIZE, limit)
            return socket, self._monitor(socket)
        except BaseException:
            self.close(socket)
            raise

    def plain(self, kind: int) -> zmq.Socket[bytes]:
        """A socket inside the process, without monitor or limits on handshakes."""
        return self._make(kind)

    def close(self, socket: zmq.Socket[bytes], *, linger: float = 0.0) -> None:
        """Close a socket made here; `linger` seconds to flush. Idempotent."""
        self._open.discard(socket)
        socket.close(linger=round(linger * 1000))

    def close_all(self) -> None:
        """Close whatever is left, unflushed."""
        for socket in list(self._open):
            self.close(socket)

    def _monitor(self, socket: zmq.Socket[bytes]) -> Monitor:
        self._monitors += 1
        address = f"inproc://zlinkpy-monitor-{id(self)}-{self._monitors}"
        receiver = self._make(zmq.PAIR)
        try:
            # No limit: the I/O thread that reports an event waits for room, and everything else of the process waits
            # with it.
            receiver.set(zmq.RCVHWM, 0)
            socket.monitor(address, Monitor.EVENTS)
            receiver.connect(address)
        except BaseException:
            self.close(receiver)
            raise
        return Monitor(receiver)

    def _make(self, kind: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        self._open.add(socket)
        return socket
