"""What is about bytes, sockets and processes on a ClientServer channel, over ZeroMQ (LV §4-§6, §9-§11)."""

from __future__ import annotations

import gc
import os
import threading

import pytest
import trio

import zlinkpy as zl
from tests.contract.mesh.nodes import CHANNEL, Echoed, Note, World, linked, refused
from tests.contract.mesh.services import client, client_puppet, listening, server, serving
from tests.contract.mesh.test_real_sockets import ACK, PROBE, int_of
from tests.contract.mesh.test_store_and_stop import DESCRIPTORS
from tests.puppet import until
from zlinkpy.link import FailureReason
from zlinkpy.telemetry import catalogue
from zlinkpy.wire import Close, CloseReason, FlowState, Hello, LivenessAck, LivenessProbe, ReceiveFlow, RuntimeState

each_end = pytest.mark.parametrize("role", ["client", "server"])


@pytest.mark.contract("LV-59")
async def test_requests_replies_messages_and_probes_share_one_connection(fast_clock: object, sockets: World) -> None:
    s = await server(sockets)
    c = await client(sockets, servers=[s.endpoint])
    await c.ready("s")
    for n in range(200):
        assert await c.echo(n) == Echoed(n, "s")
        await c.rt.send_to_channel(CHANNEL, Note(n))
    await trio.sleep(11)
    assert len(s.got) == 400
    assert [message.n for message in s.got if type(message) is Note] == list(range(200))
    assert c.is_ready("s")
    (holder,) = s.rt._core.holders
    assert len(holder.links) == 1
    (link,) = holder.links
    assert len(link.lanes) == 1
    assert link.open_lanes == 1


@each_end
@pytest.mark.contract("LV-41", "LV-42", "LV-02", "LV-50")
async def test_probe_and_ack_are_one_frame_each_of_exactly_these_bytes(
    fast_clock: object, sockets: World, role: str
) -> None:
    link = await linked(sockets, role)
    for number in (1, 128, 2**63 - 1):
        link.pair.app.send(LivenessProbe(number))
    await link.at(11)
    frames = [frames for _, frames in link.pair.app.frames]
    probes = [each for each in frames if each[0].startswith(PROBE)]
    acks = [each for each in frames if each[0].startswith(ACK)]
    assert [int_of(frame[5:]) for (frame,) in acks] == [1, 128, 2**63 - 1]
    assert [int_of(frame[5:]) for (frame,) in probes] == link.pair.probes
    assert len(probes) == 2


@each_end
@pytest.mark.contract("LV-53", "LV-54", "LV-178")
@pytest.mark.parametrize(
    "frames",
    [
        [PROBE + b"\x91\x00"],
        [ACK + b"\x91\x01\x00"],
        [PROBE + b"\x91\x01", b""],
        [b"ZM\x01\x07\x00\x90"],
        [b"ZM\x01\x10\x00\x91\x94\xa1a\xa1b\x01\xc0", b"x"],
        [b"XX\x01\x05\x00\x91\x01"],
        [b"ZM\x02\x05\x00\x91\x01"],
        [b"ZM\x01\x05\x01\x91\x01"],
        [b"Z"],
    ],
    ids=[
        "zero id",
        "trailing byte",
        "second frame",
        "reserved command",
        "a mesh's command",
        "magic",
        "major",
        "flag",
        "short",
    ],
)
async def test_a_malformed_record_closes_its_connection_and_no_other(
    fast_clock: object, sockets: World, role: str, frames: list[bytes]
) -> None:
    if role == "server":
        link = await linked(sockets, role)
        other = await client_puppet(sockets, "q").connect(link.n.endpoint)
    else:
        q = await listening(sockets, "q")
        link = await linked(sockets, role, also=[q.endpoint])
        await link.n.ready("q")
        other = q.pair
    link.p.hears = lambda lane, record: type(record.command) is Hello
    link.pair.app.send_raw(frames)
    await until(lambda: link.pair.farewell is not None)
    assert link.pair.farewell is not None
    assert link.pair.farewell.reason is CloseReason.PROTOCOL_ERROR
    await until(lambda: (failure := link.n.failure("p")) and failure.reason is FailureReason.PROTOCOL_ERROR)
    assert link.pair.app.commands(LivenessAck) == []
    other.app.send(LivenessProbe(5))
    await until(lambda: other.app.commands(LivenessAck))
    assert link.n.got == []


@pytest.mark.contract("LV-178")
async def test_a_frame_above_the_limit_drops_its_connection_and_no_other(fast_clock: object, sockets: World) -> None:
    s = await server(sockets, limit=4096)
    q = await client_puppet(sockets, "q").connect(s.endpoint)
    p = await client_puppet(sockets).connect(s.endpoint)
    await until(lambda: s.targets == 2)
    p.app.send_raw([b"ZM\x01\x12\x00" + b"\x00" * 5000])
    await until(lambda: s.targets == 1)
    failure = s.failure("p")
    assert failure is not None
    assert failure.reason is FailureReason.TRANSPORT_ERROR
    q.app.send(LivenessProbe(5))
    await until(lambda: q.app.commands(LivenessAck))
    assert s.got == []


async def test_a_client_and_a_server_keep_to_each_other_s_limits(fast_clock: object, sockets: World) -> None:
    s = await server(sockets, limit=100_000)
    c = await client(sockets, servers=[s.endpoint], limit=1_000_000)
    await c.ready("s")
    with pytest.raises(zl.InvalidOperationError, match="at most 100000, the max_message_bytes of server s"):
        await c.rt.send_to_channel(CHANNEL, zl.RawMessage("Note", b"x" * 100_000))
    await c.rt.send_to_channel(CHANNEL, zl.RawMessage("Unknown", b"x" * 90_000))
    assert (await c.echo(1)).n == 1
    assert c.is_ready("s")


@each_end
@pytest.mark.contract("LV-119", "LV-18")
async def test_who_leaves_in_order_is_told_apart_from_who_broke(fast_clock: object, sockets: World, role: str) -> None:
    s = await server(sockets, "s")
    c = await client(sockets, "c", servers=[s.endpoint])
    await c.ready("s")
    leaving, staying = (c, s) if role == "client" else (s, c)
    await leaving.stop()
    await until(lambda: staying.targets == 0)
    assert staying.telemetry.total(catalogue.PEER_DISCONNECTS, reason="orderly_close") == 1
    assert staying.telemetry.total(catalogue.PEER_DISCONNECTS) == 1


@pytest.mark.contract("LV-144", "LV-145")
async def test_a_server_that_comes_back_on_its_endpoint_is_used_again(fast_clock: object, sockets: World) -> None:
    s = await server(sockets, "s")
    endpoint = s.endpoint
    c = await client(sockets, servers=[endpoint])
    await c.ready("s")
    for number in range(3):
        await s.stop()
        await until(lambda: c.targets == 0)
        s = await server(sockets, "s", listen=endpoint)
        await until(lambda: c.targets == 1, 30)
        assert (await c.echo(number)).n == number


@pytest.mark.contract("LV-123", "LV-174")
async def test_updates_change_the_targets_over_real_sockets(fast_clock: object, sockets: World) -> None:
    link = await linked(sockets, "client")
    link.pair.update(runtime_state=RuntimeState.RELOCATING)
    await until(lambda: link.n.targets == 0)
    assert link.n.is_ready("p")
    with refused(zl.UnavailableError):
        await link.n.echo()
    link.pair.update(runtime_state=RuntimeState.SERVING, weight=7)
    await until(lambda: link.n.targets == 1)
    assert link.n.peer("p").channels == {CHANNEL: 7}


@pytest.mark.contract("LV-120")
@each_end
async def test_a_killed_end_is_not_ready_at_once(fast_clock: object, sockets: World, role: str) -> None:
    if role == "client":
        link = await linked(sockets, role)
        link.p.listener.close()
    else:
        link = await linked(sockets, role)
        link.pair.hang_up()
    link.p.hears = lambda lane, record: type(record.command) is Hello
    await until(lambda: link.n.targets == 0, 2)
    failure = link.n.failure("p")
    assert failure is not None
    assert failure.reason is FailureReason.TRANSPORT_ERROR


@pytest.mark.contract("LV-119")
async def test_an_orderly_close_of_a_real_client_is_heard(fast_clock: object, sockets: World) -> None:
    link = await linked(sockets, "server")
    link.pair.say_goodbye(Close(CloseReason.ORDERLY))
    await until(lambda: link.n.targets == 0)
    failure = link.n.failure("p")
    assert failure is not None
    assert failure.reason is FailureReason.ORDERLY_CLOSE


@each_end
@pytest.mark.contract("LV-172")
async def test_the_flow_state_reaches_the_other_end_whichever_socket_it_has(
    fast_clock: object, sockets: World, role: str
) -> None:
    link = await linked(sockets, role, job_queue=zl.JobQueueOptions(max_queued_application_jobs=10))
    for _ in range(8):
        link.n.rt._core.permits.take_over()
    await until(lambda: link.pair.app.commands(ReceiveFlow)[-1:] == [ReceiveFlow(FlowState.PAUSED)])
    for _ in range(8):
        link.n.rt._core.permits.release()
    await until(lambda: link.pair.app.commands(ReceiveFlow)[-1:] == [ReceiveFlow(FlowState.RUNNING)])
    link.pair.app.send(ReceiveFlow(FlowState.PAUSED))
    await until(lambda: link.n.peer("p").paused)
    assert link.n.is_ready("p")


@pytest.mark.contract("LV-158")
async def test_nothing_of_a_channel_on_real_sockets_remains(fast_clock: object, sockets: World) -> None:
    threads = {thread.name for thread in threading.enumerate()}
    tasks = trio.lowlevel.current_statistics().tasks_living
    counts: list[int] = []
    for _ in range(3):
        async with serving(sockets, "s") as s:
            async with serving(sockets, "c", weight=None, servers=[s.endpoint]) as c:
                await c.ready("s")
                assert (await c.echo(1)).n == 1
        gc.collect()
        counts.append(len(os.listdir(DESCRIPTORS)))
    assert counts[2] == counts[1]
    left = {thread.name for thread in threading.enumerate() if not thread.name.startswith("Trio thread")}
    assert left <= threads
    assert trio.lowlevel.current_statistics().tasks_living == tasks
