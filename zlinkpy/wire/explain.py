"""What exactly is wrong with a record that the codec refused: wire.md §6 walked step by step.

The names it uses in `ProtocolError.field` are the same for every language and travel to the peer in a `Close`;
`FIELD_NAMES` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from zlinkpy.wire.enums import Direction, Lane, Topology
from zlinkpy.wire.limits import ADMISSION_MAX, FLAG_METADATA, MAGIC, PREFIX_SIZE, WIRE_MAJOR
from zlinkpy.wire.metadata import decode_metadata
from zlinkpy.wire.parse import LenientParser, encoded_admission_fits
from zlinkpy.wire.schema import WireType, violation
from zlinkpy.wire.table import COMMANDS, CommandSpec

FIELD_NAMES: Mapping[str, str] = {
    "frames": "the number of frames",
    "prefix": "frame 0 is too short to hold a prefix and a body",
    "prefix.magic": "the first two bytes",
    "prefix.major": "the major version",
    "prefix.command": "the number is reserved",
    "topology": "the command does not exist on this topology",
    "lane": "the command does not travel on this lane",
    "direction": "the command does not travel this way",
    "prefix.flags": "a flag that is not allowed for the command",
    "body": "the array: its form, its length, bytes behind it, or the size of frame 0",
    "body.payload.parts": "an element, by camelCase names from the outside in; `[3]` counts from 0",
    "size": "the record is larger than the connection allows",
    "parts": "the payload is larger than the command allows",
    "metadata": "the metadata frame: its form, its size, bytes behind it",
    "metadata.version": "the first element of the metadata frame",
    "metadata.entries": "the list of keys and values; `metadata.entries[2]` is one of them",
    "fanout.topic": "the topic frame of an event",
    "fanout.beacon": "the reserved topic with anything but the beacon behind it",
}
"""Place -> what is wrong with it. Paths below `body` follow the layouts."""


def explain(
    frames: Sequence[bytes],
    topology: Topology,
    lane: Lane | None,
    direction: Direction | None,
    max_bytes: int | None,
) -> NoReturn:
    """Raise the ProtocolError of the first step that fails. Call it only with a record that was refused."""
    head = check_prefix(frames)
    spec = _check_command(head, topology, lane, direction)
    check_flags(head, FLAG_METADATA if spec.metadata else 0)
    limit = spec.bounds(topology).size
    if limit is not None and len(head) > limit:
        violation("body.admission" if spec.admission else "body", f"frame 0 has {len(head)} bytes, at most {limit} fit")
    if spec.admission and not encoded_admission_fits(head[PREFIX_SIZE:]):
        violation("body.admission", f"is longer than {ADMISSION_MAX} bytes, or incomplete")
    command = check_body(head, spec.bodies[topology])
    payload = getattr(command, "payload", None)
    first = 2 if head[4] & FLAG_METADATA else 1
    check_count(frames, first + (0 if payload is None else payload.parts))
    if max_bytes is not None and (size := sum(map(len, frames))) > max_bytes:
        violation("size", f"the record has {size} bytes, this connection allows {max_bytes}")
    if spec.payload_limit is not None and (size := sum(map(len, frames[first:]))) > spec.payload_limit:
        violation("parts", f"the payload has {size} bytes, a {spec.name} allows {spec.payload_limit}")
    if first == 2:
        decode_metadata(frames[1])
    violation("body", "is not acceptable")


def check_prefix(frames: Sequence[bytes]) -> bytes:
    """Steps 1-3: frame 0 with a whole prefix, the magic and our major."""
    if not frames:
        violation("frames", "there is none")
    head = frames[0]
    if len(head) <= PREFIX_SIZE:
        violation("prefix", f"frame 0 has {len(head)} bytes, at least {PREFIX_SIZE + 1} belong there")
    if head[:2] != MAGIC:
        violation("prefix.magic", f"must be {MAGIC.hex(' ')}, is {head[:2].hex(' ')}")
    if head[2] != WIRE_MAJOR:
        violation("prefix.major", f"must be {WIRE_MAJOR}, is {head[2]}")
    return head


def _check_command(head: bytes, topology: Topology, lane: Lane | None, direction: Direction | None) -> CommandSpec:
    """Steps 4 and 5."""
    spec = COMMANDS.get(head[3])
    if spec is None:
        violation("prefix.command", f"{head[3]} is reserved")
    if topology not in spec.bodies:
        violation("topology", f"{spec.name} does not exist on {topology.name}")
    if topology is Topology.ROUTE_MESH:
        if lane is not None and lane not in spec.lanes:
            violation("lane", f"{spec.name} does not travel on the {lane.name.lower()} lane")
    elif direction is not None and direction not in spec.directions:
        violation("direction", f"{spec.name} does not travel {direction.name.lower().replace('_', ' ')}")
    return spec


def check_flags(head: bytes, allowed: int) -> None:
    """Step 6."""
    if head[4] & ~allowed:
        violation("prefix.flags", f"{head[4]:#04x} has a bit that is not allowed here")


def check_body(head: bytes, body: WireType) -> Any:
    """Steps 7 and 8: the value of the body array."""
    node, trailing = LenientParser(head[PREFIX_SIZE:]).parse()
    value = body.check(node, "body")
    if trailing:
        violation("body", f"has {trailing} bytes behind it")
    return value


def check_count(frames: Sequence[bytes], expected: int) -> None:
    """Step 9."""
    if len(frames) != expected:
        violation("frames", f"there are {len(frames)}, {expected} belong there")
