"""This node as a target of its own calls: the same jobs, permits and errors as from outside, no socket (SA-129)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from zlinkpy.mesh.dispatch import Job
from zlinkpy.wire import Lane, Record, Reply, Topology, decode

if TYPE_CHECKING:
    from zlinkpy.mesh.route_mesh import RouteMesh


class LocalTarget:
    """The way into this node's own handlers, and back."""

    def __init__(self, mesh: RouteMesh) -> None:
        self.mesh = mesh
        self.rid = mesh.rid

    async def submit(self, record: Record, *, ms: int | None) -> None:
        """Queue `record` for its handler, waiting for a permit. `ms`: the remaining time of a request, else None."""
        mesh = self.mesh
        if ms is None:
            job = Job(mesh, record, mesh.rid, None, None)
        else:
            job = Job(mesh, record, mesh.rid, self, trio.current_time() + ms / 1000)
        await mesh.core.ingress.accept_local(job)

    async def reply(self, frames: list[bytes], deadline: float | None) -> bool:
        """Complete this process's own request; goes through the codec like any other reply."""
        record = decode(frames, topology=Topology.ROUTE_MESH, lane=Lane.COMPLETION)
        command = record.command
        assert isinstance(command, Reply)
        return self.mesh.core.requests.reply(self, command, record.parts)
