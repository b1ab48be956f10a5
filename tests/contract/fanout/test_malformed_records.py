"""Malformed fanout records: they end the connection they came on, and touch no other (LV §8)."""

from __future__ import annotations

import pytest
import trio

from tests.contract.fanout.world import World, event, heard, ready
from zlinkpy.fanout import PublisherPhase
from zlinkpy.link import FailureReason
from zlinkpy.telemetry import catalogue
from zlinkpy.wire import BEACON_PAYLOAD, BEACON_TOPIC

MALFORMED_BEACONS = {
    "other payload": (BEACON_TOPIC, b"ZF\x01\x02"),
    "empty payload": (BEACON_TOPIC, b""),
    "one frame": (BEACON_TOPIC,),
    "three frames": (BEACON_TOPIC, BEACON_PAYLOAD, b""),
}
_TOPIC, _HEAD, _CONTENT = event()
MALFORMED_EVENTS = {
    "no head": (_TOPIC,),
    "no payload": (_TOPIC, _HEAD),
    "a frame too many": (_TOPIC, _HEAD, _CONTENT, b""),
    "magic": (_TOPIC, b"XX" + _HEAD[2:], _CONTENT),
    "major": (_TOPIC, _HEAD[:2] + b"\2" + _HEAD[3:], _CONTENT),
    "command": (_TOPIC, _HEAD[:3] + b"\5" + _HEAD[4:], _CONTENT),
    "flag": (_TOPIC, _HEAD[:4] + b"\2" + _HEAD[5:], _CONTENT),
    "metadata announced and missing": (_TOPIC, _HEAD[:4] + b"\1" + _HEAD[5:], _CONTENT),
    "trailing byte": (_TOPIC, _HEAD + b"\0", _CONTENT),
    "another channel": tuple(event(channel="sport")),
}


@pytest.mark.parametrize("name", MALFORMED_BEACONS)
@pytest.mark.contract("LV-105", "LV-106")
async def test_a_malformed_beacon_ends_its_own_connection_at_once(
    autojump_clock: object, world: World, name: str
) -> None:
    await ends_only_its_own(world, MALFORMED_BEACONS[name])


@pytest.mark.parametrize("name", MALFORMED_EVENTS)
@pytest.mark.contract("LV-108")
async def test_a_malformed_event_ends_its_own_connection_at_once(
    autojump_clock: object, world: World, name: str
) -> None:
    await ends_only_its_own(world, MALFORMED_EVENTS[name])


async def ends_only_its_own(world: World, frames: tuple[bytes, ...]) -> None:
    u = await world.living("u")
    v = await world.living("v")
    s = await world.subscriber(u.endpoint, v.endpoint)
    await s.ready(u.endpoint, v.endpoint)
    before = s.heard(u.endpoint).last_receive
    await trio.sleep(0.3)
    u.send(*frames)
    await trio.sleep(0.001)
    seen = s.heard(u.endpoint)
    assert seen.phase is PublisherPhase.RECONNECTING
    assert seen.last_failure.reason is FailureReason.PROTOCOL_ERROR
    assert s.got == []
    assert before is not None
    assert s.telemetry.total(catalogue.FANOUT_RECEIVED) == 0
    untouched = s.heard(v.endpoint)
    assert (untouched.phase, untouched.dials) == (PublisherPhase.READY, 1)
    # A new socket, and the publisher, which behaves again, is ready again.
    await s.ready(u.endpoint)
    assert s.heard(u.endpoint).dials == 2


@pytest.mark.parametrize("name", MALFORMED_BEACONS)
@pytest.mark.contract("LV-107")
async def test_a_malformed_beacon_as_the_first_record_makes_nothing_ready(
    autojump_clock: object, world: World, name: str
) -> None:
    u, s = await heard(world)
    u.send(*MALFORMED_BEACONS[name])
    for _ in range(20):
        await trio.sleep(0.05)
        assert not s.is_ready(u.endpoint)
    assert s.failure(u.endpoint).reason is FailureReason.PROTOCOL_ERROR
    assert s.telemetry.total(catalogue.PEER_CONNECTS) == 0


async def test_a_payload_that_does_not_decode_costs_the_event_alone(autojump_clock: object, world: World) -> None:
    u, s, _ = await ready(world)
    topic, head, _ = event()
    u.send(topic, head, b"\xc1")
    u.event(2)
    await trio.sleep(0.1)
    assert s.numbers == [2]
    assert s.is_ready(u.endpoint)
    assert s.telemetry.total(catalogue.FANOUT_FAILURES) == 1
