"""What a call needs to know about a message class, looked up once per class: packet name, codec, reply (SA-121,
SA-274)."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any

from attrs import frozen

from zlinkpy.errors import ProtocolError
from zlinkpy.messages.codec import Codecs
from zlinkpy.messages.declare import Request, packet_name_of, reply_type_of
from zlinkpy.wire import (
    ChannelRequest,
    ChannelSend,
    NodeRequest,
    NodeSend,
    PayloadHead,
    encode,
    reply_template,
    request_template,
)

Decoder = Callable[[str, bytes], Any]


@frozen
class RawMessage:
    """A message without a class: its packet name and the encoded payload. For tools and gateways; the reply is one,
    too."""

    packet_name: str
    payload: bytes
    content_type: str = "application/msgpack"


class Shape:
    """What senders know about a message: its name on the wire, and frame 0 of every record it travels in.

    Frame 0 depends on the value in nothing but the leading numbers of a request or reply, so it is made once per
    channel (None: node direct) and filled in afterwards. Only a record with metadata goes through the whole encoder
    each time.
    """

    __slots__ = ("_replies", "_requests", "_sends", "head", "packet_name")

    def __init__(self, packet_name: str, content_type: str) -> None:
        self.packet_name = packet_name
        self.head = PayloadHead(packet_name, content_type)
        self._requests: dict[str | None, Callable[[int, int], bytes]] = {}
        self._sends: dict[str | None, bytes] = {}
        self._replies = reply_template(self.head)

    encode: Callable[[Any], bytes]
    """message -> payload."""

    def decode_reply(self, head: PayloadHead, payload: bytes) -> Any:
        """The reply's value. Raises ProtocolError when it is not what the request declares."""
        raise NotImplementedError

    def no_reply(self) -> None:
        """A reply without payload came. Raises ProtocolError when the request declares one."""

    def request_command(self, channel: str | None, corr: int, ms: int) -> ChannelRequest | NodeRequest:
        """The request as a command."""
        if channel is None:
            return NodeRequest(corr, ms, self.head)
        return ChannelRequest(corr, ms, channel, self.head)

    def send_command(self, channel: str | None) -> ChannelSend | NodeSend:
        """The one-way message as a command."""
        return NodeSend(self.head) if channel is None else ChannelSend(channel, self.head)

    def request_frames(
        self, channel: str | None, corr: int, ms: int, payload: bytes, metadata: bytes | None
    ) -> list[bytes]:
        """The frames of a request; `metadata` is an encoded metadata frame or None."""
        if metadata is not None:
            return encode(self.request_command(channel, corr, ms), metadata=metadata, parts=[payload])
        fill = self._requests.get(channel)
        if fill is None:
            fill = self._requests[channel] = request_template(self.request_command(channel, 1, 1))
        return [fill(corr, ms), payload]

    def send_frames(self, channel: str | None, payload: bytes, metadata: bytes | None) -> list[bytes]:
        """The frames of a one-way message."""
        if metadata is not None:
            return encode(self.send_command(channel), metadata=metadata, parts=[payload])
        head = self._sends.get(channel)
        if head is None:
            head = self._sends[channel] = encode(self.send_command(channel), parts=[b""])[0]
        return [head, payload]

    def reply_frames(self, corr: int, payload: bytes) -> list[bytes]:
        """The frames of an ok reply that carries this message."""
        return [self._replies(corr), payload]


class RawShape(Shape):
    """The shape of one RawMessage."""

    __slots__ = ("encode",)

    def __init__(self, message: RawMessage) -> None:
        super().__init__(message.packet_name, message.content_type)
        self.encode = _raw_payload

    def decode_reply(self, head: PayloadHead, payload: bytes) -> RawMessage:
        """The reply as it came."""
        return RawMessage(head.packet_name, payload, head.content_type)


class MessageShape(Shape):
    """The shape of one message class."""

    __slots__ = ("_decode", "encode", "reply_type")

    def __init__(self, cls: type, codecs: Codecs) -> None:
        super().__init__(packet_name_of(cls), codecs.default.content_type)
        codecs.default.prepare(cls)
        self.encode = codecs.default.encode
        self.reply_type: type | None = reply_type_of(cls) if issubclass(cls, Request) else None
        self._decode: Decoder = (
            payload_decoder(codecs, self.reply_type)
            if self.reply_type is not None and self.reply_type is not NoneType
            else _no_reply_expected
        )

    def decode_reply(self, head: PayloadHead, payload: bytes) -> Any:
        """The reply's value."""
        return self._decode(head.content_type, payload)

    def no_reply(self) -> None:
        """The answer to a `Request[None]`, and a protocol error for any other."""
        if self.reply_type is not NoneType:
            raise ProtocolError(f"{self.packet_name}: the reply carries no payload", field="reply.payload")


def _raw_payload(message: RawMessage) -> bytes:
    return message.payload


def payload_decoder(codecs: Codecs, cls: type) -> Decoder:
    """(content type, payload) -> a `cls`. Raises ProtocolError for an unknown content type or bytes that are no
    `cls`."""
    default = codecs.default.content_type
    decode: Callable[[bytes], Any] = codecs.default.decoder_for(cls)

    def decoder(content_type: str, payload: bytes) -> Any:
        if content_type == default:
            return decode(payload)
        return codecs.find(content_type).decoder_for(cls)(payload)

    return decoder


def _no_reply_expected(content_type: str, payload: bytes) -> Any:
    raise ProtocolError("the reply carries a payload where none was declared", field="reply.payload")


class Shapes:
    """The shapes of one host, made at first use."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs
        self._known: dict[type, MessageShape] = {}

    def of(self, message: object) -> Shape:
        """The shape of `message`'s class. Raises TypeError when it is not a message."""
        cls = message.__class__
        shape = self._known.get(cls)
        if shape is None:
            if isinstance(message, RawMessage):
                return RawShape(message)
            shape = self._known[cls] = MessageShape(cls, self._codecs)
        return shape
