"""Who may be connected: the ordered checks of an admission and the rules of its later revisions (wire.md §4).

Both ends run the same checks, the acceptor on `hello` and the dialler on `admit`; the order is part of the protocol,
because the first check that fails names the reject reason. The last check of wire.md §4, duplicates, needs to know the
other connections and is asked of the pair's owner (`judge`).

Generations are compared for equality only: another number is another run of the process, whether larger or smaller
(LV-132). Revisions are ordered, within one generation.

Rejected: one function that also looks at duplicates and limits. It would need the peer table, and this module could no
longer be tested with two values.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Literal

from attrs import frozen

from zlinkpy.errors import ProtocolError
from zlinkpy.wire import REQUIRED_CAPABILITY, ObjectRole, RejectReason, RouteMeshAdmission

_FIELD = "body.admission"


@frozen
class Expectation:
    """What is known about a peer before it says who it is. None and 0 mean "not known" and match anything.

    Args:
        rid: its node RID, from the descriptor or a manual intent.
        security_identity: from the descriptor.
        generation: the lifecycle generation of the current descriptor.
        revision: the lowest descriptor revision that is still current; meaningful with a generation only.
    """

    rid: str | None = None
    security_identity: str | None = None
    generation: int = 0
    revision: int = 0

    def strengthened(self, other: Expectation | None) -> Expectation:
        """This expectation with its gaps filled from `other`; what is known here is never relaxed (LV-127).

        Call it on the descriptor's expectation with the manual intent's as the argument.
        """
        if other is None:
            return self
        return Expectation(
            rid=self.rid if self.rid is not None else other.rid,
            security_identity=self.security_identity if self.security_identity is not None else other.security_identity,
            generation=self.generation or other.generation,
            revision=self.revision or other.revision,
        )


def check_admission(
    local: RouteMeshAdmission, remote: RouteMeshAdmission, expected: Expectation | None
) -> RejectReason | None:
    """Run the checks of wire.md §4 in their order, up to NotRequired.

    Args:
        local: what this node says about itself.
        remote: what the peer said in `hello` or `admit`, already decoded.
        expected: what the descriptor and the intent say about the peer, or None.

    Returns:
        The reason of the first check that fails, or None when the peer may be admitted.
    """
    known = expected if expected is not None else Expectation()
    if REQUIRED_CAPABILITY not in remote.ext.protocol_capabilities:
        return RejectReason.CAPABILITY_MISMATCH
    if remote.mesh_name != local.mesh_name:
        return RejectReason.TOPOLOGY_MISMATCH
    # A node never dials itself (its channels are served by local dispatch): our own RID is somebody else's claim.
    if remote.node_rid == local.node_rid or known.rid not in (None, remote.node_rid):
        return RejectReason.IDENTITY_MISMATCH
    if known.security_identity not in (None, remote.security_identity):
        return RejectReason.SECURITY_IDENTITY_MISMATCH
    if known.generation not in (0, remote.lifecycle_generation):
        return RejectReason.LIFECYCLE_GENERATION_STALE
    if known.generation and remote.descriptor_revision < known.revision:
        return RejectReason.DESCRIPTOR_REVISION_STALE
    if not is_advertisable(remote.advertised_endpoint):
        return RejectReason.INVALID_DESCRIPTOR
    if is_not_required(local, remote):
        return RejectReason.NOT_REQUIRED
    return None


def is_not_required(local: RouteMeshAdmission, remote: RouteMeshAdmission) -> bool:
    """True when two nodes need no connection (LV-33): see `roles_not_required`."""
    return roles_not_required(
        local.ext.object_role, bool(local.channels), remote.ext.object_role, bool(remote.channels)
    )


def roles_not_required(
    local_role: ObjectRole, local_has_server_channels: bool, remote_role: ObjectRole, remote_has_server_channels: bool
) -> bool:
    """The same question for descriptors: both Object Clients, and neither a RouteMesh Channel Server (wire.md §9).

    Weight 0 counts as membership (LV-30). Client roles, ClientServer and fanout channels do not count and are in no
    admission (LV-31).
    """
    both_clients = local_role == remote_role == ObjectRole.CLIENT
    return both_clients and not local_has_server_channels and not remote_has_server_channels


def is_advertisable(endpoint: str) -> bool:
    """False for a TCP endpoint nobody can dial: a wildcard host or port 0 (wire.md §11). Other transports pass."""
    scheme, separator, address = endpoint.partition("://")
    if not separator or not address:
        return False
    if scheme != "tcp":
        return True
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return False
    host = host.removeprefix("[").removesuffix("]")
    if host in ("", "*"):
        return False
    try:
        return not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return True  # a host name


def identity_change(current: RouteMeshAdmission, offered: RouteMeshAdmission) -> RejectReason | None:
    """The mismatch when `offered` speaks for another node or another run of it than `current` (LV-121)."""
    if offered.node_rid != current.node_rid:
        return RejectReason.IDENTITY_MISMATCH
    if offered.security_identity != current.security_identity:
        return RejectReason.SECURITY_IDENTITY_MISMATCH
    if offered.lifecycle_generation != current.lifecycle_generation:
        return RejectReason.LIFECYCLE_GENERATION_STALE
    return None


# What one lifecycle generation can never change. Anything an `update` may change is absent: channel weights (the names
# are compared apart), runtime state, placement weight and maintenance wave. wire.md §4: everything else is an error.
_FIXED: tuple[tuple[str, Callable[[RouteMeshAdmission], object]], ...] = (
    ("meshName", lambda admission: admission.mesh_name),
    ("nodeRid", lambda admission: admission.node_rid),
    ("securityIdentity", lambda admission: admission.security_identity),
    ("lifecycleGeneration", lambda admission: admission.lifecycle_generation),
    ("advertisedEndpoint", lambda admission: admission.advertised_endpoint),
    ("channels", lambda admission: tuple(name for name, _ in admission.channels)),
    ("ext.applicationVersion", lambda admission: admission.ext.application_version),
    ("ext.protocolCapabilities", lambda admission: admission.ext.protocol_capabilities),
    ("ext.objectRole", lambda admission: admission.ext.object_role),
)

# The mutable set; under an unchanged revision a difference here is as wrong as one above.
_MUTABLE: tuple[tuple[str, Callable[[RouteMeshAdmission], object]], ...] = (
    ("channels", lambda admission: admission.channels),
    ("ext.runtimeState", lambda admission: admission.ext.runtime_state),
    ("ext.placementWeight", lambda admission: admission.ext.placement_weight),
    ("ext.maintenanceWave", lambda admission: admission.ext.maintenance_wave),
)


class RevisionGuard:
    """The newest admission of one peer and the rules for the next one (wire.md §4, Revision).

    An offer is checked completely before anything is kept: after a ProtocolError `current` is what it was.
    """

    __slots__ = ("_current",)

    def __init__(self, admission: RouteMeshAdmission) -> None:
        self._current = admission

    @property
    def current(self) -> RouteMeshAdmission:
        """The admission in force."""
        return self._current

    def offer(self, admission: RouteMeshAdmission) -> Literal["same", "newer"]:
        """Take `admission` in its sender's order: the application lane's `update`, or a repeated handshake record.

        Returns:
            "same" for a repetition (a no-op), "newer" when it is now `current`.

        Raises:
            ProtocolError: a lower revision, the same revision with other content, or a change outside the mutable set;
                `field` names the element.
        """
        current = self._current
        if admission.descriptor_revision < current.descriptor_revision:
            raise ProtocolError(
                f"revision {admission.descriptor_revision} after {current.descriptor_revision}",
                field=f"{_FIELD}.descriptorRevision",
            )
        if admission.descriptor_revision == current.descriptor_revision:
            self._require_equal(admission)
            return "same"
        self._require_fixed(admission)
        self._current = admission
        return "newer"

    def check_other_lane(self, admission: RouteMeshAdmission) -> None:
        """Compare an admission that came on the other lane, where its order against updates is not known.

        Nothing is kept: the application lane alone tells the revisions, in order. An older revision is therefore no
        error here; a `hello` of the completion lane may be overtaken by the update that followed it.

        Raises:
            ProtocolError: the same revision with other content, or a difference outside the mutable set.
        """
        if admission.descriptor_revision == self._current.descriptor_revision:
            self._require_equal(admission)
        else:
            self._require_fixed(admission)

    def _require_equal(self, admission: RouteMeshAdmission) -> None:
        if admission == self._current:
            return
        self._require_fixed(admission)
        name = next((name for name, read in _MUTABLE if read(admission) != read(self._current)), "ext")
        raise ProtocolError(
            f"revision {admission.descriptor_revision} was seen with other content", field=f"{_FIELD}.{name}"
        )

    def _require_fixed(self, admission: RouteMeshAdmission) -> None:
        for name, read in _FIXED:
            if read(admission) != read(self._current):
                raise ProtocolError("may not change within one lifecycle generation", field=f"{_FIELD}.{name}")
