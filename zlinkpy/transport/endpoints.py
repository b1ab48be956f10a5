"""Endpoint texts: checked here, because libzmq accepts too much.

libzmq truncates port 99999 to 34463 without a word, connects to port 0, and reports an unresolvable bind host as "try
again". So the shape is checked before a socket exists, and every refusal names the endpoint and the fix. A host
*name* is accepted as it is: resolving belongs to the dial.
"""

from __future__ import annotations

from attrs import frozen

from zlinkpy.errors import ConfigurationError

_FIX = "write tcp://HOST:PORT, tcp://[IPV6]:PORT or ipc://PATH"


@frozen
class Endpoint:
    """One parsed endpoint. `host` is empty for ipc; `address` is the path there."""

    scheme: str
    host: str
    port: int
    address: str

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.host

    def with_port(self, port: int) -> Endpoint:
        host = f"[{self.host}]" if self.is_ipv6 else self.host
        return Endpoint(self.scheme, self.host, port, f"{host}:{port}")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}"


def parse_endpoint(text: str, *, binding: bool) -> Endpoint:
    """Check `text`. Port 0 means "any free port" and is for `binding` only, and so is the host ``*``.

    Raises ConfigurationError naming the endpoint, what is wrong with it, and the fix.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("tcp", "ipc"):
        raise _malformed(text, "the scheme is neither tcp nor ipc")
    if "\0" in text or any(character.isspace() for character in text):
        raise _malformed(text, "it has a space or NUL in it")
    if scheme == "ipc":
        if not rest:
            raise _malformed(text, "the path is empty")
        return Endpoint(scheme, "", 0, rest)
    host, separator, port_text = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _malformed(text, "an IPv6 address needs brackets")
    if not separator or not host:
        raise _malformed(text, "host or port is missing")
    if not (port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 and int(port_text) <= 65535):
        raise _malformed(text, f"{port_text!r} is not a port")
    endpoint = Endpoint(scheme, host, 0, "").with_port(int(port_text))
    if not binding and endpoint.port == 0:
        raise _malformed(text, "port 0 cannot be dialled")
    if not binding and host == "*":
        raise _malformed(text, "the host * cannot be dialled")
    return endpoint


def _malformed(text: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"endpoint {text!r}: {problem}; {_FIX}")
