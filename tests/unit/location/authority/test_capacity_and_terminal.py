"""Capacity rows and creation terminals: bytes, arithmetic, and rows that nobody wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.authority_hosts import RELOCATION_ID, room_payload, server
from tests.unit.location.authority.test_authority_rows import ROOM
from zlinkpy.errors import InvalidOperationError
from zlinkpy.location import keys
from zlinkpy.location.authority import (
    ACTOR_SLOTS,
    CapacityRow,
    CapacityUnderflow,
    Count,
    Creation,
    CreationTerminal,
    ExecutionMode,
    Members,
    Slots,
    SpotSlots,
    TerminalNote,
    decode_capacity,
    decode_terminal,
    spot_slots,
    unit_slots,
)
from zlinkpy.location.store import StoreCorruption
from zlinkpy.wire import CreateOutcome, FailureCode, TerminalResult

ROOM_SLOTS = spot_slots("userSpot", "room:1")
ROW = CapacityRow(
    actors=Count(3, 1),
    spots=Count(2, 1),
    spot_types={"userSpot:room:1": Count(1, 1), "instanceSpot:cart": Count(1, 0)},
    moves={RELOCATION_ID.hex(): ROOM_SLOTS.with_actors(1)},
)


def test_a_capacity_row_is_read_back_as_it_was_written() -> None:
    assert decode_capacity(ROW.encode()) == ROW
    assert json.loads(ROW.encode()) == {
        "recordVersion": 1,
        "actors": {"active": 3, "reserved": 1},
        "spots": {"active": 2, "reserved": 1},
        "spotTypes": {
            "instanceSpot:cart": {"active": 1, "reserved": 0},
            "userSpot:room:1": {"active": 1, "reserved": 1},
        },
        "moves": {
            "000102030405060708090a0b0c0d0e0f": {
                "actors": 1,
                "spots": 1,
                "spotType": {"objectKind": "userSpot", "stableType": "room:1", "count": 1},
            }
        },
    }


CAPACITY_BREAKS: dict[str, Callable[[dict[str, Any]], object]] = {
    "version": lambda row: row.update(recordVersion=2),
    "actors missing": lambda row: row.pop("actors"),
    "below zero": lambda row: row["actors"].update(active=-1),
    "a fraction": lambda row: row["spots"].update(reserved=0.5),
    "true": lambda row: row["spots"].update(reserved=True),
    "too many": lambda row: row["spots"].update(active=2**31),
    "types a list": lambda row: row.update(spotTypes=[]),
    "type without kind": lambda row: row["spotTypes"].update({"room": {"active": 0, "reserved": 0}}),
    "type of unknown kind": lambda row: row["spotTypes"].update({"actor:x": {"active": 0, "reserved": 0}}),
    "type without name": lambda row: row["spotTypes"].update({"userSpot:": {"active": 0, "reserved": 0}}),
    "move under a short name": lambda row: row["moves"].update({"ab": row["moves"][RELOCATION_ID.hex()]}),
    "move under capitals": lambda row: row["moves"].update({"AB" * 16: row["moves"][RELOCATION_ID.hex()]}),
    "moves missing": lambda row: row.pop("moves"),
}


@pytest.mark.parametrize("name", CAPACITY_BREAKS)
def test_a_capacity_row_that_is_not_complete_and_exact_is_refused(name: str) -> None:
    fields = json.loads(ROW.encode())
    CAPACITY_BREAKS[name](fields)
    with pytest.raises(StoreCorruption, match="capacity"):
        decode_capacity(json.dumps(fields).encode())


@pytest.mark.contract("LO-215")
def test_what_each_unit_takes() -> None:
    assert Slots(actors=1) == ACTOR_SLOTS
    assert spot_slots("userSpot", "room") == Slots(spots=1, spot_type=SpotSlots("userSpot", "room", 1))
    assert spot_slots("instanceSpot", "cart") == Slots(spots=1, spot_type=SpotSlots("instanceSpot", "cart", 1))
    wide = evolve(ROOM, payload=evolve(room_payload(), members=Members(3, 4)))
    assert unit_slots(wide) == Slots(actors=3, spots=1, spot_type=SpotSlots("userSpot", "room", 1))
    alone = evolve(ROOM, payload=evolve(room_payload(mode=ExecutionMode.PER_ACTOR), members=Members(3, 4)))
    assert unit_slots(alone) == spot_slots("userSpot", "room")


@pytest.mark.contract("LO-217")
@pytest.mark.parametrize("change", ["unreserve", "activate", "release"])
@pytest.mark.parametrize("slots", [ACTOR_SLOTS, ROOM_SLOTS, Slots(spot_type=SpotSlots("userSpot", "room:1"))])
def test_a_return_below_zero_is_corruption(change: str, slots: Slots) -> None:
    for row in (CapacityRow(), evolve(ROW, spot_types={})):
        if row.actors.reserved and slots == ACTOR_SLOTS:
            continue
        with pytest.raises(CapacityUnderflow):
            getattr(row, change)(slots)


def test_what_is_taken_and_given_back_leaves_nothing() -> None:
    row = CapacityRow()
    for slots in (ACTOR_SLOTS, ROOM_SLOTS):
        assert row.reserve(slots).unreserve(slots) == row
        assert row.reserve(slots).activate(slots).release(slots) == row
        moving = row.begin_move(RELOCATION_ID, slots)
        assert moving.moves == {RELOCATION_ID.hex(): slots}
        assert moving.end_move(RELOCATION_ID, arrived=False) == row
        assert moving.end_move(RELOCATION_ID, arrived=True) == row.reserve(slots).activate(slots)
    with pytest.raises(KeyError):
        row.end_move(RELOCATION_ID, arrived=True)


@pytest.mark.contract("LO-216")
@pytest.mark.parametrize(
    ("limits", "slots", "first_refused"),
    [
        ({"actors": 3}, ACTOR_SLOTS, "actors"),
        ({"spots": 3}, spot_slots("userSpot", "room"), "spots"),
        ({"rooms": 3}, spot_slots("userSpot", "room"), "userSpot:room"),
        ({"spots": 5, "rooms": 3}, spot_slots("userSpot", "room"), "userSpot:room"),
    ],
)
def test_active_and_reserved_together_keep_within_each_limit(
    limits: dict[str, int], slots: Slots, first_refused: str
) -> None:
    node, row = server("n", **limits), CapacityRow()
    for count in range(3):
        assert row.shortage(slots, node) is None
        row = row.reserve(slots)
        if count:
            row = row.activate(slots)
    assert row.shortage(slots, node) == first_refused
    assert row.shortage(slots, server("n")) is None  # 0 is no limit
    other = spot_slots("instanceSpot", "cart")
    assert row.shortage(other, server("n", rooms=3)) is None


@given(st.lists(st.tuples(st.sampled_from(["reserve", "unreserve", "activate", "release"]), st.booleans())))
def test_counts_never_go_below_zero(steps: list[tuple[str, bool]]) -> None:
    row = CapacityRow()
    for name, is_actor in steps:
        before = row
        try:
            row = getattr(row, name)(ACTOR_SLOTS if is_actor else ROOM_SLOTS)
        except CapacityUnderflow:
            assert row is before
        assert decode_capacity(row.encode()) == row


CREATED = CreationTerminal(
    TerminalResult.OK, creation=Creation(CreateOutcome.CREATED, "actor", "user:42", 2**63 - 2), reply=b"\0hi"
)
TERMINALS = [
    CREATED,
    CreationTerminal(TerminalResult.OK, creation=Creation(CreateOutcome.REJECTED, "spot", "room:1", 3), reply=b"no"),
    CreationTerminal(TerminalResult.OK, creation=Creation(CreateOutcome.EXISTING, "spot", "room:1", 3)),
    CreationTerminal(TerminalResult.INTERNAL_ERROR, FailureCode.ACTOR_CREATE_FAILED),
]


@pytest.mark.contract("LO-232")
@pytest.mark.parametrize("terminal", TERMINALS)
def test_a_terminal_is_read_back_and_holds_no_route(terminal: CreationTerminal) -> None:
    assert decode_terminal(terminal.encode()) == terminal
    assert set(msgpack.unpackb(terminal.encode())) == {"result", "failure", "creation", "reply"}


@pytest.mark.contract("LO-232")
def test_a_terminal_is_kept_for_the_rest_of_the_deadline_and_five_minutes() -> None:
    operation = (42).to_bytes(8, "big") + (1).to_bytes(8, "big")
    note = TerminalNote("\x01\x02\x03\x04", 7, operation, CREATED, 12_000)
    assert note.key == keys.creation_terminal("\x01\x02\x03\x04", 7, operation)
    assert note.key == b"creation-terminal\x0001020304\x007\x00000000000000002a0000000000000001"
    assert note.put.retention_ms == 312_000
    assert evolve(note, remaining_ms=-5).put.retention_ms == 300_000
    longest = (1 << 20) - len(CREATED.encode())
    assert len(evolve(CREATED, reply=b"x" * longest).encode()) == 1 << 20
    with pytest.raises(InvalidOperationError, match="1048576"):
        evolve(CREATED, reply=b"x" * (longest + 1)).encode()


@pytest.mark.contract("LO-233")
@pytest.mark.parametrize(
    ("of", "change"),
    [
        (0, {"failure": 2}),
        (0, {"creation": None}),
        (3, {"creation": {"outcome": 2, "kind": "actor", "id": "a", "generation": 1}}),
        (3, {"reply": b""}),
        (2, {"reply": b""}),
        (0, {"result": 7}),
        (0, {"failure": 23}),
        (0, {"creation": {"outcome": 4, "kind": "actor", "id": "a", "generation": 1}}),
        (0, {"creation": {"outcome": 2, "kind": "spots", "id": "a", "generation": 1}}),
        (0, {"creation": {"outcome": 2, "kind": "actor", "id": "", "generation": 1}}),
        (0, {"creation": {"outcome": 2, "kind": "actor", "id": "a", "generation": 0}}),
        (0, {"reply": "text"}),
    ],
)
def test_a_terminal_that_contradicts_itself_is_corruption(of: int, change: dict[str, Any]) -> None:
    fields = msgpack.unpackb(TERMINALS[of].encode()) | change
    with pytest.raises(StoreCorruption, match="creation terminal"):
        decode_terminal(msgpack.packb(fields))


@pytest.mark.contract("LO-233")
def test_a_terminal_is_one_map_and_nothing_more() -> None:
    for raw in (b"", b"\xc0", CREATED.encode() + b"\0", CREATED.encode()[:-1]):
        with pytest.raises(StoreCorruption):
            decode_terminal(raw)
