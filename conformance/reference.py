"""Write docs/wire-commands.md from the command table, or check that it is current.

python -m conformance.reference           # writes the page
python -m conformance.reference --check   # exit status 1 when it differs
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

from zlinkpy.wire import (
    ALLOWED_CODES,
    COMMANDS,
    CommandSpec,
    Direction,
    FailureCode,
    Kind,
    Lane,
    TerminalResult,
    Topology,
    enums,
    kind_of_reply,
    limits,
)
from zlinkpy.wire.composite import Arr, By, IntMap, OneOf, Opt, Struct, Tup
from zlinkpy.wire.explain import FIELD_NAMES
from zlinkpy.wire.fanout import HEAD_LAYOUT
from zlinkpy.wire.schema import Const, Enumerated, WireType, camel
from zlinkpy.wire.tails import TAILS

PAGE = Path(__file__).parent.parent / "docs" / "wire-commands.md"

_INTRODUCTION = """\
# Wire commands

Written by `python -m conformance.reference` from the command table (`zlinkpy/wire/table.py`); do not edit it by
hand.

A record is frame 0 (`5A 4D`, major, command, flags, then ONE msgpack array), a metadata frame where flag 0x01 is
set, and as many raw payload frames as the payload head says. All elements are positional; `x?` is nil or x. Sizes
of texts are bytes of UTF-8. Numbers without a row are reserved: neither sent nor accepted.

Types: `gen` 1..2^63-1, `ord` 0..2^63-1, `u32`, `ms` 1..2^31-1 (time left, counted from receipt), `t` text of 1..255
bytes without NUL, `rid` text of 1..200 bytes, `ep` and `ver` text of 1..4096 bytes, `sid` bin of 4 bytes, `op` and
`RelId` `[high u64, low u64]`, not both 0.
"""

_READINGS = """\
## Readings

Where the rules can be read in two ways, this is the reading taken; a vector or a test fixes each.

- Sizes of every `str` are counted in encoded bytes. NUL is refused in `t` and in metadata, and nowhere else: `rid`,
  `ep`, `ver` and the problem of a `close` may contain it.
- `origin` is nil exactly at hop 0: from the first forward on, the final owner needs it to answer.
- `replyRouteId` of 39, and `replyRouteId` and `ms` of a frozen record, are there for every request and for nothing
  else; `op` of a frozen record is nil for a multicast and for nothing else.
- The manifest of 40 is there exactly at step 1; a move list only at step 1 of a user Spot (kind 2).
- In 44, role 2 (target) goes with a commit and role 1 (source) with an abort; the other pairs are refused.
- The target of 50 is the bare reference (`ActorRef`, `SpotRef`) of the kind that the record names.
- An optional `ext` entry that is nil is left out when encoding; both nil and absence are accepted. Ids are written
  in ascending order. The reserved ids are skipped like unknown ones. The value of a skipped id obeys the rules of
  every body (no float, no extension type, at most 32 levels of nesting, arrays of at most 65,535 elements).
- Whether `protocolCapabilities` suffice is decided by admission (reject 8), not by decoding; so is every other
  question of who the peer is.
- A metadata frame without entries is legal.
- The flow id is checked for 36 bytes; its form is telemetry's business.
- A RouteMesh lane that is not known yet (before `hello`) excludes no command; admission refuses what comes too
  early.
- The payload of a join request is at most 1 MiB in all parts together.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _lanes(spec: CommandSpec) -> str:
    return "both" if len(spec.lanes) == len(Lane) else next(iter(spec.lanes)).name.lower()


def _client_server(spec: CommandSpec) -> str:
    if not spec.directions:
        return ""
    if len(spec.directions) == len(Direction):
        return "both ways"
    return next(iter(spec.directions)).name.lower().replace("_", " ")


def _kind(spec: CommandSpec) -> str:
    return f"R{spec.answers}" if spec.kind is Kind.REPLY and spec.answers else spec.kind.value


def element(name: str, wire_type: WireType) -> str:
    """An element as the tables show it: its name, and its type where the name does not say it."""
    shown = wire_type.notation
    if isinstance(wire_type, Enumerated):
        shown = wire_type.members.__name__
    if isinstance(wire_type, Opt) and isinstance(wire_type.inner, Enumerated):
        shown = f"{wire_type.inner.members.__name__}?"
    if isinstance(wire_type, Opt) and wire_type.inner.notation == camel(name):
        return shown
    if isinstance(wire_type, Const):
        return f"{camel(name)} = {wire_type.value}"
    return camel(name) if shown == camel(name) else f"{camel(name)} {shown}"


def body(struct: Struct) -> str:
    """A layout on one line."""
    shown = [element(name, t) for name, t in struct.fields]
    if struct.conditional:
        first = camel(struct.fields[0][0])
        fixed, rest = shown[: -struct.conditional], shown[-struct.conditional :]
        values = " or ".join(map(str, struct.when))
        return f"[{', '.join(fixed)}], and where {first} is {values}: [{', '.join(fixed + rest)}]"
    return f"[{', '.join(shown)}]"


def _bodies(spec: CommandSpec) -> str:
    mesh = body(spec.bodies[Topology.ROUTE_MESH])
    if not spec.admission:
        return f"`{mesh}`"
    return f"RM `{mesh}`; CS `{body(spec.bodies[Topology.CLIENT_SERVER])}`"


def _structures() -> list[WireType]:
    """Every structure below a body, in the order they are met."""
    found: dict[type, WireType] = {}

    def visit(wire_type: WireType) -> None:
        if isinstance(wire_type, (Struct, IntMap)):
            if wire_type.cls in found:
                return
            found[wire_type.cls] = wire_type
            inner = wire_type.fields if isinstance(wire_type, Struct) else list(wire_type.entries.values())
            for _, t in inner:
                visit(t)
        elif isinstance(wire_type, (Opt, Arr)):
            visit(wire_type.inner)
        elif isinstance(wire_type, OneOf):
            for case in wire_type.cases:
                visit(case)
        elif isinstance(wire_type, By):
            for case in wire_type.cases.values():
                visit(case)
        elif isinstance(wire_type, Tup):
            for _, t in wire_type.parts:
                visit(t)

    for spec in COMMANDS.values():
        for struct in spec.bodies.values():
            for _, t in struct.fields:
                visit(t)
    return list(found.values())


def _table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + " --- |" * len(header)
    for row in rows:
        yield "| " + " | ".join(map(_cell, row)) + " |"


def _structure_row(wire_type: WireType) -> list[str]:
    if isinstance(wire_type, Struct):
        return [wire_type.notation, f"`{body(wire_type)}`"]
    assert isinstance(wire_type, IntMap)
    entries = (
        f"{number} {element(name, t)}{'' if isinstance(t, Opt) else ' *'}"
        for number, (name, t) in wire_type.entries.items()
    )
    return [wire_type.notation, f"map: `{', '.join(entries)}` (* required; unknown ids are skipped)"]


def _limits() -> list[list[str]]:
    return [[name, f"{value:,}"] for name, value in vars(limits).items() if name.isupper() and isinstance(value, int)]


def page() -> str:
    """The text of the page."""
    lines = [_INTRODUCTION, "## Commands", ""]
    lines += [
        "L: A application, I infrastructure (never reaches a handler). K: 1 one-way, Q request, R reply (Rn: to n). M:",
        "metadata allowed. Lane: of a RouteMesh pair. CS: on ClientServer. Payload: whether raw payload frames follow.",
        "Frame 0: its largest size in bytes.",
        "",
    ]
    rows = []
    for spec in COMMANDS.values():
        size = spec.bounds(Topology.ROUTE_MESH).size
        rows.append(
            [
                f"{spec.id} {spec.name}",
                spec.domain.value,
                _kind(spec),
                "M" if spec.metadata else "",
                _lanes(spec),
                _client_server(spec),
                spec.payload.value,
                "no bound" if size is None else f"{size:,}",
                _bodies(spec),
            ]
        )
    lines += _table(["Id, name", "L", "K", "M", "Lane", "CS", "Payload", "Frame 0", "Body"], rows)
    lines += [
        "",
        f"Fanout event: topic frame, head frame (command 0) `{body(HEAD_LAYOUT)}` with parts 1, a metadata frame",
        "where flagged, one payload frame. Beacon: exactly `01 5A 4C 46 31` and `5A 46 01 01`.",
        "",
        "## Structures",
        "",
    ]
    lines += _table(["Name", "Array"], [_structure_row(wire_type) for wire_type in _structures()])
    lines += ["", "## Enums", ""]
    members = [each for each in vars(enums).values() if inspect.isclass(each) and issubclass(each, IntEnum)]
    lines += _table(
        ["Name", "Numbers"],
        [[each.__name__, Enumerated(each).notation] for each in members if each is not IntEnum and len(each)],
    )
    lines += ["", "## Endings of a request", "", "Tails of ok replies (nil for every other request):", ""]
    lines += _table(
        ["Request", "Tail"],
        [
            [cls.__name__, " or ".join(f"`{body(case)}`" for case in (t.cases if isinstance(t, OneOf) else [t]))]
            for cls, t in TAILS.items()
            if isinstance(t, (OneOf, Struct))
        ],
    )
    lines += [
        "",
        "A reply that is not ok has neither payload nor tail. Its two numbers decide the public kind:",
        "",
    ]
    endings = [
        [
            f"{result} {camel(TerminalResult(result).name.lower())}",
            f"{code} {camel(FailureCode(code).name.lower())}",
            kind_of_reply(result, code).name,
        ]
        for result, codes in sorted(ALLOWED_CODES.items())
        if result
        for code in sorted(codes)
    ]
    lines += _table(["terminalResult", "failureCode", "Kind"], endings)
    lines += ["", "## Names of offending fields", ""]
    lines += [
        "A protocol error names the first place that is wrong; the `close` with reason 4 carries the name.",
        "",
    ]
    lines += _table(["Field", "What is wrong"], [[f"`{name}`", meaning] for name, meaning in FIELD_NAMES.items()])
    lines += ["", "## Limits", ""]
    lines += _table(["Name", "Value"], _limits())
    lines += ["", _READINGS.rstrip()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.reference")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page is not current")
    options = parser.parse_args(arguments)
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    if options.check:
        print(f"{PAGE.name} is not current: run python -m conformance.reference")
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
