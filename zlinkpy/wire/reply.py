"""How a request ends on the wire: combination rule, public kind of each ending, unparsed tail (wire.md §7).

One table pairs every failure code with its result and its public kind; everything else here is derived from it, so
that a code cannot be sendable without being understood.
"""

from __future__ import annotations

from typing import Any

import msgpack

from zlinkpy.errors import ErrorKind
from zlinkpy.wire.composite import Fault
from zlinkpy.wire.emit import Emitter
from zlinkpy.wire.enums import FailureCode, TerminalResult
from zlinkpy.wire.limits import TAIL_ARRAY_MAX, TAIL_DEPTH_MAX, TAIL_MAX, TEXT_MAX, U64_MAX
from zlinkpy.wire.schema import Bounds, Malformed, Pairs, WireType, mistake, shown, utf8_size, violation

REPLY = 20
"""The command id of `reply` (wire.md §2)."""

_R, _C, _K = TerminalResult, FailureCode, ErrorKind

_CODES: dict[FailureCode, tuple[TerminalResult, ErrorKind]] = {
    _C.ACTOR_ROUTE_NOT_FOUND: (_R.NOT_FOUND, _K.NOT_FOUND),
    _C.ACTOR_CREATE_FAILED: (_R.INTERNAL_ERROR, _K.INTERNAL_FAILURE),
    _C.ACTOR_ALREADY_EXISTS: (_R.CONFLICT, _K.ALREADY_EXISTS),
    _C.ACTOR_TYPE_MISMATCH: (_R.CONFLICT, _K.TYPE_MISMATCH),
    _C.SPOT_CREATE_FAILED: (_R.INTERNAL_ERROR, _K.INTERNAL_FAILURE),
    _C.SPOT_ROUTE_NOT_FOUND: (_R.NOT_FOUND, _K.NOT_FOUND),
    _C.SPOT_TYPE_MISMATCH: (_R.CONFLICT, _K.TYPE_MISMATCH),
    _C.ACTOR_SESSION_NOT_BOUND: (_R.NOT_FOUND, _K.INVALID_OPERATION),
    _C.HANDLER_NOT_FOUND: (_R.NOT_FOUND, _K.NOT_FOUND),
    _C.ROUTE_HANDLER_NOT_FOUND: (_R.NOT_FOUND, _K.NOT_FOUND),
    _C.ACTOR_DISPATCH_HANDLER_NOT_FOUND: (_R.NOT_FOUND, _K.NOT_FOUND),
    _C.PAYLOAD_DECODE_FAILED: (_R.PROTOCOL_ERROR, _K.PROTOCOL_ERROR),
    _C.ROUTE_NOT_CONNECTED: (_R.INTERNAL_ERROR, _K.UNAVAILABLE),
    _C.REQUEST_TARGET_NOT_FOUND: (_R.NOT_FOUND, _K.NOT_FOUND),
    _C.REQUEST_REJECTED: (_R.REJECTED, _K.REJECTED),
    _C.REQUEST_PROTOCOL_ERROR: (_R.PROTOCOL_ERROR, _K.PROTOCOL_ERROR),
    _C.REQUEST_FAILED: (_R.INTERNAL_ERROR, _K.INTERNAL_FAILURE),
    _C.WORKER_QUEUE_FULL: (_R.REJECTED, _K.UNAVAILABLE),
    _C.WORKER_TIMED_OUT: (_R.INTERNAL_ERROR, _K.DEADLINE_EXCEEDED),
    _C.WORKER_FAILED: (_R.INTERNAL_ERROR, _K.INTERNAL_FAILURE),
    _C.ACTOR_LOCATION_STALE: (_R.CONFLICT, _K.UNAVAILABLE),
    _C.ACTOR_CREATE_REJECTED: (_R.REJECTED, _K.REJECTED),
    _C.SPOT_GENERATION_STALE: (_R.CONFLICT, _K.INVALID_OPERATION),
    _C.SPOT_MOVING: (_R.CONFLICT, _K.UNAVAILABLE),
    _C.RELOCATION_DATA_LOST: (_R.INTERNAL_ERROR, _K.DATA_LOST),
}

_PLAIN_RESULTS: dict[TerminalResult, ErrorKind] = {
    _R.TIMED_OUT: _K.DEADLINE_EXCEEDED,
    _R.TERMINATED: _K.SHUTTING_DOWN,
    _R.BUSY: _K.UNAVAILABLE,
    _R.NOT_CONNECTED: _K.UNAVAILABLE,
    _R.INVALID_ARGUMENT: _K.INVALID_OPERATION,
    _R.INVALID_STATE: _K.INVALID_OPERATION,
    _R.NOT_SUPPORTED: _K.INVALID_OPERATION,
    _R.BACKPRESSURED: _K.UNAVAILABLE,
}
"""Results that carry code 0."""

RESULT_OF_CODE: dict[FailureCode, TerminalResult] = {code: result for code, (result, _) in _CODES.items()}
"""The one result each failure code is sent with."""

ALLOWED_CODES: dict[int, frozenset[int]] = {
    int(_R.OK): frozenset({0}),
    **{int(result): frozenset({0}) for result in _PLAIN_RESULTS},
    **{
        int(result): frozenset(int(code) for code, owner in RESULT_OF_CODE.items() if owner is result)
        for result in set(RESULT_OF_CODE.values())
    },
}
"""terminalResult -> the failure codes it may be combined with."""

_KINDS: dict[tuple[int, int], ErrorKind] = {
    **{(int(result), 0): kind for result, kind in _PLAIN_RESULTS.items()},
    **{(int(result), int(code)): kind for code, (result, kind) in _CODES.items()},
}


def kind_of_reply(terminal_result: int, failure_code: int) -> ErrorKind:
    """The public kind of a reply that is not ok (SA-248).

    Raises ValueError for ok and for a pair the combination rule forbids; `decode` lets no such pair through.
    """
    kind = _KINDS.get((terminal_result, failure_code))
    if kind is None:
        raise ValueError(f"terminal result {terminal_result} with failure code {failure_code} is no failed reply")
    return kind


def combination_fault(terminal_result: int, failure_code: int, *, payload: bool, tail: bool) -> Fault:
    """The combination rule: None, or the first element that breaks it.

    Args:
        payload: the record has a payload head.
        tail: its tail is not nil.
    """
    codes = ALLOWED_CODES.get(terminal_result)
    if codes is None:
        return "terminal_result", f"{terminal_result} is not a terminal result"
    if failure_code not in codes:
        return "failure_code", f"{failure_code} cannot go with terminal result {terminal_result}"
    if terminal_result:
        if tail:
            return "tail", "must be nil where the result is not ok"
        if payload:
            return "payload", "must be nil where the result is not ok"
    return None


def addressee_of_malformed(frame: bytes) -> int | None:
    """Which request a reply that does not decode was meant for, where its first number can be read; else None.

    It decides with which error that one request ends (SA-252), and nothing else.
    """
    if frame[:2] != b"ZM" or frame[3:4] != bytes((REPLY,)):
        return None
    reader = msgpack.Unpacker()
    reader.feed(frame[5:20])
    try:
        reader.read_array_header()
        corr = reader.unpack()
    except (msgpack.UnpackException, ValueError):
        return None
    return corr if type(corr) is int else None


class AnyTail(WireType):
    """A tail whose shape the record does not say: nil, or an array of integers, texts, bins, booleans and arrays.

    `parse_tail` checks the shape once the pending request is known.
    """

    notation = "tail"

    def read(self, e: Emitter, node: str) -> str:
        with e.block(f"if {node} is not None:"):
            e.line(f"{node} = {super().read(e, node)}")
        return node

    def write(self, e: Emitter, value: str) -> str:
        with e.block(f"if {value} is not None:"):
            e.line(f"{value} = {super().write(e, value)}")
        return value

    def _check(self, node: Any, path: str) -> Any:
        if (problem := _tail_problem(node)) is not None:
            violation(path, problem)
        return _frozen(node)

    def dump(self, value: Any, path: str) -> Any:
        if (problem := _tail_problem(value)) is not None:
            mistake(path, problem)
        packed = _frozen(value)
        if len(msgpack.packb(packed)) > TAIL_MAX:
            mistake(path, f"is longer than {TAIL_MAX} bytes")
        return packed

    @property
    def bounds(self) -> Bounds:
        return Bounds(TAIL_MAX, array=TAIL_ARRAY_MAX, text=TEXT_MAX, data=TEXT_MAX)


def _tail_problem(node: Any) -> str | None:
    if node is None:
        return None
    if not isinstance(node, (tuple, list)) or isinstance(node, Pairs):
        return f"must be nil or an array, is {shown(node)}"
    left: list[tuple[Any, int]] = [(node, 1)]
    while left:
        item, depth = left.pop()
        if isinstance(item, Malformed):
            return item.problem
        if isinstance(item, (tuple, list)) and not isinstance(item, Pairs):
            if depth > TAIL_DEPTH_MAX or getattr(item, "claimed", len(item)) > TAIL_ARRAY_MAX:
                return "is deeper or longer than any tail"
            left.extend((inner, depth + 1) for inner in item)
        elif isinstance(item, (str, bytes)):
            if len(item) > TEXT_MAX or (isinstance(item, str) and utf8_size(item) > TEXT_MAX):
                return "holds a text longer than any tail"
        elif type(item) is int:
            if not -(2**63) <= item <= U64_MAX:
                return f"must not hold {shown(item)}"
        elif item is not None and type(item) is not bool:
            return f"must not hold {shown(item)}"
    return None


def _frozen(node: Any) -> Any:
    return tuple(map(_frozen, node)) if isinstance(node, (tuple, list)) else node
