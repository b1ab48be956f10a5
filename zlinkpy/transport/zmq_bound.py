"""What a listener and a publisher share: a bound socket with its monitor, strangers at its door, and its end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import zmq
from attrs import frozen

from zlinkpy.errors import InternalFailureError
from zlinkpy.telemetry import get_logger
from zlinkpy.transport.curve import Curve, accepted_failure
from zlinkpy.transport.monitor import Monitor, MonitorEvent
from zlinkpy.transport.real_time import within
from zlinkpy.transport.receive_stage import ReceiveStage
from zlinkpy.transport.sockets import SocketFactory

LOGGER = get_logger("zlinkpy.transport")

# Real seconds. A closed socket without linger is gone in milliseconds. Past this time something is broken, and waiting
# on would hang a shutdown without a word.
CLOSE_SECONDS = 10.0


@frozen(kw_only=True, eq=False)
class Binding:
    """A socket that was bound, and what is known of it. `endpoint` has the actual port."""

    stage: ReceiveStage
    sockets: SocketFactory
    socket: zmq.Socket[bytes]
    monitor: Monitor
    endpoint: str
    curve: Curve


class BoundSocket:
    """The life of a bound socket, from `bind` to the observed end of its close."""

    def __init__(self, binding: Binding, forget: Callable[[], None]) -> None:
        self._stage = binding.stage
        self._sockets = binding.sockets
        self._socket = binding.socket
        self._monitor = binding.monitor
        self._endpoint = binding.endpoint
        self._forget = forget
        self._closing = False
        self._curve = binding.curve
        self._strangers: Counter[str] = Counter()
        self._gone = threading.Event()

    @property
    def endpoint(self) -> str:
        return self._endpoint

    async def aclose(self) -> None:
        raise NotImplementedError

    def keys_removed(self) -> None:
        """Somebody was taken off the allow-list."""
        raise NotImplementedError

    def _stranger_came(self, event: MonitorEvent, value: int) -> None:
        """Say so for the 1st, 10th, 100th …: a port scanner must not fill the log, and an outage must show there."""
        why = accepted_failure(event, value, has_keys=self._curve.keys is not None)
        self._strangers[why] += 1
        if str(self._strangers[why]).rstrip("0") == "1":
            LOGGER.warning(
                "a connection at %s was not let in (%d so far): %s", self._endpoint, self._strangers[why], why
            )

    def _close_socket(self, *, linger: float = 0.0) -> None:
        if not self._socket.closed:
            self._sockets.close(self._socket, linger=linger)

    async def _until_gone(self, *, linger: float = 0.0) -> None:
        """Wait for the observed end of the close. Shielded: the socket is closed, and nothing can hurry it."""
        if not await within(linger + CLOSE_SECONDS, self._gone):
            raise InternalFailureError(f"{self!r} did not close within {linger + CLOSE_SECONDS:g} s")

    def _bury(self) -> None:
        """The closed socket is really gone, and with it every connection it had accepted."""
        self._stage.remove_monitor(self._monitor.fd)
        self._sockets.close(self._monitor.socket)
        self._forget()
        self._gone.set()
