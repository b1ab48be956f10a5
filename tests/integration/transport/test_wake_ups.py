"""The classic hang of ZeroMQ under an event loop: a send swallows the wake-up that a receiver waits for."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder, block_the_loop, eventually
from zlinkpy.entropy import SeededEntropy
from zlinkpy.transport import Connection, ZmqTransport


@pytest.fixture
def fast_clock() -> MockClock:
    return MockClock(rate=5)


@pytest.mark.parametrize("swallower", ["dialled", "accepted"])
async def test_a_send_that_swallows_a_wake_up_leaves_no_record_behind(fast_clock: MockClock, swallower: str) -> None:
    async with (
        ZmqTransport(entropy=SeededEntropy(1)) as near,
        ZmqTransport(entropy=SeededEntropy(2)) as far,
    ):
        reception = Reception()
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        sink = Recorder()
        dialled = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        dialled.send([b"hello"])
        accepted_sink = await reception.until(1)
        accepted = accepted_sink.connection
        assert accepted is not None
        first, second, receiver = (
            (accepted, dialled, sink) if swallower == "dialled" else (dialled, accepted, accepted_sink)
        )
        for round_ in range(1, 31):
            # Both stages sleep. A record arrives and signals the descriptor; the send that follows a few milliseconds
            # later processes the signal; nothing else happens on the socket.
            await trio.sleep(0.02)
            before = len(receiver.records)
            first.send([b"record", b"%d" % round_])
            block_the_loop(0.004)
            second.send([b"swallows"])
            await receiver.until_records(before + 1)


class Counting:
    """A sink that checks the numbers of the records and keeps none."""

    def __init__(self) -> None:
        self.next_number = 0
        self.connection: Connection | None = None

    def opened(self, connection: Connection) -> None:
        self.connection = connection

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        if frames != [b"hello"]:
            assert int.from_bytes(frames[0], "big") == self.next_number
            self.next_number += 1

    def closed(self, connection: Connection, cause: str) -> None:
        self.connection = None


async def flood_both_ways(total: int, *, stall: float) -> None:
    """`total` records each way, random sizes and pauses; fails when nothing arrives for `stall` seconds."""
    async with (
        ZmqTransport(entropy=SeededEntropy(1)) as near,
        ZmqTransport(entropy=SeededEntropy(2)) as far,
    ):
        near_sink, far_sink = Counting(), Counting()
        listener = await far.listen("tcp://127.0.0.1:0", lambda _: far_sink)
        dialled = near.dial(listener.endpoint, near_sink)
        await eventually(lambda: near_sink.connection is not None)
        dialled.send([b"hello"])
        await eventually(lambda: far_sink.connection is not None)
        accepted = far_sink.connection
        assert accepted is not None

        async def send(connection: Connection, seed: int) -> None:
            dice = random.Random(seed)
            filler = b"x" * 4096
            for number in range(total):
                record = [number.to_bytes(8, "big"), filler[: dice.choice((0, 10, 100, 4096))]]
                while not connection.send(record):
                    await connection.wait_writable()
                roll = dice.random()
                if roll < 0.01:
                    await trio.lowlevel.checkpoint()
                elif roll < 0.0105:
                    await trio.sleep(dice.random() * 0.002)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, dialled, 1)
            nursery.start_soon(send, accepted, 2)
            reached = (0, 0)
            while reached != (total, total):
                with trio.fail_after(stall):
                    while (near_sink.next_number, far_sink.next_number) == reached:  # noqa: ASYNC110
                        await trio.sleep(stall / 100)
                reached = (near_sink.next_number, far_sink.next_number)


async def test_a_flood_in_both_directions_never_stalls() -> None:
    await flood_both_ways(15_000, stall=5.0)


@pytest.mark.slow
async def test_a_long_flood_in_both_directions_never_stalls() -> None:
    await flood_both_ways(300_000, stall=5.0)


async def test_everything_that_one_pass_sends_leaves_without_further_ado(fast_clock: MockClock) -> None:
    async with (
        ZmqTransport(entropy=SeededEntropy(1)) as near,
        ZmqTransport(entropy=SeededEntropy(2)) as far,
    ):
        reception = Reception()
        listener = await far.listen("tcp://127.0.0.1:0", reception.accept)
        sink = Recorder()
        dialled = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        for count in (1, 2, 3, 70, 200):
            # The stage sleeps, and nothing but these sends gives it a reason to wake.
            await trio.sleep(0.05)
            before = sum(len(each.records) for each in reception.sinks)
            for _ in range(count):
                assert dialled.send([b"one of many"])
            await (await reception.until(1)).until_records(before + count)


async def test_input_found_behind_a_burst_wakes_the_stage(fast_clock: MockClock) -> None:
    async with (
        ZmqTransport(entropy=SeededEntropy(1)) as near,
        ZmqTransport(entropy=SeededEntropy(2)) as far,
    ):
        listener = await far.listen("tcp://127.0.0.1:0", Reception().accept)
        sink = Recorder()
        dialled: Any = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        await trio.sleep(0.1)
        looks: list[str] = []
        turns: list[str] = []
        take_turn = dialled.take_turn

        def look() -> bool:
            # Input comes in the moment between the look of the first send and the one that follows the burst.
            looks.append("look")
            return len(looks) == 2

        def counted(*arguments: Any, **keywords: Any) -> Any:
            turns.append("turn")
            return take_turn(*arguments, **keywords)

        dialled.look = look
        dialled.take_turn = counted
        dialled.send([b"first"])
        assert looks == ["look"]
        dialled.send([b"second"])
        # Sooner than the stage's next errand, the deadline of the dial.
        with trio.fail_after(2):
            await eventually(lambda: bool(turns))
