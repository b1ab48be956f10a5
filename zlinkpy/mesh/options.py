"""What a mesh node is told at its start."""

from __future__ import annotations

from attrs import frozen

from zlinkpy.mesh.identity import ListenPlan
from zlinkpy.mesh.selection import DEFAULT_WEIGHT
from zlinkpy.wire import ObjectRole

ANONYMOUS = "anonymous"
"""The security identity of a node without keys."""


@frozen(kw_only=True)
class MeshOptions:
    """What a mesh node is told at its start and cannot change afterwards."""

    name: str
    rid: str
    listener: ListenPlan
    peers: tuple[str, ...] = ()
    """Manual peers: endpoints to dial."""
    discovers: bool = False
    """True when a Location Store shows the peers."""
    object_role: ObjectRole = ObjectRole.NONE
    placement_weight: int = DEFAULT_WEIGHT
    application_version: int = 0
    security_identity: str = ANONYMOUS
    default_request_timeout_ms: int = 30_000
