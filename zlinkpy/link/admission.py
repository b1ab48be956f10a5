"""Who may be connected: the ordered checks of an admission (wire.md §4); its later revisions are in `revisions`.

Both ends run the same checks, the acceptor on `hello` and the dialler on `admit`; the order is part of the protocol,
because the first check that fails names the reject reason. The last check of wire.md §4, duplicates, needs to know the
other connections and is asked of the pair's owner (`judge`).

Generations are compared for equality only: another number is another run of the process, whether larger or smaller
(LV-132). Revisions are ordered, within one generation. A ClientServer client has neither a RID nor a run: a server
knows of it the channel and the security identity.

Rejected: one function that also looks at duplicates and limits. It would need the peer table, and this module could no
longer be tested with two values.
"""

from __future__ import annotations

import ipaddress
from typing import TypeAlias

from attrs import frozen

from zlinkpy.wire import (
    REQUIRED_CAPABILITY,
    ClientAdmission,
    ObjectRole,
    RejectReason,
    RouteMeshAdmission,
    RuntimeState,
    ServerAdmission,
)

ServiceAdmission: TypeAlias = ClientAdmission | ServerAdmission
"""What the two ends of a ClientServer connection say of themselves."""

# A host that is on its way out keeps the clients it has and takes no new one (LO-175).
_LEAVING = frozenset(
    {
        RuntimeState.RELOCATING,
        RuntimeState.RELOCATED,
        RuntimeState.DRAINING,
        RuntimeState.STOPPED,
        RuntimeState.ERROR,
    }
)


@frozen
class Expectation:
    """What is known about a peer before it says who it is. None and 0 mean "not known" and match anything.

    Args:
        rid: its node RID, from the descriptor or a manual intent.
        security_identity: from the descriptor.
        generation: the lifecycle generation of the current descriptor.
        revision: the lowest descriptor revision that is still current; meaningful with a generation only.
        proved: the security identity that the connection itself proved: the CURVE key of the peer. What the peer says
            has to be this as well, whatever a descriptor says.
    """

    rid: str | None = None
    security_identity: str | None = None
    generation: int = 0
    revision: int = 0
    proved: str | None = None

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
            proved=self.proved if self.proved is not None else other.proved,
        )

    def mismatch(
        self, *, security_identity: str, rid: str | None = None, generation: int = 0, revision: int = 0
    ) -> RejectReason | None:
        """The first thing known here that a peer contradicts, in the order of wire.md §4.

        Args:
            security_identity: what the peer says.
            rid, generation, revision: likewise; left out for a peer that has none.
        """
        if rid is not None and self.rid not in (None, rid):
            return RejectReason.IDENTITY_MISMATCH
        if self.security_identity not in (None, security_identity):
            return RejectReason.SECURITY_IDENTITY_MISMATCH
        if self.proved not in (None, security_identity):
            return RejectReason.SECURITY_IDENTITY_MISMATCH
        if generation and self.generation not in (0, generation):
            return RejectReason.LIFECYCLE_GENERATION_STALE
        if generation and self.generation and revision < self.revision:
            return RejectReason.DESCRIPTOR_REVISION_STALE
        return None


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
    if remote.node_rid == local.node_rid:
        return RejectReason.IDENTITY_MISMATCH
    mismatch = known.mismatch(
        rid=remote.node_rid,
        security_identity=remote.security_identity,
        generation=remote.lifecycle_generation,
        revision=remote.descriptor_revision,
    )
    if mismatch is not None:
        return mismatch
    if not is_advertisable(remote.advertised_endpoint):
        return RejectReason.INVALID_DESCRIPTOR
    if is_not_required(local, remote):
        return RejectReason.NOT_REQUIRED
    return None


def check_service_admission(
    local: ServiceAdmission, remote: ServiceAdmission, expected: Expectation | None
) -> RejectReason | None:
    """Run the checks of wire.md §4 for one ClientServer connection, in their order.

    Args:
        local: what this end says about itself.
        remote: what the other end said in `hello` or `admit`, of the other role.
        expected: what is known about it: of a server as of a mesh peer, of a client its security identity.

    Returns:
        The reason of the first check that fails, or None when the peer may be admitted. A server that is leaving
        refuses new clients (RUNTIME_NOT_SERVING); one that is still preparing admits them.
    """
    known = expected if expected is not None else Expectation()
    if remote.channel_name != local.channel_name:
        return RejectReason.CHANNEL_MISMATCH
    if isinstance(remote, ClientAdmission):
        mismatch = known.mismatch(security_identity=remote.security_identity)
    else:
        mismatch = known.mismatch(
            rid=remote.server_rid,
            security_identity=remote.security_identity,
            generation=remote.lifecycle_generation,
            revision=remote.descriptor_revision,
        )
    if mismatch is not None:
        return mismatch
    if isinstance(remote, ServerAdmission) and not is_advertisable(remote.advertised_endpoint):
        return RejectReason.INVALID_DESCRIPTOR
    if isinstance(local, ServerAdmission) and local.runtime_state in _LEAVING:
        return RejectReason.RUNTIME_NOT_SERVING
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
