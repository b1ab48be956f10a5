"""Authority rows and their payload: bytes, and rows that nobody wrote (LO-076..080, LO-214, LO-225, LO-226)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.authority_hosts import ENTRY, RELOCATION_ID, actor, actor_payload, cart_payload, owner, room_payload, spot
from zlinkpy.errors import InvalidOperationError
from zlinkpy.location.authority import (
    ACTOR_SLOTS,
    ActivationPointer,
    AllocationState,
    AuthorityRow,
    Completion,
    ExecutionMode,
    Members,
    Membership,
    MoveCounts,
    ObjectState,
    Payload,
    PendingCreation,
    Place,
    RelocationPhase,
    RelocationState,
    RequestUnusable,
    Slots,
    SourceCleanup,
    SpotKind,
    SpotSlots,
    decode_authority,
    decode_payload,
    spot_slots,
)
from zlinkpy.location.authority.rows import REQUEST_MAX_BYTES
from zlinkpy.location.store import StoreCorruption

P, Q = owner("p"), owner("q")
RESERVED = AuthorityRow(
    payload=actor_payload(),
    object_generation=41,
    owner_generation=2**63 - 2,
    owner=P,
    state=AllocationState.RESERVED,
    object_kind="actor",
    stable_type="user",
    slots=ACTOR_SLOTS,
    pending=PendingCreation.of("r1", b"\xfb\xff?"),
)
READY = evolve(RESERVED, state=AllocationState.ACTIVE, payload=actor_payload(ObjectState.READY), pending=None)
MOVE = RelocationState(
    relocation_id=RELOCATION_ID,
    aggregate_generation=3,
    attempt=2,
    source=Q.place,
    target=P.place,
    coordinator=Q.place,
    phase=RelocationPhase.COMMITTED,
    application_version=7,
    completion=Completion("blob-1", 2**32 - 1),
    cleanup=SourceCleanup.PENDING,
    counts=MoveCounts(3, 1, 2),
)
ROOM = evolve(
    READY,
    object_kind="userSpot",
    stable_type="room",
    slots=spot_slots("userSpot", "room"),
    payload=evolve(room_payload(ObjectState.READY, ExecutionMode.PER_ACTOR), members=Members(3, 9), relocation=MOVE),
)
POINTER = ActivationPointer("blob-7", b"\1" * 32, 11, inbox_seq=4, cursor=2)
CART = evolve(
    READY,
    object_kind="instanceSpot",
    stable_type="cart",
    slots=spot_slots("instanceSpot", "cart"),
    payload=evolve(cart_payload(ObjectState.READY), activation=POINTER),
)
ROWS = {"reserved": RESERVED, "ready": READY, "room": ROOM, "cart": CART}


def fields_of(row: AuthorityRow) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(row.encode())
    return parsed


def raw_of(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def payload_of(row: AuthorityRow) -> dict[str, Any]:
    unpacked: dict[str, Any] = msgpack.unpackb(row.payload.encode())
    return unpacked


@pytest.mark.contract("LO-076")
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_is_read_back_as_it_was_written(row: AuthorityRow) -> None:
    assert decode_authority(row.encode()) == row


@pytest.mark.contract("LO-076", "LO-214")
def test_the_row_has_the_public_fields_and_forms() -> None:
    fields = fields_of(RESERVED)
    assert list(fields) == [
        "recordVersion",
        "payload",
        "objectGeneration",
        "authorityOwnerGeneration",
        "ownerId",
        "ownerLeaseGeneration",
        "allocation",
        "pendingCreation",
    ]
    assert fields["recordVersion"] == 1
    assert fields["objectGeneration"] == "41"
    assert fields["authorityOwnerGeneration"] == "9223372036854775806"
    assert (fields["ownerId"], fields["ownerLeaseGeneration"]) == ("p", "1")
    assert fields["allocation"] == {
        "state": "reserved",
        "objectKind": "actor",
        "stableType": "user",
        "descriptor": {"meshName": "main", "routingIdHex": "70"},
        "descriptorLifecycleGeneration": "7",
        "capacity": {"actors": 1, "spots": 0, "spotType": None},
    }
    assert fields["pendingCreation"] == {
        "reservationId": "r1",
        "requestContentReference": "inline-v1:-_8_",
        "requestSha256": hashlib.sha256(b"\xfb\xff?").hexdigest(),
        "requestEncodedSize": 3,
    }
    assert fields_of(READY)["pendingCreation"] is None
    assert fields_of(ROOM)["allocation"]["capacity"] == {
        "actors": 0,
        "spots": 1,
        "spotType": {"objectKind": "userSpot", "stableType": "room", "count": 1},
    }
    assert b" " not in RESERVED.encode()
    payload = msgpack.unpackb(base64.b64decode(fields_of(ROOM)["payload"], validate=True))
    # Neither placement, nor key, nor generation of the object is repeated in it.
    assert set(payload) == {"st", "kind", "mode", "member_of", "members", "act", "rel"}
    assert payload["members"] == {"count": 3, "epoch": 9}
    assert payload["rel"]["phase"] == 4


@pytest.mark.contract("LO-079")
def test_fields_of_a_newer_writer_are_ignored() -> None:
    fields = fields_of(ROOM)
    payload = payload_of(ROOM)
    payload["later"] = payload["rel"]["later"] = {"x": 1}
    fields["payload"] = base64.b64encode(msgpack.packb(payload)).decode()
    fields["later"] = fields["allocation"]["later"] = [1]
    assert decode_authority(raw_of(fields)) == ROOM


JSON_BREAKS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no version": lambda row: row.pop("recordVersion"),
    "version 0": lambda row: row.update(recordVersion=0),
    "version 2": lambda row: row.update(recordVersion=2),
    "version true": lambda row: row.update(recordVersion=True),
    "generation 0": lambda row: row.update(objectGeneration="0"),
    "generation -1": lambda row: row.update(objectGeneration="-1"),
    "generation 01": lambda row: row.update(authorityOwnerGeneration="01"),
    "generation 2^63": lambda row: row.update(ownerLeaseGeneration=str(2**63)),
    "generation a number": lambda row: row.update(objectGeneration=41),
    "no owner": lambda row: row.update(ownerId=""),
    "owner null": lambda row: row.update(ownerId=None),
    "owner with NUL": lambda row: row.update(ownerId="a\0b"),
    "owner too long": lambda row: row.update(ownerId="x" * 256),
    "payload null": lambda row: row.update(payload=None),
    "payload not base64": lambda row: row.update(payload=row["payload"][:-1] + "!"),
    "payload without padding": lambda row: row.update(payload="gaI"),
    "payload cut": lambda row: row.update(payload=base64.b64encode(base64.b64decode(row["payload"])[:-1]).decode()),
    "payload with more": lambda row: row.update(
        payload=base64.b64encode(base64.b64decode(row["payload"]) + b"\0").decode()
    ),
    "no allocation": lambda row: row.pop("allocation"),
    "allocation a list": lambda row: row.update(allocation=[]),
    "unknown state": lambda row: row["allocation"].update(state="closed"),
    "reserved without creation": lambda row: row.update(pendingCreation=None),
    "active with creation": lambda row: row["allocation"].update(state="active"),
    "unknown kind": lambda row: row["allocation"].update(objectKind="spot"),
    "kind of another payload": lambda row: row["allocation"].update(objectKind="userSpot"),
    "rid not hex": lambda row: row["allocation"]["descriptor"].update(routingIdHex="7G"),
    "rid in capitals": lambda row: row["allocation"]["descriptor"].update(routingIdHex="6F".upper() + "4B"),
    "no mesh": lambda row: row["allocation"]["descriptor"].pop("meshName"),
    "lifecycle 0": lambda row: row["allocation"].update(descriptorLifecycleGeneration="0"),
    "negative slots": lambda row: row["allocation"]["capacity"].update(actors=-1),
    "slots as text": lambda row: row["allocation"]["capacity"].update(actors="1"),
    "slots of a Spot type": lambda row: row["allocation"]["capacity"].update(
        spotType={"objectKind": "userSpot", "stableType": "room", "count": 1}
    ),
    "slots without a type field": lambda row: row["allocation"]["capacity"].pop("spotType"),
    "no reservation id": lambda row: row["pendingCreation"].update(reservationId=""),
    "short digest": lambda row: row["pendingCreation"].update(requestSha256="ab"),
    "digest in capitals": lambda row: row["pendingCreation"].update(requestSha256="AB" * 32),
    "negative size": lambda row: row["pendingCreation"].update(requestEncodedSize=-1),
}


@pytest.mark.contract("LO-077", "LO-080")
@pytest.mark.parametrize("name", JSON_BREAKS)
def test_a_row_that_is_not_complete_and_exact_is_refused(name: str) -> None:
    fields = fields_of(RESERVED)
    JSON_BREAKS[name](fields)
    with pytest.raises(StoreCorruption, match="authority"):
        decode_authority(raw_of(fields))


@pytest.mark.contract("LO-080")
@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b"{", b"\xff", b'{"recordVersion":1,"recordVersion":1}', b"NaN"])
def test_bytes_that_are_no_row_are_refused(raw: bytes) -> None:
    with pytest.raises(StoreCorruption):
        decode_authority(raw)


@pytest.mark.contract("LO-080")
def test_a_row_under_a_key_of_the_other_kind_is_refused() -> None:
    assert decode_authority(READY.encode(), actor()) == READY
    assert decode_authority(ROOM.encode(), spot()) == ROOM
    for row, key in ((READY, spot()), (ROOM, actor())):
        with pytest.raises(StoreCorruption, match="another key"):
            decode_authority(row.encode(), key)


PAYLOAD_BREAKS: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "state unknown": ("room", lambda payload: payload.update(st="gone")),
    "state missing": ("room", lambda payload: payload.pop("st")),
    "no kind field": ("ready", lambda payload: payload.pop("kind")),
    "an Actor without membership": ("ready", lambda payload: payload.update(member_of=None)),
    "an Actor in an Instance Spot": ("ready", lambda payload: payload["member_of"].update(kind="instance")),
    "an Actor with members": ("ready", lambda payload: payload.update(members={"count": 0, "epoch": 1})),
    "an Actor with a mode": ("ready", lambda payload: payload.update(mode="per_actor")),
    "a room without members": ("room", lambda payload: payload.update(members=None)),
    "a room without mode": ("room", lambda payload: payload.update(mode=None)),
    "a room in a room": ("room", lambda payload: payload.update(member_of={"spot": "x", "kind": "user"})),
    "members below 0": ("room", lambda payload: payload["members"].update(count=-1)),
    "epoch 0": ("room", lambda payload: payload["members"].update(epoch=0)),
    "relocation id 0": ("room", lambda payload: payload["rel"].update(id=b"\0" * 16)),
    "relocation id short": ("room", lambda payload: payload["rel"].update(id=b"\1" * 15)),
    "relocation id text": ("room", lambda payload: payload["rel"].update(id="1" * 16)),
    "target in part": ("room", lambda payload: payload["rel"]["target"].update(owner=None)),
    "target not there": ("room", lambda payload: payload["rel"].update(target=None)),
    "source not there": ("room", lambda payload: payload["rel"].update(source=None)),
    "attempt at the end": ("room", lambda payload: payload["rel"].update(attempt=2**63 - 1)),
    "generation at the end": ("room", lambda payload: payload["rel"].update(aggregate=2**63 - 1)),
    "phase 10": ("room", lambda payload: payload["rel"].update(phase=10)),
    "phase that names the source": ("room", lambda payload: payload["rel"].update(phase=3)),
    "cleanup 3": ("room", lambda payload: payload["rel"].update(cleanup=3)),
    "counts that do not add up": ("room", lambda payload: payload["rel"]["counts"].update(at_target=1)),
    "checksum of 33 bits": ("room", lambda payload: payload["rel"]["completion"].update(crc=2**32)),
    "pointer on an Actor": ("ready", lambda payload: payload.update(act=payload_of(CART)["act"])),
    "pointer on a room": ("room", lambda payload: payload.update(act=payload_of(CART)["act"])),
    "pointer while closing": ("cart", lambda payload: payload.update(st="closing")),
    "pointer while relocating": ("cart", lambda payload: payload.update(st="relocating")),
    "cursor past the inbox": ("cart", lambda payload: payload["act"].update(cursor=5)),
    "digest of 31 bytes": ("cart", lambda payload: payload["act"].update(sha256=b"\1" * 31)),
}


@pytest.mark.contract("LO-214", "LO-289", "LO-312")
@pytest.mark.parametrize("name", PAYLOAD_BREAKS)
def test_a_payload_decodes_completely_or_the_row_is_corrupt(name: str) -> None:
    of, spoil = PAYLOAD_BREAKS[name]
    fields, payload = fields_of(ROWS[of]), payload_of(ROWS[of])
    spoil(payload)
    fields["payload"] = base64.b64encode(msgpack.packb(payload)).decode()
    with pytest.raises(StoreCorruption):
        decode_authority(raw_of(fields))


@pytest.mark.contract("LO-214", "LO-312")
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc0",
        b"\x90",
        msgpack.packb({1: 2}),
        msgpack.packb({"st": msgpack.ExtType(1, b"")}),
        b"\x82\xa1a\xc0\xa1a\xc0",
    ],
)
def test_bytes_that_are_no_payload_are_refused(raw: bytes) -> None:
    with pytest.raises(StoreCorruption):
        decode_payload(raw)


@pytest.mark.contract("LO-214", "LO-312")
def test_a_payload_is_followed_by_nothing() -> None:
    raw = ROOM.payload.encode()
    assert decode_payload(raw) == ROOM.payload
    with pytest.raises(StoreCorruption):
        decode_payload(raw + b"\xc0")


@pytest.mark.contract("LO-080")
@given(st.data())
def test_no_altered_byte_is_read_as_something_else_and_passes_for_a_row(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from(list(ROWS.values()))).encode())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    try:
        row = decode_authority(bytes(raw))
    except StoreCorruption:
        return
    # What is still a row is one that this software could have written.
    assert decode_authority(row.encode()) == row


@pytest.mark.contract("LO-311")
def test_phases_have_their_numbers_and_name_source_or_target() -> None:
    names = [phase.name.lower() for phase in RelocationPhase]
    assert names == [
        "none",
        "preparing",
        "captured",
        "prepared",
        "committed",
        "activating",
        "activated",
        "cleaning",
        "completed",
        "aborted",
    ]
    assert [int(phase) for phase in RelocationPhase] == list(range(10))
    for phase in RelocationPhase:
        move = evolve(MOVE, phase=phase)
        expected = None if phase == 0 else P.place if 4 <= phase <= 8 else Q.place
        assert move.owner == expected
        row = {"payload": evolve(ROOM.payload, relocation=move)}
        if expected in (None, P.place):
            assert decode_authority(evolve(ROOM, **row).encode()).payload.relocation == move
        else:
            with pytest.raises(ValueError, match="another owner"):
                evolve(ROOM, **row)


@pytest.mark.contract("LO-225")
def test_a_creation_request_is_kept_in_the_row_up_to_its_limit() -> None:
    request = bytes(range(256)) * 3000
    assert len(request) == REQUEST_MAX_BYTES == 768_000
    row = evolve(RESERVED, pending=PendingCreation.of("r", request))
    assert row.pending is not None
    assert row.pending.reference.startswith("inline-v1:")
    assert "=" not in row.pending.reference
    assert row.pending.size == 768_000
    read = decode_authority(row.encode())
    assert read.pending is not None
    assert read.pending.request() == request
    with pytest.raises(InvalidOperationError, match="768000"):
        PendingCreation.of("r", request + b"x")


@pytest.mark.parametrize(
    "change",
    [
        {"reference": "inline-v1:cGxlYXNl:9f"},
        {"reference": "inline-v1:cGxlYXNlMQ=="},
        {"reference": "blob-v1:cGxlYXNl"},
        {"reference": "cGxlYXNl"},
        {"reference": "inline-v1:cGxlYXN+"},
        {"reference": "inline-v1:cGxl YXNl"},
        {"reference": "inline-v1:cGxlYXN"},
        {"size": 5},
        {"sha256": "0" * 64},
    ],
)
def test_a_request_that_is_not_the_announced_one_is_unusable_but_its_row_can_be_read(change: dict[str, Any]) -> None:
    good = PendingCreation.of("r", b"please")
    assert good.reference == "inline-v1:cGxlYXNl"
    assert good.request() == b"please"
    row = decode_authority(evolve(RESERVED, pending=evolve(good, **change)).encode())
    assert row.pending is not None
    with pytest.raises(RequestUnusable):
        row.pending.request()


@pytest.mark.contract("LO-214")
def test_a_row_above_one_mebibyte_is_refused_before_writing() -> None:
    home = Membership("x" * 255, SpotKind.ENTRY)
    pending = evolve(PendingCreation.of("r", b"x" * 768_000), reference="inline-v1:" + "A" * (1 << 20))
    with pytest.raises(InvalidOperationError, match="1048576"):
        evolve(RESERVED, payload=actor_payload(home=home), pending=pending).encode()


def test_objects_that_cannot_be_are_not_built() -> None:
    with pytest.raises(ValueError, match="membership"):
        Payload(state=ObjectState.READY)
    with pytest.raises(ValueError, match="Entry Spot never moves"):
        Payload(state=ObjectState.READY, kind=SpotKind.ENTRY, relocation=MOVE)
    with pytest.raises(ValueError, match="slots"):
        evolve(ROOM, slots=Slots(spots=1, spot_type=SpotSlots("userSpot", "hall")))
    with pytest.raises(ValueError, match="being created"):
        evolve(RESERVED, payload=actor_payload(ObjectState.READY))
    with pytest.raises(ValueError, match="has a target"):
        evolve(MOVE, target=None)
    assert Place("p", 7, "p", 1) == P.place
    assert ENTRY.kind is SpotKind.ENTRY
