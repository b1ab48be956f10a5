"""Endpoints: what can be bound and dialled, and what is said about the rest."""

from __future__ import annotations

import re

import pytest
import trio
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder, World, echo
from zlinkpy.errors import ConfigurationError
from zlinkpy.transport.interface import FIRST_RECORD_SECONDS


async def test_port_zero_becomes_an_actual_port(world: World, clock: MockClock) -> None:
    async with world.host("a") as host:
        first = await host.listen("tcp://127.0.0.1:0", Reception().accept)
        second = await host.listen("tcp://127.0.0.1:0", Reception().accept)
        assert first.endpoint != second.endpoint
        for listener in (first, second):
            match = re.fullmatch(r"tcp://127\.0\.0\.1:(\d+)", listener.endpoint)
            assert match
            assert int(match[1]) > 0
        assert host.statistics().listeners == 2


@pytest.mark.parametrize("endpoint", ["tcp://[::1]:0", "tcp://0.0.0.0:0", "ipc://{directory}/zlink"])
async def test_every_kind_of_endpoint_carries_records(
    world: World, clock: MockClock, endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with world.host("a") as near, world.host("b") as far:
        directory = tmp_path_factory.mktemp("s")
        reception = Reception(echo)
        listener = await far.listen(endpoint.format(directory=directory), reception.accept)
        sinks = [Recorder(), Recorder()]
        for sink in sinks:
            connection = near.dial(listener.endpoint.replace("0.0.0.0", "127.0.0.1"), sink)
            await sink.until_opened()
            connection.send([b"hello"])
            await sink.until_records(1)
        victim = reception.sinks[0].connection
        assert victim is not None
        victim.close()
        await sinks[0].until_closed()
        assert sinks[1].connection is not None
        sinks[1].connection.send([b"still"])
        await sinks[1].until_records(2)


async def test_a_taken_endpoint_names_itself_and_the_fix(world: World, clock: MockClock) -> None:
    async with world.host("a") as host, world.host("b") as other:
        listener = await host.listen(world.endpoint(), Reception().accept)
        with pytest.raises(ConfigurationError, match=re.escape(listener.endpoint)) as caught:
            await other.listen(listener.endpoint, Reception().accept)
        assert "taken" in caught.value.message
        assert "port 0" in caught.value.message
        assert other.statistics().sockets == 0


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("", "neither tcp nor ipc"),
        ("127.0.0.1:5501", "neither tcp nor ipc"),
        ("udp://127.0.0.1:5501", "neither tcp nor ipc"),
        ("tcp://127.0.0.1", "missing"),
        ("tcp://:5501", "missing"),
        ("tcp://127.0.0.1:", "not a port"),
        ("tcp://127.0.0.1:http", "not a port"),
        ("tcp://127.0.0.1:99999", "not a port"),
        ("tcp://127.0.0.1:-1", "not a port"),
        ("tcp://127.0.0.1:٣", "not a port"),
        ("tcp://::1:5501", "brackets"),
        ("tcp://127.0.0.1 :5501", "space"),
        ("ipc://", "path is empty"),
    ],
)
async def test_a_malformed_endpoint_is_refused_before_any_socket(
    world: World, clock: MockClock, endpoint: str, problem: str
) -> None:
    async with world.host("a") as host:
        with pytest.raises(ConfigurationError, match=problem) as caught:
            await host.listen(endpoint, Reception().accept)
        assert repr(endpoint) in caught.value.message
        assert "tcp://HOST:PORT" in caught.value.message
        with pytest.raises(ConfigurationError, match=problem):
            host.dial(endpoint, Recorder())
        assert host.statistics().sockets == 0


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:0", "tcp://*:5501"])
async def test_what_only_a_listener_can_use_is_not_dialled(world: World, clock: MockClock, endpoint: str) -> None:
    async with world.host("a") as host:
        with pytest.raises(ConfigurationError, match="cannot be dialled"):
            host.dial(endpoint, Recorder())


async def test_a_connection_that_says_nothing_is_dropped(world: World, clock: MockClock) -> None:
    async with world.host("a") as near, world.host("b") as far:
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        silent, talkative, late = Recorder(), Recorder(), Recorder()
        for sink in (silent, talkative, late):
            near.dial(listener.endpoint, sink)
            await sink.until_opened()
        started = trio.current_time()
        assert talkative.connection is not None
        talkative.connection.send([b"hello"])
        await trio.sleep(FIRST_RECORD_SECONDS - 1.5)
        assert late.connection is not None
        late.connection.send([b"just in time"])
        assert await silent.until_closed(within=3.0) == "disconnected"
        assert FIRST_RECORD_SECONDS - 1 < trio.current_time() - started < FIRST_RECORD_SECONDS + 1
        await trio.sleep(1)
        for sink in (talkative, late):
            assert sink.cause is None
            assert sink.connection is not None
            sink.connection.send([b"more"])
            await sink.until_records(2)
        assert len(reception.sinks) == 2


async def test_a_paused_listener_judges_nobody_until_it_has_read(world: World, clock: MockClock) -> None:
    async with world.host("a") as near, world.host("b") as far:
        reception = Reception(echo)
        listener = await far.listen(world.endpoint(), reception.accept)
        listener.pause()
        silent, unheard = Recorder(), Recorder()
        for sink in (silent, unheard):
            near.dial(listener.endpoint, sink)
            await sink.until_opened()
        assert unheard.connection is not None
        unheard.connection.send([b"hello"])
        await trio.sleep(FIRST_RECORD_SECONDS + 2)
        assert silent.cause is None
        assert unheard.cause is None
        listener.resume()
        assert await silent.until_closed(within=1.0) == "disconnected"
        await unheard.until_records(1)
        await trio.sleep(1)
        assert unheard.cause is None
        assert len(reception.sinks) == 1
