"""The committed vectors against the codec: every language must agree with these files (LV-177, LV-178)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance import make_vectors
from conformance.forms import from_json, to_json
from conformance.vector import DIRECTIONS, LANES, TOPOLOGIES
from zlinkpy.errors import ErrorKind, ProtocolError
from zlinkpy.wire import (
    BEACON,
    BEACON_FRAMES,
    COMMANDS,
    Direction,
    Lane,
    PayloadUse,
    Record,
    Topology,
    decode,
    decode_fanout,
    dump_tail,
    encode,
    encode_fanout,
    kind_of_reply,
    parse_tail,
    spec_of,
)
from zlinkpy.wire.composite import Opt
from zlinkpy.wire.parse import parse_checked
from zlinkpy.wire.tails import TAILS

FOLDER = Path(make_vectors.__file__).parent / "vectors"
LANE = {text: lane for lane, text in LANES.items()}
TOPOLOGY = {text: topology for topology, text in TOPOLOGIES.items()}
DIRECTION = {text: direction for direction, text in DIRECTIONS.items()}

Vector = dict[str, Any]


def load(name: str) -> list[Vector]:
    vectors: list[Vector] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return vectors


FILES = sorted(path.name for path in FOLDER.glob("*.json"))
RECORD_FILES = [name for name in FILES if name[:2].isdigit()] + ["metadata.json", "prefix.json"]
COMMAND_FILES = {f"{spec.id:02}-{spec.name}.json": spec for spec in COMMANDS.values()}


def frames_of(vector: Vector) -> list[bytes]:
    frames = [bytes.fromhex(frame) for frame in vector["frames"]]
    if "repeat" in vector:
        frames[vector["repeat"]["frame"]] *= vector["repeat"]["times"]
    return frames


def decoded(vector: Vector) -> Record:
    lane: Lane | None = LANE.get(vector["lane"])
    direction: Direction | None = DIRECTION.get(vector["direction"])
    return decode(frames_of(vector), topology=TOPOLOGY[vector["topology"]], lane=lane, direction=direction)


def refused_field(vector: Vector) -> str | None:
    """The field named by the refusal; None when the record was accepted."""
    try:
        decoded(vector)
    except ProtocolError as error:
        return error.field
    return None


def test_the_files_are_what_the_generator_writes() -> None:
    assert make_vectors.main(["--check"]) == 0


@pytest.mark.contract("LV-177")
@pytest.mark.parametrize("name", RECORD_FILES)
def test_valid_records_agree_in_bytes_and_values(name: str) -> None:
    for vector in load(name):
        if not vector["valid"]:
            continue
        record = decoded(vector)
        body = spec_of(record.command).bodies[TOPOLOGY[vector["topology"]]]
        assert spec_of(record.command).name == vector["command"], vector["name"]
        assert to_json(body, record.command) == vector["value"], vector["name"]
        assert record.command == from_json(body, vector["value"]), vector["name"]
        metadata = None if vector["metadata"] is None else dict(vector["metadata"])
        assert record.metadata == metadata, vector["name"]
        frames = frames_of(vector)
        assert list(record.parts) == frames[len(frames) - len(record.parts) :], vector["name"]
        if "parts" in vector:
            assert [part.hex() for part in record.parts] == vector["parts"], vector["name"]
        written = encode(record.command, metadata=record.metadata, parts=record.parts)
        assert (written == frames) == vector["canonical"], vector["name"]


@pytest.mark.contract("LV-178")
@pytest.mark.parametrize("name", RECORD_FILES)
def test_invalid_records_are_refused_by_the_field_that_is_wrong(name: str) -> None:
    wrong = {
        vector["name"]: (vector["field"], refused_field(vector))
        for vector in load(name)
        if not vector["valid"] and refused_field(vector) != vector["field"]
    }
    assert wrong == {}


@pytest.mark.contract("LV-177")
def test_every_command_has_a_vector_for_every_shape_of_its_optional_elements() -> None:
    assert set(COMMAND_FILES) <= set(FILES)
    for name, spec in COMMAND_FILES.items():
        valid = [vector for vector in load(name) if vector["valid"]]
        for topology, body in spec.bodies.items():
            values = [vector["value"] for vector in valid if vector["topology"] == TOPOLOGIES[topology]]
            assert values, (name, topology)
            for element, wire_type in body.fields:
                if isinstance(wire_type, Opt):
                    camel = element.split("_")[0] + "".join(word.capitalize() for word in element.split("_")[1:])
                    seen = {value[camel] is None for value in values}
                    # A push always has its payload; what is optional occurs both ways.
                    assert seen == {True, False}, (name, element)


@pytest.mark.contract("LV-178")
def test_every_command_has_each_kind_of_invalid_vector() -> None:
    for name, spec in COMMAND_FILES.items():
        broken = [vector for vector in load(name) if not vector["valid"]]
        names = {vector["name"] for vector in broken}
        fields = {vector["field"] for vector in broken}
        assert {"trailing byte", "body: one short", "body: one long", "one frame more", "flags 0x02"} <= names
        assert {"frames", "prefix.flags", "body"} <= fields
        assert ("flags 0x01" in names) == (not spec.metadata)
        assert ("lane" in fields) == (len(spec.lanes) == 1)
        assert ("topology" in fields) == (Topology.CLIENT_SERVER not in spec.bodies)
        assert ("direction" in fields) == (len(spec.directions) == 1)
        if spec.payload is not PayloadUse.NONE:
            assert "one frame less" in names
        for topology, body in spec.bodies.items():
            here = {vector["field"] for vector in broken if vector["topology"] == TOPOLOGIES[topology]}
            for element, _ in body.fields:
                camel = element.split("_")[0] + "".join(word.capitalize() for word in element.split("_")[1:])
                assert any(field.startswith(f"body.{camel}") for field in here), (name, element)
    reserved = {vector["command"] for vector in load("prefix.json") if vector["field"] == "prefix.command"}
    assert reserved == {f"reserved {number}" for number in range(256) if number not in COMMANDS}


@pytest.mark.contract("LV-85", "LV-177")
def test_fanout_vectors() -> None:
    vectors = load("fanout.json")
    beacons = [vector for vector in vectors if vector.get("beacon")]
    assert [frames_of(vector) for vector in beacons] == [list(BEACON_FRAMES)]
    assert [bytes.hex(frame) for frame in BEACON_FRAMES] == ["015a4c4631", "5a460101"]
    assert decode_fanout(frames_of(beacons[0])) is BEACON
    for vector in vectors:
        frames = frames_of(vector)
        if not vector["valid"]:
            with pytest.raises(ProtocolError) as caught:
                decode_fanout(frames)
            assert caught.value.field == vector["field"], vector["name"]
        elif "value" in vector:
            event = decode_fanout(frames)
            assert event is not BEACON
            assert event.topic == vector["value"]["topic"]
            assert event.channel_name == vector["value"]["channelName"]
            assert event.source_rid == vector["value"]["sourceRid"]
            assert event.payload.packet_name == vector["value"]["payload"]["packetName"]
            assert (event.payload.flow is None) == (vector["value"]["payload"]["flow"] is None)
            assert event.metadata == (None if vector["metadata"] is None else dict(vector["metadata"]))
            assert [event.content.hex()] == vector["parts"]
            assert encode_fanout(event) == frames


@pytest.mark.contract("LV-177")
def test_tail_vectors() -> None:
    classes = {spec.name: spec.cls for spec in COMMANDS.values()}
    seen = set()
    for vector in load("tails.json"):
        request = classes[vector["request"]]
        node = parse_checked(bytes.fromhex(vector["tail"]), "tail", lambda node: node)
        if vector["valid"]:
            tail = parse_tail(request, node)
            if request in TAILS:
                assert to_json(TAILS[request], tail) == vector["value"]
                assert dump_tail(request, tail) == node
            else:
                assert tail is None
                assert dump_tail(request, None) is None
            seen.add(request)
        else:
            with pytest.raises(ProtocolError) as caught:
                parse_tail(request, node)
            assert caught.value.field == vector["field"], vector["name"]
    assert set(TAILS) < seen


@pytest.mark.contract("LV-177")
def test_error_kind_vectors() -> None:
    vectors = load("error-kinds.json")
    assert len(vectors) == 8 + 25
    for vector in vectors:
        kind = kind_of_reply(vector["terminalResult"], vector["failureCode"])
        assert kind is ErrorKind(vector["kind"])
        assert kind.name.replace("_", "").lower() == vector["kindName"].lower()
