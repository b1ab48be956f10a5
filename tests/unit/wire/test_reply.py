"""Endings of requests: which pairs exist, what they mean to the caller, and the tails (wire.md §7)."""

from __future__ import annotations

import pytest

from zlinkpy.errors import ErrorKind, ProtocolError
from zlinkpy.wire import (
    ALLOWED_CODES,
    RESULT_OF_CODE,
    ActorCreate,
    ActorCreation,
    ActorJoin,
    ActorLookup,
    ActorRef,
    ChannelRequest,
    CreateOutcome,
    FailureCode,
    JoinRejected,
    Lane,
    Reply,
    TerminalResult,
    Topology,
    decode,
    dump_tail,
    encode,
    kind_of_reply,
    parse_tail,
)

K = ErrorKind

# wire.md §7, copied by hand: code -> (result, kind).
CODES = {
    1: (102, K.NOT_FOUND),
    2: (105, K.INTERNAL_FAILURE),
    3: (107, K.ALREADY_EXISTS),
    4: (107, K.TYPE_MISMATCH),
    5: (105, K.INTERNAL_FAILURE),
    6: (102, K.NOT_FOUND),
    7: (107, K.TYPE_MISMATCH),
    8: (102, K.INVALID_OPERATION),
    9: (102, K.NOT_FOUND),
    10: (102, K.NOT_FOUND),
    11: (102, K.NOT_FOUND),
    12: (104, K.PROTOCOL_ERROR),
    13: (105, K.UNAVAILABLE),
    14: (102, K.NOT_FOUND),
    15: (106, K.REJECTED),
    16: (104, K.PROTOCOL_ERROR),
    17: (105, K.INTERNAL_FAILURE),
    18: (106, K.UNAVAILABLE),
    19: (105, K.DEADLINE_EXCEEDED),
    20: (105, K.INTERNAL_FAILURE),
    21: (107, K.UNAVAILABLE),
    22: (106, K.REJECTED),
    33: (107, K.INVALID_OPERATION),
    34: (107, K.UNAVAILABLE),
    35: (105, K.DATA_LOST),
}
PLAIN = {
    101: K.DEADLINE_EXCEEDED,
    103: K.SHUTTING_DOWN,
    108: K.UNAVAILABLE,
    109: K.UNAVAILABLE,
    110: K.INVALID_OPERATION,
    111: K.INVALID_OPERATION,
    112: K.INVALID_OPERATION,
    113: K.UNAVAILABLE,
}


@pytest.mark.contract("SA-252")
def test_the_kind_follows_from_the_numbers_alone() -> None:
    for result in range(-1, 130):
        for code in range(-1, 40):
            if code in CODES and CODES[code][0] == result:
                expected: ErrorKind | None = CODES[code][1]
            else:
                expected = PLAIN.get(result) if code == 0 else None
            if expected is None:
                with pytest.raises(ValueError, match="no failed reply"):
                    kind_of_reply(result, code)
            else:
                assert kind_of_reply(result, code) is expected


def test_the_tables_are_complete() -> None:
    assert {int(code): int(result) for code, result in RESULT_OF_CODE.items()} == {c: r for c, (r, _) in CODES.items()}
    assert set(RESULT_OF_CODE) == set(FailureCode) - {FailureCode.NONE}
    assert set(ALLOWED_CODES) == set(TerminalResult)


@pytest.mark.contract("SA-252", "LV-178")
def test_a_reply_is_accepted_exactly_for_the_allowed_pairs() -> None:
    for result in (*range(3), *range(99, 116)):
        for code in range(40):
            allowed = (
                (result, code) == (0, 0) or (code == 0 and result in PLAIN) or CODES.get(code, (None,))[0] == result
            )
            frame = b"ZM\x01\x14\x00\x95\x07" + bytes((result, code)) + b"\xc0\xc0"
            if allowed:
                command = decode([frame], topology=Topology.ROUTE_MESH, lane=Lane.COMPLETION).command
                assert command == Reply(7, result, code)
                assert encode(command) == [frame]
            else:
                with pytest.raises(ProtocolError) as caught:
                    decode([frame], topology=Topology.ROUTE_MESH, lane=Lane.COMPLETION)
                assert caught.value.field in ("body.terminalResult", "body.failureCode")


def test_a_tail_is_parsed_by_the_request_it_answers() -> None:
    tail = (("user:42", 7), "room:1", 8, 9, 10)
    location = parse_tail(ActorLookup, tail)
    assert location is not None
    assert dump_tail(ActorLookup, location) == tail
    for request in (ChannelRequest, ActorJoin, ActorCreate):
        with pytest.raises(ProtocolError) as caught:
            parse_tail(request, tail)
        assert caught.value.field.startswith("body.tail")
    with pytest.raises(ProtocolError, match="must be an array"):
        parse_tail(ActorLookup, None)
    assert parse_tail(ChannelRequest, None) is None


def test_a_tail_of_the_wrong_class_cannot_be_dumped() -> None:
    with pytest.raises(ValueError, match="must be a ActorLocation"):
        dump_tail(ActorLookup, JoinRejected(None))
    with pytest.raises(ValueError, match="must be None"):
        dump_tail(ChannelRequest, JoinRejected(None))
    with pytest.raises(ValueError, match=r"tail\.actor"):
        dump_tail(ActorCreate, ActorCreation(CreateOutcome.REJECTED, ActorRef("a", 1)))
    with pytest.raises(ValueError, match=r"tail\.actor"):
        dump_tail(ActorCreate, ActorCreation(CreateOutcome.CREATED))
