"""Buses under test: what one suite needs of each kind, and how to reach behind it.

A *node* is one process's view of a bus. Buses run in tasks of a `Keeper`, because a nursery has to be left by the task
that entered it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any, Protocol, TypeVar

import msgpack
import trio
from attrs import define, field

import zlinkpy as zl
from tests.location_server import TestServer
from tests.puppet import MESH, until
from zlinkpy.entropy import SeededEntropy
from zlinkpy.mesh import PeerPhase
from zlinkpy.sessions.memory_bus import MemorySignalBus
from zlinkpy.sessions.mesh_bus import CHANNEL, SIGNAL, MeshSignalBus
from zlinkpy.sessions.redis_bus import RedisSignalBus
from zlinkpy.sessions.signal_codec import encode_signal
from zlinkpy.sessions.spi import SessionSignalBus
from zlinkpy.sessions.split_bus import SplitSignalBus
from zlinkpy.sessions.types import SessionSignal, SignalKind
from zlinkpy.transport import MemoryNetwork

T = TypeVar("T")
_numbers = count(1)

CONTROL = [kind for kind in SignalKind if kind.is_control]
EVENTS = [SignalKind.EVENT, SignalKind.STATUS]


def signal(
    kind: SignalKind = SignalKind.INTERRUPT, session: str = "s", /, node: str = "n1", **payload: Any
) -> SessionSignal:
    """A signal of node `node` with this payload."""
    return SessionSignal(session, kind, node, payload, f"{node}/1")


def event(number: int, type: str = "OutputDelta", session: str = "s") -> SessionSignal:
    """An EVENT that carries a number."""
    return signal(SignalKind.EVENT, session, type=type, n=number)


def raw(**fields: Any) -> bytes:
    """A signal as another version, or another program, may write it; None leaves a field out."""
    whole = {"s": "s", "k": "INTERRUPT", "o": "n9", "i": "", "p": {}} | fields
    data: bytes = msgpack.packb({key: value for key, value in whole.items() if value is not None})
    return data


class Ears(list[SessionSignal]):
    """A handler that keeps what it was given."""

    def __call__(self, received: SessionSignal) -> None:
        self.append(received)

    @property
    def kinds(self) -> list[SignalKind]:
        return [each.kind for each in self]

    @property
    def numbers(self) -> list[int]:
        return [each.payload["n"] for each in self if "n" in each.payload]

    async def count(self, number: int, seconds: float = 5.0) -> None:
        """Wait until so many have come."""
        await until(lambda: len(self) >= number, seconds)


@define(eq=False)
class Keeper:
    """Runs context managers in tasks of their own until they are to end."""

    nursery: trio.Nursery
    _open: list[tuple[trio.Event, trio.Event]] = field(factory=list)

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[Keeper]:
        async with trio.open_nursery() as nursery:
            keeper = cls(nursery)
            yield keeper
            for close in reversed(keeper._open):
                await _end(*close)

    async def keep(self, manager: AbstractAsyncContextManager[T]) -> tuple[T, Callable[[], Any]]:
        """What the manager gives, and how to leave it early."""
        close = trio.Event(), trio.Event()

        async def run(*, task_status: trio.TaskStatus[T]) -> None:
            async with manager as value:
                task_status.started(value)
                await close[0].wait()
            close[1].set()

        self._open.append(close)
        value: T = await self.nursery.start(run)
        return value, lambda: _end(*close)


async def _end(leave: trio.Event, left: trio.Event) -> None:
    leave.set()
    await left.wait()


class Buses(Protocol):
    """One kind of bus."""

    async def node(self) -> SessionSignalBus:
        """One more node, which hears the others."""
        ...

    async def inject(self, data: bytes) -> None:
        """Let bytes arrive at every node but the first, on the control channel of session ``s``."""
        ...

    async def subscribed(self, session: str) -> bool:
        """True while the first node's back end has a subscription for the session."""
        ...


@define
class MemoryBuses:
    bus: MemorySignalBus = field(factory=MemorySignalBus)

    async def node(self) -> SessionSignalBus:
        return self.bus

    async def inject(self, data: bytes) -> None:
        self.bus.receive(data)

    async def subscribed(self, session: str) -> bool:
        return session in self.bus._table


@define
class RedisBuses:
    keeper: Keeper
    server: TestServer
    prefix: str = field(factory=lambda: f"t{next(_numbers)}")

    async def node(self, url: str | None = None) -> RedisSignalBus:
        bus = RedisSignalBus(url or self.server.url, prefix=self.prefix, entropy=SeededEntropy(1))
        await self.keeper.keep(bus)
        return bus

    async def inject(self, data: bytes) -> None:
        self.server.command("PUBLISH", f"{self.prefix}:sig:c:s", data)

    async def subscribed(self, session: str) -> bool:
        return self.listeners(session) > 0

    def listeners(self, session: str, channel: str = "c") -> int:
        """Connections subscribed to the session's channel, as the server counts them."""
        answer: Any = self.server.command("PUBSUB", "NUMSUB", f"{self.prefix}:sig:{channel}:{session}")
        return int(answer[1])


@define(eq=False)
class MeshNode:
    """A host with a bus."""

    bus: MeshSignalBus
    rt: zl.Runtime
    close: Callable[[], Any]
    stop: Callable[[], Any]

    @property
    def rid(self) -> str:
        return self.rt.node_rid(MESH)

    @property
    def endpoint(self) -> str:
        return self.rt.endpoint(MESH)

    def is_ready(self, rid: str) -> bool:
        return any(peer.node_rid == rid and peer.phase is PeerPhase.READY for peer in self.rt.mesh_snapshot(MESH).peers)

    def press(self, count: int) -> None:
        """Take job permits, so that the host tells its peers to pause."""
        for _ in range(count):
            self.rt._core.permits.take_over()

    def relieve(self, count: int) -> None:
        for _ in range(count):
            self.rt._core.permits.release()


@define
class MeshBuses:
    keeper: Keeper
    network: MemoryNetwork = field(factory=lambda: MemoryNetwork(seed=1))
    nodes: list[MeshNode] = field(factory=list)

    async def node(self) -> SessionSignalBus:
        return (await self.add()).bus

    async def add(
        self,
        *,
        prepare: Callable[[Any], None] = lambda _mesh: None,
        mesh: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> MeshNode:
        """One more host with a bus, connected with all others."""
        name = f"m{len(self.nodes) + 1}"
        fields: dict[str, Any] = {"rid": name, "peers": [node.endpoint for node in self.nodes]}
        host = zl.Host(
            **{
                "entropy": SeededEntropy(name),
                "watchdog": False,
                "transport": lambda _entropy: self.network.transport(name),
            }
            | options
        )
        if "location_store" in options:
            fields = {"rid_prefix": name}
        registered = host.mesh(MESH, **fields | dict(mesh or {}))
        prepare(registered)
        bus = MeshSignalBus(registered)
        rt, stop = await self.keeper.keep(host.run())
        _, close = await self.keeper.keep(bus)
        made = MeshNode(bus, rt, close, stop)
        self.nodes.append(made)
        await self.connected()
        return made

    async def connected(self) -> None:
        """Wait until every bus has every other as a peer."""
        open_ones = [node for node in self.nodes if node.bus.is_open]
        await until(lambda: all(node.bus.statistics().peers == len(open_ones) - 1 for node in open_ones), 10)

    async def inject(self, data: bytes) -> None:
        channel = self.nodes[0].bus._channel
        assert channel is not None
        for member in channel:
            assert member.tell(channel.frames(SIGNAL, data))

    async def subscribed(self, session: str) -> bool:
        """Seen from the second node: only interests are known to others."""
        return any(session in peer.interests for peer in self.nodes[1].bus._peers.values())


@define
class SplitBuses:
    """Control over Redis, events over the mesh."""

    redis: RedisBuses
    mesh: MeshBuses

    async def node(self) -> SessionSignalBus:
        return SplitSignalBus(await self.redis.node(), await self.mesh.node())

    async def inject(self, data: bytes) -> None:
        await self.redis.inject(data)

    async def subscribed(self, session: str) -> bool:
        return await self.redis.subscribed(session) or await self.mesh.subscribed(session)


__all__ = ["CHANNEL", "CONTROL", "EVENTS", "Buses", "Ears", "encode_signal", "event", "raw", "signal", "until"]
