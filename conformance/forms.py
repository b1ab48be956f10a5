"""Values of the wire as JSON, and back, driven by the layouts: the `value` of every vector.

A structure becomes an object whose keys are the wire's camelCase names in array order, constants and tags included; a
128-bit id becomes its two halves; bytes become ``{"hex": "…"}``. An integer that a reader with 64-bit floats would
round becomes ``{"int": "…"}``. Elements that do not exist in this shape are left out; nil is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

from zlinkpy.wire.composite import Arr, By, IntMap, OneOf, Opt, Struct, Tup
from zlinkpy.wire.metadata import MetadataPairs
from zlinkpy.wire.reply import AnyTail
from zlinkpy.wire.schema import Bin, Const, Enumerated, Wide, WireType, camel

EXACT = 2**53 - 1


def plain(value: Any) -> Any:
    """A scalar, or arrays of scalars, as JSON."""
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT:
        return {"int": str(int(value))}
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def scalar(form: Any) -> Any:
    """The other direction of `plain`; arrays become tuples."""
    if isinstance(form, list):
        return tuple(scalar(item) for item in form)
    if isinstance(form, dict):
        return bytes.fromhex(form["hex"]) if "hex" in form else int(form["int"])
    return form


@singledispatch
def to_json(wire_type: WireType, value: Any) -> Any:
    """The JSON form of a Python value of this type."""
    return plain(value)


@singledispatch
def from_json(wire_type: WireType, form: Any) -> Any:
    """The Python value a JSON form stands for."""
    return scalar(form)


@to_json.register
def _(wire_type: Opt, value: Any) -> Any:
    return None if value is None else to_json(wire_type.inner, value)


@from_json.register
def _(wire_type: Opt, form: Any) -> Any:
    return None if form is None else from_json(wire_type.inner, form)


@to_json.register
def _(wire_type: Const, value: Any) -> Any:
    return wire_type.value


@to_json.register
def _(wire_type: Wide, value: int) -> Any:
    return [plain(half) for half in wire_type.dump(value, "value")]


@from_json.register
def _(wire_type: Wide, form: Any) -> int:
    high, low = map(scalar, form)
    return int(high << 64 | low)


@from_json.register
def _(wire_type: Enumerated, form: int) -> Any:
    return wire_type.members(form)


@to_json.register
def _(wire_type: Arr, value: Any) -> Any:
    return [to_json(wire_type.inner, item) for item in value]


@from_json.register
def _(wire_type: Arr, form: Any) -> Any:
    return tuple(from_json(wire_type.inner, item) for item in form)


@to_json.register
def _(wire_type: Tup, value: Any) -> Any:
    return {name: to_json(part, item) for (name, part), item in zip(wire_type.parts, value, strict=True)}


@from_json.register
def _(wire_type: Tup, form: Any) -> Any:
    return tuple(from_json(part, form[name]) for name, part in wire_type.parts)


@to_json.register
def _(wire_type: Struct, value: Any) -> Any:
    fields = wire_type.expected(getattr(value, wire_type.fields[0][0]))
    return {
        camel(name): to_json(t.cases[getattr(value, t.key)] if isinstance(t, By) else t, getattr(value, name))
        for name, t in fields
    }


@from_json.register
def _(wire_type: Struct, form: Any) -> Any:
    values: dict[str, Any] = {}
    for name, t in wire_type.fields:
        if camel(name) in form and not isinstance(t, Const):
            case = t.cases[values[t.key]] if isinstance(t, By) else t
            values[name] = from_json(case, form[camel(name)])
    return wire_type.cls(**values)


@to_json.register
def _(wire_type: OneOf, value: Any) -> Any:
    return to_json(next(case for case in wire_type.cases if case.cls is type(value)), value)


@from_json.register
def _(wire_type: OneOf, form: Any) -> Any:
    for case in wire_type.cases:
        if all(form.get(camel(name)) == t.value for name, t in case.fields if isinstance(t, Const)):
            return from_json(case, form)
    raise ValueError(f"no {wire_type.notation} has these tags: {form}")


@to_json.register
def _(wire_type: IntMap, value: Any) -> Any:
    return {camel(name): to_json(t, getattr(value, name)) for name, t in wire_type.entries.values()}


@from_json.register
def _(wire_type: IntMap, form: Any) -> Any:
    return wire_type.cls(**{name: from_json(t, form[camel(name)]) for name, t in wire_type.entries.values()})


@to_json.register
def _(wire_type: MetadataPairs, value: Mapping[str, str]) -> Any:
    return [list(pair) for pair in value.items()]


@from_json.register
def _(wire_type: MetadataPairs, form: Any) -> Any:
    return dict(form)


@from_json.register
def _(wire_type: AnyTail, form: Any) -> Any:
    return scalar(form)


@from_json.register
def _(wire_type: Bin, form: Any) -> Any:
    return bytes.fromhex(form["hex"])
