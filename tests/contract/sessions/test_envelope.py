"""The inbox envelope, and entries that cannot be read (SR-066..075)."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.sessions.conftest import Bench, RedisBench
from zlinkpy.sessions import arguments
from zlinkpy.sessions.backends import SessionStores
from zlinkpy.sessions.payloads import decode_envelope, encode_envelope
from zlinkpy.sessions.types import (
    InboundMessage,
    Part,
    Principal,
    Priority,
    SubmitRequest,
    TurnInput,
    UnreadableEntry,
)

NOW, NEXT, LATER = Priority.NOW, Priority.NEXT, Priority.LATER


def message(text: str = "hi", priority: Priority = NEXT, **more: Any) -> InboundMessage:
    return InboundMessage("s", "h1", text, priority, **more)


@pytest.mark.contract("SR-066", "SR-067")
async def test_one_bad_entry_spoils_no_other(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    secret = "secret payload"
    bad = msgpack.packb({"turn_id": "t-9", "idempotency_key": "k-9", "input": secret, "session_id": "s"})
    await bench.stores.inbox.deliver(message("one"))
    bench.insert_raw("s", NEXT, bad)
    await bench.stores.inbox.deliver(message("two"))
    batch = await bench.stores.inbox.collect("s", LATER)
    assert [found.input.text for found in batch.messages] == ["one", "two"]
    (entry,) = batch.unreadable
    assert (entry.turn_id, entry.idempotency_key) == ("t-9", "k-9")
    assert entry.id.startswith("1:")
    assert "handler_ref" in entry.reason
    assert secret not in repr(entry)
    assert await bench.stores.inbox.is_empty("s")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'s'" in caplog.text
    assert secret not in caplog.text


HOSTILE: list[bytes] = [
    b"",
    b"\xc1",
    b"\x00\xff" * 50,
    msgpack.packb(None),
    msgpack.packb([1, 2]),
    msgpack.packb("text"),
    msgpack.packb({}),
    msgpack.packb({1: 2}),
    msgpack.packb({"turn_id": "  ", "idempotency_key": ""}),
    msgpack.packb({"turn_id": 3, "idempotency_key": ["k"]}),
    msgpack.packb({"session_id": "s", "handler_ref": " ", "input": "x"}),
    msgpack.packb({"session_id": "s", "handler_ref": "h", "input": b"x"}),
    msgpack.packb({"session_id": "s", "handler_ref": "h", "input": "x", "turn_id": " "}),
    msgpack.packb({"session_id": "s", "handler_ref": "h", "input": "x", "submit_options": []}),
    msgpack.packb({"session_id": "s", "handler_ref": "h", "input": "x", "initiator": {"type": 3}}),
    msgpack.packb({"session_id": "s", "handler_ref": "h", "input": "x", "delivered_at": "soon"}),
    msgpack.packb({"session_id": "other", "handler_ref": "h", "input": "x"}),
    msgpack.packb(msgpack.ExtType(5, b"x")),
    b"\xdd\xff\xff\xff\xff" * 300,
    b"\x91" * 5000,
]


@pytest.mark.contract("SR-066", "SR-068")
async def test_no_entry_makes_a_collect_raise(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for data in HOSTILE:
        bench.insert_raw("s", NEXT, data)
    await bench.stores.inbox.deliver(message("good"))
    batch = await bench.stores.inbox.collect("s", LATER)
    assert [found.input.text for found in batch.messages] == ["good"]
    assert len(batch.unreadable) == len(HOSTILE)
    assert {(entry.turn_id, entry.idempotency_key) for entry in batch.unreadable} == {(None, None)}
    assert len(caplog.records) == len(HOSTILE)


@given(st.binary(max_size=60))
def test_no_bytes_make_an_envelope_raise(data: bytes) -> None:
    found = decode_envelope(data, session_id="s", inbox_id="1:1-0", priority=NEXT, arrived_at=1)
    assert isinstance(found, (UnreadableEntry, InboundMessage))


async def test_an_entry_without_the_fields_of_ours_is_unreadable(redis_bench: RedisBench) -> None:
    redis_bench.command("XADD", "t:{s}:in:0", "*", "other", "x", "p2", "y")
    batch = await redis_bench.stores.inbox.collect("s", NOW)
    assert [entry.id[:2] for entry in batch.unreadable] == ["0:"]


FULL = InboundMessage(
    session_id="s",
    handler_ref="h1",
    input=TurnInput("look", (Part("image", "image/png", b"\x89\x00"), Part("text", "text/plain", "é".encode()))),
    priority=LATER,
    initiator=Principal("user", "u1", "Ann"),
    delivered_at=1_700_000_000_123,
    idempotency_key="k1",
    turn_id="t1",
    handler_variant="v1",
    submit_options={"a": 1, "b": [1.5, None, {"c": b"x"}], "d": "é"},
    epoch="n/i/1",
)


@pytest.mark.contract("SR-070")
async def test_every_field_comes_back(stores: SessionStores) -> None:
    inbox_id = await stores.inbox.deliver(FULL)
    (found,) = (await stores.inbox.collect("s", LATER)).messages
    assert found == evolve(FULL, id=inbox_id)
    bare_id = await stores.inbox.deliver(message())
    (bare,) = (await stores.inbox.collect("s", LATER)).messages
    assert bare == evolve(message(), id=bare_id, delivered_at=bare.delivered_at)
    assert bare.delivered_at is not None


async def test_the_inbox_stamps_arrival_unless_a_message_was_put_back(bench: Bench) -> None:
    await bench.stores.inbox.deliver(message("one"))
    await bench.pass_time(0.01)
    await bench.stores.inbox.deliver(message("two", delivered_at=5))
    one, two = (await bench.stores.inbox.collect("s", LATER)).messages
    assert one.delivered_at is not None
    assert one.delivered_at > 1_600_000_000_000
    assert two.delivered_at == 5


@pytest.mark.contract("SR-071")
def test_what_opens_a_handle_is_not_in_the_envelope() -> None:
    request = SubmitRequest(
        "s", "h1", "hi", options={"o": "opt-secret"}, open_attributes={"t": "attr-secret"}, submit_options={"k": 2}
    )
    data = encode_envelope(
        InboundMessage(request.session_id, request.handler_ref, request.input, submit_options=request.submit_options)
    )
    assert b"secret" not in data
    assert not {"options", "open_attributes"} & set(msgpack.unpackb(data))
    assert {"options", "open_attributes"}.isdisjoint(field.name for field in InboundMessage.__attrs_attrs__)


@pytest.mark.contract("SR-072")
def test_text_is_carried_as_text() -> None:
    fields = msgpack.unpackb(encode_envelope(message("plain")))
    assert fields["input"] == "plain"
    assert "input_encoded" not in fields
    assert None not in fields.values()


def read(data: bytes) -> InboundMessage:
    found = decode_envelope(data, session_id="s", inbox_id="2:1-0", priority=LATER, arrived_at=1)
    assert isinstance(found, InboundMessage)
    return found


@pytest.mark.contract("SR-073")
def test_attachments_come_beside_their_rendering() -> None:
    data = encode_envelope(FULL)
    fields = msgpack.unpackb(data)
    assert fields["input"] == "look\n[image: image/png]\né"
    assert read(data).input == FULL.input
    del fields["input_encoded"]  # what an older reader sees
    assert read(msgpack.packb(fields)).input == TurnInput("look\n[image: image/png]\né")
    assert TurnInput("", FULL.input.parts).rendering == "[image: image/png]\né"


@pytest.mark.contract("SR-074")
@pytest.mark.parametrize(
    "encoded",
    [
        {"text": "look", "parts": [{"type": "hologram", "media_type": "x/y", "data": b"z"}]},
        {"text": "look", "parts": [{"type": "image", "media_type": "x/y", "data": "z"}]},
        {"text": "look", "parts": [3]},
        {"text": "look", "parts": 3},
        {"parts": []},
        {},
        [],
        "x",
    ],
)
def test_parts_of_a_newer_node_are_left_out(encoded: object, caplog: pytest.LogCaptureFixture) -> None:
    fields = msgpack.unpackb(encode_envelope(FULL)) | {"input_encoded": encoded}
    assert read(msgpack.packb(fields)).input == TurnInput("look\n[image: image/png]\né")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_message_without_a_turn_id_is_readable() -> None:
    assert read(encode_envelope(message())).turn_id is None


async def test_submit_options_must_be_plain_data(bench: Bench) -> None:
    bench.go_down()
    with pytest.raises(ValueError, match=r"submit_options\['a'\]\[1\] cannot be sent to another node: object"):
        await bench.stores.inbox.deliver(message(submit_options={"a": [1, object()]}))
    with pytest.raises(ValueError, match="submit_options"):
        SubmitRequest("s", "h", "x", submit_options={"a": object()})


async def test_a_message_has_a_largest_size(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.go_down()
    monkeypatch.setattr(arguments, "MESSAGE_BYTES", 1000)
    with pytest.raises(ValueError, match="a message: at most 1000 bytes"):
        await bench.stores.inbox.deliver(message("x" * 1000))
