"""Whole hosts on an in-memory network, in virtual time: what an application sees of them.

Nodes have fixed routing ids and dial each other by port (manual topology), so that a test can say who is smaller and
who dials whom. Every node counts what its handlers were given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from attrs import define, field

import zlinkpy as zl
from tests.puppet import Puppet, until
from zlinkpy.entropy import SeededEntropy
from zlinkpy.execution import Permits
from zlinkpy.location import LeaseDriver
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.store import Page
from zlinkpy.mesh import PeerPhase
from zlinkpy.telemetry.memory import InMemoryTelemetry
from zlinkpy.transport import MemoryNetwork

MESH = "play"
CHANNEL = "work"
both_kinds = pytest.mark.parametrize("lan", ["mesh", "client_server"], indirect=True)
"""For what holds on a channel of either topology."""


@zl.message
class Note:
    n: int = 0
    items: list[int] = attrs.field(factory=list)
    hold: float = 0.0


@zl.message
class Answer:
    n: int
    who: str


@zl.message
class Ask(zl.Request[Answer]):
    n: int = 0
    hold: float = 0.0


@define(eq=False)
class HeldPermits:
    """Permits a test has taken out of circulation."""

    permits: Permits
    count: int = 0

    def __call__(self) -> None:
        """Give one back."""
        assert self.count
        self.count -= 1
        self.permits.release()

    def all(self) -> None:
        """Give the rest back."""
        while self.count:
            self()


@define(eq=False)
class Node:
    """A running host and what its handlers were given."""

    name: str
    host: zl.Host
    rt: zl.Runtime
    telemetry: InMemoryTelemetry
    got: list[tuple[Any, zl.MessageContext]]
    ended: list[Any]
    """Messages whose handler ran to its end."""
    on_mesh: bool = True
    """False for a node of a ClientServer channel."""

    @property
    def core(self) -> Any:
        """The host's inside, for what no public name shows: permits and parked records."""
        return self.rt._core

    @property
    def numbers(self) -> list[int]:
        """`n` of everything the handlers were given, in order."""
        return [message.n for message, _ in self.got]

    @property
    def targets(self) -> int:
        """Servers that a call on the channel can choose from."""
        if self.on_mesh:
            return self.rt.mesh_status(MESH).ready_targets[CHANNEL]
        return self.rt.channel_status(CHANNEL).ready_targets

    @property
    def peers(self) -> tuple[Any, ...]:
        """The diagnostic view of its peers."""
        return self.rt.mesh_snapshot(MESH).peers if self.on_mesh else self.rt.channel_status(CHANNEL).peers

    def snapshot(self, rid: str) -> zl.MeshSnapshot | Any:
        """The diagnostic view of one peer, or None."""
        return next((peer for peer in self.peers if peer.node_rid == rid), None)

    def is_ready(self, rid: str) -> bool:
        peer = self.snapshot(rid)
        return peer is not None and peer.phase is PeerPhase.READY

    async def ready(self, *rids: str) -> None:
        """Wait until these peers are ready, and selectable where they serve."""
        await until(lambda: all(self.is_ready(rid) for rid in rids))

    async def target(self, count: int = 1) -> None:
        """Wait until the channel has so many targets."""
        await until(lambda: self.targets == count)

    def use_up_permits(self, leave: int = 0) -> HeldPermits:
        """Take all free permits but `leave`."""
        permits = self.core.permits
        held = HeldPermits(permits)
        while permits.in_use < permits.maximum - leave:
            assert permits.try_take()
            held.count += 1
        return held

    def assert_nothing_held(self) -> None:
        """No permit, pending request, waiting call or parked record."""
        status = self.rt.status
        assert (status.permits_in_use, status.pending_requests, status.queued_jobs) == (0, 0, 0)
        assert len(self.core.requests) == 0
        assert self.core.ingress.parked == 0
        assert not any(peer.waiting for peer in self.peers)


@define(eq=False)
class AsMesh:
    """A served channel with the decorators of a mesh, for tests that register handlers on either."""

    served: zl.ServedChannel

    def on_channel_send(self, channel: str) -> Callable[[Any], Any]:
        return self.served.on_send

    def on_channel_request(self, channel: str) -> Callable[[Any], Any]:
        return self.served.on_request


@define(eq=False)
class Lan:
    """Where nodes and puppets meet."""

    network: MemoryNetwork
    wire: Any
    store: MemoryStore = field(factory=MemoryStore)
    made: int = 0
    on_mesh: bool = True
    """False: nodes with a weight serve a ClientServer channel, the others use it; nobody is a member of a mesh."""

    @staticmethod
    def endpoint(port: int) -> str:
        """A fixed endpoint, known before anybody listens there."""
        return f"tcp://127.0.0.1:{5500 + port}"

    def host(self, name: str, **options: Any) -> tuple[zl.Host, InMemoryTelemetry]:
        """A host on this network, without meshes."""
        self.made += 1
        telemetry = InMemoryTelemetry()
        network = self.network
        given: dict[str, Any] = {
            "entropy": SeededEntropy(f"{name}-{self.made}"),
            "telemetry": telemetry,
            "transport": lambda entropy: network.transport(name),
            "watchdog": False,
            "lease_driver": LeaseDriver.LOOP,
        } | options
        return zl.Host(**given), telemetry

    @asynccontextmanager
    async def node(
        self,
        name: str,
        *,
        port: int = 0,
        peers: Sequence[int | str] = (),
        weight: int | None = None,
        uses: bool = True,
        add: Callable[[zl.Mesh], None] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> AsyncIterator[Node]:
        """Run one node. With a `weight` it serves the channel, else it may call it (`uses`)."""
        host, telemetry = self.host(name, **options)
        got: list[tuple[Any, zl.MessageContext]] = []
        ended: list[Any] = []

        async def note(message: Note, context: zl.MessageContext) -> None:
            got.append((message, context))
            await trio.sleep(message.hold)
            ended.append(message)

        async def ask(message: Ask, context: zl.MessageContext) -> Answer:
            got.append((message, context))
            await trio.sleep(message.hold)
            ended.append(message)
            return Answer(message.n, name)

        ids = {"rid": name} if options.get("location_store") is None else {"rid_prefix": name}
        listen = self.endpoint(port) if port else "tcp://127.0.0.1:0"
        known = [peer if isinstance(peer, str) else self.endpoint(peer) for peer in peers]
        if not self.on_mesh:
            if weight is None:
                host.use_client_server(CHANNEL, servers=known, default_request_timeout=timeout)
            else:
                served = host.serve_client_server(CHANNEL, listen=listen, weight=weight, **ids)  # type: ignore[arg-type]
                if add is not None:
                    add(AsMesh(served))  # type: ignore[arg-type]
                else:
                    served.on_send(note)
                    served.on_request(ask)
            async with host.run() as rt:
                yield Node(name, host, rt, telemetry, got, ended, on_mesh=False)
            return
        mesh = host.mesh(MESH, listen=listen, peers=known, default_request_timeout=timeout, **ids)  # type: ignore[arg-type]
        if add is not None:
            add(mesh)
        else:
            mesh.on_node_send(note)
            mesh.on_node_request(ask)
        if weight is not None:
            mesh.serve_channel(CHANNEL, weight=weight)
            if add is None:
                mesh.on_channel_send(CHANNEL)(note)
                mesh.on_channel_request(CHANNEL)(ask)
        elif uses:
            mesh.use_channel(CHANNEL)
        async with host.run() as rt:
            yield Node(name, host, rt, telemetry, got, ended)
        assert telemetry.refused == []

    async def rows(self) -> list[bytes]:
        """The keys in the store, without the counter that outlives every host."""
        page = await self.store.scan(b"")
        assert isinstance(page, Page)
        return [item.key for item in page.items if not item.key.endswith(b":owner-counter")]

    def puppet(self, rid: str = "puppet", **fields: Any) -> Puppet:
        """A scripted peer that does not listen yet."""
        return Puppet(self.wire, rid, **fields)
