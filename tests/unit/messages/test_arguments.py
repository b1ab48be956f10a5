"""Timeouts, metadata and the message context."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.messages import MAX_MILLISECONDS, NO_METADATA, MessageContext, to_milliseconds, validate_metadata
from zlinkpy.wire import decode_metadata


@pytest.mark.contract("SA-202")
@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [
        (1, 1000),
        (30.0, 30_000),
        (0.001, 1),
        (0.0011, 2),
        (0.0000001, 1),
        (5e-324, 1),
        (1.0005, 1001),
        (2.007, 2007),
        (1.001, 1001),
        (4.35, 4350),
        (0.0999999, 100),
        (MAX_MILLISECONDS / 1000, MAX_MILLISECONDS),
    ],
)
def test_fractions_of_a_millisecond_round_up(seconds: float, milliseconds: int) -> None:
    assert to_milliseconds(seconds) == milliseconds


@pytest.mark.contract("SA-202")
@pytest.mark.parametrize(
    "seconds", [0, 0.0, -0.0, -1, -1e-9, math.nan, math.inf, -math.inf, MAX_MILLISECONDS / 1000 + 0.001, 1e308, 10**400]
)
def test_timeouts_out_of_range_are_value_errors(seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout must be above 0"):
        to_milliseconds(seconds)


@pytest.mark.parametrize("timeout", [True, "1", None, [1], 1j])
def test_a_timeout_that_is_no_number_is_a_type_error(timeout: Any) -> None:
    with pytest.raises(TypeError, match="timeout must be a number"):
        to_milliseconds(timeout)


@given(st.integers(1, MAX_MILLISECONDS))
def test_whole_milliseconds_stay_what_they_are(milliseconds: int) -> None:
    assert to_milliseconds(milliseconds / 1000) == milliseconds


@given(st.floats(1e-6, 2_000_000, allow_nan=False))
def test_a_timeout_is_never_shortened_and_grows_by_less_than_a_millisecond(seconds: float) -> None:
    assert -1e-6 <= to_milliseconds(seconds) - seconds * 1000 < 1


def test_no_metadata_needs_no_frame() -> None:
    assert validate_metadata(None) is None
    assert validate_metadata({}) is None


@pytest.mark.contract("SA-276")
def test_metadata_is_encoded_as_utf8_text() -> None:
    frame = validate_metadata({"tenant": "köln", "empty": ""})
    assert frame is not None
    assert dict(decode_metadata(frame)) == {"tenant": "köln", "empty": ""}


@pytest.mark.contract("SA-276")
def test_more_than_1024_encoded_bytes_are_a_value_error() -> None:
    frame = validate_metadata({"k": "v" * 1000})
    assert frame is not None
    room = 1024 - len(frame)
    exact = validate_metadata({"k": "v" * (1000 + room)})
    assert exact is not None
    assert len(exact) == 1024
    with pytest.raises(ValueError, match="1024|1,024"):
        validate_metadata({"k": "v" * (1001 + room)})
    with pytest.raises(ValueError, match="1024|1,024"):
        validate_metadata({str(i): "x" * 10 for i in range(100)})


@pytest.mark.contract("SA-276")
@pytest.mark.parametrize("metadata", [{"a\0": "x"}, {"a": "x\0"}, {"a": "\ud800"}, {"\ud800": "a"}, {"": "x"}])
def test_text_the_wire_cannot_carry_is_a_value_error(metadata: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="metadata"):
        validate_metadata(metadata)


@pytest.mark.parametrize("metadata", [[("a", "b")], "ab", 3, {"a": 1}, {1: "a"}, {"a": None}, {b"a": "b"}])
def test_anything_but_a_mapping_of_text_is_a_type_error(metadata: Any) -> None:
    with pytest.raises(TypeError, match="metadata must"):
        validate_metadata(metadata)


def test_the_context_is_a_snapshot() -> None:
    context = MessageContext(mesh_name="play", packet_name="Seat")
    assert context.metadata is NO_METADATA
    assert (context.channel_name, context.correlation_id, context.source_rid, context.topic) == (None,) * 4
    assert context.content_type == "application/msgpack"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        context.topic = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        context.metadata["a"] = "b"  # type: ignore[index]
    assert not hasattr(context, "__dict__")
