"""What only the Redis bus can do, and what a server can do to it. The real clock throughout."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from tests.contract.sessions.buses.nodes import CONTROL, EVENTS, Ears, RedisBuses, event, signal, until
from tests.gate import Command, Gate
from tests.location_server import TestServer
from zlinkpy.errors import ConfigurationError, InvalidOperationError
from zlinkpy.sessions import redis_bus_reader
from zlinkpy.sessions.errors import SessionSignalError
from zlinkpy.sessions.redis_bus import RedisSignalBus
from zlinkpy.sessions.redis_bus_publisher import QUEUE_LIMIT
from zlinkpy.sessions.signal_codec import encode_signal
from zlinkpy.sessions.signal_intake import EVENTS_PER_BURST, EVENTS_WAITING
from zlinkpy.sessions.types import SignalKind


def is_publish(command: Command) -> bool:
    return command[0].upper() == b"PUBLISH"


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For floods: on a busy machine they may take longer than a call may."""
    monkeypatch.setattr("zlinkpy.sessions.redis_bus.CALL_SECONDS", 20.0)


@pytest.fixture
def gate(valkey: TestServer) -> Iterator[Gate]:
    made = Gate(valkey.socket_path)
    yield made
    made.close()


def bus_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("zlink-session"))


@pytest.mark.contract("SR-080")
async def test_each_kind_travels_on_its_channel(redis_buses: RedisBuses) -> None:
    bus = await redis_buses.node()
    client = redis_buses.server.client()
    listener = client.pubsub(ignore_subscribe_messages=True)
    try:
        listener.psubscribe(f"{redis_buses.prefix}:sig:*")
        listener.get_message(timeout=5)
        for kind in SignalKind:
            await bus.publish(signal(kind))
        heard: dict[str, list[bytes]] = {"c": [], "e": []}
        for _ in SignalKind:
            message = listener.get_message(timeout=5)
            assert message is not None
            heard[message["channel"].decode().split(":")[2]].append(message["data"])
    finally:
        listener.close()
        client.close()
    assert [any(kind.value.encode() in data for data in heard["c"]) for kind in CONTROL] == [True] * 5
    assert [any(kind.value.encode() in data for data in heard["e"]) for kind in EVENTS] == [True] * 2
    assert (len(heard["c"]), len(heard["e"])) == (5, 2)


@pytest.mark.contract("SR-093")
async def test_a_thousand_sessions_take_one_subscriber_connection(redis_buses: RedisBuses, patience: None) -> None:
    bus, other = await redis_buses.node(), await redis_buses.node()
    await bus.publish(signal())
    ears = Ears()
    async with trio.open_nursery() as nursery:
        for number in range(1000):
            nursery.start_soon(bus.subscribe, f"s{number}", ears)
    statistics = bus.statistics()
    assert statistics.reader.connections == 1
    assert statistics.reader.channels == 2000
    clients: Any = redis_buses.server.command("CLIENT", "LIST", "TYPE", "pubsub")
    counts = [int(line.split(b"sub=")[1].split(b" ")[0]) for line in clients.splitlines()]
    assert counts == [2000]
    for number in (0, 500, 999):
        await other.publish(signal(SignalKind.EVICT, f"s{number}"))
    await ears.count(3)
    assert {each.session_id for each in ears} == {"s0", "s500", "s999"}


async def test_subscribes_that_find_no_room_are_written_when_there_is_some(
    redis_buses: RedisBuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small writes fill a socket long before their bytes do."""
    bus = await redis_buses.node()
    await bus.subscribe("first", Ears())
    reader = bus._reader
    assert reader is not None
    # As if a single command filled it until the server has read it.
    monkeypatch.setattr(redis_bus_reader, "_writable", lambda connection, seconds: not reader._outstanding)
    redis_buses.server.pause()
    with trio.fail_after(1.5):
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(bus.subscribe, f"s{number}", Ears())
            await trio.sleep(0.05)
            assert len(reader._changed) == 6
            redis_buses.server.resume()


@pytest.mark.contract("SR-452")
async def test_two_threads_two_connections_and_one_pipeline_for_what_queued(
    redis_buses: RedisBuses, patience: None
) -> None:
    before = len(bus_threads())
    bus = await redis_buses.node()
    assert len(bus_threads()) == before + 2
    ears = Ears()
    await bus.subscribe("s", ears)
    async with trio.open_nursery() as nursery:
        for number in range(5000):
            nursery.start_soon(bus.publish, event(number))
    await until(lambda: len(ears) == 5000, 20)
    assert sorted(ears.numbers) == list(range(5000))
    statistics = bus.statistics()
    assert statistics.publisher.published == 5000
    assert statistics.publisher.pipelines <= 5000 / 20
    assert (statistics.publisher.connections, statistics.reader.connections) == (1, 1)
    assert len(bus_threads()) == before + 2


@pytest.mark.contract("SR-452")
async def test_control_leaves_with_the_next_pipeline_and_a_lone_signal_at_once(
    redis_buses: RedisBuses, gate: Gate
) -> None:
    bus = await redis_buses.node(gate.url)
    await bus.publish(signal())
    # A lone publish on an idle bus: nothing is waited for.
    took = []
    for _ in range(20):
        start = time.perf_counter()
        await bus.publish(signal())
        took.append(time.perf_counter() - start)
    assert min(took) < 0.01
    gate.commands.clear()
    gate.hold(is_publish)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bus.publish, event(-1))
        await until(gate.holding.is_set)
        nursery.start_soon(bus.publish_all, [event(number) for number in range(1500)])
        await until(lambda: bus.statistics().publisher.waiting == 1500)
        nursery.start_soon(bus.publish, signal())
        await until(lambda: bus.statistics().publisher.waiting == 1501)
        gate.release()
    channels = [command[1].split(b":")[2] for command in gate.commands if is_publish(command)]
    assert channels == [b"e", b"c"] + [b"e"] * 1500


@pytest.mark.contract("SR-453")
async def test_a_lost_answer_is_raised_and_nothing_is_sent_twice(redis_buses: RedisBuses, gate: Gate) -> None:
    bus, hearing = await redis_buses.node(gate.url), await redis_buses.node()
    ears = Ears()
    await hearing.subscribe("s", ears)
    await bus.publish(signal(n=0))
    gate.swallow(cut=True, match=is_publish)
    failures: list[SessionSignalError] = []

    async def publish(number: int) -> None:
        try:
            await bus.publish(signal(n=number))
        except SessionSignalError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for number in range(1, 11):
            nursery.start_soon(publish, number)
    assert failures
    assert {failure.applied for failure in failures} == {"unknown"}
    await bus.publish(signal(n=99))
    await until(lambda: 99 in ears.numbers)
    assert len(ears.numbers) == len(set(ears.numbers)), "a signal was sent twice"
    sent = [command for command in gate.commands if is_publish(command)]
    assert len(sent) == 12
    assert bus.statistics().publisher.connections == 2


async def test_a_refused_connection_had_surely_no_effect(redis_buses: RedisBuses, gate: Gate) -> None:
    bus = await redis_buses.node(gate.url)
    await bus.publish(signal())
    gate.refuse()
    with pytest.raises(SessionSignalError) as refused:
        await bus.publish(signal())
    # The first one may have been written to a connection that was being cut.
    with pytest.raises(SessionSignalError) as refused:
        await bus.publish(signal())
    assert refused.value.applied == "no"
    assert "password" not in str(refused.value)
    gate.heal()
    await bus.publish(signal())


@pytest.mark.contract("SR-454")
async def test_a_subscribe_is_confirmed_while_the_reader_is_blocked_and_delays_nobody(redis_buses: RedisBuses) -> None:
    bus, other = await redis_buses.node(), await redis_buses.node()
    waits: list[float] = []
    heard: list[int] = []

    def handler(received: Any) -> None:
        waits.append(time.perf_counter() - received.payload["at"])
        heard.append(received.payload["n"])

    await bus.subscribe("s", handler)
    done = trio.Event()
    sent = 0

    async def talk() -> None:
        nonlocal sent
        while not done.is_set():
            await other.publish(signal(SignalKind.EVENT, "s", type="x", n=sent, at=time.perf_counter()))
            sent += 1
            await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk)
        await until(lambda: len(waits) >= 100)
        before = sorted(waits)[50]
        waits.clear()
        number = 0
        while sent < 200:
            number += 1
            ears = Ears()
            await bus.subscribe(f"t{number}", ears)
            await trio.lowlevel.checkpoint()
        done.set()
    await until(lambda: len(heard) == sent)
    assert heard == list(range(sent))
    for each in (1, number):
        assert redis_buses.listeners(f"t{each}") == redis_buses.listeners(f"t{each}", "e") == 1
    # And confirmed means confirmed: the server knows of it when the call returns.
    for each in range(20):
        await bus.subscribe(f"u{each}", ears)
        assert redis_buses.listeners(f"u{each}") == redis_buses.listeners(f"u{each}", "e") == 1
    redis_buses.server.pause()
    with trio.move_on_after(0.2) as scope:
        await bus.subscribe("unconfirmed", ears)
    redis_buses.server.resume()
    assert scope.cancelled_caught
    # What the machine does to every message is not the subscribe's doing.
    assert sorted(waits)[len(waits) // 2] < before + 0.05


@pytest.mark.contract("SR-089")
async def test_after_a_cut_what_comes_later_is_heard_without_a_new_subscribe(
    redis_buses: RedisBuses, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hearing, bus = await redis_buses.node(gate.url), await redis_buses.node()
    ears, others = Ears(), Ears()
    await hearing.subscribe("s", ears)
    await hearing.subscribe("t", others, events=False)
    await bus.publish(signal(n=1))
    await until(lambda: ears.numbers == [1])
    gate.refuse()
    await until(lambda: redis_buses.listeners("s") == 0)
    await bus.publish(signal(n=2))
    # What is wanted meanwhile is subscribed with the rest.
    late = Ears()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hearing.subscribe, "late", late)
        await trio.sleep(0.1)
        gate.heal()
    await until(
        lambda: redis_buses.listeners("s") == redis_buses.listeners("s", "e") == redis_buses.listeners("t") == 1
    )
    assert redis_buses.listeners("t", "e") == 0
    await bus.publish(signal(n=3))
    await bus.publish(event(4))
    await bus.publish(signal(SignalKind.YIELD, "late", n=5))
    await until(lambda: ears.numbers == [1, 3, 4] and late.numbers == [5])
    assert "hears nothing" in caplog.text
    assert "signals of the gap are lost" in caplog.text
    assert hearing.statistics().reader.connections >= 2


async def test_a_killed_server_is_a_typed_error_and_a_restarted_one_works(redis_buses: RedisBuses) -> None:
    bus = await redis_buses.node()
    ears = Ears()
    subscription = await bus.subscribe("s", ears)
    redis_buses.server.kill()
    for _ in range(3):
        with pytest.raises(SessionSignalError):
            await bus.publish(signal())
    gone = Ears()
    with trio.fail_after(4):
        with pytest.raises(SessionSignalError, match="not confirmed"):
            await bus.subscribe("t", gone)
    redis_buses.server.start()
    await until(lambda: redis_buses.listeners("s") == 1)
    assert redis_buses.listeners("t") == 0, "the failed subscribe left something behind"
    await bus.publish(signal(n=7))
    await until(lambda: ears.numbers == [7])
    await subscription.aclose()


async def test_a_paused_server_is_an_error_within_two_seconds_and_no_reason_to_wait_for_the_loop(
    redis_buses: RedisBuses,
) -> None:
    bus = await redis_buses.node()
    ears = Ears()
    await bus.subscribe("s", ears)
    await bus.publish(signal(n=1))
    redis_buses.server.pause()
    longest = 0.0
    stop = trio.Event()

    async def watch() -> None:
        nonlocal longest
        while not stop.is_set():
            start = time.perf_counter()
            await trio.sleep(0.001)
            longest = max(longest, time.perf_counter() - start)

    async def refused(number: int) -> None:
        start = trio.current_time()
        with pytest.raises(SessionSignalError) as error:
            await bus.publish(event(number))
        assert trio.current_time() - start < 2.5
        applied.append(error.value.applied)

    applied: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        async with trio.open_nursery() as publishers:
            publishers.start_soon(refused, 2)
            await trio.sleep(0.1)
            # Behind a pipeline without an answer: surely not sent when their time is over.
            for number in range(3, 6):
                publishers.start_soon(refused, number)
            publishers.start_soon(self_refusing, bus)
        stop.set()
    assert longest < 0.5, "the event loop stood still"
    assert "unknown" in applied
    redis_buses.server.resume()
    await until(lambda: redis_buses.listeners("s") == 1, 10)
    with trio.fail_after(10):
        while True:
            try:
                await bus.publish(signal(n=9))
                break
            except SessionSignalError:
                await trio.sleep(0.05)
    await until(lambda: 9 in ears.numbers, 10)
    numbers = [number for number in ears.numbers if number in (3, 4, 5)]
    assert len(numbers) == len(set(numbers))


async def self_refusing(bus: RedisSignalBus) -> None:
    with pytest.raises(SessionSignalError):
        await bus.subscribe("unheard", Ears())


async def test_a_loop_that_is_blocked_loses_events_by_grade_and_no_control_signal(redis_buses: RedisBuses) -> None:
    hearing = await redis_buses.node()
    ears = Ears()
    await hearing.subscribe("s", ears)
    many = [event(number, "TraceDelta" if number % 2 else "OutputDelta") for number in range(12_000)]
    many[6000] = event(6000, "TurnCompleted")
    client = redis_buses.server.client()
    try:
        # Published past the bus, because the loop cannot publish while it is blocked.
        with client.pipeline(transaction=False) as pipeline:
            for each in many:
                pipeline.publish(f"{redis_buses.prefix}:sig:e:s", encode_signal(each))
            pipeline.publish(f"{redis_buses.prefix}:sig:c:s", encode_signal(signal(n=-1)))
            pipeline.execute()
        deadline = time.perf_counter() + 10
        while hearing.statistics().reader.received < 12_001 and time.perf_counter() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251 - the loop is blocked on purpose
    finally:
        client.close()
    statistics = hearing.statistics().intake
    assert statistics.events_waiting == EVENTS_WAITING
    assert statistics.events_lost == 12_000 - EVENTS_WAITING
    assert statistics.control_lost == 0
    await until(lambda: len(ears) == EVENTS_WAITING + 1, 10)
    assert ears[0].kind is SignalKind.INTERRUPT
    assert 6000 in ears.numbers
    kept = [each.payload["n"] for each in ears[1:] if each.payload["type"] == "OutputDelta"]
    assert kept == [number for number in range(0, 12_000, 2) if number != 6000]


class Passes(trio.abc.Instrument):
    """Counts the passes of the scheduler."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_a_burst_leaves_the_loop_to_others(redis_buses: RedisBuses, patience: None) -> None:
    hearing, bus = await redis_buses.node(), await redis_buses.node()
    passes = Passes()
    at: list[int] = []
    await hearing.subscribe("s", lambda _received: at.append(passes.count))
    trio.lowlevel.add_instrument(passes)
    try:
        await bus.publish_all([event(number) for number in range(3000)])
        await until(lambda: len(at) == 3000, 10)
    finally:
        trio.lowlevel.remove_instrument(passes)
    assert max(at.count(each) for each in set(at)) <= EVENTS_PER_BURST


@pytest.mark.contract("SR-457")
@pytest.mark.parametrize("url", ["redis+cluster://127.0.0.1:7000", "rediss+cluster://127.0.0.1:7000"])
def test_a_cluster_is_refused_because_sessions_need_one_primary(url: str) -> None:
    with pytest.raises(ConfigurationError, match="one primary"):
        RedisSignalBus(url)


def test_a_url_without_a_server_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs a server"):
        RedisSignalBus("memory://")
    with pytest.raises(ConfigurationError):
        RedisSignalBus("redis://user:secret/word@host")


async def test_outside_its_block_the_bus_takes_nothing(valkey: TestServer) -> None:
    bus = RedisSignalBus(valkey.url)
    for _ in range(2):
        for call in (bus.publish(signal()), bus.publish_all([event(1)]), bus.subscribe("s", Ears())):
            with pytest.raises(SessionSignalError, match="not open") as refused:
                await call
            assert refused.value.applied == "no"
        async with bus:
            assert bus.is_open
            with pytest.raises(InvalidOperationError, match="open already"):
                await bus.__aenter__()
            await bus.publish(signal())
        assert not bus.is_open


async def test_closing_leaves_no_thread_and_no_connection_whatever_the_server_does(valkey: TestServer) -> None:
    before = bus_threads()
    async with RedisSignalBus(valkey.url) as bus:
        await bus.subscribe("s", Ears())
        await bus.publish(signal())
        valkey.pause()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bus.publish, event(1))
            await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        with trio.fail_after(4):
            await bus.__aexit__(None, None, None)
        assert bus_threads() == before
        valkey.resume()
        await bus.__aenter__()
        await bus.publish(signal())
    assert bus_threads() == before
    clients: Any = valkey.command("CLIENT", "LIST")
    assert len(clients.splitlines()) == 1


async def test_a_publish_that_was_given_up_is_not_sent_later(redis_buses: RedisBuses, gate: Gate) -> None:
    bus = await redis_buses.node(gate.url)
    await bus.publish(signal())
    gate.commands.clear()
    gate.hold(is_publish)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bus.publish, event(1))
        await until(gate.holding.is_set)
        with trio.move_on_after(0.05) as scope:
            await bus.publish_all([event(number) for number in range(2, 100)])
        assert scope.cancelled_caught
        gate.release()
    await bus.publish(signal())
    assert len([command for command in gate.commands if is_publish(command)]) == 2


async def test_the_line_in_front_of_the_thread_is_bounded(redis_buses: RedisBuses) -> None:
    bus = await redis_buses.node()
    with pytest.raises(SessionSignalError, match="too many signals waiting") as refused:
        await bus.publish_all([event(1)] * (QUEUE_LIMIT + 1))
    assert refused.value.applied == "no"
    assert bus.statistics().publisher.waiting == 0
    await bus.publish(signal())


async def test_a_server_that_refuses_one_signal_says_so_and_publishes_the_others(redis_buses: RedisBuses) -> None:
    server = redis_buses.server
    server.command("ACL", "SETUSER", "half", "on", "nopass", "+@all", "resetchannels", f"&{redis_buses.prefix}:sig:?:s")
    bus = await redis_buses.node(server.url.replace("unix://", "unix://half:x@"))
    hearing = await redis_buses.node()
    ears = Ears()
    await hearing.subscribe("s", ears)
    await hearing.subscribe("forbidden", ears)
    try:
        with pytest.raises(SessionSignalError, match="NOPERM|NoPermission") as refused:
            await bus.publish_all([signal(n=1), signal(SignalKind.EVICT, "forbidden", n=2), signal(n=3)])
    finally:
        server.command("ACL", "DELUSER", "half")
    assert refused.value.applied == "no"
    await until(lambda: ears.numbers == [1, 3])
