"""What a mesh shows about its peers, and what it tells them about its job queue (LV §17)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.abc import Instrument

import zlinkpy as zl
from tests.contract.mesh.nodes import CALLERS, CHANNEL, ROLES, World, linked, publish
from tests.contract.mesh.test_probes import press, relieve, request
from tests.puppet import until
from zlinkpy.link import FailureReason
from zlinkpy.mesh import SNAPSHOT_PEER_LIMIT, PeerPhase
from zlinkpy.telemetry import catalogue
from zlinkpy.transport.memory_transport import MemoryConnection
from zlinkpy.wire import Admit, Close, CloseReason, FlowState, Hello, Lane, ReceiveFlow, Topology, decode

each_role = pytest.mark.parametrize("role", ROLES)
SERVER = {CHANNEL: 100}


@pytest.mark.contract("LV-164")
async def test_a_connection_s_life_is_shown_in_turn_and_its_last_failure_apart(autojump_clock: object) -> None:
    async with World.in_memory(latency=0.1) as world:
        p = await world.listening("p", channels=SERVER)
        assert world.network is not None
        nodes: list[Any] = []
        shown: list[tuple[str, str | None]] = []

        class Look(Instrument):
            def after_task_step(self, task: trio.lowlevel.Task) -> None:
                for host in nodes:
                    (peer,) = host.mesh_snapshot("play").peers
                    item = (peer.phase.value, peer.last_failure.reason.value if peer.last_failure else None)
                    if not shown or shown[-1] != item:
                        shown.append(item)

        # Looked at from before the first dial on: the runtime is there before its timers run.
        serve = zl.Runtime.serve
        instrument = Look()
        trio.lowlevel.add_instrument(instrument)
        with pytest.MonkeyPatch.context() as patch:

            def looked_at(rt: zl.Runtime) -> None:
                nodes.append(rt)
                instrument.after_task_step(trio.lowlevel.current_task())
                serve(rt)

            patch.setattr(zl.Runtime, "serve", looked_at)
            n = await world.host("n", peers=[p.endpoint])
        await n.ready("p")
        await trio.sleep(3)
        p.pair.say_goodbye(Close(CloseReason.ORDERLY))
        await until(lambda: len(p.pairs) == 2 and p.pair.is_up)
        await n.ready("p")
        trio.lowlevel.remove_instrument(instrument)
    assert shown == [
        ("configured", None),
        ("connecting", None),
        ("admitted", None),
        ("ready", None),
        ("reconnecting", "orderly_close"),
        ("admitted", "orderly_close"),
        ("ready", "orderly_close"),
    ]


@pytest.mark.contract("LV-165")
async def test_a_snapshot_is_a_copy_that_nobody_can_write_to(autojump_clock: object, world: World) -> None:
    link = await linked(world, serves=SERVER)
    snapshot, status = link.n.snapshot, link.n.status
    before = (attrs.asdict(snapshot.peers[0], recurse=False), dict(status.ready_targets))
    (peer,) = snapshot.peers
    for value, name in ((snapshot, "omitted"), (peer, "phase"), (status, "ready_peers"), (status.peers[0], "state")):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, name, None)
    for mapping in (peer.channels, status.ready_targets, status.channel_weights):
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]
    link.pair.update(channels=((CHANNEL, 7),))
    link.pair.hang_up()
    await trio.sleep(20)
    assert (attrs.asdict(snapshot.peers[0], recurse=False), dict(status.ready_targets)) == before
    assert link.n.snapshot != snapshot
    assert link.n.is_ready("p") is False


@pytest.mark.contract("LV-166")
async def test_reason_and_counter_tell_an_orderly_close_from_a_deadline(autojump_clock: object, world: World) -> None:
    link = await linked(world)
    q = world.puppet("q")
    await q.connect(link.n.endpoint)
    link.p.answers_probes = False
    q.pair.say_goodbye(Close(CloseReason.ORDERLY))
    await trio.sleep(16)
    for rid, reason in (("p", FailureReason.PEER_DEADLINE), ("q", FailureReason.ORDERLY_CLOSE)):
        failure = link.n.failure(rid)
        assert failure is not None
        assert failure.reason is reason
        assert link.n.telemetry.total(catalogue.PEER_DISCONNECTS, reason=reason.value) == 1
    assert link.n.telemetry.total(catalogue.PEER_DISCONNECTS) == 2


@pytest.mark.contract("LV-167")
async def test_no_metric_of_a_busy_host_names_an_endpoint_a_rid_or_a_connection(
    autojump_clock: object, world: World
) -> None:
    link = await linked(world, serves=SERVER)
    other = await world.host("mm", peers=[link.n.endpoint])
    await other.ready("n")
    for n in range(20):
        await other.echo(n)
    for corr in range(1, 5):
        link.pair.app.send(*request(corr))
    bad = world.puppet("q")
    pair = bad.dial(link.n.endpoint, silent=True)
    await until(lambda: pair.app.is_open)
    pair.app.send_raw([b"junk"])
    link.pair.update(lifecycle_generation=99)
    await trio.sleep(6)
    await link.n.stop()
    names = {link.n.endpoint, other.endpoint, link.p.endpoint, "n", "p", "q", "mm"}
    names |= {lane.connection.id for lane in link.p.lanes}
    for node in (link.n, other):
        assert node.telemetry.series()
        for name, labels in node.telemetry.series():
            assert not any(word in key for key in labels for word in ("rid", "endpoint", "connection", "address")), name
            assert not names & set(labels.values()), name


@pytest.mark.contract("LV-168")
async def test_a_snapshot_lists_a_bounded_number_of_peers_and_counts_the_rest(
    autojump_clock: object, world: World
) -> None:
    count = SNAPSHOT_PEER_LIMIT + 7
    for number in range(count):
        await publish(world, world.puppet(f"p{number:04}"))
    n = await world.host("n", store=True)
    await until(lambda: n.snapshot.omitted)
    assert len(n.snapshot.peers) == SNAPSHOT_PEER_LIMIT
    assert n.snapshot.omitted == 7
    assert len({peer.node_rid for peer in n.snapshot.peers}) == SNAPSHOT_PEER_LIMIT
    assert all(peer.endpoint for peer in n.snapshot.peers)


@pytest.mark.parametrize("role", ["accepting", "client", "server"])
@pytest.mark.contract("LV-169")
async def test_reading_the_last_receive_time_affects_nothing(autojump_clock: object, world: World, role: str) -> None:
    link = await linked(world, role)
    link.p.answers_probes = False
    link.p.hears = lambda lane, record: type(record.command) is Hello
    assert link.n.peer("p").last_receive == pytest.approx(link.T)
    while trio.current_time() < link.T + 14.9:
        await trio.sleep(0.1)
        assert link.n.peer("p").last_receive == pytest.approx(link.T)
    await link.at(15.01)
    assert link.n.phase("p") is (None if role == "server" else PeerPhase.RECONNECTING)


# -- receive flow


@each_role
@pytest.mark.contract("LV-172", "LV-173")
@pytest.mark.parametrize("state", list(FlowState))
async def test_the_flow_state_is_told_on_a_new_connection_before_its_route_exists(
    autojump_clock: object, world: World, role: str, state: FlowState, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = zl.JobQueueOptions(max_queued_application_jobs=10)
    p = await world.listening("p", channels=SERVER)
    n = await world.host("n", peers=[p.endpoint] if role == "dialling" else [], job_queue=queue)
    if role == "dialling":
        await n.ready("p")
    if state is FlowState.PAUSED:
        press(n, 8)
    if role == "dialling":
        p.pair.hang_up()
        await trio.sleep(0.001)
    log: list[str] = []
    mesh = n.rt._core.meshes["play"]
    post, publish_status = MemoryConnection.post, mesh.on_status

    def posted(connection: MemoryConnection, frames: Any) -> None:
        if connection.transport.name == "n":
            log.append(type(decode(frames, topology=Topology.ROUTE_MESH, lane=Lane.APPLICATION).command).__name__)
        post(connection, frames)

    def changed(changed_mesh: Any) -> None:
        log.append(f"{n.targets} targets")
        assert publish_status is not None
        publish_status(changed_mesh)

    monkeypatch.setattr(MemoryConnection, "post", posted)
    monkeypatch.setattr(mesh, "on_status", changed)
    if role == "accepting":
        await p.connect(n.endpoint)
    await until(lambda: n.targets == 1)
    first = log.index("1 targets")
    assert "ReceiveFlow" in log[:first]
    assert log.count("ReceiveFlow") == 1
    flow = p.pair.app.commands(ReceiveFlow)
    assert flow == [ReceiveFlow(state)]
    assert p.pair.completion.commands(ReceiveFlow) == []
    if state is FlowState.PAUSED:
        relieve(n, 8)
        await trio.sleep(0.001)
        assert p.pair.app.commands(ReceiveFlow)[-1] == ReceiveFlow(FlowState.RUNNING)


@pytest.mark.contract("LV-170", "LV-172")
async def test_every_change_of_pressure_is_told_to_every_peer_once(autojump_clock: object, world: World) -> None:
    link = await linked(world, job_queue=zl.JobQueueOptions(max_queued_application_jobs=10))
    q = world.puppet("q")
    pair = await q.connect(link.n.endpoint)
    for _ in range(3):
        press(link.n, 9)
        await trio.sleep(0.1)
        relieve(link.n, 9)
        await trio.sleep(0.1)
    for each in (link.pair, pair):
        states = [flow.state for flow in each.app.commands(ReceiveFlow)]
        assert states == [FlowState.RUNNING, *[FlowState.PAUSED, FlowState.RUNNING] * 3]
        assert [type(record.command) for _, record in each.completion.records] == [Admit]


@pytest.mark.parametrize("role", CALLERS)
@pytest.mark.contract("LV-171", "LV-62")
async def test_a_paused_peer_s_callers_wait_and_its_silence_still_ends_it(
    autojump_clock: object, world: World, role: str
) -> None:
    link = await linked(world, role)
    link.pair.app.send(ReceiveFlow(FlowState.PAUSED))
    await trio.sleep(0.001)
    assert link.n.peer("p").paused
    assert link.n.is_ready("p")
    link.p.answers_probes = False
    ended: list[Any] = []

    async def call() -> None:
        try:
            await link.ask(timeout=60.0)
        except zl.ZlinkError as error:
            ended.append((type(error), round(trio.current_time() - link.T, 2)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await link.at(16)
    assert ended == [(zl.UnavailableError, 15.0)]
