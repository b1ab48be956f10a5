"""One vector: a record on a certain kind of connection, and what a receiver must make of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from zlinkpy.wire import CommandSpec, Direction, Lane, Topology

TOPOLOGIES = {Topology.ROUTE_MESH: "routeMesh", Topology.CLIENT_SERVER: "clientServer"}
LANES = {Lane.APPLICATION: "application", Lane.COMPLETION: "completion"}
DIRECTIONS = {Direction.TO_SERVER: "toServer", Direction.TO_CLIENT: "toClient"}


@frozen
class Connection:
    """The place a record arrives at. `lane` is None on ClientServer, `direction` on RouteMesh."""

    topology: Topology
    lane: Lane | None = None
    direction: Direction | None = None


def usual(spec: CommandSpec, topology: Topology) -> Connection:
    """A connection on which the command may arrive."""
    if topology is Topology.ROUTE_MESH:
        return Connection(topology, lane=min(spec.lanes))
    return Connection(topology, direction=min(spec.directions))


def vector(
    name: str,
    command: str,
    connection: Connection,
    frames: Sequence[bytes],
    *,
    field: str | None = None,
    **value: Any,
) -> dict[str, Any]:
    """A vector as JSON: invalid where `field` is given, else valid with its `value` and what goes with it."""
    found: dict[str, Any] = {
        "name": name,
        "command": command,
        "topology": TOPOLOGIES[connection.topology],
        "lane": None if connection.lane is None else LANES[connection.lane],
        "direction": None if connection.direction is None else DIRECTIONS[connection.direction],
        "frames": [frame.hex() for frame in frames],
    }
    if field is not None:
        return found | {"valid": False, "field": field}
    return found | {"valid": True, **value}


def json_text(vectors: Iterable[Mapping[str, Any]]) -> str:
    """A file of vectors: a JSON array with one vector per line, so that a change shows as lines."""
    lines = ",\n".join(json.dumps(each, ensure_ascii=True, separators=(", ", ": ")) for each in vectors)
    return f"[\n{lines}\n]\n"
