"""Any message comes back as it was, and any bytes are a message or a decode error."""

from __future__ import annotations

import datetime
from typing import Any

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.messages.models import Colour, Everything, Mode, Point, Seat, Tree, everything
from zlinkpy.messages import Codec, DecodeError

CODEC = Codec()
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SEATS = st.builds(Seat, TEXT)
PLAIN = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False) | TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "number": INT64,
    "ratio": st.floats(allow_nan=False),
    "text": TEXT,
    "data": st.binary(),
    "seat": SEATS,
    "seats": st.lists(SEATS, max_size=4),
    "by_name": st.dictionaries(TEXT, SEATS, max_size=4),
    "by_number": st.dictionaries(INT64, st.lists(INT64, max_size=3), max_size=4),
    "same": st.lists(INT64, max_size=4).map(tuple),
    "mixed": st.tuples(INT64, TEXT),
    "tags": st.sets(TEXT, max_size=4),
    "codes": st.frozensets(INT64, max_size=4),
    "colour": st.sampled_from(Colour),
    "mode": st.sampled_from(Mode),
    "word": st.sampled_from(["on", "off", 3, True]),
    "when": st.datetimes(timezones=st.just(datetime.UTC) | st.none()),
    "ident": st.uuids(),
    "either": st.none() | INT64 | TEXT,
    "cell": INT64,
    "point": st.builds(Point, INT64, INT64),
    "anything": PLAIN,
    "maybe": st.none() | SEATS,
    "maybe_mode": st.none() | st.sampled_from(Mode),
}
TREES = st.recursive(
    st.builds(Tree, TEXT),
    lambda inner: st.builds(Tree, TEXT, st.lists(inner, max_size=3), st.none() | inner),
    max_leaves=10,
)


def attempt(cls: type, data: bytes) -> Any:
    """The decoded value, or the DecodeError; any other exception fails the test."""
    try:
        return CODEC.decoder_for(cls)(data)
    except DecodeError as error:
        return error


@given(st.fixed_dictionaries(FIELDS) | TREES)
def test_what_is_encoded_is_decoded_to_the_same(values: Any) -> None:
    value = values if isinstance(values, Tree) else everything(**values)
    assert CODEC.decoder_for(type(value))(CODEC.encode(value)) == value


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_decode_error_only(data: bytes) -> None:
    for cls in (Tree, Everything):
        outcome = attempt(cls, data)
        assert type(outcome) is cls or (isinstance(outcome, DecodeError) and outcome.field.startswith(cls.__name__))


@given(st.data())
def test_a_damaged_payload_raises_decode_error_only(data: st.DataObject) -> None:
    form = msgpack.unpackb(CODEC.encode(everything()), strict_map_key=False)
    name = data.draw(st.sampled_from(sorted(form)))
    form[name] = data.draw(PLAIN)
    payload = bytearray(msgpack.packb(form))
    if data.draw(st.booleans()):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    outcome = attempt(Everything, bytes(payload))
    if isinstance(outcome, DecodeError):
        assert outcome.field.startswith("Everything")
    else:
        again = CODEC.decoder_for(Everything)(CODEC.encode(outcome))
        assert again == outcome or "nan" in repr(outcome)
