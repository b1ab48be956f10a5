"""Hosts that publish and subscribe, and puppets: publishers that send exactly what a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import trio
from attrs import define, field

import zlinkpy as zl
from tests.location_hosts import Gate, put
from tests.puppet import until
from zlinkpy.entropy import SeededEntropy
from zlinkpy.fanout import PublisherPhase, PublisherSnapshot
from zlinkpy.link import Failure
from zlinkpy.location import FanoutDescriptor, LeaseDriver, keys
from zlinkpy.location.channel_descriptors import FANOUT
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Applied, Delete
from zlinkpy.telemetry.memory import InMemoryTelemetry
from zlinkpy.transport import MemoryNetwork, Publisher, Transport, ZmqTransport
from zlinkpy.wire import BEACON_FRAMES, FanoutEvent, PayloadHead, RuntimeState, encode_fanout

CHANNEL = "news"
TOPIC = "order"


@zl.message
class Placed:
    n: int


PACKED = b"\x81\xa1n"


def event(n: int = 1, *, topic: str = TOPIC, rid: str = "u", channel: str = CHANNEL, packet: str = "Placed") -> Any:
    """The frames of an event that a handler of `Placed` takes."""
    head = PayloadHead(packet, "application/msgpack")
    return encode_fanout(FanoutEvent(topic, channel, rid, head, PACKED + bytes([n])))


@define(eq=False)
class Node:
    """One running host and what its handlers got."""

    rt: zl.Runtime
    telemetry: InMemoryTelemetry
    gate: Gate | None
    got: list[tuple[int, zl.MessageContext]]
    stopping: trio.Event = field(factory=trio.Event)
    stopped: trio.Event = field(factory=trio.Event)

    async def stop(self) -> None:
        self.stopping.set()
        await self.stopped.wait()

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.got]

    @property
    def publishers(self) -> tuple[PublisherSnapshot, ...]:
        status = self.rt.fanout_status(CHANNEL).subscriber
        assert status is not None
        return status.publishers

    def heard(self, who: str) -> PublisherSnapshot | None:
        """The publisher of this endpoint or RID."""
        return next((each for each in self.publishers if who in (each.endpoint, each.rid)), None)

    def phase(self, who: str) -> PublisherPhase | None:
        heard = self.heard(who)
        return heard.phase if heard is not None else None

    def failure(self, who: str) -> Failure | None:
        heard = self.heard(who)
        return heard.last_failure if heard is not None else None

    def is_ready(self, who: str) -> bool:
        return self.phase(who) is PublisherPhase.READY

    async def ready(self, *who: str, seconds: float = 10.0) -> None:
        await until(lambda: all(self.is_ready(each) for each in who), seconds)


@define(eq=False)
class PuppetPublisher:
    """A bound PUB socket that sends nothing by itself."""

    socket: Publisher
    rid: str
    generation: int = 1
    _nursery: Any = None

    @property
    def endpoint(self) -> str:
        return self.socket.endpoint

    def send(self, *frames: bytes) -> None:
        self.socket.publish(frames)

    def event(self, n: int = 1, **more: Any) -> None:
        self.socket.publish(event(n, rid=self.rid, **more))

    def beacon(self) -> None:
        self.socket.publish(BEACON_FRAMES)

    async def subscribed(self, count: int = 1) -> None:
        """Wait until that many subscribers are connected and what they subscribe to has arrived."""
        await until(lambda: self.socket.subscribers >= count)
        await trio.sleep(0.5)

    async def keep_alive(self) -> None:
        """Beacons every second until cancelled."""
        while True:
            self.beacon()
            await trio.sleep(1)


@define(eq=False)
class World:
    """Where hosts and puppets meet."""

    network: MemoryNetwork | None
    wire: Transport
    nursery: trio.Nursery
    store: MemoryStore = field(factory=MemoryStore)
    _hosts: list[Node] = field(factory=list)
    _numbers: Any = field(factory=lambda: count(1))

    @classmethod
    @asynccontextmanager
    async def in_memory(cls, *, seed: int | str = 1, latency: Any = 0.0) -> AsyncIterator[World]:
        network = MemoryNetwork(seed=seed, latency=latency)
        async with network.transport("puppet") as wire, cls._made(network, wire) as world:
            yield world

    @classmethod
    @asynccontextmanager
    async def on_sockets(cls) -> AsyncIterator[World]:
        async with ZmqTransport(entropy=SeededEntropy("puppet")) as wire, cls._made(None, wire) as world:
            yield world

    @classmethod
    @asynccontextmanager
    async def _made(cls, network: MemoryNetwork | None, wire: Transport) -> AsyncIterator[World]:
        async with trio.open_nursery() as nursery:
            world = cls(network, wire, nursery)
            yield world
            for node in list(world._hosts):
                await node.stop()
            nursery.cancel_scope.cancel()

    async def puppet(self, rid: str = "u", *, at: str = "tcp://127.0.0.1:0") -> PuppetPublisher:
        """A publisher that does what the test says."""
        return PuppetPublisher(await self.wire.publish(at), rid)

    async def living(self, rid: str = "u") -> PuppetPublisher:
        """A puppet that sends a beacon every second."""
        puppet = await self.puppet(rid)
        self.nursery.start_soon(puppet.keep_alive)
        return puppet

    async def publisher(self, name: str = "p", *, store: bool = False, **options: Any) -> Node:
        """A host that publishes the channel."""
        host, node = self._host(name, store, options)
        host.fanout_publisher(CHANNEL, **({} if store else {"rid": name}))
        return await self._started(host, node)

    async def subscriber(
        self,
        *publishers: str,
        name: str = "s",
        topics: Sequence[str] = (TOPIC,),
        store: bool = False,
        hold: float = 0.0,
        **options: Any,
    ) -> Node:
        """A host that subscribes to the channel; without endpoints it needs `store`."""
        host, node = self._host(name, store, options)
        feed = host.fanout_subscriber(CHANNEL, publishers=publishers)

        async def placed(message: Placed, context: zl.MessageContext) -> None:
            node.got.append((message.n, context))
            await trio.sleep(hold)

        for topic in topics:
            feed.on_event(topic)(placed)
        return await self._started(host, node)

    def _host(self, name: str, store: bool, options: dict[str, Any]) -> tuple[zl.Host, Node]:
        gate = Gate(self.store) if store else None
        telemetry = InMemoryTelemetry()
        settings: dict[str, Any] = {
            "location_store": gate,
            "entropy": SeededEntropy(f"{name}-{next(self._numbers)}"),
            "telemetry": telemetry,
            "watchdog": False,
        } | options
        network = self.network
        if network is not None:
            settings.setdefault("transport", lambda entropy: network.transport(name))
            settings["lease_driver"] = LeaseDriver.LOOP
        # The runtime is known when the host has started.
        node = Node(rt=None, telemetry=telemetry, gate=gate, got=[])  # type: ignore[arg-type]
        return zl.Host(**settings), node

    async def _started(self, host: zl.Host, node: Node) -> Node:
        await self.nursery.start(self._run, host, node)
        return node

    async def _run(self, host: zl.Host, node: Node, task_status: trio.TaskStatus[None]) -> None:
        async with host.run() as rt:
            node.rt = rt
            self._hosts.append(node)
            task_status.started()
            await node.stopping.wait()
        self._hosts.remove(node)
        node.stopped.set()

    # -- the store

    async def list(
        self,
        puppet: PuppetPublisher,
        *,
        state: RuntimeState = RuntimeState.SERVING,
        revision: int = 1,
        endpoint: str | None = None,
        ttl_ms: int = 3_600_000,
    ) -> None:
        """Put the puppet's descriptor and its owner's lease into the store."""
        owner = f"owner of {puppet.rid}"
        descriptor = FanoutDescriptor(
            channel_name=CHANNEL,
            rid=puppet.rid,
            lifecycle_generation=puppet.generation,
            endpoint=endpoint or puppet.endpoint,
            security_identity="anonymous",
            state=state,
        ).signed(revision, owner, 1)
        await put(self.store, keys.fanout(CHANNEL, puppet.rid), FANOUT.encode(descriptor, 0))
        await put(self.store, keys.owner_lease(owner), LeaseRow(owner, 1).encode(), ttl_ms)

    async def unlist(self, puppet: PuppetPublisher) -> None:
        """Remove the puppet's descriptor."""
        assert isinstance(await self.store.write([], [Delete(keys.fanout(CHANNEL, puppet.rid))]), Applied)


async def heard(world: World, **more: Any) -> tuple[PuppetPublisher, Node]:
    """A puppet and a subscriber connected to it, which has heard nothing yet."""
    u = await world.puppet()
    s = await world.subscriber(u.endpoint, **more)
    await u.subscribed()
    return u, s


async def ready(world: World, **more: Any) -> tuple[PuppetPublisher, Node, float]:
    """The same, and the puppet's beacon came at the instant that is returned."""
    u, s = await heard(world, **more)
    u.beacon()
    await until(lambda: s.is_ready(u.endpoint), step=0.001)
    at = s.heard(u.endpoint).last_receive
    return u, s, at
