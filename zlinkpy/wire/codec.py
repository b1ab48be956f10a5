"""Frames to records and back, in the order of wire.md §6.

`decode` runs one generated function per (topology, command, metadata flag). Which one is found by the first five
bytes of frame 0: the table of a connection holds exactly the prefixes that may arrive on it, so magic, major,
command, topology, lane, direction and flags are one lookup. Whatever is not accepted goes through
`zlinkpy.wire.explain`, which walks the steps one by one and raises the `ProtocolError` of the first that fails.

Nothing is copied from the payload frames, and nothing is reserved on the word of a header: frame 0 has a size bound by
command before it is parsed, and arrays are bounded by the layout (see `zlinkpy.wire.parse`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import msgpack
from attrs import frozen

from zlinkpy.errors import ProtocolError
from zlinkpy.wire.calls import ChannelRequest, ChannelSend, NodeRequest, NodeSend, Reply
from zlinkpy.wire.composite import Struct, struct_of
from zlinkpy.wire.emit import Emitter, Misfit
from zlinkpy.wire.enums import Direction, Lane, PayloadUse, Topology
from zlinkpy.wire.explain import explain
from zlinkpy.wire.limits import ADMISSION_MAX, FLAG_METADATA, PREFIX_SIZE
from zlinkpy.wire.metadata import decode_metadata, encode_metadata
from zlinkpy.wire.parse import PARSE_ERRORS, emit_unpack, encoded_admission_fits, parse_checked
from zlinkpy.wire.recall import recalling_tail, recalling_whole
from zlinkpy.wire.relocation import FrozenRecord
from zlinkpy.wire.schema import mistake
from zlinkpy.wire.table import COMMANDS, CommandSpec, prefix_of, spec_of

_NO_PARTS: tuple[bytes, ...] = ()
_FROZEN = struct_of(FrozenRecord)


@frozen
class Record:
    """A decoded record.

    Attributes:
        command: an instance of one of the command classes.
        metadata: read-only mapping, None when the record has no metadata frame.
        parts: the raw payload frames, as many as the payload head says.
    """

    command: Any
    metadata: Mapping[str, str] | None = None
    parts: Sequence[bytes] = _NO_PARTS


Reader = Callable[[Sequence[bytes]], Record]
Writer = Callable[[Any, int, bool], bytes]


def _reader(spec: CommandSpec, topology: Topology, *, metadata: bool) -> Reader:
    """Generate the function that turns the frames of one prefix into a Record, or raises without saying why."""
    e = Emitter()
    bounds = spec.bounds(topology)
    head = e.fresh()
    e.line(f"{head} = frames[0]")
    if bounds.size is not None:
        e.refuse_if(f"len({head}) > {bounds.size}")
    if spec.admission:
        e.refuse_if(f"not {e.bind(encoded_admission_fits)}({head}[{PREFIX_SIZE}:])")
    node = emit_unpack(e, bounds, f"{head}[{PREFIX_SIZE}:]")
    command = e.fresh()
    e.line(f"{command} = {spec.bodies[topology].read(e, node)}")
    payload = e.fresh()
    if spec.payload is not PayloadUse.NONE:
        e.line(f"{payload} = {command}.payload")
    parts = {
        PayloadUse.NONE: "0",
        PayloadUse.REQUIRED: f"{payload}.parts",
        PayloadUse.OPTIONAL: f"(0 if {payload} is None else {payload}.parts)",
    }[spec.payload]
    first = 2 if metadata else 1
    e.refuse_if(f"len(frames) != {first} + {parts}")
    rest = f"tuple(frames[{first}:])" if spec.payload is not PayloadUse.NONE else e.bind(_NO_PARTS)
    if spec.payload_limit is not None:
        e.line(f"{payload} = {rest}")
        e.refuse_if(f"sum(map(len, {payload})) > {spec.payload_limit}")
    entries = f"{e.bind(decode_metadata)}(frames[1])" if metadata else "None"
    e.line(f"return {e.bind(Record, 'Record')}({command}, {entries}, {rest})")
    return e.function(f"read_{spec.name}", "frames")


def _writer(spec: CommandSpec, topology: Topology) -> Writer:
    """Generate the function that makes frame 0 of a command, or raises without saying why."""
    e = Emitter()
    body = spec.bodies[topology].write(e, "command")
    parts = {
        PayloadUse.NONE: "0",
        PayloadUse.REQUIRED: "command.payload.parts",
        PayloadUse.OPTIONAL: "(0 if command.payload is None else command.payload.parts)",
    }[spec.payload]
    e.refuse_if(f"count != {parts}")
    prefix = e.bind(prefix_of(spec.id, 0))
    if spec.metadata:
        prefix = f"({e.bind(prefix_of(spec.id, FLAG_METADATA))} if flagged else {prefix})"
    else:
        e.refuse_if("flagged")
    e.line(f"return {prefix} + {e.bind(msgpack.packb, 'packb')}({body})")
    return e.function(f"write_{spec.name}", "command, count, flagged")


def _flags_of(spec: CommandSpec) -> tuple[bool, ...]:
    return (False, True) if spec.metadata else (False,)


_RECALLED_WHOLE = (ChannelSend, NodeSend)
_RECALLED_TAIL = (ChannelRequest, NodeRequest, Reply)


def _fast_reader(spec: CommandSpec, topology: Topology, *, metadata: bool) -> Reader:
    reader = _reader(spec, topology, metadata=metadata)
    if metadata:
        return reader
    if spec.cls in _RECALLED_WHOLE:
        return recalling_whole(reader, Record)
    if spec.cls in _RECALLED_TAIL:
        return recalling_tail(reader, Record, spec.cls)
    return reader


_READERS: dict[tuple[Topology, int, bool], Reader] = {
    (topology, spec.id, flag): _fast_reader(spec, topology, metadata=flag)
    for spec in COMMANDS.values()
    for topology in spec.bodies
    for flag in _flags_of(spec)
}


def _accepted(topology: Topology, lane: int, direction: int) -> dict[bytes, Reader]:
    """Every prefix that may arrive on such a connection. Lane or direction 0: not known, excludes nothing."""
    accepted: dict[bytes, Reader] = {}
    for (own, number, flag), reader in _READERS.items():
        spec = COMMANDS[number]
        on_lane = topology is Topology.CLIENT_SERVER or not lane or lane in spec.lanes
        right_way = topology is Topology.ROUTE_MESH or not direction or direction in spec.directions
        if own is topology and on_lane and right_way:
            accepted[prefix_of(number, FLAG_METADATA if flag else 0)] = reader
    return accepted


# Indexed by plain numbers (an IntEnum is one): hashing a tuple of enums would cost as much as the whole prefix lookup.
_ACCEPTED: tuple[dict[bytes, Reader], ...] = tuple(
    _accepted(topology, lane, direction) for topology, lane, direction in product(Topology, range(3), range(3))
)

_REFUSALS = (Misfit, ProtocolError, *PARSE_ERRORS)


def decode(
    frames: Sequence[bytes],
    *,
    topology: Topology,
    lane: Lane | None = None,
    direction: Direction | None = None,
    max_bytes: int | None = None,
) -> Record:
    """One record from its frames, checked completely (wire.md §6 steps 1-12; LV-177, LV-178).

    Args:
        frames: without the routing id frame; each a `bytes`.
        topology: of the connection.
        lane: of the RouteMesh connection. None before an accepted connection has said `hello`; ignored on ClientServer.
        direction: the way the record came on ClientServer; None skips that check. Ignored on RouteMesh.
        max_bytes: what all frames together may have (ClientServer); None for no cap.

    Raises:
        ProtocolError: `field` names the first offending place, see `docs/wire-commands.md` for the names.
    """
    try:
        reader = _ACCEPTED[topology * 9 - 9 + (lane or 0) * 3 + (direction or 0)].get(frames[0][:5])
        if reader is not None and (max_bytes is None or sum(map(len, frames)) <= max_bytes):
            return reader(frames)
    except (*_REFUSALS, IndexError):
        pass
    return explain(frames, topology, lane, direction, max_bytes)


_WRITERS: dict[type[Any], Writer] = {
    spec.cls: _writer(spec, Topology.ROUTE_MESH)
    for spec in COMMANDS.values()
    if not spec.admission and spec.payload_limit is None
}
"""Commands left out are rare, and what else they need (a choice of body, the bytes of the payload) is spelled out."""


def encode(
    command: Any,
    *,
    metadata: Mapping[str, str] | bytes | None = None,
    parts: Sequence[bytes] = _NO_PARTS,
) -> list[bytes]:
    """The frames of a record, ready to send.

    Args:
        command: an instance of a command class. The body of a hello, admit or update follows from its admission.
        metadata: None for no metadata frame; a mapping, or the frame `encode_metadata` made of one.
        parts: the raw payload frames, as many as `command.payload.parts`; empty without a payload.

    Raises:
        ValueError: a value is out of range, of a wrong type or does not go with the others; the text names the element.
    """
    count = len(parts)
    writer = _WRITERS.get(type(command))
    if metadata is None:
        if writer is not None:
            try:
                return [writer(command, count, False), *parts]
            except (Misfit, ValueError, TypeError, AttributeError, OverflowError):
                pass
        return [_spelled_out(command, parts, flagged=False), *parts]
    frame = metadata if isinstance(metadata, bytes) else encode_metadata(metadata)
    if writer is not None:
        try:
            return [writer(command, count, True), frame, *parts]
        except (Misfit, ValueError, TypeError, AttributeError, OverflowError):
            pass
    return [_spelled_out(command, parts, flagged=True), frame, *parts]


def _body_of(spec: CommandSpec, command: Any) -> Struct:
    """The layout a command is written in: with an admission, that of its topology."""
    if not spec.admission:
        return spec.bodies[Topology.ROUTE_MESH]
    for body in spec.bodies.values():
        if type(command.admission) is _admission_class(body):
            return body
    return mistake("body.admission", f"a {spec.name} cannot carry a {type(command.admission).__name__}")


def _admission_class(body: Struct) -> type[Any]:
    wire_type = dict(body.fields)["admission"]
    assert isinstance(wire_type, Struct)
    return wire_type.cls


def _spelled_out(command: Any, parts: Sequence[bytes], *, flagged: bool) -> bytes:
    """Frame 0 by the interpreting pass: raises ValueError with a reason, or accepts what only looks unusual (an
    IntEnum).
    """
    spec = spec_of(type(command))
    packed = _body_of(spec, command).dump(command, "body")
    payload = getattr(command, "payload", None) if spec.payload is not PayloadUse.NONE else None
    expected = 0 if payload is None else payload.parts
    if len(parts) != expected:
        mistake("parts", f"{len(parts)} frames were given, the payload head says {expected}")
    if spec.payload_limit is not None and (size := sum(map(len, parts))) > spec.payload_limit:
        mistake("parts", f"{size} bytes were given, a {spec.name} allows {spec.payload_limit}")
    if flagged and not spec.metadata:
        mistake("metadata", f"a {spec.name} carries none")
    body: bytes = msgpack.packb(packed)
    if spec.admission and not encoded_admission_fits(body):
        mistake("body.admission", f"takes more than {ADMISSION_MAX} bytes")
    return prefix_of(spec.id, FLAG_METADATA if flagged else 0) + body


def encode_frozen(record: FrozenRecord) -> bytes:
    """The bytes of one FrozenRecord as they stand inside a relocationData body: what a cutover's CRC runs over."""
    packed: bytes = msgpack.packb(_FROZEN.dump(record, "record"))
    return packed


def decode_frozen(data: bytes) -> FrozenRecord:
    """The FrozenRecord in `data`. Raises ProtocolError with `field` at or below ``record``."""
    record: FrozenRecord = parse_checked(data, "record", lambda node: _FROZEN.check(node, "record"))
    return record


__all__ = ["Record", "decode", "decode_frozen", "encode", "encode_frozen"]
