"""A turn's events on their way to subscribers here and on other nodes (SR section 21)."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence

import pytest
import trio

from tests.contract.sessions.events.nodes import Reader, Sides, outputs, settle
from zlinkpy.sessions import events as ev
from zlinkpy.sessions.event_streams import LINE_CAPACITY
from zlinkpy.sessions.payloads import EventCodec
from zlinkpy.sessions.types import InterruptReason, SessionSignal


@pytest.mark.contract("SR-326")
async def test_each_turn_has_a_relay_that_stamps_its_own_id(autojump_clock: object, world: Sides) -> None:
    one = world.add("n1")
    first = one.events.open_relay("s", "t1")
    outputs(first, 1, 2)
    await first.aclose()
    second = one.events.open_relay("s", "t2")
    outputs(second, 1, 2)
    await second.aclose()
    assert first is not second
    assert [(payload["turn"], payload["seq"]) for payload in world.bus.payloads] == [
        ("t1", 1),
        ("t1", 2),
        ("t2", 1),
        ("t2", 2),
    ]
    assert all(payload["ts"] > 1_600_000_000_000 for payload in world.bus.payloads)


@pytest.mark.contract("SR-327", "SR-418")
async def test_subscribers_on_both_nodes_see_the_same(autojump_clock: object, world: Sides) -> None:
    one, two = world.add("n1"), world.add("n2")
    async with trio.open_nursery() as nursery:
        readers = [
            Reader(one.events.subscribe("s"), nursery),
            Reader(two.events.subscribe("s"), nursery),
            Reader(two.events.subscribe("s"), nursery),
        ]
        other = Reader(two.events.subscribe("other"), nursery)
        idle = two.events.subscribe("s")
        await settle()
        relay = one.events.open_relay("s", "t1")
        relay.emit(ev.TurnStarted())
        for first in range(2, 400, 100):
            outputs(relay, first, first + 99)
            await settle()
        relay.emit(ev.StepStarted("search", "1", {"q": "zlink"}))
        relay.emit(ev.TurnCompleted(True, "42"))
        await relay.aclose()
        await settle()
        nursery.cancel_scope.cancel()
    here, there, beside = readers
    assert list(here) == list(there) == list(beside)
    assert here.shown == list(range(1, 404))
    assert here[-1] == ev.TurnCompleted(True, "42", turn_id="t1", seq=403, ts=here[-1].ts)  # type: ignore[union-attr]
    assert other == []
    # Who does not read loses what it has no room for, and nobody else counts that.
    assert idle.dropped == 403 - LINE_CAPACITY
    assert [reader.stream.dropped for reader in readers] == [0, 0, 0]


@pytest.mark.contract("SR-328", "SR-017")
async def test_a_turn_does_not_wait_for_a_bus_that_never_takes_anything(autojump_clock: object, world: Sides) -> None:
    one = world.add("n1", drain_timeout=2.0)
    world.bus.stalled = True
    relay = one.events.open_relay("s", "t1")
    await settle()
    start = trio.current_time()
    outputs(relay, 1, 5000)
    assert trio.current_time() == start
    relay.emit(ev.TurnCompleted())
    await relay.aclose()
    assert trio.current_time() - start == pytest.approx(2.0)


@pytest.mark.contract("SR-336")
async def test_drops_are_counted_and_said_once(
    autojump_clock: object, world: Sides, caplog: pytest.LogCaptureFixture
) -> None:
    one = world.add("n1")
    world.bus.stalled = True
    relay = one.events.open_relay("talk", "t1")
    outputs(relay, 1, 1)
    await settle()
    outputs(relay, 2, 1034)
    assert relay.dropped_event_count == 9
    world.bus.resume()
    await relay.aclose()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [
        "9 events of a turn of session 'talk' did not reach the other nodes"
    ]
    caplog.clear()
    quiet = one.events.open_relay("talk", "t2")
    outputs(quiet, 1, 1024)
    await quiet.aclose()
    assert (quiet.dropped_event_count, caplog.records) == (0, [])


@pytest.mark.contract("SR-337")
async def test_the_end_of_a_turn_waits_two_seconds_and_leaves_structural_frames_behind(
    autojump_clock: object, world: Sides
) -> None:
    one = world.add("n1")
    world.bus.stalled = True
    relay = one.events.open_relay("s", "t1")
    relay.emit(ev.TurnStarted())
    await settle()
    outputs(relay, 2, 100)
    relay.emit(ev.StepStarted("x"))
    relay.emit(ev.TraceDelta("y"))
    relay.emit(ev.TurnCompleted())
    start = trio.current_time()
    await relay.aclose()
    assert trio.current_time() - start == pytest.approx(2.0)
    assert relay.dropped_event_count == 100
    world.bus.resume()
    await settle()
    assert [payload["type"] for payload in world.bus.payloads] == ["TurnStarted", "StepStarted", "TurnCompleted"]
    # A bus that is only slow is waited for as long as it takes.
    world.bus.stalled = True
    slow = one.events.open_relay("s", "t2")
    outputs(slow, 1, 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow.aclose)
        await trio.sleep(1.5)
        start = trio.current_time()
        world.bus.resume()
    assert trio.current_time() - start < 0.1
    assert slow.dropped_event_count == 0


@pytest.mark.contract("SR-338")
async def test_the_next_turn_is_published_behind_what_is_left_of_the_one_before(
    autojump_clock: object, world: Sides
) -> None:
    one = world.add("n1")
    world.bus.stalled = True
    first = one.events.open_relay("s", "t1")
    for number in range(300):
        first.emit(ev.StepStarted(str(number)))
    await first.aclose()
    second = one.events.open_relay("s", "t2")
    second.emit(ev.TurnStarted())
    await settle()
    world.bus.resume()
    await settle()
    assert [payload["turn"] for payload in world.bus.payloads] == ["t1"] * 300 + ["t2"]


@pytest.mark.contract("SR-339")
async def test_a_backlog_leaves_in_batches_of_256(autojump_clock: object, world: Sides) -> None:
    one = world.add("n1")
    relays = [one.events.open_relay(f"s{number}", f"t{number}") for number in range(2)]
    for relay in relays:
        outputs(relay, 1, 600)
    for relay in relays:
        await relay.aclose()
    sent = [(batch[0].session_id, len(batch)) for batch in world.bus.batches]
    for session_id in ("s0", "s1"):
        assert [size for each, size in sent if each == session_id] == [256, 256, 88]
    # Neither waits for the other's second batch.
    assert [{each for each, _ in sent[first : first + 2]} for first in (0, 2, 4)] == [{"s0", "s1"}] * 3


async def test_many_turns_do_not_wait_for_each_other_s_batches(
    autojump_clock: object, world: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.add("n1")
    publish_all = world.bus.publish_all

    async def slowly(signals: Sequence[SessionSignal]) -> None:
        await trio.sleep(0.05)
        await publish_all(signals)

    monkeypatch.setattr(world.bus, "publish_all", slowly)
    relays = [one.events.open_relay(f"s{number}", f"t{number}") for number in range(80)]
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for relay in relays:
            outputs(relay, 1, 1)
            nursery.start_soon(relay.aclose)
    # One after the other would be 4 s, and those behind the first 2 s would be lost.
    assert trio.current_time() - began <= 80 * 0.05 / 8 + 0.1
    assert len(world.bus.payloads) == 80
    assert sum(relay.dropped_event_count for relay in relays) == 0


async def test_frames_of_a_bus_that_is_down_are_lost_counted_and_said_twice(
    autojump_clock: object, world: Sides, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = world.add("n1")
    world.bus.failing = True
    relay = one.events.open_relay("s", "t1")
    for number in range(10):
        outputs(relay, number + 1, number + 1)
        await settle()
    world.bus.failing = False
    outputs(relay, 11, 12)
    await relay.aclose()
    assert [payload["seq"] for payload in world.bus.payloads] == [11, 12]
    assert relay.dropped_event_count == 10
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if "not reaching the other nodes" in text]) == 1
    assert "events are reaching the other nodes again; 10 were lost" in said


@pytest.mark.contract("SR-340")
async def test_a_subscriber_that_never_reads_holds_the_latest(autojump_clock: object, world: Sides) -> None:
    one = world.add("n1")
    async with trio.open_nursery() as nursery:
        idle = one.events.subscribe("s")
        quick = Reader(one.events.subscribe("s"), nursery)
        relay = one.events.open_relay("s", "t1")
        for number in range(1, 301):
            outputs(relay, number, number)
            if number % 100 == 0:
                await settle()
        assert (idle.dropped, quick.stream.dropped) == (44, 0)
        assert quick.shown == list(range(1, 301))
        late = Reader(idle, nursery)
        await settle()
        assert late.shown == list(range(45, 301))
        nursery.cancel_scope.cancel()


@pytest.mark.contract("SR-419")
async def test_a_full_line_loses_by_grade_and_never_a_terminal_frame_for_a_delta(
    autojump_clock: object, world: Sides
) -> None:
    one = world.add("n1")
    stream = one.events.subscribe("s")
    relay = one.events.open_relay("s", "t1")
    relay.emit(ev.TurnCompleted())
    relay.emit(ev.TraceDelta("x"))
    outputs(relay, 3, 400)
    async with trio.open_nursery() as nursery:
        reader = Reader(stream, nursery)
        await settle()
        nursery.cancel_scope.cancel()
    assert reader.shown == [1, (2, 145), *range(146, 401)]
    assert isinstance(reader[1], ev.Gap)


@pytest.mark.contract("SR-341", "SR-344", "SR-325")
async def test_the_end_comes_behind_what_is_buffered_and_a_new_subscriber_gets_a_new_stream(
    autojump_clock: object, world: Sides
) -> None:
    one = world.add("n1")
    async with trio.open_nursery() as nursery:
        full = one.events.subscribe("s")
        relay = one.events.open_relay("s", "t1")
        outputs(relay, 1, 500)
        one.events.complete("s")
        fresh = Reader(one.events.subscribe("s"), nursery)
        outputs(relay, 501, 501)
        reader = Reader(full, nursery)
        await settle()
        assert reader.ended
        assert reader.shown == list(range(245, 501))
        assert (fresh.ended, fresh.shown) == (False, [501])
        assert one.events.has_subscribers("s")
        one.events.complete_all()
        await settle()
        assert fresh.ended
        assert not one.events.has_subscribers("s")
    with pytest.raises(StopAsyncIteration):
        await full.__anext__()


@pytest.mark.contract("SR-342", "SR-343")
async def test_a_subscriber_that_fails_or_goes_takes_nobody_with_it(autojump_clock: object, world: Sides) -> None:
    one = world.add("n1")
    relay = one.events.open_relay("s", "t1")
    async with trio.open_nursery() as nursery:
        readers = [Reader(one.events.subscribe("s"), nursery) for _ in range(2)]
        cancelled = trio.CancelScope()

        async def failing() -> None:
            try:
                async for _event in one.events.subscribe("s"):
                    raise RuntimeError("a broken subscriber")
            except RuntimeError:
                pass

        async def going() -> None:
            with cancelled:
                async for _event in one.events.subscribe("s"):
                    pass

        nursery.start_soon(failing)
        nursery.start_soon(going)
        await settle()
        outputs(relay, 1, 10)
        await settle()
        cancelled.cancel()
        outputs(relay, 11, 20)
        await settle()
        assert [reader.shown for reader in readers] == [list(range(1, 21))] * 2
        nursery.cancel_scope.cancel()


async def test_a_stream_that_nobody_holds_any_more_is_no_subscriber(autojump_clock: object, world: Sides) -> None:
    one = world.add("n1")
    stream = one.events.subscribe("s")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.aclose)
    await stream.aclose()
    assert not one.events.has_subscribers("s")
    lost = one.events.subscribe("s")
    assert one.events.has_subscribers("s")
    del lost
    gc.collect()
    await settle()
    assert not one.events.has_subscribers("s")
    await settle()
    assert "s" not in world.bus._table


async def test_a_cancelled_read_loses_no_event(autojump_clock: object, world: Sides) -> None:
    one = world.add("n1")
    stream = one.events.subscribe("s")
    with trio.move_on_after(1):
        await stream.__anext__()
    relay = one.events.open_relay("s", "t1")
    outputs(relay, 1, 1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.__anext__()
    event = await stream.__anext__()
    assert isinstance(event, ev.OutputDelta)
    assert event.text == "1"


@pytest.mark.contract("SR-345", "SR-242")
async def test_a_frame_without_a_turn_is_for_the_whole_session(autojump_clock: object, world: Sides) -> None:
    one, two = world.add("n1"), world.add("n2")
    async with trio.open_nursery() as nursery:
        readers = [Reader(side.events.subscribe("s"), nursery) for side in (one, two)]
        replaying = Reader(two.events.subscribe("s", 5), nursery)
        await settle()
        lost = ev.InterruptedAt(InterruptReason.HOLDER_LOST)
        one.events.emit("s", lost)
        await one.events.publish("s", lost)
        await settle()
        for reader in (*readers, replaying):
            (event,) = reader
            assert isinstance(event, ev.InterruptedAt)
            assert (event.turn_id, event.seq, event.reason) == (None, None, InterruptReason.HOLDER_LOST)
            assert not reader.ended
        nursery.cancel_scope.cancel()
    world.bus.failing = True
    await one.events.publish("s", lost)


@pytest.mark.contract("SR-348")
async def test_a_type_without_a_codec_stays_here(autojump_clock: object, world: Sides) -> None:
    class Invoice(ev.TurnEvent):
        """Known here only."""

    one, two = world.add("n1"), world.add("n2")
    async with trio.open_nursery() as nursery:
        here, there = [Reader(side.events.subscribe("s"), nursery) for side in (one, two)]
        await settle()
        relay = one.events.open_relay("s", "t1")
        relay.emit(ev.TurnStarted())
        relay.emit(Invoice())
        relay.emit(ev.TurnCompleted())
        await relay.aclose()
        await settle()
        assert (here.shown, there.shown) == ([1, 2, 3], [1, (2, 2), 3])
        assert relay.dropped_event_count == 0
        with pytest.raises(TypeError, match="dict is none"):
            relay.emit({"type": "OutputDelta"})  # type: ignore[arg-type]
        nursery.cancel_scope.cancel()


async def test_an_event_whose_codec_fails_costs_itself_only(
    autojump_clock: object, world: Sides, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(ev.TurnEvent):
        pass

    codec = EventCodec()
    codec.register(Odd, lambda event: 1 / 0, lambda fields: fields)  # type: ignore[arg-type,return-value]
    one = world.add("n1", codec=codec)
    relay = one.events.open_relay("s", "t1")
    relay.emit(Odd())
    relay.emit(ev.OutputDelta("x" * (5 << 20)))
    relay.emit(ev.TurnCompleted())
    await relay.aclose()
    assert "the codec of Odd failed" in caplog.text
    assert "cannot be sent to other nodes" in caplog.text
    assert relay.dropped_event_count == 1
    assert world.bus.payloads[-1]["type"] == "TurnCompleted"


async def test_the_bus_is_subscribed_while_somebody_listens_and_again_after_a_failure(
    autojump_clock: object, world: Sides, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = world.add("n1"), world.add("n2")
    world.bus.deaf = True
    async with trio.open_nursery() as nursery:
        reader = Reader(two.events.subscribe("s"), nursery)
        await trio.sleep(3.5)
        assert "are not heard here" in caplog.text
        assert not world.bus._table.has_event_handlers("s")
        world.bus.deaf = False
        await trio.sleep(1.1)
        assert world.bus._table.has_event_handlers("s")
        await one.events.publish("s", ev.TurnStarted())
        await settle()
        assert len(reader) == 1
        await reader.stream.aclose()
        await settle()
        assert not world.bus._table.has_event_handlers("s")
        again = Reader(two.events.subscribe("s"), nursery)
        await settle()
        await one.events.publish("s", ev.TurnStarted())
        await settle()
        assert len(again) == 1
        nursery.cancel_scope.cancel()
