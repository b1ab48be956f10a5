"""Probes and deadlines of a whole node: when they leave, what they touch, what touches them (LV §1, §4-§6)."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.abc import Instrument

import zlinkpy as zl
from tests.contract.mesh.nodes import ALL_ROLES, CHANNEL, ROLES, Echo, Node, Note, World, linked, publish
from tests.puppet import COMPLETION, until
from zlinkpy.errors import DeadlineExceededError, ZlinkError
from zlinkpy.execution.timer import SharedTimer
from zlinkpy.link import FailureReason, LivenessOwner, ProbeLiveness
from zlinkpy.mesh import PeerPhase, PeerState
from zlinkpy.messages import Codecs
from zlinkpy.telemetry import catalogue
from zlinkpy.wire import (
    ChannelRequest,
    ChannelSend,
    FlowState,
    Hello,
    LivenessAck,
    LivenessProbe,
    NodeRequest,
    NodeSend,
    PayloadHead,
    ReceiveFlow,
    Reply,
)

each_role = pytest.mark.parametrize("role", ROLES)
each_end = pytest.mark.parametrize("role", ALL_ROLES)
SERVER = {CHANNEL: 100}
SHAPES = Codecs().default


def note(n: int = 1) -> tuple[NodeSend, bytes]:
    """A one-way message to the node's handler, as a peer sends it."""
    return NodeSend(PayloadHead("Note", SHAPES.content_type)), SHAPES.encode(Note(n))


def request(corr: int, hold: float = 0.0, ms: int = 120_000) -> tuple[NodeRequest, bytes]:
    """A request to the node's handler, as a peer sends it."""
    return NodeRequest(corr, ms, PayloadHead("Echo", SHAPES.content_type)), SHAPES.encode(Echo(corr, hold))


def after(times: list[float], start: float) -> list[float]:
    return [round(at - start, 3) for at in times]


@each_end
@pytest.mark.contract("LV-02", "LV-48", "LV-40", "LV-44")
async def test_a_node_probes_every_five_seconds_whoever_dialled(
    autojump_clock: object, world: World, role: str
) -> None:
    link = await linked(world, role)
    await link.at(16)
    assert after(link.pair.probe_times, link.T) == [5, 10, 15]
    assert len(set(link.pair.probes)) == 3
    assert 0 not in link.pair.probes


@each_role
@pytest.mark.contract("LV-74", "LV-43", "LV-14", "LV-07")
async def test_a_silent_peer_expires_at_fifteen_seconds_whatever_its_lease_and_the_wall_clock_say(
    autojump_clock: object, world: World, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rid = "p" if role == "dialling" else "a"
    p = await world.listening(rid, channels=SERVER)
    await publish(world, p)
    n = await world.host("n", store=True)
    if role == "accepting":
        await p.connect(n.endpoint)
    await n.ready(rid)
    pair, ready = p.pair, p.pair.ready_at
    assert ready is not None
    p.answers_probes = False
    wall = time.time
    for second in range(14):
        await trio.sleep_until(ready + second + 1)
        await publish(world, p)  # the lease is renewed every second
        shift = 3600.0 if second % 2 else -7200.0
        monkeypatch.setattr(time, "time", lambda shift=shift: wall() + shift)
    await trio.sleep_until(ready + 14.999)
    assert n.is_ready(rid)
    p.hears = lambda lane, record: type(record.command) is Hello
    await trio.sleep_until(ready + 15)
    await trio.sleep(0.001)
    assert not n.is_ready(rid)
    assert n.targets == 0
    assert n.failure(rid).reason is FailureReason.PEER_DEADLINE
    assert n.failure(rid).at == pytest.approx(ready + 15, abs=0.001)
    assert after(pair.probe_times, ready) == [5, 10]
    assert pair.probes[0] == pair.probes[1]
    assert pair.is_gone
    assert n.telemetry.total(catalogue.PEER_DISCONNECTS, reason="peer_deadline") == 1


@pytest.mark.contract("LV-75")
@each_end
async def test_a_black_hole_expires_after_two_probes(autojump_clock: object, world: World, role: str) -> None:
    link = await linked(world, role)
    assert world.network is not None
    link.p.hears = lambda lane, record: type(record.command) is Hello
    world.network.silence("puppet", "n")
    await link.at(14.9)
    assert link.n.is_ready("p")
    await link.at(15.001)
    assert not link.n.is_ready("p")
    assert after(link.pair.probe_times, link.T) == [5, 10]
    assert link.n.failure("p").reason is FailureReason.PEER_DEADLINE


@pytest.mark.contract("LV-06", "LV-76", "LV-05")
async def test_all_readers_agree_at_every_instant_around_an_expiry(autojump_clock: object, world: World) -> None:
    link = await linked(world)
    n, core = link.n, link.n.rt._core
    mesh = core.meshes["play"]
    seen: set[bool] = set()
    disagreements: list[tuple[bool, ...]] = []

    def direct() -> bool:
        try:
            mesh.node("p")
        except ZlinkError:
            return False
        return True

    class Readers(Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            (status,) = n.status.peers
            said = (
                n.is_ready("p"),
                n.targets == 1,
                status.state is PeerState.READY,
                n.status.ready_peers == 1,
                direct(),
                core.liveness.evidence("p"),
            )
            seen.add(said[0])
            if len(set(said)) != 1:
                disagreements.append(said)

    link.p.answers_probes = False
    link.p.hears = lambda lane, record: type(record.command) is Hello
    instrument = Readers()
    trio.lowlevel.add_instrument(instrument)
    try:
        await link.at(16)
    finally:
        trio.lowlevel.remove_instrument(instrument)
    assert not disagreements
    assert seen == {True, False}


@pytest.mark.contract("LV-05")
async def test_one_owner_judges_the_peers_of_every_mesh_of_a_host(autojump_clock: object, world: World) -> None:
    n = await world.host("n", meshes=["other"])
    p, q = world.puppet("p"), world.puppet("q", mesh="other")
    await p.connect(n.endpoint)
    await q.connect(n.rt.endpoint("other"))
    assert len(n.rt._core.liveness) == 2
    assert n.rt._core.liveness.evidence("p")
    assert n.rt._core.liveness.evidence("q")
    # Nothing outside the link package judges by time: nobody else names its constants, nor builds a machine of it.
    root = Path(zl.__file__).parent
    for path in root.rglob("*.py"):
        if path.parent.name != "link":
            nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
            names = {node.id for node in nodes if isinstance(node, ast.Name)}
            names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            names |= {node.name for node in nodes if isinstance(node, ast.alias)}
            assert not names & {"CHECK_INTERVAL", "PEER_DEADLINE", "ProbeLiveness"}, path


@pytest.mark.contract("LV-08")
async def test_an_operation_deadline_follows_the_monotonic_clock_alone(
    autojump_clock: object, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await linked(world)
    started = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def turn_the_wall_clock() -> None:
            await trio.sleep(1)
            wall = time.time
            monkeypatch.setattr(time, "time", lambda: wall() + 86_400)

        nursery.start_soon(turn_the_wall_clock)
        with pytest.raises(DeadlineExceededError):
            await link.n.rt.request_to_node("play", "p", Echo(1), timeout=40.0)
    assert trio.current_time() - started == pytest.approx(40, abs=0.05)
    # Virtual time ran 40 s while the wall clock of the machine hardly moved: only the one clock counts.


@pytest.mark.contract("LV-10")
async def test_every_reader_of_elapsed_time_reads_the_loop_s_clock(
    autojump_clock: object, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: set[str] = set()

    def spied(original: Any) -> Any:
        def read() -> float:
            name = sys._getframe(1).f_globals.get("__name__", "")
            if name.startswith("zlinkpy"):
                readers.add(name)
            return original()

        return read

    for name in ("monotonic", "perf_counter", "time"):
        monkeypatch.setattr(time, name, spied(getattr(time, name)))
    link = await linked(world, store=False)
    link.p.answers_probes = False
    with pytest.raises(DeadlineExceededError):
        await link.n.rt.request_to_node("play", "p", Echo(1), timeout=2.0)
    await link.at(16)
    assert not link.n.is_ready("p") or link.p.pair is not link.pair
    await link.n.stop()
    assert readers == set()


@pytest.mark.contract("LV-12")
async def test_no_liveness_part_is_reachable_from_the_public_surface(autojump_clock: object, world: World) -> None:
    link = await linked(world)
    hidden = (LivenessProbe, LivenessAck, LivenessOwner, ProbeLiveness, SharedTimer)
    seen: set[int] = set()

    def visit(value: object, path: str, depth: int) -> Iterator[str]:
        if id(value) in seen or depth > 4:
            return
        seen.add(id(value))
        owner = value if isinstance(value, type) else type(value)
        if owner in hidden or owner.__module__.startswith("zlinkpy.transport"):
            yield path
        if not owner.__module__.startswith("zlinkpy"):
            return
        for name in (each for each in dir(value) if not each.startswith("_")):
            if any(word in name.lower() for word in ("liveness", "probe", "beacon", "monitor")):
                yield f"{path}.{name}"
            try:
                inner = getattr(value, name)
            except AttributeError:
                continue
            yield from visit(inner, f"{path}.{name}", depth + 1)

    found = [hit for name in zl.__all__ for hit in visit(getattr(zl, name), name, 0)]
    found += list(visit(link.n.rt, "rt", 0)) + list(visit(link.n.host, "host", 0))
    assert found == []


@pytest.mark.contract("LV-13", "LV-56")
async def test_a_minute_of_probes_reaches_no_handler_queue_or_metric(autojump_clock: object, world: World) -> None:
    link = await linked(world, serves=SERVER)
    before, series = link.n.rt.status, link.n.telemetry.series()
    probes = 0
    while trio.current_time() < link.T + 60:
        link.pair.app.send(LivenessProbe(probes + 1))
        probes += 1
        await trio.sleep(1)
    assert len(link.pair.probes) == 12
    assert len(link.pair.app.commands(LivenessAck)) == probes
    status = link.n.rt.status
    assert link.n.got == []
    assert (status.permits_in_use, status.queued_jobs, status.running_jobs) == (0, 0, 0)
    assert (before.permits_in_use, before.queued_jobs) == (0, 0)
    assert link.n.telemetry.series() == series


@pytest.mark.contract("LV-16")
async def test_a_request_timeout_is_no_evidence_about_its_peer(autojump_clock: object, world: World) -> None:
    link = await linked(world)
    await link.at(11)
    link.p.answers_probes = False  # the probe of T+10 was the last one answered: the deadline is T+25
    link.p.hears = lambda lane, record: type(record.command) is Hello
    with pytest.raises(DeadlineExceededError):
        await link.n.rt.request_to_node("play", "p", Echo(1), timeout=2.0)
    assert link.n.is_ready("p")
    await link.at(24.999)
    assert link.n.is_ready("p")
    await link.at(25.001)
    assert not link.n.is_ready("p")


@each_role
@pytest.mark.contract("LV-47", "LV-60")
async def test_probes_leave_on_their_grid_under_a_thousand_messages_a_second(
    autojump_clock: object, world: World, role: str
) -> None:
    link = await linked(world, role)
    command, payload = note()
    async with trio.open_nursery() as nursery:

        async def inbound() -> None:
            while True:
                for _ in range(20):
                    link.pair.app.send(command, payload)
                await trio.sleep(0.02)

        async def outbound() -> None:
            while True:
                for number in range(20):
                    await link.n.rt.send_to_node("play", "p", Note(number))
                await trio.sleep(0.02)

        nursery.start_soon(inbound)
        nursery.start_soon(outbound)
        await link.at(15.5)
        nursery.cancel_scope.cancel()
    assert after(link.pair.probe_times, link.T) == pytest.approx([5, 10, 15], abs=0.01)
    assert len(link.n.got) > 15_000
    assert len(link.pair.app.commands(NodeSend)) > 15_000


@pytest.mark.contract("LV-60")
async def test_a_probe_keeps_its_place_among_the_records_of_its_lane(autojump_clock: object, world: World) -> None:
    link = await linked(world)
    assert world.network is not None
    world.network.delay("n", "puppet", 0.5)
    for at in (4.8, 4.9, 5.1, 5.2):
        await link.at(at)
        await link.n.rt.send_to_node("play", "p", Note(round(at * 10)))
    await link.at(6)
    kinds = [type(record.command) for _, record in link.pair.app.records if type(record.command) is not ReceiveFlow]
    assert kinds[-5:] == [NodeSend, NodeSend, LivenessProbe, NodeSend, NodeSend]


@each_role
@pytest.mark.contract("LV-51", "LV-50")
async def test_a_probe_never_waits_behind_blocked_handlers(autojump_clock: object, world: World, role: str) -> None:
    link = await linked(world, role)
    for corr in range(1, 21):
        command, payload = request(corr, hold=60.0)
        link.pair.app.send(command, payload)
    await until(lambda: len(link.n.got) == 20)
    for probe in range(1, 11):
        asked = trio.current_time()
        link.pair.app.send(LivenessProbe(probe))
        link.pair.app.send(LivenessProbe(probe))
        await trio.sleep(0.001)
        assert link.pair.app.times(LivenessAck)[-2:] == [asked, asked]
        assert [ack.probe_id for ack in link.pair.app.commands(LivenessAck)[-2:]] == [probe, probe]
        await trio.sleep(5)
    assert not link.pair.completion.commands(Reply)


def press(n: Node, count: int) -> None:
    """Take `count` permits, as that many queued jobs would."""
    for _ in range(count):
        n.rt._core.permits.take_over()


def relieve(n: Node, count: int) -> None:
    for _ in range(count):
        n.rt._core.permits.release()


@each_role
@pytest.mark.contract("LV-52", "LV-170")
async def test_a_paused_node_answers_probes_and_stays_ready(autojump_clock: object, world: World, role: str) -> None:
    link = await linked(world, role, serves=SERVER, job_queue=zl.JobQueueOptions(max_queued_application_jobs=10))
    before = link.n.rt.status
    press(link.n, 8)
    await trio.sleep(0.001)
    assert link.pair.app.commands(ReceiveFlow)[-1] == ReceiveFlow(FlowState.PAUSED)
    for second in range(1, 31):
        await link.at(second)
        link.pair.app.send(LivenessProbe(second))
    await trio.sleep(0.001)
    assert [ack.probe_id for ack in link.pair.app.commands(LivenessAck)] == list(range(1, 31))
    status = link.n.rt.status
    assert (status.state, status.is_ready) == (before.state, before.is_ready)
    assert link.n.is_ready("p")
    assert link.n.targets == 2
    assert after(link.pair.probe_times, link.T) == [5, 10, 15, 20, 25, 30]
    relieve(link.n, 8)
    await trio.sleep(0.001)
    assert link.pair.app.commands(ReceiveFlow)[-1] == ReceiveFlow(FlowState.RUNNING)


@pytest.mark.contract("LV-171")
async def test_pressure_of_its_own_moves_no_peer_s_deadline(autojump_clock: object, world: World) -> None:
    link = await linked(world, job_queue=zl.JobQueueOptions(max_queued_application_jobs=10))
    press(link.n, 8)
    link.p.answers_probes = False
    link.p.hears = lambda lane, record: type(record.command) is Hello
    await link.at(14.999)
    assert link.n.is_ready("p")
    await link.at(15.001)
    assert link.n.failure("p").reason is FailureReason.PEER_DEADLINE
    relieve(link.n, 8)


@each_role
@pytest.mark.contract("LV-58", "LV-57")
async def test_liveness_rides_the_application_lane_only(autojump_clock: object, world: World, role: str) -> None:
    link = await linked(world, role)

    def answer(lane: Any, record: Any) -> bool:
        if type(record.command) is NodeRequest:
            lane.pair.completion.send(Reply(record.command.corr, 105, 17, None, None))
            return True
        return False

    link.p.hears = answer
    corr = 0
    while trio.current_time() < link.T + 60:
        corr += 1
        link.pair.app.send(*request(corr))
        link.pair.app.send(LivenessProbe(corr))
        with pytest.raises(ZlinkError):
            await link.n.rt.request_to_node("play", "p", Echo(corr))
        await trio.sleep(1)
    app = {type(record.command) for _, record in link.pair.app.records}
    completion = {type(record.command) for _, record in link.pair.completion.records}
    assert {LivenessProbe, LivenessAck, NodeRequest} <= app
    assert Reply not in app
    assert Reply in completion
    assert not completion & {LivenessProbe, LivenessAck, NodeRequest, NodeSend, ChannelSend, ChannelRequest}
    assert len(link.pair.completion.commands(Reply)) == corr
    assert len(link.p.lanes) == 2
    assert link.p.lanes[1].lane is COMPLETION


@pytest.mark.contract("LV-55")
async def test_a_probe_before_admission_ends_that_connection(autojump_clock: object, world: World) -> None:
    link = await linked(world)
    stranger = world.puppet("q")
    pair = stranger.dial(link.n.endpoint, silent=True)
    await until(lambda: pair.app.is_open)
    pair.app.send(LivenessProbe(1))
    await until(lambda: pair.is_gone)
    assert pair.app.commands(LivenessAck) == []
    assert pair.farewell is not None
    assert pair.farewell.field == "prefix.command"
    await link.at(20)
    assert link.pair.is_up


@pytest.mark.contract("LV-69")
async def test_a_peer_s_messages_move_the_last_receive_time_and_no_deadline(
    autojump_clock: object, world: World
) -> None:
    link = await linked(world)
    link.p.answers_probes = False
    link.p.hears = lambda lane, record: type(record.command) is Hello
    await link.at(8)
    command, payload = note()
    link.pair.app.send(command, payload)
    await trio.sleep(0.001)
    assert link.n.peer("p").last_receive == pytest.approx(link.T + 8)
    assert link.n.phase("p") is PeerPhase.READY
    await link.at(15.001)
    assert not link.n.is_ready("p")
