"""A reader that recalls says exactly what a reader that does not recall says (wire.md §6)."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.errors import ProtocolError
from zlinkpy.wire import (
    ChannelRequest,
    ChannelSend,
    Lane,
    NodeRequest,
    NodeSend,
    PayloadHead,
    Reply,
    Topology,
    decode,
    encode,
)
from zlinkpy.wire.recall import RECALLED

HEAD = PayloadHead("Echo", "application/msgpack")
TWO = PayloadHead("Echo", "application/msgpack", 2)
CORRS = [1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1]
APPLICATION = [
    ChannelSend("game", HEAD),
    NodeSend(HEAD),
    *(ChannelRequest(corr, 30_000, "game", HEAD) for corr in CORRS),
    *(NodeRequest(corr, 5, HEAD) for corr in CORRS),
]
COMPLETION = [
    *(Reply(corr, 0, 0, None, HEAD) for corr in CORRS),
    *(Reply(corr, 102, 9, None, None) for corr in CORRS),
]


def read(frames: list[bytes], lane: Lane) -> object:
    return decode(frames, topology=Topology.ROUTE_MESH, lane=lane)


def both() -> list[tuple[Lane, object]]:
    return [(Lane.APPLICATION, each) for each in APPLICATION] + [(Lane.COMPLETION, each) for each in COMPLETION]


def parts_of(command: object) -> list[bytes]:
    return [] if command.payload is None else [b"x"] * command.payload.parts  # type: ignore[attr-defined]


@pytest.mark.contract("LV-177")
@pytest.mark.parametrize(("lane", "command"), both())
def test_the_second_reading_gives_what_the_first_gave(lane: Lane, command: object) -> None:
    frames = encode(command, parts=parts_of(command))
    first = read(frames, lane)
    assert first.command == command  # type: ignore[attr-defined]
    assert read(frames, lane) == first
    other = [frames[0], *(b"other" for _ in frames[1:])]
    assert list(read(other, lane).parts) == other[1:]  # type: ignore[attr-defined]


@pytest.mark.contract("LV-178")
@pytest.mark.parametrize(("lane", "command"), both())
def test_a_recalled_head_still_needs_its_payload_frames(lane: Lane, command: object) -> None:
    frames = encode(command, parts=parts_of(command))
    read(frames, lane)
    for wrong in ([*frames, b"extra"], frames[:-1]):
        with pytest.raises(ProtocolError):
            read(wrong, lane)


@pytest.mark.contract("LV-178")
@pytest.mark.parametrize("corr", [0, -1, 2**63, 2**64 - 1, "1", None, 1.0, True])
def test_a_bad_number_in_front_of_a_recalled_tail_is_refused(corr: object) -> None:
    read(encode(ChannelRequest(7, 30_000, "game", HEAD), parts=[b""]), Lane.APPLICATION)
    read(encode(Reply(7, 0, 0, None, HEAD), parts=[b""]), Lane.COMPLETION)
    head = ["Echo", "application/msgpack", 1, None]
    request = b"ZM\x01\x13\x00" + msgpack.packb([corr, 30_000, "game", head])
    with pytest.raises(ProtocolError, match="corr"):
        read([request, b""], Lane.APPLICATION)
    reply = b"ZM\x01\x14\x00" + msgpack.packb([corr, 0, 0, None, head])
    with pytest.raises(ProtocolError, match="corr"):
        read([reply, b""], Lane.COMPLETION)


def test_a_longer_form_of_a_number_is_accepted_before_and_after() -> None:
    plain = encode(Reply(5, 0, 0, None, HEAD), parts=[b"x"])
    for longer in (b"\xcc\x05", b"\xcd\x00\x05", b"\xce\x00\x00\x00\x05", b"\xcf" + bytes(7) + b"\x05", b"\xd0\x05"):
        frames = [plain[0][:6] + longer + plain[0][7:], b"x"]
        for _ in range(2):
            assert read(frames, Lane.COMPLETION).command == Reply(5, 0, 0, None, HEAD)  # type: ignore[attr-defined]


@given(st.integers(0, 60), st.integers(0, 255))
def test_a_changed_byte_is_judged_as_if_nothing_were_recalled(at: int, value: int) -> None:
    frames = encode(ChannelRequest(70_000, 30_000, "game", HEAD), parts=[b"x"])
    read(frames, Lane.APPLICATION)
    raw = bytearray(frames[0])
    raw[at % len(raw)] = value
    try:
        record = read([bytes(raw), b"x"], Lane.APPLICATION)
    except ProtocolError:
        return
    command = record.command  # type: ignore[attr-defined]
    assert read(encode(command, parts=[b"x"]), Lane.APPLICATION).command == command  # type: ignore[attr-defined]


def test_many_different_heads_leave_every_answer_right() -> None:
    for number in range(RECALLED * 2 + 10):
        head = PayloadHead(f"packet-{number}", "application/msgpack")
        frames = encode(ChannelSend("game", head), parts=[b"x"])
        assert read(frames, Lane.APPLICATION).command.payload == head  # type: ignore[attr-defined]
    assert read(encode(NodeSend(TWO), parts=[b"", b""]), Lane.APPLICATION).command == NodeSend(TWO)  # type: ignore[attr-defined]
