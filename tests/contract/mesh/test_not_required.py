"""Object Clients that have nothing to say to each other (LV §3)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.contract.mesh.nodes import CHANNEL, World, publish
from tests.puppet import until
from zlinkpy.link import FailureReason
from zlinkpy.mesh import PeerPhase, PeerState, TopologyState
from zlinkpy.telemetry import catalogue
from zlinkpy.wire import Hello, LivenessProbe, ObjectRole, Reject, RejectReason

CLIENT: dict[str, Any] = {"object_client": True, "store": True}


def dials(world: World) -> list[Any]:
    assert world.network is not None
    return [line for line in world.network.log if line[1] == "dial"]


@pytest.mark.contract("LV-28", "LV-29", "LV-31", "LV-38")
@pytest.mark.parametrize("uses", [(), (CHANNEL,)], ids=["no channel", "channel client"])
async def test_two_object_clients_found_by_discovery_never_connect(
    autojump_clock: object, world: World, uses: tuple[str, ...]
) -> None:
    a = await world.host("a", uses=uses, **CLIENT)
    b = await world.host("b", uses=uses, **CLIENT)
    await trio.sleep(60)
    assert dials(world) == []
    for node, other in ((a, b), (b, a)):
        (peer,) = node.status.peers
        assert (peer.node_rid, peer.state, peer.reason) == (other.rid, PeerState.NOT_REQUIRED, None)
        assert node.phase(other.rid) is PeerPhase.NOT_REQUIRED
        assert node.failure(other.rid) is None
        assert node.status.state is TopologyState.READY
        assert node.status.is_ready
        assert node.rt._core.liveness.next_deadline() is None
        assert node.telemetry.series() == []


@pytest.mark.contract("LV-30", "LV-32")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"object_client": True, "serves": {CHANNEL: 0}}, {"object_client": True}),
        ({"object_client": True}, {"object_client": True, "serves": {CHANNEL: 100}}),
        ({"object_client": True}, {}),
        ({}, {"object_client": True}),
        ({}, {}),
        ({}, {"serves": {CHANNEL: 100}}),
    ],
    ids=["weight 0", "server", "client and none", "none and client", "none", "none with a channel"],
)
async def test_every_other_pair_connects(
    autojump_clock: object, world: World, one: dict[str, Any], other: dict[str, Any]
) -> None:
    a = await world.host("a", uses=(), store=True, **one)
    b = await world.host("b", uses=(), store=True, **other)
    await a.ready(b.rid)
    await b.ready(a.rid)


@pytest.mark.contract("LV-32")
async def test_an_object_server_and_a_client_connect(autojump_clock: object, world: World) -> None:
    p = await world.listening("p", role=ObjectRole.SERVER)
    await publish(world, p)
    n = await world.host("n", **CLIENT)
    await n.ready("p")


@pytest.mark.contract("LV-33", "LV-34", "LV-36", "LV-39")
@pytest.mark.parametrize("who", ["the acceptor rejects", "the dialler sees it"])
async def test_a_manual_endpoint_that_turns_out_to_be_not_required_is_dialled_once(
    autojump_clock: object, world: World, who: str
) -> None:
    p = await world.listening("p", role=ObjectRole.CLIENT)
    if who == "the acceptor rejects":

        def reject(lane: Any, record: Any) -> bool:
            if type(record.command) is Hello:
                lane.send(Reject(RejectReason.NOT_REQUIRED))
                return True
            return False

        p.hears = reject
    n = await world.host("n", peers=[p.endpoint], **CLIENT)
    await trio.sleep(600)
    assert len(dials(world)) == 1
    (lane,) = p.lanes
    assert lane.closed_at == pytest.approx(0, abs=0.01)
    assert lane.commands(LivenessProbe) == []
    assert all(pair.ready_at is None for pair in p.pairs)
    (peer,) = n.snapshot.peers
    assert (peer.phase, peer.last_failure, peer.dials) == (PeerPhase.NOT_REQUIRED, None, 1)
    assert n.status.peers[0].state is PeerState.NOT_REQUIRED
    assert n.rt._core.liveness.next_deadline() is None
    assert n.rt._core.meshes["play"].next_deadline() is None
    assert n.rt._core.meshes["play"].links == {}
    assert n.telemetry.total(catalogue.PEER_DISCONNECTS) == 0


@pytest.mark.contract("LV-33")
async def test_a_client_that_is_dialled_by_a_client_rejects_it(autojump_clock: object, world: World) -> None:
    n = await world.host("n", peers=["tcp://127.0.0.1:5999"], **CLIENT)
    p = world.puppet("p", role=ObjectRole.CLIENT)
    pair = p.dial(n.endpoint)
    await until(lambda: pair.reject is not None)
    assert pair.reject is RejectReason.NOT_REQUIRED
    await until(lambda: pair.is_gone)
    assert n.status.ready_peers == 0
    assert n.rt._core.meshes["play"].links == {}


@pytest.mark.contract("LV-37", "LV-38")
async def test_not_required_and_not_connected_are_shown_apart_and_only_the_latter_counts(
    autojump_clock: object, world: World
) -> None:
    x = await world.listening("x", role=ObjectRole.CLIENT)
    await publish(world, x)
    n = await world.host("n", uses=(), **CLIENT)
    await until(lambda: n.status.peers)
    await trio.sleep(20)
    assert [peer.state for peer in n.status.peers] == [PeerState.NOT_REQUIRED]
    assert n.status.state is TopologyState.READY
    y = await world.listening("y", role=ObjectRole.SERVER)
    assert world.network is not None
    world.network.refuse(y.endpoint)
    await publish(world, y)
    await until(lambda: len(n.status.peers) == 2)
    await trio.sleep(5)
    assert {peer.node_rid: peer.state for peer in n.status.peers} == {
        "x": PeerState.NOT_REQUIRED,
        "y": PeerState.NOT_CONNECTED,
    }
    assert n.status.state is TopologyState.DEGRADED
    failure = n.failure("y")
    assert failure is not None
    assert failure.reason is FailureReason.TRANSPORT_ERROR
    assert n.failure("x") is None
