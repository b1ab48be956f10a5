"""The record store of both providers by itself (SR-048); what claims and fences do is in test_session_store.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.sessions.conftest import Bench, RedisBench
from zlinkpy.sessions.errors import SessionRecordError
from zlinkpy.sessions.types import SessionRecordView


@pytest.mark.contract("SR-048")
async def test_a_binding_stays(bench: Bench) -> None:
    records = bench.stores.records
    assert await records.provision("s", "h1") == SessionRecordView("s", "h1")
    assert await records.provision("s", "h2") == SessionRecordView("s", "h1")
    assert await bench.peer.records.load("s") == SessionRecordView("s", "h1")


@pytest.mark.parametrize("bad", [-1, 2**53, 1.5, True, "1"])
async def test_a_bad_fence_is_refused_before_any_call(bench: Bench, bad: Any) -> None:
    bench.go_down()
    with pytest.raises(ValueError, match="fence"):
        await bench.stores.records.commit("s", b"", {}, bad, "t")


async def test_what_is_no_plain_data_does_not_get_into_a_record(bench: Bench) -> None:
    bench.go_down()
    with pytest.raises(ValueError, match=r"attrs\['a'\] cannot be sent"):
        await bench.stores.records.commit("s", b"", {"a": object()}, 1, "t")
    with pytest.raises(ValueError, match="state is bytes"):
        await bench.stores.records.commit("s", "text", {}, 1, "t")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "spoil",
    [
        ("SET", "t:{s}:rec", "x"),
        ("HSET", "t:{s}:rec", "sid", "s", "fence", "many"),
        ("HSET", "t:{s}:rec", "sid", "s", "fence", "1", "ver", "many"),
        ("HSET", "t:{s}:rec", "sid", "s", "ref", b"\xff"),
        ("HSET", "t:{s}:rec", "sid", "s", "attrs", b"\x93"),
        ("HSET", "t:{s}:rec", "sid", "s", "attrs", b"\x03"),
    ],
)
async def test_a_record_that_cannot_be_read_is_an_error(redis_bench: RedisBench, spoil: tuple[Any, ...]) -> None:
    redis_bench.command(*spoil)
    records = redis_bench.stores.records
    failed = 0
    for call in (records.load("s"), records.provision("s", "h1", 5), records.commit("s", b"x", {}, 5, "t")):
        try:
            await call
        except SessionRecordError:
            failed += 1
    assert failed >= 1
