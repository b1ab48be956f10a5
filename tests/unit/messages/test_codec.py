"""The msgpack codec: what a payload looks like, what is read strictly, what errors say."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import attrs
import msgpack
import pytest

from tests.unit.messages.models import (
    Board,
    Colour,
    Everything,
    Mode,
    PlaceMark,
    Seat,
    Tree,
    everything,
)
from zlinkpy.errors import ConfigurationError, ErrorKind, ProtocolError
from zlinkpy.messages import CONTENT_TYPE, Codec, Codecs, DecodeError, canonical_content_type, message

CODEC = Codec()


def decode(cls: type, value: Any) -> Any:
    return CODEC.decoder_for(cls)(msgpack.packb(value))


def wire_form(obj: Any) -> Any:
    return msgpack.unpackb(CODEC.encode(obj), strict_map_key=False)


@pytest.mark.contract("SA-274")
def test_a_message_round_trips_by_field_name() -> None:
    assert wire_form(PlaceMark(4, by="Ann")) == {"cell": 4, "by": "Ann"}
    for value in (everything(), everything(either=None, maybe=Seat("m"), maybe_mode=Mode.FAST), Tree("r", [Tree("c")])):
        assert CODEC.decoder_for(type(value))(CODEC.encode(value)) == value


def test_the_wire_form_of_each_field_type() -> None:
    form = wire_form(everything())
    assert sorted(form.pop("tags")) == ["t", "u"]
    assert sorted(form.pop("codes")) == [1, 2]
    assert form == {
        "flag": True,
        "number": -(2**63),
        "ratio": 1.5,
        "text": "öß€😀",
        "data": b"\x00\xff",
        "seat": {"name": "a"},
        "seats": [{"name": "b"}, {"name": "c"}],
        "by_name": {"d": {"name": "d"}},
        "by_number": {-1: [1, 2], 2**40: []},
        "same": [1, 2, 3],
        "mixed": [1, "x"],
        "colour": 2,
        "mode": "safe",
        "word": "off",
        "when": "2026-11-30T12:30:15.000007+09:00",
        "ident": "00000000-0000-0000-0000-000000000005",
        "either": "x",
        "cell": 7,
        "point": {"x": 1, "y": 2},
        "anything": {"k": [1, None, b"x"]},
        "maybe": None,
        "maybe_mode": None,
        "nothing": None,
    }


def test_decoded_types_are_exactly_the_declared_ones() -> None:
    value = CODEC.decoder_for(Everything)(CODEC.encode(everything()))
    for field in attrs.fields(Everything):
        if field.name != "anything":
            assert type(getattr(value, field.name)) is type(getattr(everything(), field.name)), field.name
    assert value.colour is Colour.BLUE


@pytest.mark.contract("SA-274")
def test_unknown_fields_are_ignored_and_defaults_fill_what_is_missing() -> None:
    assert decode(PlaceMark, {"cell": 1, "added_in_v2": [1, 2]}) == PlaceMark(1, by="nobody")


@pytest.mark.contract("SA-274")
def test_a_missing_required_field_is_a_protocol_error_that_names_it() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(PlaceMark, {"by": "x"})
    assert caught.value.kind is ErrorKind.PROTOCOL_ERROR
    assert caught.value.field == "place-mark.cell"
    assert str(caught.value) == "place-mark.cell: missing, and it has no default"


WRONG: list[tuple[str, Any]] = [
    *[("flag", bad) for bad in (1, 0, "true", None, 1.0, [], {}, b"")],
    *[("number", bad) for bad in (True, "7", 7.0, None, [7], b"7", {})],
    *[("ratio", bad) for bad in (True, "1.5", None, [], b"")],
    *[("text", bad) for bad in (1, b"x", None, ["x"], True)],
    *[("data", bad) for bad in ("x", 1, None, [1])],
    *[("seat", bad) for bad in (None, [], ["a"], "a", 1)],
    *[("seats", bad) for bad in ("abc", b"", {"a": 1}, None, 3)],
    *[("by_name", bad) for bad in ([], [["a", 1]], "a", None)],
    *[("by_number", bad) for bad in ([], None, 1)],
    *[("same", bad) for bad in ("12", {1: 1}, None)],
    *[("mixed", bad) for bad in ([], [1], [1, "x", 2], "1x", {1: "x"}, None)],
    *[("tags", bad) for bad in ("ab", {"a": 1}, None)],
    *[("codes", bad) for bad in (b"ab", {1: 1}, None)],
    *[("colour", bad) for bad in (3, True, "RED", "1", 1.0, None, [1], {})],
    *[("mode", bad) for bad in ("FAST", "turbo", 1, None, ["fast"], {})],
    *[("word", bad) for bad in ("ON", 1, False, 3.0, None, ["on"], {"on": 1})],
    *[("when", bad) for bad in (1, "yesterday", None, 1.5, b"2026-11-30")],
    *[("ident", bad) for bad in ("x", 5, None, b"0" * 16)],
    *[("either", bad) for bad in (1.5, True, b"x", [1])],
    *[("cell", bad) for bad in ("1", True, None)],
    *[("point", bad) for bad in ([1, 2], None)],
    *[("maybe", bad) for bad in ("x", [], 1)],
    *[("maybe_mode", bad) for bad in ("x", 1)],
    *[("nothing", bad) for bad in (0, "", False)],
]


@pytest.mark.parametrize(("name", "bad"), WRONG)
def test_a_value_of_another_form_is_refused_and_the_field_named(name: str, bad: Any) -> None:
    form = wire_form(everything()) | {name: bad}
    with pytest.raises(DecodeError) as caught:
        decode(Everything, form)
    assert caught.value.field == f"Everything.{name}"
    assert str(caught.value).startswith(f"Everything.{name}: ")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seat": {"name": 1}}, "Everything.seat.name"),
        ({"seat": {}}, "Everything.seat.name"),
        ({"seats": [{"name": "a"}, {"name": "b"}, {"name": 3}]}, "Everything.seats[2].name"),
        ({"by_name": {"x": {"name": None}}}, "Everything.by_name['x'].name"),
        ({"by_number": {5: [1, "2"]}}, "Everything.by_number[5][1]"),
        ({"by_number": {"5": []}}, "Everything.by_number['5']"),
        ({"same": [1, 2, "3"]}, "Everything.same[2]"),
        ({"mixed": [1, 2]}, "Everything.mixed[1]"),
        ({"tags": ["a", 1]}, "Everything.tags[1]"),
        ({"codes": [1, True]}, "Everything.codes[1]"),
        ({"maybe": {"name": 0}}, "Everything.maybe.name"),
        ({"point": {"x": 1, "y": "2"}}, "Everything.point.y"),
    ],
)
def test_the_path_leads_to_the_innermost_culprit(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(Everything, wire_form(everything()) | changes)
    assert caught.value.field == field


def test_the_path_through_a_class_that_refers_to_itself() -> None:
    with pytest.raises(DecodeError) as caught:
        decode(Tree, {"children": [{}, {"children": [{"label": 1}]}]})
    assert caught.value.field == "Tree.children[1].children[0].label"


def test_an_int_is_accepted_where_a_float_is_declared() -> None:
    value = decode(Everything, wire_form(everything()) | {"ratio": 3})
    assert type(value.ratio) is float
    assert value.ratio == 3.0


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x81\xa4cell",
        b"\x82\xa4cell\x01",
        msgpack.packb({"cell": 1}) + b"\x00",
        b"\x81\xa4cell\xa2\xff\xfe",
        b"\x81\xa4cell\xd4\x01\x00",
        b"\x81\xa4cell\xc7\x02\x05ab",
        b"\x81\x01\x02",
        b"\x81\x91\x01\x02",
        b"\xdd\x7f\xff\xff\xff",
        b"\xdf\x7f\xff\xff\xff",
        b"\x81\xa4cell\xdb\x7f\xff\xff\xff",
        b"\x91" * 5000 + b"\x01",
    ],
)
def test_bytes_that_are_no_payload_are_a_decode_error_and_nothing_else(payload: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        CODEC.decoder_for(PlaceMark)(payload)
    assert caught.value.field.startswith("place-mark")


@pytest.mark.parametrize("value", [None, 1, "x", [], [1, "x"], b"", True])
def test_a_payload_that_is_no_map_is_refused(value: Any) -> None:
    with pytest.raises(DecodeError, match="expected a map with the fields of PlaceMark"):
        decode(PlaceMark, value)


def test_nesting_beyond_what_can_be_read_is_a_decode_error() -> None:
    form: dict[str, Any] = {}
    for _ in range(400):
        form = {"children": [form]}
    with pytest.raises(DecodeError):
        CODEC.decoder_for(Tree)(msgpack.packb(form))


def test_claimed_lengths_allocate_no_more_than_a_bound() -> None:
    claims = b"\x81\xa8children" + b"\xdd\x00\x00\x05\xdc" * 300 + b"\xdd\x7f\xff\xff\xff"
    reader = CODEC.decoder_for(Tree)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            reader(claims)
        assert tracemalloc.get_traced_memory()[1] < 64 * len(claims) + 100_000
    finally:
        tracemalloc.stop()


def test_a_classs_own_check_is_a_decode_error_too() -> None:
    with pytest.raises(DecodeError, match="must not be negative") as caught:
        decode(Bounded, {"size": -1})
    assert caught.value.field == "Bounded"


def not_negative(_: Any, __: Any, value: int) -> None:
    if value < 0:
        raise LookupError("must not be negative")


@message
class Bounded:
    size: int = attrs.field(validator=not_negative)


def test_long_values_do_not_fill_the_error_text() -> None:
    with pytest.raises(DecodeError) as caught:
        decode(PlaceMark, {"cell": "x" * 100_000})
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        (lambda: PlaceMark(object()), TypeError, r"^place-mark\.cell cannot be encoded"),  # type: ignore[arg-type]
        (lambda: PlaceMark(2**64), ValueError, r"^place-mark\.cell cannot be encoded"),
        (lambda: Board("\ud800"), ValueError, r"^Board\.cells cannot be encoded"),
        (lambda: everything(seats=[Seat("a"), Seat(1j)]), TypeError, r"^Everything\.seats\[1\]\.name cannot"),  # type: ignore[arg-type]
        (lambda: everything(by_name={"k": Seat(1j)}), TypeError, r"^Everything\.by_name\['k'\]\.name cannot"),  # type: ignore[arg-type]
        (lambda: everything(mode="fast"), TypeError, r"^Everything\.mode cannot be encoded: expected Mode, got str"),
        (lambda: everything(colour=1), TypeError, r"^Everything\.colour cannot be encoded"),
        (lambda: everything(seat="x"), TypeError, r"^Everything\.seat cannot be encoded"),
        (lambda: everything(anything=[1, object()]), TypeError, r"^Everything\.anything\[1\] cannot be encoded"),
        (lambda: everything(when="now"), TypeError, r"^Everything\.when cannot be encoded"),
    ],
)
def test_what_cannot_be_encoded_is_refused_at_the_call_and_named(
    value: Callable[[], Any], kind: type[Exception], path: str
) -> None:
    with pytest.raises(kind, match=path):
        CODEC.encode(value())


def test_a_value_nested_too_deeply_is_a_value_error() -> None:
    tree = Tree()
    for _ in range(5000):
        tree = Tree(children=[tree])
    with pytest.raises(ValueError, match="cannot be encoded"):
        CODEC.encode(tree)


def test_encoding_reads_the_value_once_and_keeps_nothing() -> None:
    seats = [Seat("a")]
    payload = CODEC.encode(everything(seats=seats))
    seats.append(Seat("b"))
    assert CODEC.decoder_for(Everything)(payload).seats == [Seat("a")]


def test_only_messages_are_encoded_and_decoded() -> None:
    for value in (5, "x", object(), None):
        with pytest.raises(TypeError, match="is not a message"):
            CODEC.encode(value)
    with pytest.raises(TypeError, match="is not a message"):
        CODEC.decoder_for(int)


def test_one_decoder_per_class() -> None:
    assert CODEC.decoder_for(Seat) is CODEC.decoder_for(Seat)


@message
class WithObject:
    inner: list[object]


@message
class WithUnion:
    either: Seat | Board


@message
class WithBytesKeys:
    table: dict[bytes, int]


@message
class WithUnknownName:
    other: Nowhere  # type: ignore[name-defined] # noqa: F821


@message
class WithBareList:
    items: list  # type: ignore[type-arg]


@message
class WithComplex:
    seat: Seat
    deep: dict[str, tuple[complex, ...]]


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (WithObject, r"WithObject\.inner\[\]: <class 'object'> is not a message field type; use "),
        (WithUnion, r"WithUnion\.either: .* is a union of more than plain scalars"),
        (WithBytesKeys, r"WithBytesKeys\.table: .* keys that are neither str nor int"),
        (WithUnknownName, r"WithUnknownName .*Nowhere.*at module level"),
        (WithBareList, r"WithBareList\.items: <class 'list'> is not a message field type"),
        (WithComplex, r"WithComplex\.deep\[\]\[\]: <class 'complex'>"),
    ],
)
def test_an_annotation_outside_the_list_is_refused_before_any_message(cls: type, text: str) -> None:
    for check in (CODEC.prepare, CODEC.decoder_for):
        with pytest.raises(ConfigurationError, match=text):
            check(cls)


@pytest.mark.contract("SA-277")
def test_an_unregistered_content_type_is_a_protocol_error_and_not_tried_as_another() -> None:
    codecs = Codecs()
    payload = CODEC.encode(Seat("a"))
    read = codecs.decoder_for(Seat)
    assert read(CONTENT_TYPE, payload) == Seat("a")
    for other in ("application/json", "Application/msgpack", "application/msgpack; v=1", ""):
        with pytest.raises(ProtocolError, match="no codec for .*this host has application/msgpack"):
            read(other, payload)
        with pytest.raises(ProtocolError) as caught:
            codecs.find(other)
        assert caught.value.field == "payload.content_type"
    assert codecs.find(CONTENT_TYPE) is codecs.default


class Reversed:
    """Another codec, so that a registry of two can be told from one that ignores the type."""

    content_type = "application/x-reversed"

    def prepare(self, cls: type) -> None:
        CODEC.prepare(cls)

    def encode(self, obj: Any) -> bytes:
        return CODEC.encode(obj)[::-1]

    def decoder_for(self, cls: type) -> Callable[[bytes], Any]:
        inner = CODEC.decoder_for(cls)
        return lambda data: inner(data[::-1])


def test_each_payload_is_read_by_the_codec_of_its_content_type() -> None:
    codecs = Codecs(Codec(), Reversed())
    read = codecs.decoder_for(PlaceMark)
    payload = CODEC.encode(PlaceMark(300))
    assert read(CONTENT_TYPE, payload) == PlaceMark(300)
    assert read("application/x-reversed", payload[::-1]) == PlaceMark(300)
    assert codecs.encoder_for(PlaceMark)(PlaceMark(300)) == payload
    with pytest.raises(DecodeError):
        read("application/x-reversed", payload)


def test_two_codecs_of_one_type_or_a_type_in_another_form_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two codecs for application/msgpack"):
        Codecs(Codec(), Codec())
    shouting = Reversed()
    shouting.content_type = "Application/X"
    with pytest.raises(ConfigurationError, match="Reversed: a content type is lower-case"):
        Codecs(shouting)


@pytest.mark.parametrize(
    "text",
    ["", "msgpack", "/x", "x/", "Text/plain", "text/plain;charset=utf-8", "a/b/c", "a b/c", " text/plain", "täxt/x"],
)
def test_content_types_in_another_form_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="content type is lower-case type/subtype"):
        canonical_content_type(text)


@pytest.mark.parametrize("text", ["application/msgpack", "application/vnd.x-1+json", "text/plain"])
def test_canonical_content_types(text: str) -> None:
    assert canonical_content_type(text) == text
