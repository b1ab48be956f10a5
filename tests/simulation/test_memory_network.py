"""The simulated network: its faults, and that a seed replays a run exactly."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder, echo
from tests.simulation.scheduling import run_seeded
from zlinkpy.transport import ConnectionClosed, Listener, MemoryNetwork, MemoryTransport
from zlinkpy.transport.interface import DIAL_SECONDS


async def connect(near: MemoryTransport, listener: Listener, reception: Reception) -> tuple[Any, Any]:
    """One open connection whose first record has arrived: the sinks of both ends."""
    sink = Recorder()
    connection = near.dial(listener.endpoint, sink)
    await sink.until_opened()
    connection.send([b"hello"])
    accepted = await reception.until(len(reception.sinks) + 1)
    accepted.records.clear()
    return sink, accepted


async def test_a_record_takes_the_time_of_its_way(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    network.delay("a", "b", 0.25)
    async with network.transport("a") as near, network.transport("b") as far:
        reception = Reception(echo)
        listener = await far.listen("tcp://b:5501", reception.accept)
        sink = Recorder()
        started = trio.current_time()
        connection = near.dial(listener.endpoint, sink)
        await sink.until_opened()
        assert trio.current_time() - started == pytest.approx(0.5)
        connection.send([b"there and back"])
        await sink.until_records(1)
        assert trio.current_time() - started == pytest.approx(1.0)


async def test_a_random_way_keeps_the_order(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1, latency=(0.001, 2.0))
    async with network.transport("a") as near, network.transport("b") as far:
        reception = Reception()
        listener = await far.listen("tcp://b:5501", reception.accept)
        sink, accepted = await connect(near, listener, reception)
        for number in range(100):
            sink.connection.send([b"%d" % number])
        await accepted.until_records(100)
        assert accepted.records == [[b"%d" % number] for number in range(100)]


async def test_a_partition_holds_everything_until_it_heals(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1, queue=10)
    async with network.transport("a") as near, network.transport("b") as far:
        reception = Reception(echo)
        listener = await far.listen("tcp://b:5501", reception.accept)
        sink, accepted = await connect(near, listener, reception)
        await sink.until_records(1)
        network.partition("b", "a")
        for number in range(10):
            assert sink.connection.send([b"%d" % number])
        # A pulled cable fills the queues.
        assert not sink.connection.send([b"too many"])
        late = Recorder()
        near.dial(listener.endpoint, late)
        await trio.sleep(3.0)
        assert not accepted.records
        assert not late.told
        network.heal()
        await sink.connection.wait_writable()
        await sink.until_records(11)
        await late.until_opened()
        assert sink.records[1:] == [[b"%d" % number] for number in range(10)]
        assert sink.cause is None


async def test_a_dial_into_a_partition_times_out(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    async with network.transport("a") as near, network.transport("b") as far:
        listener = await far.listen("tcp://b:5501", Reception().accept)
        network.partition("a", "b")
        sink = Recorder()
        near.dial(listener.endpoint, sink)
        assert await sink.until_closed() == "dial timed out"
        assert trio.current_time() == pytest.approx(DIAL_SECONDS)


async def test_silence_swallows_one_direction_for_good(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    async with network.transport("a") as near, network.transport("b") as far:
        reception = Reception()
        listener = await far.listen("tcp://b:5501", reception.accept)
        sink, accepted = await connect(near, listener, reception)
        network.silence("a", "b")
        for _ in range(5000):
            # A black hole takes everything.
            assert sink.connection.send([b"unheard"])
        accepted.connection.send([b"heard"])
        await sink.until_records(1)
        network.heal()
        sink.connection.send([b"behind the hole"])
        await trio.sleep(60)
        assert accepted.records == []
        assert accepted.cause is None
        # Even the end of the connection goes unheard.
        sink.connection.close(linger=1.0)
        await sink.until_closed()
        await trio.sleep(60)
        assert accepted.cause is None
        fresh, far_end = await connect(near, listener, reception)
        fresh.connection.send([b"a new connection works"])
        await far_end.until_records(1)


async def test_a_direction_that_lost_nothing_recovers(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    async with network.transport("a") as near, network.transport("b") as far:
        reception = Reception()
        listener = await far.listen("tcp://b:5501", reception.accept)
        sink, accepted = await connect(near, listener, reception)
        network.silence("a", "b")
        network.heal()
        sink.connection.send([b"nothing was lost"])
        await accepted.until_records(1)


async def test_a_cut_between_hosts_ends_all_their_connections(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1, latency=0.5)
    async with (
        network.transport("a") as near,
        network.transport("b") as far,
        network.transport("c") as third,
    ):
        reception = Reception()
        listener = await far.listen("tcp://b:5501", reception.accept)
        first = await connect(near, listener, reception)
        second = await connect(near, listener, reception)
        other = await connect(third, listener, reception)
        first[0].connection.send([b"under way"])
        network.cut(("b", "a"))
        for sink in (*first, *second):
            assert await sink.until_closed() == "disconnected"
        assert first[1].records == []
        other[0].connection.send([b"unharmed"])
        await other[1].until_records(1)


@pytest.mark.parametrize("known", [True, False], ids=["known before", "never seen before"])
async def test_what_arrived_behind_a_pause_outlives_a_cut(autojump_clock: MockClock, known: bool) -> None:
    network = MemoryNetwork(seed=1, latency=0.5)
    async with network.transport("a") as near, network.transport("b") as far:
        reception = Reception()
        listener = await far.listen("tcp://b:5501", reception.accept)
        if known:
            sink, _ = await connect(near, listener, reception)
            reception.sinks[0].records.clear()
        else:
            near.dial(listener.endpoint, sink := Recorder())
            await sink.until_opened()
        listener.pause()
        sink.connection.send([b"arrived"])
        await trio.sleep(1.0)
        sink.connection.send([b"under way"])
        network.cut(("a", "b"))
        await sink.until_closed()
        await trio.sleep(1.0)
        listener.resume()
        accepted = await reception.until(1)
        assert await accepted.until_closed() == "disconnected"
        assert accepted.records == [[b"arrived"]]


async def test_a_waiting_sender_hears_of_a_cut(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1, queue=1)
    async with network.transport("a") as near, network.transport("b") as far:
        reception = Reception()
        listener = await far.listen("tcp://b:5501", reception.accept)
        sink, _ = await connect(near, listener, reception)
        listener.pause()
        assert sink.connection.send([b"first"])
        assert not sink.connection.send([b"second"])
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def wait() -> None:
                with pytest.raises(ConnectionClosed):
                    await sink.connection.wait_writable()

            await trio.sleep(1.0)
            network.cut(sink.connection)
        listener.resume()


async def test_an_endpoint_can_refuse_hang_and_admit(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    async with network.transport("a") as near, network.transport("b") as far:
        listener = await far.listen("tcp://b:5501", Reception().accept)
        network.refuse(listener.endpoint)
        refused = Recorder()
        near.dial(listener.endpoint, refused)
        assert await refused.until_closed() == "connection refused"
        network.admit(listener.endpoint)
        network.hang(listener.endpoint)
        hanging = Recorder()
        near.dial(listener.endpoint, hanging)
        await trio.sleep(1.0)
        assert not hanging.told
        network.admit(listener.endpoint)
        await hanging.until_opened()


async def test_a_wildcard_listener_is_reached_under_any_name(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    async with network.transport("a") as near, network.transport("b") as far:
        await far.listen("tcp://0.0.0.0:5501", Reception(echo).accept)
        sink = Recorder()
        near.dial("tcp://b.example:5501", sink)
        await sink.until_opened()


async def test_a_host_name_is_taken_once_and_free_after_it_left(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    async with network.transport("a"):
        with pytest.raises(RuntimeError, match="on the network already"):
            async with network.transport("a"):
                raise AssertionError
    async with network.transport("a") as again:
        assert again.statistics().listeners == 0


async def test_automatic_ports_are_the_same_every_time(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    async with network.transport("a") as near, network.transport("b") as far:
        endpoints = [
            (await host.listen("tcp://127.0.0.1:0", Reception().accept)).endpoint for host in (near, far, near)
        ]
    assert endpoints == [f"tcp://127.0.0.1:{port}" for port in (49152, 49153, 49154)]


# --- one seed, one history


async def disturbed_hosts(seed: int) -> tuple[list[tuple[Any, ...]], Counter[str]]:
    """Five hosts that dial, talk, close and are disturbed; returns the log and how often each thing happened."""
    dice = random.Random(seed)
    network = MemoryNetwork(seed=seed, latency=(0.001, 0.05), queue=8)
    names = ["a", "b", "c", "d", "e"]
    reached: Counter[str] = Counter()
    transports: dict[str, MemoryTransport] = {}
    listeners: list[Listener] = []

    class Chatty(Recorder):
        def received(self, connection: Any, frames: list[bytes]) -> None:
            super().received(connection, frames)
            number = int(frames[0])
            if number and connection.is_open:
                reached["sent"] += connection.send([b"%d" % (number - 1)])

        def closed(self, connection: Any, cause: str) -> None:
            super().closed(connection, cause)
            reached[cause] += 1

    sinks: list[Chatty] = []

    def made(_: Any = None) -> Chatty:
        sinks.append(Chatty())
        return sinks[-1]

    async def talk(name: str) -> None:
        for _ in range(12):
            sink = made()
            connection = transports[name].dial(dice.choice(listeners).endpoint, sink)
            with trio.move_on_after(dice.choice((1.0, 8.0))):
                await sink.until_opened()
                for _ in range(30):
                    while not connection.send([b"%d" % dice.randrange(6)]):
                        reached["refused"] += 1
                        await connection.wait_writable()
            await trio.sleep(dice.random())
            connection.close(linger=dice.choice((0.0, 0.5)))
            reached["is told twice"] += sink.told.count("closed") > 1

    async def disturb() -> None:
        for _ in range(40):
            await trio.sleep(dice.random() * 0.5)
            what, (first, second) = dice.randrange(4), dice.sample(names, 2)
            if what == 0:
                network.partition(first, second)
            elif what == 1:
                network.silence(first, second)
            elif what == 2:
                network.cut((first, second))
            else:
                network.heal()

    async with trio.open_nursery() as hosts:
        everybody_here = trio.Event()
        done = trio.Event()

        async def host(name: str) -> None:
            async with network.transport(name) as transport:
                transports[name] = transport
                listeners.append(await transport.listen(f"tcp://{name}:5501", made))
                if len(listeners) == len(names):
                    everybody_here.set()
                await done.wait()

        for name in names:
            hosts.start_soon(host, name)
        await everybody_here.wait()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as work:
                work.start_soon(disturb)
                for name in names:
                    work.start_soon(talk_tolerantly, talk, name, reached)
        assert not scope.cancelled_caught
        done.set()
    # Whatever happened, nobody is left out and nobody is told twice.
    for sink in sinks:
        assert sink.told.count("closed") == 1
        assert sink.told[-1] == "closed"
        assert sink.told[0] in ("opened", "closed")
    for transport in transports.values():
        held = transport.statistics()
        assert (held.listeners, held.dialled, held.accepted, held.posted) == (0, 0, 0, 0)
    return network.log, reached


async def talk_tolerantly(talk: Any, name: str, reached: Counter[str]) -> None:
    for _ in range(3):
        try:
            await talk(name)
        except ConnectionClosed:
            reached["closed under the sender"] += 1
        else:
            return


@pytest.mark.parametrize("seed", range(5))
def test_one_seed_writes_one_log(seed: int) -> None:
    first, _ = run_seeded(seed, lambda: disturbed_hosts(seed))
    second, _ = run_seeded(seed, lambda: disturbed_hosts(seed))
    assert first == second
    assert len(first) > 500


def test_another_seed_writes_another_log() -> None:
    first, _ = run_seeded(1, lambda: disturbed_hosts(1))
    second, _ = run_seeded(2, lambda: disturbed_hosts(2))
    assert first != second


def test_the_disturbances_reach_what_they_are_for() -> None:
    reached: Counter[str] = Counter()
    for seed in range(8):
        reached += run_seeded(seed, lambda seed=seed: disturbed_hosts(seed))[1]
    print(dict(reached))
    for what in ("sent", "refused", "closed here", "disconnected", "dial timed out", "closed under the sender"):
        assert reached[what], what
