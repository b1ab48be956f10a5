"""Events that are published together travel together, and lose nothing by it (docs/session-signals.md)."""

from __future__ import annotations

import logging
from typing import Any

import msgpack
import pytest
import trio
from attrs import evolve

import zlinkpy as zl
from tests.contract.sessions.buses.nodes import Ears, MeshBuses, MeshNode, event, signal, until
from zlinkpy.sessions.mesh_bus import BATCH_BYTES, BATCH_SIGNALS, SIGNAL, SIGNALS
from zlinkpy.sessions.signal_codec import ARRAY_HEADER_BYTES, decode_signals, encode_signal, join_signals
from zlinkpy.sessions.types import SignalKind

QUEUE = zl.JobQueueOptions(max_queued_application_jobs=10)


def watch(node: MeshNode) -> list[tuple[str, int]]:
    """The messages that reach `node` from now on: packet and size."""
    channel = node.bus._channel
    assert channel is not None
    seen: list[tuple[str, int]] = []

    def watched(packet: str) -> Any:
        told = channel.told[packet]

        def note(member: Any, data: bytes) -> None:
            seen.append((packet, len(data)))
            told(member, data)

        return note

    for packet in (SIGNAL, SIGNALS):
        channel.told[packet] = watched(packet)
    return seen


async def test_a_session_s_events_go_in_few_messages_and_control_by_itself(
    autojump_clock: object, mesh_buses: MeshBuses
) -> None:
    one, two = await mesh_buses.add(), await mesh_buses.add()
    seen = watch(two)
    ears = Ears()
    await two.bus.subscribe("s", ears)
    await two.bus.subscribe("t", ears)
    events = [event(number) for number in range(BATCH_SIGNALS + 5)]
    await one.bus.publish_all([*events, signal(n=70), event(71), event(72, session="t"), event(73, session="t")])
    await ears.count(BATCH_SIGNALS + 9)
    assert [packet for packet, _ in seen] == [SIGNALS, SIGNALS, SIGNAL, SIGNAL, SIGNALS]
    numbers = [each.payload["n"] for each in ears if each.kind is SignalKind.EVENT]
    assert numbers == [*range(BATCH_SIGNALS + 5), 71, 72, 73]
    assert SignalKind.INTERRUPT in ears.kinds


async def test_no_message_is_larger_than_a_batch(autojump_clock: object, mesh_buses: MeshBuses) -> None:
    one, two = await mesh_buses.add(), await mesh_buses.add()
    seen = watch(two)
    ears = Ears()
    await two.bus.subscribe("s", ears)
    large = {"text": "x" * 900}
    await one.bus.publish_all([evolve(each, payload={**each.payload, **large}) for each in map(event, range(100))])
    await ears.count(100)
    assert ears.numbers == list(range(100))
    sizes = [size for _, size in seen]
    assert max(sizes) <= BATCH_BYTES + ARRAY_HEADER_BYTES
    assert len(sizes) == 3


async def test_what_has_to_wait_for_a_peer_waits_one_by_one_and_is_not_overtaken(
    autojump_clock: object, mesh_buses: MeshBuses
) -> None:
    one, paused = await mesh_buses.add(), await mesh_buses.add(job_queue=QUEUE)
    ears = Ears()
    await paused.bus.subscribe("s", ears)
    paused.press(10)
    await trio.sleep(0.01)
    await one.bus.publish_all([event(number) for number in range(1000)])
    assert one.bus.statistics().waiting == 1000
    paused.relieve(10)
    while one.bus.statistics().waiting == 1000:  # noqa: ASYNC110 - what is waited for has no event
        await trio.lowlevel.checkpoint()
    assert one.bus.statistics().waiting
    await one.bus.publish_all([event(number) for number in range(1000, 1010)])
    await ears.count(1010)
    assert ears.numbers == list(range(1010))


async def test_routers_of_one_process_hear_a_batch_too(autojump_clock: object, mesh_buses: MeshBuses) -> None:
    one = await mesh_buses.add()
    ears = Ears()
    await one.bus.subscribe("s", ears)
    await one.bus.publish_all([event(number) for number in range(10)])
    await until(lambda: ears.numbers == list(range(10)))


def test_a_signal_of_a_batch_that_cannot_be_read_takes_no_other_along(caplog: pytest.LogCaptureFixture) -> None:
    good = [encode_signal(event(number)) for number in range(2)]
    newer = msgpack.packb({"s": "s", "k": "HOLOGRAM", "o": "n", "i": "", "p": {}})
    with caplog.at_level(logging.WARNING):
        signals = decode_signals(join_signals([good[0], newer, msgpack.packb(5), good[1]]))
    assert [each.payload["n"] for each in signals] == [0, 1]
    assert "its kind is 'HOLOGRAM'" in caplog.text
    assert "it is no map" in caplog.text


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc1", b"\x93\x80", encode_signal(event(1))], ids=repr)
def test_what_is_no_batch_is_dropped_with_one_warning(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert decode_signals(data) == []
    assert len(caplog.records) == 1
    assert caplog.messages[0].startswith("dropped a signal: it ")
