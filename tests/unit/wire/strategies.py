"""Hypothesis strategies derived from the layouts: every shape, with every leaf value it may have."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from hypothesis import strategies as st

from conformance.shapes import shapes
from zlinkpy.wire import COMMANDS, CommandSpec, Record, Topology
from zlinkpy.wire.composite import Arr, By, IntMap, OneOf, Opt, Struct, Tup
from zlinkpy.wire.metadata import MetadataPairs
from zlinkpy.wire.reply import AnyTail
from zlinkpy.wire.schema import Bin, Bool, Const, Enumerated, Int, Str, Wide, WireType

BODIES = [(spec, topology) for spec in COMMANDS.values() for topology in spec.bodies]
SHAPES = {(spec.id, topology): shapes(spec.bodies[topology]) for spec, topology in BODIES}
"""Every shape of every body, made once: the search for neighbours that keep the rules takes its time."""

# What rules compare: such an element keeps the value its shape has.
_FIXED = {"hop", "parts", "terminal_result", "failure_code"}


def text(low: int, high: int, *, nul: bool) -> st.SearchStrategy[str]:
    """Text whose *encoded* size is within the range, with some that touch the upper end."""
    alphabet = st.characters(exclude_categories=["Cs"], exclude_characters="" if nul else "\0")
    short = st.text(alphabet, min_size=low, max_size=min(high // 4, 20))
    edge = st.sampled_from(["x" * high, "é" * (high // 2), "€" * (high // 3), "𝄞" * (high // 4)])
    sized = edge.filter(lambda value: low <= len(value.encode()) <= high)
    return st.one_of(short, sized) if low < high else st.text("0123456789abcdef-", min_size=low, max_size=high)


@singledispatch
def vary(wire_type: WireType, shape: Any) -> st.SearchStrategy[Any]:
    """Values of the same shape as `shape`."""
    raise NotImplementedError(type(wire_type).__name__)


@vary.register
def _(wire_type: Int, shape: int) -> st.SearchStrategy[Any]:
    return st.one_of(st.integers(wire_type.low, wire_type.high), st.sampled_from([wire_type.low, wire_type.high]))


@vary.register
def _(wire_type: Str, shape: str) -> st.SearchStrategy[Any]:
    return text(wire_type.low, wire_type.high, nul=wire_type.nul)


@vary.register
def _(wire_type: Bin, shape: bytes) -> st.SearchStrategy[Any]:
    return st.binary(min_size=wire_type.low, max_size=min(wire_type.high or 64, 64))


@vary.register
def _(wire_type: Bool, shape: bool) -> st.SearchStrategy[Any]:
    return st.booleans()


@vary.register
def _(wire_type: Enumerated, shape: Any) -> st.SearchStrategy[Any]:
    return st.just(shape)


@vary.register
def _(wire_type: Wide, shape: int) -> st.SearchStrategy[Any]:
    return st.integers(1, 2**128 - 1)


@vary.register
def _(wire_type: Opt, shape: Any) -> st.SearchStrategy[Any]:
    return st.none() if shape is None else vary(wire_type.inner, shape)


@vary.register
def _(wire_type: Arr, shape: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if not shape:
        return st.just(())
    items = st.lists(vary(wire_type.inner, shape[0]), min_size=max(wire_type.low, 1), max_size=min(wire_type.high, 6))
    key = wire_type.ordered_by
    if key is None:
        return items.map(tuple)
    return items.map(lambda found: tuple(sorted({key(item): item for item in found}.values(), key=key)))


@vary.register
def _(wire_type: Tup, shape: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    return st.tuples(*(vary(part, item) for (_, part), item in zip(wire_type.parts, shape, strict=True)))


@vary.register
def _(wire_type: Struct, shape: Any) -> st.SearchStrategy[Any]:
    found: dict[str, st.SearchStrategy[Any]] = {}
    for name, t in wire_type.expected(getattr(shape, wire_type.fields[0][0])):
        if not isinstance(t, Const):
            case = t.cases[getattr(shape, t.key)] if isinstance(t, By) else t
            value = getattr(shape, name)
            found[name] = st.just(value) if name in _FIXED else vary(case, value)
    return st.builds(wire_type.cls, **found)


@vary.register
def _(wire_type: OneOf, shape: Any) -> st.SearchStrategy[Any]:
    return vary(next(case for case in wire_type.cases if case.cls is type(shape)), shape)


@vary.register
def _(wire_type: IntMap, shape: Any) -> st.SearchStrategy[Any]:
    found = {name: vary(t, getattr(shape, name)) for name, t in wire_type.entries.values()}
    return st.builds(wire_type.cls, **found)


@vary.register
def _(wire_type: MetadataPairs, shape: Any) -> st.SearchStrategy[Any]:
    return metadata_entries()


@vary.register
def _(wire_type: AnyTail, shape: Any) -> st.SearchStrategy[Any]:
    if shape is None:
        return st.none()
    leaf = st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), text(0, 40, nul=True), st.binary(max_size=40)
    )
    inner = st.lists(leaf, max_size=5).map(tuple)
    return st.lists(st.one_of(leaf, inner), max_size=6).map(tuple)


def metadata_entries() -> st.SearchStrategy[dict[str, str]]:
    keys = text(1, 60, nul=False)
    return st.dictionaries(keys, text(0, 60, nul=False), max_size=7)


@st.composite
def records(draw: st.DrawFn, spec: CommandSpec, topology: Topology) -> Record:
    """Records of one command, whole: command, metadata and payload frames."""
    body = spec.bodies[topology]
    command = draw(vary(body, draw(st.sampled_from(SHAPES[spec.id, topology]))))
    head = getattr(command, "payload", None)
    count = 0 if head is None else head.parts
    parts = tuple(draw(st.lists(st.binary(max_size=40), min_size=count, max_size=count)))
    metadata = draw(st.one_of(st.none(), metadata_entries())) if spec.metadata else None
    return Record(command, metadata, parts)


any_record = st.sampled_from(BODIES).flatmap(lambda pair: st.tuples(st.just(pair), records(*pair)))
"""((spec, topology), record) over all commands."""

__all__ = ["BODIES", "SHAPES", "any_record", "metadata_entries", "records", "text", "vary"]
