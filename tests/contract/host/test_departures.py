"""What was accepted before somebody left counts, and whoever left is found again (decision 0006)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH, Answer, Ask, Lan, Note, both_kinds
from tests.puppet import until
from zlinkpy.mesh import LinkHolder, peer_link


@pytest.mark.contract("LV-144", "LO-170")
async def test_nodes_that_were_unlisted_for_a_while_find_each_other_after_a_break(
    autojump_clock: object, lan: Lan
) -> None:
    async with (
        lan.node("a", weight=100, location_store=lan.store) as a,
        lan.node("z", weight=100, location_store=lan.store) as z,
    ):
        await a.target(2)
        await z.target(2)
        mesh = a.rt._meshes[MESH]
        [peer] = list(mesh.book)
        listed = peer.listed
        assert listed is not None
        mesh.apply_list({})
        assert a.targets == 1
        mesh.apply_list({listed.rid: listed})
        assert a.targets == 2
        lan.network.cut(("a", "z"))
        await until(lambda: a.targets == 1)
        with trio.fail_after(10):
            await a.target(2)
            await z.target(2)


@pytest.mark.parametrize(
    ("lan", "sender_dials"),
    [("mesh", True), ("mesh", False), ("client_server", True)],
    indirect=["lan"],
)
async def test_a_sender_that_leaves_in_order_loses_none_of_its_messages(
    autojump_clock: object, lan: Lan, sender_dials: bool
) -> None:
    slow = zl.JobQueueOptions(max_queued_application_jobs=4)

    def one_at_a_time(mesh: zl.Mesh) -> None:
        gate = trio.Semaphore(1)

        @mesh.on_channel_send(CHANNEL)
        async def note(message: Note) -> None:
            async with gate:
                await trio.sleep(0.01)
                taken.append(message.n)

    taken: list[int] = []
    async with lan.node(
        "b", port=1, weight=100, add=one_at_a_time, job_queue=slow, peers=[] if sender_dials else [2]
    ) as receiver:
        async with lan.node("a", port=2, peers=[1] if sender_dials else []) as sender:
            await sender.target(1)
            for n in range(900):
                await sender.rt.send_to_channel(CHANNEL, Note(n))
        await until(lambda: len(taken) == 900, 60)
        assert sorted(taken) == list(range(900))
        assert receiver.rt.status.is_ready


@both_kinds
@pytest.mark.contract("SA-212")
async def test_a_cancelled_body_still_gives_accepted_work_its_time(autojump_clock: object, lan: Lan) -> None:
    answers: list[Any] = []
    async with lan.node("a", port=2, peers=[1]) as caller, trio.open_nursery() as nursery:
        started = trio.Event()
        scope = trio.CancelScope()

        async def serve() -> None:
            with scope:
                async with lan.node("b", port=1, weight=100):
                    started.set()
                    await trio.sleep_forever()

        nursery.start_soon(serve)
        await started.wait()
        await caller.target(1)

        async def ask() -> None:
            answers.append(await caller.rt.request_to_channel(CHANNEL, Ask(7, hold=0.5)))

        nursery.start_soon(ask)
        await trio.sleep(0.1)
        scope.cancel()
    assert answers == [Answer(7, "b")]


@both_kinds
@pytest.mark.contract("SA-199")
@pytest.mark.parametrize("raised", [asyncio.CancelledError, SystemExit, type("Foreign", (BaseException,), {})])
async def test_whatever_a_handler_raises_its_requester_is_answered(
    autojump_clock: object, lan: Lan, raised: type[BaseException]
) -> None:
    def add(mesh: zl.Mesh) -> None:
        @mesh.on_channel_request(CHANNEL)
        async def ask(message: Ask) -> Answer:
            raise raised

    async with lan.node("b", port=1, weight=100, add=add) as server, lan.node("a", peers=[1]) as caller:
        await caller.target(1)
        with trio.fail_after(1), pytest.raises(zl.InternalFailureError):
            await caller.rt.request_to_channel(CHANNEL, Ask(1))
        assert server.rt.status.is_ready


async def test_a_handler_cannot_wait_for_the_shutdown_that_waits_for_it(autojump_clock: object, lan: Lan) -> None:
    host: list[zl.Runtime] = []

    def add(mesh: zl.Mesh) -> None:
        @mesh.on_channel_request(CHANNEL)
        async def ask(message: Ask) -> Answer:
            await host[0].shutdown()
            return Answer(1, "never")

    async with lan.node("b", weight=100, add=add) as server:
        host.append(server.rt)
        with trio.fail_after(1), pytest.raises(zl.InvalidOperationError):
            await server.rt.request_to_channel(CHANNEL, Ask(1))
        assert (await server.rt.shutdown()).outcome is zl.TerminationOutcome.STOPPED


async def test_a_part_that_fails_at_the_end_does_not_keep_the_host_from_ending(
    autojump_clock: object, lan: Lan, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("a provider's defect")

    with trio.fail_after(60):
        async with lan.node("b", weight=100, location_store=lan.store) as server:
            monkeypatch.setattr(server.rt.locations[MESH], "remove", fail)
            result = await server.rt.shutdown()
            assert result.outcome is zl.TerminationOutcome.FORCE_STOPPED
            assert result.reason is zl.TerminationReason.TEARDOWN_FAILED
        assert server.rt.status.state is zl.HostState.STOPPED


async def test_parts_that_are_slow_to_close_are_closed_at_once(
    autojump_clock: object, lan: Lan, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, closed = LinkHolder.aclose, 0

    async def slow(holder: LinkHolder) -> None:
        nonlocal closed
        # A peer that takes no last record, in each of them.
        await trio.sleep(2)
        await close(holder)
        closed += 1

    monkeypatch.setattr(LinkHolder, "aclose", slow)
    host, _ = lan.host("many")
    for number in range(5):
        host.serve_client_server(f"channel{number}", listen=f"tcp://127.0.0.1:{900 + number}", rid=f"s{number}")
    async with host.run() as rt:
        began = trio.current_time()
        result = await rt.shutdown()
    assert closed == 5
    assert result.outcome is zl.TerminationOutcome.STOPPED
    assert trio.current_time() - began < 4


@pytest.mark.contract("SA-212", "SA-241")
async def test_what_waits_for_a_permit_at_a_forced_stop_is_named_and_refused(autojump_clock: object, lan: Lan) -> None:
    ends: list[Any] = []
    async with lan.node("b", weight=100) as server:
        held = server.use_up_permits()

        async def send() -> None:
            try:
                await server.rt.send_to_channel(CHANNEL, Note(1))
                ends.append("taken")
            except zl.ShuttingDownError:
                ends.append("refused")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await until(lambda: server.core.ingress.parked == 1)
            result = await server.rt.shutdown(1)
        assert ends == ["refused"]
        assert len(result.left) == 1
        held.all()


class Stuck:
    """A completion lane whose peer does not read."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def send(self, frames: list[bytes]) -> bool:
        return False

    async def wait_writable(self) -> None:
        await trio.sleep_forever()


async def test_a_peer_that_does_not_read_its_replies_loses_its_connection(
    autojump_clock: object, lan: Lan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_link, "REPLIES_WAITING", 5)
    async with lan.node("b", port=1, weight=100) as server, lan.node("a", peers=[1]) as caller:
        await caller.target(1)
        [link] = list(server.rt._meshes[MESH].links)
        link._completion = Stuck(link._completion)
        ends: list[type[Exception]] = []

        async def ask(n: int) -> None:
            try:
                await caller.rt.request_to_node(MESH, "b", Ask(n), timeout=20)
            except zl.ZlinkError as error:
                ends.append(type(error))

        async with trio.open_nursery() as nursery:
            for n in range(5):
                nursery.start_soon(ask, n)
            await trio.sleep(1)
            assert server.is_ready("a"), "some replies may wait"
            assert server.rt.status.running_jobs == 5
            nursery.start_soon(ask, 5)
            await until(lambda: not server.is_ready("a"), 1)
        assert ends == [zl.UnavailableError] * 6
        assert "does not read its replies" in str(server.snapshot("a").last_failure)
        await until(lambda: server.rt.status.running_jobs == 0, 30)


async def test_replies_that_nobody_waits_for_any_more_are_given_up(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("b", port=1, weight=100) as server, lan.node("a", peers=[1]) as caller:
        await caller.target(1)
        [link] = list(server.rt._meshes[MESH].links)
        link._completion = Stuck(link._completion)
        with pytest.raises(zl.DeadlineExceededError):
            await caller.rt.request_to_node(MESH, "b", Ask(1), timeout=3)
        await until(lambda: server.rt.status.running_jobs == 0, 1)


@pytest.mark.parametrize(
    ("lan", "server_dials"),
    [("mesh", True), ("mesh", False), ("client_server", False)],
    indirect=["lan"],
)
async def test_an_orderly_stop_waits_for_nobody_who_waits_for_nothing(
    autojump_clock: object, lan: Lan, server_dials: bool
) -> None:
    async with lan.node("a", port=2, peers=[] if server_dials else [1]) as caller:
        async with lan.node("b", port=1, weight=100, peers=[2] if server_dials else []) as server:
            await caller.target(1)
            await caller.rt.request_to_channel(CHANNEL, Ask(1))
            began = trio.current_time()
            await server.rt.shutdown()
        assert trio.current_time() - began < 0.5
