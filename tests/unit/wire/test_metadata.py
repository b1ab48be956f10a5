"""The metadata frame (wire.md §5); the malformed forms are in the vectors."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.unit.wire.strategies import metadata_entries
from zlinkpy.wire import METADATA_ENTRIES_MAX, METADATA_FRAME_MAX, decode_metadata, encode_metadata


@given(entries=metadata_entries())
def test_what_was_set_is_read(entries: dict[str, str]) -> None:
    found = decode_metadata(encode_metadata(entries))
    assert found == entries
    assert list(found) == list(entries)


def test_the_reader_s_mapping_cannot_be_changed() -> None:
    found = decode_metadata(encode_metadata({"a": "1"}))
    with pytest.raises(TypeError):
        found["a"] = "2"  # type: ignore[index]


def test_of_two_settings_of_a_key_the_last_wins() -> None:
    assert dict(decode_metadata(encode_metadata([("a", "1"), ("b", "2"), ("a", "3")]))) == {"a": "3", "b": "2"}


def test_the_sender_s_mapping_is_copied() -> None:
    entries = {"a": "1"}
    frame = encode_metadata(entries)
    entries["a"] = "2"
    assert decode_metadata(frame) == {"a": "1"}


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"": "v"}, "key"),
        ({"k" * 256: "v"}, "key"),
        ({"é" * 128: "v"}, "key"),
        ({"a\0": "v"}, "NUL"),
        ({"a": "\0"}, "NUL"),
        ({1: "v"}, "key"),
        ({"a": 1}, "value of 'a'"),
        ({"a": None}, "value of 'a'"),
        ({"a": b"v"}, "value of 'a'"),
        ({"a": "\ud800"}, "UTF-8"),
        ({"a": "v" * 1025}, "value of 'a'"),
        ({"a": "v" * 600, "b": "v" * 600}, "at most 1024"),
        ({f"{number:x}": "" for number in range(METADATA_ENTRIES_MAX + 1)}, "256 entries"),
    ],
)
def test_a_sender_s_mistake_names_the_entry(entries: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        encode_metadata(entries)


def test_the_limits_can_be_used_to_the_last_byte() -> None:
    overhead = len(encode_metadata({"k": "v" * 900})) - 900
    frame = encode_metadata({"k": "v" * (METADATA_FRAME_MAX - overhead)})
    assert len(frame) == METADATA_FRAME_MAX
    assert len(decode_metadata(frame)["k"]) == METADATA_FRAME_MAX - overhead
    with pytest.raises(ValueError, match="1025 bytes"):
        encode_metadata({"k": "v" * (METADATA_FRAME_MAX - overhead + 1)})
    key = "k" * 255
    assert decode_metadata(encode_metadata({key: ""})) == {key: ""}
    many = {f"{number:x}": "" for number in range(METADATA_ENTRIES_MAX)}
    assert decode_metadata(encode_metadata(many)) == many
