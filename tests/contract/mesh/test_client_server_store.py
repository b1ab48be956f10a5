"""A ClientServer channel and the Location Store, and how its servers leave (LO §8, §10, LV §14, §15)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.contract.mesh.nodes import CHANNEL, Echo, Echoed, World, refused
from tests.contract.mesh.services import (
    client,
    client_puppet,
    listening,
    publish,
    server,
    serving,
    withdraw,
)
from tests.location_hosts import every
from tests.puppet import until
from zlinkpy.link import FailureReason
from zlinkpy.location import CLIENT_SERVER, keys
from zlinkpy.location.store import Page
from zlinkpy.mesh import PeerPhase, PeerState
from zlinkpy.telemetry import catalogue
from zlinkpy.wire import (
    Close,
    CloseReason,
    RuntimeState,
    Update,
)


@pytest.mark.contract("LO-169", "LV-19", "LV-153")
async def test_a_descriptor_and_a_live_lease_make_no_target(autojump_clock: object, world: World) -> None:
    p = await listening(world, "p")
    assert world.network is not None
    world.network.hang(p.endpoint)
    await publish(world, p)
    c = await client(world, store=True)
    await until(lambda: c.phase("p") is PeerPhase.CONNECTING)
    await trio.sleep(10)
    assert c.targets == 0
    assert not c.is_ready("p")
    world.network.admit(p.endpoint)
    p.admits = False
    await trio.sleep(7)  # transport there, no admission
    assert c.targets == 0
    p.admits = True
    await c.ready("p", seconds=20)
    assert c.targets == 1


@pytest.mark.contract("LO-175")
@pytest.mark.parametrize("state", [RuntimeState.RELOCATING, RuntimeState.RELOCATED, RuntimeState.DRAINING])
async def test_a_leaving_server_gets_no_new_client_and_keeps_those_it_has(
    autojump_clock: object, world: World, state: RuntimeState
) -> None:
    p = await listening(world, "p")
    await publish(world, p)
    c = await client(world, "c", store=True)
    await c.ready("p")
    p.pair.update(runtime_state=state)
    await publish(world, p)
    later = await client(world, "later", store=True)
    await trio.sleep(10)
    assert c.is_ready("p")
    assert p.pairs[0].is_up
    assert (c.targets, later.targets) == (0, 0)
    assert len(p.lanes) == 1
    assert later.phase("p") is PeerPhase.CONFIGURED
    with refused(zl.UnavailableError):
        await later.echo()
    q = await listening(world, "q")
    await publish(world, q)
    began = trio.current_time()
    await until(lambda: c.targets == later.targets == 1, 10)
    assert trio.current_time() - began <= 2.0
    # It is gone for good when its last connection is.
    p.pairs[0].hang_up()
    await trio.sleep(10)
    assert len(p.lanes) == 1


@pytest.mark.contract("LO-171")
async def test_a_server_that_is_gone_from_the_list_is_no_target_and_stays_connected(
    autojump_clock: object, world: World
) -> None:
    p = await listening(world, "p")
    await publish(world, p)
    c = await client(world, store=True)
    await c.ready("p")
    await withdraw(world, p)
    await until(lambda: c.targets == 0)
    await trio.sleep(20)
    assert p.pair.is_up
    with pytest.raises((zl.UnavailableError, zl.NotFoundError)):
        await c.echo()
    await publish(world, p)
    await until(lambda: c.targets == 1)
    assert len(p.pairs) == 1


@pytest.mark.contract("LV-123", "LV-124", "LV-155", "LV-156")
async def test_a_leaving_server_answers_what_it_accepted_and_goes_in_order(
    autojump_clock: object, world: World
) -> None:
    s = await server(world, "s", store=True)
    c = await client(world, "c", store=True)
    await until(lambda: c.targets == 1)
    watcher = client_puppet(world)
    pair = await watcher.connect(s.endpoint)
    answers: list[Any] = []

    async def call() -> None:
        answers.append(await c.rt.request_to_channel(CHANNEL, Echo(1, hold=9.0)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await until(lambda: s.got)
        nursery.start_soon(s.stop)
        await trio.sleep(1.5)
        (entry,) = await stored(world)
        assert entry.state is RuntimeState.DRAINING
        assert [each.admission.runtime_state for each in pair.app.commands(Update)][-1] is RuntimeState.DRAINING
        assert c.targets == 0
        assert c.channel.peers[0].state is PeerState.DRAINING
        with refused(zl.UnavailableError):
            await c.echo()
        assert answers == []
    assert answers == [Echoed(1, "s")]
    await until(lambda: pair.is_gone)
    assert pair.farewell == Close(CloseReason.ORDERLY)
    assert await stored(world) == []
    assert c.telemetry.total(catalogue.PEER_DISCONNECTS, reason="orderly_close", scope_kind="channel") == 1


async def stored(world: World) -> list[Any]:
    """The server descriptors in the store."""
    page = await world.store.scan(keys.client_server_prefix(CHANNEL))
    assert isinstance(page, Page)
    return [CLIENT_SERVER.decode(item.value) for item in page.items]


async def test_a_weight_changed_at_run_time_reaches_the_store(autojump_clock: object, world: World) -> None:
    s = await server(world, "s", store=True)
    s.rt.set_client_server_weight(CHANNEL, 7)
    await trio.sleep(0.5)
    (entry,) = await stored(world)
    assert (entry.weight, entry.state) == (7, RuntimeState.SERVING)


@pytest.mark.contract("LV-151")
async def test_probing_and_selection_go_on_without_the_store(autojump_clock: object, world: World) -> None:
    p, q = await listening(world, "p"), await listening(world, "q")
    await publish(world, p)
    await publish(world, q)
    c = await client(world, store=True)
    await c.ready("p", "q")
    ready = p.pair.ready_at or 0
    assert c.gate is not None
    c.gate.rule = every("refuse")
    q.answers_probes = False
    await trio.sleep_until(ready + 60.5)
    assert c.is_ready("p")
    assert len(p.pair.probes) == 12
    assert len(p.pairs) == 1
    assert c.targets >= 1  # q is connected again by now, to be silent once more
    assert c.failure("q").reason is FailureReason.PEER_DEADLINE  # type: ignore[union-attr]


@pytest.mark.contract("LV-150")
async def test_a_descriptor_with_a_new_endpoint_is_what_is_dialled_next(autojump_clock: object, world: World) -> None:
    p = await listening(world, "p")
    assert world.network is not None
    world.network.refuse(p.endpoint)
    await publish(world, p)
    c = await client(world, store=True)
    await trio.sleep(20)
    q = await listening(world, "p", generation=8)
    await publish(world, q)
    began = trio.current_time()
    await c.ready("p")
    assert trio.current_time() - began < 2.1  # the next poll, not the end of a backoff
    assert q.pair.is_up


@pytest.mark.contract("LV-158")
async def test_nothing_of_a_channel_remains_after_the_host_was_left(autojump_clock: object, world: World) -> None:
    await trio.lowlevel.checkpoint()
    before = trio.lowlevel.current_statistics().tasks_living
    p = await listening(world, "p")
    endpoint = "tcp://127.0.0.1:5779"
    known = [p.endpoint, endpoint, "tcp://127.0.0.1:5999"]
    async with serving(world, "s", uses=True, servers=known, listen=endpoint) as s:
        await s.ready("p", "s")
        await trio.sleep(12)
        core = s.rt._core
    await trio.lowlevel.checkpoint()
    assert trio.lowlevel.current_statistics().tasks_living == before
    assert len(core.liveness) == 0
    assert core.holders == {}
    assert core.liveness.next_deadline() is None
    assert world.network is not None
    dialled = [line for line in world.network.log if line[1] == "dial"]
    await trio.sleep(600)
    assert [line for line in world.network.log if line[1] == "dial"] == dialled
    assert p.pair.farewell == Close(CloseReason.ORDERLY)
