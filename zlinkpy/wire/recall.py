"""Readers that recall what they have read: the receiving hot path of messages, requests and replies.

A connection carries the same few heads again and again: frame 0 of a one-way message is constant per channel and
packet, that of a request or reply but for its correlation number. Such a frame is read and checked once, completely, by
the generated reader; afterwards the bytes themselves are the proof, and only the number in front of them is read. Bytes
that were never accepted are never recalled, so what a peer can get accepted does not change.

What is kept is bounded: `RECALLED` frames per command, each within the bound of its frame 0; at the bound everything is
dropped and learnt anew, so a peer that varies its heads gains nothing and costs the others a few microseconds.

Rejected: recalling the payload head alone. It saves a fourth of this, since the rest is parsed and checked all the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from zlinkpy.wire.emit import Misfit
from zlinkpy.wire.limits import GEN_MAX, PREFIX_SIZE

RECALLED = 1024
"""Frames kept per command."""

Reader = Callable[[Sequence[bytes]], Any]
MakeRecord = Callable[[Any, None, Sequence[bytes]], Any]


def recalling_whole(reader: Reader, record: MakeRecord) -> Reader:
    """For commands without a number: frame 0 is recalled as it is, and so is the command."""
    known: dict[bytes, tuple[Any, int]] = {}

    def read(frames: Sequence[bytes]) -> Any:
        head = frames[0]
        found = known.get(head)
        if found is None:
            made = reader(frames)
            if len(known) >= RECALLED:
                known.clear()
            known[head] = made.command, 1 + made.command.payload.parts
            return made
        command, count = found
        if len(frames) != count:
            raise Misfit
        return record(command, None, tuple(frames[1:]))

    return read


def recalling_tail(reader: Reader, record: MakeRecord, cls: type[Any]) -> Reader:
    """For commands that begin with their correlation number: the bytes behind it are recalled.

    Longer forms of a number than the shortest are left to the reader, which accepts them (wire.md §1).
    """
    known: dict[bytes, tuple[tuple[Any, ...], int]] = {}
    names = [attribute.name for attribute in attrs.fields(cls)][1:]
    header = 0x90 | (1 + len(names))
    at = PREFIX_SIZE + 1

    def read(frames: Sequence[bytes]) -> Any:
        head = frames[0]
        first = head[at] if len(head) > at and head[at - 1] == header else 0
        if first < 0x80:
            corr, tail = first, head[at + 1 :]
        elif first == 0xCD:
            corr, tail = int.from_bytes(head[at + 1 : at + 3], "big"), head[at + 3 :]
        elif first == 0xCE:
            corr, tail = int.from_bytes(head[at + 1 : at + 5], "big"), head[at + 5 :]
        elif first == 0xCC:
            corr, tail = head[at + 1] if len(head) > at + 1 else 0, head[at + 2 :]
        elif first == 0xCF:
            corr, tail = int.from_bytes(head[at + 1 : at + 9], "big"), head[at + 9 :]
        else:
            corr, tail = 0, head
        found = known.get(tail) if 0 < corr <= GEN_MAX else None
        if found is None:
            made = reader(frames)
            if made.command.corr == corr:
                if len(known) >= RECALLED:
                    known.clear()
                payload = made.command.payload
                rest = tuple(getattr(made.command, name) for name in names)
                known[tail] = rest, 1 + (0 if payload is None else payload.parts)
            return made
        rest, count = found
        if len(frames) != count:
            raise Misfit
        return record(cls(corr, *rest), None, tuple(frames[1:]))

    return read
