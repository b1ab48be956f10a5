"""Published records on the simulated network: its faults, drops, and that a seed replays a run exactly."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.contract.transport.worlds import Recorder
from tests.simulation.scheduling import run_seeded
from zlinkpy.transport import MemoryNetwork, MemoryTransport, Publisher
from zlinkpy.transport.interface import DIAL_SECONDS


async def subscribe(near: MemoryTransport, publisher: Publisher) -> Any:
    """An open subscription to everything that the publisher knows of."""
    sink = Recorder()
    near.subscribe(publisher.endpoint, sink, [b""])
    await sink.until_opened()
    # The slowest way of any test here.
    await trio.sleep(2.0)
    return sink


def numbers(sink: Recorder) -> list[int]:
    return [int(frames[1]) for frames in sink.records]


async def test_records_and_subscriptions_take_the_time_of_their_way(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    network.delay("s", "p", 0.25)
    async with network.transport("s") as near, network.transport("p") as far:
        publisher = await far.publish("tcp://p:5501")
        sink = Recorder()
        near.subscribe(publisher.endpoint, sink, [b""])
        await sink.until_opened()
        assert trio.current_time() == pytest.approx(0.5)
        # Open, and unheard of for as long as the subscription is on its way.
        await trio.sleep(0.24)
        publisher.publish([b"n", b"1"])
        await trio.sleep(0.02)
        publisher.publish([b"n", b"2"])
        await sink.until_records(1)
        assert trio.current_time() == pytest.approx(1.01)
        await trio.sleep(5.0)
        assert numbers(sink) == [2]


async def test_a_partition_fills_one_subscriber_s_queue_and_drops_the_newest(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1, queue=10)
    async with network.transport("s") as near, network.transport("t") as third, network.transport("p") as far:
        publisher = await far.publish("tcp://p:5501")
        cut_off, other = await subscribe(near, publisher), await subscribe(third, publisher)
        network.partition("p", "s")
        for number in range(30):
            publisher.publish([b"n", b"%d" % number])
            await trio.sleep(0.01)
        assert numbers(other) == list(range(30))
        assert cut_off.records == []
        network.heal()
        await cut_off.until_records(10)
        publisher.publish([b"n", b"30"])
        await cut_off.until_records(11)
        assert numbers(cut_off) == [*range(10), 30]
        assert sum(entry[1] == "dropped" for entry in network.log) == 20


@pytest.mark.parametrize("way", [("p", "s"), ("s", "p")])
async def test_silence_takes_records_or_subscriptions_without_a_word(
    autojump_clock: MockClock, way: tuple[str, str]
) -> None:
    network = MemoryNetwork(seed=1, latency=0.1)
    async with network.transport("s") as near, network.transport("p") as far:
        publisher = await far.publish("tcp://p:5501")
        early = await subscribe(near, publisher)
        late = Recorder()
        near.subscribe(publisher.endpoint, late, [b""])
        # Its handshake is done and its subscription on the way.
        await late.until_opened()
        network.silence(*way)
        for number in range(5):
            publisher.publish([b"n", b"%d" % number])
            await trio.sleep(1.0)
        # Subscriptions that had come stay; records that go the other way arrive.
        assert numbers(early) == ([] if way == ("p", "s") else list(range(5)))
        assert late.records == []
        assert early.cause is late.cause is None


async def test_a_dial_into_silence_times_out(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    async with network.transport("s") as near, network.transport("p") as far:
        publisher = await far.publish("tcp://p:5501")
        network.silence("p", "s")
        sink = Recorder()
        near.subscribe(publisher.endpoint, sink, [b""])
        assert await sink.until_closed() == "dial timed out"
        assert trio.current_time() == pytest.approx(DIAL_SECONDS)
        assert publisher.subscribers == 0


async def test_a_cut_ends_subscriptions_and_hands_over_what_arrived(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1, latency=0.5)
    async with network.transport("s") as near, network.transport("t") as third, network.transport("p") as far:
        publisher = await far.publish("tcp://p:5501")
        sinks = [await subscribe(near, publisher), await subscribe(near, publisher)]
        other = await subscribe(third, publisher)
        sinks[0].connection.pause()
        publisher.publish([b"n", b"1"])
        await trio.sleep(1.0)
        publisher.publish([b"n", b"2"])
        network.cut(("p", "s"))
        assert await sinks[1].until_closed() == "disconnected"
        await trio.sleep(1.0)
        assert sinks[0].cause is None
        sinks[0].connection.resume()
        assert await sinks[0].until_closed() == "disconnected"
        assert numbers(sinks[0]) == numbers(sinks[1]) == [1]
        assert publisher.subscribers == 1
        await other.until_records(2)


async def test_refusals_and_hangs_concern_subscriptions_too(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    async with network.transport("s") as near, network.transport("p") as far:
        publisher = await far.publish("tcp://p:5501")
        network.refuse(publisher.endpoint)
        refused, hanging = Recorder(), Recorder()
        near.subscribe(publisher.endpoint, refused, [b""])
        assert await refused.until_closed() == "connection refused"
        network.hang(publisher.endpoint)
        network.admit(publisher.endpoint)
        near.subscribe(publisher.endpoint, hanging, [b""])
        await hanging.until_opened()


def test_a_seed_replays_a_run_with_drops_exactly() -> None:
    def run(seed: int) -> tuple[list[Any], list[list[int]]]:
        network = MemoryNetwork(seed=seed, latency=(0.001, 0.5), queue=8)

        async def main() -> list[list[int]]:
            async with (
                network.transport("p") as far,
                network.transport("s") as near,
                network.transport("t") as third,
            ):
                publisher = await far.publish("tcp://p:0")
                sinks = [await subscribe(each, publisher) for each in (near, near, third)]
                for number in range(100):
                    publisher.publish([b"n", b"%d" % number])
                    await trio.sleep(0.03)
                    if number == 50:
                        network.cut(sinks[1].connection)
                await trio.sleep(2.0)
            return [numbers(sink) for sink in sinks]

        return network.log, run_seeded(seed, main)

    log, received = run(7)
    assert (log, received) == run(7)
    assert log != run(8)[0]
    assert any(entry[1] == "dropped" for entry in log)
    assert all(got == sorted(set(got)) for got in received)
    assert len(received[0]) < 100
