"""Node direct and channel calls: who gets a message, and which error says that nobody does (SA §H)."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH, Answer, Ask, Lan, Note
from tests.location_hosts import Gate
from tests.puppet import PuppetPair, until
from zlinkpy.entropy import SeededEntropy
from zlinkpy.messages import Codecs, RawMessage
from zlinkpy.wire import ChannelRequest, ChannelSend, FlowState, NodeSend, ObjectRole, ReceiveFlow, RuntimeState

codec = Codecs().default
quiet = trio.testing.wait_all_tasks_blocked


@pytest.mark.contract("SA-120", "SA-253")
async def test_a_send_says_nothing_about_the_far_end(
    autojump_clock: object, lan: Lan, caplog: pytest.LogCaptureFixture
) -> None:
    """It completes with None before anybody could have handled it; the handler's failure is logged over there only."""

    def add(mesh: zl.Mesh) -> None:
        @mesh.on_channel_send(CHANNEL)
        async def fails(message: Note) -> None:
            raise RuntimeError("late failure")

    async with lan.node("a", port=1, weight=100, add=add) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        lan.network.delay("a", "z", 3.0)
        began = trio.current_time()
        result = await z.rt.send_to_channel(CHANNEL, Note(1))  # type: ignore[func-returns-value]
        assert result is None
        assert trio.current_time() == began
        with caplog.at_level(logging.ERROR, "zlinkpy.dispatch"):
            await trio.sleep(5)
        assert [record.message for record in caplog.records if "fails failed" in record.message]
        assert a.telemetry.total("zlink.mesh_node.handler.failures") == 1
        # Nothing came back and nothing changed: the next send goes the same way.
        await z.rt.send_to_channel(CHANNEL, Note(2))
        assert z.is_ready("a")
        assert z.rt.request_statistics.late_replies == 0


@pytest.mark.contract("SA-121")
async def test_a_message_is_encoded_before_the_call_waits(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        release = a.use_up_permits()
        await until(lambda: z.snapshot("a").paused)
        changing = Note(1, items=[1, 2, 3])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(z.rt.send_to_channel, CHANNEL, changing)
            await quiet()
            changing.items.append(4)
            release.all()
        await until(lambda: a.numbers == [1])
        assert a.got[0][0].items == [1, 2, 3]


@pytest.mark.contract("SA-121")
async def test_a_local_message_is_no_shared_object(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n", weight=100) as n:
        changing = Note(1, items=[1])
        await n.rt.send_to_channel(CHANNEL, changing)
        changing.items.append(2)
        await until(lambda: n.numbers == [1])
        assert n.got[0][0].items == [1]


@pytest.mark.contract("SA-122", "SA-275")
async def test_node_direct_reaches_exactly_that_node(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1) as a, lan.node("b", port=2) as b, lan.node("z", peers=[1, 2]) as z:
        await z.ready("a", "b")
        for number, rid in enumerate("abba"):
            await z.rt.send_to_node(MESH, rid, Note(number))
            assert (await z.rt.request_to_node(MESH, rid, Ask(10 + number))).who == rid
        assert a.numbers == [0, 10, 3, 13]
        assert b.numbers == [1, 11, 2, 12]
        for _, context in (*a.got, *b.got):
            assert (context.mesh_name, context.source_rid, context.channel_name) == (MESH, "z", None)


@pytest.mark.contract("SA-122")
async def test_node_direct_never_takes_another_node(autojump_clock: object, lan: Lan) -> None:
    """No member: NotFound. A member without a ready connection: Unavailable at once. Draining and weight 0: its own."""
    async with lan.node("b", port=2) as b, lan.node("z", peers=[2]) as z:
        async with lan.node("a", port=1, peers=[2]) as a:
            await b.ready("a", "z")
            for rid in ("nobody", "A", ""):
                with pytest.raises(zl.NotFoundError):
                    await b.rt.send_to_node(MESH, rid, Note(1))
            with pytest.raises(zl.NotFoundError):
                await b.rt.send_to_node("other", "a", Note(1))
            # A draining member is still that member.
            await a.rt.send_to_node(MESH, "a", Note(5, hold=2.0))
            await until(lambda: a.numbers == [5])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(a.rt.shutdown)
                await until(lambda: b.snapshot("a").runtime_state == "draining")
                await b.rt.send_to_node(MESH, "a", Note(6))
                await until(lambda: a.numbers == [5, 6])
        began = trio.current_time()
        for call in (b.rt.send_to_node(MESH, "a", Note(7)), b.rt.request_to_node(MESH, "a", Ask(7))):
            with pytest.raises(zl.ZlinkError) as caught:
                await call
            assert caught.type in (zl.NotFoundError, zl.UnavailableError)
        assert trio.current_time() == began
        assert z.numbers == []
        assert b.numbers == []


@pytest.mark.contract("SA-122")
async def test_a_known_member_that_is_not_connected_is_unavailable_at_once(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("b", port=2, peers=[1]) as b:
        async with lan.node("a", port=1) as a:
            await b.ready("a")
            assert a.is_ready("b")
        began = trio.current_time()
        for call in (b.rt.send_to_node(MESH, "a", Note(7)), b.rt.request_to_node(MESH, "a", Ask(7))):
            with pytest.raises(zl.UnavailableError, match="not ready") as caught:
                await call
            assert caught.value.cause == "RouteNotConnected"
        assert trio.current_time() == began


@pytest.mark.contract("SA-123")
async def test_an_object_client_takes_no_node_direct_message(autojump_clock: object, lan: Lan) -> None:
    puppet = lan.puppet(role=ObjectRole.CLIENT, channels={CHANNEL: 100})
    async with lan.node("n") as n:
        pair = await puppet.connect(n.rt.endpoint(MESH))
        await n.target()
        for call in (n.rt.send_to_node(MESH, "puppet", Note(7)), n.rt.request_to_node(MESH, "puppet", Ask(7))):
            with pytest.raises(zl.NotFoundError, match="object client"):
                await call
        await n.rt.send_to_channel(CHANNEL, Note(8))
        await until(lambda: pair.app.commands(ChannelSend))
        assert not pair.app.commands(NodeSend)


@pytest.mark.contract("SA-124")
async def test_a_channel_message_reaches_one_ready_server_once(autojump_clock: object, lan: Lan) -> None:
    async with (
        lan.node("a", port=1, weight=100) as a,
        lan.node("b", port=2, weight=100) as b,
        lan.node("c", port=3, uses=True) as c,
        lan.node("z", peers=[1, 2, 3]) as z,
    ):
        await z.ready("a", "b", "c")
        for number in range(100):
            await z.rt.send_to_channel(CHANNEL, Note(number))
        await until(lambda: len(a.got) + len(b.got) == 100)
        await trio.sleep(1)
        assert sorted(a.numbers + b.numbers) == list(range(100))
        assert c.numbers == []
        assert all(context.channel_name == CHANNEL and context.source_rid is None for _, context in a.got + b.got)


@pytest.mark.contract("SA-125")
async def test_a_channel_that_is_not_registered_here_has_no_relay(autojump_clock: object, lan: Lan) -> None:
    """A node of the same mesh serves it, and so does another mesh of another node; this process did not register it."""
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1], uses=False) as z:
        await z.ready("a")
        for call in (z.rt.send_to_channel(CHANNEL, Note()), z.rt.request_to_channel(CHANNEL, Ask())):
            with pytest.raises(zl.NotFoundError, match="not registered in this process"):
                await call
        await trio.sleep(1)
        assert a.numbers == []


@pytest.mark.contract("SA-126")
@pytest.mark.parametrize("asks", [False, True], ids=["send", "request"])
async def test_each_lack_of_a_target_has_its_kind(autojump_clock: object, lan: Lan, asks: bool) -> None:
    async def fails(node: zl.Runtime, kind: type[zl.ZlinkError]) -> None:
        began = trio.current_time()
        with pytest.raises(kind):
            await (node.request_to_channel(CHANNEL, Ask()) if asks else node.send_to_channel(CHANNEL, Note()))
        assert trio.current_time() == began

    async with lan.node("z", port=9) as z:
        await fails(z.rt, zl.NotFoundError)
        bystander = lan.puppet("bystander")
        await bystander.connect(z.rt.endpoint(MESH))
        await z.ready("bystander")
        await fails(z.rt, zl.NotFoundError)
        puppet = lan.puppet("server", channels={CHANNEL: 0})
        pair = await puppet.connect(z.rt.endpoint(MESH))
        await z.ready("server")
        await fails(z.rt, zl.UnavailableError)  # weight 0
        pair.update(channels=((CHANNEL, 100),), runtime_state=RuntimeState.DRAINING)
        await until(lambda: z.snapshot("server").runtime_state == "draining")
        await fails(z.rt, zl.UnavailableError)
        pair.update(runtime_state=RuntimeState.SERVING)
        await z.target()
        pair.hang_up()
        await z.target(0)
        await fails(z.rt, zl.UnavailableError)  # known, not connected


async def servers(lan: Lan, z: zl.Runtime, **weights: int) -> dict[str, PuppetPair]:
    """Puppets that serve the channel, connected to `z`."""
    pairs: dict[str, PuppetPair] = {}
    for rid, weight in weights.items():
        pairs[rid] = await lan.puppet(rid, channels={CHANNEL: weight}).connect(z.endpoint(MESH))
    return pairs


async def order(pairs: dict[str, PuppetPair], rt: zl.Runtime, count: int) -> str:
    """Who gets the next `count` sends."""
    got = ""
    for _ in range(count):
        before = {rid: len(pair.app.commands(ChannelSend)) for rid, pair in pairs.items()}
        await rt.send_to_channel(CHANNEL, Note())
        await quiet()
        took = [rid for rid, pair in pairs.items() if len(pair.app.commands(ChannelSend)) > before[rid]]
        assert len(took) == 1
        got += took[0]
    return got


@pytest.mark.contract("SA-127")
async def test_selection_is_smooth_by_weight(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("z") as z:
        pairs = await servers(lan, z.rt, A=100, B=300)
        await z.target(2)
        assert await order(pairs, z.rt, 4) == "BABB"
        more = await order(pairs, z.rt, 80)
        assert (more.count("A"), more.count("B")) == (20, 60)


@pytest.mark.contract("SA-127")
async def test_equal_weights_begin_with_the_smaller_id(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("z") as z:
        pairs = await servers(lan, z.rt, B=5, A=5, C=5)
        await z.target(3)
        assert await order(pairs, z.rt, 6) == "ABCABC"


@pytest.mark.contract("SA-128")
async def test_the_cycle_survives_changes_of_the_list(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("z") as z:
        pairs = await servers(lan, z.rt, A=100, B=300)
        await z.target(2)
        # accumulators after one call: A 100, B -100
        assert await order(pairs, z.rt, 1) == "B"
        pairs |= await servers(lan, z.rt, C=100)
        await z.target(3)
        # A 200, B 200, C 100 -> A; a fresh cycle would begin with B
        assert await order(pairs, z.rt, 1) == "A"
        # A -300+100, B 200+300, C 100+100 -> B
        assert await order(pairs, z.rt, 1) == "B"
        pairs["C"].hang_up()
        del pairs["C"]
        await z.target(2)
        # A -200+100, B 0+300 -> B; then A -100+100, B -100+300 -> B; then A 0+100, B -200+300 -> A
        assert await order(pairs, z.rt, 3) == "BBA"
        pairs["A"].update(channels=((CHANNEL, 900),))
        await until(lambda: z.snapshot("A").channels == {CHANNEL: 900})
        # A -300+900, B 100+300 -> A, with the accumulators of before
        assert await order(pairs, z.rt, 1) == "A"


@pytest.mark.contract("SA-129")
async def test_a_node_alone_serves_its_own_channel_without_a_socket(autojump_clock: object, lan: Lan) -> None:
    """The same context, metadata, errors and order as from outside."""

    def add(mesh: zl.Mesh) -> None:
        @mesh.on_channel_request(CHANNEL)
        async def ask(message: Ask, context: zl.MessageContext) -> Answer:
            seen.append((message.n, context))
            if message.n == 13:
                raise zl.RejectedError("not that one")
            if message.n == 14:
                raise RuntimeError("broken")
            return Answer(message.n, context.metadata.get("who", "?"))

    seen: list[tuple[int, zl.MessageContext]] = []

    async def conversation(rt: zl.Runtime) -> list[object]:
        ends: list[object] = []
        for n in (1, 13, 14):
            try:
                ends.append(await rt.request_to_channel(CHANNEL, Ask(n), metadata={"who": "me"}))
            except zl.ZlinkError as error:
                ends.append(type(error))
        try:
            await rt.request_to_channel(CHANNEL, Unhandled(1))
        except zl.ZlinkError as error:
            ends.append(type(error))
        return ends

    async with lan.node("n", port=1, weight=100, add=add) as n:
        inside = await conversation(n.rt)
        contexts = [context for _, context in seen]
        assert not [entry for entry in lan.network.log if entry[1] == "dial"]
        n.assert_nothing_held()
        seen.clear()
        async with lan.node("z", peers=[1]) as z:
            await z.target()
            outside = await conversation(z.rt)
    assert inside == outside == [Answer(1, "me"), zl.RejectedError, zl.InternalFailureError, zl.NotFoundError]
    for local, (_, remote) in zip(contexts, seen, strict=True):
        assert local.correlation_id is not None
        assert remote.correlation_id is not None
        assert local.metadata == remote.metadata == {"who": "me"}
        for name in ("mesh_name", "channel_name", "packet_name", "content_type", "source_rid", "topic"):
            assert getattr(local, name) == getattr(remote, name)


@zl.message
class Unhandled(zl.Request[Answer]):
    n: int


@pytest.mark.contract("SA-129")
async def test_the_own_node_is_one_candidate_by_its_weight(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("b", weight=300) as b:
        pairs = await servers(lan, b.rt, a=100)
        await b.target(2)
        before = len(b.numbers)
        for number in range(40):
            await b.rt.send_to_channel(CHANNEL, Note(number))
        await until(lambda: len(b.numbers) - before == 30)
        assert b.numbers[:3] == [0, 2, 3]
        assert len(pairs["a"].app.commands(ChannelSend)) == 10
        b.rt.set_channel_weight(MESH, CHANNEL, 0)
        await b.rt.send_to_channel(CHANNEL, Note(99))
        await quiet()
        assert 99 not in b.numbers


@pytest.mark.contract("SA-129")
async def test_local_calls_use_the_same_queue_and_permits(autojump_clock: object, lan: Lan) -> None:
    options = zl.JobQueueOptions(max_queued_application_jobs=2)
    async with lan.node("n", weight=100, job_queue=options) as n:
        release = n.use_up_permits()
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(n.rt.send_to_channel, CHANNEL, Note(number))
                await quiet()
            assert (n.numbers, n.rt.status.queued_jobs) == ([], 3)
            release()
        await until(lambda: n.numbers == [0, 1, 2])
        assert n.core.permits.statistics().peak == 2


@pytest.mark.contract("SA-130", "SA-208")
@pytest.mark.parametrize("how", ["pause", "loss before", "loss after"])
async def test_a_chosen_target_is_never_exchanged(autojump_clock: object, lan: Lan, how: str) -> None:
    """A is chosen; then it is paused or lost. B, ready all the time, gets neither the send nor the request."""
    async with lan.node("z") as z:
        pairs = await servers(lan, z.rt, A=100, B=100)
        await z.target(2)
        pair = pairs["A"]
        ends: list[object] = []
        if how != "loss after":
            pair.app.send(ReceiveFlow(FlowState.PAUSED))
            await until(lambda: z.snapshot("A").paused)

        async def ask() -> None:
            try:
                ends.append(await z.rt.request_to_channel(CHANNEL, Ask(7), timeout=20))
            except zl.ZlinkError as error:
                ends.append((type(error), error.cause))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)  # A's turn
            await quiet()
            with trio.fail_after(1):
                await z.rt.send_to_channel(CHANNEL, Note(1))  # B's turn
            await trio.sleep(5)
            assert ends == []
            if how != "pause":
                pair.hang_up()
        b = pairs["B"].app
        assert len(b.commands(ChannelSend)) == 1
        assert not b.commands(ChannelRequest)
        if how == "pause":
            assert ends == [(zl.DeadlineExceededError, None)]
        else:
            assert ends == [(zl.UnavailableError, "RouteNotConnected")]
        assert len(pair.app.commands(ChannelRequest)) == (1 if how == "loss after" else 0)
        z.assert_nothing_held()


@pytest.mark.contract("SA-145", "SA-283")
@pytest.mark.parametrize("asks", [False, True], ids=["send", "request"])
@pytest.mark.parametrize("what", ["no handler", "undecodable"])
async def test_what_cannot_be_handled(
    autojump_clock: object, lan: Lan, caplog: pytest.LogCaptureFixture, asks: bool, what: str
) -> None:
    packet = ("Ask" if asks else "Note") if what == "undecodable" else "Nobody"
    raw = RawMessage(packet, b"\xc1")
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        with caplog.at_level(logging.INFO, "zlinkpy.dispatch"):
            if asks:
                kind = zl.NotFoundError if what == "no handler" else zl.ProtocolError
                with pytest.raises(kind):
                    await z.rt.request_to_channel(CHANNEL, raw)
            else:
                await z.rt.send_to_channel(CHANNEL, raw)
                await trio.sleep(1)
        (record,) = (each for each in caplog.records if each.name == "zlinkpy.dispatch")
        assert record.levelno == (logging.INFO if asks else logging.WARNING)
        assert record.__dict__["packet"] == packet
        assert record.__dict__["mesh"] == MESH
        assert record.__dict__["surface"] == "channel"
        assert record.__dict__["reason"] == ("no_handler" if what == "no handler" else "decode_error")
        assert a.numbers == []
        assert z.is_ready("a")
        # The next message is handled as ever.
        assert (await z.rt.request_to_channel(CHANNEL, Ask(2))).n == 2


@pytest.mark.contract("LO-148")
async def test_a_routing_id_that_is_taken_ends_the_start_and_leaves_its_owner_alone(
    autojump_clock: object, lan: Lan
) -> None:
    async with lan.node("a", weight=100, location_store=Gate(lan.store), entropy=SeededEntropy("twin")) as a:
        before = {key: await lan.store.read(key) for key in await lan.rows()}
        host, _ = lan.host("twin", location_store=Gate(lan.store), entropy=Twin("twin"))
        host.mesh(MESH, rid_prefix="a")
        with pytest.raises(zl.ConfigurationError, match=a.rt.node_rid(MESH)):
            async with host.run():
                raise AssertionError("it started")
        after = {key: await lan.store.read(key) for key in await lan.rows()}
        assert len(before) == 2  # descriptor and lease
        assert {key: row.value for key, row in after.items()} == {key: row.value for key, row in before.items()}  # type: ignore[union-attr]


class Twin:
    """Issues the routing id that another host got first, and otherwise numbers of its own."""

    def __init__(self, seed: str) -> None:
        self._ids = [SeededEntropy(seed).uuid4()]
        own = SeededEntropy(seed + "'")
        self.generation = own.generation
        self.token = own.token
        self.uniform = own.uniform
        self._uuid4 = own.uuid4

    def uuid4(self) -> str:
        return self._ids.pop() if self._ids else self._uuid4()
