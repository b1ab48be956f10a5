"""Every vector of the wire, right and wrong, on the admitted connection of a whole node (LV-70, LV-177, LV-178)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.contract.mesh import services
from tests.contract.mesh.nodes import CHANNEL, World, linked
from tests.puppet import until
from zlinkpy.link import FailureReason
from zlinkpy.wire import (
    Admit,
    Close,
    CloseReason,
    Hello,
    Lane,
    LivenessAck,
    LivenessProbe,
    ReceiveFlow,
    Reject,
    Topology,
    Update,
    decode,
)

VECTORS = Path(__file__).parents[3] / "conformance" / "vectors"
SERVER = {CHANNEL: 100}
LINK = (Hello, Admit, Reject, Update, LivenessProbe, LivenessAck, ReceiveFlow, Close)


def frames_of(vector: dict[str, Any]) -> list[bytes]:
    """The frames of a vector; `repeat` says which of them is one byte many times."""
    frames = [bytes.fromhex(frame) for frame in vector["frames"]]
    repeat = vector.get("repeat")
    if repeat is not None:
        frames[repeat["frame"]] *= repeat["times"]
    return frames


def vectors(*, valid: bool) -> Iterator[tuple[str, str, Lane, dict[str, Any]]]:
    """File, name, lane and vector of everything that a RouteMesh connection can be sent."""
    for path in sorted(VECTORS.glob("[0-9]*.json")) + [VECTORS / "prefix.json"]:
        for vector in json.loads(path.read_text(encoding="utf-8")):
            # A record of no frames cannot be sent.
            if vector["topology"] == "routeMesh" and vector["valid"] is valid and vector["frames"]:
                yield path.stem, vector["name"], Lane[vector["lane"].upper()], vector


FILES = sorted({file for file, _, _, _ in vectors(valid=False)})


@pytest.mark.contract("LV-178", "LV-53", "LV-54")
@pytest.mark.parametrize("file", FILES)
async def test_an_invalid_record_ends_its_own_connection_and_tells_the_peer_which_field(
    autojump_clock: object, world: World, file: str
) -> None:
    link = await linked(world, serves=SERVER)
    tried = 0
    for _, name, lane, vector in (each for each in vectors(valid=False) if each[0] == file):
        tried += 1
        bad = world.puppet("bad")
        pair = await bad.connect(link.n.endpoint)
        pair.lanes[lane].send_raw(frames_of(vector))
        await trio.sleep(0.001)
        assert pair.is_gone, name
        farewell = pair.farewell
        assert farewell is not None, name
        assert (farewell.reason, farewell.field) == (CloseReason.PROTOCOL_ERROR, vector["field"]), name
        assert pair.app.commands(LivenessAck) == [], name
        failure = link.n.failure("bad")
        assert failure is not None, name
        assert failure.reason is FailureReason.PROTOCOL_ERROR, name
    assert tried
    assert link.n.got == []
    assert link.pair.is_up
    assert link.n.is_ready("p")
    assert link.n.rt.status.permits_in_use == 0
    assert len(link.p.lanes) == 2


def service_vectors(role: str, *, valid: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """File, name and vector of everything that an end of a ClientServer connection can be sent."""
    direction = "toServer" if role == "server" else "toClient"
    for path in sorted(VECTORS.glob("[0-9]*.json")) + [VECTORS / "prefix.json"]:
        for vector in json.loads(path.read_text(encoding="utf-8")):
            fits = vector["topology"] == "clientServer" and vector["direction"] == direction
            if fits and vector["valid"] is valid and vector["frames"]:
                yield path.stem, vector["name"], vector


@pytest.mark.contract("LV-178", "LV-53", "LV-54")
@pytest.mark.parametrize("role", ["client", "server"])
async def test_an_invalid_record_ends_its_own_clientserver_connection(
    autojump_clock: object, world: World, role: str
) -> None:
    if role == "server":
        node = await services.server(world, "n")
        bad, good = (services.client_puppet(world, rid) for rid in ("bad", "q"))
        other = await good.connect(node.endpoint)
    else:
        bad, good = [await services.listening(world, rid) for rid in ("bad", "q")]
        node = await services.client(world, "n", servers=[bad.endpoint, good.endpoint])
        await node.ready("bad", "q")
        other = good.pair
    tried = 0
    for _, name, vector in service_vectors(role, valid=False):
        tried += 1
        if role == "server":
            pair = await bad.connect(node.endpoint)
        else:
            await node.ready("bad", seconds=20)
            pair = bad.pair
        pair.app.send_raw(frames_of(vector))
        await trio.sleep(0.001)
        assert pair.is_gone, name
        farewell = pair.farewell
        assert farewell is not None, name
        assert (farewell.reason, farewell.field) == (CloseReason.PROTOCOL_ERROR, vector["field"]), name
        assert pair.app.commands(LivenessAck) == [], name
        failure = node.failure("bad")
        assert failure is not None, name
        assert failure.reason is FailureReason.PROTOCOL_ERROR, name
    assert tried > 200
    assert node.got == []
    assert other.is_up
    assert node.rt.status.permits_in_use == 0


@pytest.mark.contract("LV-70", "LV-177")
@pytest.mark.parametrize("role", ["client", "server"])
async def test_no_other_record_of_a_channel_moves_a_deadline(autojump_clock: object, world: World, role: str) -> None:
    link = await linked(world, role)
    link.p.answers_probes = False
    link.p.hears = lambda lane, record: True
    await link.at(6)
    sent = 0
    for _, name, vector in service_vectors(role, valid=True):
        frames = frames_of(vector)
        command = decode(frames, topology=Topology.CLIENT_SERVER).command
        # The vectors' channel is another one, which only the channel's own server would refuse.
        if type(command) in LINK or getattr(command, "channel_name", CHANNEL) != CHANNEL:
            continue
        sent += 1
        link.pair.app.send_raw(frames)
        await trio.sleep(0.01)
        assert link.pair.is_up, name
    if role == "server":
        link.pair.app.send(*link.request(1))
        link.pair.app.send(*link.note())
    else:
        assert sent > 20
    await link.at(14.999)
    assert link.n.is_ready("p")
    await link.at(15.001)
    assert not link.n.is_ready("p")


@pytest.mark.contract("LV-70", "LV-177")
async def test_no_other_record_moves_a_deadline_or_ends_a_connection(autojump_clock: object, world: World) -> None:
    link = await linked(world, serves=SERVER)
    link.p.answers_probes = False
    link.p.hears = lambda lane, record: type(record.command) is Hello
    await link.at(6)
    kinds: set[str] = set()
    for _, _, lane, vector in vectors(valid=True):
        frames = frames_of(vector)
        command = decode(frames, topology=Topology.ROUTE_MESH, lane=lane).command
        if type(command) in LINK:
            continue
        kinds.add(type(command).__name__)
        link.pair.lanes[lane].send_raw(frames)
        await trio.sleep(0.01)
        assert link.pair.is_up, vector["name"]
    assert len(kinds) > 30
    await link.at(14.999)
    assert link.n.is_ready("p")
    await link.at(15.001)
    assert not link.n.is_ready("p")
    failure = link.n.failure("p")
    assert failure is not None
    assert failure.reason is FailureReason.PEER_DEADLINE


@pytest.mark.contract("LV-178")
@pytest.mark.parametrize("lane", list(Lane))
async def test_handshake_records_in_the_wrong_place_end_the_connection(
    autojump_clock: object, world: World, lane: Lane
) -> None:
    link = await linked(world)
    q = world.puppet("q")
    pair = await q.connect(link.n.endpoint)
    pair.lanes[lane].send(Admit(q.admission, lane, pair.pair_id))
    await until(lambda: pair.is_gone)
    assert pair.farewell is not None
    assert pair.farewell.reason is CloseReason.PROTOCOL_ERROR
    assert link.pair.is_up
