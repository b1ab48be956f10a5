"""The items that are about bytes, sockets and processes, over ZeroMQ (LV §4-§6, §10, §11)."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio

from tests.contract.mesh import services
from tests.contract.mesh.nodes import CHANNEL, ROLES, Echo, Node, Note, World, linked, refused
from tests.puppet import APP, COMPLETION, until
from zlinkpy.errors import UnavailableError
from zlinkpy.link import FailureReason
from zlinkpy.telemetry import catalogue
from zlinkpy.wire import Close, CloseReason, Hello, Lane, LivenessAck, LivenessProbe, RuntimeState

each_role = pytest.mark.parametrize("role", ROLES)
SERVER = {CHANNEL: 100}
PROBE = bytes.fromhex("5a4d010500")
ACK = bytes.fromhex("5a4d010600")


def int_of(body: bytes) -> int:
    """The one integer of a msgpack array, by hand: the shortest form for what a probe id can be."""
    assert body[0] == 0x91
    if body[1] < 0x80:
        return body[1]
    size = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}[body[1]]
    assert len(body) == 2 + size
    return int.from_bytes(body[2:], "big")


@each_role
@pytest.mark.contract("LV-41", "LV-42", "LV-57", "LV-02")
async def test_probe_and_ack_are_one_frame_each_of_exactly_these_bytes(
    fast_clock: object, sockets: World, role: str
) -> None:
    link = await linked(sockets, role)
    assert [lane.lane for lane in link.p.lanes] == [APP, COMPLETION]
    for number in (1, 127, 128, 2**63 - 1):
        link.pair.app.send(LivenessProbe(number))
    await link.at(11)
    frames = [frames for _, frames in link.pair.app.frames]
    probes = [each for each in frames if each[0].startswith(PROBE)]
    acks = [each for each in frames if each[0].startswith(ACK)]
    assert [int_of(frame[5:]) for (frame,) in acks] == [1, 127, 128, 2**63 - 1]
    assert [int_of(frame[5:]) for (frame,) in probes] == link.pair.probes
    assert len(probes) == 2
    assert all(0 < int_of(frame[5:]) < 2**63 for (frame,) in probes)
    for index, at in enumerate(link.pair.probe_times):
        assert at - link.T == pytest.approx(5 * (index + 1), abs=1.0)


@each_role
@pytest.mark.contract("LV-53", "LV-54")
@pytest.mark.parametrize("prefix", [PROBE, ACK], ids=["probe", "ack"])
@pytest.mark.parametrize(
    "rest",
    [
        [b"\x91\x00"],
        [b"\x91\xff"],
        [b"\x91\xcf\x80" + b"\0" * 7],
        [b"\x91\xa1a"],
        [b"\x91\xc0"],
        [b"\x90"],
        [b"\x92\x01\x02"],
        [b""],
        [b"\x91\x01\x00"],
        [b"\x91\x01", b""],
    ],
    ids=["0", "-1", "2^63", "text", "nil", "empty array", "two", "no array", "trailing", "second frame"],
)
async def test_a_malformed_probe_or_ack_closes_its_connection(
    fast_clock: object, sockets: World, role: str, prefix: bytes, rest: list[bytes]
) -> None:
    link = await linked(sockets, role)
    q = sockets.puppet("q")
    other = await q.connect(link.n.endpoint)
    link.p.hears = lambda lane, record: type(record.command) is Hello
    link.pair.app.send_raw([prefix + rest[0], *rest[1:]])
    await until(lambda: link.pair.farewell is not None)
    assert link.pair.farewell is not None
    assert link.pair.farewell.reason is CloseReason.PROTOCOL_ERROR
    assert link.pair.app.commands(LivenessAck) == []
    await until(lambda: not link.n.is_ready("p"))
    failure = link.n.failure("p")
    assert failure is not None
    assert failure.reason is FailureReason.PROTOCOL_ERROR
    other.app.send(LivenessProbe(5))
    await until(lambda: other.app.commands(LivenessAck))
    assert link.n.is_ready("q")


@pytest.fixture
async def peer_process(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, str, list[list[str]]]]:
    """A puppet in another process: (process, endpoint, lines it printed). The parameter ``service``: a server."""
    lines: list[list[str]] = []
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                [sys.executable, "-m", "tests.contract.mesh.peer_process", *([request.param] if request.param else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                check=False,
            )
        )
        try:
            buffer = b""
            while b"\n" not in buffer:
                buffer += await process.stdout.receive_some()
            first, _, buffer = buffer.partition(b"\n")

            async def read() -> None:
                text = buffer
                async for piece in process.stdout:
                    text += piece
                    *whole, text = text.split(b"\n")
                    lines.extend(line.decode().split() for line in whole)

            nursery.start_soon(read)
            yield process, first.decode(), lines
        finally:
            process.kill()
            nursery.cancel_scope.cancel()


each_process = pytest.mark.parametrize("peer_process", ["", "service"], indirect=True, ids=["mesh", "channel"])


async def connected_with(world: World, endpoint: str, kind: str) -> Node:
    """A host that is ready for the puppet process."""
    node = await (
        services.client(world, "n", servers=[endpoint]) if kind == "service" else world.host("n", peers=[endpoint])
    )
    await node.ready("p", seconds=60)
    return node


@each_process
@pytest.mark.contract("LV-75")
async def test_a_stopped_process_expires_by_fifteen_seconds_after_two_probes(
    fast_clock: object,
    sockets: World,
    peer_process: tuple[Any, str, list[list[str]]],
    request: pytest.FixtureRequest,
) -> None:
    process, endpoint, lines = peer_process
    n = await connected_with(sockets, endpoint, request.node.callspec.params["peer_process"])
    ready = trio.current_time()
    process.send_signal(signal.SIGSTOP)
    try:
        await trio.sleep_until(ready + 13)
        assert n.is_ready("p")
        await until(lambda: not n.is_ready("p"), 4)
        assert trio.current_time() <= ready + 16
        failure = n.failure("p")
        assert failure is not None
        assert failure.reason is FailureReason.PEER_DEADLINE
        assert n.targets == 0
    finally:
        process.send_signal(signal.SIGCONT)
    # What it finds when it goes on: the two probes it had been sent, the same record twice.
    await until(lambda: sum(line[0] == "LivenessProbe" for line in lines) >= 2, 60)
    first, second = [line[1] for line in lines if line[0] == "LivenessProbe"][:2]
    assert first == second
    await n.ready("p", seconds=60)


@each_process
@pytest.mark.contract("LV-120")
async def test_a_killed_process_is_not_ready_at_once(
    fast_clock: object,
    sockets: World,
    peer_process: tuple[Any, str, list[list[str]]],
    request: pytest.FixtureRequest,
) -> None:
    process, endpoint, _ = peer_process
    n = await connected_with(sockets, endpoint, request.node.callspec.params["peer_process"])
    process.kill()
    await until(lambda: not n.is_ready("p"), 4)
    failure = n.failure("p")
    assert failure is not None
    assert failure.reason is FailureReason.TRANSPORT_ERROR
    with refused(UnavailableError):
        await n.echo()


@each_role
@pytest.mark.contract("LV-119", "LV-18")
async def test_a_node_that_leaves_is_told_apart_from_one_that_broke(
    fast_clock: object, sockets: World, role: str
) -> None:
    n = await sockets.host("n", serves=SERVER)
    p = await sockets.listening("p")
    m = await sockets.host("m", peers=[n.endpoint])
    await m.ready("n")
    pair = await p.connect(n.endpoint)
    leaving, staying = (n, m) if role == "accepting" else (m, n)
    await leaving.stop()
    await until(lambda: not staying.is_ready(leaving.name))
    # A dialler that comes back too early has a later failure by now: the node said it is not serving.
    assert staying.telemetry.total(catalogue.PEER_DISCONNECTS, reason="orderly_close") == 1
    assert staying.telemetry.total(catalogue.PEER_DISCONNECTS) == 1
    if leaving is n:
        await until(lambda: pair.is_gone)
        assert pair.farewell == Close(CloseReason.ORDERLY)


@pytest.mark.contract("LV-27")
@pytest.mark.parametrize("lane", list(Lane))
async def test_a_lost_lane_takes_the_other_along(fast_clock: object, sockets: World, lane: Lane) -> None:
    link = await linked(sockets, "accepting")
    q = sockets.puppet("q")
    other = await q.connect(link.n.endpoint)
    link.pair.lanes[lane].close()
    await until(lambda: not link.n.is_ready("p"), 2)
    await until(lambda: link.pair.is_gone)
    assert other.is_up
    assert link.n.is_ready("q")


@pytest.mark.contract("LV-123", "LV-174")
async def test_updates_change_the_targets_over_real_sockets(fast_clock: object, sockets: World) -> None:
    link = await linked(sockets, "accepting")
    link.pair.update(runtime_state=RuntimeState.RELOCATING)
    await until(lambda: link.n.targets == 0)
    assert link.n.is_ready("p")
    link.pair.update(runtime_state=RuntimeState.SERVING)
    await until(lambda: link.n.targets == 1)


@pytest.mark.contract("LV-175")
@pytest.mark.parametrize("turn", range(3))
async def test_two_real_nodes_that_dial_each_other_keep_one_connection(
    fast_clock: object, sockets: World, turn: int
) -> None:
    ends = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ends.append(f"tcp://127.0.0.1:{probe.getsockname()[1]}")
    async with (
        sockets.running("a", serves=SERVER, listen=ends[0], peers=[ends[1]]) as a,
        sockets.running("b", serves=SERVER, listen=ends[1], peers=[ends[0]]) as b,
    ):
        await a.ready("b", seconds=60)
        await b.ready("a", seconds=60)
        await trio.sleep(12)
        for node in (a, b):
            assert node.targets == 2
            assert len(node.status.peers) == 1
            assert len(node.rt._core.meshes["play"].links) == 1
        assert {(await a.echo(i)).who for i in range(4)} == {"a", "b"}


@pytest.mark.contract("LV-144", "LV-145")
async def test_a_node_that_comes_back_on_its_endpoint_is_used_again(fast_clock: object, sockets: World) -> None:
    n = await sockets.host("n", serves=SERVER)
    endpoint = n.endpoint
    m = await sockets.host("m", peers=[endpoint])
    await m.ready("n")
    other = await sockets.host("o", peers=[endpoint])
    await other.ready("n")
    for number in range(3):
        await n.stop()
        await until(lambda: m.targets == 0 and other.targets == 0)
        with refused(UnavailableError):
            await m.echo(number)
        n = await sockets.host("n", serves=SERVER, listen=endpoint)
        await m.ready("n", seconds=30)
        await other.ready("n", seconds=30)
        assert (await m.echo(number)).n == number
        await other.rt.send_to_node("play", "n", Note(number))
        assert (await other.rt.request_to_node("play", "n", Echo(number))).n == number
