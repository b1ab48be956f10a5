"""Fanout events and the beacon (wire.md §2); malformed events are in the vectors."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.wire.strategies import metadata_entries, text
from zlinkpy.errors import ProtocolError
from zlinkpy.wire import (
    BEACON,
    BEACON_PAYLOAD,
    BEACON_TOPIC,
    FanoutEvent,
    PayloadHead,
    check_topic,
    decode_fanout,
    encode_fanout,
    fanout,
)
from zlinkpy.wire.recall import RECALLED

EVENT = FanoutEvent("order/created", "events", "node-a", PayloadHead("order_created"), b"content")


@given(
    topic=text(1, 255, nul=True).filter(lambda topic: topic.encode() != BEACON_TOPIC),
    channel=text(1, 255, nul=False),
    rid=text(1, 200, nul=True),
    packet=text(1, 255, nul=False),
    content=st.binary(max_size=100),
    metadata=st.one_of(st.none(), metadata_entries()),
)
def test_an_event_comes_back_as_it_was(
    topic: str, channel: str, rid: str, packet: str, content: bytes, metadata: dict[str, str] | None
) -> None:
    event = FanoutEvent(topic, channel, rid, PayloadHead(packet), content, metadata)
    frames = encode_fanout(event)
    assert len(frames) == (3 if metadata is None else 4)
    assert frames[0] == topic.encode()
    assert decode_fanout(frames) == event


@pytest.mark.contract("LV-85")
def test_the_beacon_is_exactly_two_frames() -> None:
    assert bytes.fromhex("01 5A 4C 46 31") == BEACON_TOPIC
    assert bytes.fromhex("5A 46 01 01") == BEACON_PAYLOAD
    assert decode_fanout([BEACON_TOPIC, BEACON_PAYLOAD]) is BEACON
    assert repr(BEACON) == "BEACON"
    for frames in ([BEACON_TOPIC], [BEACON_TOPIC, BEACON_PAYLOAD, b""], [BEACON_TOPIC, BEACON_PAYLOAD[:3]]):
        with pytest.raises(ProtocolError) as caught:
            decode_fanout(frames)
        assert caught.value.field == "fanout.beacon"


def test_the_reserved_topic_is_no_topic_of_an_application() -> None:
    with pytest.raises(ValueError, match="reserved"):
        encode_fanout(evolve(EVENT, topic=BEACON_TOPIC.decode()))
    with pytest.raises(ValueError, match="reserved"):
        check_topic("\x01ZLF1")
    for topic in ("\x01ZLF", "\x01ZLF1\0", "\x01ZLF2"):
        assert decode_fanout(encode_fanout(evolve(EVENT, topic=topic))) == evolve(EVENT, topic=topic)


@pytest.mark.parametrize(
    ("event", "place"),
    [
        (evolve(EVENT, topic=""), "topic"),
        (evolve(EVENT, topic="t" * 256), "topic"),
        (evolve(EVENT, topic="é" * 128), "topic"),
        (evolve(EVENT, topic=b"topic"), "topic"),
        (evolve(EVENT, topic="\ud800"), "topic"),
        (evolve(EVENT, channel_name="a\0b"), "event.channelName"),
        (evolve(EVENT, source_rid="r" * 201), "event.sourceRid"),
        (evolve(EVENT, payload=PayloadHead("p", parts=2)), "event.payload.parts"),
        (evolve(EVENT, payload=None), "event.payload"),
        (evolve(EVENT, metadata={"": "v"}), "metadata"),
    ],
)
def test_a_publisher_s_mistake_is_named(event: FanoutEvent, place: str) -> None:
    with pytest.raises(ValueError, match=rf"^{place}"):
        encode_fanout(event)


def test_a_head_that_was_read_once_is_recalled_for_its_topic_alone() -> None:
    """Recalling must not accept anything new: another topic, a frame more or less, or a changed byte is read anew."""
    frames = encode_fanout(FanoutEvent("order", "news", "u", PayloadHead("Placed", "application/msgpack"), b"1"))
    assert decode_fanout(frames) == decode_fanout(frames)
    other = decode_fanout([b"bill", frames[1], b"2"])
    assert (other.topic, other.content) == ("bill", b"2")
    for wrong in ([*frames, b""], frames[:2], [b"\xff", *frames[1:]], [frames[0], frames[1] + b"\0", frames[2]]):
        with pytest.raises(ProtocolError):
            decode_fanout(wrong)
    for number in range(3 * RECALLED):
        decode_fanout([f"topic {number}".encode(), *frames[1:]])
    assert len(fanout._known) <= RECALLED
