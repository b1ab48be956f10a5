"""A peer that floods, at any rate, from a process of its own and over real sockets (LV §9).

What it costs another peer's requests is measured by `benchmarks/subjects/flood.py`; here it must cost nobody ready.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgpack
import pytest
import trio
from trio.testing import MockClock

import zlinkpy as zl
from tests.contract.mesh.nodes import CHANNEL, Note, World
from tests.patient_clock import patient_clock
from tests.puppet import MESH, until
from zlinkpy.errors import DeadlineExceededError
from zlinkpy.execution.ingress import PARKED_RECORDS
from zlinkpy.link.constants import PEER_DEADLINE
from zlinkpy.telemetry import catalogue
from zlinkpy.transport.interface import ROTATION_RECORDS

JOBS = 256
SECONDS = 2 * PEER_DEADLINE + 5
"""Longer than anybody is ready without having been answered under the flood."""


@pytest.fixture
def clock() -> MockClock:
    """Ten seconds in one: a deadline of 1.5 real seconds, for a node that shares its two processors with the flood."""
    return patient_clock(rate=10)


@asynccontextmanager
async def flooding(endpoint: str, rate: str, pad: int, *options: str) -> AsyncIterator[Any]:
    """A flooding process; yields a coroutine that ends the flood and says how many messages were sent."""
    # A field that the handler's class does not have is left alone, so this is a good message of any size.
    payload = msgpack.packb({"n": 1, "hold": 0.0, "pad": b"x" * pad})
    arguments = ["--mesh", MESH, "--packet", "Note", "--payload", payload.hex(), *options]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                [sys.executable, "-m", "benchmarks.flooder", endpoint, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                check=False,
            )
        )
        try:
            assert (await process.stdout.receive_some()).split() == [b"ready"]
            await process.stdin.send_all(f"{rate}\n".encode())

            async def stop() -> int:
                await process.stdin.aclose()
                await process.wait()
                assert process.returncode == 0
                return int(await process.stdout.receive_some())

            yield stop
        finally:
            process.kill()


each_flood = pytest.mark.parametrize(
    ("rate", "pad"),
    [("2000", 0), ("max", 0), ("max", 20_000)],
    ids=["a steady rate", "as many as go out", "as many bytes as go out"],
)


@pytest.mark.contract("LV-116", "LV-133", "LV-170")
@pytest.mark.parametrize("obedient", [True, False], ids=["holds back when told", "does not care"])
@each_flood
async def test_a_flood_of_any_rate_costs_no_other_peer_its_ready_state(
    clock: MockClock, sockets: World, rate: str, pad: int, obedient: bool
) -> None:
    queue = zl.JobQueueOptions(max_queued_application_jobs=JOBS)
    n = await sockets.host("n", serves={CHANNEL: 100}, job_queue=queue)
    q = await sockets.host("q", peers=[n.endpoint])
    await q.ready("n")
    await until(lambda: n.is_ready("q"))
    answered, late = 0, 0
    async with flooding(n.endpoint, rate, pad, *(["--obedient"] if obedient else [])) as stop:
        await until(lambda: n.is_ready("flooder"))
        end = trio.current_time() + SECONDS
        while trio.current_time() < end:
            try:
                await q.echo(answered, timeout=PEER_DEADLINE)
                answered += 1
            except DeadlineExceededError:
                # `q` does hold back when told, and it is told as long as somebody else keeps the queue full.
                late += 1
            assert q.is_ready("n")
            assert n.is_ready("q")
            status = n.rt.status
            assert status.permits_in_use <= JOBS
            # One turn is taken whole before the listener is no longer read.
            assert status.queued_jobs <= JOBS + PARKED_RECORDS + 2 * ROTATION_RECORDS
            await trio.sleep(0.1)
        sent = await stop()
    for node in (n, q):
        assert node.peer("q" if node is n else "n").last_failure is None
    if obedient or rate != "max":
        assert late == 0
        assert answered > 5
        # A flood is no reason to lose the peer that floods, unless its own answers wait behind it.
        assert n.telemetry.total(catalogue.PEER_DISCONNECTS, reason="peer_deadline") == 0
    assert sent > (SECONDS / 10 * 2000 / 2 if rate != "max" else 3000)
    assert sum(isinstance(message, Note) for message in n.got) > 3000
    await until(lambda: n.rt.status.queued_jobs == 0, 30)
    assert n.rt.status.permits_in_use == 0
