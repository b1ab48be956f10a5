"""A handler that holds the event loop for five seconds: no connection is lost, and the handler is named."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.integration.load import Load, caller
from tests.integration.programs.node import CHANNEL, MESH, Answer, Ask
from tests.puppet import until
from zlinkpy.telemetry.memory import InMemoryTelemetry

SECONDS = 5.0


class OtherThread:
    """A node with an event loop of its own, in another thread."""

    def __init__(self) -> None:
        self.telemetry = InMemoryTelemetry()
        self.endpoint = ""
        self.status: zl.HostStatus | None = None
        self._serving = threading.Event()
        self._stop: Any = None
        self._thread = threading.Thread(target=lambda: trio.run(self._main), name="other node")

    async def start(self) -> None:
        self._thread.start()
        await trio.to_thread.run_sync(self._serving.wait)

    async def stop(self) -> None:
        self._stop()
        await trio.to_thread.run_sync(self._thread.join)

    async def _main(self) -> None:
        host = zl.Host(telemetry=self.telemetry)
        mesh = host.mesh(MESH, rid="blocked")
        mesh.serve_channel(CHANNEL)

        @mesh.on_channel_request(CHANNEL)
        def ask(message: Ask) -> Answer:
            time.sleep(message.hold)
            return Answer(message.n, 0)

        stopping = trio.Event()
        token = trio.lowlevel.current_trio_token()
        self._stop = lambda: token.run_sync_soon(stopping.set)
        async with host.run() as rt:
            self.endpoint = rt.endpoint(MESH)
            self._serving.set()
            await stopping.wait()
            self.status = rt.status


async def test_a_blocked_loop_loses_no_connection_and_names_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    other = OtherThread()
    await other.start()
    try:
        async with caller(peers=[other.endpoint]) as here:
            await until(lambda: here.targets == 1)
            async with Load.on(here.rt, tasks=4, timeout=20) as load:
                await until(lambda: load.ends["answered"] > 20)
                began = trio.current_time()
                assert await here.rt.request_to_channel(CHANNEL, Ask(7, hold=SECONDS), timeout=20) == Answer(7, 0)
                assert trio.current_time() - began >= SECONDS
                before = load.ends["answered"]
                await until(lambda: load.ends["answered"] > before + 50)
            load.assert_each_ended_once(besides=1)
            assert set(load.ends) == {"answered"}
            assert load.slowest >= SECONDS - 0.5
            assert (here.connects, here.disconnects) == (1, 0)
    finally:
        await other.stop()
    status = other.status
    assert status is not None
    assert status.blocked_loops == 1
    assert status.last_blocked is not None
    assert status.last_blocked.handler.endswith("OtherThread._main.<locals>.ask")
    assert SECONDS - 0.5 <= status.last_blocked.seconds <= SECONDS + 2
    assert other.telemetry.total("zlink.host.loop_blocked") == 1
    assert other.telemetry.total("zlink.mesh_node.peer.disconnects", reason="peer_deadline") == 0
    first, last = (
        record.getMessage()
        for record in caplog.records
        if record.name == "zlinkpy.watchdog" and record.levelno == logging.WARNING
    )
    assert "OtherThread._main.<locals>.ask has been blocking the event loop for 1." in first
    assert "time.sleep(message.hold)" in first
    assert "in all" in last
