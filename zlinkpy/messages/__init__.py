"""Typed messages: declaring them, coding them, and what a handler says about the one it takes."""

from zlinkpy.messages.arguments import MAX_MILLISECONDS, to_milliseconds, validate_metadata
from zlinkpy.messages.codec import CONTENT_TYPE, Codec, Codecs, DecodeError, PayloadCodec, canonical_content_type
from zlinkpy.messages.context import NO_METADATA, MessageContext
from zlinkpy.messages.declare import Request, is_message, message, packet_name_of, reply_type_of
from zlinkpy.messages.handlers import HandlerKind, HandlerSpec, check_handler, label_of
from zlinkpy.messages.shapes import Decoder, RawMessage, Shape, Shapes, payload_decoder

__all__ = [
    "CONTENT_TYPE",
    "MAX_MILLISECONDS",
    "NO_METADATA",
    "Codec",
    "Codecs",
    "DecodeError",
    "Decoder",
    "HandlerKind",
    "HandlerSpec",
    "MessageContext",
    "PayloadCodec",
    "RawMessage",
    "Request",
    "Shape",
    "Shapes",
    "canonical_content_type",
    "check_handler",
    "is_message",
    "label_of",
    "message",
    "packet_name_of",
    "payload_decoder",
    "reply_type_of",
    "to_milliseconds",
    "validate_metadata",
]
