"""Payload codecs: events, results, status, control signals, and the signal itself (SR section 22)."""

from __future__ import annotations

import logging
import math
from typing import Any

import msgpack
import pytest
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.errors import ConfigurationError
from zlinkpy.sessions import events as ev
from zlinkpy.sessions.errors import (
    ConflictingHandlerError,
    HolderLostError,
    LeaseLostError,
    NotHolderError,
    TurnFailedError,
    UnreadableMessageError,
)
from zlinkpy.sessions.payloads import (
    EventCodec,
    Evict,
    Interrupt,
    MessageEnqueued,
    TurnFailure,
    TurnOutcome,
    Yield,
    decode_outcome,
    decode_result,
    decode_status,
    encode_outcome,
    encode_result,
    encode_status,
)
from zlinkpy.sessions.signal_codec import decode_signal, encode_signal
from zlinkpy.sessions.types import (
    FailureCode,
    InterruptReason,
    LiveSessionStatus,
    SessionSignal,
    SessionTotals,
    SignalKind,
    StatusSnapshot,
    TurnProgress,
    TurnResult,
)

STAMP: dict[str, Any] = {"ts": 1_700_000_000_123, "ctx": "main", "iteration": 3, "turn_id": "t-1", "seq": 7}
EVENTS: list[ev.TurnEvent] = [
    ev.TurnStarted(**STAMP),
    ev.StepStarted("search", "s1", {"q": "cats", "n": 3, "deep": {"a": [1, 2.5, True]}}, **STAMP),
    ev.StepFinished("search", "s1", False, 1.234, "none found", **STAMP),
    ev.TraceDelta("hm", **STAMP),
    ev.OutputDelta("hel", **STAMP),
    ev.OutputSnapshot("hello", **STAMP),
    ev.TurnCompleted(True, "hello", "completed", **STAMP),
    ev.TurnFailed("broken", ValueError("why"), **STAMP),
    ev.InterruptedAt(InterruptReason.HOLDER_LOST, **STAMP),
    ev.RejectedAt("h2", "h1", "1:5-0", **STAMP),
]


def over_the_wire(payload: object) -> Any:
    return msgpack.unpackb(msgpack.packb(payload))


def assert_plain(value: object) -> None:
    match value:
        case dict():
            for key, part in value.items():
                assert type(key) is str
                assert_plain(part)
        case list():
            for part in value:
                assert_plain(part)
        case _:
            assert type(value) in (str, bool, int, float)


@pytest.mark.contract("SR-346")
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_a_flat_map_and_comes_back_equal(event: ev.TurnEvent) -> None:
    codec = EventCodec()
    payload = codec.encode(event)
    assert payload is not None
    assert_plain(payload)
    assert payload["type"] == type(event).__name__
    assert (payload["ts"], payload["ctx"], payload["iter"], payload["turn"]) == (STAMP["ts"], "main", 3, "t-1")
    assert codec.decode(over_the_wire(payload)) == event


def test_every_event_type_is_in_the_list() -> None:
    # Tests make types of their own.
    own = {each for each in ev.TurnEvent.__subclasses__() if each.__module__ == ev.__name__}
    assert {type(event) for event in EVENTS} == own


def test_an_event_without_stamps_has_no_nulls() -> None:
    payload = EventCodec().encode(ev.OutputDelta("x"))
    assert payload == {"type": "OutputDelta", "ts": 0, "ctx": "", "iter": 0, "text": "x"}
    assert EventCodec().decode(payload) == ev.OutputDelta("x")


@pytest.mark.contract("SR-347")
def test_an_unknown_event_type_is_nothing_to_warn_about(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "zlinkpy.sessions")
    assert EventCodec().decode({"type": "Hologram", "ts": 1, "ctx": "", "iter": 0}) is None
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]


@frozen
class Custom(ev.TurnEvent):
    score: int


@frozen
class Uncoded(ev.TurnEvent):
    score: int


@pytest.mark.contract("SR-348")
def test_an_application_event_needs_a_codec_to_leave_its_node(caplog: pytest.LogCaptureFixture) -> None:
    codec = EventCodec()
    assert codec.encode(Uncoded(3)) is None
    codec.register(Custom, lambda event: {"score": event.score}, lambda fields: {"score": fields["score"]}, name="c1")
    event = Custom(3, **STAMP)
    payload = codec.encode(event)
    assert_plain(payload)
    assert codec.decode(over_the_wire(payload)) == event
    assert codec.decode(evolve_map(payload, fields={})) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(ConfigurationError, match="c1"):
        codec.register(Uncoded, lambda event: {}, lambda fields: {}, name="c1")
    with pytest.raises(ConfigurationError, match="Custom"):
        codec.register(Custom, lambda event: {}, lambda fields: {}, name="c2")


def evolve_map(payload: Any, **changes: Any) -> dict[str, Any]:
    return {**payload, **changes}


@pytest.mark.contract("SR-349")
def test_of_a_cause_only_its_text_survives() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer text") from inner
    except ValueError as error:
        event = ev.TurnFailed("broken", error)
    payload = EventCodec().encode(event)
    assert "Traceback" not in repr(payload)
    assert "ValueError" not in repr(payload)
    found = EventCodec().decode(over_the_wire(payload))
    assert isinstance(found, ev.TurnFailed)
    assert type(found.cause) is Exception
    assert str(found.cause) == "outer text"
    assert found.cause.__traceback__ is None
    assert found.cause.__cause__ is None


@pytest.mark.contract("SR-350")
def test_a_summary_value_that_is_no_plain_data_becomes_text() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd!"

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    loop: dict[str, Any] = {}
    loop["self"] = loop
    summary = {
        "n": 1,
        "odd": Odd(),
        "list": [Odd(), 2],
        "bytes": b"x",
        "nan": math.nan,
        "big": 2**70,
        "none": None,
        "loop": loop,
        "broken": Broken(),
        "half": "\ud800",
    }
    payload = EventCodec().encode(ev.StepStarted("s", "1", summary))
    assert payload is not None
    assert_plain(payload)
    found = payload["input"]
    assert (found["n"], found["odd"], found["list"], found["bytes"]) == (1, "odd!", ["odd!", 2], "b'x'")
    assert (found["nan"], found["big"], found["broken"]) == ("nan", str(2**70), "<Broken>")
    assert "none" not in found
    assert decode_signal(encode_signal(SessionSignal("s", SignalKind.EVENT, "n", payload))) is not None


@pytest.mark.contract("SR-351")
def test_a_duration_has_milliseconds() -> None:
    payload = EventCodec().encode(ev.StepFinished("s", duration=1.2345))
    found = EventCodec().decode(payload)
    assert isinstance(found, ev.StepFinished)
    assert found.duration == 1.234
    again = EventCodec().decode(EventCodec().encode(found))
    assert again == found


@given(st.integers(0, 10**10))
def test_a_duration_that_was_decoded_encodes_to_itself(millis: int) -> None:
    codec = EventCodec()
    payload = {"type": "StepFinished", "ts": 0, "name": "s", "durationMillis": millis}
    event = codec.decode(payload)
    assert event is not None
    assert codec.encode(event)["durationMillis"] == millis  # type: ignore[index]


STATUS = StatusSnapshot(
    LiveSessionStatus(
        "RUNNING", True, 2, SessionTotals(5, 1, 2, 90), TurnProgress("t-1", 2.5, 4), options={"model": "x"}
    ),
    1_700_000_000_000,
    9,
)


@pytest.mark.contract("SR-352")
def test_numbers_are_read_as_numbers() -> None:
    payload = encode_status(STATUS)
    found = decode_status(evolve_map(payload, queueDepth=3.0, seq=4.0, observedAtMillis=5.0))
    assert found is not None
    assert (found.status.queue_depth, found.seq, found.observed_at) == (3, 4, 5)
    assert type(found.status.queue_depth) is int
    step = {"type": "StepFinished", "ts": 1.0, "name": "s", "durationMillis": 1500.0}
    event = EventCodec().decode(step)
    assert isinstance(event, ev.StepFinished)
    assert type(event.ts) is int
    assert event.duration == 1.5
    interrupt = Interrupt.read({"reason": "USER", "token": 3.0})
    assert interrupt is not None
    assert (interrupt.token, type(interrupt.token)) == (3, int)


@pytest.mark.contract("SR-352")
@pytest.mark.parametrize("bad", [True, 3.5, "3", [3], math.inf, math.nan, 1e300, 2**70])
def test_what_is_no_whole_number_is_malformed(bad: object, caplog: pytest.LogCaptureFixture) -> None:
    assert decode_status(evolve_map(encode_status(STATUS), queueDepth=bad)) is None
    assert EventCodec().decode({"type": "OutputDelta", "ts": bad, "text": "x"}) is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_float_fields_take_whole_numbers() -> None:
    from zlinkpy.sessions.payloads.values import Malformed, Values

    found = Values({"x": 3}).number("x")
    assert (found, type(found)) == (3.0, float)
    for bad in (True, "3.0", math.nan, [1.0]):
        with pytest.raises(Malformed):
            Values({"x": bad}).number("x")


DECODERS = {
    "event": EventCodec().decode,
    "result": decode_outcome,
    "status": decode_status,
    "interrupt": Interrupt.read,
    "evict": Evict.read,
    "yield": Yield.read,
    "enqueued": MessageEnqueued.read,
}


@pytest.mark.contract("SR-353")
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("payload", [None, [], ["type"], "text", 3, b"x"])
def test_no_map_is_nothing_and_one_warning(name: str, payload: object, caplog: pytest.LogCaptureFixture) -> None:
    assert DECODERS[name](payload) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


REQUIRED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "event": (EventCodec().encode(EVENTS[9]) or {}, {"type", "ts", "requested", "existing"}),
    "result": (
        encode_outcome(TurnOutcome(TurnResult(True, "yes", "no", "done", True), "t", "k", "e")),
        {"outcome", "success", "completion"},
    ),
    "status": (encode_status(STATUS), {"phase", "interruptible", "queueDepth", "observedAtMillis", "seq"}),
}


@pytest.mark.contract("SR-353")
@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_required_field_or_one_of_a_wrong_type_is_nothing(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    payload, required = REQUIRED[name]
    decode = DECODERS[name]
    assert decode(payload) is not None
    for field in payload:
        caplog.clear()
        found = decode({key: value for key, value in payload.items() if key != field})
        assert (found is None) == (field in required), field
        assert len(caplog.records) == (field in required)
        caplog.clear()
        assert decode(evolve_map(payload, **{field: [object()]})) is None, field
        assert [record.levelname for record in caplog.records] == ["WARNING"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text() | st.integers(), part, max_size=3),
        max_leaves=12,
    ),
    st.sampled_from(sorted(DECODERS)),
    st.data(),
)
def test_no_payload_makes_a_decoder_raise(value: object, name: str, data: st.DataObject) -> None:
    DECODERS[name](value)
    if name in REQUIRED:
        payload, _ = REQUIRED[name]
        field = data.draw(st.sampled_from(sorted(payload)))
        DECODERS[name](evolve_map(payload, **{field: value}))


@pytest.mark.contract("SR-354")
def test_a_result_has_no_nulls() -> None:
    outcome = TurnOutcome(TurnResult(True), "t-1", "k-1", "n/i/1")
    assert encode_outcome(outcome) == {
        "turn": "t-1",
        "idem": "k-1",
        "epoch": "n/i/1",
        "outcome": "RESULT",
        "success": True,
        "completion": "completed",
        "streamed": False,
    }
    assert "idem" not in encode_outcome(TurnOutcome(TurnResult(True), "t-1"))
    assert decode_outcome(over_the_wire(encode_outcome(outcome))) == outcome


@pytest.mark.contract("SR-355")
def test_artifacts_do_not_cross() -> None:
    result = TurnResult(True, "a", "e", "c", True, artifacts=(object(),))
    found = decode_outcome(over_the_wire(encode_outcome(TurnOutcome(result, "t"))))
    assert found is not None
    assert found.ended == evolve(result, artifacts=())
    assert decode_result(encode_result(result)) == evolve(result, artifacts=())


@pytest.mark.contract("SR-356")
def test_an_unknown_failure_code_keeps_its_text() -> None:
    found = decode_outcome({"turn": "t", "outcome": "MELTED", "message": "too hot"})
    assert found == TurnOutcome(TurnFailure(FailureCode.FAILED, "too hot"), "t")
    found = decode_outcome({"turn": "t", "outcome": "MELTED"})
    assert found == TurnOutcome(TurnFailure(FailureCode.FAILED, "MELTED"), "t")
    assert isinstance(found.ended, TurnFailure)
    assert isinstance(found.ended.error(), TurnFailedError)


@pytest.mark.contract("SR-357")
def test_an_end_without_an_address_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="turn id"):
        encode_outcome(TurnOutcome(TurnFailure(FailureCode.FAILED, "x")))
    assert decode_outcome({"outcome": "FAILED", "message": "x"}) is None
    assert len(caplog.records) == 1


@pytest.mark.contract("SR-358")
@pytest.mark.parametrize("address", [{"turn_id": "t"}, {"idempotency_key": "k"}])
def test_one_address_is_enough(address: dict[str, str]) -> None:
    for ended in (TurnResult(True), TurnFailure(FailureCode.HOLDER_LOST, "x")):
        outcome = TurnOutcome(ended, **address)
        assert decode_outcome(over_the_wire(encode_outcome(outcome))) == outcome


@pytest.mark.contract("SR-359")
def test_a_rejection_rebuilds_the_conflict() -> None:
    failure = TurnFailure.of(ConflictingHandlerError("h2", "h1"))
    assert failure.code is FailureCode.REJECTED
    found = decode_outcome(over_the_wire(encode_outcome(TurnOutcome(failure, "t"))))
    assert found is not None
    assert isinstance(found.ended, TurnFailure)
    error = found.ended.error()
    assert isinstance(error, ConflictingHandlerError)
    assert (error.requested, error.bound) == ("h2", "h1")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (FailureCode.FAILED, TurnFailedError),
        (FailureCode.HOLDER_LOST, HolderLostError),
        (FailureCode.NOT_HOLDER, NotHolderError),
        (FailureCode.UNREADABLE, UnreadableMessageError),
        (FailureCode.LEASE_LOST, LeaseLostError),
    ],
)
def test_a_code_and_its_error_are_two_forms_of_one_thing(code: FailureCode, error: type[TurnFailedError]) -> None:
    failure = TurnFailure(code, "why")
    assert type(failure.error()) is error
    assert str(failure.error()) == "why"
    assert TurnFailure.of(failure.error()) == failure
    assert TurnFailure.of(KeyError()) == TurnFailure(FailureCode.FAILED, "KeyError")


@pytest.mark.contract("SR-360")
def test_a_status_leaves_its_options_at_home() -> None:
    found = decode_status(over_the_wire(encode_status(STATUS)))
    assert found is not None
    assert found == evolve(STATUS, status=evolve(STATUS.status, options={}))
    assert "model" not in repr(encode_status(STATUS))
    idle = StatusSnapshot(LiveSessionStatus("IDLE"), 1, 1)
    assert "turn" not in encode_status(idle)
    assert decode_status(encode_status(idle)) == idle


@pytest.mark.contract("SR-361")
def test_a_total_that_an_older_node_lacks_is_zero() -> None:
    payload = encode_status(STATUS)
    del payload["totals"]["interruptedTurns"]
    found = decode_status(payload)
    assert found is not None
    assert found.status.totals == SessionTotals(5, 1, 0, 90)
    del payload["totals"]
    found = decode_status(payload)
    assert found is not None
    assert found.status.totals == SessionTotals()


@pytest.mark.contract("SR-362")
def test_unknown_keys_are_ignored() -> None:
    extra = {"zz_new": {"deep": [1]}}
    for event in EVENTS:
        assert EventCodec().decode({**(EventCodec().encode(event) or {}), **extra}) == event
    outcome = TurnOutcome(TurnResult(True), "t")
    assert decode_outcome({**encode_outcome(outcome), **extra}) == outcome
    payload = encode_status(STATUS)
    payload["totals"].update(extra)
    payload["turn"].update(extra)
    found = decode_status({**payload, **extra})
    assert found is not None
    assert found.status.totals == STATUS.status.totals
    assert found.status.turn == STATUS.status.turn
    for record in (
        Interrupt(InterruptReason.LEASE_LOST, "t", 5),
        Evict(InterruptReason.SESSION_RELEASED, 2**52),
        Yield(7),
        MessageEnqueued("1:5-0", "t"),
    ):
        assert type(record).read({**record.payload(), **extra}) == record


def test_control_payloads_have_no_nulls_and_forgive_an_unknown_reason() -> None:
    assert Interrupt(InterruptReason.USER).payload() == {"reason": "USER"}
    assert Yield().payload() == {}
    assert Evict(InterruptReason.USER).payload() == {"reason": "USER"}
    assert Interrupt.read({"reason": "BOREDOM"}) == Interrupt(InterruptReason.USER)
    assert Interrupt.read({}) == Interrupt(InterruptReason.USER)


def test_a_signal_is_bytes_with_an_origin() -> None:
    signal = SessionSignal("s", SignalKind.INTERRUPT, "n1", {"reason": "USER"}, "i1")
    data = encode_signal(signal)
    assert msgpack.unpackb(data) == {"s": "s", "k": "INTERRUPT", "o": "n1", "i": "i1", "p": {"reason": "USER"}}
    assert decode_signal(data) == signal


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb(3),
        msgpack.packb({"s": "s", "k": "TELEPORT", "o": "n"}),
        msgpack.packb({"s": "s", "k": 3, "o": "n"}),
        msgpack.packb({"k": "EVICT", "o": "n"}),
        msgpack.packb({"s": "s", "k": "EVICT", "o": "n", "p": [1]}),
        msgpack.packb({"s": "s", "k": "EVICT", "o": "n", "p": {"a": 1}}) + b"x",
        b"\xdd\xff\xff\xff\xff" * 300,
    ],
)
def test_bytes_that_are_no_signal_are_dropped_with_a_warning(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert decode_signal(data) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
