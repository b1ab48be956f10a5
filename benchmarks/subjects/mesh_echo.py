"""Two hosts in two processes over loopback TCP, nodes of a mesh: channel requests with 64 callers, one request at a
time, one-way sends. What is printed: `benchmarks/subjects/echo.py`.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

import zlinkpy as zl
from benchmarks.subjects import echo
from benchmarks.subjects.echo import CHANNEL

MESH = "bench"


def serve(pipe: Connection) -> None:
    """The serving process."""
    host = zl.Host()
    mesh = host.mesh(MESH)
    mesh.serve_channel(CHANNEL)
    echo.add_handlers(mesh.on_channel_request(CHANNEL), mesh.on_channel_send(CHANNEL))
    echo.serve(host, lambda rt: rt.endpoint(MESH), pipe)


def caller(endpoint: str) -> zl.Host:
    """The calling host."""
    host = zl.Host()
    host.mesh(MESH, peers=[endpoint]).use_channel(CHANNEL)
    return host


if __name__ == "__main__":
    echo.run(__doc__, serve, caller)
