"""What a loss does to others and to calls: isolation, results, nothing sent twice (LV §12, §13)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import permutations
from typing import Any

import pytest
import trio
import trio.testing

import zlinkpy as zl
from tests.contract.mesh.nodes import (
    CALLERS,
    CHANNEL,
    ROLES,
    Echo,
    Echoed,
    Linked,
    Note,
    World,
    linked,
    publish,
    refused,
)
from tests.puppet import until
from zlinkpy.errors import DeadlineExceededError, NotFoundError, ShuttingDownError, UnavailableError, ZlinkError
from zlinkpy.link import FailureReason
from zlinkpy.wire import (
    ChannelRequest,
    ChannelSend,
    Close,
    CloseReason,
    FlowState,
    Hello,
    NodeRequest,
    NodeSend,
    ReceiveFlow,
    RuntimeState,
)

each_role = pytest.mark.parametrize("role", ROLES)
each_caller = pytest.mark.parametrize("role", CALLERS)
SERVER = {CHANNEL: 100}


def requests(link: Linked) -> list[Any]:
    return link.pair.app.commands(NodeRequest) + link.pair.app.commands(ChannelRequest)


# -- isolation


@pytest.mark.contract("LV-133")
async def test_one_peer_s_expiry_touches_no_other(autojump_clock: object, world: World) -> None:
    n = await world.host("n")
    p, q = world.puppet("p", channels=SERVER), world.puppet("q", channels=SERVER)
    await p.connect(n.endpoint)
    pair = await q.connect(n.endpoint)
    p.answers_probes = False
    before = n.rt.status
    await trio.sleep(16)
    assert n.failure("p").reason is FailureReason.PEER_DEADLINE
    assert n.is_ready("q")
    assert pair.is_up
    assert len(pair.probes) == 3
    assert (n.rt.status.state, n.rt.status.is_ready) == (before.state, True)
    assert n.targets == 1


@pytest.mark.contract("LV-134")
async def test_losing_every_peer_is_no_error_of_the_host(autojump_clock: object, world: World) -> None:
    link = await linked(world, serves=SERVER)
    link.pair.hang_up()
    await trio.sleep(30)
    assert link.n.status.ready_peers == 0
    assert link.n.rt.status.state is zl.HostState.SERVING
    assert link.n.rt.status.is_ready
    assert (await link.n.echo(4)).n == 4  # its own handlers go on


# -- results


async def send(rt: zl.Runtime) -> None:
    await rt.send_to_channel(CHANNEL, Note(1))


async def ask(rt: zl.Runtime) -> None:
    await rt.request_to_channel(CHANNEL, Echo(1), timeout=60.0)


each_call = pytest.mark.parametrize("call", [send, ask])


@each_call
@pytest.mark.contract("LV-135")
async def test_a_channel_nobody_is_known_for_is_not_found(
    autojump_clock: object, world: World, call: Callable[[zl.Runtime], Awaitable[None]]
) -> None:
    link = await linked(world, puppet={"channels": {"something else": 100}})
    with pytest.raises(NotFoundError):
        await call(link.n.rt)
    with pytest.raises(NotFoundError):
        await link.n.rt.send_to_channel("not registered", Note(1))


@each_call
@pytest.mark.contract("LV-136", "LV-137")
@pytest.mark.parametrize("why", ["lost", "draining", "weight 0", "listed only"])
async def test_known_members_none_usable_is_unavailable_at_once(
    autojump_clock: object, world: World, call: Callable[[zl.Runtime], Awaitable[None]], why: str
) -> None:
    if why == "listed only":
        p = await world.listening("p", channels=SERVER)
        assert world.network is not None
        world.network.hang(p.endpoint)
        await publish(world, p)
        n = await world.host("n", store=True)
        await until(lambda: n.peer("p") is not None)
    else:
        link = await linked(world, puppet={"channels": {CHANNEL: 0 if why == "weight 0" else 100}})
        n = link.n
        if why == "lost":
            link.pair.hang_up()
        elif why == "draining":
            link.pair.update(runtime_state=RuntimeState.DRAINING)
        await trio.sleep(0.01)
    started = trio.current_time()
    with refused(UnavailableError):
        await call(n.rt)
    assert trio.current_time() == started


# -- requests and one-way messages across a loss


@pytest.mark.contract("LV-138", "LV-139")
@pytest.mark.parametrize("kind", ["send", "request"])
@pytest.mark.parametrize("end", ["lost", "expired", "shutdown"])
async def test_a_message_the_transport_did_not_take_ends_route_not_connected_and_goes_nowhere_else(
    autojump_clock: object, world: World, kind: str, end: str
) -> None:
    link = await linked(world)
    q = world.puppet("q", channels=SERVER)
    other = await q.connect(link.n.endpoint)
    link.pair.app.send(ReceiveFlow(FlowState.PAUSED))
    link.p.answers_probes = end != "expired"
    await trio.sleep(0.01)
    ended: list[Any] = []

    async def call() -> None:
        try:
            if kind == "send":
                await link.n.rt.send_to_node("play", "p", Note(1))
            else:
                await link.n.rt.request_to_node("play", "p", Echo(1), timeout=60.0)
        except ZlinkError as error:
            ended.append((trio.current_time(), type(error), error.cause))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await link.at(3)
        assert link.n.peer("p").waiting == 1
        assert ended == []
        if end == "lost":
            link.pair.hang_up()
        elif end == "shutdown":
            nursery.start_soon(link.n.rt.shutdown, 1.0)
    ((at, error, cause),) = ended
    if end == "shutdown":
        assert error is ShuttingDownError
    else:
        assert (error, cause) == (UnavailableError, "RouteNotConnected")
    assert at == pytest.approx(link.T + {"lost": 3, "expired": 15, "shutdown": 3}[end], abs=1.1)
    assert not {NodeSend, NodeRequest} & {type(record.command) for _, record in other.app.records}
    assert link.n.rt.request_statistics.pending == 0


@each_role
@pytest.mark.contract("LV-139", "LV-143", "LV-140")
@pytest.mark.parametrize("end", ["lost", "expired", "closed"])
async def test_an_accepted_request_ends_once_with_the_route_and_is_never_given_to_another(
    autojump_clock: object, world: World, role: str, end: str
) -> None:
    link = await linked(world, role)
    q = world.puppet("q", channels=SERVER)
    link.p.hears = lambda lane, record: type(record.command) is Hello
    ended: list[Any] = []

    async def call() -> None:
        try:
            await link.n.echo(1, timeout=60.0)
        except ZlinkError as error:
            ended.append((type(error), error.cause))

    async with trio.open_nursery() as nursery:
        await link.n.rt.send_to_channel(CHANNEL, Note(1))
        nursery.start_soon(call)
        await until(lambda: requests(link))
        other = await q.connect(link.n.endpoint)
        assert link.n.targets == 2
        if end == "lost":
            link.pair.hang_up()
        elif end == "closed":
            link.pair.say_goodbye(Close(CloseReason.ORDERLY))
        else:
            link.p.answers_probes = False
        await trio.sleep(0.01 if end != "expired" else 16)
    assert ended == [(UnavailableError, "RouteNotConnected")]
    await trio.sleep(60)
    assert len(link.pair.app.commands(ChannelSend)) == 1
    assert not {ChannelSend, ChannelRequest} & {type(record.command) for _, record in other.app.records}
    statistics = link.n.rt.request_statistics
    assert (statistics.pending, statistics.route_failed, statistics.started) == (0, 1, 1)


ENDINGS = ("reply", "timeout", "cancel", "disconnect", "shutdown")
EXPECTED: dict[str, Any] = {
    "reply": Echoed(1, "p"),
    "timeout": DeadlineExceededError,
    "cancel": trio.Cancelled,
    "disconnect": UnavailableError,
    "shutdown": ShuttingDownError,
}


async def ended_by(world: World, role: str, endings: tuple[str, ...]) -> tuple[list[Any], Linked]:
    """One request to the puppet; `endings` happen in that order at one instant, 10 s in."""
    link = await linked(world, role)
    link.p.hears = lambda lane, record: type(record.command) is Hello
    link.p.answers_probes = True
    seen: list[Any] = []
    scope = trio.CancelScope()

    async def call() -> None:
        timeout = 10.0 if "timeout" in endings else 60.0
        with scope:
            try:
                seen.append(await link.ask(timeout=timeout))
            except ZlinkError as error:
                seen.append(type(error))
            except trio.Cancelled:
                seen.append(trio.Cancelled)
                raise

    async with trio.open_nursery() as nursery:
        asked = trio.current_time()
        nursery.start_soon(call)
        await until(lambda: requests(link))
        (request,) = requests(link)
        await trio.sleep_until(asked + 10.0)
        for ending in endings:
            if ending == "reply":
                # What closed the one connection of a client leaves no other for a reply.
                if link.pair.completion.connection.is_open:
                    link.answer(request.corr)
            elif ending == "cancel":
                scope.cancel()
            elif ending == "disconnect":
                link.pair.app.close()
            elif ending == "shutdown":
                nursery.start_soon(link.n.rt.shutdown, 0.001)
    return seen, link


@each_caller
@pytest.mark.contract("LV-140")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_accepted_request_ends_with_what_ended_it(
    autojump_clock: object, world: World, role: str, ending: str
) -> None:
    seen, link = await ended_by(world, role, (ending,))
    assert seen == [EXPECTED[ending]]
    assert link.n.rt.request_statistics.pending == 0


@each_caller
@pytest.mark.contract("LV-141")
@pytest.mark.parametrize("endings", list(permutations(ENDINGS, 2)), ids="-".join)
async def test_two_endings_at_one_instant_give_one_result(
    autojump_clock: object, world: World, role: str, endings: tuple[str, ...]
) -> None:
    seen, link = await ended_by(world, role, endings)
    assert len(seen) == 1
    assert seen[0] in [EXPECTED[ending] for ending in endings]
    statistics = link.n.rt.request_statistics
    assert statistics.pending == 0
    ends = (
        statistics.replied
        + statistics.timed_out
        + statistics.cancelled
        + statistics.route_failed
        + statistics.shut_down
    )
    assert ends == statistics.started == 1


@each_caller
@pytest.mark.contract("LV-142")
async def test_a_late_reply_completes_nothing(autojump_clock: object, world: World, role: str) -> None:
    link = await linked(world, role)
    link.p.hears = lambda lane, record: type(record.command) is Hello
    with pytest.raises(DeadlineExceededError):
        await link.ask(1, timeout=1.0)
    (old,) = requests(link)
    got: list[Any] = []

    async def call() -> None:
        got.append(await link.ask(2, timeout=60.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await until(lambda: len(requests(link)) == 2)
        link.answer(old.corr, n=1)
        link.answer(old.corr, n=1)
        link.answer(999, n=3)
        await trio.sleep(1)
        assert got == []
        assert link.n.rt.request_statistics.late_replies == 3
        link.answer(requests(link)[1].corr, n=2)
    assert got == [Echoed(2, "p")]
    assert link.n.is_ready("p")


@pytest.mark.parametrize("role", ["dialling", "client"])
@pytest.mark.contract("LV-146", "LV-144", "LV-145")
async def test_a_request_of_the_old_connection_is_not_completed_or_repeated_by_the_new(
    autojump_clock: object, world: World, role: str
) -> None:
    link = await linked(world, role)
    link.p.hears = lambda lane, record: type(record.command) in (NodeRequest, ChannelRequest)
    ended: list[Any] = []

    async def call() -> None:
        try:
            await link.ask(timeout=60.0)
        except ZlinkError as error:
            ended.append(type(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await until(lambda: requests(link))
        corr, old = requests(link)[0].corr, link.pair
        await link.at(6)
        old.hang_up()
        await until(lambda: link.p.pair is not old and link.p.pair.is_up)
        link.pair = link.p.pair
        link.answer(corr)
        await trio.sleep(0.01)
    assert ended == [UnavailableError]
    assert link.n.rt.request_statistics.late_replies == 1
    assert requests(link) == []
    assert link.pair.pair_id != old.pair_id
    assert [type(record.command) for _, record in link.pair.app.records[:1]] == [Hello]
    await trio.sleep_until(link.T + 10.5)
    assert [round(at - link.T, 2) for at in link.pair.probe_times] == [5, 10]
    assert not set(old.probes) & set(link.pair.probes)
