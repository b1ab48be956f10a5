"""When a peer is ready, when it is not yet, and what its loss takes along (LV §2, §10)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from attrs import evolve

from tests.contract.mesh.nodes import ALL_ROLES, CHANNEL, ROLES, Echo, World, linked, publish, refused
from tests.puppet import APP, COMPLETION, until
from zlinkpy.errors import ShuttingDownError, UnavailableError
from zlinkpy.link import FailureReason
from zlinkpy.mesh import PeerPhase, PeerState
from zlinkpy.telemetry import catalogue
from zlinkpy.wire import Close, CloseReason, Hello, Lane, LivenessAck, LivenessProbe, RejectReason, RuntimeState, Update

each_role = pytest.mark.parametrize("role", ROLES)
each_end = pytest.mark.parametrize("role", ALL_ROLES)
SERVER = {CHANNEL: 100}


@pytest.mark.contract("LV-19", "LV-153")
async def test_a_descriptor_and_a_live_lease_make_no_target(autojump_clock: object, world: World) -> None:
    p = await world.listening("p", channels=SERVER)
    assert world.network is not None
    world.network.hang(p.endpoint)
    await publish(world, p)
    n = await world.host("n", store=True)
    await until(lambda: n.phase("p") is PeerPhase.CONNECTING)
    for _ in range(10):
        await trio.sleep(1)
        assert not n.is_ready("p")
        assert n.status.ready_peers == 0
        assert n.targets == 0
        with refused(UnavailableError):
            await n.echo()
        with refused(UnavailableError):
            await n.rt.request_to_node("play", "p", Echo(1))
    world.network.admit(p.endpoint)
    await n.ready("p")
    assert n.targets == 1


@pytest.mark.contract("LV-20")
@pytest.mark.parametrize("answer", ["refuse", "hang"])
async def test_a_connect_call_that_returned_is_no_connection(autojump_clock: object, world: World, answer: str) -> None:
    endpoint = "tcp://127.0.0.1:5999"
    assert world.network is not None
    getattr(world.network, answer)(endpoint)
    n = await world.host("n", peers=[endpoint])
    await trio.sleep(3)
    (peer,) = n.snapshot.peers
    assert peer.phase is PeerPhase.CONNECTING
    assert peer.dials >= 1
    assert n.status.ready_peers == 0


@pytest.mark.contract("LV-21")
async def test_a_transport_connection_without_an_admit_is_not_ready(autojump_clock: object, world: World) -> None:
    p = await world.listening("p")
    p.admits = False
    n = await world.host("n", peers=[p.endpoint])
    await trio.sleep(4.9)
    (lane,) = p.lanes
    assert [type(record.command) for _, record in lane.records] == [Hello]
    assert lane.is_open
    (peer,) = n.snapshot.peers
    assert peer.phase is PeerPhase.CONNECTING
    await trio.sleep(0.2)
    assert lane.closed_at == pytest.approx(5.0)
    assert lane.commands(LivenessProbe) == []


MISMATCHES = {
    "rid": ({"node_rid": "q"}, FailureReason.IDENTITY_MISMATCH, RejectReason.IDENTITY_MISMATCH),
    "generation": (
        {"lifecycle_generation": 8},
        FailureReason.GENERATION_MISMATCH,
        RejectReason.LIFECYCLE_GENERATION_STALE,
    ),
    "smaller generation": (
        {"lifecycle_generation": 6},
        FailureReason.GENERATION_MISMATCH,
        RejectReason.LIFECYCLE_GENERATION_STALE,
    ),
    "security": (
        {"security_identity": "somebody else"},
        FailureReason.SECURITY_MISMATCH,
        RejectReason.SECURITY_IDENTITY_MISMATCH,
    ),
}


@pytest.mark.contract("LV-22", "LV-126")
@pytest.mark.parametrize("what", MISMATCHES)
async def test_a_dialled_peer_that_is_not_the_described_one_never_becomes_ready(
    autojump_clock: object, world: World, what: str
) -> None:
    changes, reason, _ = MISMATCHES[what]
    p = await world.listening("p", channels=SERVER)
    await publish(world, p)
    p.admission = evolve(p.admission, **changes)
    n = await world.host("n", store=True)
    await until(lambda: n.failure("p") is not None)
    assert n.failure("p").reason is reason
    assert all(pair.ready_at is None for pair in p.pairs)
    assert p.pairs[0].farewell is not None
    await trio.sleep(30)
    assert n.status.ready_peers == 0


@pytest.mark.contract("LV-22", "LV-126", "LV-132")
@pytest.mark.parametrize("what", [name for name in MISMATCHES if name != "rid"])
async def test_an_accepted_peer_that_is_not_the_described_one_is_rejected_and_the_current_one_stays(
    autojump_clock: object, world: World, what: str
) -> None:
    changes, _, reject = MISMATCHES[what]
    p = world.puppet("a", channels=SERVER)
    await publish(world, p)
    n = await world.host("n", store=True)
    current = await p.connect(n.endpoint)
    await n.ready("a")
    other = world.puppet("a", channels=SERVER)
    other.admission = evolve(p.admission, **changes)
    pair = other.dial(n.endpoint)
    await until(lambda: pair.reject is not None, 10)
    assert pair.reject is reject
    await until(lambda: pair.is_gone)
    await trio.sleep(20)
    assert current.is_up
    assert n.is_ready("a")
    assert n.targets == 1


@pytest.mark.contract("LV-127", "LO-159")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lifecycle_generation": 8}, FailureReason.GENERATION_MISMATCH),
        ({"node_rid": "q"}, FailureReason.IDENTITY_MISMATCH),
        ({"security_identity": "other"}, FailureReason.SECURITY_MISMATCH),
    ],
    ids=["generation", "identity", "security"],
)
async def test_a_manual_intent_does_not_relax_the_described_identity(
    autojump_clock: object, world: World, changes: dict[str, Any], reason: FailureReason
) -> None:
    p = await world.listening("p", channels=SERVER)
    await publish(world, p)
    n = await world.host("n", store=True, peers=[p.endpoint])
    await n.ready("p")
    described = p.admission
    p.admission = evolve(described, **changes)
    p.pair.hang_up()
    await trio.sleep(20)
    assert n.status.ready_peers == 0
    assert n.failure("p").reason is reason
    p.admission = described
    await n.ready("p")


@each_role
@pytest.mark.contract("LV-27", "LV-57")
@pytest.mark.parametrize("lane", list(Lane))
async def test_losing_one_lane_is_losing_the_peer(autojump_clock: object, world: World, role: str, lane: Lane) -> None:
    link = await linked(world, role)
    assert len(link.p.lanes) == 2
    assert {each.lane for each in link.p.lanes} == {APP, COMPLETION}
    assert link.n.targets == 1
    await link.at(2)
    link.p.hears = lambda lane, record: type(record.command) is Hello
    link.pair.lanes[lane].close()
    await trio.sleep(0.001)
    assert not link.n.is_ready("p")
    assert link.n.targets == 0
    assert link.n.failure("p").reason is FailureReason.TRANSPORT_ERROR
    assert link.pair.is_gone


@pytest.mark.contract("LV-27")
async def test_one_admitted_lane_is_not_ready(autojump_clock: object, world: World) -> None:
    p = world.puppet("p", channels=SERVER)
    p.opens_completion = False
    n = await world.host("n")
    pair = p.dial(n.endpoint)
    await trio.sleep(1)
    assert pair.admitted == {APP}
    assert n.phase("p") is PeerPhase.ADMITTED
    assert n.targets == 0
    await until(lambda: pair.is_gone, 10)
    assert trio.current_time() == pytest.approx(5, abs=0.1)


# -- the end of ready


@each_end
@pytest.mark.contract("LV-119", "LV-166")
@pytest.mark.parametrize("reason", [CloseReason.ORDERLY, CloseReason.DRAINING])
async def test_an_orderly_close_ends_ready_at_once(
    autojump_clock: object, world: World, role: str, reason: CloseReason
) -> None:
    link = await linked(world, role)
    await link.at(6)
    link.p.hears = lambda lane, record: type(record.command) is Hello
    link.pair.say_goodbye(Close(reason))
    await trio.sleep(0.001)
    assert link.n.targets == 0
    assert link.n.failure("p").reason is FailureReason.ORDERLY_CLOSE
    assert link.n.failure("p").at == pytest.approx(link.T + 6, abs=0.01)
    assert link.n.telemetry.total(catalogue.PEER_DISCONNECTS, reason="orderly_close") == 1
    await until(lambda: link.pair.is_gone)


@each_end
@pytest.mark.contract("LV-120")
async def test_a_killed_peer_is_not_ready_at_once(autojump_clock: object, world: World, role: str) -> None:
    link = await linked(world, role)
    await link.at(6)
    link.p.hears = lambda lane, record: type(record.command) is Hello
    assert world.network is not None
    world.network.cut(("n", "puppet"))
    await trio.sleep(0.001)
    assert link.n.targets == 0
    assert link.n.failure("p").reason is FailureReason.TRANSPORT_ERROR
    assert link.n.telemetry.total(catalogue.PEER_DISCONNECTS, reason="transport_error") == 1


@each_role
@pytest.mark.contract("LV-121")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lifecycle_generation": 8}, FailureReason.GENERATION_MISMATCH),
        ({"node_rid": "q"}, FailureReason.IDENTITY_MISMATCH),
        ({"security_identity": "other"}, FailureReason.SECURITY_MISMATCH),
    ],
    ids=["generation", "identity", "security"],
)
async def test_an_update_that_speaks_for_another_ends_ready_at_once(
    autojump_clock: object, world: World, role: str, changes: dict[str, Any], reason: FailureReason
) -> None:
    link = await linked(world, role)
    await link.at(1)
    link.p.hears = lambda lane, record: type(record.command) is Hello
    link.pair.update(**changes)
    await trio.sleep(0.001)
    assert link.n.targets == 0
    assert link.n.failure("p").reason is reason
    await until(lambda: link.pair.is_gone)


@pytest.mark.contract("LV-122")
async def test_a_newer_connection_of_the_same_run_replaces_the_older(autojump_clock: object, world: World) -> None:
    link = await linked(world, "accepting")
    await link.at(3)
    old, pair = link.pair, await link.p.connect(link.n.endpoint)
    assert old.farewell == Close(CloseReason.REPLACED)
    assert old.is_gone
    assert link.n.telemetry.total(catalogue.PEER_DISCONNECTS, reason="replaced") == 1
    assert link.n.is_ready("p")
    assert link.n.targets == 1
    await trio.sleep(30)
    assert pair.is_up
    assert [round(at - (pair.ready_at or 0), 3) for at in pair.probe_times][:2] == [5, 10]


@each_role
@pytest.mark.contract("LV-123", "LV-174")
@pytest.mark.parametrize(
    "state",
    [
        RuntimeState.DRAINING,
        RuntimeState.STOPPED,
        RuntimeState.ERROR,
        RuntimeState.RELOCATING,
        RuntimeState.RELOCATED,
    ],
)
async def test_a_peer_that_does_not_serve_is_no_target_and_stays_connected(
    autojump_clock: object, world: World, role: str, state: RuntimeState
) -> None:
    link = await linked(world, role)
    assert link.n.targets == 1
    link.pair.update(runtime_state=state)
    await trio.sleep(0.001)
    assert link.n.targets == 0
    with refused(UnavailableError):
        await link.n.echo()
    (peer,) = link.n.status.peers
    assert peer.state is PeerState.DRAINING
    # It still carries what belongs to what it has accepted: node direct ignores drain, control goes on.
    await link.n.rt.send_to_node("play", "p", Echo(5))
    await link.at(20)
    assert link.pair.is_up
    assert link.n.is_ready("p")
    link.pair.update(runtime_state=RuntimeState.SERVING)
    await trio.sleep(0.001)
    assert link.n.targets == 1


@each_role
@pytest.mark.contract("LV-124", "LV-155", "LV-156", "LV-52")
async def test_a_draining_node_takes_no_new_call_and_finishes_the_accepted_ones(
    autojump_clock: object, world: World, role: str
) -> None:
    link = await linked(world, role, serves=SERVER)
    other = await world.host("m", peers=[link.n.endpoint])
    await other.ready("n")
    answers: list[Any] = []

    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            answers.append(await other.rt.request_to_node("play", "n", Echo(1, hold=12.0)))

        nursery.start_soon(ask)
        await until(lambda: link.n.got)
        nursery.start_soon(link.n.rt.shutdown, 30.0)
        await trio.sleep(0.2)
        assert [update.admission.ext.runtime_state for update in link.pair.app.commands(Update)][-1] == (
            RuntimeState.DRAINING
        )
        assert other.targets == 0
        assert link.n.targets == 0
        with refused(UnavailableError):
            await other.echo()
        with pytest.raises(ShuttingDownError):
            await link.n.echo()
        with pytest.raises(ShuttingDownError):
            await link.n.rt.send_to_node("play", "p", Echo(1))
        # The connection that accepted work waits for stays, and is probed both ways (LV-52).
        await trio.sleep(5)
        link.pair.app.send(LivenessProbe(77))
        await trio.sleep(0.001)
        assert [ack.probe_id for ack in link.pair.app.commands(LivenessAck)] == [77]
        assert other.peer("n").runtime_state == "draining"
        assert other.is_ready("n")
        assert answers == []
    assert [answer.n for answer in answers] == [1]
    assert link.n.rt.status.termination.outcome.value == "stopped"


@pytest.mark.contract("LV-18")
async def test_a_shutdown_is_no_liveness_failure(autojump_clock: object, world: World) -> None:
    link = await linked(world)
    other = await world.host("m", peers=[link.n.endpoint])
    await other.ready("n")
    await link.at(7)
    await link.n.stop()
    await trio.sleep(0.01)
    for node in (link.n, other):
        assert node.telemetry.total(catalogue.PEER_DISCONNECTS, reason="peer_deadline") == 0
        assert node.telemetry.total(catalogue.PEER_DISCONNECTS, reason="transport_error") == 0
    assert other.failure("n").reason is FailureReason.ORDERLY_CLOSE
    assert link.pair.farewell == Close(CloseReason.ORDERLY)
