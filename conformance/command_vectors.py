"""The vectors of one command: every shape of it, and every way to break it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import evolve

from conformance.breakage import Break, Spot, breaks, last_leaf
from conformance.forms import to_json
from conformance.packing import Map, pack, replaced, tree, widest
from conformance.rules import ENDINGS, RULES, RuleBreak
from conformance.shapes import leaves, shapes
from conformance.vector import Connection, usual, vector
from zlinkpy.wire import (
    JOIN_PAYLOAD_MAX,
    CommandSpec,
    Direction,
    Lane,
    PayloadUse,
    Reply,
    Topology,
    encode,
    encode_metadata,
)
from zlinkpy.wire.composite import By, IntMap, OneOf, Opt, Struct
from zlinkpy.wire.limits import FLAG_METADATA
from zlinkpy.wire.schema import WireType, camel
from zlinkpy.wire.table import prefix_of

METADATA = {"tenant": "acme", "trace": ""}


def parts_of(command: Any) -> list[bytes]:
    """Payload frames that go with a command: as many as its head says, the first of them empty."""
    head = getattr(command, "payload", None)
    return [b"part %d" % index if index else b"" for index in range(0 if head is None else head.parts)]


def examples(spec: CommandSpec, topology: Topology) -> list[Any]:
    """Every shape of the command; for a reply also every allowed ending."""
    found = shapes(spec.bodies[topology])
    return found + [each for each in ENDINGS if each not in found] if spec.cls is Reply else found


def vectors(spec: CommandSpec, seen: set[Any]) -> Iterator[dict[str, Any]]:
    """All vectors of a command. `seen`: structures whose elements an earlier file has already broken one by one."""
    for topology, body in spec.bodies.items():
        yield from _valid(spec, topology, body)
        fullest = max(shapes(body), key=lambda command: leaves(body.dump(command, "body")))
        yield from _broken_bodies(spec, topology, body, fullest, seen)
        yield from _broken_frames(spec, topology, fullest)
    yield from _misplaced(spec)
    yield from _broken_rules(spec)
    if spec.payload_limit is not None:
        yield from _too_much(spec)


def _valid(spec: CommandSpec, topology: Topology, body: Struct) -> Iterator[dict[str, Any]]:
    connection = usual(spec, topology)

    def one(name: str, command: Any, frames: list[bytes], *, canonical: bool = True, metadata: Any = None) -> Any:
        return vector(
            name,
            spec.name,
            connection,
            frames,
            value=to_json(body, command),
            metadata=metadata and [list(pair) for pair in metadata.items()],
            parts=[part.hex() for part in parts_of(command)],
            canonical=canonical,
        )

    found = examples(spec, topology)
    for index, command in enumerate(found):
        yield one(f"shape {index + 1}", command, encode(command, parts=parts_of(command)))
    first = found[0]
    longest = prefix_of(spec.id, 0) + pack(widest(tree(body.dump(first, "body"))))
    yield one("longest encoding of every element", first, [longest, *parts_of(first)], canonical=False)
    if spec.metadata:
        frames = encode(first, parts=parts_of(first), metadata=METADATA)
        yield one("with metadata", first, frames, metadata=METADATA)
    if spec.admission and topology is Topology.ROUTE_MESH:
        yield one("unknown and reserved ext ids", first, [_with_ext(spec, body, first, _UNKNOWN)], canonical=False)
        calm = next(command for command in found if command.admission.ext.maintenance_wave is None)
        yield one("maintenanceWave as nil", calm, [_with_ext(spec, body, calm, ((5, None),))], canonical=False)
        odd = evolve(first, admission=evolve(first.admission, node_rid="a\0", advertised_endpoint="ep\0"))
        yield one("NUL in a RID and in an endpoint", odd, encode(odd))
    if spec.admission:
        return
    for lane in sorted(spec.lanes)[1:] if topology is Topology.ROUTE_MESH else []:
        yield vector(
            f"on the {lane.name.lower()} lane",
            spec.name,
            Connection(topology, lane=lane),
            encode(first, parts=parts_of(first)),
            value=to_json(body, first),
            metadata=None,
            parts=[part.hex() for part in parts_of(first)],
            canonical=True,
        )


_UNKNOWN = ((3, ["Room"]), (9, Map((("limit", 4),))), (4096, None), (-1, [[["deep"]]]))


def _with_ext(spec: CommandSpec, body: Struct, command: Any, extra: tuple[tuple[Any, Any], ...]) -> bytes:
    node = tree(body.dump(command, "body"))
    (place, known) = next(((0, index), item) for index, item in enumerate(node[0]) if isinstance(item, Map))
    return prefix_of(spec.id, 0) + pack(replaced(node, place, Map((*known.entries, *extra))))


def _broken_bodies(
    spec: CommandSpec, topology: Topology, body: Struct, command: Any, seen: set[Any]
) -> Iterator[dict[str, Any]]:
    connection = usual(spec, topology)
    node = tree(body.dump(command, "body"))

    def one(name: str, packed: bytes, field: str) -> dict[str, Any]:
        frames = [prefix_of(spec.id, 0) + packed, *parts_of(command)]
        return vector(name, spec.name, connection, frames, field=field)

    whole = pack(node)
    yield one("trailing byte", whole + b"\xc0", "body")
    yield one("last byte missing", whole[:-1], last_leaf(body, command, "body"))
    skipped = _known_structures(body, command, "body", seen)
    for each in breaks(body, Spot(node, command, (), "body")):
        if not any(_inside(each, path) for path in skipped):
            yield one(f"{each.field}: {each.label}", pack(replaced(node, each.place, each.node)), each.field)


def _inside(each: Break, path: str) -> bool:
    return each.field.startswith((f"{path}.", f"{path}["))


def _known_structures(wire_type: WireType, value: Any, path: str, seen: set[Any]) -> list[str]:
    """Paths of the structures inside `value` that need not be broken again; those met first are added to `seen`."""
    if isinstance(wire_type, Opt):
        return [] if value is None else _known_structures(wire_type.inner, value, path, seen)
    if isinstance(wire_type, OneOf):
        case = next(case for case in wire_type.cases if case.cls is type(value))
        return _known_structures(case, value, path, seen)
    if isinstance(wire_type, IntMap):
        if wire_type.cls in seen:
            return [path]
        seen.add(wire_type.cls)
        return []
    if not isinstance(wire_type, Struct):
        return []
    if path != "body":
        if wire_type.cls in seen:
            return [path]
        seen.add(wire_type.cls)
    found: list[str] = []
    for name, t in wire_type.expected(getattr(value, wire_type.fields[0][0])):
        case = t.cases[getattr(value, t.key)] if isinstance(t, By) else t
        found += _known_structures(case, getattr(value, name), f"{path}.{camel(name)}", seen)
    return found


def _broken_frames(spec: CommandSpec, topology: Topology, command: Any) -> Iterator[dict[str, Any]]:
    """Flags and frame counts."""
    connection = usual(spec, topology)
    head, *parts = encode(command, parts=parts_of(command))
    body = head[5:]
    metadata = encode_metadata(METADATA)

    def one(name: str, frames: list[bytes], field: str) -> dict[str, Any]:
        return vector(name, spec.name, connection, frames, field=field)

    flagged = prefix_of(spec.id, FLAG_METADATA) + body
    for flags in (0x02, 0x80) if spec.metadata else (0x01, 0x02, 0x80):
        yield one(f"flags {flags:#04x}", [prefix_of(spec.id, flags) + body, metadata, *parts], "prefix.flags")
    yield one("one frame more", [head, *parts, b"more"], "frames")
    if spec.payload is not PayloadUse.NONE:
        yield one("one frame less", [head, *parts[:-1]], "frames")
    if spec.metadata:
        yield one("flags 0x03", [prefix_of(spec.id, 3) + body, metadata, *parts], "prefix.flags")
        yield one("metadata frame without its flag", [head, metadata, *parts], "frames")
        yield one("metadata flag without its frame", [flagged, *parts], "frames")
        yield one("metadata is no msgpack", [flagged, b"\xc1", *parts], "metadata")


def _misplaced(spec: CommandSpec) -> Iterator[dict[str, Any]]:
    """The wrong lane, direction or topology."""
    command = shapes(spec.bodies[Topology.ROUTE_MESH])[0]
    frames = encode(command, parts=parts_of(command))
    for lane in Lane:
        if lane not in spec.lanes:
            where = Connection(Topology.ROUTE_MESH, lane=lane)
            yield vector(f"on the {lane.name.lower()} lane", spec.name, where, frames, field="lane")
    if Topology.CLIENT_SERVER not in spec.bodies:
        for direction in Direction:
            where = Connection(Topology.CLIENT_SERVER, direction=direction)
            yield vector("on ClientServer", spec.name, where, frames, field="topology")
        return
    command = shapes(spec.bodies[Topology.CLIENT_SERVER])[0]
    frames = encode(command, parts=parts_of(command))
    for direction in Direction:
        if direction not in spec.directions:
            where = Connection(Topology.CLIENT_SERVER, direction=direction)
            yield vector("against its direction", spec.name, where, frames, field="direction")


def _place(wire_type: WireType, value: Any, path: str) -> tuple[int, ...]:
    """Where a dotted element path is in the tree."""
    place: tuple[int, ...] = ()
    for name in filter(None, path.split(".")):
        while isinstance(wire_type, Opt):
            wire_type = wire_type.inner
        assert isinstance(wire_type, Struct)
        index = [camel(own) for own, _ in wire_type.fields].index(name)
        own, wire_type = wire_type.fields[index]
        value = getattr(value, own)
        place += (index,)
    return place


def rule_body(rule: RuleBreak, body: Struct) -> tuple[Any, bytes]:
    """The example a rule starts from, and the broken body."""
    command = next(each for each in shapes(body) if rule.choose(each))
    node = tree(body.dump(command, "body"))
    for path, wrong in rule.changes:
        node = replaced(node, _place(body, command, path), wrong)
    return command, pack(node)


def _broken_rules(spec: CommandSpec) -> Iterator[dict[str, Any]]:
    body = spec.bodies[Topology.ROUTE_MESH]
    for rule in RULES:
        if rule.cls is spec.cls:
            command, packed = rule_body(rule, body)
            frames = [prefix_of(spec.id, 0) + packed, *parts_of(command)]
            where = usual(spec, Topology.ROUTE_MESH)
            yield vector(f"rule: {rule.label}", spec.name, where, frames, field=rule.field)


def _too_much(spec: CommandSpec) -> Iterator[dict[str, Any]]:
    """A payload limit is about bytes, so its vector would be a megabyte of them; `repeat` says how it is made."""
    body = spec.bodies[Topology.ROUTE_MESH]
    command = next(each for each in shapes(body) if each.payload is not None and each.payload.parts == 1)
    head = encode(command, parts=[b""])[0]
    where = usual(spec, Topology.ROUTE_MESH)
    for size, field in ((JOIN_PAYLOAD_MAX, None), (JOIN_PAYLOAD_MAX + 1, "parts")):
        made = vector(
            f"payload of {size} bytes",
            spec.name,
            where,
            [head, b"\0"],
            field=field,
            **({} if field else {"value": to_json(body, command), "metadata": None, "canonical": True}),
        )
        yield made | {"repeat": {"frame": 1, "times": size}}
