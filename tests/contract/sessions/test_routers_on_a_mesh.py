"""Two routers whose signals go over the mesh of their hosts: ZeroMQ on loopback, a real server for the stores."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.location_server import TestServer

PIECES = 100


class Talker:
    """Says its input piece by piece; with the input ``wait`` until it is interrupted."""

    accepts_offers = False

    def __init__(self) -> None:
        self._stopped = trio.Event()

    async def run_turn(self, ctx: zl.TurnContext) -> zl.TurnResult:
        if ctx.input.text == "wait":
            await self._stopped.wait()
            return zl.TurnResult(False, "stopped")
        for number in range(PIECES):
            ctx.emit(zl.OutputDelta(text=f"{ctx.input.text} {number}"))
            if number % 10 == 9:
                await trio.sleep(0.001)
        return zl.TurnResult(True, ctx.input.text)

    def interrupt(self, reason: zl.InterruptReason, turn_id: str | None = None) -> None:
        self._stopped.set()

    def offer(self, input: zl.TurnInput) -> bool:
        return False

    def take_unconsumed(self) -> list[zl.TurnInput]:
        return []

    def status(self) -> zl.LiveSessionStatus:
        return zl.LiveSessionStatus("IDLE")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Work(zl.SessionHandler, ref="work"):
    async def open(self, session_id: str, options: Mapping[str, Any], open_attributes: Mapping[str, Any]) -> Talker:
        await trio.lowlevel.checkpoint()
        return Talker()


@asynccontextmanager
async def two_routers(url: str) -> AsyncIterator[tuple[zl.SessionRouter, zl.SessionRouter]]:
    async with AsyncExitStack() as stack:
        routers: list[zl.SessionRouter] = []
        peers: list[str] = []
        for name in ("one", "two"):
            host = zl.Host(watchdog=False)
            mesh = host.mesh("play", rid=name, peers=peers)
            router = zl.SessionRouter(Work, store=url, mesh=mesh, node_id=name)
            rt = await stack.enter_async_context(host.run())
            peers = [rt.endpoint("play")]
            routers.append(await stack.enter_async_context(router))
        first, second = routers
        with trio.fail_after(10):
            while not all(each._parts.own_bus.statistics().peers for each in routers):  # noqa: ASYNC110
                await trio.sleep(0.01)
        yield first, second


@pytest.mark.contract("SR-449")
async def test_a_forwarded_turn_its_events_and_an_interrupt_cross_the_mesh(valkey: TestServer) -> None:
    session_id = str(uuid.uuid4())
    async with two_routers(valkey.url) as (one, two):
        with trio.fail_after(20):
            waiting = await one.submit(session_id, "wait", handler="work")
            events = two.events(session_id)
            queued = await two.submit(session_id, "said", handler="work", key=str(uuid.uuid4()))
            assert queued.kind is zl.DispositionKind.FORWARDED
            began = trio.current_time()
            await two.interrupt(session_id, zl.InterruptReason.USER)
            assert (await waiting.future.result()).answer == "stopped"
            assert (await queued.future.result()).answer == "said"
            # The result was told, and not found by the poll, which comes every few seconds.
            assert trio.current_time() - began < 1.0
            heard = []
            async for event in events:
                if isinstance(event, zl.OutputDelta):
                    heard.append(event.text)
                if isinstance(event, zl.TurnCompleted) and heard:
                    break
            assert heard == [f"said {number}" for number in range(PIECES)]
            # None of it went through the server.
            assert valkey.command("PUBSUB", "CHANNELS", "zl:sig:*") == []


async def test_a_holder_whose_host_is_gone_is_found_by_its_lease(valkey: TestServer) -> None:
    """The mesh says that a node is gone; who holds a session is said by the store alone."""
    session_id = str(uuid.uuid4())
    async with two_routers(valkey.url) as (one, two):
        with trio.fail_after(20):
            await (await one.submit(session_id, "first", handler="work")).future.result()
            assert await one.close(5)
            again = await two.submit(session_id, "second", handler="work")
            assert (await again.future.result()).answer == "second"
