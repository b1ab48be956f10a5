"""Heartbeat and idle limit of one session, in numbers (SS-97..104, the machine's part)."""

from __future__ import annotations

import datetime
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.errors import ConfigurationError
from zlinkpy.stream import CloseSession, Heartbeat, HeartbeatOptions, SendPing, SendPong, SilenceReason
from zlinkpy.stream.heartbeat_machine import PING_NAME, PONG_NAME

LOST = CloseSession(SilenceReason.HEARTBEAT_TIMEOUT)
IDLE = CloseSession(SilenceReason.IDLE_TIMEOUT)


def opened(at: float = 0.0, **options: Any) -> Heartbeat:
    heartbeat = Heartbeat(HeartbeatOptions(**options))
    heartbeat.start(at)
    return heartbeat


def run(heartbeat: Heartbeat, until: float, *, answer: float | None = None) -> list[tuple[float, Any]]:
    """Tick at every deadline up to `until`; `answer` seconds after each ping its pong is read."""
    log: list[tuple[float, Any]] = []
    pong: float | None = None
    while True:
        due = heartbeat.next_deadline()
        if pong is not None and (due is None or pong <= due):
            if pong > until:
                return log
            heartbeat.pong(pong)
            pong = None
            continue
        if due is None or due > until:
            return log
        actions = heartbeat.tick(due)
        assert actions, f"nothing was due at {due}"
        log += [(round(due, 6), action) for action in actions]
        if actions == [SendPing()] and answer is not None:
            pong = due + answer


# SS-97, SS-98 and SS-99 also say which bytes the client reads; their marks belong to the session's own tests.


def test_a_ping_leaves_every_second_while_they_are_answered() -> None:
    assert run(opened(100.0, idle=None), 105.0, answer=0.3) == [(100.0 + n, SendPing()) for n in range(1, 6)]
    assert PING_NAME == "$zlink.heartbeat.ping"
    assert PONG_NAME == "$zlink.heartbeat.pong"


def test_no_second_ping_leaves_before_a_pong_and_later_ones_keep_the_grid() -> None:
    assert run(opened(idle=None), 8.0, answer=2.4) == [(1.0, SendPing()), (4.0, SendPing()), (7.0, SendPing())]


def test_a_late_tick_sends_one_ping() -> None:
    heartbeat = opened(idle=None)
    assert heartbeat.tick(3.7) == [SendPing()]
    heartbeat.pong(3.8)
    assert heartbeat.tick(3.9) == []
    assert heartbeat.next_deadline() == 4.0


def test_without_a_pong_the_session_is_closed_five_seconds_after_the_ping() -> None:
    heartbeat = opened()
    assert run(heartbeat, 100.0) == [(1.0, SendPing()), (6.0, LOST)]
    assert heartbeat.ended
    assert heartbeat.next_deadline() is None
    assert heartbeat.tick(200.0) == heartbeat.ping(200.0) == heartbeat.pong(200.0) == []
    assert SilenceReason.HEARTBEAT_TIMEOUT.number == 3
    assert SilenceReason.HEARTBEAT_TIMEOUT.label == "heartbeat_timeout"


@pytest.mark.parametrize(("pong", "closed"), [(5.999, False), (6.0, True), (6.5, True)])
def test_a_pong_at_the_deadline_is_too_late(pong: float, closed: bool) -> None:
    heartbeat = opened(idle=None)
    assert heartbeat.tick(1.0) == [SendPing()]
    assert heartbeat.is_waiting
    heartbeat.pong(pong)
    assert heartbeat.tick(6.6) == ([LOST] if closed else [SendPing()])


@pytest.mark.parametrize("interval", [1.0, None])
def test_a_clients_ping_is_answered_at_once_whatever_the_server_does(interval: float | None) -> None:
    heartbeat = opened(interval=interval)
    assert heartbeat.ping(0.4) == [SendPong()]
    heartbeat.pause(0.5)
    assert heartbeat.ping(0.5) == [SendPong()]  # it was read before the pause
    heartbeat.stop()
    assert heartbeat.ping(0.6) == []


def test_a_server_without_heartbeats_sends_none_and_keeps_the_idle_limit() -> None:
    assert run(opened(interval=None), 100.0) == [(30.0, IDLE)]
    assert opened(interval=None, idle=None).next_deadline() is None


@pytest.mark.contract("SS-100")
def test_a_client_without_application_frames_is_closed_after_thirty_seconds() -> None:
    log = run(opened(), 100.0, answer=0.1)
    assert log == [*((float(n), SendPing()) for n in range(1, 30)), (30.0, IDLE)]
    assert SilenceReason.IDLE_TIMEOUT.number == 2
    assert SilenceReason.IDLE_TIMEOUT.label == "idle_timeout"


@pytest.mark.contract("SS-100")
def test_an_application_frame_moves_the_idle_limit_and_pings_and_pongs_do_not() -> None:
    heartbeat = opened()
    run(heartbeat, 28.9, answer=0.1)
    heartbeat.application_frame(29.0)
    for at in (29.3, 40.0):
        heartbeat.ping(at)
    log = run(heartbeat, 100.0, answer=0.1)
    assert log[-1] == (59.0, IDLE)


def test_an_application_frame_is_no_pong() -> None:
    heartbeat = opened()
    assert heartbeat.tick(1.0) == [SendPing()]
    for at in (2.0, 3.0, 4.0, 5.0):
        heartbeat.application_frame(at)
    assert heartbeat.tick(6.0) == [LOST]


@pytest.mark.contract("SS-101")
@pytest.mark.parametrize("options", [{"idle": 6.0}, {"idle": 3.0}, {"idle": 5.5, "timeout": 4.0}])
def test_of_two_expired_limits_the_heartbeat_is_reported(options: dict[str, float]) -> None:
    heartbeat = opened(**options)
    assert heartbeat.tick(1.0) == [SendPing()]
    assert heartbeat.tick(20.0) == [LOST]


@pytest.mark.contract("SS-102")
@pytest.mark.parametrize("waiting", [True, False])
def test_no_limit_advances_while_receiving_is_paused(waiting: bool) -> None:
    heartbeat = opened(idle=30.0)
    run(heartbeat, 2.9, answer=0.1)
    if waiting:
        assert heartbeat.tick(3.0) == [SendPing()]
    heartbeat.pause(3.2)
    assert heartbeat.is_paused
    assert heartbeat.next_deadline() is None
    assert heartbeat.tick(23.0) == []
    heartbeat.pause(10.0)  # again, which changes nothing
    heartbeat.resume(23.2)
    heartbeat.resume(24.0)
    if waiting:
        # 0.2 s of the 5 s had gone before the pause.
        assert heartbeat.tick(27.9) == []
        heartbeat.pong(27.9)
    log = run(heartbeat, 200.0, answer=0.1)
    assert log[-1] == (50.0, IDLE)
    assert LOST not in [action for _, action in log]


@pytest.mark.contract("SS-102")
def test_a_pong_that_was_read_before_the_pause_counts() -> None:
    heartbeat = opened(idle=None)
    assert heartbeat.tick(1.0) == [SendPing()]
    heartbeat.pause(5.9)
    heartbeat.pong(100.0)
    heartbeat.resume(100.0)
    assert not heartbeat.is_waiting
    assert heartbeat.tick(101.0) == [SendPing()]


@pytest.mark.contract("SS-103")
@pytest.mark.parametrize("jump", [3600.0, -7200.0])
def test_the_wall_clock_is_read_by_nobody(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    expected = run(opened(), 100.0, answer=0.2)

    class Jumped(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            raise AssertionError("read")

    def read() -> float:
        raise AssertionError(f"the wall clock, {jump} s off, was read")

    monkeypatch.setattr(time, "time", read)
    monkeypatch.setattr(datetime, "datetime", Jumped)
    assert run(opened(), 100.0, answer=0.2) == expected


@pytest.mark.parametrize("name", ["interval", "timeout", "idle"])
@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "1", True])
def test_settings_that_cannot_be_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Heartbeat(HeartbeatOptions(**{name: value}))  # type: ignore[arg-type]


def test_a_limit_is_needed_for_what_is_waited_for() -> None:
    with pytest.raises(ConfigurationError, match="timeout"):
        HeartbeatOptions(timeout=None).validate()  # type: ignore[arg-type]
    heartbeat = opened()
    with pytest.raises(RuntimeError):
        heartbeat.start(1.0)


EVENTS = ["tick", "pong", "ping", "frame", "pause", "resume"]


@pytest.mark.contract("SS-101", "SS-102")
@given(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.floats(0, 7, allow_nan=False)), max_size=60),
    st.sampled_from([0.0, 0.1, 1e6]),
)
def test_a_session_is_closed_once_for_a_limit_that_passed_while_it_was_read(
    steps: list[tuple[str, float]], start: float
) -> None:
    """Model: reading time adds up outside pauses; closed means that one of the limits passed in that time."""
    heartbeat, now = opened(start), start
    read, paused = 0.0, False
    pinged: float | None = None
    frame = 0.0
    closed: list[Any] = []
    for event, later in steps:
        now += later
        if not paused:
            read += later
        expired = (pinged is not None and read >= pinged + 5.0) or read >= frame + 30.0
        near = min(abs(read - (pinged or -99) - 5.0), abs(read - frame - 30.0), abs(read - round(read))) < 1e-6
        if near:
            return  # rounding decides; the exact instants have tests of their own
        actions: list[Any] = []
        if event == "tick":
            actions = heartbeat.tick(now)
            assert heartbeat.tick(now) == []
        elif event == "pong":
            actions = heartbeat.pong(now)
            pinged = pinged if expired else None
        elif event == "ping":
            actions = heartbeat.ping(now)
            assert actions == ([] if closed else [SendPong()])
            continue
        elif event == "frame":
            actions = heartbeat.application_frame(now)
            frame = frame if expired else read
        elif event == "pause":
            heartbeat.pause(now)
            paused = True
        else:
            heartbeat.resume(now)
            paused = False
        if actions == [SendPing()]:
            assert pinged is None
            assert not paused
            pinged = read
        elif actions:
            assert expired
            assert not paused
            closed += actions
            assert actions == [LOST if pinged is not None and read >= pinged + 5.0 else IDLE]
        if event == "tick" and not paused and not closed:
            assert not expired
        if closed:
            assert heartbeat.next_deadline() is None
    assert len(closed) <= 1
