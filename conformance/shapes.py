"""Example values of every shape a layout allows, so that a new command has vectors without anybody writing them.

`shapes` covers each choice once: every optional element there and not there, every member of a union and of an enum,
always together with neighbours that keep the rules between elements. Leaf values are fixed and readable.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from itertools import islice, product
from typing import Any

from zlinkpy.wire import REQUIRED_CAPABILITY, Flow, FlowOrigin, PayloadHead
from zlinkpy.wire.composite import Arr, By, IntMap, OneOf, Opt, Struct, Tup
from zlinkpy.wire.metadata import MetadataPairs
from zlinkpy.wire.reply import AnyTail
from zlinkpy.wire.schema import Bin, Bool, Const, Enumerated, Int, Str, Wide, WireType

FLOW = Flow("01980a7c-5d2e-7b31-9c44-0123456789ab", FlowOrigin.APPLICATION)

_TEXTS = {
    "mesh_name": "play",
    "node_rid": "node-a",
    "server_rid": "server-a",
    "source_rid": "node-a",
    "advertised_endpoint": "tcp://10.0.0.7:5501",
    "channel_name": "orders",
    "packet_name": "place_order",
    "content_type": "application/msgpack",
    "topic": "order/created",
    "actor_id": "user:42",
    "spot_id": "room:1",
    "stable_type": "Room",
    "field": "body.corr",
    "problem": "must be an integer 1..9223372036854775807, is 0",
    "security_identity": "node-a@play",
    "maintenance_wave": "wave-2",
}
_NUMBERS = {"hop": (0, 3), "parts": (1, 2), "failure_code": (0,), "terminal_result": (0,), "weight": (100,)}


def shapes(wire_type: WireType, name: str = "") -> list[Any]:
    """Values of this type, at least one, each of another shape. `name` is the element's, for readable leaves."""
    found = list(_shapes(wire_type, name))
    assert found, f"{wire_type.notation} has no shape"
    return found


@singledispatch
def _shapes(wire_type: WireType, name: str) -> Iterator[Any]:
    raise NotImplementedError(type(wire_type).__name__)


@_shapes.register
def _(wire_type: Int, name: str) -> Iterator[Any]:
    for number in _NUMBERS.get(name, (30_000 if name == "ms" else 7 + len(name),)):
        if wire_type.low <= number <= wire_type.high:
            yield number


@_shapes.register
def _(wire_type: Str, name: str) -> Iterator[Any]:
    text = _TEXTS.get(name, name.replace("_", "-") or "text")
    yield FLOW.flow_id if wire_type.low == wire_type.high == len(FLOW.flow_id) else text[: wire_type.high]


@_shapes.register
def _(wire_type: Bin, name: str) -> Iterator[Any]:
    size = wire_type.low if wire_type.low == wire_type.high else wire_type.low + 5
    yield bytes(range(1, size + 1))


@_shapes.register
def _(wire_type: Bool, name: str) -> Iterator[Any]:
    yield from (False, True)


@_shapes.register
def _(wire_type: Enumerated, name: str) -> Iterator[Any]:
    yield from wire_type.members


@_shapes.register
def _(wire_type: Wide, name: str) -> Iterator[Any]:
    yield 0x0102030405060708_090A0B0C0D0E0F10
    yield 5  # the high half alone may be 0


@_shapes.register
def _(wire_type: Opt, name: str) -> Iterator[Any]:
    yield from _shapes(wire_type.inner, name)
    yield None


@_shapes.register
def _(wire_type: Arr, name: str) -> Iterator[Any]:
    if name == "protocol_capabilities":
        yield (REQUIRED_CAPABILITY, "trace-1")
    elif wire_type.ordered_by is not None:
        yield (("billing", 0), ("orders", 100), ("ordersé", 10_000))
    else:
        first = shapes(wire_type.inner, name)[0]
        yield (first, first)
        yield (b"",) if isinstance(first, bytes) else (first,)
    if wire_type.low == 0:
        yield ()


@_shapes.register
def _(wire_type: Tup, name: str) -> Iterator[Any]:
    yield from product(*(shapes(part, own) for own, part in wire_type.parts))


@_shapes.register
def _(wire_type: OneOf, name: str) -> Iterator[Any]:
    for case in wire_type.cases:
        yield from _shapes(case, name)


@_shapes.register
def _(wire_type: MetadataPairs, name: str) -> Iterator[Any]:
    yield {"tenant": "acme", "empty": ""}
    yield {}


@_shapes.register
def _(wire_type: AnyTail, name: str) -> Iterator[Any]:
    yield None
    yield (("user:42", 7), "room:1", 7, b"\x01\x02", True, None, -1)


@_shapes.register
def _(wire_type: IntMap, name: str) -> Iterator[Any]:
    yield from _each_choice(wire_type.cls, [(own, shapes(t, own)) for own, t in wire_type.entries.values()])


@_shapes.register
def _(wire_type: Struct, name: str) -> Iterator[Any]:
    if wire_type.cls is PayloadHead:  # in every second record: only what matters, so that vectors stay few
        yield PayloadHead("place_order")
        yield PayloadHead("place_order", parts=2, flow=FLOW)
        return
    if wire_type.conditional:
        yield from _conditional(wire_type)
        return
    dependent = next((t for _, t in wire_type.fields if isinstance(t, By)), None)
    if dependent is None:
        yield from _each_choice(wire_type.cls, _choices(wire_type))
        return
    for member in dependent.cases:
        fixed = {dependent.key: [member]}
        choices = [
            (own, fixed.get(own) or shapes(t.cases[member] if isinstance(t, By) else t, own))
            for own, t in wire_type.fields
            if not isinstance(t, Const)
        ]
        yield from _each_choice(wire_type.cls, choices)


def _choices(struct: Struct) -> list[tuple[str, list[Any]]]:
    return [(own, shapes(t, own)) for own, t in struct.fields if not isinstance(t, Const)]


def _conditional(struct: Struct) -> Iterator[Any]:
    (first, members), *rest = _choices(struct)
    for member in members:
        present = rest if member in struct.when else rest[: len(rest) - struct.conditional]
        yield from _each_choice(struct.cls, [(first, [member]), *present])


def _each_choice(cls: type[Any], choices: list[tuple[str, list[Any]]]) -> Iterator[Any]:
    """Values that hold every choice of every attribute at least once and keep the class's own rule."""
    made: list[Any] = []
    for place, (_, options) in enumerate(choices):
        for option in options:
            if any(getattr(value, choices[place][0]) == option for value in made):
                continue
            pools = [[option] if index == place else own for index, (_, own) in enumerate(choices)]
            for picked in islice(product(*pools), 50_000):
                value = cls(**{name: item for (name, _), item in zip(choices, picked, strict=True)})
                if getattr(value, "inconsistency", lambda: None)() is None:
                    made.append(value)
                    break
    yield from made


def leaves(packed: Any) -> int:
    """Number of elements in a packed value that are not nil: the fuller of two shapes has more."""
    if isinstance(packed, dict):
        return sum(map(leaves, packed.values()))
    return sum(map(leaves, packed)) if isinstance(packed, (tuple, list)) else int(packed is not None)
