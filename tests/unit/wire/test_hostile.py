"""Bytes from a stranger: only ProtocolError comes out, and memory follows the input, not its claims (LV-178)."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zlinkpy.errors import ProtocolError
from zlinkpy.wire import (
    COMMANDS,
    Beacon,
    Direction,
    FanoutEvent,
    Lane,
    Record,
    Topology,
    decode,
    decode_fanout,
    decode_frozen,
    decode_metadata,
)
from zlinkpy.wire.limits import ADMISSION_MAX
from zlinkpy.wire.table import prefix_of

ARRAY32 = b"\xdd\x7f\xff\xff\xff"
MAP32 = b"\xdf\x7f\xff\xff\xff"
STR32 = b"\xdb\x7f\xff\xff\xff"
BIN32 = b"\xc6\x7f\xff\xff\xff"
ARRAY16 = b"\xdc\xff\xff"

FREE = 400_000
"""What a refusal may cost in bytes whatever the input: error, traceback, the parser's own stack."""


def refusal(frames: list[bytes], topology: Topology = Topology.ROUTE_MESH) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode(frames, topology=topology)
    return caught.value


def peak_of(action: Callable[[], object]) -> int:
    """The most bytes allocated at one time while `action` ran."""
    action()
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.contract("LV-178")
@pytest.mark.parametrize("spec", COMMANDS.values(), ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(lambda limit: ARRAY32, id="array of 2^31"),
        pytest.param(lambda limit: b"\x91" + ARRAY32, id="nested array of 2^31"),
        pytest.param(lambda limit: MAP32, id="map of 2^31"),
        pytest.param(lambda limit: b"\x91" + STR32, id="text of 2 GiB"),
        pytest.param(lambda limit: b"\x91" + BIN32, id="bin of 2 GiB"),
        pytest.param(lambda limit: b"\x99" * limit, id="nested arrays of 9"),
        pytest.param(lambda limit: ARRAY16 * (limit // 3), id="nested arrays of 65535"),
        pytest.param(lambda limit: b"\x91" * limit, id="nothing but nesting"),
        pytest.param(lambda limit: b"\xdf\x00\x00\xff\xff" * (limit // 5), id="nested maps of 65535"),
    ],
)
def test_a_claim_reserves_nothing(spec: object, claim: Callable[[int], bytes]) -> None:
    body = claim(4000)
    frames = [prefix_of(spec.id, 0) + body]  # type: ignore[attr-defined]
    assert refusal(frames).field.startswith("body")
    assert peak_of(lambda: refusal(frames)) < FREE + 20 * len(body)


@pytest.mark.contract("LV-178")
def test_a_megabyte_of_nested_claims_in_an_admission_reserves_nothing() -> None:
    head = prefix_of(1, 0)
    for body in (
        (b"\x93\x99" + ARRAY16 * (ADMISSION_MAX // 3))[:ADMISSION_MAX],
        (b"\x93\x99\x01" + b"\xa1a" * 4 + b"\x01\x01\xa1a" + (b"\xdc\xff\xff" * 1000)),
    ):
        assert peak_of(lambda body=body: refusal([head + body])) < FREE + 4 * len(body)


@pytest.mark.contract("LV-178")
def test_a_metadata_frame_of_nested_claims_reserves_nothing() -> None:
    for frame in (b"\x92\x01" + ARRAY32, b"\x92\x01" + b"\xdc\x01\xfe" * 340, b"\xdc\x01\xfe" * 341):
        with pytest.raises(ProtocolError):
            decode_metadata(frame)
        assert peak_of(lambda frame=frame: pytest.raises(ProtocolError, decode_metadata, frame)) < FREE


@pytest.mark.contract("LV-178")
@pytest.mark.parametrize("spec", COMMANDS.values(), ids=lambda spec: spec.name)
def test_frame_0_beyond_the_bound_of_its_command_is_refused_unparsed(spec: object) -> None:
    limit = spec.bounds(Topology.ROUTE_MESH).size  # type: ignore[attr-defined]
    if limit is None:  # relocationData carries payloads in its body: only the connection bounds it
        assert spec.name == "relocationData"  # type: ignore[attr-defined]
        return
    frame = prefix_of(spec.id, 0) + b"\x91" + b"\xc6" + struct.pack(">I", limit) + bytes(limit)  # type: ignore[attr-defined]
    assert refusal([frame]).field == ("body.admission" if spec.admission else "body")  # type: ignore[attr-defined]
    assert peak_of(lambda: refusal([frame])) < FREE


def an_admission(filler: int) -> bytes:
    """A valid admission array whose `ext` holds an unknown entry of `filler` bytes."""
    ext = b"\x86\x01\x01\x02\x01\x06\x90\x07\x00\x08\x64\xcd\x10\x00\xc6" + struct.pack(">I", filler) + bytes(filler)
    return b"\x99\x01\xa1m\xa1n\xa1s\x01\x01\xa1e\x90" + ext


def test_an_admission_may_have_one_mebibyte_and_not_a_byte_more() -> None:
    overhead = len(an_admission(0))
    pair_id = b"\xc4\x08" + bytes(8)
    for size, fits in ((ADMISSION_MAX, True), (ADMISSION_MAX + 1, False)):
        body = b"\x93" + an_admission(size - overhead) + b"\x01" + pair_id
        frames = [prefix_of(1, 0) + body]
        if fits:
            assert decode(frames, topology=Topology.ROUTE_MESH).command.admission.mesh_name == "m"
            longest = (
                b"\xdd\0\0\0\3" + body[1 : -len(pair_id) - 1] + b"\xcf" + bytes(7) + b"\1\xc6\0\0\0\x08" + bytes(8)
            )
            assert decode([prefix_of(1, 0) + longest], topology=Topology.ROUTE_MESH).command.pair_id == bytes(8)
        else:
            assert refusal(frames).field == "body.admission"


def test_an_unknown_ext_value_is_skipped_up_to_the_nesting_bound() -> None:
    def hello(value: bytes) -> list[bytes]:
        ext = b"\x86\x01\x01\x02\x01\x06\x90\x07\x00\x08\x64\xcd\x10\x00" + value
        return [prefix_of(1, 0) + b"\x93\x99\x01\xa1m\xa1n\xa1s\x01\x01\xa1e\x90" + ext + b"\x01\xc4\x08" + bytes(8)]

    assert decode(hello(b"\x91" * 29 + b"\x01"), topology=Topology.ROUTE_MESH).command.lane is Lane.APPLICATION
    assert decode(hello(b"\x81\x01" * 28 + b"\x90"), topology=Topology.ROUTE_MESH).command.lane is Lane.APPLICATION
    for value in (
        b"\x91" * 30 + b"\x01",
        b"\x81\x01" * 30 + b"\x90",
        b"\x91" * 2000 + b"\x01",
        b"\x81\x90\xc7\x00\x05",
    ):
        assert refusal(hello(value)).field == "body.admission.ext"


@pytest.mark.contract("LV-178")
@settings(max_examples=400)
@given(
    frames=st.lists(st.binary(max_size=60), max_size=4),
    number=st.integers(0, 255),
    flags=st.sampled_from([0, 0, 0, 1, 2]),
    topology=st.sampled_from(Topology),
    lane=st.sampled_from([None, *Lane]),
    direction=st.sampled_from([None, *Direction]),
)
@example(frames=[], number=0, flags=0, topology=Topology.ROUTE_MESH, lane=None, direction=None)
def test_arbitrary_frames_raise_nothing_but_protocol_errors(
    frames: list[bytes], number: int, flags: int, topology: Topology, lane: Lane | None, direction: Direction | None
) -> None:
    prefixed = [prefix_of(number, flags) + frames[0], *frames[1:]] if frames else []
    for candidate in (frames, prefixed):
        try:
            assert isinstance(decode(candidate, topology=topology, lane=lane, direction=direction), Record)
        except ProtocolError as error:
            assert error.field  # noqa: PT017 - either outcome is right; a third one is not
        try:
            assert isinstance(decode_fanout(candidate), (FanoutEvent, Beacon))
        except ProtocolError as error:
            assert error.field  # noqa: PT017
    for data in frames:
        for read in (decode_metadata, decode_frozen):
            try:
                read(data)
            except ProtocolError as error:
                assert error.field  # noqa: PT017


def test_error_texts_stay_short_whatever_was_sent() -> None:
    huge = b"\xcf" + b"\xff" * 8
    error = refusal([prefix_of(5, 0) + b"\x91" + huge])
    assert error.field == "body.probeId"
    assert str(2**64 - 1) in error.problem
    for value in (b"\xda\x0f\xff" + b"x" * 4095, b"\xc5\x0f\xff" + bytes(4095)):
        error = refusal([prefix_of(31, 0) + b"\x97" + value])
        assert len(error.problem) < 200
