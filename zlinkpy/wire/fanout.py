"""Classic fanout: the event a publisher sends, and the beacon that shows it is alive (wire.md §2, LV-85..88).

An event is three frames, four with metadata: topic, head, [metadata,] payload. Command 0 exists only here. The beacon
is two exact frames; its topic is reserved by equality, so topics that merely start with it belong to the application.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

import msgpack
from attrs import frozen

from zlinkpy.errors import ProtocolError
from zlinkpy.wire.composite import Fault, struct_of
from zlinkpy.wire.emit import Emitter, Misfit
from zlinkpy.wire.explain import check_body, check_count, check_flags, check_prefix
from zlinkpy.wire.limits import FLAG_METADATA, PREFIX_SIZE, TEXT_MAX
from zlinkpy.wire.metadata import decode_metadata, encode_metadata
from zlinkpy.wire.parse import PARSE_ERRORS, emit_unpack
from zlinkpy.wire.recall import RECALLED
from zlinkpy.wire.schema import Rid, Str, Text, mistake, utf8_size, violation
from zlinkpy.wire.structures import PayloadHead
from zlinkpy.wire.table import prefix_of

BEACON_TOPIC: Final = b"\x01ZLF1"
BEACON_PAYLOAD: Final = b"ZF\x01\x01"


class Beacon:
    """Type of `BEACON`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "BEACON"


BEACON: Final = Beacon()
"""What `decode_fanout` returns for a beacon."""

BEACON_FRAMES: Final = (BEACON_TOPIC, BEACON_PAYLOAD)
"""The beacon as it is sent."""

_TOPIC = Str("topic", 1, TEXT_MAX)


@frozen
class _Head:
    """Body of the head frame."""

    channel_name: Text
    source_rid: Rid
    payload: PayloadHead

    def inconsistency(self) -> Fault:
        return None if self.payload.parts == 1 else ("payload.parts", "must be 1 in a fanout event")


@frozen
class FanoutEvent:
    """A published event.

    Attributes:
        topic: 1..255 bytes of UTF-8, NUL allowed, any but the reserved one.
        payload: its head, with `parts` 1.
        content: the payload frame.
        metadata: read-only mapping, None when there is no metadata frame.
    """

    topic: str
    channel_name: str
    source_rid: str
    payload: PayloadHead
    content: bytes
    metadata: Mapping[str, str] | None = None


HEAD_LAYOUT = struct_of(_Head)
"""Body of the head frame; its only topology is fanout, so it is no row of the command table."""
_COMMAND = 0
_PLAIN = prefix_of(_COMMAND, 0)
_FLAGGED = prefix_of(_COMMAND, FLAG_METADATA)
_HEAD_MAX = PREFIX_SIZE + (HEAD_LAYOUT.bounds.size or 0)


def _reader() -> Callable[[bytes], _Head]:
    e = Emitter()
    e.refuse_if(f"len(head) > {_HEAD_MAX}")
    node = emit_unpack(e, HEAD_LAYOUT.bounds, f"head[{PREFIX_SIZE}:]")
    e.line(f"return {HEAD_LAYOUT.read(e, node)}")
    return e.function("read_fanout", "head")


def _writer() -> Callable[[_Head], bytes]:
    e = Emitter()
    body = HEAD_LAYOUT.write(e, "command")
    e.line(f"return {e.bind(msgpack.packb, 'packb')}({body})")
    return e.function("write_fanout", "command")


_write_head = _writer()


# A publisher sends the same few topics and heads again and again: what was accepted once is recalled by its bytes (see
# `zlinkpy.wire.recall`).
_known: dict[tuple[bytes, bytes], tuple[str, _Head]] = {}
_read_head = _reader()


def check_topic(topic: str) -> bytes:
    """The topic frame of an application topic.

    Raises:
        ValueError: not 1..255 bytes of UTF-8, or equal to the reserved beacon topic (LV-86).
    """
    packed = _TOPIC.dump(topic, "topic").encode()
    if packed == BEACON_TOPIC:
        mistake("topic", f"{topic!r} is reserved for the framework")
    return packed


def encode_fanout(event: FanoutEvent) -> list[bytes]:
    """The frames of an event, ready to publish. Raises ValueError naming the element that is not acceptable."""
    topic = check_topic(event.topic)
    command = _Head(event.channel_name, event.source_rid, event.payload)
    try:
        body = _write_head(command)
    except (Misfit, ValueError, TypeError, AttributeError, OverflowError):
        body = msgpack.packb(HEAD_LAYOUT.dump(command, "event"))
    if event.metadata is None:
        return [topic, _PLAIN + body, event.content]
    return [topic, _FLAGGED + body, encode_metadata(event.metadata), event.content]


def decode_fanout(frames: Sequence[bytes]) -> FanoutEvent | Beacon:
    """An event or `BEACON`, checked completely.

    Raises:
        ProtocolError: `field` names the first offending place; ``fanout.beacon`` for the reserved topic with any other
            payload or number of frames.
    """
    if len(frames) == 3:
        found = _known.get((frames[0], frames[1]))
        if found is not None:
            topic, head = found
            return FanoutEvent(topic, head.channel_name, head.source_rid, head.payload, frames[2], None)
    if frames and frames[0] == BEACON_TOPIC:
        if len(frames) != 2 or frames[1] != BEACON_PAYLOAD:
            violation("fanout.beacon", "the reserved topic carries exactly the beacon payload")
        return BEACON
    if not frames:
        violation("frames", "there is none")
    topic = _decoded_topic(frames[0])
    prefix = frames[1][:PREFIX_SIZE] if len(frames) > 1 else b""
    first = 2 if prefix == _PLAIN else 3
    if prefix in (_PLAIN, _FLAGGED) and len(frames) == first + 1:
        try:
            head = _read_head(frames[1])
        except (Misfit, ProtocolError, *PARSE_ERRORS):
            return _explain(frames)
        metadata = None if first == 2 else decode_metadata(frames[2])
        if metadata is None:
            if len(_known) >= RECALLED:
                _known.clear()
            _known[frames[0], frames[1]] = topic, head
        return FanoutEvent(topic, head.channel_name, head.source_rid, head.payload, frames[first], metadata)
    return _explain(frames)


def _decoded_topic(frame: bytes) -> str:
    try:
        topic = frame.decode()
    except UnicodeDecodeError:
        violation("fanout.topic", "is not UTF-8")
    if not 1 <= utf8_size(topic) <= TEXT_MAX:
        violation("fanout.topic", f"must have 1..{TEXT_MAX} bytes, has {len(frame)}")
    return topic


def _explain(frames: Sequence[bytes]) -> NoReturn:
    head = check_prefix(frames[1:])
    if head[3] != _COMMAND:
        violation("prefix.command", f"{head[3]} is no fanout event")
    check_flags(head, FLAG_METADATA)
    if len(head) > _HEAD_MAX:
        violation("body", f"the head frame has {len(head)} bytes, at most {_HEAD_MAX} fit")
    check_body(head, HEAD_LAYOUT)
    check_count(frames, 4 if head[4] & FLAG_METADATA else 3)
    violation("body", "is not acceptable")


__all__ = [
    "BEACON",
    "BEACON_FRAMES",
    "BEACON_PAYLOAD",
    "BEACON_TOPIC",
    "Beacon",
    "FanoutEvent",
    "check_topic",
    "decode_fanout",
    "encode_fanout",
]
