"""What a mesh node is told at its start."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

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
    key_names: Mapping[str, str] = field(factory=dict)
    """For hosts with keys: by manual endpoint, the name whose key on the allow-list is expected there."""
    discovers: bool = False
    """True when a Location Store shows the peers."""
    object_role: ObjectRole = ObjectRole.NONE
    placement_weight: int = DEFAULT_WEIGHT
    max_message_bytes: int | None = None
    """A larger frame drops its connection before it is allocated. None: no bound."""
    application_version: int = 0
    security_identity: str = ANONYMOUS
    default_request_timeout_ms: int = 30_000
