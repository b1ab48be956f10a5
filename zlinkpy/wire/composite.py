"""Structures, unions and the `ext` map: classes turned into layouts.

A structure is an attrs class; its attributes in order are the elements of its array (wire.md §1: positions are never
dropped, nothing is keyed by name). `struct_of` derives the layout from the annotations once and caches it. What one
element cannot say alone (an origin is nil exactly at hop 0) is the class's `inconsistency` method; it is asked by both
directions and by both the generated and the explaining pass.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial
from itertools import chain
from typing import Annotated, Any, ClassVar, Protocol, Union, get_args, get_origin, get_type_hints, runtime_checkable

import attrs

from zlinkpy.wire.arrays import Arr, By, Opt, Tup, elements, together, widest
from zlinkpy.wire.emit import Emitter
from zlinkpy.wire.limits import CHANNELS_MAX, DEPTH_MAX
from zlinkpy.wire.schema import (
    Bool,
    Bounds,
    Const,
    Enumerated,
    Malformed,
    Pairs,
    WireType,
    camel,
    mistake,
    shown,
    violation,
)

_EXT_VALUE_DEPTH = 3  # body, admission and ext map are around it
Fault = tuple[str, str] | None
"""What an `inconsistency` method returns: None, or (dotted Python path of the element, what is wrong with it)."""


@runtime_checkable
class Checked(Protocol):
    """A structure with a rule across its elements."""

    def inconsistency(self) -> Fault: ...


def present_if(*values: int) -> dict[str, Any]:
    """Metadata of a trailing attribute that exists only where the structure's first element is one of `values`."""
    return {"present_if": tuple(map(int, values))}


def ext_id(number: int) -> dict[str, Any]:
    """Metadata of an attribute that is an entry of an int-keyed map."""
    return {"ext_id": number}


class Struct(WireType):
    """The layout of one attrs class: its annotations in order, constant elements being class variables.

    `narrowed` replaces the type of an attribute (None: the element does not exist) where a record has another body on
    another topology.
    """

    def __init__(self, cls: type[Any], narrowed: Mapping[str, WireType | None] | None = None) -> None:
        narrowed = narrowed or {}
        hints = get_type_hints(cls, include_extras=True)
        self.cls = cls
        self.notation = cls.__name__
        self.absent = tuple(name for name, t in narrowed.items() if t is None)
        self.fields: list[tuple[str, WireType]] = []
        self.conditional = 0
        self.when: tuple[int, ...] = ()
        own = attrs.fields_dict(cls)
        for name in inspect.get_annotations(cls):
            if name in self.absent:
                continue
            self.fields.append((name, narrowed.get(name) or type_of(hints[name])))
            if name in own and "present_if" in own[name].metadata:
                self.conditional += 1
                self.when = own[name].metadata["present_if"]
        self.checked = issubclass(cls, Checked)
        self.constants = tuple(t.value for _, t in self.fields if isinstance(t, Const))

    # -- generated pass ------------------------------------------------------------------------------------------

    def read(self, e: Emitter, node: str) -> str:
        if not self.conditional:
            return self._read_elements(e, node, self.fields)
        out = e.fresh()
        e.refuse_if(f"type({node}) is not tuple or not {node} or type({node}[0]) is not int")
        with e.block(f"if {node}[0] in {self.when!r}:"):
            e.line(f"{out} = {self._read_elements(e, node, self.fields)}")
        with e.block("else:"):
            e.line(f"{out} = {self._read_elements(e, node, self.fields[: -self.conditional])}")
        return out

    def _read_elements(self, e: Emitter, node: str, fields: list[tuple[str, WireType]]) -> str:
        names = [e.fresh() for _ in fields]
        e.refuse_if(f"type({node}) is not tuple or len({node}) != {len(names)}")
        e.line(f"{', '.join(names)}, = {node}")
        values: dict[str, str] = {}
        for local, (name, t) in zip(names, fields, strict=True):
            values[name] = t.emit(e, local, values[t.key], "read") if isinstance(t, By) else t.read(e, local)
        arguments = [value for (_, t), value in zip(fields, values.values(), strict=True) if not isinstance(t, Const)]
        call = f"{e.bind(self.cls, self.cls.__name__)}({', '.join(arguments)})"
        if not self.checked:
            return call
        out = e.fresh()
        e.line(f"{out} = {call}")
        e.refuse_if(f"{out}.inconsistency() is not None")
        return out

    def write(self, e: Emitter, value: str) -> str:
        e.refuse_if(f"type({value}) is not {e.bind(self.cls, self.cls.__name__)}")
        for name in self.absent:
            e.refuse_if(f"{value}.{name} is not None")
        if not self.conditional:
            return self._write_elements(e, value, self.fields)
        out = e.fresh()
        shared, rest = self.fields[: -self.conditional], self.fields[-self.conditional :]
        with e.block(f"if {value}.{self.fields[0][0]} in {self.when!r}:"):
            e.line(f"{out} = {self._write_elements(e, value, self.fields)}")
        with e.block("else:"):
            for name, _ in rest:
                e.refuse_if(f"{value}.{name} != {e.bind(self._default(name))}")
            e.line(f"{out} = {self._write_elements(e, value, shared)}")
        return out

    def _write_elements(self, e: Emitter, value: str, fields: list[tuple[str, WireType]]) -> str:
        packed: list[str] = []
        for name, t in fields:
            local = e.fresh()
            if not isinstance(t, Const):
                e.line(f"{local} = {value}.{name}")
            packed.append(t.emit(e, local, f"{value}.{t.key}", "write") if isinstance(t, By) else t.write(e, local))
        if self.checked:  # last: a rule may rely on the types of what it compares
            e.refuse_if(f"{value}.inconsistency() is not None")
        return "(" + "".join(f"{item}, " for item in packed) + ")"

    # -- explaining pass -----------------------------------------------------------------------------------------

    def _default(self, name: str) -> Any:
        return getattr(attrs.fields(self.cls), name).default

    def expected(self, first: Any) -> list[tuple[str, WireType]]:
        """The elements that exist, given the value of the first one (a parsed node, a member or a number)."""
        if self.conditional and not (type(first) is not bool and isinstance(first, int) and first in self.when):
            return self.fields[: -self.conditional]
        return self.fields

    def _check(self, node: Any, path: str) -> Any:
        claimed, items = elements(node, path)
        if self.conditional and claimed not in (full := len(self.fields), full - self.conditional):
            violation(path, f"must have {full - self.conditional} or {full} elements, has {claimed}")
        if self.conditional and items:
            self.fields[0][1].check(items[0], f"{path}.{camel(self.fields[0][0])}")
        fields = self.expected(items[0] if items else None)
        if claimed != len(fields):
            violation(path, f"must have {len(fields)} elements, has {claimed}")
        values: dict[str, Any] = {}
        for (name, t), item in zip(fields, items, strict=False):
            case = t.cases[values[t.key]] if isinstance(t, By) else t
            values[name] = case.check(item, f"{path}.{camel(name)}")
        value = self.cls(**{name: values[name] for name, t in fields if not isinstance(t, Const)})
        if self.checked and (fault := value.inconsistency()) is not None:
            violation(f"{path}.{camel_path(fault[0])}", fault[1])
        return value

    def dump(self, value: Any, path: str) -> tuple[Any, ...]:
        if type(value) is not self.cls:
            mistake(path, f"must be a {self.cls.__name__}, is {type(value).__name__}")
        for name in self.absent:
            if getattr(value, name) is not None:
                mistake(f"{path}.{camel(name)}", "does not exist on this topology")
        fields = self.expected(getattr(value, self.fields[0][0]))
        for name, _ in self.fields[len(fields) :]:
            if getattr(value, name) != self._default(name):
                mistake(f"{path}.{camel(name)}", f"exists only where {camel(self.fields[0][0])} is {self.when}")
        packed: list[Any] = []
        for name, t in fields:
            case = t.cases.get(getattr(value, t.key)) if isinstance(t, By) else t
            if case is None:
                mistake(f"{path}.{camel(name)}", "has no type for its kind")
            packed.append(case.dump(getattr(value, name), f"{path}.{camel(name)}"))
        if self.checked and (fault := value.inconsistency()) is not None:
            mistake(f"{path}.{camel_path(fault[0])}", fault[1])
        return tuple(packed)

    @property
    def bounds(self) -> Bounds:
        return together(t.bounds for _, t in self.fields)


class OneOf(WireType):
    """A union: the leading constants of the array choose the structure."""

    def __init__(self, cases: Sequence[Struct]) -> None:
        self.cases = cases
        self.notation = " / ".join(case.notation for case in cases)
        assert all(case.constants for case in cases), "every member of a union starts with its tag"

    def read(self, e: Emitter, node: str) -> str:
        e.refuse_if(f"type({node}) is not tuple")
        return e.choose(
            (f"{node}[:{len(case.constants)}] == {case.constants!r}", partial(case.read, e, node))
            for case in self.cases
        )

    def write(self, e: Emitter, value: str) -> str:
        return e.choose(
            (f"type({value}) is {e.bind(case.cls, case.cls.__name__)}", partial(case.write, e, value))
            for case in self.cases
        )

    def _check(self, node: Any, path: str) -> Any:
        _, items = elements(node, path)
        if not items:
            violation(path, "must start with its tag, is empty")
        left: list[Struct] = list(self.cases)
        for place in range(max(len(case.constants) for case in self.cases)):
            if len(left) == 1 or place >= len(items):
                break
            name = f"{path}.{camel(left[0].fields[place][0])}"
            item = items[place]
            if isinstance(item, Malformed):
                violation(name, item.problem)
            known = sorted({case.constants[place] for case in left})
            left = [case for case in left if type(item) is int and case.constants[place] == item]
            if not left:
                violation(name, f"must be one of {', '.join(map(str, known))}, is {shown(item)}")
        return left[0].check(node, path)

    def dump(self, value: Any, path: str) -> Any:
        for case in self.cases:
            if type(value) is case.cls:
                return case.dump(value, path)
        return mistake(path, f"must be a {self.notation}, is {type(value).__name__}")

    @property
    def bounds(self) -> Bounds:
        return widest(case.bounds for case in self.cases)


class IntMap(WireType):
    """The `ext` map (wire.md §4): known ids are attributes of one class, unknown ids are skipped, duplicates refused.

    Written in ascending order of id; an optional entry that is None is left out, and may come as nil or not at all.
    """

    def __init__(self, cls: type[Any]) -> None:
        hints = get_type_hints(cls, include_extras=True)
        self.cls = cls
        self.notation = cls.__name__
        self.entries = {a.metadata["ext_id"]: (a.name, type_of(hints[a.name])) for a in attrs.fields(cls)}

    def _check(self, node: Any, path: str) -> Any:
        if not isinstance(node, Pairs):
            violation(path, f"must be a map, is {shown(node)}")
        values: dict[str, Any] = {name: None for name, _ in self.entries.values()}
        seen: set[int] = set()
        for key, item in node:
            if isinstance(key, Malformed):
                violation(path, key.problem)
            if type(key) is not int:
                violation(path, f"has a key that is no integer but {shown(key)}")
            if key in seen:
                violation(path, f"has id {shown(key)} twice")
            seen.add(key)
            if key in self.entries:
                name, t = self.entries[key]
                values[name] = t.check(item, f"{path}.{camel(name)}")
            else:
                _skim(item, path)
        if isinstance(problem := getattr(node, "problem", None), Malformed):
            violation(path, problem.problem)
        for number, (name, t) in self.entries.items():
            if number not in seen and not isinstance(t, Opt):
                violation(f"{path}.{camel(name)}", f"is missing (id {number})")
        return self.cls(**values)

    def dump(self, value: Any, path: str) -> dict[int, Any]:
        if type(value) is not self.cls:
            mistake(path, f"must be an {self.cls.__name__}, is {type(value).__name__}")
        packed = {n: t.dump(getattr(value, name), f"{path}.{camel(name)}") for n, (name, t) in self.entries.items()}
        return {number: item for number, item in packed.items() if item is not None}

    @property
    def bounds(self) -> Bounds:
        return widest(t.bounds for _, t in self.entries.values()) | Bounds(None, array=CHANNELS_MAX, open_map=True)


def _skim(node: Any, path: str) -> None:
    """Hold a skipped value to what every body obeys: no floats, no extension types, bounded nesting."""
    left = [(node, _EXT_VALUE_DEPTH)]
    while left:
        item, depth = left.pop()
        if isinstance(item, Malformed):
            violation(path, item.problem)
        elif isinstance(item, (tuple, list)):
            if depth >= DEPTH_MAX or len(item) > CHANNELS_MAX:
                violation(path, "holds a value that is nested too deeply or too long")
            # The pair of a map is no level of its own.
            inner = chain.from_iterable(item) if isinstance(item, Pairs) else item
            left.extend((each, depth + 1) for each in inner)
        elif not (item is None or isinstance(item, (bool, int, str, bytes))):
            violation(path, f"holds {shown(item)}, which no body may contain")


def camel_path(path: str) -> str:
    """A dotted Python path in the wire's spelling."""
    return ".".join(map(camel, path.split(".")))


_LAYOUTS: dict[type[Any], Struct] = {}


def struct_of(cls: type[Any]) -> Struct:
    """The layout of a structure class."""
    layout = _LAYOUTS.get(cls)
    if layout is None:
        layout = _LAYOUTS[cls] = Struct(cls)
    return layout


def type_of(hint: Any) -> WireType:
    """The wire type an annotation stands for."""
    if get_origin(hint) is ClassVar:
        return type_of(get_args(hint)[0])
    if get_origin(hint) is Annotated:
        return next(extra for extra in get_args(hint)[1:] if isinstance(extra, WireType))
    if get_origin(hint) in (Union, types.UnionType):
        members = [arm for arm in get_args(hint) if arm is not type(None)]
        inner = type_of(members[0]) if len(members) == 1 else OneOf([struct_of(arm) for arm in members])
        return Opt(inner) if len(members) < len(get_args(hint)) else inner
    if hint is bool:
        return Bool()
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return Enumerated(hint)
    if isinstance(hint, type) and attrs.has(hint):
        if any("ext_id" in attribute.metadata for attribute in attrs.fields(hint)):
            return IntMap(hint)
        return struct_of(hint)
    raise TypeError(f"{hint!r} has no wire type")


__all__ = [
    "Arr",
    "By",
    "Checked",
    "Fault",
    "IntMap",
    "OneOf",
    "Opt",
    "Struct",
    "Tup",
    "camel_path",
    "elements",
    "ext_id",
    "present_if",
    "struct_of",
    "type_of",
]
