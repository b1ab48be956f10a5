"""What every physical ZeroMQ connection is to its owner: a number, an endpoint, a phase, and calls to a sink."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Generic, TypeVar

import zmq

from zlinkpy.telemetry import get_logger
from zlinkpy.transport.curve import off_the_list
from zlinkpy.transport.interface import SinkOf
from zlinkpy.transport.receive_stage import ReceiveStage

LOGGER = get_logger("zlinkpy.transport")

HandleT = TypeVar("HandleT")
"""What its owner knows it as: a `Connection` or a `Subscription`."""


def frame_sender(socket: zmq.Socket[bytes]) -> Callable[[bytes, int], object]:
    """`socket.send` without pyzmq's Python wrapper, which only serves draft sockets: 0.45 us for three frames against
    0.83."""
    send: Callable[[bytes, int], object] = super(zmq.Socket, socket).send
    return send


class Phase(Enum):
    CONNECTING = auto()
    OPEN = auto()
    CLOSING = auto()
    """The close was requested here, or the disconnect was seen and leftovers are being read."""
    CLOSED = auto()


class Physical(Generic[HandleT]):
    """The part that dialled and accepted connections and subscriptions share."""

    def __init__(self, *, stage: ReceiveStage, number: int, endpoint: str) -> None:
        self._stage = stage
        self._number = number
        self._endpoint = endpoint
        self._sink: SinkOf[HandleT] | None = None
        self._phase = Phase.CONNECTING
        self._cause: str | None = None
        self._peer_key: str | None = None
        self._security_failed = False
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
    def peer_key(self) -> str | None:
        return self._peer_key

    @property
    def security_failed(self) -> bool:
        return self._security_failed

    def check_key(self, admits: Callable[[str | None], bool]) -> None:
        """The allow-list is another one: end the connection with a peer that is off it."""
        if not self._closed_here and not admits(self._peer_key):
            self._cause = off_the_list(self._peer_key)
            self._security_failed = True
            self.close()

    @property
    def is_blocked(self) -> bool:
        """Something waits for room in the send queue."""
        return False

    def relieve(self, *, fresh: bool) -> bool:
        """Let what waits for room try again; True: call once more in the next cycle."""
        return False

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self._number} {self._endpoint} {self._phase.name.lower()}>"

    # -- endings

    def close(self) -> None:
        raise NotImplementedError

    def disconnected(self, cause: str) -> None:
        """The end was observed from outside."""
        raise NotImplementedError

    def _stop_sending(self) -> None:
        """Leave OPEN for good."""
        self._phase = Phase.CLOSING

    def _drop_posted(self) -> None:
        """Nothing that waits for room will be sent."""

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
    def _self(self) -> HandleT:
        """This object as what its subclasses make it."""
        raise NotImplementedError

    def _sink_failed(self) -> None:
        self._cause = "its owner failed"
        self.close()
