"""What waits in the inbox of either provider, and the router that runs it (SR §4)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.contract.sessions.cluster import World, at_once, cluster, settled, submit
from tests.contract.sessions.conftest import Bench
from zlinkpy.sessions.payloads import encode_envelope
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.types import InboundMessage, Priority, TurnInput


@asynccontextmanager
async def routers(bench: Bench, world: World, *names: str) -> AsyncIterator[list[SessionRouter]]:
    """Routers over the stores of the bench."""
    world.stores = bench.stores
    # As they are: a recorded store shows no sign of the connections of its own that it offers to the renewals.
    given = {"lease_store": bench.stores.leases, "idempotency_store": bench.stores.idempotency}
    async with cluster(world, *names, **given) as running:
        yield running


class Heard(list[TurnInput]):
    """Inputs that were offered to a turn, and a bell for the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.came = trio.Event()

    def append(self, offered: TurnInput) -> None:
        super().append(offered)
        self.came.set()


@pytest.mark.contract("SR-075")
async def test_messages_without_a_turn_id_get_new_ones(bench: Bench) -> None:
    world = World()
    world.behave = at_once
    async with routers(bench, world, "n1") as [router]:
        old = [InboundMessage("s", "chat", text) for text in ("one", "two")]
        assert not any(b"turn_id" in encode_envelope(message) for message in old)
        places = [await bench.stores.inbox.deliver(message) for message in old]
        router._core.ring("s")
        with trio.fail_after(10):
            turns = [await world.turn(number) for number in range(2)]
        assert [turn.text for turn in turns] == ["one", "two"]
        minted = [turn.ctx.turn_id for turn in turns]
        assert [str(uuid.UUID(turn_id)) for turn_id in minted] == minted
        assert len({*minted, *places}) == 4


@pytest.mark.contract("SR-079")
@pytest.mark.parametrize("node", [0, 1], ids=["submitted on the holder", "submitted elsewhere"])
async def test_a_running_turn_gets_an_input_only_when_it_is_collected(bench: Bench, node: int) -> None:
    world = World()
    asked, go_on = trio.Event(), trio.Event()

    async def hold(_: str, name: str, __: tuple[object, ...]) -> None:
        if name == "collect":
            asked.set()
            await go_on.wait()

    async with routers(bench, world, "n1", "n2") as nodes:
        busy = await submit(nodes[0], "busy")
        turn = await world.turn()
        turn.offered = offered = Heard()
        world.before_call = hold
        try:
            found = await submit(nodes[node], "more", priority=Priority.NOW)
            with trio.fail_after(10):
                await asked.wait()
            assert offered == []
            assert not await bench.stores.inbox.is_empty("s")
        finally:
            # The collect is shielded: nothing ends while it waits.
            go_on.set()
        with trio.fail_after(10):
            await offered.came.wait()
        assert [each.text for each in offered] == ["more"]
        assert await bench.stores.inbox.is_empty("s")
        turn.finish("both")
        assert [(await settled(each, 10)).answer for each in (busy, found)] == ["both", "both"]
        assert len(world.turns) == 1
