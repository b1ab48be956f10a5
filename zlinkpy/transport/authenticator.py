"""The ZAP handler (ZeroMQ RFC 27): libzmq asks it about every key that wants to come in, before a byte is let through.

It runs on a thread of its own. A handshake has a few seconds, and a handler that keeps the event loop busy for as long
must not turn peers away (architecture rule 11). The thread also notices when the allow-list has changed, and says so in
the loop, which then ends the connections of those who are off the list.

An authenticator that fails answers 500, so that both ends hear of a failure and not of a wrong key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import trio
import zmq
from zmq.utils import z85

from zlinkpy.security import RELOAD_SECONDS, HostKeys
from zlinkpy.telemetry import get_logger
from zlinkpy.transport.interface import DIAL_SECONDS

log = get_logger("zlinkpy.security")

ENDPOINT = "inproc://zeromq.zap.01"
_VERSION = b"1.0"

# version, request id, domain, address, identity, mechanism; then the mechanism's credentials.
_FIXED_FRAMES = 6
_KEY_BYTES = 32

# A decision takes microseconds; one that takes this long has kept peers waiting.
SLOW_SECONDS = 1.0

# Keys whose refusal was told, until the list changes; whoever invents keys may fill the log, but not the memory.
REMEMBERED = 256


class Authenticator:
    """Answers for every bound socket of one context. Runs between `start` and `stop`.

    Args:
        keys: who is let in.
        make: makes a socket of the context.
        close: closes one.
        removed: called on the trio thread when keys were taken off the allow-list.
    """

    def __init__(
        self,
        keys: HostKeys,
        *,
        make: Callable[[int], zmq.Socket[bytes]],
        close: Callable[[zmq.Socket[bytes]], None],
        removed: Callable[[], None],
    ) -> None:
        self._keys = keys
        self._close = close
        self._removed = removed
        self._clock = trio.lowlevel.current_clock().current_time
        self._token = trio.lowlevel.current_trio_token()
        self._told: set[str] = set()
        self._sockets: list[zmq.Socket[bytes]] = []
        try:
            self._door, self._stop_receiver, self._stop_sender = (
                self._made(make, kind) for kind in (zmq.ROUTER, zmq.PAIR, zmq.PAIR)
            )
            address = f"inproc://zlinkpy-authenticator-{id(self)}"
            self._stop_receiver.bind(address)
            self._stop_sender.connect(address)
            self._door.bind(ENDPOINT)
        except BaseException:
            self._close_sockets()
            raise
        self._thread = threading.Thread(target=self._run, name="zlink authenticator", daemon=True)

    def start(self) -> None:
        """Answer from now on. Before any socket is bound."""
        self._thread.start()

    async def stop(self) -> None:
        """End the thread and close the sockets."""
        self._stop_sender.send(b"")
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join)
        self._close_sockets()

    def _made(self, make: Callable[[int], zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
        socket = make(kind)
        self._sockets.append(socket)
        return socket

    def _close_sockets(self) -> None:
        for socket in self._sockets:
            self._close(socket)

    # -- on the thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._door, zmq.POLLIN)
        poller.register(self._stop_receiver, zmq.POLLIN)
        while True:
            waiting = dict(poller.poll(round(RELOAD_SECONDS * 1000)))
            if self._stop_receiver in waiting:
                return
            started = self._clock()
            self._refresh()
            if self._door in waiting:
                self._answer(self._door.recv_multipart())
            took = self._clock() - started
            if took >= SLOW_SECONDS:
                log.warning(
                    "the authenticator of this node was busy for %.1f s, and a handshake may take %g: is the "
                    "allow-list on a slow disk?",
                    took,
                    DIAL_SECONDS,
                )

    def _refresh(self) -> None:
        removed = self._keys.refresh(self._clock())
        if removed is None:
            return
        self._told.clear()
        if removed:
            try:
                self._token.run_sync_soon(self._removed)
            except trio.RunFinishedError:
                log.debug("keys were taken off the allow-list after the end of the run")

    def _answer(self, frames: list[bytes]) -> None:
        """Answer one request; the asking socket of libzmq is a REQ, so an empty frame stands before it."""
        route, request = frames[:2], frames[2:]
        if len(request) < _FIXED_FRAMES or request[0] != _VERSION:
            log.error("libzmq asked the authenticator something it does not understand (%d frames)", len(request))
            return
        try:
            status, text, user = self._judge(request)
        except Exception:
            log.exception("the authenticator failed; nobody is let in by this answer")
            status, text, user = b"500", b"failed", b""
        self._door.send_multipart([*route, _VERSION, request[1], status, text, user, b""])

    def _judge(self, request: list[bytes]) -> tuple[bytes, bytes, bytes]:
        address, mechanism, credentials = request[3].decode(errors="replace"), request[5], request[_FIXED_FRAMES:]
        if mechanism != b"CURVE" or len(credentials) != 1 or len(credentials[0]) != _KEY_BYTES:
            return b"400", b"keys are demanded", b""
        key = z85.encode(credentials[0])
        shown = key.decode()
        if self._keys.admits(shown):
            return b"200", b"OK", key
        self._tell(shown, address)
        return b"400", b"not on the allow-list", b""

    def _tell(self, key: str, address: str) -> None:
        if key in self._told:
            return
        if len(self._told) >= REMEMBERED:
            self._told.clear()
        self._told.add(key)
        log.warning(
            "refused the key %s of a peer at %s: %s", key, address or "this machine", self._keys.refusal_of(key)
        )
