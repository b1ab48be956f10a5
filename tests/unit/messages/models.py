"""Messages of the tests; at module level, where their annotations resolve."""

from __future__ import annotations

import datetime
import enum
import typing
import uuid
from typing import Any, Literal

import attrs

from zlinkpy.messages import Request, message

Cell = typing.NewType("Cell", int)


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


class Mode(enum.Enum):
    FAST = "fast"
    SAFE = "safe"


@message
class Seat:
    name: str


@message
class Board:
    cells: str


@message("place-mark")
class PlaceMark(Request[Board]):
    cell: int
    by: str = "nobody"


@message
class Leave(Request[None]):
    reason: str = ""


@message
class AskLater(Request["Later"]):
    pass


@message
class Later:
    text: str


@attrs.frozen
class Point:
    x: int
    y: int


@message
class Tree:
    label: str = ""
    children: list[Tree] = attrs.field(factory=list)
    parent: Tree | None = None


@message
class Everything:
    flag: bool
    number: int
    ratio: float
    text: str
    data: bytes
    seat: Seat
    seats: list[Seat]
    by_name: dict[str, Seat]
    by_number: dict[int, list[int]]
    same: tuple[int, ...]
    mixed: tuple[int, str]
    tags: set[str]
    codes: frozenset[int]
    colour: Colour
    mode: Mode
    word: Literal["on", "off", 3, True]
    when: datetime.datetime
    ident: uuid.UUID
    either: int | str | None
    cell: Cell
    point: Point
    anything: Any
    maybe: Seat | None = None
    maybe_mode: Mode | None = None
    nothing: None = None


def everything(**changes: Any) -> Everything:
    values: dict[str, Any] = {
        "flag": True,
        "number": -(2**63),
        "ratio": 1.5,
        "text": "öß€😀",
        "data": b"\x00\xff",
        "seat": Seat("a"),
        "seats": [Seat("b"), Seat("c")],
        "by_name": {"d": Seat("d")},
        "by_number": {-1: [1, 2], 2**40: []},
        "same": (1, 2, 3),
        "mixed": (1, "x"),
        "tags": {"t", "u"},
        "codes": frozenset({1, 2}),
        "colour": Colour.BLUE,
        "mode": Mode.SAFE,
        "word": "off",
        "when": datetime.datetime(2026, 11, 30, 12, 30, 15, 7, tzinfo=datetime.timezone(datetime.timedelta(hours=9))),
        "ident": uuid.UUID(int=5),
        "either": "x",
        "cell": Cell(7),
        "point": Point(1, 2),
        "anything": {"k": [1, None, b"x"]},
    }
    return Everything(**(values | changes))
