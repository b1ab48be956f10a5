"""What a sender gets wrong is a ValueError that names the element, before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from conformance.command_vectors import parts_of
from tests.unit.wire.strategies import BODIES, SHAPES
from zlinkpy.errors import ErrorKind, ProtocolError
from zlinkpy.wire import (
    JOIN_PAYLOAD_MAX,
    REQUIRED_CAPABILITY,
    ActorJoin,
    ActorSend,
    ChannelRequest,
    ChannelSend,
    ClientAdmission,
    Close,
    CloseReason,
    Ext,
    Flow,
    FlowOrigin,
    Hello,
    Lane,
    LivenessAck,
    LivenessProbe,
    NodeRequest,
    ObjectRole,
    PayloadHead,
    ReceiveFlow,
    Record,
    Reply,
    RouteMeshAdmission,
    RuntimeState,
    ServerAdmission,
    SpotRequest,
    TerminalResult,
    Topology,
    Update,
    close_for,
    decode,
    encode,
    encode_metadata,
)

HEAD = PayloadHead("place_order")
EXT = Ext(RuntimeState.SERVING, 1, None, (REQUIRED_CAPABILITY,), ObjectRole.SERVER, 100)
MESH = RouteMeshAdmission("play", "node-a", "node-a", 7, 1, "tcp://10.0.0.7:5501", (("a", 1), ("b", 2)), EXT)
CLIENT = ClientAdmission("orders", "client", 2**32 - 1)
SERVER = ServerAdmission("orders", "server-a", 7, 1, 100, RuntimeState.SERVING, "server-a", 1 << 24, "tcp://h:1")


@pytest.mark.contract("LV-41")
def test_probe_and_ack_are_one_exact_frame() -> None:
    for number, cls in ((5, LivenessProbe), (6, LivenessAck)):
        for probe_id, packed in ((1, "01"), (300, "cd012c"), (2**63 - 1, "cf7fffffffffffffff")):
            frames = encode(cls(probe_id))
            assert [frame.hex() for frame in frames] == [f"5a4d01{number:02x}0091{packed}"]
            record = decode(frames, topology=Topology.ROUTE_MESH, lane=Lane.APPLICATION)
            assert record == Record(cls(probe_id), None, ())


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (ChannelRequest(0, 1, "orders", HEAD), "body.corr"),
        (ChannelRequest(2**63, 1, "orders", HEAD), "body.corr"),
        (ChannelRequest(True, 1, "orders", HEAD), "body.corr"),
        (ChannelRequest(1.0, 1, "orders", HEAD), "body.corr"),  # type: ignore[arg-type]
        (ChannelRequest(1, 0, "orders", HEAD), "body.ms"),
        (ChannelRequest(1, 2**31, "orders", HEAD), "body.ms"),
        (ChannelRequest(1, 1, "", HEAD), "body.channelName"),
        (ChannelRequest(1, 1, "x" * 256, HEAD), "body.channelName"),
        (ChannelRequest(1, 1, "é" * 128, HEAD), "body.channelName"),
        (ChannelRequest(1, 1, "a\0b", HEAD), "body.channelName"),
        (ChannelRequest(1, 1, "\ud800", HEAD), "body.channelName"),
        (ChannelRequest(1, 1, b"orders", HEAD), "body.channelName"),  # type: ignore[arg-type]
        (ChannelRequest(1, 1, "orders", None), "body.payload"),  # type: ignore[arg-type]
        (ChannelRequest(1, 1, "orders", PayloadHead("p", parts=0)), "body.payload.parts"),
        (ChannelRequest(1, 1, "orders", PayloadHead("p", parts=65)), "body.payload.parts"),
        (
            ChannelRequest(1, 1, "orders", PayloadHead("p", flow=Flow("short", FlowOrigin.TIMER))),
            "body.payload.flow.flowId",
        ),
        (NodeRequest(1, 1, evolve(HEAD, content_type="")), "body.payload.contentType"),
        (Reply(1, 102, 0), "body.failureCode"),
        (Reply(1, 0, 9), "body.failureCode"),
        (Reply(1, 1, 0), "body.terminalResult"),
        (Reply(1, 0, 0, {"a": 1}), "body.tail"),
        (Reply(1, 0, 0, (1.5,)), "body.tail"),
        (Reply(1, 0, 0, (2**64,)), "body.tail"),
        (Reply(1, 0, 0, tuple("x" * 250 for _ in range(5))), "body.tail"),
        (Reply(1, 102, 9, (1,)), "body.tail"),
        (Reply(1, 102, 9, None, HEAD), "body.payload"),
        (ReceiveFlow(3), "body.state"),  # type: ignore[arg-type]
        (Close(CloseReason.ORDERLY, "body", "x"), "body.field"),
        (Close(CloseReason.PROTOCOL_ERROR, "", "x"), "body.field"),
        (Close(CloseReason.PROTOCOL_ERROR, "body", "x" * 257), "body.problem"),
        (Hello(MESH), "body.lane"),
        (Hello(MESH, Lane.APPLICATION, b"short"), "body.pairId"),
        (Hello(CLIENT, Lane.APPLICATION, None), "body.lane"),
        (Hello(SERVER), "body.admission"),
        (Update(CLIENT), "body.admission"),
        (Update(evolve(MESH, channels=(("b", 1), ("a", 1)))), "body.admission.channels[1]"),
        (Update(evolve(MESH, channels=(("a", 1), ("a", 1)))), "body.admission.channels[1]"),
        (Update(evolve(MESH, channels=(("a", 10_001),))), "body.admission.channels[0].weight"),
        (Update(evolve(MESH, channels="ab")), "body.admission.channels"),  # type: ignore[arg-type]
        (Update(evolve(MESH, ext=evolve(EXT, placement_weight=-1))), "body.admission.ext.placementWeight"),
        (Update(evolve(MESH, ext=None)), "body.admission.ext"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_element_is_named(command: Any, place: str) -> None:
    head = getattr(command, "payload", None)
    with pytest.raises(ValueError, match=rf"^{place.replace('[', '.').replace(']', '.')}:".replace("..", ".+")):
        encode(command, parts=[b""] * (head.parts if isinstance(head, PayloadHead) else 0))


def test_rules_between_elements_are_the_sender_s_mistake_too() -> None:
    request = next(c for c in SHAPES[22, Topology.ROUTE_MESH] if c.hop == 0)
    assert isinstance(request, SpotRequest)
    with pytest.raises(ValueError, match=r"^body\.origin:"):
        encode(evolve(request, hop=1), parts=parts_of(request))
    relayed = next(c for c in SHAPES[24, Topology.ROUTE_MESH] if c.bound_tail is not None)
    assert isinstance(relayed, ActorSend)
    with pytest.raises(ValueError, match=r"^body\.payload\.parts:"):
        encode(evolve(relayed, payload=HEAD), parts=[b""])


@pytest.mark.parametrize("count", [0, 2])
def test_the_frames_given_must_be_those_the_head_announces(count: int) -> None:
    with pytest.raises(ValueError, match=r"^parts: "):
        encode(ChannelSend("orders", HEAD), parts=[b""] * count)
    with pytest.raises(ValueError, match=r"^parts: "):
        encode(LivenessProbe(1), parts=[b""] * max(count, 1))


def test_metadata_goes_only_with_commands_that_allow_it() -> None:
    with pytest.raises(ValueError, match=r"^metadata: "):
        encode(Reply(1, 0, 0), metadata={"a": "b"})
    for spec, topology in BODIES:
        command = SHAPES[spec.id, topology][0]
        if spec.metadata:
            assert len(encode(command, metadata={"a": "b"}, parts=parts_of(command))) == 2 + len(parts_of(command))
        else:
            with pytest.raises(ValueError, match=r"^metadata: "):
                encode(command, metadata={"a": "b"}, parts=parts_of(command))


def test_a_metadata_frame_made_before_can_be_given_as_it_is() -> None:
    command = ChannelSend("orders", HEAD)
    frame = encode_metadata({"a": "b"})
    assert encode(command, metadata=frame, parts=[b""]) == encode(command, metadata={"a": "b"}, parts=[b""])


@pytest.mark.parametrize("command", [None, "hello", HEAD, object(), 5])
def test_what_is_no_command_is_refused(command: Any) -> None:
    with pytest.raises(ValueError, match="no command"):
        encode(command)


def test_a_flow_id_is_checked_for_its_length_only() -> None:
    odd = ChannelSend("orders", evolve(HEAD, flow=Flow("not a UUID, but as long as one is ..", FlowOrigin.TIMER)))
    assert decode(encode(odd, parts=[b""]), topology=Topology.ROUTE_MESH).command == odd


def test_enum_members_are_welcome_where_a_number_is_expected() -> None:
    assert encode(Reply(1, TerminalResult.TIMED_OUT, 0)) == encode(Reply(1, 101, 0))


def test_an_admission_over_the_limit_is_refused() -> None:
    names = tuple((f"{number:05}" + "x" * 250, 1) for number in range(5000))
    with pytest.raises(ValueError, match=r"^body\.admission: "):
        encode(Update(evolve(MESH, channels=names)))


def test_payload_frames_are_passed_on_uncopied() -> None:
    part = bytes(1000)
    frames = encode(ChannelSend("orders", HEAD), parts=[part])
    assert frames[1] is part
    assert decode(frames, topology=Topology.ROUTE_MESH).parts[0] is part


def test_a_join_request_has_a_payload_limit_of_its_own() -> None:
    command = next(c for c in SHAPES[28, Topology.ROUTE_MESH] if isinstance(c, ActorJoin) and c.payload is not None)
    one = evolve(command, payload=HEAD)
    assert decode(encode(one, parts=[bytes(JOIN_PAYLOAD_MAX)]), topology=Topology.ROUTE_MESH).command == one
    with pytest.raises(ValueError, match=r"^parts: "):
        encode(one, parts=[bytes(JOIN_PAYLOAD_MAX + 1)])


def test_max_bytes_counts_all_frames() -> None:
    frames = encode(ChannelSend("orders", HEAD), metadata={"a": "b"}, parts=[bytes(100)])
    size = sum(map(len, frames))
    kept = decode(frames, topology=Topology.CLIENT_SERVER, max_bytes=size)
    assert kept.parts == (bytes(100),)
    with pytest.raises(ProtocolError) as caught:
        decode(frames, topology=Topology.CLIENT_SERVER, max_bytes=size - 1)
    assert caught.value.field == "size"


@pytest.mark.contract("LV-178")
@pytest.mark.parametrize(
    ("error", "field", "problem"),
    [
        (ProtocolError("must be 1", field="body.corr"), "body.corr", "must be 1"),
        (ProtocolError("x"), "record", "x"),
        (ProtocolError("é" * 200, field="f" * 300), "f" * 255, "é" * 128),
        (ProtocolError("a" + "é" * 200, field="a\0b"), "ab", "a" + "é" * 127),
        (ProtocolError("\ud800", field="\ud800"), "?", "?"),
    ],
)
def test_the_close_that_answers_a_violation_names_its_field(error: ProtocolError, field: str, problem: str) -> None:
    close = close_for(error)
    assert close == Close(CloseReason.PROTOCOL_ERROR, field, problem)
    assert decode(encode(close), topology=Topology.ROUTE_MESH).command == close
    assert error.kind is ErrorKind.PROTOCOL_ERROR
