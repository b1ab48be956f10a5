"""Arrays that are not structures: lists, small tuples, optional elements, and elements typed by another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

import attrs

from zlinkpy.wire.emit import Emitter
from zlinkpy.wire.schema import Bounds, Pairs, WireType, mistake, shown, violation


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
        return together(part.bounds for _, part in self.parts)


class By(WireType):
    """An element whose type follows from an enum element before it in the same structure."""

    def __init__(self, key: str, cases: Mapping[IntEnum, WireType]) -> None:
        self.key = key
        self.cases = cases
        self.notation = " / ".join(dict.fromkeys(case.notation for case in cases.values()))

    def emit(self, e: Emitter, name: str, key: str, method: str) -> str:
        """Emit the branches; `key` is the expression of the deciding element's number."""
        return e.choose(
            (f"{key} == {int(member)}", partial(getattr(case, method), e, name)) for member, case in self.cases.items()
        )

    @property
    def bounds(self) -> Bounds:
        return widest(case.bounds for case in self.cases.values())


def together(bounds: Iterable[Bounds]) -> Bounds:
    """Bounds of an array that holds one value of each."""
    parts = list(bounds)
    return sum(parts, Bounds(5, array=len(parts)))


def widest(bounds: Iterable[Bounds]) -> Bounds:
    """Bounds that hold any one of several values."""
    total = Bounds(0)
    for each in bounds:
        total |= each
    return total


__all__ = ["Arr", "By", "Opt", "Tup", "elements", "together", "widest"]
