"""Every way to break a body that its layout implies, each with the field a receiver must name (LV-178).

The expectation comes from the layout and the position of the break, not from the codec under test: the two meet in the
vectors. A break changes one thing only, so that no second rule can be the one that fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from typing import Any

from attrs import frozen

from conformance.packing import BAD_UTF8, EMPTY_MAP, EXTENSION, FLOAT, HUGE_ARRAY, TIMESTAMP, Map, at
from zlinkpy.wire.composite import Arr, By, IntMap, OneOf, Opt, Struct, Tup
from zlinkpy.wire.metadata import MetadataPairs
from zlinkpy.wire.reply import AnyTail
from zlinkpy.wire.schema import Bin, Bool, Const, Enumerated, Int, Str, Wide, WireType, camel

Place = tuple[int, ...]
CLAIM = "claims 2^31-1 elements"


@frozen
class Break:
    """Replace the node at `place` by `node`; a receiver must refuse the record naming `field`."""

    label: str
    place: Place
    node: Any
    field: str


@frozen
class Spot:
    """Where in a tree a type is being broken, and what stands there now."""

    tree: Any
    value: Any
    place: Place
    path: str

    @property
    def node(self) -> Any:
        return at(self.tree, self.place)

    def inner(self, index: int, value: Any, path: str) -> Spot:
        return Spot(self.tree, value, (*self.place, index), path)

    def put(self, label: str, node: Any, field: str | None = None) -> Break:
        return Break(label, self.place, node, self.path if field is None else field)


def breaks(wire_type: WireType, spot: Spot) -> Iterator[Break]:
    """All breaks of a value of this type and of everything inside it."""
    yield spot.put("float", FLOAT)
    yield spot.put("extension type", EXTENSION)
    yield from _breaks(wire_type, spot)


@singledispatch
def _breaks(wire_type: WireType, spot: Spot) -> Iterator[Break]:
    raise NotImplementedError(type(wire_type).__name__)


@_breaks.register
def _(wire_type: Int, spot: Spot) -> Iterator[Break]:
    yield spot.put("nil", None)
    yield spot.put("text", "7")
    yield spot.put("true", True)
    yield spot.put("array", [])
    yield spot.put("below range", wire_type.low - 1)
    if wire_type.high < 2**64 - 1:
        yield spot.put("above range", wire_type.high + 1)


@_breaks.register
def _(wire_type: Str, spot: Spot) -> Iterator[Break]:
    yield spot.put("number", 7)
    yield spot.put("bin", b"text")
    yield spot.put("array", ["text"])
    yield spot.put("not UTF-8", BAD_UTF8)
    yield spot.put("too long", "x" * (wire_type.high + 1))
    yield spot.put("too long in bytes only", "é" * (wire_type.high // 2 + 1))
    if wire_type.low:
        yield spot.put("empty", "")
    if not wire_type.nul:
        yield spot.put("NUL", "a\0b")


@_breaks.register
def _(wire_type: Bin, spot: Spot) -> Iterator[Break]:
    yield spot.put("text", "text")
    yield spot.put("number", 7)
    if wire_type.low:
        yield spot.put("too short", bytes(wire_type.low - 1))
    if wire_type.high is not None and wire_type.high <= 4096:
        yield spot.put("too long", bytes(wire_type.high + 1))


@_breaks.register
def _(wire_type: Bool, spot: Spot) -> Iterator[Break]:
    yield spot.put("number", 1)
    yield spot.put("nil", None)


@_breaks.register
def _(wire_type: Enumerated, spot: Spot) -> Iterator[Break]:
    numbers = [int(member) for member in wire_type.members]
    yield spot.put("unknown", max(numbers) + 1)
    yield spot.put("unknown below", min(numbers) - 1)
    yield spot.put("true", True)
    yield spot.put("nil", None)
    yield spot.put("text", "1")


@_breaks.register
def _(wire_type: Const, spot: Spot) -> Iterator[Break]:
    yield spot.put("other value", 99)
    yield spot.put("coordinator", 3)
    yield spot.put("true", True)
    yield spot.put("nil", None)


@_breaks.register
def _(wire_type: Wide, spot: Spot) -> Iterator[Break]:
    yield spot.put("zero", [0, 0])
    yield spot.put("one half", [1])
    yield spot.put("three halves", [1, 2, 3])
    yield spot.put("number", 7)
    yield spot.put("negative half", [1, -1], f"{spot.path}[1]")
    yield spot.put("text half", ["1", 1], f"{spot.path}[0]")


@_breaks.register
def _(wire_type: Opt, spot: Spot) -> Iterator[Break]:
    if spot.value is None:
        yield spot.put("false for nil", False)
        return
    yield from (each for each in _breaks(wire_type.inner, spot) if each.node is not None or each.place != spot.place)


@_breaks.register
def _(wire_type: Arr, spot: Spot) -> Iterator[Break]:
    yield spot.put("nil", None)
    yield spot.put("map", EMPTY_MAP)
    yield spot.put(CLAIM, HUGE_ARRAY)
    if wire_type.low:
        yield spot.put("too short", spot.node[: wire_type.low - 1])
    if wire_type.high <= 4096:
        yield spot.put("too long", [spot.node[0]] * (wire_type.high + 1))
    if wire_type.ordered_by is not None and len(spot.node) > 1:
        yield spot.put("out of order", spot.node[::-1], f"{spot.path}[1]")
        yield spot.put("twice the same", [spot.node[0], spot.node[0]], f"{spot.path}[1]")
    if spot.value:
        last = len(spot.value) - 1
        yield from breaks(wire_type.inner, spot.inner(last, spot.value[last], f"{spot.path}[{last}]"))


def _array(spot: Spot) -> Iterator[Break]:
    yield spot.put("nil", None)
    yield spot.put("map", EMPTY_MAP)
    yield spot.put("text", "array")
    yield spot.put("one short", spot.node[:-1])
    yield spot.put("one long", [*spot.node, None])
    yield spot.put(CLAIM, HUGE_ARRAY)


@_breaks.register
def _(wire_type: Tup, spot: Spot) -> Iterator[Break]:
    yield from _array(spot)
    for index, (name, part) in enumerate(wire_type.parts):
        yield from breaks(part, spot.inner(index, spot.value[index], f"{spot.path}.{name}"))


@_breaks.register
def _(wire_type: Struct, spot: Spot) -> Iterator[Break]:
    yield from _array(spot)
    for index, (name, t) in enumerate(wire_type.expected(getattr(spot.value, wire_type.fields[0][0]))):
        case = t.cases[getattr(spot.value, t.key)] if isinstance(t, By) else t
        yield from breaks(case, spot.inner(index, getattr(spot.value, name), f"{spot.path}.{camel(name)}"))


@_breaks.register
def _(wire_type: OneOf, spot: Spot) -> Iterator[Break]:
    case = next(case for case in wire_type.cases if case.cls is type(spot.value))
    yield spot.put("no tag", [])
    tags = {each.constants[0] for each in wire_type.cases}
    for each in breaks(case, spot):
        # Another member's tag makes it another structure, and so does an array that swallows what follows it: which
        # element fails first is then not the break's point.
        retagged = each.place == (*spot.place, 0) and each.node in tags and each.node is not True
        if not retagged and not (each.place == spot.place and each.node is HUGE_ARRAY):
            yield each


@_breaks.register
def _(wire_type: IntMap, spot: Spot) -> Iterator[Break]:
    entries = spot.node.entries
    yield spot.put("array", [])
    yield spot.put("nil", None)
    yield spot.put("id twice", Map((*entries, entries[0])))
    yield spot.put("unknown id twice", Map((*entries, (200, 1), (200, 1))))
    yield spot.put("text key", Map((*entries, ("1", 1))))
    yield spot.put("true as key", Map((*entries, (True, 1))))
    yield spot.put("float in an unknown entry", Map((*entries, (200, [[FLOAT]]))))
    yield spot.put("extension in an unknown entry", Map((*entries, (200, TIMESTAMP))))
    for index, (number, _) in enumerate(entries):
        name, t = wire_type.entries[number]
        if not isinstance(t, Opt):
            yield spot.put(
                f"no {camel(name)}", Map(entries[:index] + entries[index + 1 :]), f"{spot.path}.{camel(name)}"
            )
        yield from breaks(t, spot.inner(index, getattr(spot.value, name), f"{spot.path}.{camel(name)}"))


@_breaks.register
def _(wire_type: AnyTail, spot: Spot) -> Iterator[Break]:
    yield spot.put("number", 7)
    yield spot.put("text", "tail")
    yield spot.put("map", EMPTY_MAP)
    yield spot.put("float inside", [[FLOAT]])
    yield spot.put("map inside", [1, EMPTY_MAP])
    yield spot.put("too deep", [[[[[1]]]]])
    yield spot.put("too long", [1] * 17)


@_breaks.register
def _(wire_type: MetadataPairs, spot: Spot) -> Iterator[Break]:
    yield spot.put("map", EMPTY_MAP)
    yield spot.put("key without value", ["a"])
    yield spot.put("key twice", ["a", "1", "a", "2"], f"{spot.path}[2]")
    yield spot.put("empty key", ["", "1"], f"{spot.path}[0]")
    yield spot.put("number as value", ["a", 1], f"{spot.path}[1]")
    yield spot.put("NUL in a value", ["a", "\0"], f"{spot.path}[1]")
    yield spot.put("too long", ["a", "x" * 600, "b", "x" * 600])
    yield spot.put("too many", [text for index in range(256) for text in (f"{index:x}", "")])


def last_leaf(wire_type: WireType, value: Any, path: str) -> str:
    """Path of the element whose bytes end the body: the one to name when the last byte is missing."""
    if isinstance(wire_type, Opt):
        return path if value is None else last_leaf(wire_type.inner, value, path)
    if isinstance(wire_type, OneOf):
        return last_leaf(next(case for case in wire_type.cases if case.cls is type(value)), value, path)
    if isinstance(wire_type, Struct):
        name, t = wire_type.expected(getattr(value, wire_type.fields[0][0]))[-1]
        case = t.cases[getattr(value, t.key)] if isinstance(t, By) else t
        return last_leaf(case, getattr(value, name), f"{path}.{camel(name)}")
    if isinstance(wire_type, IntMap):
        name, t = list(wire_type.entries.values())[-1]
        return last_leaf(t, getattr(value, name), f"{path}.{camel(name)}")
    if isinstance(wire_type, (Arr, Tup)) and value:
        index = len(value) - 1
        inner = wire_type.inner if isinstance(wire_type, Arr) else wire_type.parts[index][1]
        name = f"{path}[{index}]" if isinstance(wire_type, Arr) else f"{path}.{wire_type.parts[index][0]}"
        return last_leaf(inner, value[index], name)
    return f"{path}[1]" if isinstance(wire_type, Wide) else path
