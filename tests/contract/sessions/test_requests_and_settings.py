"""Settings and requests as values, handler binding, order across clocks, frames of two turns (SR §1, §7, §11, §15)."""

from __future__ import annotations

import time
from typing import Any

import pytest
import trio
from attrs.exceptions import FrozenInstanceError
from trio.testing import wait_all_tasks_blocked

from tests.contract.sessions.cluster import World, at_once, cluster, held, settled, submit
from zlinkpy.errors import ConfigurationError
from zlinkpy.sessions.errors import ConflictingHandlerError
from zlinkpy.sessions.events import OutputDelta
from zlinkpy.sessions.metrics import HOOKS
from zlinkpy.sessions.types import (
    DeploymentMode,
    InboundMessage,
    Priority,
    RouterConfig,
    SignalKind,
    SubmitRequest,
    TextInput,
)

DEFAULTS = {
    "idle_ttl": 600,
    "lock_lease": 30,
    "lock_extend_interval": 10,
    "status_heartbeat_interval": 10,
    "holder_loss_sweep_interval": 15,
    "idempotency_primary_ttl": 86_400,
    "idempotency_secondary_ttl": 30,
    "idempotency_forward_ttl": 300,
    "release_interrupt_timeout": 5,
    "cache_sweep_interval": 60,
    "relay_close_drain_timeout": 2,
}


@pytest.mark.contract("SR-001")
def test_the_defaults() -> None:
    router = World().router(config=None)
    config = router.config
    assert {name: getattr(config, name) for name in DEFAULTS} == DEFAULTS
    assert (config.max_cached_sessions, config.status_broadcast) == (1000, False)
    assert config.mode is DeploymentMode.SINGLE_NODE
    # One function that does nothing, for every hook.
    assert set(vars(router._core.metrics)) == set(HOOKS)
    assert len(set(vars(router._core.metrics).values())) == 1


@pytest.mark.contract("SR-008")
def test_a_lease_is_longer_than_its_interval() -> None:
    for interval in (30.0, 31.0):
        with pytest.raises(ConfigurationError, match="lock_extend_interval"):
            RouterConfig(lock_extend_interval=interval)
    assert RouterConfig(lock_extend_interval=29.9).lock_lease == 30


@pytest.mark.contract("SR-009")
@pytest.mark.parametrize("name", sorted(DEFAULTS))
@pytest.mark.parametrize("value", [0, -1])
def test_durations_are_positive(name: str, value: float) -> None:
    if name == "relay_close_drain_timeout" and value == 0:
        assert RouterConfig(relay_close_drain_timeout=0).relay_close_drain_timeout == 0
        return
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ConfigurationError, match=name):
        RouterConfig(**settings)


@pytest.mark.contract("SR-009")
def test_a_cache_has_room_for_one() -> None:
    with pytest.raises(ConfigurationError, match="max_cached_sessions"):
        RouterConfig(max_cached_sessions=0)


@pytest.mark.contract("SR-020", "SR-021", "SR-023")
def test_a_request() -> None:
    whole: dict[str, Any] = {"session_id": "s", "handler_ref": "chat", "input": "hello"}
    for name in whole:
        with pytest.raises(ValueError, match=name):
            SubmitRequest(**{key: value for key, value in whole.items() if key != name})
    request = SubmitRequest(**whole)
    assert request.input == TextInput("hello")
    assert SubmitRequest("s", "chat", "  as it is\n").input == TextInput("  as it is\n")
    with pytest.raises(FrozenInstanceError):
        request.session_id = "other"  # type: ignore[misc]
    assert (request.handler_variant, request.idempotency_key, request.initiator) == (None, None, None)
    assert (dict(request.options), dict(request.submit_options), dict(request.open_attributes)) == ({}, {}, {})
    assert request.priority is Priority.NEXT


@pytest.mark.contract("SR-022")
def test_variants() -> None:
    for variant in ("", "  ", "a:b"):
        with pytest.raises(ValueError, match="handler_variant"):
            SubmitRequest("s", "chat", "x", handler_variant=variant)
    assert SubmitRequest("s", "chat", "x", handler_variant="tenant-1").handler_id == "handler:chat:tenant-1"


@pytest.mark.contract("SR-253", "SR-254")
async def test_a_session_stays_with_its_handler(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1", refs=("chat", "other")) as [router]:
        await settled(await submit(router))
        with pytest.raises(ConflictingHandlerError):
            await submit(router, handler="other")
        await settled(await submit(router))
        await wait_all_tasks_blocked()
        assert len(world.probes) == 1
        assert len(router._core.cache) == 1


@pytest.mark.contract("SR-128")
async def test_frames_of_two_turns_of_one_pass(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with cluster(world, "n1", "n2") as [one, two]:
        await held(world, one)
        world.log.clear()
        found = [await submit(two, str(number)) for number in range(2)]
        for number in (1, 2):
            turn = await world.turn(number)
            turn.ctx.emit(OutputDelta(turn.text))
            # What a handler has from somewhere else, a stream of the first turn say, is a frame of its own turn.
            turn.ctx.emit(OutputDelta(f"{turn.text} again", turn_id=found[0].turn_id))
            turn.finish()
        for each in found:
            await settled(each)
        await trio.sleep(3)
        deltas = [each.payload for each in world.published(SignalKind.EVENT) if each.payload["type"] == "OutputDelta"]
        assert [(each["text"], each["turn"]) for each in deltas] == [
            ("0", found[0].turn_id),
            ("0 again", found[0].turn_id),
            ("1", found[1].turn_id),
            ("1 again", found[1].turn_id),
        ]


@pytest.mark.contract("SR-185")
async def test_order_is_arrival_whatever_a_sender_claims_to_know(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.behave = at_once
    async with cluster(world, "n1") as [router]:
        for number in range(6):
            await world.stores.inbox.deliver(InboundMessage("s", "chat", str(number), id=f"9:{9 - number}"))
            await trio.sleep(0.01)
        router._core.ring("s")
        await wait_all_tasks_blocked()
        assert [turn.text for turn in world.turns] == [str(number) for number in range(6)]


@pytest.mark.contract("SR-185")
async def test_two_nodes_that_disagree_by_an_hour_are_served_as_they_come(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    async with cluster(world, "n1", "n2", "n3") as [holder, early, late]:
        first = await submit(holder, "first")
        turn = await world.turn()
        found = []
        for number in range(6):
            ahead = number % 2
            monkeypatch.setattr(time, "time", lambda ahead=ahead: 1_700_000_000.0 + 3600 * ahead)
            found.append(await submit(late if ahead else early, str(number)))
            await trio.sleep(0.01)
        world.behave = at_once
        turn.finish()
        for each in (first, *found):
            await settled(each)
        assert [turn.text for turn in world.turns] == ["first", *map(str, range(6))]
