"""Arrays, structures, unions and the `ext` map: the types of `schema` put together, and classes turned into layouts.

A structure is an attrs class; its attributes in order are the elements of its array (wire.md §1: positions are never
dropped, nothing is keyed by name). `struct_of` derives the layout from the annotations once and caches it. What one
element cannot say alone (an origin is nil exactly at hop 0) is the class's `inconsistency` method; it is asked by both
directions and by both the generated and the explaining pass.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Annotated, Any, ClassVar, Protocol, Union, get_args, get_origin, get_type_hints, runtime_checkable

import attrs

from zlinkpy.wire.emit import Emitter, Misfit
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


def elements(node: Any, path: str) -> tuple[int, Sequence[Any]]:
    """Length an array claims, and the elements that are there (fewer only where the bytes end too early)."""
    if not isinstance(node, (tuple, list)) or isinstance(node, Pairs):
        violation(path, f"must be an array, is {shown(node)}")
    return getattr(node, "claimed", len(node)), node


class Opt(WireType):
    """nil or a value."""

    def __init__(self, inner: WireType) -> None:
        self.inner = inner
        self.notation = f"{inner.notation}?"

    def _branch(self, e: Emitter, name: str, emit: Callable[[Emitter, str], str]) -> str:
        out = e.fresh()
        with e.block(f"if {name} is None:"):
            e.line(f"{out} = None")
        with e.block("else:"):
            e.line(f"{out} = {emit(e, name)}")
        return out

    def read(self, e: Emitter, node: str) -> str:
        return self._branch(e, node, self.inner.read)

    def write(self, e: Emitter, value: str) -> str:
        return self._branch(e, value, self.inner.write)

    def _check(self, node: Any, path: str) -> Any:
        return None if node is None else self.inner.check(node, path)

    def dump(self, value: Any, path: str) -> Any:
        return None if value is None else self.inner.dump(value, path)

    @property
    def bounds(self) -> Bounds:
        return self.inner.bounds


class Arr(WireType):
    """low..high elements of one type; `ordered_by` makes them strictly ascending (so unique) by that key."""

    def __init__(
        self,
        inner: WireType,
        low: int,
        high: int,
        *,
        ordered_by: Callable[[Any], Any] | None = None,
        notation: str = "",
    ) -> None:
        self.inner = inner
        self.low = low
        self.high = high
        self.ordered_by = ordered_by
        self.notation = f"[{inner.notation}, …]"

    def _descent(self, items: Sequence[Any]) -> int:
        """Index of the first element that is not above its predecessor; 0 when all ascend.

        Python orders str by code point, which is the order of their UTF-8 bytes.
        """
        if self.ordered_by is None:
            return 0
        keys = list(map(self.ordered_by, items))
        return next((index for index in range(1, len(keys)) if keys[index] <= keys[index - 1]), 0)

    def _emit(self, e: Emitter, name: str, element: Callable[[Emitter, str], str], *, order: bool) -> str:
        each = Emitter()
        each.line(f"return {element(each, 'x')}")
        function = e.bind(each.function("element", "x"))
        out = e.fresh()
        e.refuse_if(f"type({name}) is not tuple or not {self.low} <= len({name}) <= {self.high}")
        e.line(f"{out} = tuple([{function}(x) for x in {name}])")
        if order and self.ordered_by is not None:
            e.refuse_if(f"{e.bind(self._descent)}({out})")
        return out

    def read(self, e: Emitter, node: str) -> str:
        return self._emit(e, node, self.inner.read, order=True)

    def write(self, e: Emitter, value: str) -> str:
        if self.ordered_by is not None:  # the key is defined on values, not on what is packed
            e.refuse_if(f"type({value}) is not tuple or {e.bind(self._descent)}({value})")
        return self._emit(e, value, self.inner.write, order=False)

    def _check(self, node: Any, path: str) -> tuple[Any, ...]:
        claimed, items = elements(node, path)
        if not self.low <= claimed <= self.high:
            violation(path, f"must have {self.low}..{self.high} elements, has {claimed}")
        values = tuple(self.inner.check(item, f"{path}[{index}]") for index, item in enumerate(items))
        if place := self._descent(values):
            violation(f"{path}[{place}]", "is not above the element before it")
        return values

    def dump(self, value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, (tuple, list)) or not self.low <= len(value) <= self.high:
            mistake(path, f"must be a tuple of {self.low}..{self.high} elements")
        packed = tuple(self.inner.dump(item, f"{path}[{index}]") for index, item in enumerate(value))
        if place := self._descent(value):
            mistake(f"{path}[{place}]", "is not above the element before it")
        return packed

    @property
    def bounds(self) -> Bounds:
        inner = self.inner.bounds
        size = None if inner.size is None else 5 + self.high * inner.size
        return attrs.evolve(inner, size=size, array=max(self.high, inner.array))


class Tup(WireType):
    """A small array that stays a plain tuple in Python, its elements named for error paths and vectors."""

    def __init__(self, *parts: tuple[str, WireType]) -> None:
        self.parts = parts
        self.notation = "[" + ", ".join(f"{name} {part.notation}" for name, part in parts) + "]"

    def _emit(self, e: Emitter, name: str, method: str) -> str:
        names = [e.fresh() for _ in self.parts]
        e.refuse_if(f"type({name}) is not tuple or len({name}) != {len(names)}")
        e.line(f"{', '.join(names)}, = {name}")
        return "(" + "".join(f"{getattr(t, method)(e, n)}, " for n, (_, t) in zip(names, self.parts, strict=True)) + ")"

    def read(self, e: Emitter, node: str) -> str:
        return self._emit(e, node, "read")

    def write(self, e: Emitter, value: str) -> str:
        return self._emit(e, value, "write")

    def _check(self, node: Any, path: str) -> tuple[Any, ...]:
        claimed, items = elements(node, path)
        if claimed != len(self.parts):
            violation(path, f"must have {len(self.parts)} elements, has {claimed}")
        return tuple(t.check(item, f"{path}.{name}") for item, (name, t) in zip(items, self.parts, strict=False))

    def dump(self, value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, (tuple, list)) or len(value) != len(self.parts):
            mistake(path, f"must be a tuple of {len(self.parts)} elements")
        return tuple(t.dump(item, f"{path}.{name}") for item, (name, t) in zip(value, self.parts, strict=True))

    @property
    def bounds(self) -> Bounds:
        total = Bounds(5, array=len(self.parts))
        for _, part in self.parts:
            total += part.bounds
        return total


class By(WireType):
    """An element whose type follows from an enum element before it in the same structure."""

    def __init__(self, key: str, cases: Mapping[IntEnum, WireType]) -> None:
        self.key = key
        self.cases = cases
        self.notation = " / ".join(dict.fromkeys(case.notation for case in cases.values()))

    def emit(self, e: Emitter, name: str, key: str, method: str) -> str:
        """Emit the branches; `key` is the expression of the deciding element's number."""
        out = e.fresh()
        word = "if"
        for member, case in self.cases.items():
            with e.block(f"{word} {key} == {int(member)}:"):
                e.line(f"{out} = {getattr(case, method)(e, name)}")
            word = "elif"
        with e.block("else:"):
            e.line("raise Misfit")
        return out

    @property
    def bounds(self) -> Bounds:
        return _widest(case.bounds for case in self.cases.values())


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
        total = Bounds(5, array=len(self.fields))
        for _, t in self.fields:
            total += t.bounds
        return total


class OneOf(WireType):
    """A union: the leading constants of the array choose the structure."""

    def __init__(self, cases: Sequence[Struct]) -> None:
        self.cases = cases
        self.notation = " / ".join(case.notation for case in cases)
        assert all(case.constants for case in cases), "every member of a union starts with its tag"

    def read(self, e: Emitter, node: str) -> str:
        out = e.fresh()
        e.refuse_if(f"type({node}) is not tuple")
        word = "if"
        for case in self.cases:
            with e.block(f"{word} {node}[:{len(case.constants)}] == {case.constants!r}:"):
                e.line(f"{out} = {case.read(e, node)}")
            word = "elif"
        with e.block("else:"):
            e.line("raise Misfit")
        return out

    def write(self, e: Emitter, value: str) -> str:
        out = e.fresh()
        word = "if"
        for case in self.cases:
            with e.block(f"{word} type({value}) is {e.bind(case.cls, case.cls.__name__)}:"):
                e.line(f"{out} = {case.write(e, value)}")
            word = "elif"
        with e.block("else:"):
            e.line("raise Misfit")
        return out

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
        return _widest(case.bounds for case in self.cases)


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
        return _widest(t.bounds for _, t in self.entries.values()) | Bounds(None, array=CHANNELS_MAX, open_map=True)


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


def _widest(bounds: Iterable[Bounds]) -> Bounds:
    total = Bounds(0)
    for each in bounds:
        total |= each
    return total


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
    "Misfit",
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
