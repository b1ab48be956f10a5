"""Answers of the scripts, decoded without a server."""

from __future__ import annotations

import pytest

from zlinkpy.location.redis_rows import Cursor, Row, pack_member, page_items, read_answer, unpack_member
from zlinkpy.location.store import Found, Missing, StoreCorruption


@pytest.mark.contract("LO-021")
def test_a_row_is_missing_in_the_millisecond_of_its_expiry() -> None:
    member = pack_member(Row(b"k", b"v", "1.a", 1000, tombstone=False))
    assert read_answer(member, b"k", 999) == Found(b"v", "1.a", 1000, 999)
    assert read_answer(member, b"k", 1000) == Missing(1000)
    durable = pack_member(Row(b"k", b"v", "1.a", None, tombstone=False))
    assert read_answer(durable, b"k", 2**52) == Found(b"v", "1.a", None, 2**52)
    assert read_answer(b"", b"k", 5) == Missing(5)


@pytest.mark.contract("LO-075")
@pytest.mark.parametrize(
    "member",
    [
        b"\x02" + pack_member(Row(b"k", b"v", "1", None, tombstone=False))[1:],
        b"\x01",
        b"\x01\x95",
        b"\x01\x94\xa1k\xa1v\xa11\x00",
        b"\x01\x95\xa1k\xa1v\xa11\xff\xc2",
        b"\x01\x95\xa1k\xa1v\xa11\xc2\xc2",
        b"\x01\x95\xa1k\xa1v\xa11\x00\x00",
        b"\x01\x95\xa1k\xa1v\xa1\xff\x00\xc2",
        b"\x01\x95\xa1k\xa1v\xa11\x00\xc2\x00",
    ],
)
def test_a_member_of_another_make_is_corruption(member: bytes) -> None:
    with pytest.raises(StoreCorruption):
        unpack_member(member)


def test_a_row_under_another_rows_record_is_corruption() -> None:
    member = pack_member(Row(b"k", b"v", "1", None, tombstone=False))
    with pytest.raises(StoreCorruption):
        read_answer(member, b"other", 1)
    with pytest.raises(StoreCorruption):
        page_items([member], [b"other"])
    assert [item.key for item in page_items([member], [b"j", b"k"])] == [b"k"]


def test_cursors_survive_their_text() -> None:
    cursor = Cursor("0123456789abcdef", b"\x00key\xff")
    assert Cursor.parse(str(cursor)) == cursor
    for text in ("", "x", "0123456789abcdef", "0123456789abcdef.", "0123456789abcdef.0", "0123456789abcdeg.00", ".00"):
        assert Cursor.parse(text) is None
