"""The connections of a ClientServer channel: admission, records, status, load (LV §1-§6, §9-§11, §17)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.abc import Instrument

import zlinkpy as zl
from tests.contract.mesh.nodes import CHANNEL, CODEC, Echoed, Note, World, linked
from tests.contract.mesh.services import client, client_puppet, listening, publish, server, server_puppet
from tests.puppet import until
from zlinkpy.link import FailureReason
from zlinkpy.mesh import SNAPSHOT_PEER_LIMIT, PeerPhase, TopologyState
from zlinkpy.telemetry import catalogue
from zlinkpy.wire import (
    ChannelSend,
    Close,
    CloseReason,
    FlowState,
    Hello,
    LivenessAck,
    LivenessProbe,
    PayloadHead,
    ReceiveFlow,
    RejectReason,
    Reply,
    Update,
)

# -- one connection


@pytest.mark.contract("LV-59")
async def test_one_connection_carries_everything(autojump_clock: object, world: World) -> None:
    s = await server(world)
    c = await client(world, servers=[s.endpoint])
    await c.ready("s")
    for n in range(5):
        assert await c.echo(n) == Echoed(n, "s")
        await c.rt.send_to_channel(CHANNEL, Note(n))
    await trio.sleep(60)
    assert world.network is not None
    assert [line[1] for line in world.network.log].count("dial") == 1
    assert c.is_ready("s")
    assert s.targets == 1
    assert len(s.got) == 10


@pytest.mark.contract("LV-59", "LV-02")
@pytest.mark.parametrize("role", ["client", "server"])
async def test_a_pair_is_one_connection_with_both_directions(autojump_clock: object, world: World, role: str) -> None:
    link = await linked(world, role)
    if role == "server":
        link.pair.app.send(*link.request(7))
    await link.at(16)
    assert len(link.p.lanes) == 1
    assert len(link.pair.probes) == 3
    assert role == "client" or [reply.corr for reply in link.pair.app.commands(Reply)] == [7]


# -- admission


@pytest.mark.parametrize("what", ["channel", "rid", "generation", "security"])
@pytest.mark.contract("LV-22", "LV-126")
async def test_a_server_that_is_not_the_described_one_never_becomes_ready(
    autojump_clock: object, world: World, what: str
) -> None:
    changes: dict[str, Any] = {
        "channel": {"channel_name": "other"},
        "rid": {"server_rid": "q"},
        "generation": {"lifecycle_generation": 6},
        "security": {"security_identity": "somebody else"},
    }[what]
    reasons = {
        "channel": FailureReason.REJECTED,
        "rid": FailureReason.IDENTITY_MISMATCH,
        "generation": FailureReason.GENERATION_MISMATCH,
        "security": FailureReason.SECURITY_MISMATCH,
    }
    p = await listening(world, "p")
    await publish(world, p)
    p.admission = attrs.evolve(p.admission, **changes)
    c = await client(world, store=True)
    await until(lambda: c.failure("p") is not None)
    assert c.failure("p").reason is reasons[what]  # type: ignore[union-attr]
    await trio.sleep(20)
    assert c.targets == 0


async def test_a_client_of_another_channel_is_rejected_and_told_why(
    autojump_clock: object, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    s = await server(world)
    p = client_puppet(world)
    p.admission = attrs.evolve(p.admission, channel_name="other")
    pair = p.dial(s.endpoint)
    await until(lambda: pair.is_gone)
    assert pair.reject is RejectReason.CHANNEL_MISMATCH
    assert s.telemetry.total(catalogue.PEER_REFUSALS, reason="rejected", scope_kind="channel") == 1
    assert "give both the same channel name" in caplog.text
    assert s.targets == 0


@pytest.mark.contract("LV-23", "LV-24")
@pytest.mark.parametrize("role", ["client", "server"])
async def test_an_admitted_connection_waits_for_the_host_to_be_prepared(
    autojump_clock: object, world: World, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = zl.Runtime.serve
    held: list[zl.Runtime] = []
    monkeypatch.setattr(zl.Runtime, "serve", lambda rt: held.append(rt))
    link_puppet = await listening(world) if role == "client" else client_puppet(world)
    node = await client(world, servers=[link_puppet.endpoint]) if role == "client" else await server(world)
    if role == "server":
        await link_puppet.connect(node.endpoint)
    await until(lambda: link_puppet.pairs and link_puppet.pair.is_up)
    await trio.sleep(60)
    assert node.phase("p") is PeerPhase.ADMITTED
    assert node.targets == 0
    assert link_puppet.pair.probes == []
    serve(held[0])
    assert node.phase("p") is PeerPhase.READY
    ready = trio.current_time()
    await trio.sleep(6)
    assert [round(at - ready, 3) for at in link_puppet.pair.probe_times] == [5]


@pytest.mark.contract("LV-176")
@pytest.mark.parametrize("why", ["no transport", "no admit"])
async def test_a_dial_without_an_admit_ends_after_five_seconds_and_is_repeated(
    autojump_clock: object, world: World, why: str
) -> None:
    p = await listening(world, "p")
    assert world.network is not None
    if why == "no transport":
        world.network.hang(p.endpoint)
    else:
        p.admits = False
    c = await client(world, servers=[p.endpoint])
    await trio.sleep(4.99)
    (peer,) = c.channel.peers
    assert (peer.dials, peer.last_failure, peer.phase) == (1, None, PeerPhase.CONNECTING)
    await trio.sleep(0.2)
    (peer,) = c.channel.peers
    assert peer.last_failure is not None
    assert peer.last_failure.reason is FailureReason.TRANSPORT_ERROR
    assert peer.dials == 2
    world.network.admit(p.endpoint)
    p.admits = True
    await until(lambda: c.targets == 1, 20)


@pytest.mark.contract("LV-122", "LV-128", "LV-129", "LV-130")
async def test_nothing_is_dialled_before_the_old_connection_was_seen_closed(
    autojump_clock: object, world: World
) -> None:
    p = await listening(world, "p")
    await publish(world, p)
    c = await client(world, "c", store=True)
    await c.ready("p")
    assert world.network is not None
    # The farewell does not get through: the connection goes on existing until its linger is over.
    world.network.partition("c", "puppet")
    p.admission = attrs.evolve(p.admission, lifecycle_generation=8)
    await publish(world, p)
    await until(lambda: c.failure("p") is not None)
    left = trio.current_time()
    assert c.failure("p").reason is FailureReason.REPLACED  # type: ignore[union-attr]
    await trio.sleep(3)
    world.network.heal()
    await until(lambda: len(p.pairs) == 2 and p.pair.is_up, 20)
    log = world.network.log
    first, second = [index for index, line in enumerate(log) if line[1:3] == ("dial", "c")][:2]
    assert any(line[1:3] == ("closed", log[first][3]) for line in log[:second])
    assert log[second][0] - left >= 0.9
    await c.ready("p")


# -- records in the wrong place


WRONG: dict[str, tuple[str, Any, str]] = {
    "another channel": ("server", ChannelSend("other", PayloadHead("Note", "application/msgpack")), "body.channelName"),
    "a reply to a server": ("server", Reply(1, 0, 0, None, None), "direction"),
    "a message to a client": (
        "client",
        ChannelSend(CHANNEL, PayloadHead("Note", "application/msgpack")),
        "direction",
    ),
    "an update of a client": ("server", "update", "direction"),
}


@pytest.mark.contract("LV-178")
@pytest.mark.parametrize("what", WRONG)
async def test_a_record_in_the_wrong_place_ends_its_own_connection(
    autojump_clock: object, world: World, what: str
) -> None:
    role, command, field = WRONG[what]
    q = await listening(world, "q")
    link = await linked(world, role, **({"also": [q.endpoint]} if role == "client" else {}))
    other = None if role == "client" else await client_puppet(world, "q").connect(link.n.endpoint)
    link.p.hears = lambda lane, record: type(record.command) is Hello
    if command == "update":
        link.pair.app.send(Update(server_puppet(world).admission))
    else:
        link.pair.app.send(command, *([b"x"] if type(command) is ChannelSend else []))
    await trio.sleep(0.01)
    assert link.pair.is_gone
    assert link.pair.farewell is not None
    assert (link.pair.farewell.reason, link.pair.farewell.field) == (CloseReason.PROTOCOL_ERROR, field)
    assert link.n.failure("p").reason is FailureReason.PROTOCOL_ERROR  # type: ignore[union-attr]
    assert link.n.got == []
    assert (other or q.pair).is_up


@pytest.mark.contract("LV-55", "LV-178")
async def test_an_application_record_before_the_hello_ends_that_connection(
    autojump_clock: object, world: World
) -> None:
    s = await server(world)
    for record in (LivenessProbe(1), ChannelSend(CHANNEL, PayloadHead("Note", CODEC.content_type))):
        pair = client_puppet(world).dial(s.endpoint, silent=True)
        await until(lambda pair=pair: pair.app.is_open)
        pair.app.send(record, *([b"x"] if type(record) is ChannelSend else []))
        await until(lambda pair=pair: pair.is_gone)
        assert pair.farewell is not None
        assert pair.farewell.reason is CloseReason.PROTOCOL_ERROR
    assert s.got == []
    assert s.telemetry.total(catalogue.PEER_REFUSALS, reason="protocol_error", scope_kind="channel") == 2
    assert not s.rt._core.liveness


# -- status and the one owner


@pytest.mark.contract("LV-05")
async def test_one_owner_judges_meshes_and_channels_of_a_host(autojump_clock: object, world: World) -> None:
    p = await listening(world, "p")
    host, _ = world.bare("n", None)
    host.mesh("play")
    host.mesh("other")
    host.serve_client_server("mine")
    host.use_client_server(CHANNEL, servers=[p.endpoint])
    async with host.run() as rt:
        a, b = world.puppet("a"), world.puppet("b", mesh="other")
        await a.connect(rt.endpoint("play"))
        await b.connect(rt.endpoint("other"))
        q = client_puppet(world)
        q.admission = attrs.evolve(q.admission, channel_name="mine")
        await q.connect(rt.channel_endpoint("mine"))
        await until(lambda: rt.channel_status(CHANNEL).ready_targets == 1)
        liveness = rt._core.liveness
        assert len(liveness) == 4
        assert all(liveness.evidence(rid) for rid in ("a", "b", "p"))
        for each in (a, b, p, q):
            each.answers_probes = False
        await trio.sleep(15.1)
        assert rt.channel_status("mine").last_client_failure is not None
        reasons = [
            rt.channel_status("mine").last_client_failure,
            rt.channel_status(CHANNEL).peers[0].last_failure,
            rt.mesh_snapshot("play").peers[0].last_failure,
            rt.mesh_snapshot("other").peers[0].last_failure,
        ]
        assert [each.reason for each in reasons if each] == [FailureReason.PEER_DEADLINE] * 4
    assert rt._core.holders == {}
    assert len(rt._core.liveness) == 0


@pytest.mark.contract("LV-164")
async def test_a_connection_s_life_is_shown_in_turn(autojump_clock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = zl.Runtime.serve
    held: list[zl.Runtime] = []
    monkeypatch.setattr(zl.Runtime, "serve", lambda rt: held.append(rt))
    shown: list[tuple[str, str, str | None]] = []

    class Look(Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            for rt in held:
                (peer,) = rt.channel_status(CHANNEL).peers
                reason = peer.last_failure.reason.value if peer.last_failure else None
                if not shown or shown[-1] != (peer.phase.value, peer.state.value, reason):
                    shown.append((peer.phase.value, peer.state.value, reason))

    async with World.in_memory(latency=0.1) as world:
        p = await listening(world, "p")
        instrument = Look()
        trio.lowlevel.add_instrument(instrument)
        c = await client(world, servers=[p.endpoint])
        await until(lambda: c.phase("p") is PeerPhase.ADMITTED)
        serve(c.rt)
        p.pair.say_goodbye(Close(CloseReason.ORDERLY))
        await until(lambda: len(p.pairs) == 2)
        await c.ready("p")
        trio.lowlevel.remove_instrument(instrument)
    assert shown == [
        ("configured", "not_connected", None),
        ("connecting", "not_connected", None),
        ("admitted", "connecting", None),
        ("ready", "ready", None),
        ("reconnecting", "not_connected", "orderly_close"),
        ("ready", "ready", "orderly_close"),
    ]


@pytest.mark.contract("LV-168", "LV-165")
async def test_the_status_lists_a_bounded_number_of_servers_and_clients(autojump_clock: object, world: World) -> None:
    for number in range(SNAPSHOT_PEER_LIMIT + 7):
        await publish(world, server_puppet(world, f"p{number:04}"))
    c = await client(world, store=True)
    await until(lambda: c.channel.omitted)
    assert len(c.channel.peers) == SNAPSHOT_PEER_LIMIT
    assert c.channel.omitted == 7
    s = await server(world)
    for number in range(SNAPSHOT_PEER_LIMIT + 3):
        client_puppet(world, f"c{number}").dial(s.endpoint)
    await until(lambda: s.targets == SNAPSHOT_PEER_LIMIT + 3)
    status = s.channel
    assert (len(status.clients), status.clients_omitted) == (SNAPSHOT_PEER_LIMIT, 3)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        status.omitted = 1  # type: ignore[misc]


async def test_the_state_of_a_channel_says_what_is_missing(autojump_clock: object, world: World) -> None:
    p, q = await listening(world, "p"), await listening(world, "q")
    p.admits = q.admits = False
    c = await client(world, servers=[p.endpoint, q.endpoint])
    assert (c.channel.state, c.channel.reason) == (TopologyState.DEGRADED, "no_ready_target")
    assert c.channel.is_ready
    assert c.rt.status.is_ready
    p.admits = True
    await c.ready("p", seconds=20)
    assert (c.channel.state, c.channel.reason) == (TopologyState.DEGRADED, "no_ready_peer")
    q.admits = True
    await c.ready("q", seconds=20)
    assert (c.channel.state, c.channel.reason) == (TopologyState.READY, None)
    with pytest.raises(zl.ConfigurationError, match="not registered"):
        c.rt.channel_status("other")


# -- load


@pytest.mark.contract("LV-115", "LV-116")
async def test_a_flooding_client_costs_another_neither_its_ready_state_nor_its_answers(
    autojump_clock: object, world: World
) -> None:
    s = await server(world)
    flood = await client_puppet(world, "flood").connect(s.endpoint)
    c = await client(world, servers=[s.endpoint])
    await c.ready("s")
    async with trio.open_nursery() as nursery:

        async def pour() -> None:
            head = PayloadHead("Note", CODEC.content_type)
            payload = CODEC.encode(Note(1))
            while True:
                for _ in range(200):
                    flood.app.send(ChannelSend(CHANNEL, head), payload)
                await trio.sleep(1)

        nursery.start_soon(pour)
        for n in range(60):
            began = trio.current_time()
            assert (await c.echo(n)).n == n
            assert trio.current_time() - began < 0.5
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert s.targets == 2
    assert c.is_ready("s")
    assert s.telemetry.total(catalogue.PEER_DISCONNECTS) == 0


async def fill(link: Any) -> int:
    """Send until the transport takes no more; the puppet does not read."""
    sent = 0
    while True:
        with trio.move_on_after(0.01) as scope:
            await link.tell(sent)
            sent += 1
        if scope.cancelled_caught:
            return sent
        assert sent < 100_000


@pytest.mark.contract("LV-61", "LV-63")
@pytest.mark.parametrize("resumes", [False, True])
async def test_a_probe_waits_behind_the_records_ahead_and_the_deadline_does_not(
    autojump_clock: object, world: World, resumes: bool
) -> None:
    link = await linked(world, "client")
    link.p.answers_probes = False
    link.p.listener.pause()
    await link.at(1)
    assert await fill(link) > 100
    await link.at(11.9)
    assert link.pair.probes == []
    if resumes:
        await link.at(12)
        link.p.listener.resume()
        await until(lambda: link.pair.probes)
        assert len(set(link.pair.probes)) == 1
        await link.at(13)
        link.pair.app.send(LivenessAck(link.pair.probes[0]))
        await link.at(27.999)
        assert link.n.is_ready("p")
        await link.at(28.001)
    else:
        await link.at(14.999)
        assert link.n.is_ready("p")
        await link.at(15.001)
    assert not link.n.is_ready("p")
    assert link.n.failure("p").reason is FailureReason.PEER_DEADLINE  # type: ignore[union-attr]


@pytest.mark.contract("LV-172", "LV-173")
@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("state", list(FlowState))
async def test_the_flow_state_is_told_before_the_connection_is_a_route(
    autojump_clock: object, world: World, role: str, state: FlowState
) -> None:
    options = {"job_queue": zl.JobQueueOptions(max_queued_application_jobs=10)}
    p = await listening(world, "p") if role == "client" else client_puppet(world)
    if role == "client":
        p.admits = False
        node = await client(world, "n", servers=[p.endpoint], **options)
    else:
        node = await server(world, "n", **options)
    if state is FlowState.PAUSED:
        for _ in range(8):
            node.rt._core.permits.take_over()
    if role == "client":
        p.admits = True
        await until(lambda: node.targets, 20)
    else:
        await p.connect(node.endpoint)
        await until(lambda: node.targets)
    await trio.sleep(0.01)
    kinds = [type(record.command) for _, record in p.pair.app.records]
    assert kinds.count(ReceiveFlow) == 1
    assert kinds.index(ReceiveFlow) == 1  # behind the admission, before anything else
    assert p.pair.app.commands(ReceiveFlow) == [ReceiveFlow(state)]
    if state is FlowState.PAUSED:
        for _ in range(8):
            node.rt._core.permits.release()
        await trio.sleep(0.001)
        assert p.pair.app.commands(ReceiveFlow)[-1] == ReceiveFlow(FlowState.RUNNING)


@pytest.mark.contract("LV-164")
async def test_the_connections_of_a_host_include_those_of_its_channels(autojump_clock: object, world: World) -> None:
    endpoint = "tcp://127.0.0.1:5778"
    s = await server(world, "s", uses=True, servers=[endpoint, "tcp://127.0.0.1:5999"], listen=endpoint)
    await s.ready("s")
    await trio.sleep(1)
    said = s.rt.connections()
    assert [(each.kind, each.name, each.peer, each.phase) for each in said.connections] == [
        ("client_server", CHANNEL, "s", "ready"),
        ("client_server", CHANNEL, None, "connecting"),
        ("client_server", CHANNEL, None, "ready"),
    ]
    assert said.connections[0].channels == {CHANNEL: 100}
    assert said.connections[1].last_failure == "transport_error"
    assert said.omitted == 0
