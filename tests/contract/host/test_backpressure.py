"""The Application Job Queue as whole hosts and their peers see it (SA §O)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH, Answer, Ask, HeldPermits, Lan, Node, Note
from tests.puppet import PuppetPair, until
from zlinkpy.mesh import PeerPhase
from zlinkpy.messages import Codecs
from zlinkpy.wire import (
    ChannelSend,
    FlowState,
    LivenessAck,
    LivenessProbe,
    NodeRequest,
    NodeSend,
    PayloadHead,
    ReceiveFlow,
    Reply,
    encode,
)

TEN = zl.JobQueueOptions(max_queued_application_jobs=10)
codec = Codecs().default
quiet = trio.testing.wait_all_tasks_blocked


def note(pair: PuppetPair, n: int) -> None:
    """Send a one-way message from a puppet, whatever it was told about the flow."""
    pair.app.send(NodeSend(PayloadHead("Note", codec.content_type)), codec.encode(Note(n)))


def flows(pair: PuppetPair) -> list[FlowState]:
    return [flow.state for flow in pair.app.commands(ReceiveFlow)]


@pytest.mark.contract("SA-229", "SA-281")
async def test_the_maximum_is_readable_and_fixed(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n", job_queue=TEN) as n:
        assert n.rt.status.permits_maximum == 10
    async with lan.node("n") as n:
        assert n.rt.status.permits_maximum % 128 == 0
        assert n.rt.status.permits_maximum > 0


@pytest.mark.contract("SA-230", "SA-231")
@pytest.mark.parametrize(
    "options",
    [
        zl.JobQueueOptions(max_queued_application_jobs=0),
        zl.JobQueueOptions(max_queued_application_jobs=2**31),
        zl.JobQueueOptions(pause_percent=0),
        zl.JobQueueOptions(pause_percent=60, resume_percent=60),
    ],
)
async def test_a_queue_that_cannot_work_stops_the_start(
    autojump_clock: object, lan: Lan, options: zl.JobQueueOptions
) -> None:
    with pytest.raises(zl.ConfigurationError, match="job_queue"):
        async with lan.node("n", job_queue=options):
            raise AssertionError("it started")
    assert not [entry for entry in lan.network.log if entry[1] == "listen"]


@pytest.mark.contract("SA-232", "SA-244")
async def test_peers_are_told_each_change_of_pressure_once(autojump_clock: object, lan: Lan) -> None:
    """Paused at 8 of 10, running at 6, nothing in between; and nothing but the flow state changes with it."""
    async with lan.node("n", job_queue=TEN) as n:
        puppet = lan.puppet()
        pair = await puppet.connect(n.rt.endpoint(MESH))
        await until(lambda: flows(pair) == [FlowState.RUNNING])
        told: list[tuple[int, list[FlowState], zl.Pressure]] = []
        held: list[HeldPermits] = []
        for step in (*(1 for _ in range(9)), *(-1 for _ in range(3)), 1, 1, -1, -1, *(-1 for _ in range(6))):
            if step == 1:
                held.append(n.use_up_permits(leave=9 - len(held)))
            else:
                held.pop()()
            await quiet()
            told.append((n.rt.status.permits_in_use, flows(pair)[1:], n.rt.status.pressure))
            assert n.rt.status.is_ready
            assert n.rt.mesh_status(MESH).is_ready
            assert n.is_ready("puppet")
        paused, running = FlowState.PAUSED, FlowState.RUNNING
        for in_use, heard, pressure in told[:7]:
            assert (in_use <= 7, heard, pressure) == (True, [], zl.Pressure.RUNNING)
        assert told[7] == (8, [paused], zl.Pressure.PAUSED)
        assert told[8] == (9, [paused], zl.Pressure.PAUSED)
        assert told[10] == (7, [paused], zl.Pressure.PAUSED)
        assert told[11] == (6, [paused, running], zl.Pressure.RUNNING)
        assert told[12] == (7, [paused, running], zl.Pressure.RUNNING)
        assert told[13] == (8, [paused, running, paused], zl.Pressure.PAUSED)
        assert told[14] == (7, [paused, running, paused], zl.Pressure.PAUSED)
        assert told[15] == (6, [paused, running, paused, running], zl.Pressure.RUNNING)
        assert told[-1] == (0, [paused, running, paused, running], zl.Pressure.RUNNING)


@pytest.mark.contract("SA-244")
async def test_a_new_connection_learns_the_pressure_before_it_is_a_route(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n", port=1, weight=100, job_queue=TEN) as n:
        release = n.use_up_permits()
        async with lan.node("z", peers=[1]) as z:
            await z.ready("n")
            assert z.snapshot("n").paused
            assert n.rt.status.is_ready
            with trio.move_on_after(30) as patience:
                await z.rt.send_to_channel(CHANNEL, Note(1))
            assert patience.cancelled_caught
            # Held back for twice the peer deadline, and nobody's verdict changed.
            assert z.is_ready("n")
            assert n.is_ready("z")
            release.all()
            await z.rt.send_to_channel(CHANNEL, Note(2))
            await until(lambda: n.numbers == [2])


@pytest.mark.contract("SA-233")
async def test_a_running_handler_holds_no_permit(autojump_clock: object, lan: Lan) -> None:
    seen: list[int] = []
    async with lan.node("n", weight=100, job_queue=zl.JobQueueOptions(max_queued_application_jobs=2)) as n:

        def look(mesh: zl.Mesh) -> None:
            @mesh.on_node_send
            async def first(message: Note) -> None:
                seen.append(m.rt.status.permits_in_use)

        async with lan.node("m", port=1, add=look, job_queue=TEN) as m:
            await m.rt.send_to_node(MESH, "m", Note())
            await until(lambda: seen == [0])
        for number in range(20):
            await n.rt.send_to_channel(CHANNEL, Note(number, hold=10.0))
        await quiet()
        status = n.rt.status
        assert n.numbers == list(range(20))
        assert (status.running_jobs, status.permits_in_use, status.queued_jobs) == (20, 0, 0)


@pytest.mark.contract("SA-234")
async def test_without_a_permit_a_dialled_connection_is_not_read(autojump_clock: object, lan: Lan) -> None:
    puppet = lan.puppet()
    await puppet.listen()
    async with lan.node("n", peers=[puppet.endpoint], job_queue=TEN) as n:
        await n.ready("puppet")
        release = n.use_up_permits()
        sent = 0
        frames = encode(NodeSend(PayloadHead("Note", codec.content_type)), parts=[codec.encode(Note(1))])
        while puppet.pair.app.connection.send(frames) and sent < 5000:
            sent += 1
            await trio.sleep(0.001)
        # The peer meets transport backpressure, long before it could fill this host.
        assert sent < 5000
        assert 1 <= n.rt.status.queued_jobs <= 64
        assert n.numbers == []
        release.all()
        await until(lambda: len(n.numbers) == sent)
        n.assert_nothing_held()


@pytest.mark.contract("SA-234")
async def test_without_a_permit_a_listener_parks_and_refuses_nothing(autojump_clock: object, lan: Lan) -> None:
    """Decision 0002: read on, take nothing on; probes are answered meanwhile."""
    async with lan.node("n", job_queue=TEN) as n:
        puppet = lan.puppet()
        pair = await puppet.connect(n.rt.endpoint(MESH))
        release = n.use_up_permits()
        for number in range(500):
            note(pair, number)
        pair.app.send(LivenessProbe(77))
        await trio.sleep(60)
        assert n.numbers == []
        assert n.rt.status.queued_jobs == 500
        assert [ack.probe_id for ack in pair.app.commands(LivenessAck)] == [77]
        assert n.is_ready("puppet")
        release()
        await until(lambda: len(n.numbers) == 500)
        assert n.numbers == list(range(500))
        assert n.core.permits.statistics().peak == 10


@pytest.mark.contract("SA-235")
async def test_replies_come_in_while_every_permit_is_used(autojump_clock: object, lan: Lan) -> None:
    """For both kinds of connection: dialled by this host, and accepted by it."""
    async with lan.node("n", port=1, weight=100) as n, lan.node("a", port=2, peers=[1], job_queue=TEN) as a:
        async with lan.node("z", peers=[2], weight=100) as z:
            await a.ready("n", "z")
            a.use_up_permits()
            peak = a.core.permits.statistics().refused
            for rid in ("n", "z"):
                assert await a.rt.request_to_node(MESH, rid, Ask(1), timeout=1) == Answer(1, rid)
            assert a.core.permits.statistics().refused == peak
            assert a.rt.status.permits_in_use == 10
            assert n.numbers == z.numbers == [1]


@pytest.mark.contract("SA-237")
@pytest.mark.parametrize("busy_first", [True, False])
async def test_a_permit_goes_to_the_source_that_waited_longest(
    autojump_clock: object, lan: Lan, busy_first: bool
) -> None:
    """One peer has filled its line; two others and a local caller each get the next turn all the same."""
    async with lan.node("n", weight=100, job_queue=TEN) as n:
        pairs = [await lan.puppet(name).connect(n.rt.endpoint(MESH)) for name in ("busy", "calm", "late")]
        release = n.use_up_permits()
        lines = [(pairs[0], [0, 1, 2, 3, 4]), (pairs[1], [10, 11]), (pairs[2], [20])]
        for pair, numbers in lines if busy_first else reversed(lines):
            for number in numbers:
                note(pair, number)
            await quiet()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(n.rt.send_to_node, MESH, "n", Note(30))
            await quiet()
            assert n.rt.status.queued_jobs == 9
            release()
            await until(lambda: len(n.numbers) == 9)
        first = [0, 10, 20, 30] if busy_first else [20, 10, 0, 30]
        second = [1, 11] if busy_first else [11, 1]
        assert n.numbers == [*first, *second, 2, 3, 4]


@pytest.mark.contract("SA-238")
async def test_two_floods_take_turns_of_at_most_64(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n") as n:
        pairs = [await lan.puppet(name).connect(n.rt.endpoint(MESH)) for name in ("a", "b")]
        for index, pair in enumerate(pairs):
            for number in range(300):
                note(pair, index * 1000 + number)
        await until(lambda: len(n.numbers) == 600)
        sources = [number // 1000 for number in n.numbers]
        turns: list[list[int]] = []
        for source in sources:
            if turns and turns[-1][0] == source:
                turns[-1].append(source)
            else:
                turns.append([source])
        assert max(len(turn) for turn in turns) <= 64
        assert len(turns) >= 8
        for index in range(2):
            assert [number for number in n.numbers if number // 1000 == index] == [index * 1000 + i for i in range(300)]


@pytest.mark.contract("SA-239")
async def test_control_and_malformed_records_leave_no_permit_in_use(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n", job_queue=TEN) as n:
        puppet = lan.puppet()
        pair = await puppet.connect(n.rt.endpoint(MESH))
        for number in range(50):
            pair.app.send(LivenessProbe(number + 1))
            pair.app.send(ReceiveFlow(FlowState.RUNNING))
            pair.update()
        await quiet()
        assert len(pair.app.commands(LivenessAck)) == 50
        assert n.rt.status.permits_in_use == 0
        for number in range(3):
            # No handler for the packet, and a payload that is no Note: accepted, and dealt with.
            pair.app.send(NodeSend(PayloadHead("Unknown", codec.content_type)), b"\x80")
            pair.app.send(NodeSend(PayloadHead("Note", codec.content_type)), b"\xc1")
        await quiet()
        assert n.rt.status.permits_in_use == 0
        pair.app.send_raw([b"ZM\x01\x10\x00garbage"])
        await until(lambda: pair.is_gone)
        assert n.rt.status.permits_in_use == 0
        assert n.numbers == []


@pytest.mark.contract("SA-241")
@pytest.mark.parametrize("how", ["cancelled", "connection closes", "shutdown"])
async def test_waiting_for_a_permit_ends_without_a_trace(autojump_clock: object, lan: Lan, how: str) -> None:
    async with lan.node("n", weight=100, job_queue=TEN) as n:
        puppet = lan.puppet()
        pair = await puppet.connect(n.rt.endpoint(MESH))
        release = n.use_up_permits()
        for number in range(3):
            note(pair, number)
        ends: list[str] = []

        async def send(scope: trio.CancelScope, number: int) -> None:
            with scope:
                try:
                    await n.rt.send_to_channel(CHANNEL, Note(number))
                    ends.append("sent")
                except zl.ShuttingDownError:
                    ends.append("shutting down")
                return
            ends.append("cancelled")

        scopes = [trio.CancelScope() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for index, scope in enumerate(scopes):
                nursery.start_soon(send, scope, 100 + index)
            await quiet()
            assert n.rt.status.queued_jobs == 6
            if how == "cancelled":
                for scope in scopes[:2]:
                    scope.cancel()
                await quiet()
                assert n.rt.status.queued_jobs == 4
                release()
                scopes[2].cancel()
            elif how == "connection closes":
                pair.hang_up()
                await quiet()
            else:
                result = await n.rt.shutdown(1)
                assert result.outcome is zl.TerminationOutcome.FORCE_STOPPED
                assert len([label for label in result.left if "note" in label]) == 6
            release.all()
        await trio.sleep(1)
        n.assert_nothing_held()
        if how == "cancelled":
            # What a peer has sent is handled, what was cancelled is not.
            assert sorted(ends) in (["cancelled"] * 3, ["cancelled", "cancelled", "sent"])
            assert n.numbers[:3] == [0, 1, 2]
            assert len(n.numbers) == 3 + ends.count("sent")
        elif how == "connection closes":
            assert sorted(n.numbers) == [0, 1, 2, 100, 101, 102]
            assert ends == ["sent"] * 3
        else:
            assert ends == ["shutting down"] * 3
            assert n.numbers == []


@pytest.mark.contract("SA-241")
async def test_a_permit_given_to_a_caller_that_is_already_cancelled_comes_back(
    autojump_clock: object, lan: Lan
) -> None:
    """Cancelled and served before its task runs again: the permit is returned once, and the message is not sent."""
    async with lan.node("n", weight=100, job_queue=TEN) as n:
        held = n.use_up_permits()
        scope = trio.CancelScope()

        async def send() -> None:
            with scope:
                await n.rt.send_to_channel(CHANNEL, Note(1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await quiet()
            assert n.rt.status.queued_jobs == 1
            scope.cancel()
            held()
        assert scope.cancelled_caught
        assert n.rt.status.permits_in_use == 9
        held.all()
        await trio.sleep(1)
        assert n.numbers == []
        n.assert_nothing_held()


@pytest.mark.contract("SA-241")
async def test_a_clean_stop_leaves_no_permit_in_use(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n", port=1, weight=100, job_queue=TEN) as n, lan.node("z", peers=[1]) as z:
        await z.target()
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(z.rt.send_to_channel, CHANNEL, Note(number, hold=0.1))
        result = await n.rt.shutdown()
        assert result.outcome is zl.TerminationOutcome.STOPPED
        assert sorted(n.numbers) == list(range(200))
        n.assert_nothing_held()


@pytest.mark.contract("SA-242")
async def test_a_handler_reaches_its_own_host_while_the_queue_is_full(autojump_clock: object, lan: Lan) -> None:
    """Inside a turn a local call takes its permit beyond the maximum; outside it waits and can be cancelled."""
    nodes: list[Node] = []
    held: list[HeldPermits] = []
    got: list[int] = []

    def add(mesh: zl.Mesh) -> None:
        @mesh.on_node_request
        async def outer(message: Ask) -> Answer:
            n = nodes[0]
            held.append(n.use_up_permits())
            await n.rt.send_to_node(MESH, "n", Note(message.n))
            return Answer(n.rt.status.permits_in_use, "outer")

        @mesh.on_node_send
        async def inner(message: Note) -> None:
            got.append(message.n)

    async with lan.node("n", add=add, job_queue=TEN) as n:
        nodes.append(n)
        with trio.fail_after(1):
            answer = await n.rt.request_to_node(MESH, "n", Ask(5))
        assert answer.n == 11
        await until(lambda: got == [5])
        assert n.rt.status.permits_in_use == 10
        with trio.move_on_after(1) as scope:
            await n.rt.send_to_node(MESH, "n", Note(6))
        assert scope.cancelled_caught
        assert n.rt.status.queued_jobs == 0
        held[0].all()
        await n.rt.send_to_node(MESH, "n", Note(7))
        await until(lambda: got == [5, 7])
        n.assert_nothing_held()


@pytest.mark.contract("SA-245", "SA-246")
@pytest.mark.parametrize("how", ["room", "loss", "shutdown", "deadline"])
async def test_calls_wait_for_a_peer_that_takes_nothing(autojump_clock: object, lan: Lan, how: str) -> None:
    """Thousands of sends wait for one paused peer; each ends once, and how it has to."""
    count = 3000
    puppet = lan.puppet()
    await puppet.listen()
    async with lan.node("n", peers=[puppet.endpoint]) as n:
        await n.ready("puppet")
        puppet.pair.app.send(ReceiveFlow(FlowState.PAUSED))
        await until(lambda: n.snapshot("puppet").paused)
        sends: list[str] = []
        requests: list[str] = []

        async def call(ends: list[str], number: int, request: bool) -> None:
            try:
                if request:
                    await n.rt.request_to_node(MESH, "puppet", Ask(number), timeout=10)
                else:
                    await n.rt.send_to_node(MESH, "puppet", Note(number))
                ends.append("sent")
            except zl.ZlinkError as error:
                ends.append(type(error).__name__)

        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(call, sends, number, False)
            nursery.start_soon(call, requests, 0, True)
            await quiet()
            assert n.snapshot("puppet").waiting == count + 1
            assert sends == []
            assert n.rt.status.permits_in_use == 0
            if how == "deadline":
                await trio.sleep(10.1)
                assert requests == ["DeadlineExceededError"]
                assert n.snapshot("puppet").waiting == count
            if how == "loss":
                puppet.pair.hang_up()
            elif how == "shutdown":
                await n.rt.shutdown(1)
            else:
                puppet.pair.app.send(ReceiveFlow(FlowState.RUNNING))
                await trio.sleep(1)
                for request in puppet.pair.app.commands(NodeRequest):
                    head = PayloadHead("Answer", codec.content_type)
                    puppet.pair.completion.send(Reply(request.corr, 0, 0, None, head), codec.encode(Answer(0, "p")))
        expected = {"loss": "UnavailableError", "shutdown": "ShuttingDownError"}.get(how, "sent")
        assert sends == [expected] * count
        assert requests == ["DeadlineExceededError" if how == "deadline" else expected]
        took = len(puppet.pair.app.commands(NodeSend)) if how in ("room", "deadline") else 0
        assert took == (count if expected == "sent" else 0)
        n.assert_nothing_held()


@pytest.mark.contract("SA-245")
async def test_waiting_calls_leave_in_the_order_they_came(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        release = a.use_up_permits()
        await until(lambda: z.snapshot("a").paused)
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(z.rt.send_to_channel, CHANNEL, Note(number))
                await quiet()
            release.all()
        await until(lambda: len(a.numbers) == 50)
        assert a.numbers == list(range(50))


async def test_a_full_send_queue_is_backpressure_too(autojump_clock: object, lan: Lan) -> None:
    """A partition: the pipe fills, sends wait, and go on in order when it heals."""
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        lan.network.partition("a", "z")
        done = 0

        async def send() -> None:
            nonlocal done
            for number in range(2500):
                await z.rt.send_to_channel(CHANNEL, Note(number))
                done += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(5)
            assert 0 < done < 2500
            assert z.snapshot("a").waiting == 1
            lan.network.heal()
        await until(lambda: len(a.numbers) == 2500)
        assert a.numbers == list(range(2500))
        assert z.snapshot("a").phase is PeerPhase.READY


async def test_a_channel_send_frame_has_the_channel(autojump_clock: object, lan: Lan) -> None:
    puppet = lan.puppet(channels={CHANNEL: 100})
    await puppet.listen()
    async with lan.node("n", peers=[puppet.endpoint]) as n:
        await n.target()
        await n.rt.send_to_channel(CHANNEL, Note(1))
        await until(lambda: puppet.pair.app.commands(ChannelSend))
        (sent,) = puppet.pair.app.commands(ChannelSend)
        assert (sent.channel_name, sent.payload.packet_name) == (CHANNEL, "Note")
