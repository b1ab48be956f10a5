"""`mesh_echo` between two hosts with keys: what CURVE costs. Both are on one allow-list.

What is printed: `benchmarks/subjects/echo.py`.
"""

from __future__ import annotations

import os
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import zlinkpy as zl
from benchmarks.subjects import echo
from benchmarks.subjects.echo import CHANNEL
from benchmarks.subjects.mesh_echo import MESH
from zlinkpy.security import write_key_file
from zlinkpy.transport import generate_key_pair

# Both processes import this module: the keys reach them through the environment.
KEYS = "BENCH_KEYS"


def host_of(name: str) -> zl.Host:
    """A host with the keys `name`."""
    folder = Path(os.environ[KEYS])
    return zl.Host(
        security=zl.SecurityOptions(key_file=str(folder / f"{name}.key"), allow_list=str(folder / "allow.toml"))
    )


def serve(pipe: Connection) -> None:
    """The serving process."""
    host = host_of("server")
    mesh = host.mesh(MESH)
    mesh.serve_channel(CHANNEL)
    echo.add_handlers(mesh.on_channel_request(CHANNEL), mesh.on_channel_send(CHANNEL))
    echo.serve(host, lambda rt: rt.endpoint(MESH), pipe)


def caller(endpoint: str) -> zl.Host:
    """The calling host."""
    host = host_of("caller")
    host.mesh(MESH, peers=[f"server@{endpoint}"]).use_channel(CHANNEL)
    return host


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        pairs = {name: generate_key_pair() for name in ("server", "caller")}
        for name, pair in pairs.items():
            write_key_file(Path(made) / f"{name}.key", pair)
        lines = "".join(f'{name} = "{pair.public}"\n' for name, pair in pairs.items())
        (Path(made) / "allow.toml").write_text(lines, encoding="ascii")
        os.environ[KEYS] = made
        echo.run(__doc__, serve, caller)
