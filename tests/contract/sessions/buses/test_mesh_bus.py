"""What only the mesh bus can do: hosts on one in-memory network, virtual time."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.contract.sessions.buses.nodes import CONTROL, EVENTS, Ears, MeshBuses, MeshNode, event, signal, until
from tests.location_hosts import Gate
from tests.puppet import MESH
from zlinkpy.location import LeaseDriver
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.sessions.errors import SessionSignalError, SignalPayloadError
from zlinkpy.sessions.mesh_bus import CHANNEL, INTEREST, MeshSignalBus
from zlinkpy.sessions.signal_codec import encode_signal
from zlinkpy.sessions.signal_intake import EVENTS_WAITING
from zlinkpy.sessions.types import SessionSignal, SignalKind

QUEUE = zl.JobQueueOptions(max_queued_application_jobs=10)


def interests_of(node: MeshNode, peer: MeshNode) -> Any:
    """What `node` knows of the interests of `peer`."""
    return next(each.interests for each in node.bus._peers.values() if each.member.rid == peer.rid)


class Received:
    """How many signals reached a node, wanted or not."""

    def __init__(self, node: MeshNode) -> None:
        channel = node.bus._channel
        assert channel is not None
        self.kinds: list[str] = []
        told = channel.told["zlink.session.signal"]

        def count(member: Any, data: bytes) -> None:
            self.kinds += [kind.value for kind in SignalKind if kind.value.encode() in data]
            told(member, data)

        channel.told["zlink.session.signal"] = count


@pytest.mark.contract("SR-449")
async def test_control_reaches_every_peer_and_events_those_who_want_them(
    autojump_clock: object, mesh_buses: MeshBuses
) -> None:
    one, two, three = [await mesh_buses.add() for _ in range(3)]
    at_two, at_three = Received(two), Received(three)
    hears, control_only = Ears(), Ears()
    await two.bus.subscribe("s", hears)
    await three.bus.subscribe("s", control_only, events=False)
    for kind in SignalKind:
        await one.bus.publish(signal(kind))
    await hears.count(len(SignalKind))
    await control_only.count(len(CONTROL))
    await trio.sleep(0.1)
    assert sorted(at_two.kinds) == sorted(kind.value for kind in SignalKind)
    assert sorted(at_three.kinds) == sorted(kind.value for kind in CONTROL)
    # A control signal goes to nodes that have never heard of the session, too: nothing is missed before they have.
    await one.bus.publish(signal(SignalKind.EVICT, "other"))
    await one.bus.publish(event(1, session="other"))
    await trio.sleep(0.1)
    assert at_two.kinds.count("EVICT") == at_three.kinds.count("EVICT") == 2
    assert at_two.kinds.count("EVENT") == 1


@pytest.mark.contract("SR-449")
async def test_after_a_reconnect_the_interest_is_known_again(autojump_clock: object, mesh_buses: MeshBuses) -> None:
    one, two = await mesh_buses.add(), await mesh_buses.add()
    ears = Ears()
    await two.bus.subscribe("s", ears)
    await one.bus.publish(event(1))
    await ears.count(1)
    before = set(one.bus._peers)
    (member,) = before
    member._link.lanes[next(iter(member._link.lanes))].close()
    await until(lambda: one.bus._peers and not before & set(one.bus._peers), 30)
    await until(lambda: "s" in interests_of(one, two), 30)
    await until(lambda: two.bus.statistics().peers == 1, 30)
    await one.bus.publish(event(2))
    await one.bus.publish(signal(SignalKind.YIELD, n=3))
    await until(lambda: sorted(ears.numbers) == [1, 2, 3])


async def test_a_node_that_joins_hears_what_is_wanted_before_it_was_there(
    autojump_clock: object, mesh_buses: MeshBuses
) -> None:
    one = await mesh_buses.add()
    ears = Ears()
    for number in range(3000):
        await one.bus.subscribe(f"s{number}", ears)
    two = await mesh_buses.add()
    await until(lambda: len(interests_of(two, one)) == 3000)
    await two.bus.publish(event(7, session="s2999"))
    await until(lambda: ears.numbers == [7])


async def test_a_bus_that_is_opened_again_on_the_same_connection_starts_over(
    autojump_clock: object, mesh_buses: MeshBuses
) -> None:
    one, two = await mesh_buses.add(), await mesh_buses.add()
    wanted, ears = Ears(), Ears()
    await one.bus.subscribe("here", wanted)
    old = await two.bus.subscribe("s", ears)
    link = next(iter(one.bus._peers))._link
    await two.close()
    await old.aclose()
    # While it is closed its peers cannot tell it anything, and go on.
    await one.bus.publish(event(1))
    await one.bus.subscribe("meanwhile", wanted)
    bus, _ = await mesh_buses.keeper.keep(two.bus)
    assert bus is two.bus
    await mesh_buses.connected()
    await until(lambda: sorted(interests_of(two, one)._ids) == ["here", "meanwhile"])
    assert len(interests_of(one, two)) == 0
    assert next(iter(one.bus._peers))._link is link
    await two.bus.publish(event(2, session="meanwhile"))
    await until(lambda: wanted.numbers == [2])
    assert ears == []


@pytest.mark.contract("SR-450")
async def test_two_object_clients_with_routers_connect_and_no_call_finds_the_channel(
    autojump_clock: object, mesh_buses: MeshBuses
) -> None:
    store = MemoryStore()
    options: dict[str, Any] = {"lease_driver": LeaseDriver.LOOP}
    clients = [
        await mesh_buses.add(prepare=lambda mesh: mesh.object_client(), location_store=Gate(store), **options)
        for _ in range(2)
    ]
    one, two = clients
    assert one.is_ready(two.rid)
    assert two.is_ready(one.rid)
    status = one.rt.mesh_status(MESH)
    assert status.channel_weights == {CHANNEL: 0}
    assert CHANNEL not in status.ready_targets
    ears = Ears()
    await two.bus.subscribe("s", ears)
    await one.bus.publish(signal())
    await one.bus.publish(event(1))
    await ears.count(2)
    message = zl.RawMessage("zlink.session.signal", b"\x80")
    for call in (one.rt.send_to_channel(CHANNEL, message), one.rt.request_to_channel(CHANNEL, message)):
        with pytest.raises(zl.NotFoundError, match="not registered in this process"):
            await call
    with pytest.raises(zl.NotFoundError):
        one.rt.set_channel_weight(MESH, CHANNEL, 100)


@pytest.mark.contract("SR-450")
async def test_two_object_clients_without_routers_stay_apart(autojump_clock: object, mesh_buses: MeshBuses) -> None:
    """The counterpart: it is the bus that makes them require each other."""
    store = MemoryStore()
    rts = []
    for name in ("a", "b"):
        host = zl.Host(
            location_store=Gate(store),
            lease_driver=LeaseDriver.LOOP,
            watchdog=False,
            transport=lambda _entropy, name=name: mesh_buses.network.transport(name),
        )
        host.mesh(MESH).object_client()
        rts.append((await mesh_buses.keeper.keep(host.run()))[0])
    await trio.sleep(60)
    assert [peer.state.value for rt in rts for peer in rt.mesh_status(MESH).peers] == ["not_required"] * 2


@pytest.mark.contract("SR-451")
async def test_an_interrupt_is_handled_before_the_events_that_came_before_it(
    autojump_clock: object, mesh_buses: MeshBuses
) -> None:
    one, two = await mesh_buses.add(), await mesh_buses.add()
    handled: list[SessionSignal] = []
    await two.bus.subscribe("s", handled.append)
    channel = two.bus._channel
    assert channel is not None
    (member,) = channel
    told = channel.told["zlink.session.signal"]
    # In one receive turn, so that nothing is handled between them.
    for number in range(10_000):
        kind = "TurnCompleted" if number < 2 else "TraceDelta" if number % 10 == 0 else "OutputDelta"
        told(member, encode_signal(event(number, kind)))
    # The first did not have to stand in line.
    assert [each.payload["n"] for each in handled] == [0]
    told(member, encode_signal(signal()))
    assert handled[-1].kind is SignalKind.INTERRUPT
    assert len(handled) == 2
    statistics = two.bus.statistics().intake
    assert statistics.events_waiting == EVENTS_WAITING
    assert statistics.events_lost == 9999 - EVENTS_WAITING
    await until(lambda: len(handled) == EVENTS_WAITING + 2)
    events = handled[2:]
    assert events[0].payload["type"] == "TurnCompleted"
    # All traces went before the first piece of output did.
    assert not [each for each in events if each.payload["type"] == "TraceDelta"]
    assert [each.payload["n"] for each in events] == sorted(each.payload["n"] for each in events)
    assert one.bus.is_open


async def test_a_paused_peer_loses_old_control_signals_and_events_by_grade_and_holds_up_nobody(
    autojump_clock: object, mesh_buses: MeshBuses, caplog: pytest.LogCaptureFixture
) -> None:
    one = await mesh_buses.add()
    paused = await mesh_buses.add(job_queue=QUEUE)
    third = await mesh_buses.add()
    ears, others = Ears(), Ears()
    await paused.bus.subscribe("s", ears)
    await third.bus.subscribe("s", others)
    paused.press(10)
    await trio.sleep(0.01)
    start = trio.current_time()
    await one.bus.publish(signal(SignalKind.INTERRUPT, n=1))
    await one.bus.publish_all([event(number, "OutputDelta" if number % 2 else "TraceDelta") for number in range(9000)])
    assert trio.current_time() == start
    await others.count(9001 - (9000 - EVENTS_WAITING), 1)
    assert one.bus.statistics().waiting == 1 + EVENTS_WAITING
    assert one.bus.statistics().events_lost == 9000 - EVENTS_WAITING
    await trio.sleep(0.9)
    await one.bus.publish(signal(SignalKind.EVICT, n=2))
    assert one.bus.statistics().control_lost == 0
    await trio.sleep(0.2)
    # The first has waited for a second, the second has not.
    assert one.bus.statistics().control_lost == 1
    assert f"lost 1 control signals for {paused.rid}" in caplog.text
    assert ears == []
    paused.relieve(10)
    await ears.count(1 + EVENTS_WAITING, 5)
    assert ears[0].kind is SignalKind.EVICT
    assert SignalKind.INTERRUPT not in ears.kinds
    kept = [each.payload["n"] for each in ears[1:] if each.payload["type"] == "OutputDelta"]
    assert kept == list(range(1, 9000, 2))
    assert one.bus.statistics().waiting == 0
    # And the outbox is out of the way again.
    await one.bus.publish(signal(SignalKind.YIELD))
    await until(lambda: SignalKind.YIELD in ears.kinds)


async def test_too_many_control_signals_for_a_paused_peer_are_bounded(
    autojump_clock: object, mesh_buses: MeshBuses
) -> None:
    one, paused = await mesh_buses.add(), await mesh_buses.add(job_queue=QUEUE)
    ears = Ears()
    await paused.bus.subscribe("s", ears)
    paused.press(10)
    await trio.sleep(0.01)
    await one.bus.publish_all([signal(SignalKind.MESSAGE_ENQUEUED, n=number) for number in range(1500)])
    assert one.bus.statistics().waiting == 1024
    paused.relieve(10)
    await ears.count(1024)
    assert ears.numbers == list(range(1500 - 1024, 1500))


async def test_a_subscribe_waits_a_second_for_a_peer_that_does_not_answer_and_no_longer(
    autojump_clock: object, mesh_buses: MeshBuses
) -> None:
    one, silent = await mesh_buses.add(), await mesh_buses.add(job_queue=QUEUE)
    silent.press(10)
    await trio.sleep(0.01)
    ears = Ears()
    start = trio.current_time()
    await one.bus.subscribe("s", ears)
    assert trio.current_time() - start == pytest.approx(1.0, abs=0.01)
    start = trio.current_time()
    await one.bus.subscribe("t", ears, events=False)
    assert trio.current_time() == start
    silent.relieve(10)
    await until(lambda: "s" in interests_of(silent, one), 10)
    await silent.bus.publish(event(1))
    await until(lambda: ears.numbers == [1])


async def test_a_subscribe_does_not_wait_for_a_peer_that_goes(autojump_clock: object, mesh_buses: MeshBuses) -> None:
    one, going = await mesh_buses.add(), await mesh_buses.add(job_queue=QUEUE)
    going.press(10)
    await trio.sleep(0.01)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.bus.subscribe, "s", Ears())
        await trio.sleep(0.1)
        (member,) = one.bus._peers
        member._link.lanes[next(iter(member._link.lanes))].close()
    assert trio.current_time() - start < 0.5


async def test_what_a_peer_says_wrongly_is_refused_and_changes_nothing(
    autojump_clock: object, mesh_buses: MeshBuses
) -> None:
    one, two = await mesh_buses.add(), await mesh_buses.add()
    ears = Ears()
    await two.bus.subscribe("s", ears)
    channel = two.bus._channel
    assert channel is not None
    (member,) = channel
    for payload in (
        b"",
        b"\xc1",
        b"\x80",
        b"\x91\x01",
        b"\x92\x07\x90",
        b"\x92\x01\x91\x05",
        b"\x92\xc3\x90",
        b"\x92\x01\x05",
    ):
        with pytest.raises(zl.ProtocolError):
            await member.ask(INTEREST, payload, timeout=1)
    with pytest.raises(zl.NotFoundError):
        await member.ask("zlink.session.newer", b"\x80", timeout=1)
    assert member.tell(channel.frames("zlink.session.newer", b"\x80"))
    assert sorted(interests_of(one, two)._ids) == ["s"]
    await one.bus.publish(event(1))
    await until(lambda: ears.numbers == [1])


async def test_a_peer_that_wants_too_many_sessions_gets_everything(
    autojump_clock: object, mesh_buses: MeshBuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zlinkpy.sessions.interest_machine.IDS_KEPT", 100)
    one, two = await mesh_buses.add(), await mesh_buses.add()
    ears = Ears()
    async with trio.open_nursery() as nursery:
        for number in range(150):
            nursery.start_soon(two.bus.subscribe, f"s{number}", ears)
    assert interests_of(one, two).everything
    assert len(interests_of(one, two)) == 0
    for number in (0, 149):
        await one.bus.publish(event(number, session=f"s{number}"))
    await until(lambda: sorted(ears.numbers) == [0, 149])


async def test_signals_of_a_node_go_out_while_its_own_host_is_full_of_work(
    autojump_clock: object, mesh_buses: MeshBuses
) -> None:
    """Signals take no job permit on either side."""
    one, two = await mesh_buses.add(job_queue=QUEUE), await mesh_buses.add()
    ears = Ears()
    await two.bus.subscribe("s", ears)
    one.press(10)
    await trio.sleep(0.01)
    await one.bus.publish(signal())
    await one.bus.publish(event(1))
    await ears.count(2)
    assert two.rt.status.permits_in_use == 0
    one.relieve(10)


async def test_a_bus_needs_its_host_and_there_is_one_per_mesh(autojump_clock: object, mesh_buses: MeshBuses) -> None:
    host = zl.Host(watchdog=False, transport=lambda _entropy: mesh_buses.network.transport("x"))
    mesh = host.mesh(MESH)
    first, second = MeshSignalBus(mesh), MeshSignalBus(mesh)
    with pytest.raises(zl.InvalidOperationError, match="host is not running"):
        await first.__aenter__()
    with pytest.raises(SessionSignalError, match="not open"):
        await first.publish(signal())
    async with host.run():
        with pytest.raises(zl.InvalidOperationError, match="the host has started"):
            MeshSignalBus(mesh)
        async with first:
            with pytest.raises(zl.InvalidOperationError, match="one user in a process"):
                await second.__aenter__()
            await first.publish(signal())
        async with second:
            await second.publish(signal())
        with pytest.raises(ZeroDivisionError):
            async with first:
                raise ZeroDivisionError
        with trio.move_on_after(1) as scope:
            async with first:
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_an_ordinary_host_of_the_mesh_is_sent_nothing(
    autojump_clock: object, mesh_buses: MeshBuses, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    one = await mesh_buses.add()
    host = zl.Host(watchdog=False, transport=lambda _entropy: mesh_buses.network.transport("plain"))
    host.mesh(MESH, rid="plain", peers=[one.endpoint])
    await mesh_buses.keeper.keep(host.run())
    await until(lambda: one.is_ready("plain"))
    for kind in (*CONTROL, *EVENTS):
        await one.bus.publish(signal(kind))
    await trio.sleep(1)
    assert one.bus.statistics().peers == 0
    assert "nothing here takes it" not in caplog.text


async def test_a_signal_that_the_mesh_would_not_take_costs_no_connection(
    autojump_clock: object, mesh_buses: MeshBuses
) -> None:
    nodes = [await mesh_buses.add(mesh={"max_message_bytes": 2 << 20}) for _ in range(2)]
    one, two = nodes
    ears = Ears()
    await two.bus.subscribe("s", ears)
    with pytest.raises(SignalPayloadError, match="max_message_bytes"):
        await one.bus.publish_all([signal(SignalKind.TURN_RESULT, answer="x" * (3 << 20)), event(1)])
    await until(lambda: ears.numbers == [1])
    await one.bus.publish(signal(SignalKind.TURN_RESULT, answer="x" * 2_000_000))
    await ears.count(2)
    assert one.bus.statistics().peers == 1
