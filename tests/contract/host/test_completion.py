"""How a request ends: once, in time, whatever else happens (SA §M)."""

from __future__ import annotations

import logging
import math
from itertools import permutations
from typing import Any

import pytest
import trio
import trio.testing

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH, Answer, Ask, Lan, Node, Note, both_kinds
from tests.puppet import Puppet, PuppetPair, until
from zlinkpy.messages import Codecs
from zlinkpy.wire import (
    ChannelRequest,
    ChannelSend,
    FlowState,
    NodeRequest,
    PayloadHead,
    ReceiveFlow,
    Reply,
)

codec = Codecs().default
quiet = trio.testing.wait_all_tasks_blocked


def answer(pair: PuppetPair, corr: int, n: int = 0) -> None:
    """A puppet's reply."""
    pair.completion.send(
        Reply(corr, 0, 0, None, PayloadHead("Answer", codec.content_type)), codec.encode(Answer(n, "p"))
    )


def corr_of(pair: PuppetPair) -> int:
    """The newest request a puppet got."""
    (*_, request) = [*pair.app.commands(NodeRequest), *pair.app.commands(ChannelRequest)]
    return int(request.corr)


def outcome_of(error: BaseException) -> str:
    return type(error).__name__


ENDINGS = {
    "reply": "Answer",
    "error": "RejectedError",
    "timeout": "DeadlineExceededError",
    "cancel": "cancelled",
    "disconnect": "UnavailableError",
    "shutdown": "ShuttingDownError",
}


@pytest.mark.contract("SA-198")
@pytest.mark.parametrize("first", ENDINGS)
async def test_the_first_ending_counts_and_later_ones_change_nothing(
    autojump_clock: object, lan: Lan, first: str
) -> None:
    """Each ending first, with every pair of others behind it."""
    for others in permutations([name for name in ENDINGS if name != first], 2):
        async with lan.node("n", shutdown_deadline=0.01) as n:
            puppet = lan.puppet()
            pair = await puppet.connect(n.rt.endpoint(MESH))
            seen: list[str] = []
            scope = trio.CancelScope()

            async def ask(node: Node = n, seen: list[str] = seen, scope: trio.CancelScope = scope) -> None:
                with scope:
                    try:
                        seen.append(outcome_of(await node.rt.request_to_node(MESH, "puppet", Ask(1), timeout=2)))
                    except zl.ZlinkError as error:
                        seen.append(outcome_of(error))
                if scope.cancelled_caught:
                    seen.append("cancelled")

            async def happen(
                ending: str,
                node: Node = n,
                pair: PuppetPair = pair,
                scope: trio.CancelScope = scope,
            ) -> None:
                corr = corr_of(pair)
                match ending:
                    case "reply" if pair.is_up:
                        answer(pair, corr)
                    case "error" if pair.is_up:
                        pair.completion.send(Reply(corr, 106, 15, None, None))
                    case "timeout":
                        await trio.sleep(2)
                    case "cancel":
                        scope.cancel()
                    case "disconnect":
                        pair.hang_up()
                    case "shutdown":
                        await node.rt.shutdown(0.01)
                await quiet()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await until(lambda pair=pair: pair.app.commands(NodeRequest))
                for ending in (first, *others):
                    await happen(ending)
            assert seen == [ENDINGS[first]], (first, others)
            statistics = n.rt.request_statistics
            assert (statistics.started, statistics.pending) == (1, 0)
            ended = (
                statistics.replied
                + statistics.timed_out
                + statistics.cancelled
                + statistics.route_failed
                + statistics.shut_down
            )
            assert ended == 1


def failing(mesh: zl.Mesh) -> None:
    """Handlers that raise what the request says."""

    @mesh.on_node_request
    async def ask(message: Ask) -> Answer:
        raise FAILURES[message.n][0]

    @mesh.on_node_send
    def note(message: Note) -> None:
        raise FAILURES[message.n][0]


FAILURES: list[tuple[BaseException, type[zl.ZlinkError]]] = [
    (RuntimeError("broken"), zl.InternalFailureError),
    (SystemExit(3), zl.InternalFailureError),
    (ExceptionGroup("several", [ValueError("x")]), zl.InternalFailureError),
    (BaseExceptionGroup("several", [SystemExit(1)]), zl.InternalFailureError),
    (zl.NotFoundError("x"), zl.NotFoundError),
    (zl.AlreadyExistsError("x"), zl.AlreadyExistsError),
    (zl.TypeMismatchError("x"), zl.TypeMismatchError),
    (zl.NotConfiguredError("x"), zl.InternalFailureError),
    (zl.RejectedError("x"), zl.RejectedError),
    (zl.UnavailableError("x"), zl.UnavailableError),
    (zl.DeadlineExceededError("x"), zl.DeadlineExceededError),
    (zl.ShuttingDownError("x"), zl.ShuttingDownError),
    (zl.ProtocolError("x"), zl.ProtocolError),
    (zl.InvalidOperationError("x"), zl.InvalidOperationError),
    (zl.DataLostError("x"), zl.DataLostError),
    (zl.InternalFailureError("x"), zl.InternalFailureError),
]


@pytest.mark.contract("SA-199", "SA-252")
async def test_a_failing_handler_answers_and_the_next_message_is_served(autojump_clock: object, lan: Lan) -> None:
    """Its kind arrives; NotConfigured travels as an internal failure (wire.md §7); nothing else of the error does."""
    async with lan.node("a", port=1, add=failing) as a, lan.node("z", peers=[1]) as z:
        await z.ready("a")
        for number, (raised, expected) in enumerate(FAILURES):
            with pytest.raises(zl.ZlinkError) as caught:
                await z.rt.request_to_node(MESH, "a", Ask(number), timeout=5)
            assert caught.type is expected, raised
            assert caught.value.kind is expected.kind
        assert a.rt.status.is_ready
        assert a.telemetry.total("zlink.mesh_node.handler.failures") == len(FAILURES)


@pytest.mark.contract("SA-253", "SA-283")
async def test_a_failing_send_handler_is_logged_and_counted_and_nothing_else(
    autojump_clock: object, lan: Lan, caplog: pytest.LogCaptureFixture
) -> None:
    puppet_reply = []
    async with lan.node("a", port=1, add=failing) as a:
        puppet = lan.puppet()
        puppet.hears = lambda lane, record: puppet_reply.append(record) if type(record.command) is Reply else False
        await puppet.connect(a.rt.endpoint(MESH))
        async with lan.node("z", peers=[1]) as z:
            await z.ready("a")
            with caplog.at_level(logging.ERROR):
                for number in range(2):
                    await z.rt.send_to_node(MESH, "a", Note(number))
                await trio.sleep(1)
            records = [each for each in caplog.records if each.name == "zlinkpy.dispatch"]
            assert len(records) == 2
            for record in records:
                assert record.__dict__["packet"] == "Note"
                assert record.__dict__["mesh"] == MESH
                assert record.__dict__["surface"] == "node"
                assert record.__dict__["reason"] == "handler_failed"
                assert record.exc_info
            assert a.telemetry.total("zlink.mesh_node.handler.failures", message_kind="send") == 2
            assert z.rt.request_statistics.late_replies == 0
        assert not puppet_reply


@pytest.mark.contract("SA-200")
async def test_a_reply_that_is_faster_than_the_send(autojump_clock: object, lan: Lan) -> None:
    """The request leaves while its caller is still waiting to hand it over; the reply is there before that returns."""
    async with lan.node("n") as n:
        puppet = lan.puppet()
        pair = await puppet.connect(n.rt.endpoint(MESH))

        def at_once(lane: Any, record: Any) -> bool:
            if type(record.command) is NodeRequest:
                answer(pair, record.command.corr, 5)
            return False

        puppet.hears = at_once
        assert await n.rt.request_to_node(MESH, "puppet", Ask(1)) == Answer(5, "p")
        # Also where the puppet guesses the number and answers before it has the request.
        pair.app.send(ReceiveFlow(FlowState.PAUSED))
        await until(lambda: n.snapshot("puppet").paused)
        async with trio.open_nursery() as nursery:
            got: list[Answer] = []

            async def ask() -> None:
                got.append(await n.rt.request_to_node(MESH, "puppet", Ask(2), timeout=5))

            nursery.start_soon(ask)
            await quiet()
            answer(pair, n.rt.request_statistics.started, 9)
            await quiet()
            pair.app.send(ReceiveFlow(FlowState.RUNNING))
        assert got == [Answer(9, "p")]
        await trio.sleep(1)
        n.assert_nothing_held()


@pytest.mark.contract("SA-202")
@pytest.mark.parametrize(
    ("mesh", "host", "expected"), [(None, None, 30.0), (None, 7.0, 7.0), (3.0, 7.0, 3.0)], ids=["30 s", "host", "mesh"]
)
async def test_the_default_timeout(
    autojump_clock: object, lan: Lan, mesh: float | None, host: float | None, expected: float
) -> None:
    options = {} if host is None else {"default_request_timeout": host}
    async with lan.node("n", timeout=mesh, **options) as n:
        puppet = lan.puppet(channels={CHANNEL: 1})
        pair = await puppet.connect(n.rt.endpoint(MESH))
        await n.target()
        for call in (n.rt.request_to_node(MESH, "puppet", Ask()), n.rt.request_to_channel(CHANNEL, Ask())):
            began = trio.current_time()
            with pytest.raises(zl.DeadlineExceededError):
                await call
            assert trio.current_time() - began == pytest.approx(expected, abs=0.001)
        sent = [*pair.app.commands(NodeRequest), *pair.app.commands(ChannelRequest)]
        assert [request.ms for request in sent] == [expected * 1000] * 2


@pytest.mark.contract("SA-202", "SA-250")
@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, 2**31 / 1000, True, "1"])
async def test_a_timeout_that_is_none_is_refused_before_anything_is_sent(
    autojump_clock: object, lan: Lan, timeout: Any
) -> None:
    async with lan.node("n", port=1, weight=100) as n, lan.node("z", peers=[1]) as z:
        await z.target()
        with pytest.raises((ValueError, TypeError)):
            await z.rt.request_to_channel(CHANNEL, Ask(1), timeout=timeout)
        with pytest.raises((ValueError, TypeError)):
            await z.rt.request_to_node(MESH, "n", Ask(1), timeout=timeout)
        await trio.sleep(1)
        assert n.numbers == []
        assert z.rt.request_statistics.started == 0


@pytest.mark.contract("SA-202")
async def test_fractions_of_a_millisecond_round_up(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n") as n:
        pair = await lan.puppet().connect(n.rt.endpoint(MESH))
        for timeout in (0.0001, 0.0015, 2**31 / 1000 - 0.001):
            with trio.move_on_after(1), pytest.raises(zl.DeadlineExceededError):
                await n.rt.request_to_node(MESH, "puppet", Ask(), timeout=timeout)
        assert [request.ms for request in pair.app.commands(NodeRequest)] == [1, 2, 2**31 - 1]


@pytest.mark.contract("SA-203")
async def test_waiting_to_send_comes_out_of_the_same_budget(autojump_clock: object, lan: Lan) -> None:
    """What is left when the record leaves is what the far end is given."""
    async with lan.node("n") as n:
        pair = await lan.puppet().connect(n.rt.endpoint(MESH))
        pair.app.send(ReceiveFlow(FlowState.PAUSED))
        await until(lambda: n.snapshot("puppet").paused)
        began = trio.current_time()

        async def ask() -> None:
            with pytest.raises(zl.DeadlineExceededError):
                await n.rt.request_to_node(MESH, "puppet", Ask(), timeout=10)
            assert trio.current_time() - began == pytest.approx(10, abs=0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(4)
            pair.app.send(ReceiveFlow(FlowState.RUNNING))
            await until(lambda: pair.app.commands(NodeRequest))
            (request,) = pair.app.commands(NodeRequest)
            left = 10_000 - (trio.current_time() - began) * 1000
            assert left <= request.ms <= left + 50


@pytest.mark.contract("SA-203")
async def test_a_request_that_is_too_old_when_its_turn_comes_is_not_begun(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        release = a.use_up_permits()
        await quiet()
        async with lan.node("y", peers=[1]) as y:
            puppet_request = PayloadHead("Ask", codec.content_type)
            puppet = lan.puppet("eager")
            pair = await puppet.connect(a.rt.endpoint(MESH))
            pair.app.send(NodeRequest(1, 3000, puppet_request), codec.encode(Ask(1)))
            pair.app.send(NodeRequest(2, 60_000, puppet_request), codec.encode(Ask(2)))
            await trio.sleep(4)
            assert y.rt.status.is_ready
            release()
            await until(lambda: len(pair.completion.commands(Reply)) == 2)
        replies = {reply.corr: reply.terminal_result for reply in pair.completion.commands(Reply)}
        assert replies == {1: 101, 2: 0}
        assert a.numbers == [2]


@both_kinds
@pytest.mark.contract("SA-204")
async def test_a_handler_outlives_the_deadline_of_its_caller(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        with pytest.raises(zl.DeadlineExceededError):
            await z.rt.request_to_channel(CHANNEL, Ask(1, hold=5.0), timeout=1)
        assert a.rt.status.running_jobs == 1
        await trio.sleep(5)
        assert [message.n for message in a.ended] == [1]
        assert z.rt.request_statistics.late_replies == 1
        assert z.is_ready("a")
        z.assert_nothing_held()


@pytest.mark.contract("SA-205")
async def test_cancelled_before_it_was_taken_a_message_is_never_sent(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n") as n:
        pair = await lan.puppet(channels={CHANNEL: 1}).connect(n.rt.endpoint(MESH))
        await n.target()
        pair.app.send(ReceiveFlow(FlowState.PAUSED))
        await until(lambda: n.snapshot("puppet").paused)
        for call in (
            lambda: n.rt.send_to_channel(CHANNEL, Note(1)),
            lambda: n.rt.request_to_channel(CHANNEL, Ask(1)),
        ):
            with trio.move_on_after(1) as scope:
                await call()
            assert scope.cancelled_caught
            n.assert_nothing_held()
        pair.app.send(ReceiveFlow(FlowState.RUNNING))
        await trio.sleep(1)
        assert not pair.app.commands(ChannelSend)
        assert not pair.app.commands(ChannelRequest)


@both_kinds
@pytest.mark.contract("SA-205")
async def test_cancelled_after_it_was_taken_a_request_is_still_handled_once(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        with trio.move_on_after(1) as scope:
            await z.rt.request_to_channel(CHANNEL, Ask(1, hold=3.0))
        assert scope.cancelled_caught
        await trio.sleep(10)
        assert [message.n for message in a.ended] == [1]
        statistics = z.rt.request_statistics
        assert (statistics.cancelled, statistics.replied, statistics.late_replies) == (1, 0, 1)
        z.assert_nothing_held()


@both_kinds
@pytest.mark.contract("SA-205")
async def test_a_send_that_returned_was_not_cancelled(autojump_clock: object, lan: Lan) -> None:
    """A loop of sends under a deadline: what returned was delivered, and the message it was cut at was not."""
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        sent = 0
        with trio.CancelScope() as scope:
            while True:
                if sent == 150:
                    scope.cancel()
                await z.rt.send_to_channel(CHANNEL, Note(sent))
                sent += 1
        await trio.sleep(1)
        assert sent == 150
        assert a.numbers == list(range(150))


@pytest.mark.contract("SA-206")
async def test_in_a_cancelled_scope_arguments_are_checked_and_nothing_is_sent(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        wrong: list[Any] = [
            lambda: z.rt.send_to_channel(CHANNEL, object()),
            lambda: z.rt.request_to_channel(CHANNEL, Ask(), timeout=-1),
            lambda: z.rt.send_to_node(MESH, "a", Note(), metadata={"a": 1}),  # type: ignore[dict-item]
            lambda: z.rt.request_to_node(MESH, "a", Ask(), metadata={"": "x"}),
        ]
        for call in wrong:
            with trio.CancelScope() as scope:
                scope.cancel()
                with pytest.raises((TypeError, ValueError)):
                    await call()
        right: list[Any] = [
            lambda: z.rt.send_to_channel(CHANNEL, Note()),
            lambda: z.rt.request_to_channel(CHANNEL, Ask()),
            lambda: z.rt.send_to_node(MESH, "a", Note()),
            lambda: z.rt.request_to_node(MESH, "a", Ask()),
        ]
        for call in right:
            with trio.CancelScope() as scope:
                scope.cancel()
                await call()
            assert scope.cancelled_caught
        await trio.sleep(1)
        assert a.numbers == []
        assert z.rt.request_statistics.started == 0


@both_kinds
@pytest.mark.contract("SA-207")
async def test_cancelling_after_completion_changes_nothing(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        with trio.CancelScope() as scope:
            await z.rt.send_to_channel(CHANNEL, Note(1))
            reply = await z.rt.request_to_channel(CHANNEL, Ask(2))
            scope.cancel()
        await trio.sleep(1)
        assert reply == Answer(2, "a")
        assert a.numbers == [1, 2]
        assert z.rt.request_statistics.cancelled == 0


@pytest.mark.contract("SA-207")
async def test_a_reply_and_a_cancellation_in_one_tick_is_a_reply(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n") as n:
        pair = await lan.puppet().connect(n.rt.endpoint(MESH))
        got: list[Answer] = []
        scope = trio.CancelScope()

        async def ask() -> None:
            with scope:
                got.append(await n.rt.request_to_node(MESH, "puppet", Ask()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: pair.app.commands(NodeRequest))
            table = n.core.requests
            (entry,) = table._entries.values()
            table.reply(entry.route, Reply(entry.corr, 0, 0, None, PayloadHead("Answer", codec.content_type)),
                        [codec.encode(Answer(3, "p"))])  # fmt: skip
            scope.cancel()
        assert got == [Answer(3, "p")]
        assert n.rt.request_statistics.cancelled == 0


@pytest.mark.contract("SA-208")
async def test_a_lost_connection_ends_each_request_over_it_once(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n") as n:
        puppets: list[Puppet] = [lan.puppet("p"), lan.puppet("q")]
        pairs = [await puppet.connect(n.rt.endpoint(MESH)) for puppet in puppets]
        ends: list[tuple[str, int, str]] = []

        async def ask(rid: str, number: int) -> None:
            try:
                await n.rt.request_to_node(MESH, rid, Ask(number), timeout=60)
                ends.append((rid, number, "answered"))
            except zl.UnavailableError as error:
                ends.append((rid, number, f"unavailable: {error.cause}"))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, "p", number)
                nursery.start_soon(ask, "q", number)
            await until(lambda: all(len(pair.app.commands(NodeRequest)) == 20 for pair in pairs))
            began = trio.current_time()
            pairs[0].hang_up()
            await until(lambda: len(ends) == 20)
            assert trio.current_time() - began < 0.1
            assert {(rid, what) for rid, _, what in ends} == {("p", "unavailable: RouteNotConnected")}
            # The node comes back: nothing is repeated.
            again = await lan.puppet("p", generation=8).connect(n.rt.endpoint(MESH))
            for request in pairs[1].app.commands(NodeRequest):
                answer(pairs[1], request.corr)
        assert len(ends) == 40
        assert {(rid, what) for rid, _, what in ends} == {("p", "unavailable: RouteNotConnected"), ("q", "answered")}
        await trio.sleep(1)
        assert not again.app.commands(NodeRequest)
        n.assert_nothing_held()


@pytest.mark.contract("SA-213")
async def test_calls_do_not_touch_each_other(autojump_clock: object, lan: Lan) -> None:
    """A hundred requests to one server: every third is cancelled, every third fails, the others are answered."""

    def add(mesh: zl.Mesh) -> None:
        @mesh.on_node_request
        async def ask(message: Ask) -> Answer:
            await trio.sleep(2)
            if message.n % 3 == 1:
                raise RuntimeError("this one")
            return Answer(message.n, "a")

    async with lan.node("a", port=1, add=add) as a, lan.node("z", peers=[1]) as z:
        await z.ready("a")
        ends: dict[int, str] = {}

        async def ask(number: int) -> None:
            with trio.move_on_after(1 if number % 3 == 2 else 100) as scope:
                try:
                    reply = await z.rt.request_to_node(MESH, "a", Ask(number))
                    ends[number] = f"answer {reply.n}"
                except zl.InternalFailureError:
                    ends[number] = "failed"
            if scope.cancelled_caught:
                ends[number] = "cancelled"

        async with trio.open_nursery() as nursery:
            for number in range(99):
                nursery.start_soon(ask, number)
        for number, end in ends.items():
            assert end == (f"answer {number}", "failed", "cancelled")[number % 3]
        assert len(ends) == 99
        await trio.sleep(3)
        z.assert_nothing_held()
        a.assert_nothing_held()
