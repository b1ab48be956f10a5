"""Calls on a ClientServer channel: who is chosen, what is waited for, what limits a message (LV §12-§14, SA §H)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.contract.mesh.nodes import CHANNEL, CODEC, Echo, Echoed, Note, World, linked, refused
from tests.contract.mesh.services import client, client_puppet, listening, publish, server
from tests.puppet import until
from zlinkpy.link import FailureReason
from zlinkpy.mesh import ChannelRole
from zlinkpy.wire import (
    ChannelRequest,
    ChannelSend,
    Close,
    CloseReason,
    FlowState,
    Hello,
    PayloadHead,
    ReceiveFlow,
    Reply,
    RuntimeState,
    Update,
    encode,
)


@zl.message
class Large:
    data: bytes


@zl.message
class Give(zl.Request[Large]):
    size: int


async def send(rt: zl.Runtime) -> None:
    await rt.send_to_channel(CHANNEL, Note(1))


async def ask(rt: zl.Runtime) -> None:
    await rt.request_to_channel(CHANNEL, Echo(1), timeout=60.0)


each_call = pytest.mark.parametrize("call", [send, ask])
Call = Callable[[zl.Runtime], Awaitable[None]]


# -- no usable target


@each_call
@pytest.mark.contract("LV-135")
async def test_a_channel_whose_list_of_servers_is_empty_is_not_found(
    autojump_clock: object, world: World, call: Call
) -> None:
    c = await client(world, store=True)
    await trio.sleep(2)
    began = trio.current_time()
    with pytest.raises(zl.NotFoundError, match="no server of it is known"):
        await call(c.rt)
    assert trio.current_time() == began


@pytest.mark.contract("LV-135")
async def test_the_first_list_of_servers_is_waited_for(autojump_clock: object, world: World) -> None:
    p = await listening(world, "p")
    await publish(world, p)
    c = await client(world, store=True)
    await c.rt.send_to_channel(CHANNEL, Note(1))
    await until(lambda: p.pair.app.commands(ChannelSend))


@each_call
@pytest.mark.contract("LV-136", "LV-137")
@pytest.mark.parametrize("why", ["lost", "draining", "weight 0", "refused"])
async def test_known_servers_none_usable_is_unavailable_at_once(
    autojump_clock: object, world: World, call: Call, why: str
) -> None:
    link = await linked(world, "client", puppet={"weight": 0 if why == "weight 0" else 100, "channels": {}})
    if why == "draining":
        link.pair.update(runtime_state=RuntimeState.DRAINING)
    elif why in ("lost", "refused"):
        if why == "refused":
            assert world.network is not None
            world.network.refuse(link.p.endpoint)
        link.pair.hang_up()
    await trio.sleep(0.01)
    began = trio.current_time()
    with refused(zl.UnavailableError):
        await call(link.n.rt)
    assert trio.current_time() == began


@pytest.mark.contract("LV-136", "LV-137")
@pytest.mark.parametrize(("timeout", "waits"), [(60.0, 1.0), (0.3, 0.3), (None, 1.0)])
async def test_an_admission_under_way_is_waited_for_and_no_longer_than_allowed(
    autojump_clock: object, world: World, timeout: float | None, waits: float
) -> None:
    p = await listening(world, "p")
    p.admits = False
    c = await client(world, servers=[p.endpoint])
    began = trio.current_time()
    with refused(zl.UnavailableError):
        if timeout is None:
            await c.rt.send_to_channel(CHANNEL, Note(1))
        else:
            await c.echo(1, timeout=timeout)
    assert trio.current_time() - began == pytest.approx(waits, abs=0.001)
    assert c.channel.waiting_calls == 0
    assert c.rt.request_statistics.pending == 0


@pytest.mark.contract("LV-137")
async def test_a_call_goes_as_soon_as_the_admission_is_there_within_one_budget(
    autojump_clock: object, world: World
) -> None:
    assert world.network is not None
    world.network.delay("c", "puppet", 0.15)
    p = await listening(world, "p")
    ended: list[float] = []
    c = await client(world, servers=[p.endpoint])
    began = trio.current_time()

    async def call() -> None:
        with pytest.raises(zl.DeadlineExceededError):
            await c.echo(1, timeout=2.0)
        ended.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.sleep(0.1)
        assert c.channel.waiting_calls == 1
        await c.rt.send_to_channel(CHANNEL, Note(2))
        assert 0.3 <= trio.current_time() - began < 1.0
        await until(lambda: p.pair.app.commands(ChannelRequest))
        (request,) = p.pair.app.commands(ChannelRequest)
        assert 1000 < request.ms < 1700  # what is left of it
    assert ended == [pytest.approx(2.0, abs=0.001)]


@pytest.mark.contract("LV-137")
@pytest.mark.parametrize("how", ["cancelled", "shutdown", "refused", "draining"])
async def test_waiting_for_an_admission_ends_with_what_ends_it(autojump_clock: object, world: World, how: str) -> None:
    state = RuntimeState.DRAINING if how == "draining" else RuntimeState.SERVING
    p = await listening(world, "p", state=state)
    p.admits = False
    c = await client(world, servers=[p.endpoint])
    ended: list[Any] = []
    scope = trio.CancelScope()
    began = trio.current_time()

    async def call() -> None:
        with scope:
            try:
                await c.echo(1)
            except zl.ZlinkError as error:
                ended.append((type(error), round(trio.current_time() - began, 2)))
        if scope.cancelled_caught:
            ended.append("cancelled")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.sleep(0.5)
        if how == "cancelled":
            scope.cancel()
        elif how == "shutdown":
            await c.rt.shutdown()
        elif how == "refused":
            p.lanes[0].close()
        else:
            p.admits = True
            p.record(p.lanes[0], p.lanes[0].records[0][1])
    expected: dict[str, Any] = {
        "cancelled": "cancelled",
        "shutdown": (zl.ShuttingDownError, 0.5),
        "refused": (zl.UnavailableError, 0.5),
        "draining": (zl.UnavailableError, 0.5),
    }
    assert ended == [expected[how]]
    assert c.channel.waiting_calls == 0
    assert c.rt.request_statistics.started == 0
    assert not [each for lane in p.lanes for each in lane.commands(ChannelRequest)]


async def test_a_call_without_the_client_role_is_not_configured(autojump_clock: object, world: World) -> None:
    s = await server(world)
    for call in (send, ask):
        with pytest.raises(zl.NotConfiguredError, match="use_client_server"):
            await call(s.rt)
    with pytest.raises(zl.NotFoundError):
        await s.rt.send_to_channel("other", Note(1))


# -- who is chosen


async def test_servers_are_chosen_by_smooth_weight_and_a_new_weight_counts_at_once(
    autojump_clock: object, world: World
) -> None:
    a, b = await server(world, "a", weight=100), await server(world, "b", weight=300)
    c = await client(world, servers=[a.endpoint, b.endpoint])
    await until(lambda: c.targets == 2)
    assert [(await c.echo(n)).who for n in range(8)] == ["b", "a", "b", "b"] * 2
    b.rt.set_client_server_weight(CHANNEL, 0)
    await until(lambda: c.targets == 1)
    assert {(await c.echo(n)).who for n in range(4)} == {"a"}
    assert c.peer("b").channels == {CHANNEL: 0}
    assert c.is_ready("b")
    b.rt.set_client_server_weight(CHANNEL, 100)
    await until(lambda: c.targets == 2)
    assert sorted([(await c.echo(n)).who for n in range(2)]) == ["a", "b"]
    assert world.network is not None
    assert [line[1] for line in world.network.log].count("dial") == 2
    for wrong in (-1, 10_001, True, 1.5):
        with pytest.raises(ValueError, match="weight"):
            b.rt.set_client_server_weight(CHANNEL, wrong)  # type: ignore[arg-type]
    assert b.channel.weight == 100
    with pytest.raises(zl.NotFoundError):
        c.rt.set_client_server_weight(CHANNEL, 1)


async def test_a_weight_is_told_as_the_next_revision_and_an_equal_one_is_not(
    autojump_clock: object, world: World
) -> None:
    link = await linked(world, "server")
    for weight in (7, 7, 9):
        link.n.rt.set_client_server_weight(CHANNEL, weight)
    await trio.sleep(0.001)
    updates = [each.admission for each in link.pair.app.commands(Update)]
    before = link.pair.remote.descriptor_revision  # type: ignore[union-attr]
    assert [(each.weight, each.descriptor_revision) for each in updates[-2:]] == [(7, before + 1), (9, before + 2)]


async def test_the_own_server_is_reached_through_its_socket(autojump_clock: object, world: World) -> None:
    endpoint = "tcp://127.0.0.1:5777"
    s = await server(world, "s", uses=True, servers=[endpoint], listen=endpoint)
    await s.ready("s")
    assert s.channel.role is ChannelRole.CLIENT_AND_SERVER
    assert (s.targets, s.channel.ready_clients) == (1, 1)
    assert (await s.echo(3)).who == "s"
    assert world.network is not None
    assert [line[1] for line in world.network.log].count("dial") == 1


async def test_two_endpoints_of_one_server_make_one_connection(autojump_clock: object, world: World) -> None:
    p = await listening(world, "p")
    one, other = p.endpoint, (await world.wire.listen("tcp://127.0.0.1:0", p.listener_sink)).endpoint
    c = await client(world, servers=[one, other])
    await c.ready("p")
    await trio.sleep(30)
    assert c.targets == 1
    assert len([lane for lane in p.lanes if lane.is_open]) == 1
    assert len(c.channel.peers) == 1
    pending: list[Any] = []

    async def call() -> None:
        pending.append(await c.echo(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await until(lambda: p.pairs[0].app.commands(ChannelRequest))
        assert p.pairs[0].app.is_open  # the first to be admitted is the one that stayed
        head = PayloadHead("Echoed", CODEC.content_type)
        corr = p.pairs[0].app.commands(ChannelRequest)[0].corr
        p.pairs[0].app.send(Reply(corr, 0, 0, None, head), CODEC.encode(Echoed(1, "p")))
    assert pending == [Echoed(1, "p")]
    assert world.network is not None
    world.network.refuse(one)
    p.pairs[0].hang_up()
    await until(lambda: c.targets == 1, 10)
    assert c.is_ready("p")


async def test_of_two_processes_under_one_id_the_one_that_answers_stays(
    autojump_clock: object, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    p = await listening(world, "p")
    q = await listening(world, "p", generation=8)
    q.admits = False
    c = await client(world, servers=[p.endpoint, q.endpoint])
    await c.ready("p")
    q.admits = True
    await trio.sleep(60)
    assert len(p.pairs) == 1
    assert p.pair.is_up
    assert c.targets == 1
    assert len(q.pairs) < 30  # tried again with the growing pauses of any failed dial
    assert "two nodes use one routing id" in caplog.text
    assert world.network is not None
    world.network.refuse(p.endpoint)
    p.pair.hang_up()
    await until(lambda: c.targets == 0)
    await until(lambda: c.targets == 1, 10)
    assert q.pair.app.is_open


# -- across a loss


@pytest.mark.contract("LV-138", "LV-139")
@pytest.mark.parametrize("kind", [send, ask])
@pytest.mark.parametrize("end", ["lost", "expired", "shutdown"])
async def test_a_message_the_transport_did_not_take_is_given_to_nobody_else(
    autojump_clock: object, world: World, kind: Call, end: str
) -> None:
    q = await listening(world, "q", weight=0)
    link = await linked(world, "client", also=[q.endpoint])
    await link.n.ready("q")
    link.pair.app.send(ReceiveFlow(FlowState.PAUSED))
    link.p.answers_probes = end != "expired"
    await trio.sleep(0.01)
    ended: list[Any] = []

    async def call() -> None:
        try:
            await kind(link.n.rt)
        except zl.ZlinkError as error:
            ended.append((type(error), error.cause))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await link.at(3)
        assert link.n.peer("p").waiting == 1
        q.pair.update(weight=100)
        if end == "lost":
            link.pair.hang_up()
        elif end == "shutdown":
            nursery.start_soon(link.n.rt.shutdown, 1.0)
    if end == "shutdown":
        assert ended == [(zl.ShuttingDownError, None)]
    else:
        assert ended == [(zl.UnavailableError, "RouteNotConnected")]
    assert not {ChannelSend, ChannelRequest} & {type(record.command) for _, record in q.pair.app.records}
    assert link.n.rt.request_statistics.pending == 0


@pytest.mark.contract("LV-139", "LV-140", "LV-143")
@pytest.mark.parametrize("end", ["lost", "expired", "closed"])
async def test_an_accepted_message_is_never_given_to_another_server(
    autojump_clock: object, world: World, end: str
) -> None:
    q = await listening(world, "q", weight=0)
    link = await linked(world, "client", also=[q.endpoint])
    await link.n.ready("q")
    link.p.hears = lambda lane, record: type(record.command) is Hello
    ended: list[Any] = []

    async def call() -> None:
        try:
            await ask(link.n.rt)
        except zl.ZlinkError as error:
            ended.append((type(error), error.cause))

    async with trio.open_nursery() as nursery:
        await send(link.n.rt)
        nursery.start_soon(call)
        await until(lambda: link.pair.app.commands(ChannelRequest))
        q.pair.update(weight=100)
        if end == "lost":
            link.pair.hang_up()
        elif end == "closed":
            link.pair.say_goodbye(Close(CloseReason.ORDERLY))
        else:
            link.p.answers_probes = False
    assert ended == [(zl.UnavailableError, "RouteNotConnected")]
    await trio.sleep(60)
    assert not {ChannelSend, ChannelRequest} & {type(record.command) for _, record in q.pair.app.records}
    statistics = link.n.rt.request_statistics
    assert (statistics.pending, statistics.route_failed, statistics.started) == (0, 1, 1)


@pytest.mark.contract("SA-236")
async def test_a_reply_behind_what_is_not_read_ends_its_request_at_the_deadline_once(
    autojump_clock: object, world: World
) -> None:
    link = await linked(world, "client")
    link.p.hears = lambda lane, record: type(record.command) is ChannelRequest
    for _ in range(link.n.rt.status.permits_maximum):
        assert link.n.rt._core.permits.try_take()
    ended: list[Any] = []

    async def call(timeout: float) -> None:
        try:
            ended.append(await link.n.echo(1, timeout=timeout))
        except zl.ZlinkError as error:
            ended.append(type(error))

    (peer_link,) = next(iter(link.n.rt._core.holders)).links
    (connection,) = peer_link.lanes.values()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, 3.0)
        await until(lambda: link.pair.app.commands(ChannelRequest))
        (first,) = link.pair.app.commands(ChannelRequest)
        connection.pause()  # what lies before it on the one connection is not taken in
        link.answer(first.corr)
        await trio.sleep(4)
        assert ended == [zl.DeadlineExceededError]
        connection.resume()
        await until(lambda: link.n.rt.request_statistics.late_replies == 1)
        # A reply itself needs no permit.
        nursery.start_soon(call, 3.0)
        await until(lambda: len(link.pair.app.commands(ChannelRequest)) == 2)
        link.answer(link.pair.app.commands(ChannelRequest)[1].corr)
    assert ended == [zl.DeadlineExceededError, Echoed(1, "p")]
    assert link.n.is_ready("p")


# -- limits


async def test_a_message_above_the_smaller_limit_is_refused_before_it_is_sent(
    autojump_clock: object, world: World
) -> None:
    for own, theirs, whose in ((4096, 2048, "of server p"), (2048, 4096, "of this side")):
        p = await listening(world, "p", limit=theirs)
        c = await client(world, servers=[p.endpoint], limit=own)
        await c.ready("p")
        big = zl.RawMessage("Note", b"x" * 2048)
        for call in (c.rt.send_to_channel, c.rt.request_to_channel):
            with pytest.raises(zl.InvalidOperationError, match=f"2048.*max_message_bytes {whose}"):
                await call(CHANNEL, big)
        await trio.sleep(0.1)
        assert [type(record.command) for _, record in p.pair.app.records if type(record.command) is ChannelSend] == []
        size = 2048 - len(p_head("Note"))
        await c.rt.send_to_channel(CHANNEL, zl.RawMessage("Note", b"x" * size))
        await until(lambda p=p: p.pair.app.commands(ChannelSend))
        with pytest.raises(zl.InvalidOperationError):
            await c.rt.send_to_channel(CHANNEL, zl.RawMessage("Note", b"x" * (size + 1)))
        assert c.is_ready("p")
        assert c.rt.request_statistics.pending == 0
        await c.stop()


def p_head(packet: str) -> bytes:
    """Frame 0 of a one-way message on the channel."""
    return encode(ChannelSend(CHANNEL, PayloadHead(packet, CODEC.content_type)), parts=[b""])[0]


async def test_a_reply_its_client_does_not_take_is_an_error_and_nothing_else(
    autojump_clock: object, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    p = client_puppet(world, limit=2048)
    host, _ = world.bare("s", None)
    channel = host.serve_client_server(CHANNEL)

    @channel.on_request
    def give(message: Give) -> Large:
        return Large(b"x" * message.size)

    async with host.run() as rt:
        pair = await p.connect(rt.channel_endpoint(CHANNEL))
        for corr, size in ((1, 4000), (2, 10)):
            head = PayloadHead("Give", CODEC.content_type)
            pair.app.send(ChannelRequest(corr, 5000, CHANNEL, head), CODEC.encode(Give(size)))
        await until(lambda: len(pair.app.commands(Reply)) == 2)
        replies = {each.corr: (each.terminal_result, each.failure_code) for each in pair.app.commands(Reply)}
        assert replies == {1: (105, 17), 2: (0, 0)}
        assert pair.is_up
        assert "the reply takes" in caplog.text
        assert "at most 2048" in caplog.text


@pytest.mark.contract("LV-178")
async def test_a_record_too_large_in_sum_is_a_protocol_error(autojump_clock: object, world: World) -> None:
    s = await server(world, limit=4096)
    q = await client_puppet(world, "q").connect(s.endpoint)
    pair = await client_puppet(world).connect(s.endpoint)
    head = PayloadHead("Note", CODEC.content_type, parts=3)
    pair.app.send(ChannelSend(CHANNEL, head), *[b"x" * 2000] * 3)
    await until(lambda: pair.is_gone)
    assert pair.farewell is not None
    assert pair.farewell.reason is CloseReason.PROTOCOL_ERROR
    assert s.failure("p").reason is FailureReason.PROTOCOL_ERROR  # type: ignore[union-attr]
    assert s.got == []
    assert q.is_up
