"""Subscribers that come late (SR-397..401, SR-456)."""

from __future__ import annotations

import pytest
import trio

from tests.contract.sessions.events.nodes import Reader, Side, Sides, outputs, settle
from zlinkpy.sessions import events as ev


def both(world: Sides) -> tuple[Side, Side]:
    return world.add("n1"), world.add("n2")


@pytest.mark.contract("SR-397", "SR-400")
@pytest.mark.parametrize("where", ["holder", "other"])
@pytest.mark.parametrize("stalled", [False, True])
async def test_a_late_subscriber_gets_the_turn_from_its_first_frame_and_goes_on_live(
    autojump_clock: object, world: Sides, where: str, stalled: bool
) -> None:
    one, two = both(world)
    relay = one.events.open_relay("s", "t1")
    outputs(relay, 1, 40)
    await settle()
    async with trio.open_nursery() as nursery:
        if stalled and where == "holder":
            # Frames that are neither in the journal nor on the bus yet are still in the relay.
            world.bus.stalled = True
            outputs(relay, 41, 45)
            await settle()
            outputs(relay, 46, 50)
        side = one if where == "holder" else two
        reader = Reader(side.events.subscribe("s", 1), nursery)
        await settle()
        world.bus.resume()
        outputs(relay, 51 if stalled and where == "holder" else 41, 60)
        await settle()
        assert reader.shown == list(range(1, 61))
        relay.emit(ev.TurnCompleted())
        await relay.aclose()
        await settle()
        following = one.events.open_relay("s", "t2")
        following.emit(ev.TurnStarted())
        await settle()
        assert reader.shown == [*range(1, 62), 1]
        nursery.cancel_scope.cancel()


@pytest.mark.contract("SR-397")
async def test_frames_that_are_published_while_a_subscriber_comes_are_seen_once(
    autojump_clock: object, world: Sides
) -> None:
    one, two = both(world)
    relay = one.events.open_relay("s", "t1")
    async with trio.open_nursery() as nursery:
        readers: list[Reader] = []

        async def come() -> None:
            for _ in range(30):
                readers.extend(Reader(side.events.subscribe("s", 1), nursery) for side in (one, two))
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()

        nursery.start_soon(come)
        for number in range(1, 121):
            outputs(relay, number, number)
            await trio.lowlevel.checkpoint()
        await relay.aclose()
        await settle()
        late = [reader.shown for reader in readers]
        nursery.cancel_scope.cancel()
    assert len(late) == 60
    for shown in late:
        # Who came after the turn was over has nothing to see.
        assert shown in ([], list(range(1, 121)))
    assert late.count(list(range(1, 121))) > 30


@pytest.mark.contract("SR-456")
@pytest.mark.parametrize("where", ["holder", "other"])
async def test_a_subscriber_names_the_number_it_begins_at(autojump_clock: object, world: Sides, where: str) -> None:
    one, two = both(world)
    side = one if where == "holder" else two
    relay = one.events.open_relay("s", "t1")
    outputs(relay, 1, 40)
    await settle()
    async with trio.open_nursery() as nursery:
        middle = Reader(side.events.subscribe("s", 31), nursery)
        ahead = Reader(side.events.subscribe("s", 45), nursery)
        await settle()
        assert (middle.shown, ahead.shown) == (list(range(31, 41)), [])
        outputs(relay, 41, 50)
        await settle()
        assert (middle.shown, ahead.shown) == (list(range(31, 51)), list(range(45, 51)))
        nursery.cancel_scope.cancel()
    for wrong in (0, -1, True, 1.5, "3"):
        with pytest.raises(ValueError, match="counts from 1"):
            one.events.subscribe("s", wrong)  # type: ignore[arg-type]


@pytest.mark.contract("SR-398")
async def test_dropped_frames_are_a_gap_for_a_remote_subscriber(autojump_clock: object, world: Sides) -> None:
    one, two = both(world)
    async with trio.open_nursery() as nursery:
        reader = Reader(two.events.subscribe("s"), nursery)
        await settle()
        relay = one.events.open_relay("s", "t1")
        relay.emit(ev.TurnStarted())
        await settle()
        world.bus.stalled = True
        outputs(relay, 2, 2)
        await settle()
        outputs(relay, 3, 1126)
        world.bus.resume()
        await relay.aclose()
        await settle()
        # 100 went from the relay; what this subscriber then was too slow for is its own, and shown the same way.
        assert reader.shown[:2] == [1, 2]
        first_gap = next(each for each in reader if isinstance(each, ev.Gap))
        assert (first_gap.turn_id, first_gap.first_seq) == ("t1", 3)
        assert first_gap.last_seq >= 102
        expected = 1
        for each in reader:
            first, last = (each.first_seq, each.last_seq) if isinstance(each, ev.Gap) else (each.seq, each.seq)
            assert first == expected
            expected = (last or 0) + 1
        assert expected == 1127
        nursery.cancel_scope.cancel()


@pytest.mark.contract("SR-401")
async def test_without_a_number_only_live_frames_come(autojump_clock: object, world: Sides) -> None:
    one, two = both(world)
    relay = one.events.open_relay("s", "t1")
    outputs(relay, 1, 10)
    await settle()
    async with trio.open_nursery() as nursery:
        readers = [Reader(side.events.subscribe("s"), nursery) for side in (one, two)]
        await settle()
        outputs(relay, 11, 12)
        await settle()
        assert [reader.shown for reader in readers] == [[11, 12], [11, 12]]
        nursery.cancel_scope.cancel()


@pytest.mark.contract("SR-401")
@pytest.mark.parametrize("fault", ["hangs", "fails"])
async def test_a_journal_that_fails_costs_the_replay_and_nothing_else(
    autojump_clock: object, world: Sides, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = both(world)
    setattr(world.journal, fault, True)
    async with trio.open_nursery() as nursery:
        live = Reader(two.events.subscribe("s"), nursery)
        await settle()
        relay = one.events.open_relay("s", "t1")
        start = trio.current_time()
        outputs(relay, 1, 10)
        assert trio.current_time() == start
        await trio.sleep(2.1)
        # Rests: the next batches are not held up by it.
        calls = world.journal.calls
        for number in range(11, 21):
            outputs(relay, number, number)
            await settle()
        assert world.journal.calls == calls
        assert live.shown == list(range(1, 21))
        start = trio.current_time()
        late = Reader(two.events.subscribe("s", 1), nursery)
        await trio.sleep(4.5)
        outputs(relay, 21, 21)
        await settle()
        assert late.shown == [21]
        setattr(world.journal, fault, False)
        await trio.sleep(5)
        outputs(relay, 22, 22)
        await settle()
        assert world.journal._turns
        start = trio.current_time()
        await relay.aclose()
        assert trio.current_time() - start < 0.1
        nursery.cancel_scope.cancel()
    assert "the event journal failed and rests" in caplog.text


async def test_without_a_journal_the_holder_still_shows_what_its_relay_has(
    autojump_clock: object, world: Sides
) -> None:
    one, two = world.add("n1", journal=False), world.add("n2", journal=False)
    world.bus.stalled = True
    relay = one.events.open_relay("s", "t1")
    outputs(relay, 1, 5)
    await settle()
    outputs(relay, 6, 10)
    async with trio.open_nursery() as nursery:
        here, there = [Reader(side.events.subscribe("s", 1), nursery) for side in (one, two)]
        await settle()
        world.bus.resume()
        await settle()
        assert here.shown == list(range(1, 11))
        assert there.shown == list(range(1, 11))
        nursery.cancel_scope.cancel()


async def test_a_finished_turn_is_not_replayed_and_a_turn_without_events_leaves_no_mark(
    autojump_clock: object, world: Sides
) -> None:
    one, two = both(world)
    relay = one.events.open_relay("s", "t1")
    outputs(relay, 1, 5)
    await relay.aclose()
    silent = one.events.open_relay("s", "t2")
    await silent.aclose()
    await settle()
    assert await world.journal.current("s") is None
    assert len(await world.journal.read("s", "t1", 1)) == 5
    async with trio.open_nursery() as nursery:
        readers = [Reader(side.events.subscribe("s", 1), nursery) for side in (one, two)]
        await settle()
        assert [reader.shown for reader in readers] == [[], []]
        following = one.events.open_relay("s", "t3")
        outputs(following, 1, 3)
        await settle()
        assert [reader.shown for reader in readers] == [[1, 2, 3]] * 2
        nursery.cancel_scope.cancel()
