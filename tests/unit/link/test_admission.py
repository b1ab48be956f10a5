"""The ordered checks of an admission, NotRequired, and the rules of later revisions."""

from __future__ import annotations

import attrs
import pytest

from zlinkpy.errors import ProtocolError
from zlinkpy.link import (
    Expectation,
    FailureReason,
    RevisionGuard,
    check_admission,
    is_advertisable,
    is_not_required,
    reason_of_close,
    reason_of_reject,
    roles_not_required,
)
from zlinkpy.wire import CloseReason, ObjectRole, RejectReason, RouteMeshAdmission, RuntimeState

from .harness import admission, object_client

LOCAL = admission("node-n")
COMPLETE = Expectation(rid="node-p", security_identity="key-of-node-p", generation=7)


def test_an_expected_peer_is_admitted() -> None:
    assert check_admission(LOCAL, admission("node-p"), COMPLETE) is None
    assert check_admission(LOCAL, admission("node-p"), None) is None
    assert check_admission(LOCAL, admission("node-p"), Expectation()) is None


# Each row breaks one check; a peer that breaks several is refused for the first.
BREAKS = [
    ({"capabilities": ("other",)}, RejectReason.CAPABILITY_MISMATCH),
    ({"mesh": "other"}, RejectReason.TOPOLOGY_MISMATCH),
    ({"rid": "node-x", "security": "key-of-node-p"}, RejectReason.IDENTITY_MISMATCH),
    ({"security": "another key"}, RejectReason.SECURITY_IDENTITY_MISMATCH),
    ({"generation": 8}, RejectReason.LIFECYCLE_GENERATION_STALE),
    ({"revision": 1}, RejectReason.DESCRIPTOR_REVISION_STALE),
    ({"endpoint": "tcp://0.0.0.0:5501"}, RejectReason.INVALID_DESCRIPTOR),
    ({"role": ObjectRole.CLIENT, "channels": ()}, RejectReason.NOT_REQUIRED),
]


@pytest.mark.parametrize("first", range(len(BREAKS)), ids=[reason.name for _, reason in BREAKS])
def test_the_first_failing_check_names_the_reason(first: int) -> None:
    local = object_client("node-n")
    expected = attrs.evolve(COMPLETE, revision=2)
    changes: dict[str, object] = {"rid": "node-p", "revision": 2}
    for broken, _ in BREAKS[first:]:
        changes |= broken
    assert check_admission(local, admission(**changes), expected) is BREAKS[first][1]
    alone = {"rid": "node-p", "revision": 2} | BREAKS[first][0]
    assert check_admission(local, admission(**alone), expected) is BREAKS[first][1]


def test_a_peer_that_claims_our_own_rid_is_refused() -> None:
    assert check_admission(LOCAL, admission("node-n"), None) is RejectReason.IDENTITY_MISMATCH


@pytest.mark.contract("LV-132")
@pytest.mark.parametrize("generation", [1, 6, 8, 2**63 - 1])
def test_generations_are_compared_for_equality_only(generation: int) -> None:
    remote = admission("node-p", generation=generation)
    assert check_admission(LOCAL, remote, COMPLETE) is RejectReason.LIFECYCLE_GENERATION_STALE
    assert check_admission(LOCAL, remote, attrs.evolve(COMPLETE, generation=generation)) is None


def test_a_revision_is_judged_only_within_a_known_generation() -> None:
    remote = admission("node-p", revision=3)
    assert check_admission(LOCAL, remote, attrs.evolve(COMPLETE, revision=3)) is None
    assert check_admission(LOCAL, remote, attrs.evolve(COMPLETE, revision=2)) is None
    assert check_admission(LOCAL, remote, Expectation(revision=9)) is None


@pytest.mark.parametrize(
    ("endpoint", "good"),
    [
        ("tcp://127.0.0.1:5501", True),
        ("tcp://[2001:db8::1]:5501", True),
        ("tcp://node-1.example:65535", True),
        ("mem://node-1", True),
        ("tcp://*:5501", False),
        ("tcp://0.0.0.0:5501", False),
        ("tcp://[::]:5501", False),
        ("tcp://[0:0:0:0:0:0:0:0]:5501", False),
        ("tcp://:5501", False),
        ("tcp://127.0.0.1:0", False),
        ("tcp://127.0.0.1:*", False),
        ("tcp://127.0.0.1:65536", False),
        ("tcp://127.0.0.1:٥٥", False),
        ("tcp://127.0.0.1", False),
        ("tcp://", False),
        ("nonsense", False),
    ],
)
def test_an_endpoint_nobody_can_dial_is_refused(endpoint: str, good: bool) -> None:
    assert is_advertisable(endpoint) is good


def test_a_known_value_is_never_relaxed_by_another_expectation() -> None:
    manual = Expectation(rid="node-q", security_identity="other", generation=0, revision=0)
    assert COMPLETE.strengthened(manual) == COMPLETE
    assert COMPLETE.strengthened(None) == COMPLETE
    assert Expectation().strengthened(COMPLETE) == COMPLETE
    assert Expectation(rid="node-p").strengthened(Expectation(generation=3)) == Expectation("node-p", None, 3)
    assert Expectation(generation=3).strengthened(Expectation(revision=4)).revision == 4


@pytest.mark.parametrize("local_channels", [(), (("lobby", 0),)])
@pytest.mark.parametrize("remote_channels", [(), (("lobby", 0),)])
@pytest.mark.parametrize("local_role", list(ObjectRole))
@pytest.mark.parametrize("remote_role", list(ObjectRole))
def test_not_required_means_two_object_clients_without_server_membership(
    local_role: ObjectRole,
    remote_role: ObjectRole,
    local_channels: tuple[tuple[str, int], ...],
    remote_channels: tuple[tuple[str, int], ...],
) -> None:
    """A weight of 0 is a membership like any other."""
    local = admission("node-n", role=local_role, channels=local_channels)
    remote = admission("node-p", role=remote_role, channels=remote_channels)
    wanted = {local_role, remote_role} == {ObjectRole.CLIENT} and not local_channels and not remote_channels
    assert is_not_required(local, remote) is wanted
    assert roles_not_required(local_role, bool(local_channels), remote_role, bool(remote_channels)) is wanted


NEWER = admission(
    "node-p",
    revision=2,
    channels=(("lobby", 0),),
    state=RuntimeState.DRAINING,
    weight=5,
    wave="wave-1",
)


def test_an_update_may_change_the_mutable_set() -> None:
    guard = RevisionGuard(admission("node-p"))
    assert guard.offer(admission("node-p")) == "same"
    assert guard.offer(NEWER) == "newer"
    assert guard.current == NEWER
    assert guard.offer(NEWER) == "same"


FORBIDDEN = [
    ({"revision": 0}, "descriptorRevision"),
    ({"revision": 2, "mesh": "other"}, "meshName"),
    ({"revision": 2, "rid": "node-x", "security": "key-of-node-p"}, "nodeRid"),
    ({"revision": 2, "security": "other"}, "securityIdentity"),
    ({"revision": 2, "generation": 8}, "lifecycleGeneration"),
    ({"revision": 2, "endpoint": "tcp://127.0.0.1:5502"}, "advertisedEndpoint"),
    ({"revision": 2, "channels": (("lobby", 100), ("zoo", 1))}, "channels"),
    ({"revision": 2, "channels": ()}, "channels"),
    ({"revision": 2, "channels": (("zoo", 100),)}, "channels"),
    ({"revision": 2, "version": 2}, "ext.applicationVersion"),
    ({"revision": 2, "capabilities": ("routemesh-msgpack-1", "x")}, "ext.protocolCapabilities"),
    ({"revision": 2, "role": ObjectRole.SERVER}, "ext.objectRole"),
    ({"channels": (("lobby", 1),)}, "channels"),
    ({"state": RuntimeState.DRAINING}, "ext.runtimeState"),
    ({"weight": 1}, "ext.placementWeight"),
    ({"wave": "w"}, "ext.maintenanceWave"),
    ({"version": 2}, "ext.applicationVersion"),
]


@pytest.mark.parametrize(("changes", "field"), FORBIDDEN, ids=[f"{f}-{sorted(c)}" for c, f in FORBIDDEN])
def test_anything_else_is_refused_with_its_field_and_the_state_kept(changes: dict[str, object], field: str) -> None:
    before = admission("node-p")
    guard = RevisionGuard(before)
    with pytest.raises(ProtocolError) as caught:
        guard.offer(admission(**({"rid": "node-p"} | changes)))
    assert caught.value.field == f"body.admission.{field}"
    assert guard.current == before


def test_the_other_lane_may_lag_behind_but_not_contradict() -> None:
    guard = RevisionGuard(NEWER)
    guard.check_other_lane(NEWER)
    guard.check_other_lane(admission("node-p", revision=1))
    guard.check_other_lane(admission("node-p", revision=3))
    assert guard.current == NEWER
    with pytest.raises(ProtocolError, match=r"body\.admission\.ext\.placementWeight"):
        guard.check_other_lane(attrs.evolve(NEWER, ext=attrs.evolve(NEWER.ext, placement_weight=6)))
    with pytest.raises(ProtocolError, match=r"body\.admission\.advertisedEndpoint"):
        guard.check_other_lane(admission("node-p", revision=3, endpoint="tcp://127.0.0.1:5502"))


def test_every_field_of_an_admission_is_either_fixed_or_mutable() -> None:
    """A field added to the record has to be placed in one of the two sets, or an update could change it unseen."""
    placed = {field for _, field in FORBIDDEN}
    names = {f.name for f in attrs.fields(RouteMeshAdmission)} - {"ext"}
    names |= {f"ext.{f.name}" for f in attrs.fields(type(NEWER.ext))}

    def camel(name: str) -> str:
        head, *rest = name.split("_")
        return head + "".join(part.capitalize() for part in rest)

    assert {camel(name) for name in names} == placed


def test_reasons_map_to_the_closed_list() -> None:
    mapped = {reason: reason_of_reject(reason) for reason in RejectReason}
    special = {
        RejectReason.IDENTITY_MISMATCH: FailureReason.IDENTITY_MISMATCH,
        RejectReason.SECURITY_IDENTITY_MISMATCH: FailureReason.SECURITY_MISMATCH,
        RejectReason.LIFECYCLE_GENERATION_STALE: FailureReason.GENERATION_MISMATCH,
        RejectReason.RUNTIME_NOT_SERVING: FailureReason.HOST_NOT_SERVING,
    }
    assert mapped == {reason: special.get(reason, FailureReason.REJECTED) for reason in RejectReason}
    assert [reason_of_close(reason).value for reason in CloseReason] == [
        "orderly_close",
        "orderly_close",
        "replaced",
        "protocol_error",
    ]
