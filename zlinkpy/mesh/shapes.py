"""What a call needs to know about a message class, looked up once per class: packet name, codec, reply (SA-121,
SA-274)."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any

from attrs import frozen

from zlinkpy.errors import ProtocolError
from zlinkpy.messages import Codecs, Request, packet_name_of, reply_type_of
from zlinkpy.wire import PayloadHead

Decoder = Callable[[str, bytes], Any]


@frozen
class RawMessage:
    """A message without a class: its packet name and the encoded payload. For tools and gateways; the reply is one,
    too."""

    packet_name: str
    payload: bytes
    content_type: str = "application/msgpack"


class RawShape:
    """The shape of one RawMessage."""

    __slots__ = ("head", "packet_name")

    def __init__(self, message: RawMessage) -> None:
        self.packet_name = message.packet_name
        self.head = PayloadHead(message.packet_name, message.content_type)

    def encode(self, message: Any) -> bytes:
        """The payload as it is."""
        payload: bytes = message.payload
        return payload

    def decode_reply(self, head: PayloadHead, payload: bytes) -> RawMessage:
        """The reply as it came."""
        return RawMessage(head.packet_name, payload, head.content_type)

    def no_reply(self) -> None:
        """A reply without payload."""


class MessageShape:
    """One message class as its senders see it."""

    __slots__ = ("_decode", "encode", "head", "packet_name", "reply_type")

    def __init__(self, cls: type, codecs: Codecs) -> None:
        self.packet_name = packet_name_of(cls)
        # One head object for all messages of the class: it is frozen, and its encoding does not depend on the value.
        self.head = PayloadHead(self.packet_name, codecs.default.content_type)
        codecs.default.prepare(cls)
        self.encode: Callable[[Any], bytes] = codecs.default.encode
        self.reply_type: type | None = reply_type_of(cls) if issubclass(cls, Request) else None
        self._decode: Decoder = (
            payload_decoder(codecs, self.reply_type)
            if self.reply_type is not None and self.reply_type is not NoneType
            else _no_reply_expected
        )

    def decode_reply(self, head: PayloadHead, payload: bytes) -> Any:
        """The reply's value. Raises ProtocolError when it is not what the request class declares."""
        return self._decode(head.content_type, payload)

    def no_reply(self) -> None:
        """A reply without payload: the answer to a `Request[None]`, and a protocol error for any other."""
        if self.reply_type is not NoneType:
            raise ProtocolError(f"{self.packet_name}: the reply carries no payload", field="reply.payload")


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

    def of(self, message: object) -> MessageShape | RawShape:
        """The shape of `message`'s class. Raises TypeError when it is not a message."""
        cls = message.__class__
        shape = self._known.get(cls)
        if shape is None:
            if isinstance(message, RawMessage):
                return RawShape(message)
            shape = self._known[cls] = MessageShape(cls, self._codecs)
        return shape
