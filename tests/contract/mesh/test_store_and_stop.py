"""The Location Store beside liveness, and the end of a connection and of a host (LV §15)."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import pytest
import trio
import trio.lowlevel

import zlinkpy as zl
from tests.contract.mesh.nodes import CHANNEL, ROLES, Echo, World, linked, publish
from tests.location_hosts import every
from tests.puppet import until
from zlinkpy.errors import ShuttingDownError
from zlinkpy.link import FailureReason
from zlinkpy.transport.memory_transport import MemoryConnection
from zlinkpy.wire import Close, CloseReason, LivenessProbe

each_role = pytest.mark.parametrize("role", ROLES)
SERVER = {CHANNEL: 100}
DESCRIPTORS = "/proc/self/fd" if os.path.exists("/proc/self/fd") else "/dev/fd"


@pytest.mark.contract("LV-151")
async def test_probing_goes_on_without_the_store(autojump_clock: object, world: World) -> None:
    p, q = await world.listening("p", channels=SERVER), await world.listening("q", channels=SERVER)
    await publish(world, p)
    await publish(world, q)
    n = await world.host("n", store=True)
    await n.ready("p", "q")
    ready = p.pair.ready_at or 0
    assert n.gate is not None
    n.gate.rule = every("refuse")
    q.answers_probes = False
    await trio.sleep_until(ready + 60.5)
    assert n.is_ready("p")
    assert p.pair.is_up
    assert len(p.pair.probes) == 12
    assert len(p.pairs) == 1
    assert n.targets >= 1  # q is connected again by now, to be silent once more
    failure = n.failure("q")
    assert failure is not None
    assert failure.reason is FailureReason.PEER_DEADLINE


@pytest.mark.contract("LV-154")
@pytest.mark.parametrize("interval", [5.0, 2.0, 1.0])
async def test_the_lease_interval_moves_no_probe(autojump_clock: object, world: World, interval: float) -> None:
    p = await world.listening("p", channels=SERVER)
    await publish(world, p)
    n = await world.host("n", store=True, location=zl.LocationOptions(owner_lease_renew_interval=interval))
    await n.ready("p")
    ready = p.pair.ready_at or 0
    await trio.sleep_until(ready + 16)
    assert [round(at - ready, 3) for at in p.pair.probe_times] == [5, 10, 15]
    assert n.gate is not None
    renewals = [call for call in n.gate.writes(b"owner-lease\0") if call.at > ready]
    assert len(renewals) == pytest.approx(16 / interval, abs=1)


@each_role
@pytest.mark.contract("LV-155", "LV-156")
@pytest.mark.parametrize("deadline", [2.0, 30.0], ids=["deadline passes", "work ends"])
async def test_a_connection_with_accepted_work_stays_until_that_is_done_or_the_deadline_passes(
    autojump_clock: object, world: World, role: str, deadline: float
) -> None:
    link = await linked(world, role, serves=SERVER)
    other = await world.host("m", peers=[link.n.endpoint])
    await other.ready("n")
    ended: list[Any] = []

    async def ask() -> None:
        try:
            ended.append(await other.rt.request_to_node("play", "n", Echo(1, hold=9.0)))
        except zl.ZlinkError as error:
            ended.append(type(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await until(lambda: link.n.got)
        began = trio.current_time()
        nursery.start_soon(link.n.rt.shutdown, deadline)
        await trio.sleep(1.5)
        assert other.is_ready("n")
        assert other.targets == 0
        assert link.n.targets == 0
        assert not link.n.rt.status.accepting_work
        assert link.pair.is_up
        await until(lambda: ended, 20)
        took = trio.current_time() - began
    if deadline == 2.0:
        assert ended[0] in (zl.UnavailableError, ShuttingDownError)
        assert took == pytest.approx(2.0, abs=0.1)
    else:
        assert ended[0].n == 1
        assert took == pytest.approx(9.0, abs=0.1)
    await until(lambda: link.pair.is_gone)
    assert link.pair.farewell == Close(CloseReason.ORDERLY)


@each_role
@pytest.mark.contract("LV-157")
async def test_timers_and_callbacks_of_a_connection_end_before_its_sockets(
    autojump_clock: object, world: World, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A third endpoint that nobody listens on keeps the timer of the redials armed.
    link = await linked(world, role, also=["tcp://127.0.0.1:5999"])
    core = link.n.rt._core
    mesh = core.meshes["play"]
    log: list[tuple[str, bool, bool]] = []
    close = MemoryConnection.close

    def watched(connection: MemoryConnection, *, linger: float = 0.0) -> None:
        if connection.transport.name == "n":
            (peer_link,) = [each for each in mesh.links if connection in each.lanes.values()]
            if peer_link.rid == "p":
                judged = core.liveness.evidence("p") or peer_link.pair.next_deadline() is not None
                timed = mesh in core.timer._sources and mesh.next_deadline() is not None
                log.append(("close", judged, timed))
        close(connection, linger=linger)

    monkeypatch.setattr(MemoryConnection, "close", watched)
    await link.at(7)
    records = len(link.pair.app.records)
    await link.n.stop()
    assert len(log) >= 2
    assert set(log) == {("close", False, False)}
    await trio.sleep(60)
    assert [
        type(record.command) for _, record in link.pair.app.records[records:] if type(record.command) is LivenessProbe
    ] == []
    assert link.pair.is_gone


@each_role
@pytest.mark.contract("LV-158")
async def test_nothing_of_a_host_remains_after_it_was_left(autojump_clock: object, world: World, role: str) -> None:
    await trio.lowlevel.checkpoint()
    before = trio.lowlevel.current_statistics().tasks_living
    p = await world.listening("p", channels=SERVER)
    gone = await world.listening("gone")
    assert world.network is not None
    world.network.refuse(gone.endpoint)
    async with trio.open_nursery() as nursery:
        async with world.running("n", peers=[p.endpoint, gone.endpoint], serves=SERVER) as n:
            if role == "accepting":
                await world.puppet("q").connect(n.endpoint)
            await n.ready("p")
            await trio.sleep(12)
            core = n.rt._core
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert trio.lowlevel.current_statistics().tasks_living == before
    assert len(core.liveness) == 0
    assert core.liveness.next_deadline() is None
    assert core.meshes == {}
    assert core.requests.next_deadline() is None
    dials = p.pair.app.records[:]
    dialled = [line for line in world.network.log if line[1] == "dial"]
    await trio.sleep(600)
    assert p.pair.app.records == dials
    assert [line for line in world.network.log if line[1] == "dial"] == dialled
    assert [
        each
        for each in gc.get_objects()
        if type(each) is MemoryConnection and each.transport.name == "n" and each.is_open
    ] == []


@pytest.mark.contract("LV-158")
async def test_nothing_of_a_host_on_real_sockets_remains(fast_clock: object, sockets: World) -> None:
    threads = {thread.name for thread in threading.enumerate()}
    tasks = trio.lowlevel.current_statistics().tasks_living
    counts: list[int] = []
    for _ in range(3):
        async with sockets.running("n", serves=SERVER) as n:
            async with sockets.running("m", peers=[n.endpoint]) as m:
                await m.ready("n")
                assert (await m.echo(1)).n == 1
        gc.collect()
        counts.append(len(os.listdir(DESCRIPTORS)))
    assert counts[2] == counts[1]
    left = {thread.name for thread in threading.enumerate() if not thread.name.startswith("Trio thread")}
    assert left <= threads
    assert trio.lowlevel.current_statistics().tasks_living == tasks
