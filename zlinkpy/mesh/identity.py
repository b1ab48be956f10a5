"""Where a mesh node listens and what it is called (wire.md §11, LO-147, SA-22, SA-23, SA-29). Pure.

A *bind* endpoint says where the socket listens, an *advertised* endpoint says where others reach it. A wildcard or a
port 0 never leaves the process: whoever dialled it would reach himself, or nobody.
"""

from __future__ import annotations

import ipaddress
import re

from attrs import frozen

from zlinkpy.entropy import Entropy
from zlinkpy.errors import ConfigurationError

DEFAULT_BIND_HOST = "127.0.0.1"
RID_MAX_BYTES = 200
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_TCP = re.compile(r"tcp://(?P<host>\[[^\]]*\]|[^:/\[\]]*):(?P<port>\d{1,5})\Z")


@frozen
class TcpEndpoint:
    """A parsed ``tcp://host:port``. IPv6 hosts are kept without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """True for every spelling of "all interfaces"."""
        if self.host == "*":
            return True
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False


def parse_endpoint(text: str, where: str) -> TcpEndpoint:
    """Parse ``tcp://HOST:PORT``; an empty host means the default bind host. Raises ConfigurationError naming
    `where`."""
    match = _TCP.match(text)
    if match is None:
        raise ConfigurationError(
            f"{where}: {text!r} is not an endpoint; write tcp://HOST:PORT, e.g. tcp://127.0.0.1:5501"
        )
    port = int(match["port"])
    if port > 65535:
        raise ConfigurationError(f"{where}: port {port} is out of range 0..65535")
    return TcpEndpoint(match["host"].strip("[]") or DEFAULT_BIND_HOST, port)


@frozen
class ListenPlan:
    """What to bind, and under which host others will be told about it."""

    bind: TcpEndpoint
    advertise_host: str

    def advertised(self, bound: str) -> str:
        """The endpoint to publish, given the bound endpoint with its actual port."""
        return str(TcpEndpoint(self.advertise_host, parse_endpoint(bound, "bound endpoint").port))


def plan_listener(listen: str, advertise_host: str | None, where: str) -> ListenPlan:
    """Check one listener's settings. Raises ConfigurationError before anything is bound or published."""
    bind = parse_endpoint(listen, f"{where}.listen")
    if advertise_host is None:
        if bind.is_wildcard:
            raise ConfigurationError(
                f"{where}.listen: {listen} listens on every interface, so others cannot be told where to connect; "
                f"set {where}.advertise_host to a name or address they can reach"
            )
        return ListenPlan(bind, bind.host)
    host = advertise_host.strip("[]")
    if not host or "/" in host or TcpEndpoint(host, 0).is_wildcard:
        raise ConfigurationError(
            f"{where}.advertise_host: {advertise_host!r} is not an address others can connect to; "
            "give a host name or address without scheme or port"
        )
    return ListenPlan(bind, host)


def check_peer_endpoint(text: str, where: str) -> str:
    """A manual peer must be dialable: no wildcard, no port 0. Returns the canonical text."""
    endpoint = parse_endpoint(text, where)
    if endpoint.is_wildcard or endpoint.port == 0:
        raise ConfigurationError(f"{where}: {text} cannot be dialled; name the peer's host and its actual port")
    return str(endpoint)


def check_prefix(prefix: str, where: str) -> str:
    """A routing id prefix: 1..64 of A-Za-z0-9._- (SA-23)."""
    if not _PREFIX.match(prefix):
        raise ConfigurationError(f"{where}: {prefix!r} must be 1 to 64 characters of A-Z a-z 0-9 . _ -")
    return prefix


def automatic_rid(prefix: str, entropy: Entropy) -> str:
    """``<prefix>-<uuid4>``, new at every start (SA-29)."""
    return f"{prefix}-{entropy.uuid4()}"


def check_fixed_rid(rid: str, where: str) -> str:
    """A fixed RID is 1..200 bytes of UTF-8 without NUL."""
    try:
        size = len(rid.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{where}: {rid!r} is not valid UTF-8") from None
    if not 1 <= size <= RID_MAX_BYTES or "\0" in rid:
        raise ConfigurationError(f"{where}: a routing id is 1 to {RID_MAX_BYTES} bytes of UTF-8 without NUL")
    return rid
