"""Two hosts in two processes over loopback TCP, client and server of a ClientServer channel: requests with 64 callers,
one request at a time, one-way sends. What is printed: `benchmarks/subjects/echo.py`.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

import zlinkpy as zl
from benchmarks.subjects import echo
from benchmarks.subjects.echo import CHANNEL


def serve(pipe: Connection) -> None:
    """The serving process."""
    host = zl.Host()
    channel = host.serve_client_server(CHANNEL)
    echo.add_handlers(channel.on_request, channel.on_send)
    echo.serve(host, lambda rt: rt.channel_endpoint(CHANNEL), pipe)


def caller(endpoint: str) -> zl.Host:
    """The calling host."""
    host = zl.Host()
    host.use_client_server(CHANNEL, servers=[endpoint])
    return host


if __name__ == "__main__":
    echo.run(__doc__, serve, caller)
