"""A log or metrics provider that fails changes no call (SA-284): the same story with and without one, call by call."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH, Answer, Ask, Lan, Note
from tests.puppet import until
from zlinkpy.errors import ZlinkError
from zlinkpy.telemetry.fence import failed_logs
from zlinkpy.transport import MemoryNetwork


class BrokenTelemetry:
    """Fails at every value, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def counter(self, name: str, n: float = 1, /, **labels: str) -> None:
        self.asked.add(name)
        raise ConnectionResetError("the collector is gone")

    gauge = histogram = counter


class BrokenHandler(logging.Handler):
    """Fails at every record."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.asked: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.asked.add(record.name)
        raise OSError("the disk is full")


@pytest.fixture
def broken_log() -> Iterator[BrokenHandler]:
    """A failing handler for everything the library logs, at the finest level."""
    logger = logging.getLogger("zlinkpy")
    handler = BrokenHandler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)
    failed_logs.clear()


@asynccontextmanager
async def new_lan() -> AsyncIterator[Lan]:
    """A network that begins like every other."""
    network = MemoryNetwork(seed=1)
    async with network.transport("puppet") as wire:
        yield Lan(network, wire)


def handlers(mesh: zl.Mesh) -> None:
    """Handlers that answer, fail, and wait."""

    @mesh.on_node_request
    async def ask(message: Ask) -> Answer:
        if message.n < 0:
            raise RuntimeError("broken")
        await trio.sleep(message.hold)
        return Answer(message.n, "a")

    @mesh.on_node_send
    def note(message: Note) -> None:
        raise RuntimeError("broken")


async def story(lan: Lan, telemetry: Any) -> list[str]:
    """Everything that is logged or counted on the way of a call, and how each call ended."""
    outcomes: list[str] = []
    given = {} if telemetry is None else {"telemetry": telemetry}

    async def call(name: str, action: Any) -> None:
        try:
            outcomes.append(f"{name}: {await action}")
        except ZlinkError as error:
            outcomes.append(f"{name}: {type(error).__name__} {getattr(error, 'cause', None)}")

    async with lan.node("a", port=1, add=handlers, **given) as a, lan.node("z", peers=[1], **given) as z:
        await z.ready("a")
        ask = z.rt.request_to_node
        await call("answered", ask(MESH, "a", Ask(1), timeout=5))
        await call("handler failed", ask(MESH, "a", Ask(-1), timeout=5))
        await call("too late", ask(MESH, "a", Ask(2, hold=9), timeout=1))
        await call("no such node", ask(MESH, "nobody", Ask(3), timeout=5))
        await call("no such channel", z.rt.request_to_channel(CHANNEL, Ask(4), timeout=5))
        await call("no handler", ask(MESH, "a", zl.RawMessage("Unknown", b"\xc0"), timeout=5))
        await call("no message", ask(MESH, "a", zl.RawMessage("Ask", b"\xc1"), timeout=5))
        await call("one-way", z.rt.send_to_node(MESH, "a", Note(1)))
        await call("one-way, no handler", z.rt.send_to_node(MESH, "a", zl.RawMessage("Unknown", b"\xc0")))
        # A stranger is refused, and a peer that talks nonsense loses its connection; nobody else does.
        stranger = lan.puppet("stranger", mesh="another")
        pair = stranger.dial(a.rt.endpoint(MESH))
        await until(lambda: pair.reject is not None)
        puppet = lan.puppet("p")
        pair = await puppet.connect(a.rt.endpoint(MESH))
        pair.app.send_raw([b"nonsense"])
        await until(lambda: pair.is_gone)
        await call("after a protocol error", ask(MESH, "a", Ask(5), timeout=5))
        lan.network.cut(("a", "z"))
        await until(lambda: z.rt.mesh_status(MESH).ready_peers == 0)
        await call("cut off", ask(MESH, "a", Ask(6), timeout=5))
        await z.ready("a")
        await call("again", ask(MESH, "a", Ask(7), timeout=5))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "during the shutdown", ask(MESH, "a", Ask(8, hold=1), timeout=5))
            await trio.sleep(0.1)
            outcomes.append(f"shutdown: {(await a.rt.shutdown(5)).outcome.value}")
        await call("after it", ask(MESH, "a", Ask(9), timeout=5))
    return outcomes


@pytest.mark.contract("SA-284")
async def test_no_call_ends_differently_when_logs_and_metrics_fail(
    autojump_clock: object, broken_log: BrokenHandler
) -> None:
    logger = logging.getLogger("zlinkpy")
    logger.removeHandler(broken_log)
    async with new_lan() as lan:
        expected = await story(lan, None)
    logger.addHandler(broken_log)
    telemetry = BrokenTelemetry()
    async with new_lan() as lan:
        assert await story(lan, telemetry) == expected
    assert len(expected) == 15
    assert expected[0].startswith("answered: Answer(n=1")
    # The story did come past both of them.
    assert {"zlinkpy.dispatch", "zlinkpy.mesh"} <= broken_log.asked
    assert {name.rpartition(".")[2] for name in telemetry.asked} >= {"connects", "disconnects", "dropped", "failures"}
