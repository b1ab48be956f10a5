"""A connection under test through a fault proxy, the same for every kind of connection.

`KINDS` maps a kind to what builds it: two nodes of which the second reaches the first through a proxy, and a bystander
that is connected to both directly and has to notice nothing. A kind is added by writing one such function; an end is
whoever judges readiness, so a kind where only one side does has one end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import pytest
import trio
from attrs import frozen

from tests.contract.mesh.nodes import CHANNEL, Node, World
from tests.contract.mesh.services import client, server
from tests.fault_proxy import DOWN, UP, Direction, FaultProxy
from tests.puppet import until
from zlinkpy.link import FailureReason
from zlinkpy.mesh import PeerSnapshot
from zlinkpy.telemetry import catalogue

SLACK = 1.0
"""Seconds by which something may be late: 50 ms of a busy machine, twenty times faster."""


@frozen(eq=False)
class End:
    """One side of the connection that has a notion of ready."""

    node: Node
    is_ready: Callable[[], bool]
    hears: Direction
    """The direction that brings it what the other side sends."""

    def disconnects(self, reason: FailureReason) -> float:
        """How many connections of this node ended for that reason."""
        return self.node.telemetry.total(catalogue.PEER_DISCONNECTS, reason=reason.value)


@frozen(eq=False)
class LinkUnderTest:
    """See the module. The dialling end comes first."""

    proxy: FaultProxy
    ends: tuple[End, ...]
    work: Callable[[], Awaitable[object]]
    """One application call over the connection; raises when it cannot be made."""
    bystander: Node
    bystander_is_ready: Callable[[], bool]
    dials: Callable[[], int]
    """How often the dialling end has dialled the proxy."""
    failure: Callable[[], FailureReason | None]
    """What the dialling end says of its last attempt."""

    @property
    def is_ready(self) -> bool:
        """At both ends."""
        return all(end.is_ready() for end in self.ends)

    def deaf(self, *black_holes: Direction) -> list[End]:
        """The ends that hear nothing when these directions are black-holed."""
        return [end for end in self.ends if end.hears in black_holes]

    async def ready(self, seconds: float = 30.0) -> None:
        await until(lambda: self.is_ready, seconds)

    async def losses(self, seconds: float) -> list[float]:
        """Wait until no end is ready; after how many seconds from now each of them stopped being so, in their order."""
        began = trio.current_time()
        lost: dict[int, float] = {}

        async def watch(number: int, end: End) -> None:
            await until(lambda: not end.is_ready(), seconds)
            lost[number] = trio.current_time() - began

        async with trio.open_nursery() as nursery:
            for number, end in enumerate(self.ends):
                nursery.start_soon(watch, number, end)
        return [lost[number] for number in range(len(self.ends))]

    async def stays_ready(self, seconds: float) -> None:
        """Look until then; a loss is a failure."""
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            assert self.is_ready
            await trio.sleep(0.1)

    def nobody_else_noticed(self) -> None:
        """The bystander's connections are the ones it began with."""
        assert self.bystander_is_ready()
        assert self.bystander.telemetry.total(catalogue.PEER_DISCONNECTS) == 0


@asynccontextmanager
async def route_mesh(world: World) -> AsyncIterator[LinkUnderTest]:
    """RouteMesh: node `a` listens and serves, node `b` dials it as a configured peer."""
    serves = {CHANNEL: 100}
    a = await world.host("a", serves=serves)
    async with FaultProxy(a.endpoint) as proxy:
        b = await world.host("b", peers=[proxy.endpoint])
        c = await world.host("c", peers=[a.endpoint, b.endpoint])

        def peer() -> PeerSnapshot:
            (found,) = (each for each in b.snapshot.peers if each.endpoint == proxy.endpoint)
            return found

        def failure() -> FailureReason | None:
            last = peer().last_failure
            return last.reason if last is not None else None

        try:
            link = LinkUnderTest(
                proxy=proxy,
                ends=(End(b, partial(b.is_ready, "a"), DOWN), End(a, partial(a.is_ready, "b"), UP)),
                work=partial(b.echo, timeout=60.0),
                bystander=c,
                bystander_is_ready=lambda: c.is_ready("a") and c.is_ready("b") and a.is_ready("c") and b.is_ready("c"),
                dials=lambda: peer().dials,
                failure=failure,
            )
            await until(link.bystander_is_ready, 30)
            yield link
        finally:
            await b.stop()


@asynccontextmanager
async def client_server(world: World) -> AsyncIterator[LinkUnderTest]:
    """ClientServer: a server, and a client that reaches it through the proxy; another client is the bystander."""
    a = await server(world, "a")
    async with FaultProxy(a.endpoint) as proxy:
        b = await client(world, "b", servers=[proxy.endpoint])
        c = await client(world, "c", servers=[a.endpoint])

        def ready_at_server() -> bool:
            # A server knows no client by name: the one that is not the bystander is `b`.
            return a.channel.ready_clients == 1 + c.is_ready("a")

        def failure() -> FailureReason | None:
            last = b.channel.peers[0].last_failure
            return last.reason if last is not None else None

        try:
            link = LinkUnderTest(
                proxy=proxy,
                ends=(End(b, partial(b.is_ready, "a"), DOWN), End(a, ready_at_server, UP)),
                work=partial(b.echo, timeout=60.0),
                bystander=c,
                bystander_is_ready=partial(c.is_ready, "a"),
                dials=lambda: b.channel.peers[0].dials,
                failure=failure,
            )
            await until(link.bystander_is_ready, 30)
            yield link
        finally:
            await b.stop()


KINDS: Mapping[str, Callable[[World], AbstractAsyncContextManager[LinkUnderTest]]] = {
    "route mesh": route_mesh,
    "ClientServer": client_server,
}

each_kind = pytest.mark.parametrize("kind", KINDS)
