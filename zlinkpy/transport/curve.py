"""CURVE: the encryption and the keys of ZeroMQ sockets, and what its failures mean in words.

libzmq tells the two ends different things. Seen with libzmq 4.3.5 (monitor event and value):

    what is wrong                dialler                              acceptor
    key not on the list          HANDSHAKE_FAILED_AUTH, 400           HANDSHAKE_FAILED_AUTH, 400
    dialled with a wrong key     NO_DETAIL, connection lost           PROTOCOL, cryptographic
    one side has no keys         PROTOCOL, mechanism mismatch         PROTOCOL, mechanism mismatch
      (the end that notices second: NO_DETAIL, connection lost)
    authenticator failed         HANDSHAKE_FAILED_AUTH, 500           HANDSHAKE_FAILED_AUTH, 500
    authenticator slow           NO_DETAIL, EAGAIN (its own limit)    NO_DETAIL, connection lost
    authenticator absent         NO_DETAIL, connection lost           NO_DETAIL, EFAULT

Without `ZAP_ENFORCE_DOMAIN` a server without an authenticator lets everybody in; with it, nobody.
"""

from __future__ import annotations

import errno

import zmq
from attrs import define, frozen

from zlinkpy.errors import ConfigurationError
from zlinkpy.security import HostKeys, KeyPair, Secret, check_unkeyed_dial, is_key
from zlinkpy.transport.monitor import MonitorEvent

# Any text will do; libzmq consults the authenticator for sockets that have one.
ZAP_DOMAIN = b"zlink"

MECHANISM_MISMATCH = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
# The socket types of the two ends do not go together.
WRONG_KIND = int(zmq.PROTOCOL_ERROR_ZMTP_INVALID_METADATA)
_WRONG_KEY = int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
REFUSED = 400
_KINDS = "a fanout publisher takes subscribers only, and nothing else takes them; check the port"
CURVE = "CURVE"
_HUNG_UP = (errno.EPIPE, errno.ECONNRESET)
_OUT_OF_TIME = (errno.EAGAIN, errno.ETIMEDOUT)


def generate_key_pair() -> KeyPair:
    """A new pair from the operating system's randomness. Raises ConfigurationError where libzmq has no CURVE."""
    _require_curve()
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), Secret(secret.decode()))


def key_pair_of(secret: Secret) -> KeyPair:
    """The pair a secret key belongs to. Raises ConfigurationError, which does not quote it, for what is no key."""
    _require_curve()
    if not is_key(secret.reveal()):
        raise ConfigurationError("the secret key is not 40 characters of z85, as zlink keygen writes them")
    return KeyPair(zmq.curve_public(secret.reveal().encode()).decode(), secret)


def _require_curve() -> None:
    if not zmq.has("curve"):
        raise ConfigurationError("this libzmq was built without CURVE: install the pyzmq wheel, which has it")


class Curve:
    """Prepares the sockets of one transport: with `keys` every one of them is encrypted, without none is."""

    def __init__(self, keys: HostKeys | None) -> None:
        self.keys = keys

    def prepare_server(self, socket: zmq.Socket[bytes]) -> None:
        """A socket that is going to be bound."""
        keys = self.keys
        if keys is None:
            return
        socket.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.set(zmq.CURVE_SERVER, 1)
        self._own_keys(socket, keys)

    def check_dial(self, endpoint: str, server_key: str | None) -> None:
        """Whether the holder of `server_key` may be dialled. Raises KeyRefusedError naming the fix."""
        if self.keys is None:
            check_unkeyed_dial(endpoint, server_key)
        else:
            self.keys.check_dial(endpoint, server_key)

    def prepare_client(self, socket: zmq.Socket[bytes], server_key: str | None) -> None:
        """A socket that is going to dial the holder of `server_key`, which was checked."""
        if self.keys is not None and server_key is not None:
            socket.set(zmq.CURVE_SERVERKEY, server_key.encode())
            self._own_keys(socket, self.keys)

    def handshake(self, server_key: str | None) -> DialHandshake:
        """What watches one dial."""
        return DialHandshake(None if self.keys is None else self.keys.public, server_key)

    def admits(self, peer_key: str | None) -> bool:
        """Whether a connection with the holder of `peer_key` may go on; without keys all may."""
        return self.keys is None or (peer_key is not None and self.keys.admits(peer_key))

    def peer_key(self, frame: zmq.Frame) -> str | None:
        """Whose record this is: the key that the authenticator let in."""
        return None if self.keys is None else str(frame.get("User-Id"))

    def _own_keys(self, socket: zmq.Socket[bytes], keys: HostKeys) -> None:
        socket.set(zmq.CURVE_PUBLICKEY, keys.pair.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, keys.pair.secret.reveal().encode())


@frozen
class HandshakeFailure:
    """Why no connection came about. `is_security`: it is a matter of keys."""

    text: str
    is_security: bool = False
    is_vague: bool = False
    """The peer hung up, which has several causes: `DialHandshake.after_asking` decides."""


@define
class DialHandshake:
    """One dial as the monitor shows it, for the words at its end. `own_key` None: this node has no keys."""

    own_key: str | None
    server_key: str | None
    _reached: bool = False

    def failure(self, event: MonitorEvent, value: int) -> HandshakeFailure | None:
        """Why the dial is over; None: it is not, or the end has nothing to do with a handshake."""
        if event is MonitorEvent.CONNECTED:
            self._reached = True
        elif event is MonitorEvent.AUTHENTICATION_FAILED:
            return self._not_let_in(value)
        elif event is MonitorEvent.PROTOCOL_FAILED:
            if value == MECHANISM_MISMATCH:
                return self._one_sided()
            if value == WRONG_KIND:
                return HandshakeFailure(f"the peer is of another kind: {_KINDS}")
            return HandshakeFailure(f"the peer broke the transport handshake (libzmq code {value:#x})")
        elif event is MonitorEvent.HANDSHAKE_FAILED and value in _OUT_OF_TIME:
            return self.timed_out()
        elif event is MonitorEvent.HANDSHAKE_FAILED or event is MonitorEvent.DISCONNECTED:
            return HandshakeFailure("the peer hung up during the transport handshake", is_vague=True)
        return None

    def after_asking(self, mechanism: str | None) -> HandshakeFailure:
        """Why the peer hung up, now that its `mechanism` is known (`greeting.mechanism_at`)."""
        if mechanism is None:
            return HandshakeFailure(
                "the peer hung up during the transport handshake: what listens there is no mesh node, or it is about "
                "to stop"
            )
        if (mechanism == CURVE) != (self.own_key is not None):
            return self._one_sided()
        if self.own_key is None:
            return HandshakeFailure("the peer hung up during the transport handshake")
        return HandshakeFailure(
            f"the peer hung up during the key exchange, as one does whose key is not {self.server_key}: correct the "
            "key that the allow-list or the descriptor has for it; if it is right, the peer's authenticator is absent",
            is_security=True,
        )

    def timed_out(self) -> HandshakeFailure:
        """The time for the dial is over."""
        if self.own_key is None or not self._reached:
            return HandshakeFailure("dial timed out")
        return HandshakeFailure(
            "the peer took the connection and did not finish the key exchange in time: its authenticator is slow or "
            "absent, or what listens there is no mesh node",
            is_security=True,
        )

    def _not_let_in(self, status: int) -> HandshakeFailure:
        if status == REFUSED:
            text = f"the peer refused this node's key {self.own_key}: it is not on the peer's allow-list; add it there"
        else:
            text = f"the peer's authenticator failed (status {status}); the peer's log says why"
        return HandshakeFailure(text, is_security=True)

    def _one_sided(self) -> HandshakeFailure:
        if self.own_key is not None:
            text = "the peer has no keys and this node demands them: give it [security] key_file"
        else:
            text = "the peer demands keys and this node has none: set [security] key_file (zlink keygen makes one)"
        return HandshakeFailure(text, is_security=True)


def off_the_list(key: str | None) -> str:
    """Why a connection ends whose peer is on the list no more."""
    return f"the key {key} was taken off the allow-list"


def accepted_failure(event: MonitorEvent, value: int, *, has_keys: bool) -> str:
    """What a failed handshake means at the end that listens."""
    if event is MonitorEvent.AUTHENTICATION_FAILED:
        if value == REFUSED:
            return "its key is not on the allow-list"
        return f"the authenticator of this node failed (status {value})"
    if event is MonitorEvent.PROTOCOL_FAILED and value == MECHANISM_MISMATCH:
        if has_keys:
            return "it came without keys, which this node demands: give it [security] key_file"
        return "it came with keys and this node has none: set [security] key_file here, or remove it there"
    if event is MonitorEvent.PROTOCOL_FAILED and value == _WRONG_KEY:
        return (
            "it dialled with another public key than this node's: correct what its allow-list or the descriptor says "
            "of this node"
        )
    if event is MonitorEvent.PROTOCOL_FAILED and value == WRONG_KIND:
        return f"it is of another kind: {_KINDS}"
    hung_up = event is MonitorEvent.HANDSHAKE_FAILED and value in _HUNG_UP
    if has_keys and event is MonitorEvent.HANDSHAKE_FAILED and not hung_up:
        return "the authenticator of this node is absent"
    other = "without keys" if has_keys else "with keys"
    return (
        f"it hung up during the ZeroMQ handshake: it is no mesh node, or one {other} (this node has "
        f"{'some' if has_keys else 'none'}), or a node that asks why it was not let in; check who uses this port"
    )
