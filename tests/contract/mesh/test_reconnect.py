"""Reconnecting and replacing: when the next connection is dialled, and what it does not inherit (LV §11, §14)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from attrs import evolve

from tests.contract.mesh.nodes import CHANNEL, Echo, Node, World, linked, publish
from tests.puppet import APP, until
from zlinkpy.errors import UnavailableError
from zlinkpy.link import FailureReason
from zlinkpy.mesh import PeerPhase
from zlinkpy.telemetry import catalogue
from zlinkpy.wire import Close, CloseReason, Hello, LivenessAck, RejectReason

SERVER = {CHANNEL: 100}


@pytest.mark.parametrize("role", ["dialling", "client"])
@pytest.mark.contract("LV-144", "LV-145")
async def test_a_lost_peer_is_dialled_again_and_runs_the_whole_handshake(
    autojump_clock: object, world: World, role: str
) -> None:
    link = await linked(world, role)
    for round_ in range(1, 4):
        old = link.p.pair
        await trio.sleep(7)
        old.hang_up()
        await trio.sleep(0.001)
        assert link.n.phase("p") is PeerPhase.RECONNECTING
        await until(lambda: len(link.p.pairs) == round_ + 1 and link.p.pair.is_up)
        fresh = link.p.pair
        assert [type(record.command) for _, record in fresh.app.records][:1] == [Hello]
        assert [type(record.command) for _, record in fresh.completion.records][:1] == [Hello]
        assert fresh.pair_id != old.pair_id
        await trio.sleep_until((fresh.ready_at or 0) + 4.99)
        assert fresh.probes == []
        await link.n.ready("p")
    assert len({lane.connection.id for lane in link.p.lanes}) == (8 if link.on_mesh else 4)


@pytest.mark.parametrize("role", ["dialling", "client"])
@pytest.mark.contract("LV-145", "LV-125")
async def test_a_late_answer_for_the_old_connection_does_not_move_the_new_one(
    autojump_clock: object, world: World, role: str
) -> None:
    link = await linked(world, role)
    link.p.answers_probes = False
    await link.at(6)
    (outstanding,) = link.pair.probes
    link.pair.hang_up()
    await until(lambda: link.p.pair is not link.pair and link.p.pair.is_up)
    fresh = link.p.pair
    ready = fresh.ready_at
    assert ready is not None
    fresh.app.send(LivenessAck(outstanding))
    await trio.sleep_until(ready + 6)
    fresh.app.send(LivenessAck(outstanding))
    link.p.hears = lambda lane, record: type(record.command) is Hello
    await trio.sleep_until(ready + 14.999)
    assert link.n.is_ready("p")
    await trio.sleep_until(ready + 15.001)
    assert not link.n.is_ready("p")


@pytest.mark.contract("LV-128", "LV-129", "LV-130")
@pytest.mark.parametrize("hangs_up", [True, False], ids=["close seen", "close not seen"])
async def test_nothing_is_dialled_before_the_old_connection_was_seen_closed(
    autojump_clock: object, world: World, hangs_up: bool
) -> None:
    p = await world.listening("p", channels=SERVER)
    await publish(world, p)
    n = await world.host("n", store=True)
    await n.ready("p")
    old = p.pair
    assert world.network is not None
    if not hangs_up:
        # The farewell does not get through: the connection goes on existing until its linger is over.
        world.network.partition("n", "puppet")
    p.admission = evolve(p.admission, lifecycle_generation=8)
    await publish(world, p)
    await until(lambda: n.failure("p") is not None)
    left = trio.current_time()
    assert n.failure("p").reason is FailureReason.REPLACED
    if not hangs_up:
        await trio.sleep(3)
        world.network.heal()
    await until(lambda: len(p.pairs) == 2 and p.pair.is_up, 20)
    if hangs_up:
        assert old.farewell == Close(CloseReason.REPLACED)
    log = world.network.log
    dials = [index for index, line in enumerate(log) if line[1:3] == ("dial", "n")]
    first, second, third, *_ = dials
    for lost in (first, second):
        assert [index < third for index, line in enumerate(log) if line[1:3] == ("closed", log[lost][3])] == [True]
    if not hangs_up:
        assert log[third][0] - left >= 0.9
    await n.ready("p")


@pytest.mark.contract("LV-132", "LV-149", "LV-150")
@pytest.mark.parametrize("generation", [3, 9], ids=["smaller", "larger"])
async def test_another_generation_is_another_run_whichever_number_is_larger(
    autojump_clock: object, world: World, generation: int
) -> None:
    p = await world.listening("p", channels=SERVER)
    await publish(world, p)
    n = await world.host("n", store=True)
    await n.ready("p")
    q = await world.listening("p", channels=SERVER, generation=generation)
    q.hears = lambda lane, record: False
    pending: list[Any] = []

    async def ask() -> None:
        try:
            await n.rt.request_to_node("play", "p", Echo(1), timeout=60.0)
        except UnavailableError as error:
            pending.append(error.cause)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.1)
        await publish(world, q)
        await until(lambda: bool(q.pairs) and q.pair.is_up)
    assert pending == ["RouteNotConnected"]
    assert p.pair.farewell == Close(CloseReason.REPLACED)
    await until(lambda: p.pair.is_gone)
    await n.ready("p")
    dials = len(p.pairs)
    await trio.sleep(30)
    assert len(p.pairs) == dials  # the old endpoint is not dialled any more
    assert n.is_ready("p")
    assert n.targets == 1


@pytest.mark.contract("LV-150")
async def test_a_descriptor_with_a_new_endpoint_is_what_is_dialled_next(autojump_clock: object, world: World) -> None:
    p = await world.listening("p", channels=SERVER)
    assert world.network is not None
    world.network.refuse(p.endpoint)
    await publish(world, p)
    n = await world.host("n", store=True)
    await trio.sleep(20)
    q = await world.listening("p", channels=SERVER, generation=8)
    await publish(world, q)
    began = trio.current_time()
    await n.ready("p")
    assert trio.current_time() - began < 2.1  # the next poll, not the end of a backoff
    assert q.pair.is_up


@pytest.mark.contract("LV-176")
@pytest.mark.parametrize("why", ["no transport", "no admit", "no second admit"])
async def test_a_dial_without_an_admit_ends_after_five_seconds_and_is_repeated(
    autojump_clock: object, world: World, why: str
) -> None:
    p = await world.listening("p", channels=SERVER)
    assert world.network is not None
    if why == "no transport":
        world.network.hang(p.endpoint)
    elif why == "no admit":
        p.admits = False
    else:
        p.hears = lambda lane, record: type(record.command) is Hello and record.command.lane is not APP
    n = await world.host("n", peers=[p.endpoint])
    await trio.sleep(4.99)
    (peer,) = n.snapshot.peers
    assert peer.last_failure is None
    assert peer.dials == 1
    await trio.sleep(0.05)
    (peer,) = n.snapshot.peers
    assert peer.last_failure is not None
    assert peer.last_failure.reason is FailureReason.TRANSPORT_ERROR
    assert all(lane.closed_at is not None for lane in p.lanes)
    await trio.sleep(0.2)
    assert n.snapshot.peers[0].dials == 2
    world.network.admit(p.endpoint)
    p.admits, p.hears = True, lambda lane, record: False
    await until(lambda: n.status.ready_peers == 1, 20)


@pytest.mark.contract("LV-175")
@pytest.mark.parametrize("latency", [0.0, 0.01, (0.0, 0.05), (0.0, 0.5)], ids=str)
@pytest.mark.parametrize("seed", range(3))
async def test_two_manual_peers_that_dial_each_other_keep_one_connection(
    autojump_clock: object, latency: Any, seed: int
) -> None:
    async with World.in_memory(seed=seed, latency=latency) as world:
        ends = {"a": "tcp://127.0.0.1:5001", "b": "tcp://127.0.0.1:5002"}
        nodes: list[Node] = []

        async def start(name: str, other: str) -> None:
            nodes.append(await world.host(name, serves=SERVER, listen=ends[name], peers=[ends[other]]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, "a", "b")
            nursery.start_soon(start, "b", "a")
        a, b = sorted(nodes, key=lambda node: node.name)
        await a.ready("b")
        await b.ready("a")
        await trio.sleep(30)
        for node in (a, b):
            assert node.status.ready_peers == 1
            assert len(node.status.peers) == 1
            assert node.targets == 2
            assert len(node.rt._core.meshes["play"].links) == 1
        (link,) = a.rt._core.meshes["play"].links
        assert link.dialler
        assert await a.echo(1) != await a.echo(2)
        assert a.snapshot.peers[0].dials + b.snapshot.peers[0].dials < 8


@pytest.mark.contract("LV-175")
async def test_the_larger_one_s_dial_is_refused_as_a_duplicate(autojump_clock: object, world: World) -> None:
    p = await world.listening("p", channels=SERVER)
    p.admits = False  # so that the node's own dial is still under way
    n = await world.host("n", peers=[p.endpoint])
    await until(lambda: p.lanes)
    pair = p.dial(n.endpoint)
    await until(lambda: pair.reject is not None)
    assert pair.reject is RejectReason.DUPLICATE_CONNECTION
    a = await world.listening("a", channels=SERVER)
    m = await world.host("m", peers=[a.endpoint])
    await m.ready("a")
    # The smaller one's dial replaces the larger one's, which was there first.
    first = a.pair
    second = await a.connect(m.endpoint)
    assert first.farewell == Close(CloseReason.REPLACED)
    await trio.sleep(20)
    assert second.is_up
    assert m.is_ready("a")
    assert m.status.ready_peers == 1


@pytest.mark.contract("LV-119")
@pytest.mark.parametrize("leaving", ["n", "m"])
async def test_the_last_word_is_read_before_the_other_lane_is_seen_to_go(autojump_clock: object, leaving: str) -> None:
    for seed in range(20):
        async with World.in_memory(seed=seed, latency=(0.0, 0.3)) as world:
            n = await world.host("n", serves=SERVER)
            m = await world.host("m", peers=[n.endpoint])
            await m.ready("n")
            await n.ready("m")
            going, staying = (n, m) if leaving == "n" else (m, n)
            await going.stop()
            await trio.sleep(1)
            assert staying.telemetry.total(catalogue.PEER_DISCONNECTS, reason="orderly_close") == 1
            assert staying.telemetry.total(catalogue.PEER_DISCONNECTS) == 1


@pytest.mark.contract("LV-26")
async def test_a_second_connection_is_ready_by_its_own_handshake_only(autojump_clock: object, world: World) -> None:
    link = await linked(world)
    second = world.puppet("p", channels=SERVER)
    second.admission = link.p.admission
    pair = second.dial(link.n.endpoint, silent=True)
    await trio.sleep(10)
    assert link.n.is_ready("p")
    assert pair.app.records == []
    assert link.pair.is_up


@pytest.mark.contract("LV-131")
async def test_a_connection_s_number_decides_nothing(
    autojump_clock: object, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.network is not None
    monkeypatch.setattr(world.network, "next_number", lambda: 0)
    link = await linked(world, "dialling", serves=SERVER)
    other = await world.host("m", peers=[link.n.endpoint])
    await other.ready("n")
    assert (await other.echo(3)).n == 3
    link.pair.hang_up()
    await until(lambda: link.p.pair is not link.pair and link.p.pair.is_up)
    await link.n.ready("p", "m")
    assert (await other.echo(4)).n == 4


@pytest.mark.contract("LV-176")
async def test_an_endpoint_nobody_can_dial_keeps_no_other_peer_waiting(autojump_clock: object, world: World) -> None:
    bad = world.puppet("p-bad", endpoint="udp://127.0.0.1:5999")
    good = await world.listening("q-good", channels=SERVER)
    await publish(world, bad)
    await publish(world, good)
    n = await world.host("n", store=True)
    await n.ready("q-good")
    await trio.sleep(10)
    failure = n.failure("p-bad")
    assert failure is not None
    assert failure.reason is FailureReason.TRANSPORT_ERROR
    peer = n.peer("p-bad")
    assert peer is not None
    assert peer.dials > 3
    better = await world.listening("p-bad", channels=SERVER, generation=8)
    await publish(world, better)
    await n.ready("p-bad")
