"""The command table against wire.md §2 and §8, copied by hand: everything else derives from the table."""

from __future__ import annotations

import attrs
import pytest

from conformance import reference
from tests.unit.wire.strategies import SHAPES
from zlinkpy import wire
from zlinkpy.wire import COMMANDS, Direction, Domain, Kind, Lane, NodeSend, PayloadHead, Topology, encode, spec_of
from zlinkpy.wire.composite import Struct
from zlinkpy.wire.schema import camel

# id: name, L, K, M, elements of the body in order.
PAGE = {
    1: ("hello", "I", "Q", "", "admission lane pairId"),
    2: ("admit", "I", "R1", "", "admission lane pairId"),
    3: ("reject", "I", "R1", "", "reason"),
    4: ("update", "I", "1", "", "admission"),
    5: ("livenessProbe", "I", "1", "", "probeId"),
    6: ("livenessAck", "I", "1", "", "probeId"),
    16: ("nodeSend", "A", "1", "M", "payload"),
    17: ("nodeRequest", "A", "Q", "M", "corr ms payload"),
    18: ("channelSend", "A", "1", "M", "channelName payload"),
    19: ("channelRequest", "A", "Q", "M", "corr ms channelName payload"),
    20: ("reply", "I", "R", "", "corr terminalResult failureCode tail payload"),
    21: ("spotSend", "A", "1", "M", "op hop sourceSpotId fence payload"),
    22: ("spotRequest", "A", "Q", "M", "corr ms op hop origin sourceSpotId fence payload"),
    23: ("logicalMulticast", "A", "1", "M", "channelName topic sourceSpotId payload"),
    24: ("actorSend", "A", "1", "M", "op hop sourceActor fence boundTail payload"),
    25: ("actorRequest", "A", "Q", "M", "corr ms op hop origin sourceActor fence payload"),
    26: ("actorLookup", "I", "Q", "", "corr ms actorId"),
    27: ("actorDestroy", "I", "Q", "", "corr ms fence"),
    28: ("actorJoin", "I", "Q", "", "corr ms op actor entry spot payload"),
    29: ("actorLeft", "I", "1", "", "actor previousMembership authorityOwnerGeneration"),
    30: ("relocationReady", "I", "R40", "", "HDR role target step receiveChunkLimit"),
    31: ("relocationData", "I", "1", "", "HDR role position record"),
    33: ("replyRelay", "I", "1", "", "op replyRouteId context terminalResult failureCode payload"),
    34: ("relocationCutover", "I", "1", "", "HDR role count crc32c"),
    36: ("boundSessionSend", "A", "1", "", "fence bindingGeneration payload"),
    37: ("actorJoined", "I", "1", "", "actor previousMembership currentMembership authorityOwnerGeneration"),
    38: ("boundSessionBind", "I", "Q", "", "corr ms fence sessionOwner binding"),
    39: (
        "instanceSpot", "A", "1/Q", "M",
        "route hop sourceNodeGeneration sourceNodeRid sourceSpotId kind op replyRouteId ms payload",
    ),
    40: ("relocationPrepare", "I", "Q", "", "HDR role step target source applicationVersion manifest moveList"),
    42: (
        "sessionRelocationSeal", "I", "Q", "",
        "relocationId attempt coordinator role fence sessionOwner bindingGeneration",
    ),
    43: (
        "sessionRelocationSealed", "I", "R42", "",
        "relocationId attempt coordinator fence sessionOwner bindingGeneration result",
    ),
    44: (
        "sessionRelocationRoute", "I", "1", "",
        "relocationId attempt coordinator role actor sessionOwner bindingGeneration update",
    ),
    46: ("replyRelayAck", "I", "1", "", "relocationId coordinator op replyRouteId source status"),
    47: (
        "userSpotCreate", "I", "Q", "",
        "corr ms op sourceNodeRid sourceNodeGeneration spotId stableType reservation",
    ),
    48: (
        "userSpotClose", "I", "Q", "",
        "corr ms op sourceNodeRid sourceNodeGeneration spot targetNodeRid targetNodeGeneration "
        "authorityOwnerGeneration version",
    ),
    49: (
        "actorCreate", "I", "Q", "",
        "corr ms op sourceNodeRid sourceNodeGeneration actorId stableType reservation",
    ),
    50: ("messageFollow", "I", "1", "", "kind source target hop op replyRouteId"),
    51: ("boundSessionReplaced", "I", "1", "", "fence sessionOwner retiredBindingGeneration"),
    52: ("relocationState", "I", "1", "", "HDR role ordinal data"),
    53: ("relocationFailed", "I", "R40", "", "HDR role target code"),
    54: ("receiveFlow", "I", "1", "", "state"),
    55: ("close", "I", "1", "", "reason field problem"),
}  # fmt: skip

COMPLETION_ONLY = {20, 30, 33, 43, 46, 53}
BOTH_LANES = {1, 2, 3}
TO_SERVER = {1, 5, 6, 18, 19, 54, 55}
TO_CLIENT = {2, 3, 4, 5, 6, 20, 54, 55}
NO_PAYLOAD_BYTES = 8192


def kind_of(spec: wire.CommandSpec) -> str:
    return f"R{spec.answers}" if spec.kind is Kind.REPLY and spec.answers else spec.kind.value


def test_the_rows_are_those_of_the_page() -> None:
    rows = {}
    for number, spec in COMMANDS.items():
        elements = " ".join(camel(name) for name, _ in spec.bodies[Topology.ROUTE_MESH].fields)
        elements = elements.replace("relocationId attempt coordinator object", "HDR")
        rows[number] = (spec.name, spec.domain.value, kind_of(spec), "M" if spec.metadata else "", elements)
    assert rows == PAGE


@pytest.mark.contract("LV-178")
def test_lanes_and_directions_are_those_of_the_page() -> None:
    for number, spec in COMMANDS.items():
        expected = (
            {Lane.COMPLETION}
            if number in COMPLETION_ONLY
            else set(Lane)
            if number in BOTH_LANES
            else {Lane.APPLICATION}
        )
        assert spec.lanes == expected, spec.name
        ways = {Direction.TO_SERVER} if number in TO_SERVER else set()
        ways |= {Direction.TO_CLIENT} if number in TO_CLIENT else set()
        assert spec.directions == ways, spec.name
        assert (Topology.CLIENT_SERVER in spec.topologies) == bool(ways), spec.name
        assert Topology.ROUTE_MESH in spec.topologies


def test_on_client_server_an_admission_stands_alone() -> None:
    for number, admission in ((1, "ClientAdmission"), (2, "ServerAdmission"), (4, "ServerAdmission")):
        ((name, layout),) = COMMANDS[number].bodies[Topology.CLIENT_SERVER].fields
        assert name == "admission"
        assert isinstance(layout, Struct)
        assert layout.cls.__name__ == admission


def test_application_records_and_only_they_carry_a_payload_for_a_handler() -> None:
    for spec in COMMANDS.values():
        has_payload = "payload" in dict(spec.bodies[Topology.ROUTE_MESH].fields)
        if spec.domain is Domain.APPLICATION:
            assert has_payload, spec.name
        assert not spec.metadata or spec.domain is Domain.APPLICATION


def test_frame_0_is_bounded_by_what_its_elements_can_be() -> None:
    sizes = {spec.name: spec.bounds(Topology.ROUTE_MESH).size for spec in COMMANDS.values()}
    assert sizes.pop("relocationData") is None
    for name in ("hello", "admit", "update"):
        assert sizes.pop(name) == wire.ADMISSION_MAX + 64
    assert sizes.pop("relocationState") < wire.STATE_CHUNK_MAX + NO_PAYLOAD_BYTES  # type: ignore[operator]
    assert all(size is not None and 10 < size < NO_PAYLOAD_BYTES for size in sizes.values())
    for (number, topology), shapes in SHAPES.items():
        bound = COMMANDS[number].bounds(topology).size
        for command in shapes:
            head = getattr(command, "payload", None)
            frame = encode(command, parts=[b""] * (0 if head is None else head.parts))[0]
            assert bound is None or len(frame) <= bound


def test_a_spec_is_found_by_number_class_and_record() -> None:
    record = NodeSend(PayloadHead("p"))
    assert spec_of(16) is spec_of(NodeSend) is spec_of(record) is COMMANDS[16]
    for other in (0, 15, 64, 256, PayloadHead, PayloadHead("p"), "nodeSend", None):
        with pytest.raises(ValueError, match="no command"):
            spec_of(other)


def test_every_record_class_is_frozen_and_slotted() -> None:
    for spec in COMMANDS.values():
        command = SHAPES[spec.id, Topology.ROUTE_MESH][0]
        assert not hasattr(command, "__dict__")
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(command, attrs.fields(spec.cls)[0].name, None)


def test_the_printed_reference_is_current() -> None:
    assert reference.main(["--check"]) == 0


def test_the_reference_shows_every_command_and_every_field_name() -> None:
    text = reference.PAGE.read_text(encoding="utf-8")
    for number, (name, *_) in PAGE.items():
        assert f"| {number} {name} |" in text


def test_public_names_resolve() -> None:
    assert len(wire.__all__) == len(set(wire.__all__))
    assert all(hasattr(wire, name) for name in wire.__all__)
