"""Start, end and failure of a host: in what states, how exceptions come out, what is left (SA §M for shutdown, §S)."""

from __future__ import annotations

import pytest
import trio

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH, Answer, Ask, Lan, Note
from tests.location_hosts import Gate, every
from tests.puppet import until
from zlinkpy.transport import MemoryNetwork
from zlinkpy.wire import RuntimeState


class Boom(Exception):
    """An application's own error."""


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("error", [Boom("x"), ExceptionGroup("several", [Boom("x"), Boom("y")]), KeyboardInterrupt()])
async def test_an_exception_of_the_body_comes_out_as_itself(
    autojump_clock: object, lan: Lan, error: BaseException, store: bool
) -> None:
    options = {"location_store": Gate(lan.store)} if store else {}
    with pytest.raises(type(error)) as caught:
        async with lan.node("n", **options):
            raise error
    assert caught.value is error
    assert not await lan.rows()


@pytest.mark.parametrize("store", [False, True])
async def test_a_cancelled_body_shuts_down_in_bounded_time(autojump_clock: object, lan: Lan, store: bool) -> None:
    options = {"location_store": Gate(lan.store)} if store else {}
    began = trio.current_time()
    with trio.CancelScope() as scope:
        async with lan.node("n", weight=100, **options) as n:
            await n.rt.send_to_channel(CHANNEL, Note(1, hold=1000))
            await until(lambda: n.numbers == [1])
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() - began < 10
    assert n.rt.status.state is RuntimeState.STOPPED
    assert not await lan.rows()


@pytest.mark.contract("SA-212")
async def test_shutdown_lets_accepted_work_finish_and_takes_no_new_call(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        answers: list[Answer] = []

        async def ask() -> None:
            answers.append(await z.rt.request_to_channel(CHANNEL, Ask(1, hold=5.0)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: a.numbers == [1])
            began = trio.current_time()
            nursery.start_soon(a.rt.shutdown)
            await trio.testing.wait_all_tasks_blocked()
            assert a.rt.status.state is RuntimeState.DRAINING
            for call in (a.rt.send_to_channel(CHANNEL, Note()), a.rt.request_to_node(MESH, "z", Ask())):
                with pytest.raises(zl.ShuttingDownError):
                    await call
            # Nobody selects a draining node; what it has accepted is answered.
            with pytest.raises(zl.UnavailableError):
                await z.rt.send_to_channel(CHANNEL, Note(2))
        assert answers == [Answer(1, "a")]
        assert trio.current_time() - began >= 4.5
        result = await a.rt.shutdown()
        assert result.outcome is zl.TerminationOutcome.STOPPED
        assert result.reason is zl.TerminationReason.NONE
        assert result.left == ()
        assert a.rt.status.state is RuntimeState.STOPPED
        assert a.numbers == [1]


@pytest.mark.contract("SA-212", "SA-198")
async def test_what_is_left_at_the_deadline_ends_once_and_is_named(autojump_clock: object, lan: Lan) -> None:
    """A handler of this host, a request of this host, and a request to this host."""
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", port=2, peers=[1], weight=100) as z:
        await z.ready("a")
        await a.ready("z")
        ends: list[tuple[str, type[Exception]]] = []

        async def ask(node: zl.Runtime, rid: str, name: str) -> None:
            try:
                await node.request_to_node(MESH, rid, Ask(1, hold=1000), timeout=500)
            except zl.ZlinkError as error:
                ends.append((name, type(error)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, a.rt, "z", "own")
            nursery.start_soon(ask, z.rt, "a", "foreign")
            await until(lambda: a.numbers == z.numbers == [1])
            began = trio.current_time()
            unfinished = a.rt.unfinished()
            result = await a.rt.shutdown(3)
            assert 3 <= trio.current_time() - began < 5.5
        assert result.outcome is zl.TerminationOutcome.FORCE_STOPPED
        assert result.reason is zl.TerminationReason.DEADLINE_EXCEEDED
        assert any("ask" in label for label in result.left)
        assert "Ask" in result.left
        assert sorted(result.left) == sorted(unfinished)
        assert sorted(ends) == [("foreign", zl.UnavailableError), ("own", zl.ShuttingDownError)]
        a.assert_nothing_held()
        assert a.rt.request_statistics.shut_down == 1
        assert z.rt.request_statistics.route_failed == 1


async def test_shutdown_is_asked_for_many_times_and_happens_once(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n", weight=100) as n:
        await n.rt.send_to_channel(CHANNEL, Note(1, hold=2.0))
        results: list[zl.TerminationResult] = []

        async def stop(deadline: float) -> None:
            results.append(await n.rt.shutdown(deadline))

        async with trio.open_nursery() as nursery:
            for deadline in (10, 1, 0.5):
                nursery.start_soon(stop, deadline)
        assert len(results) == 3
        assert results[0] is results[1] is results[2]
        assert results[0] is n.rt.status.termination


async def test_a_cancelled_caller_of_shutdown_leaves_a_stopped_host(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n", weight=100) as n:
        await n.rt.send_to_channel(CHANNEL, Note(1, hold=3.0))
        await until(lambda: n.numbers == [1])
        with trio.move_on_after(0.5):
            await n.rt.shutdown()
        assert n.rt.status.state is RuntimeState.STOPPED
        assert len(n.ended) == 1


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), float("inf"), True])
async def test_a_deadline_that_is_none_changes_nothing(autojump_clock: object, lan: Lan, deadline: float) -> None:
    async with lan.node("n", weight=100) as n:
        with pytest.raises(zl.ConfigurationError, match="deadline"):
            await n.rt.shutdown(deadline)
        assert n.rt.status.state is RuntimeState.SERVING
        await n.rt.send_to_channel(CHANNEL, Note(1))


async def test_shutdown_is_bounded_while_the_store_hangs(autojump_clock: object, lan: Lan) -> None:
    gate = Gate(lan.store)
    async with lan.node("n", weight=100, location_store=gate) as n:
        await trio.sleep(3)
        gate.rule = every("hang")
        began = trio.current_time()
        await n.rt.shutdown(5)
    assert trio.current_time() - began < 30
    assert n.rt.status.state is RuntimeState.STOPPED


async def test_starting_can_be_cancelled_while_the_store_hangs(autojump_clock: object, lan: Lan) -> None:
    gate = Gate(lan.store)
    gate.rule = every("hang")
    began = trio.current_time()
    with trio.move_on_after(1) as scope:
        async with lan.node("n", weight=100, location_store=gate):
            raise AssertionError("it started")
    assert scope.cancelled_caught
    assert trio.current_time() - began < 10
    assert gate.closed == 1


async def test_a_host_starts_without_its_store_and_is_published_when_it_answers(
    autojump_clock: object, lan: Lan
) -> None:
    gate = Gate(lan.store)
    gate.rule = every("hang")
    async with lan.node("n", weight=100, location_store=gate) as n:
        assert n.rt.status.is_ready
        assert n.rt.status.store.lease == "unclaimed"
        assert (await n.rt.request_to_channel(CHANNEL, Ask(1))).who == "n"
        gate.rule = every("pass")
        async with lan.node("z", location_store=Gate(lan.store)) as z:
            await until(lambda: z.targets == 1, 60)
            assert (await z.rt.request_to_channel(CHANNEL, Ask(2))).who == "n"


async def test_calls_before_the_host_serves_are_refused(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n", weight=100) as n:
        n.core.set_state(RuntimeState.PREPARING, accepting=False, taking=False)
        with pytest.raises(zl.InvalidOperationError, match="not running yet"):
            await n.rt.send_to_channel(CHANNEL, Note())
        n.core.set_state(RuntimeState.SERVING, accepting=True, taking=True)


@pytest.mark.contract("SA-212")
async def test_a_message_on_its_way_when_the_drain_begins_is_still_handled(autojump_clock: object, lan: Lan) -> None:
    lan.network.delay("a", "z", 0.02)
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        await z.rt.send_to_channel(CHANNEL, Note(1))
        result = await a.rt.shutdown()
        assert a.numbers == [1]
        assert result.outcome is zl.TerminationOutcome.STOPPED


async def test_a_handler_reaches_its_host_s_calls_while_the_host_runs(autojump_clock: object) -> None:
    host = zl.Host(transport=lambda entropy: MemoryNetwork(seed=1).transport("one"), watchdog=False)
    mesh = host.mesh(MESH)
    mesh.serve_channel(CHANNEL)

    @mesh.on_channel_request(CHANNEL)
    async def ask(request: Ask) -> Answer:
        return Answer(request.n, host.runtime.node_rid(MESH))

    with pytest.raises(zl.InvalidOperationError, match="not running"):
        _ = host.runtime
    async with host.run() as rt:
        assert host.runtime is rt
        assert (await rt.request_to_channel(CHANNEL, Ask())).who == rt.node_rid(MESH)
    with pytest.raises(zl.InvalidOperationError, match="not running"):
        _ = host.runtime
