"""The pure parts of the buses, driven step by step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.errors import ProtocolError
from zlinkpy.sessions.interest_machine import (
    IDS_KEPT,
    IDS_PER_INTEREST,
    OFF,
    ON,
    START_OVER,
    Announcements,
    Interest,
    Interests,
)
from zlinkpy.sessions.outbox_machine import CONTROL_SECONDS, Outbox
from zlinkpy.sessions.signal_codec import OUTPUT, STRUCTURAL, TRACE, decode_signal, encode_signal
from zlinkpy.sessions.signal_intake import SignalIntake, SubscriberTable
from zlinkpy.sessions.types import SessionSignal, SignalKind

# --- interests


def test_the_first_word_starts_over_even_with_nothing_to_say() -> None:
    announcements = Announcements(())
    assert announcements.next() == Interest(START_OVER, ())
    assert announcements.next() is None
    announcements.confirmed()
    assert announcements.next() is None
    announcements.change("a", on=True)
    assert not announcements.knows("a")
    assert announcements.next() == Interest(ON, ("a",))
    announcements.confirmed()
    assert announcements.knows("a")
    announcements.change("a", on=False)
    assert not announcements.knows("a")
    assert announcements.next() == Interest(OFF, ("a",))


def test_many_ids_go_in_pieces() -> None:
    announcements = Announcements(str(number) for number in range(IDS_PER_INTEREST + 1))
    first = announcements.next()
    assert first is not None
    assert len(first.ids) == IDS_PER_INTEREST
    announcements.confirmed()
    second = announcements.next()
    assert second is not None
    assert (second.mode, len(second.ids)) == (ON, 1)


def test_a_change_of_mind_that_nobody_was_told_of_is_not_told() -> None:
    announcements = Announcements(())
    announcements.next()
    announcements.confirmed()
    announcements.change("a", on=True)
    announcements.change("a", on=False)
    assert announcements.next() is None


def test_after_a_failure_the_contrary_has_to_be_said_too() -> None:
    announcements = Announcements(("a",))
    announcements.next()
    announcements.failed()
    # It may have arrived all the same.
    announcements.change("a", on=False)
    assert announcements.next() == Interest(START_OVER, ())
    announcements.confirmed()
    assert announcements.next() == Interest(OFF, ("a",))
    announcements.confirmed()
    assert announcements.next() is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.sampled_from("abc"), st.booleans()),
        st.tuples(st.sampled_from(["say", "lose request", "lose answer", "restart"]), st.none(), st.none()),
    ),
    max_size=60,
)


@given(STEPS)
def test_in_the_end_the_peer_holds_what_is_wanted(steps: list[tuple[str, str | None, bool | None]]) -> None:
    wanted: set[str] = set()
    announcements = Announcements(())
    peer = Interests()

    def say(arrives: bool, answered: bool) -> bool:
        interest = announcements.next()
        if interest is None:
            return False
        if arrives:
            peer.take(Interest.decode(interest.encode()))
        if answered:
            announcements.confirmed()
        else:
            announcements.failed()
        return True

    for step, session_id, on in steps:
        if step == "change":
            assert session_id is not None
            (wanted.add if on else wanted.discard)(session_id)
            announcements.change(session_id, on=bool(on))
        elif step == "restart":
            peer = Interests()
            announcements.restart(sorted(wanted))
        else:
            say(step != "lose request", step == "say")
        for each in "abc":
            if announcements.knows(each):
                assert each in peer
                assert each in wanted
    for _ in range(20):
        if not say(True, True):
            break
    assert peer._ids == wanted
    assert all(announcements.knows(each) for each in wanted)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        b"\x91\x01",
        b"\x92\x03\x90",
        b"\x92\xc3\x90",
        b"\x92\x01\xc0",
        b"\x92\x01\x91\x01",
        b"\x92\x01\x91\xa0",
        b"\x92\x01\xdc\x04\x01" + b"\xa1a" * 1025,
        b"\x92\x01\x91\xda\x02\x01" + b"a" * 513,
        b"\x92\x01\x90\x00",
    ],
)
def test_what_is_no_interest_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Interest.decode(data)


def test_what_a_newer_version_appends_is_ignored() -> None:
    assert Interest.decode(b"\x93\x01\x91\xa1a\xc0") == Interest(ON, ("a",))


def test_a_peer_that_names_too_many_gets_everything_until_it_starts_over() -> None:
    interests = Interests()
    for start in range(0, IDS_KEPT + 1, IDS_PER_INTEREST):
        interests.take(Interest(ON, tuple(str(number) for number in range(start, start + IDS_PER_INTEREST))))
    assert interests.everything
    assert len(interests) == 0
    interests.take(Interest(OFF, ("1",)))
    assert "1" in interests
    assert interests.take(Interest(START_OVER, ("2",)))
    assert ("1" in interests, "2" in interests) == (False, True)


# --- the outbox


def frames(number: int, size: int = 1) -> list[bytes]:
    return [b"head", bytes([number]) * size]


def given_out(outbox: Outbox) -> list[int]:
    numbers = []
    while len(outbox):
        numbers.append(outbox.offer()[1][0])
        outbox.taken()
    return numbers


def test_control_goes_before_events_and_both_in_order() -> None:
    outbox = Outbox()
    outbox.put_event(frames(1), STRUCTURAL)
    outbox.put_event(frames(2), STRUCTURAL)
    outbox.put_control(frames(3), 0.0)
    outbox.put_control(frames(4), 0.0)
    assert given_out(outbox) == [3, 4, 1, 2]


def test_a_control_signal_has_one_second() -> None:
    outbox = Outbox()
    outbox.put_control(frames(1), 10.0)
    outbox.put_control(frames(2), 10.5)
    assert outbox.deadline() == 10.0 + CONTROL_SECONDS == 11.0
    assert outbox.expire(10.999) == 0
    assert outbox.expire(11.0) == 1
    assert (outbox.deadline(), outbox.control_lost) == (11.5, 1)
    assert given_out(outbox) == [2]
    assert outbox.deadline() is None


def test_what_was_offered_and_then_lost_is_not_taken_from_what_is_left() -> None:
    outbox = Outbox(events=1)
    outbox.put_control(frames(1), 0.0)
    outbox.offer()
    outbox.expire(1.0)
    outbox.put_control(frames(2), 1.0)
    outbox.taken()
    assert given_out(outbox) == [2]
    outbox.put_event(frames(3), OUTPUT)
    outbox.offer()
    outbox.put_event(frames(4), OUTPUT)
    outbox.taken()
    assert given_out(outbox) == [4]


def test_both_lines_are_bounded() -> None:
    outbox = Outbox(control=3, events=3)
    for number in range(5):
        outbox.put_control(frames(number), 0.0)
        outbox.put_event(frames(10 + number), TRACE if number % 2 else OUTPUT)
    assert (len(outbox), outbox.control_lost, outbox.events_lost) == (6, 2, 2)
    assert given_out(outbox) == [2, 3, 4, 10, 12, 14]


# --- signals and the two lines


@given(st.binary(max_size=200))
def test_no_bytes_make_the_decoder_raise(data: bytes) -> None:
    signal = decode_signal(data)
    assert signal is None or isinstance(signal, SessionSignal)


PLAIN = st.recursive(
    st.text(max_size=5) | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.contract("SR-085")
@given(st.sampled_from(SignalKind), st.text(min_size=1, max_size=20), st.dictionaries(st.text(max_size=4), PLAIN))
def test_every_plain_signal_comes_back(kind: SignalKind, session: str, payload: dict[str, object]) -> None:
    signal = SessionSignal(session, kind, "n", payload, "i")
    assert decode_signal(encode_signal(signal)) == signal


def lines(table: SubscriberTable, **limits: int) -> tuple[SignalIntake, list[SessionSignal]]:
    out: list[SessionSignal] = []
    table.add("s", out.append, events=True)
    return SignalIntake(table, **limits), out


def control(number: int) -> SessionSignal:
    return SessionSignal("s", SignalKind.EVICT, "n", {"n": number})


@pytest.mark.contract("SR-091")
def test_what_is_received_of_control_is_handed_out_before_the_backlog_of_events() -> None:
    intake, out = lines(SubscriberTable(), events=10_000)
    for number in range(10_000):
        intake.put(SessionSignal("s", SignalKind.EVENT, "n", {"type": "OutputDelta", "n": number}), 10)
    intake.put(control(1), 10)
    assert intake.burst()
    assert [signal.kind for signal in out[:2]] == [SignalKind.EVICT, SignalKind.EVENT]
    # And one that comes in between two bursts waits for neither of those left.
    intake.put(control(2), 10)
    handled = len(out)
    assert handled < 1000
    assert intake.burst()
    assert out[handled].payload == {"n": 2}
    while intake.burst():
        pass
    assert [signal.payload["n"] for signal in out if signal.kind is SignalKind.EVENT] == list(range(10_000))


def test_a_control_signal_that_is_lost_is_said(caplog: pytest.LogCaptureFixture) -> None:
    intake, out = lines(SubscriberTable(), control=3)
    for number in range(5):
        assert intake.put(control(number), 10) is (number == 0)
    assert not intake.burst()
    assert [signal.payload["n"] for signal in out] == [2, 3, 4]
    assert intake.statistics().control_lost == 2
    assert "lost 2 control signals" in caplog.text
    caplog.clear()
    assert intake.put(control(5), 10)
    intake.burst()
    assert caplog.text == ""


def test_large_signals_are_bounded_by_their_bytes() -> None:
    intake, _ = lines(SubscriberTable())
    for number in range(100):
        intake.put(control(number), 4 << 20)
    assert intake.statistics().control_waiting == 8


def test_a_control_signal_that_comes_during_a_burst_goes_before_the_rest_of_it() -> None:
    table = SubscriberTable()
    intake, out = lines(table)

    def handler(signal: SessionSignal) -> None:
        if signal.kind is SignalKind.EVENT and signal.payload["n"] == 2:
            intake.put(control(100), 10)

    table.add("s", handler, events=True)
    for number in range(5):
        intake.put(SessionSignal("s", SignalKind.EVENT, "n", {"n": number}), 10)
    intake.burst()
    assert [signal.payload["n"] for signal in out] == [0, 1, 2, 100, 3, 4]


def test_only_one_signal_passes_the_line_by() -> None:
    intake, _ = lines(SubscriberTable())
    assert intake.claim()
    assert not intake.claim()
    assert not intake.put(control(1), 10)
    assert not intake.burst()
    assert intake.claim()
