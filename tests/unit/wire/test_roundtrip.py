"""decode(encode(record)) is the record, for every command and every shape; and the two passes of the schema agree."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.command_vectors import parts_of
from conformance.packing import pack, tree, widest
from tests.unit.wire.strategies import BODIES, SHAPES, any_record, records
from zlinkpy.errors import ProtocolError
from zlinkpy.wire import (
    CommandSpec,
    Direction,
    FrozenRecord,
    Lane,
    Record,
    RelocationData,
    Topology,
    codec,
    decode,
    decode_frozen,
    encode,
    encode_frozen,
)
from zlinkpy.wire.table import prefix_of

IDS = [f"{spec.name}-{topology.name.lower()}" for spec, topology in BODIES]


@pytest.mark.parametrize(("spec", "topology"), BODIES, ids=IDS)
@settings(max_examples=40)
@given(data=st.data())
def test_decoding_what_was_encoded_gives_the_record(spec: CommandSpec, topology: Topology, data: st.DataObject) -> None:
    record = data.draw(records(spec, topology))
    frames = encode(record.command, metadata=record.metadata, parts=record.parts)
    assert frames[0][:5] == prefix_of(spec.id, 0 if record.metadata is None else 1)
    assert len(frames) == 1 + (record.metadata is not None) + len(record.parts)
    for lane in (None, *spec.lanes):
        for direction in (None, *spec.directions):
            assert decode(frames, topology=topology, lane=lane, direction=direction) == record
    assert encode(record.command, metadata=record.metadata, parts=record.parts) == frames


@given(drawn=any_record)
def test_integers_are_encoded_in_their_shortest_form(drawn: tuple[Any, Record]) -> None:
    _, record = drawn
    body = encode(record.command, parts=record.parts)[0][5:]
    assert msgpack.packb(msgpack.unpackb(body, strict_map_key=False)) == body


@given(drawn=any_record)
def test_any_form_of_an_integer_is_accepted(drawn: tuple[tuple[CommandSpec, Topology], Record]) -> None:
    (spec, topology), record = drawn
    node = tree(spec.bodies[topology].dump(record.command, "body"))
    frames = [prefix_of(spec.id, 0) + pack(widest(node)), *record.parts]
    assert decode(frames, topology=topology) == evolve(record, metadata=None)


@given(drawn=any_record)
def test_the_generated_writer_and_the_interpreting_pass_write_the_same(drawn: tuple[Any, Record]) -> None:
    _, record = drawn
    spelled = codec._spelled_out(record.command, record.parts, flagged=False)
    assert spelled == encode(record.command, parts=record.parts)[0]


Frames = list[bytes]

EXAMPLES: list[tuple[Frames, CommandSpec, Topology]] = [
    (encode(command, parts=parts_of(command)), spec, topology)
    for spec, topology in BODIES
    for command in SHAPES[spec.id, topology]
]


def assert_one_verdict(frames: Frames, topology: Topology) -> None:
    with pytest.raises(ProtocolError) as explained:
        codec.explain(frames, topology, None, None, None)
    assert explained.value.field
    # What the explaining pass says when it found nothing wrong; a reader that refuses must have had a reason.
    found_nothing = explained.value.problem == "is not acceptable"
    try:
        decode(frames, topology=topology)
    except ProtocolError:
        accepted = False
    else:
        accepted = True
    assert accepted == found_nothing, [frame.hex() for frame in frames]


@pytest.mark.parametrize(("spec", "topology"), BODIES, ids=IDS)
def test_the_generated_reader_and_the_explaining_pass_give_one_verdict_on_every_byte(
    spec: CommandSpec, topology: Topology
) -> None:
    """Each byte of a record in turn becomes the start of something else, is doubled, is lost, or is the last one."""
    command = max(SHAPES[spec.id, topology], key=lambda shape: len(encode(shape, parts=parts_of(shape))[0]))
    head, *parts = encode(command, parts=parts_of(command))
    for place in range(5, len(head)):
        before, byte, after = head[:place], head[place : place + 1], head[place + 1 :]
        for other in (
            b"\x00",
            b"\x80",
            b"\x91",
            b"\xa0",
            b"\xc0",
            b"\xc1",
            b"\xc3",
            b"\xca",
            b"\xdc",
            b"\xd6",
            b"\xff",
        ):
            assert_one_verdict([before + other + after, *parts], topology)
        assert_one_verdict([before + byte + byte + after, *parts], topology)
        assert_one_verdict([before + after, *parts], topology)
        assert_one_verdict([before + byte, *parts], topology)


@st.composite
def mutations(draw: st.DrawFn) -> tuple[Frames, Topology]:
    """A valid record with a few things changed somewhere in its bytes or frames."""
    example, _, topology = draw(st.sampled_from(EXAMPLES))
    frames = list(example)
    for _ in range(draw(st.integers(1, 3))):
        which = draw(st.integers(0, len(frames) - 1))
        frame = frames[which]
        place = draw(st.integers(0, len(frame)))
        how = draw(st.sampled_from(["set", "set", "insert", "delete", "frame more", "frame less"]))
        if how == "frame more":
            frames.insert(which, frame)
        elif how == "frame less" and len(frames) > 1:
            del frames[which]
        elif how == "delete":
            frames[which] = frame[:place] + frame[place + draw(st.integers(1, 9)) :]
        else:
            frames[which] = frame[:place] + draw(st.binary(min_size=1, max_size=5)) + frame[place + (how == "set") :]
    return frames, topology


@settings(max_examples=1500)
@given(mutated=mutations())
def test_the_generated_reader_and_the_explaining_pass_give_one_verdict(mutated: tuple[Frames, Topology]) -> None:
    assert_one_verdict(*mutated)


@given(data=st.data())
def test_a_frozen_record_stands_alone_as_it_does_in_its_record(data: st.DataObject) -> None:
    command = data.draw(records(*next(pair for pair in BODIES if pair[0].cls is RelocationData))).command
    packed = encode_frozen(command.record)
    assert encode(command)[0].endswith(packed)
    assert decode_frozen(packed) == command.record


@pytest.mark.parametrize(
    ("data", "field"),
    [(b"", "record"), (b"\xc0", "record"), (b"\x97\x63", "record.kind"), (b"\x97\xcb", "record.kind")],
)
def test_a_broken_frozen_record_names_its_place(data: bytes, field: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_frozen(data)
    assert caught.value.field == field


def test_trailing_bytes_of_a_frozen_record() -> None:
    record: FrozenRecord = SHAPES[31, Topology.ROUTE_MESH][0].record
    with pytest.raises(ProtocolError, match="behind it"):
        decode_frozen(encode_frozen(record) + b"\0")


def test_a_lane_that_is_not_known_yet_excludes_nothing() -> None:
    for spec, topology in BODIES:
        command = SHAPES[spec.id, topology][0]
        frames = encode(command, parts=parts_of(command))
        assert decode(frames, topology=topology, lane=None, direction=None).command == command
        if topology is Topology.CLIENT_SERVER:  # no lanes there
            direction: Direction = min(spec.directions)
            for lane in Lane:
                assert decode(frames, topology=topology, lane=lane, direction=direction).command == command
