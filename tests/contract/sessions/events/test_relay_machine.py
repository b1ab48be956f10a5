"""The wheel of relays, driven step by step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.sessions.relay_machine import BATCH_LIMIT, Relay, RelayState, RelayWheel
from zlinkpy.sessions.signal_codec import OUTPUT, STRUCTURAL, TRACE


def sent(wheel: RelayWheel[int]) -> list[tuple[str, list[int]]]:
    """Everything the wheel gives, batch by batch."""
    batches = []
    while (batch := wheel.next_batch()) is not None:
        batches.append((batch.relay.turn_id, list(batch.frames)))
        wheel.settled(batch)
    return batches


def push(wheel: RelayWheel[int], relay: Relay[int], *numbers: int, grade: int = STRUCTURAL) -> None:
    for number in numbers:
        wheel.push(relay, number, grade)


@pytest.mark.contract("SR-339")
def test_a_backlog_leaves_in_batches_and_two_relays_take_turns() -> None:
    assert BATCH_LIMIT == 256
    wheel: RelayWheel[int] = RelayWheel()
    one, two = wheel.open("s1", "t1"), wheel.open("s2", "t2")
    push(wheel, one, *range(600))
    push(wheel, two, *range(300))
    batches = sent(wheel)
    assert [(turn, len(frames)) for turn, frames in batches] == [
        ("t1", 256),
        ("t2", 256),
        ("t1", 256),
        ("t2", 44),
        ("t1", 88),
    ]
    assert [frame for turn, frames in batches if turn == "t1" for frame in frames] == list(range(600))


@pytest.mark.contract("SR-338")
def test_a_turn_waits_for_what_is_left_of_the_one_before_it() -> None:
    wheel: RelayWheel[int] = RelayWheel()
    first = wheel.open("s", "t1")
    push(wheel, first, *range(300))
    batch = wheel.next_batch()
    assert batch is not None
    wheel.close(first)
    second = wheel.open("s", "t2")
    push(wheel, second, 1000)
    assert wheel.next_batch() is None, "a batch of the session is under way"
    wheel.settled(batch)
    assert [turn for turn, _ in sent(wheel)] == ["t1", "t2"]
    assert (first.state, second.state) == (RelayState.DONE, RelayState.OPEN)


@pytest.mark.contract("SR-337")
def test_an_abandoned_relay_keeps_its_structural_frames() -> None:
    wheel: RelayWheel[int] = RelayWheel()
    relay = wheel.open("s", "t")
    push(wheel, relay, 1, 2, grade=TRACE)
    push(wheel, relay, 3)
    push(wheel, relay, 4, grade=OUTPUT)
    push(wheel, relay, 5)
    wheel.close(relay)
    wheel.abandon(relay)
    assert (relay.state, relay.dropped) == (RelayState.ABANDONED, 3)
    assert sent(wheel) == [("t", [3, 5])]
    assert relay.state is RelayState.DONE
    assert wheel.take_ended() == [relay]
    assert wheel.take_ended() == []
    assert len(wheel) == 0


def test_what_comes_after_the_end_is_counted_and_goes_nowhere() -> None:
    wheel: RelayWheel[int] = RelayWheel()
    relay = wheel.open("s", "t")
    wheel.close(relay)
    assert relay.state is RelayState.DONE
    push(wheel, relay, 1)
    assert (sent(wheel), relay.dropped) == ([], 1)
    wheel.close(relay)
    wheel.abandon(relay)
    assert relay.state is RelayState.DONE
    assert wheel.latest("s") is None


def test_a_failed_batch_is_counted_and_not_sent_again() -> None:
    wheel: RelayWheel[int] = RelayWheel()
    relay = wheel.open("s", "t")
    push(wheel, relay, *range(300))
    batch = wheel.next_batch()
    assert batch is not None
    assert relay.pending() == list(range(300))
    wheel.settled(batch, failed=256)
    assert (relay.dropped, relay.pending()) == (256, list(range(256, 300)))
    assert sent(wheel) == [("t", list(range(256, 300)))]


@pytest.mark.contract("SR-326")
def test_a_turn_numbers_its_events_from_one_drops_included() -> None:
    wheel: RelayWheel[int] = RelayWheel(capacity=2)
    one = wheel.open("s", "t1")
    for _ in range(5):
        wheel.push(one, one.next_seq(), OUTPUT)
    two = wheel.open("s", "t2")
    assert (one.pending(), one.dropped, one.last_seq) == ([4, 5], 3, 5)
    assert (two.turn_id, two.next_seq()) == ("t2", 1)
    assert wheel.latest("s") is two


STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "push", "close", "abandon", "take", "settle", "fail"]), st.integers(0, 2)),
    max_size=80,
)


@given(STEPS)
def test_every_frame_is_sent_once_in_the_order_of_its_session_or_counted(steps: list[tuple[str, int]]) -> None:
    """Whatever happens: sent + dropped + pending = pushed, per session in order, and no relay is left behind."""
    wheel: RelayWheel[int] = RelayWheel(capacity=4)
    relays: dict[int, list[Relay[int]]] = {0: [], 1: [], 2: []}
    out: dict[str, list[int]] = {}
    number = 0
    under_way = None
    for step, which in steps:
        own = relays[which]
        if step == "open":
            if own:
                wheel.close(own[-1])
            own.append(wheel.open(f"s{which}", f"t{which}.{len(own)}"))
        elif step == "push" and own:
            number += 1
            wheel.push(own[-1], number, number % 3)
        elif step == "close" and own:
            wheel.close(own[-1])
        elif step == "abandon" and own:
            wheel.abandon(own[-1])
        elif step == "take" and under_way is None:
            under_way = wheel.next_batch()
        elif step in ("settle", "fail") and under_way is not None:
            failed = len(under_way.frames) if step == "fail" else 0
            if not failed:
                out.setdefault(under_way.relay.session_id, []).extend(under_way.frames)
            wheel.settled(under_way, failed=failed)
            under_way = None
    if under_way is not None:
        out.setdefault(under_way.relay.session_id, []).extend(under_way.frames)
        wheel.settled(under_way)
    for own in relays.values():
        for relay in own:
            wheel.close(relay)
    while (batch := wheel.next_batch()) is not None:
        out.setdefault(batch.relay.session_id, []).extend(batch.frames)
        wheel.settled(batch)
    everything = [relay for own in relays.values() for relay in own]
    assert len(wheel) == 0
    assert all(relay.state is RelayState.DONE for relay in everything)
    assert len(wheel.take_ended()) == len(everything)
    assert sum(len(frames) for frames in out.values()) + sum(relay.dropped for relay in everything) == number
    for frames in out.values():
        assert frames == sorted(frames)
