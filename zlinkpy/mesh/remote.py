"""What a peer says about itself, in the one shape that peers, candidates and status are made of in every topology."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

from zlinkpy.wire import Admission, ObjectRole, RouteMeshAdmission, RuntimeState, ServerAdmission


@frozen(kw_only=True)
class Remote:
    """A node of a mesh, or a ClientServer server. A client has no name and is none of these."""

    rid: str
    lifecycle_generation: int
    advertised_endpoint: str
    channels: Mapping[str, int]
    """The channels it serves, with its weight in each."""
    runtime_state: RuntimeState
    object_role: ObjectRole


def remote_of(admission: Admission) -> Remote | None:
    """The admission as a `Remote`; None for a client's."""
    if isinstance(admission, RouteMeshAdmission):
        return Remote(
            rid=admission.node_rid,
            lifecycle_generation=admission.lifecycle_generation,
            advertised_endpoint=admission.advertised_endpoint,
            channels=MappingProxyType(dict(admission.channels)),
            runtime_state=admission.ext.runtime_state,
            object_role=admission.ext.object_role,
        )
    if isinstance(admission, ServerAdmission):
        return Remote(
            rid=admission.server_rid,
            lifecycle_generation=admission.lifecycle_generation,
            advertised_endpoint=admission.advertised_endpoint,
            channels=MappingProxyType({admission.channel_name: admission.weight}),
            runtime_state=admission.runtime_state,
            object_role=ObjectRole.NONE,
        )
    return None
