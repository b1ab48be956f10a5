"""Messages to bytes and back, by content type.

`Codec` is the msgpack form: a map of field names, read strictly (`zlinkpy.messages.strict`). Unknown fields are ignored
and a missing field without a default is an error, which is what lets two versions of a host talk during an update
(SA-274). One class is prepared once; after that a message costs one generated function and one msgpack call each way.

What is checked where: the receiver checks every value against the annotation; the sender only that it can be coded at
all. A type checker does the sender's part for free, and checking twice would double the cost of every call.

`Codecs` finds a codec by the content type a record carries. An unknown one is an error, never a guess (SA-277).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol, TypeVar

import attrs
import msgpack
from cattrs import AttributeValidationNote, BaseValidationError, IterableValidationNote

from zlinkpy.errors import ConfigurationError, ProtocolError
from zlinkpy.messages.declare import packet_name_of
from zlinkpy.messages.field_types import FieldTypes
from zlinkpy.messages.strict import register_enum, strict_converter

T = TypeVar("T")

SCAN_BYTES = 1024
"""Payloads longer than this are scanned before they are unpacked. The unpacker allocates an array from its claimed
length, which it limits to the payload's, but claims nest 500 deep: a megabyte could make it allocate gigabytes before
it finds out that the items are not there. The scan allocates nothing; below this length the worst case is 4 MB for
microseconds, and not worth a microsecond on every small message (architecture rule 8)."""

CONTENT_TYPE = "application/msgpack"
"""The content type of a payload unless the application chose another codec (wire.md §5)."""


class DecodeError(ProtocolError):
    """A payload that is not what its annotation says. `field` is the path, as in ``JoinGame.seats[2].name``."""


class PayloadCodec(Protocol):
    """What a content type has to offer. `Codec` is the one every host has."""

    @property
    def content_type(self) -> str: ...

    def prepare(self, cls: type) -> None: ...

    def encode(self, obj: Any) -> bytes: ...

    def decoder_for(self, cls: type[T]) -> Callable[[bytes], T]: ...


class Codec:
    """The msgpack codec of messages. Stateless but for what it learned about classes; share one per host."""

    content_type = CONTENT_TYPE

    def __init__(self) -> None:
        self._fast = strict_converter(detailed=False)
        self._detailed = strict_converter(detailed=True)
        self._types: dict[type, FieldTypes] = {}
        self._encoders: dict[type, Callable[[Any], Any]] = {}
        self._decoders: dict[type, Callable[[bytes], Any]] = {}

    def prepare(self, cls: type) -> None:
        """Check the fields of a message class and generate its code; called at host start, so that a call cannot fail.

        Raises:
            TypeError: Not a message.
            ConfigurationError: A field annotation that is not supported.
        """
        if cls in self._types:
            return
        name = packet_name_of(cls)
        found = FieldTypes()
        found.walk(cls, name)
        for enum in found.enums:
            register_enum(self._fast, enum)
            register_enum(self._detailed, enum)
        self._encoders[cls] = self._fast.get_unstructure_hook(cls)
        self._decoders[cls] = self._make_decoder(cls, name, found)
        self._types[cls] = found

    def encode(self, obj: Any) -> bytes:
        """The payload bytes of a message; the value is read once, here, and not looked at again (SA-121).

        Raises:
            TypeError: Not a message, or a field value that has no msgpack form; the text names the field.
            ValueError: A field value out of range (integers beyond 64 bits, lone surrogates), or nested too deeply.
        """
        encoder = self._encoders.get(obj.__class__)
        if encoder is None:
            self.prepare(obj.__class__)
            encoder = self._encoders[obj.__class__]
        try:
            return msgpack.packb(encoder(obj))  # type: ignore[no-any-return]
        except Exception as failure:  # noqa: BLE001 - whatever a wrong value provokes in generated code
            self._explain_encode(obj, failure)

    def decoder_for(self, cls: type[T]) -> Callable[[bytes], T]:
        """The function that reads a payload of `cls`; the same one every time.

        The function raises `DecodeError` naming the field for anything that is not a `cls`, and nothing else.

        Raises:
            TypeError: Not a message.
            ConfigurationError: A field annotation that is not supported.
        """
        decoder = self._decoders.get(cls)
        if decoder is None:
            self.prepare(cls)
            decoder = self._decoders[cls]
        return decoder

    def _make_decoder(self, cls: type, name: str, found: FieldTypes) -> Callable[[bytes], Any]:
        structure = self._fast.get_structure_hook(cls)
        strict_keys = not found.int_keys

        def unpack(data: bytes) -> Any:
            if len(data) > SCAN_BYTES:
                scan(data)
            return msgpack.unpackb(data, strict_map_key=strict_keys, max_ext_len=0)

        def decode(data: bytes) -> Any:
            try:
                return structure(unpack(data), cls)
            except Exception as failure:
                raise self._explain_decode(cls, name, unpack, data, failure) from failure

        return decode

    def _explain_decode(
        self, cls: type, name: str, unpack: Callable[[bytes], Any], data: bytes, failure: Exception
    ) -> DecodeError:
        try:
            value = unpack(data)
        except Exception as malformed:  # noqa: BLE001 - msgpack's errors share no base class
            return DecodeError(f"the payload is not one msgpack value ({_wording(malformed)})", field=name)
        try:
            self._detailed.structure(value, cls)
        except BaseValidationError as group:
            path, cause = _first_leaf(group)
            return DecodeError(_wording(cause), field=name + path)
        except Exception as other:  # noqa: BLE001 - a class's own validators may raise anything
            return DecodeError(_wording(other), field=name)
        return DecodeError(_wording(failure), field=name)

    def _explain_encode(self, obj: Any, failure: Exception) -> NoReturn:
        path, cause = self._culprit(obj, packet_name_of(obj), failure)
        kind = ValueError if isinstance(cause, ValueError | OverflowError | RecursionError) else TypeError
        raise kind(f"{path} cannot be encoded: {_wording(cause)}") from failure

    def _culprit(self, value: Any, path: str, failure: Exception, depth: int = 0) -> tuple[str, Exception]:
        """The innermost part of `value` that fails on its own, and how."""
        if depth < 32:
            for name, part, hint in _parts(value):
                try:
                    msgpack.packb(self._fast.unstructure(part, unstructure_as=hint))
                except Exception as inner:  # noqa: BLE001 - as in encode
                    return self._culprit(part, path + name, inner, depth + 1)
        return path, failure


def scan(data: bytes) -> None:
    """Raise what unpacking would raise for incomplete data, without allocating for what is claimed."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    unpacker.skip()


def _parts(value: Any) -> list[tuple[str, Any, Any]]:
    if attrs.has(value.__class__):
        fields = attrs.fields(attrs.resolve_types(value.__class__))
        return [(f".{field.name}", getattr(value, field.name), field.type) for field in fields if field.init]
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", part, None) for key, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{index}]", part, None) for index, part in enumerate(value)]
    return []


def _first_leaf(group: BaseValidationError) -> tuple[str, Exception]:
    """The path to the first failure in a tree of cattrs errors, and that failure."""
    path = ""
    cause: Exception = group
    while isinstance(cause, BaseValidationError):
        cause = cause.exceptions[0]
        for note in getattr(cause, "__notes__", ()):
            if isinstance(note, AttributeValidationNote):
                path += f".{note.name}"
            elif isinstance(note, IterableValidationNote):
                path += f"[{note.index!r}]"
    if isinstance(cause, KeyError) and path.endswith(f".{cause.args[0]}"):
        # cattrs looks each field up in the map: the key it did not find is the field that is missing.
        return path, ValueError("missing, and it has no default")
    return path, cause


def _wording(failure: Exception) -> str:
    return str(failure) or type(failure).__name__


def canonical_content_type(text: str) -> str:
    """Check that `text` is a content type in canonical form and return it: lower case ``type/subtype``, no parameters.

    Raises:
        ValueError: Anything else.
    """
    kind, slash, subtype = text.partition("/")
    token = set("abcdefghijklmnopqrstuvwxyz0123456789!#$&-^_.+")
    if not (kind and slash and subtype and set(kind) <= token and set(subtype) <= token):
        raise ValueError(f"a content type is lower-case type/subtype without parameters, not {text!r}")
    return text


class Codecs:
    """The codecs of one host by content type; compared verbatim (SA-277)."""

    def __init__(self, *codecs: PayloadCodec) -> None:
        """With no arguments: msgpack alone.

        Raises:
            ConfigurationError: Two codecs of one content type, or one that is not in canonical form.
        """
        self._by_type: dict[str, PayloadCodec] = {}
        for codec in codecs or (Codec(),):
            try:
                content_type = canonical_content_type(codec.content_type)
            except ValueError as error:
                raise ConfigurationError(f"{type(codec).__name__}: {error}") from None
            if content_type in self._by_type:
                raise ConfigurationError(f"two codecs for {content_type}: register one of them")
            self._by_type[content_type] = codec
        self.default: PayloadCodec = next(iter(self._by_type.values()))

    def find(self, content_type: str) -> PayloadCodec:
        """The codec for the content type of a payload head.

        Raises:
            ProtocolError: Nobody registered it. The bytes are not tried as something else.
        """
        codec = self._by_type.get(content_type)
        if codec is None:
            raise self._unknown(content_type)
        return codec

    def encoder_for(self, cls: type) -> Callable[[Any], bytes]:
        """The default codec's encoder, with `cls` prepared. Raises as `Codec.prepare`."""
        self.default.prepare(cls)
        return self.default.encode

    def decoder_for(self, cls: type[T]) -> Callable[[str, bytes], T]:
        """A function of content type and payload that gives a `cls`, or raises `ProtocolError`.

        Every registered codec is prepared for `cls` here. Raises as `Codec.prepare`.
        """
        decoders = {content_type: codec.decoder_for(cls) for content_type, codec in self._by_type.items()}

        def decode(content_type: str, data: bytes) -> T:
            decoder = decoders.get(content_type)
            if decoder is None:
                raise self._unknown(content_type)
            return decoder(data)

        return decode

    def _unknown(self, content_type: str) -> ProtocolError:
        known = ", ".join(sorted(self._by_type))
        return ProtocolError(f"no codec for {content_type!r}, this host has {known}", field="payload.content_type")
