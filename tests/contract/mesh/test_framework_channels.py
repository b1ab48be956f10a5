"""The framework's own channels, seen through the one every node answers: its connections (wire.md §9)."""

from __future__ import annotations

import pytest
import trio

import zlinkpy as zl
from tests.contract.mesh.nodes import CHANNEL, Node, World, linked
from tests.contract.mesh.test_probes import press, relieve
from tests.puppet import MESH, until
from zlinkpy.mesh import CONNECTIONS_CHANNEL, SNAPSHOT_PEER_LIMIT
from zlinkpy.wire import (
    ChannelRequest,
    ChannelSend,
    Close,
    CloseReason,
    FailureCode,
    PayloadHead,
    Reply,
    TerminalResult,
)

ASKED = PayloadHead("zlink.connectionsAsked", "application/msgpack")
NOTHING = b"\x80"


async def pair_of_hosts(world: World, **more: object) -> tuple[Node, Node]:
    asked = await world.host("asked", serves={CHANNEL: 70}, job_queue=zl.JobQueueOptions(max_queued_application_jobs=5))
    asking = await world.host("asking", peers=[asked.endpoint], **more)
    await asking.ready("asked")
    await asked.ready("asking")
    return asked, asking


@pytest.mark.contract("LV-164")
async def test_a_node_tells_another_how_its_connections_stand(autojump_clock: object, world: World) -> None:
    asked, asking = await pair_of_hosts(world)
    gone = await world.listening("gone")
    await gone.connect(asked.endpoint)
    await asked.ready("gone")
    gone.pair.say_goodbye(Close(CloseReason.ORDERLY))
    await until(lambda: not asked.is_ready("gone"))
    await trio.sleep(3)
    answer = await asking.rt.connections_of(MESH, "asked")
    assert answer.state == "serving"
    one = {report.peer: report for report in answer.connections}
    assert set(one) == {"asking", "gone"}
    assert (one["asking"].kind, one["asking"].name, one["asking"].phase) == ("mesh", MESH, "ready")
    assert (one["asking"].state, one["asking"].last_failure) == ("serving", None)
    assert one["gone"].phase == "reconnecting"
    assert one["gone"].last_failure == "orderly_close"
    assert one["gone"].failed_ago == pytest.approx(3, abs=0.1)
    # The same as it says of itself, and as it says when it is asked about itself by its own name.
    own = await asked.rt.connections_of(MESH, "asked")
    assert {report.peer for report in own.connections} == set(one)
    # And the other way round: what the asked node serves is known here.
    (seen,) = asking.rt.connections().connections
    assert (seen.peer, seen.channels) == ("asked", {CHANNEL: 70})


async def test_it_answers_without_a_permit_and_counts_as_no_application_work(
    autojump_clock: object, world: World
) -> None:
    asked, asking = await pair_of_hosts(world)
    press(asked, 5)
    assert asked.rt.status.permits_in_use == 5
    with trio.fail_after(0.5):
        assert (await asking.rt.connections_of(MESH, "asked")).state == "serving"
    assert (asked.rt.status.permits_in_use, asked.rt.status.queued_jobs, asked.got) == (5, 0, [])
    relieve(asked, 5)


async def test_an_object_client_answers_although_it_takes_no_node_messages(
    autojump_clock: object, world: World
) -> None:
    server = await world.host("server", serves={CHANNEL: 1}, store=True)
    client = await world.host("client", object_client=True, store=True)
    await server.ready(client.rid)
    assert (await server.rt.connections_of(MESH, client.rid)).connections[0].peer == server.rid


async def test_who_is_unknown_or_not_connected_is_told_apart(autojump_clock: object, world: World) -> None:
    asked, asking = await pair_of_hosts(world)
    with pytest.raises(zl.NotFoundError, match="'nobody' is not a member"):
        await asking.rt.connections_of(MESH, "nobody")
    await asked.stop()
    await until(lambda: not asking.is_ready("asked"))
    with pytest.raises(zl.UnavailableError, match="not ready"):
        await asking.rt.connections_of(MESH, "asked")


async def test_what_nobody_serves_or_nobody_understands_is_answered_and_the_connection_stays(
    autojump_clock: object, world: World
) -> None:
    link = await linked(world, serves={CHANNEL: 1})
    heads = {
        1: (CONNECTIONS_CHANNEL, ASKED, NOTHING),
        2: (CONNECTIONS_CHANNEL, PayloadHead("newer", "application/msgpack"), NOTHING),
        3: ("zlink.newer", ASKED, NOTHING),
        4: (CONNECTIONS_CHANNEL, ASKED, b"\xc1"),
        5: (CONNECTIONS_CHANNEL, PayloadHead(ASKED.packet_name, "text/plain"), NOTHING),
    }
    for corr, (channel, head, payload) in heads.items():
        link.pair.app.send(ChannelRequest(corr, 5000, channel, head), payload)
    link.pair.app.send(ChannelSend("zlink.newer", ASKED), NOTHING)
    await until(lambda: len(link.pair.completion.commands(Reply)) == 5)
    results = {
        reply.corr: (reply.terminal_result, reply.failure_code) for reply in link.pair.completion.commands(Reply)
    }
    unknown = (TerminalResult.NOT_FOUND, FailureCode.HANDLER_NOT_FOUND)
    undecodable = (TerminalResult.PROTOCOL_ERROR, FailureCode.PAYLOAD_DECODE_FAILED)
    assert results == {
        1: (TerminalResult.OK, FailureCode.NONE),
        2: unknown,
        3: unknown,
        4: undecodable,
        5: undecodable,
    }
    assert link.n.is_ready("p")
    assert link.n.got == []


async def test_an_application_can_neither_register_nor_call_them(autojump_clock: object, world: World) -> None:
    mesh = zl.Host().mesh("m")
    for register in (mesh.serve_channel, mesh.use_channel):
        with pytest.raises(zl.ConfigurationError, match="belong to the framework"):
            register(CONNECTIONS_CHANNEL)
    _, asking = await pair_of_hosts(world)
    with pytest.raises(zl.NotFoundError, match="is not registered in this process"):
        await asking.rt.request_to_channel(CONNECTIONS_CHANNEL, zl.RawMessage("zlink.connectionsAsked", NOTHING))


@pytest.mark.contract("LV-168")
async def test_the_answer_is_bounded_and_says_what_it_leaves_out(autojump_clock: object, world: World) -> None:
    many = [f"tcp://127.0.0.1:{port}" for port in range(1, SNAPSHOT_PEER_LIMIT + 4)]
    asked = await world.host("asked", peers=many, serves={CHANNEL: 1})
    asking = await world.host("asking", peers=[asked.endpoint])
    await asking.ready("asked")
    answer = await asking.rt.connections_of(MESH, "asked")
    assert len(answer.connections) == SNAPSHOT_PEER_LIMIT
    assert answer.omitted == 4
