"""The types a record body is made of: scalars here, arrays in `arrays`, structures in `composite`.

Each type says four things about itself: how generated code reads and writes it (`read`, `write`), how the explaining
pass does the same with a path (`check`, `dump`), how large it can be (`bounds`), and what the reference calls it
(`notation`). Keeping the four together is the point: a range is written down once.

Attributes of command classes name these types in their annotations (``corr: Gen``); `zlinkpy.wire.composite.struct_of`
turns a class into its body layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated, Any, NoReturn

from attrs import frozen

from zlinkpy.errors import ProtocolError
from zlinkpy.wire.emit import Emitter, Misfit
from zlinkpy.wire.limits import GEN_MAX, LONG_TEXT_MAX, MS_MAX, RID_MAX, TEXT_MAX, U32_MAX, U64_MAX


@frozen
class Malformed:
    """Stands in a parsed body for bytes that are no acceptable value; checking it against any type raises."""

    problem: str


class Pairs(tuple[Any, ...]):
    """A msgpack map as it stood on the wire: key, value pairs in order, duplicates included."""


@frozen
class Bounds:
    """How large an encoded value can be: `size` bytes (None: no bound), and the longest array, str and bin inside.

    `open_map`: it holds an int-keyed map whose unknown entries may be of any size.
    """

    size: int | None
    array: int = 0
    text: int = 0
    data: int = 0
    open_map: bool = False

    def __add__(self, other: Bounds) -> Bounds:
        size = None if self.size is None or other.size is None else self.size + other.size
        return self._merged(size, other)

    def __or__(self, other: Bounds) -> Bounds:
        size = None if self.size is None or other.size is None else max(self.size, other.size)
        return self._merged(size, other)

    def _merged(self, size: int | None, other: Bounds) -> Bounds:
        return Bounds(
            size,
            max(self.array, other.array),
            max(self.text, other.text),
            max(self.data, other.data),
            self.open_map or other.open_map,
        )


def violation(path: str, problem: str) -> NoReturn:
    """Raise the remote side's mistake."""
    raise ProtocolError(problem, field=path)


def mistake(path: str, problem: str) -> NoReturn:
    """Raise the local caller's mistake."""
    raise ValueError(f"{path}: {problem}")


def shown(value: object) -> str:
    """A value as an error text quotes it: short whatever its length."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value)) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    kinds = {str: "a str", bytes: "a bin", float: "a float", Pairs: "a map", dict: "a map"}
    for kind, text in kinds.items():
        if isinstance(value, kind):
            return text
    return "an array" if isinstance(value, (tuple, list)) else f"a {type(value).__name__}"


class WireType:
    """Base of all types. Subclasses without generated code of their own run their explaining pass in both roles."""

    notation: str = ""

    def read(self, e: Emitter, node: str) -> str:
        """Emit the checks of the parsed value named `node`; return the expression of the Python value."""
        out = e.fresh()
        e.line(f'{out} = {e.bind(self)}.check({node}, "")')
        return out

    def write(self, e: Emitter, value: str) -> str:
        """Emit the checks of the Python value named `value`; return the expression to pack."""
        out = e.fresh()
        e.line(f'{out} = {e.bind(self)}.dump({value}, "")')
        return out

    def check(self, node: Any, path: str) -> Any:
        """The Python value of a parsed node. Raises ProtocolError naming `path` or a place below it."""
        if isinstance(node, Malformed):
            violation(path, node.problem)
        return self._check(node, path)

    def _check(self, node: Any, path: str) -> Any:
        raise NotImplementedError

    def dump(self, value: Any, path: str) -> Any:
        """What to pack for a Python value. Raises ValueError naming `path` or a place below it."""
        raise NotImplementedError

    @property
    def bounds(self) -> Bounds:
        raise NotImplementedError


class Int(WireType):
    """An integer within [low, high]; any encoded form is accepted, a bool is not."""

    def __init__(self, notation: str, low: int, high: int) -> None:
        self.notation = notation
        self.low = low
        self.high = high
        self._range = f"must be an integer {low}..{high}"

    def read(self, e: Emitter, node: str) -> str:
        e.refuse_if(f"type({node}) is not int or not {self.low} <= {node} <= {self.high}")
        return node

    def write(self, e: Emitter, value: str) -> str:
        return self.read(e, value)

    def _check(self, node: Any, path: str) -> int:
        if type(node) is not int or not self.low <= node <= self.high:
            violation(path, f"{self._range}, is {shown(node)}")
        return node

    def dump(self, value: Any, path: str) -> int:
        # An IntEnum is welcome from a caller (terminal results, codes); what is packed is its number.
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            mistake(path, f"{self._range}, is {shown(value)}")
        return int(value)

    @property
    def bounds(self) -> Bounds:
        return Bounds(9)


def utf8_size(text: str) -> int:
    """Encoded size in bytes. Raises UnicodeEncodeError for lone surrogates."""
    return len(text) if text.isascii() else len(text.encode())


class Str(WireType):
    """UTF-8 text of low..high encoded bytes, without NUL where `nul` is False."""

    def __init__(self, notation: str, low: int, high: int, *, nul: bool = True) -> None:
        self.notation = notation
        self.low = low
        self.high = high
        self.nul = nul
        self._range = f"must be a str of {low}..{high} bytes" if low != high else f"must be a str of {low} bytes"

    def _fits(self, text: str) -> bool:
        return self.low <= utf8_size(text) <= self.high

    def read(self, e: Emitter, node: str) -> str:
        # Four bytes are the longest character, so a short text fits without being measured.
        short = f"{self.low} <= len({node}) <= {self.high // 4}" if self.low <= 1 else "False"
        nul = "" if self.nul else f' or "\\0" in {node}'
        e.refuse_if(f"type({node}) is not str or not ({short} or {e.bind(self._fits)}({node})){nul}")
        return node

    def write(self, e: Emitter, value: str) -> str:
        return self.read(e, value)

    def _problem(self, value: Any) -> str | None:
        if not isinstance(value, str):
            return f"{self._range}, is {shown(value)}"
        try:
            size = utf8_size(value)
        except UnicodeEncodeError:
            return "is not encodable as UTF-8"
        if not self.low <= size <= self.high:
            return f"{self._range}, has {size}"
        return None if self.nul or "\0" not in value else "must not contain NUL"

    def _check(self, node: Any, path: str) -> str:
        problem = self._problem(node)
        if problem is not None:
            violation(path, problem)
        return str(node)

    def dump(self, value: Any, path: str) -> str:
        problem = self._problem(value)
        if problem is not None:
            mistake(path, problem)
        return str(value)

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.high + 5, text=self.high)


class Bin(WireType):
    """Raw bytes of low..high; `high` None means that only the connection limits them."""

    def __init__(self, notation: str, low: int, high: int | None) -> None:
        self.notation = notation
        self.low = low
        self.high = high
        size = f"{low}" if low == high else f"{low} or more" if high is None else f"{low}..{high}"
        self._range = f"must be a bin of {size} bytes"

    def read(self, e: Emitter, node: str) -> str:
        low = f" or len({node}) < {self.low}" if self.low else ""
        high = "" if self.high is None else f" or len({node}) > {self.high}"
        e.refuse_if(f"type({node}) is not bytes{low}{high}")
        return node

    def write(self, e: Emitter, value: str) -> str:
        return self.read(e, value)

    def _fits(self, value: Any) -> bool:
        return isinstance(value, bytes) and len(value) >= self.low and (self.high is None or len(value) <= self.high)

    def _problem(self, value: Any) -> str:
        return f"{self._range}, is " + (f"one of {len(value)}" if isinstance(value, bytes) else shown(value))

    def _check(self, node: Any, path: str) -> bytes:
        if not self._fits(node):
            violation(path, self._problem(node))
        return bytes(node)

    def dump(self, value: Any, path: str) -> bytes:
        if not self._fits(value):
            mistake(path, self._problem(value))
        return bytes(value)

    @property
    def bounds(self) -> Bounds:
        return Bounds(5 + self.high, data=self.high) if self.high is not None else Bounds(None, data=U32_MAX)


class Bool(WireType):
    notation = "bool"

    def read(self, e: Emitter, node: str) -> str:
        e.refuse_if(f"type({node}) is not bool")
        return node

    def write(self, e: Emitter, value: str) -> str:
        return self.read(e, value)

    def _check(self, node: Any, path: str) -> bool:
        if type(node) is not bool:
            violation(path, f"must be a bool, is {shown(node)}")
        return node

    def dump(self, value: Any, path: str) -> bool:
        if type(value) is not bool:
            mistake(path, f"must be a bool, is {shown(value)}")
        return value

    @property
    def bounds(self) -> Bounds:
        return Bounds(1)


class Enumerated(WireType):
    """A member of a closed enum; on the wire its number."""

    def __init__(self, members: type[IntEnum]) -> None:
        self.members = members
        self._by_number: Mapping[int, IntEnum] = {int(member): member for member in members}
        self.notation = " / ".join(f"{int(m)} {camel(m.name.lower())}" for m in members)

    def read(self, e: Emitter, node: str) -> str:
        out = e.fresh()
        # The type comes first: true hashes and compares like 1, and a list cannot be looked up.
        e.line(f"{out} = {e.bind(self._by_number)}.get({node}) if type({node}) is int else None")
        e.refuse_if(f"{out} is None")
        return out

    def write(self, e: Emitter, value: str) -> str:
        e.refuse_if(f"type({value}) is not {e.bind(self.members)}")
        return f"int({value})"

    def _check(self, node: Any, path: str) -> IntEnum:
        member = self._by_number.get(node) if type(node) is int else None
        if member is None:
            violation(path, f"{shown(node)} is not a {self.members.__name__} ({self.notation})")
        return member

    def dump(self, value: Any, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value not in self._by_number:
            mistake(path, f"{shown(value)} is not a {self.members.__name__} ({self.notation})")
        return int(value)

    @property
    def bounds(self) -> Bounds:
        return Bounds(9)


class Const(WireType):
    """An element with one legal value, such as a union's tag or a sender's role. Callers cannot set it."""

    def __init__(self, value: int) -> None:
        self.value = int(value)
        self.notation = str(self.value)

    def read(self, e: Emitter, node: str) -> str:
        e.refuse_if(f"type({node}) is not int or {node} != {self.value}")
        return str(self.value)

    def write(self, e: Emitter, value: str) -> str:
        return str(self.value)

    def _check(self, node: Any, path: str) -> int:
        if type(node) is not int or node != self.value:
            violation(path, f"must be {self.value}, is {shown(node)}")
        return self.value

    def dump(self, value: Any, path: str) -> int:
        return self.value

    @property
    def bounds(self) -> Bounds:
        return Bounds(9)


class Wide(WireType):
    """A 128-bit id other than 0: one Python int, on the wire ``[high u64, low u64]``."""

    def __init__(self, notation: str) -> None:
        self.notation = notation

    def read(self, e: Emitter, node: str) -> str:
        high, low = e.fresh(), e.fresh()
        e.refuse_if(f"type({node}) is not tuple or len({node}) != 2")
        e.line(f"{high}, {low} = {node}")
        for half in (high, low):
            e.refuse_if(f"type({half}) is not int or not 0 <= {half} <= {U64_MAX}")
        e.refuse_if(f"not ({high} or {low})")
        return f"{high} << 64 | {low}"

    def write(self, e: Emitter, value: str) -> str:
        e.refuse_if(f"type({value}) is not int or not 0 < {value} < {1 << 128}")
        return f"({value} >> 64, {value} & {U64_MAX})"

    def _check(self, node: Any, path: str) -> int:
        if not isinstance(node, (tuple, list)) or getattr(node, "claimed", len(node)) != 2:
            violation(path, "must be an array of 2 elements")
        half = Int("u64", 0, U64_MAX)
        # A body that ends inside the pair has its Malformed as the last element, so the check stops there.
        high, low = (half.check(item, f"{path}[{index}]") for index, item in enumerate(node))
        if not (high or low):
            violation(path, "must not be 0")
        return int(high << 64 | low)

    def dump(self, value: Any, path: str) -> tuple[int, int]:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 128:
            mistake(path, f"must be an integer 1..2^128-1, is {shown(value)}")
        return value >> 64, value & U64_MAX

    @property
    def bounds(self) -> Bounds:
        return Bounds(23, array=2)


def camel(name: str) -> str:
    """The wire's spelling of a Python name: error paths, vectors and the reference use it, whatever the language."""
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)


# The names of wire.md §1, for annotations.
Gen = Annotated[int, Int("gen", 1, GEN_MAX)]
Ord = Annotated[int, Int("ord", 0, GEN_MAX)]
U32 = Annotated[int, Int("u32", 0, U32_MAX)]
Ms = Annotated[int, Int("ms", 1, MS_MAX)]
Text = Annotated[str, Str("t", 1, TEXT_MAX, nul=False)]
Rid = Annotated[str, Str("rid", 1, RID_MAX)]
Endpoint = Annotated[str, Str("ep", 1, LONG_TEXT_MAX)]
StoreVersion = Annotated[str, Str("ver", 1, LONG_TEXT_MAX)]
Sid = Annotated[bytes, Bin("sid", 4, 4)]
Op = Annotated[int, Wide("op")]
RelId = Annotated[int, Wide("RelId")]

__all__ = [
    "U32",
    "Bin",
    "Bool",
    "Bounds",
    "Const",
    "Endpoint",
    "Enumerated",
    "Gen",
    "Int",
    "Malformed",
    "Misfit",
    "Ms",
    "Op",
    "Ord",
    "Pairs",
    "RelId",
    "Rid",
    "Sid",
    "StoreVersion",
    "Str",
    "Text",
    "Wide",
    "WireType",
    "camel",
    "mistake",
    "shown",
    "utf8_size",
    "violation",
]
