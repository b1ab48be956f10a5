"""Which mechanism a ZeroMQ endpoint speaks, asked of its greeting (ZMTP 3, RFC 23).

When two mechanisms meet, either end may be the first to notice and hang up, and libzmq tells the other one nothing but
that: the same as after a wrong key. So a dial that ended like this asks once more, by hand: the first part of a
greeting is enough to be sent the whole of the peer's, which then waits for the rest.
"""

from __future__ import annotations

import trio

from zlinkpy.transport.endpoints import parse_endpoint

# Seconds for the whole question. Whoever asks has just been connected to that endpoint.
ASK_SECONDS = 2.0

_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_VERSION = b"\x03\x00"
_MECHANISM = slice(12, 32)
_GREETING_BYTES = 64


async def mechanism_at(endpoint: str) -> str | None:
    """``"NULL"``, ``"CURVE"`` or whatever the greeting names; None when no greeting came."""
    parsed = parse_endpoint(endpoint, binding=False)
    greeting = b""
    with trio.move_on_after(ASK_SECONDS):
        try:
            stream: trio.SocketStream = (
                await trio.open_unix_socket(parsed.address)
                if parsed.scheme == "ipc"
                else await trio.open_tcp_stream(parsed.host, parsed.port)
            )
            async with stream:
                await stream.send_all(_SIGNATURE + _VERSION)
                while len(greeting) < _GREETING_BYTES:
                    received = await stream.receive_some(_GREETING_BYTES)
                    if not received:
                        break
                    greeting += received
        except (OSError, trio.BrokenResourceError):
            return None
    if len(greeting) < _MECHANISM.stop or greeting[:1] != _SIGNATURE[:1] or greeting[9:10] != _SIGNATURE[-1:]:
        return None
    return greeting[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")
