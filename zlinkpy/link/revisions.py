"""What a peer may still say of itself once it was admitted (wire.md §4, Revision).

The three admissions differ in what they name and in what an `update` may change; how a later one is judged is the same
for all. `_RULES` holds the differences, by type. A ClientServer client has no revision: it says the same thing for the
life of its connection.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from attrs import frozen

from zlinkpy.errors import ProtocolError
from zlinkpy.wire import Admission, ClientAdmission, RejectReason, RouteMeshAdmission, ServerAdmission

AdmissionT = TypeVar("AdmissionT", bound=Admission)

_FIELD = "body.admission"
_Elements: TypeAlias = tuple[tuple[str, Callable[[Any], object]], ...]


@frozen
class _Rules:
    """How one kind of admission may go on.

    Args:
        identity: what names the peer and its run, with the mismatch when it differs.
        fixed: what one lifecycle generation can never change.
        mutable: what an `update` may change; under an unchanged revision a difference here is as wrong.
        revision: the ordered number of an admission.
    """

    identity: tuple[tuple[str, RejectReason, Callable[[Any], object]], ...]
    fixed: _Elements
    mutable: _Elements = ()
    revision: Callable[[Any], int] = attrgetter("descriptor_revision")


_RULES: dict[type[Any], _Rules] = {
    RouteMeshAdmission: _Rules(
        identity=(
            ("nodeRid", RejectReason.IDENTITY_MISMATCH, attrgetter("node_rid")),
            ("securityIdentity", RejectReason.SECURITY_IDENTITY_MISMATCH, attrgetter("security_identity")),
            ("lifecycleGeneration", RejectReason.LIFECYCLE_GENERATION_STALE, attrgetter("lifecycle_generation")),
        ),
        fixed=(
            ("meshName", attrgetter("mesh_name")),
            ("nodeRid", attrgetter("node_rid")),
            ("securityIdentity", attrgetter("security_identity")),
            ("lifecycleGeneration", attrgetter("lifecycle_generation")),
            ("advertisedEndpoint", attrgetter("advertised_endpoint")),
            ("channels", lambda admission: tuple(name for name, _ in admission.channels)),
            ("ext.applicationVersion", attrgetter("ext.application_version")),
            ("ext.protocolCapabilities", attrgetter("ext.protocol_capabilities")),
            ("ext.objectRole", attrgetter("ext.object_role")),
        ),
        mutable=(
            ("channels", attrgetter("channels")),
            ("ext.runtimeState", attrgetter("ext.runtime_state")),
            ("ext.placementWeight", attrgetter("ext.placement_weight")),
            ("ext.maintenanceWave", attrgetter("ext.maintenance_wave")),
        ),
    ),
    ServerAdmission: _Rules(
        identity=(
            ("serverRid", RejectReason.IDENTITY_MISMATCH, attrgetter("server_rid")),
            ("securityIdentity", RejectReason.SECURITY_IDENTITY_MISMATCH, attrgetter("security_identity")),
            ("lifecycleGeneration", RejectReason.LIFECYCLE_GENERATION_STALE, attrgetter("lifecycle_generation")),
        ),
        fixed=(
            ("channelName", attrgetter("channel_name")),
            ("serverRid", attrgetter("server_rid")),
            ("lifecycleGeneration", attrgetter("lifecycle_generation")),
            ("securityIdentity", attrgetter("security_identity")),
            ("maxMessageBytes", attrgetter("max_message_bytes")),
            ("advertisedEndpoint", attrgetter("advertised_endpoint")),
        ),
        mutable=(
            ("weight", attrgetter("weight")),
            ("runtimeState", attrgetter("runtime_state")),
        ),
    ),
    ClientAdmission: _Rules(
        identity=(("securityIdentity", RejectReason.SECURITY_IDENTITY_MISMATCH, attrgetter("security_identity")),),
        fixed=(
            ("channelName", attrgetter("channel_name")),
            ("securityIdentity", attrgetter("security_identity")),
            ("maxMessageBytes", attrgetter("max_message_bytes")),
        ),
        revision=lambda admission: 1,
    ),
}


@frozen
class IdentityChange:
    """A peer that was admitted speaks for somebody else now.

    Args:
        reject: the matching mismatch.
        field: the element that says so.
    """

    reject: RejectReason
    field: str


def revision_of(admission: Admission) -> int:
    """Its descriptor revision; 1 for a client, which has none and never changes."""
    return _RULES[type(admission)].revision(admission)


def identity_change(current: AdmissionT, offered: AdmissionT) -> IdentityChange | None:
    """The mismatch when `offered` speaks for another node or another run of it than `current` (LV-121)."""
    for name, reject, read in _RULES[type(current)].identity:
        if read(offered) != read(current):
            return IdentityChange(reject, f"{_FIELD}.{name}")
    return None


class RevisionGuard(Generic[AdmissionT]):
    """The newest admission of one peer and the rules for the next one (wire.md §4, Revision).

    An offer is checked completely before anything is kept: after a ProtocolError `current` is what it was.
    """

    __slots__ = ("_current", "_rules")

    def __init__(self, admission: AdmissionT) -> None:
        self._current = admission
        self._rules = _RULES[type(admission)]

    @property
    def current(self) -> AdmissionT:
        """The admission in force."""
        return self._current

    def offer(self, admission: AdmissionT) -> Literal["same", "newer"]:
        """Take `admission` in its sender's order: the application lane's `update`, or a repeated handshake record.

        Returns:
            "same" for a repetition (a no-op), "newer" when it is now `current`.

        Raises:
            ProtocolError: a lower revision, the same revision with other content, or a change outside the mutable set;
                `field` names the element.
        """
        offered, known = self._rules.revision(admission), self._rules.revision(self._current)
        if offered < known:
            raise ProtocolError(f"revision {offered} after {known}", field=f"{_FIELD}.descriptorRevision")
        if offered == known:
            self._require_equal(admission)
            return "same"
        self._require_fixed(admission)
        self._current = admission
        return "newer"

    def check_other_lane(self, admission: AdmissionT) -> None:
        """Compare an admission that came on the other lane, where its order against updates is not known.

        Nothing is kept: the application lane alone tells the revisions, in order. An older revision is therefore no
        error here; a `hello` of the completion lane may be overtaken by the update that followed it.

        Raises:
            ProtocolError: the same revision with other content, or a difference outside the mutable set.
        """
        if self._rules.revision(admission) == self._rules.revision(self._current):
            self._require_equal(admission)
        else:
            self._require_fixed(admission)

    def _require_equal(self, admission: AdmissionT) -> None:
        if admission == self._current:
            return
        self._require_fixed(admission)
        name = next((name for name, read in self._rules.mutable if read(admission) != read(self._current)), "ext")
        revision = self._rules.revision(admission)
        raise ProtocolError(f"revision {revision} was seen with other content", field=f"{_FIELD}.{name}")

    def _require_fixed(self, admission: AdmissionT) -> None:
        for name, read in self._rules.fixed:
            if read(admission) != read(self._current):
                raise ProtocolError("may not change within one lifecycle generation", field=f"{_FIELD}.{name}")
