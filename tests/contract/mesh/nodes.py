"""Hosts under test and where they stand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import pytest
import trio
from attrs import define, field

import zlinkpy as zl
from tests.location_hosts import Gate, put
from tests.puppet import MESH, Puppet, PuppetPair, RawSockets, until
from zlinkpy.entropy import SeededEntropy
from zlinkpy.link import Failure
from zlinkpy.location import LeaseDriver, MeshNodeDescriptor, keys
from zlinkpy.location.descriptors import encode_mesh_node
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Applied, Delete
from zlinkpy.mesh import MeshSnapshot, MeshStatus, PeerPhase, PeerSnapshot
from zlinkpy.messages import Codecs
from zlinkpy.telemetry.memory import InMemoryTelemetry
from zlinkpy.transport import MemoryNetwork
from zlinkpy.wire import ChannelRequest, ChannelSend, NodeRequest, NodeSend, PayloadHead, Reply

CHANNEL = "work"
CODEC = Codecs().default


@zl.message
class Echoed:
    n: int
    who: str


@zl.message
class Echo(zl.Request[Echoed]):
    n: int
    hold: float = 0.0


@zl.message
class Note:
    n: int
    hold: float = 0.0


@define(eq=False)
class Node:
    """One running host of a world and what its handlers got."""

    name: str
    host: zl.Host
    rt: zl.Runtime
    telemetry: InMemoryTelemetry
    gate: Gate | None
    got: list[Any]
    world: World
    stopping: trio.Event = field(factory=trio.Event)
    stopped: trio.Event = field(factory=trio.Event)

    async def stop(self) -> None:
        """Leave `host.run()` in order."""
        self.stopping.set()
        await self.stopped.wait()

    @property
    def rid(self) -> str:
        return self.rt.node_rid(MESH)

    @property
    def endpoint(self) -> str:
        return self.rt.endpoint(MESH)

    @property
    def status(self) -> MeshStatus:
        return self.rt.mesh_status(MESH)

    @property
    def snapshot(self) -> MeshSnapshot:
        return self.rt.mesh_snapshot(MESH)

    def peer(self, rid: str) -> PeerSnapshot | None:
        return next((peer for peer in self.snapshot.peers if peer.node_rid == rid), None)

    def phase(self, rid: str) -> PeerPhase | None:
        peer = self.peer(rid)
        return peer.phase if peer is not None else None

    def failure(self, rid: str) -> Failure | None:
        peer = self.peer(rid)
        return peer.last_failure if peer is not None else None

    def is_ready(self, rid: str) -> bool:
        return self.phase(rid) is PeerPhase.READY

    @property
    def targets(self) -> int:
        """How many servers a call on the channel can choose from."""
        return self.status.ready_targets[CHANNEL]

    async def ready(self, *rids: str, seconds: float = 10.0) -> None:
        """Wait until these peers are ready."""
        await until(lambda: all(self.is_ready(rid) for rid in rids), seconds)

    async def echo(self, n: int = 1, **more: Any) -> Echoed:
        """One request on the channel."""
        return await self.rt.request_to_channel(CHANNEL, Echo(n), **more)


NodeT = TypeVar("NodeT", bound=Node)


@define(eq=False)
class World:
    """Where hosts and puppets meet."""

    network: MemoryNetwork | None
    wire: Any
    """The puppets' side."""
    _nursery: trio.Nursery
    store: MemoryStore = field(factory=MemoryStore)
    _hosts: dict[str, Node] = field(factory=dict)
    _numbers: Any = field(factory=lambda: count(1))

    @classmethod
    @asynccontextmanager
    async def in_memory(cls, *, seed: int | str = 1, latency: Any = 0.0) -> AsyncIterator[World]:
        network = MemoryNetwork(seed=seed, latency=latency)
        async with network.transport("puppet") as wire:
            async with trio.open_nursery() as nursery:
                world = cls(network, wire, nursery)
                yield world
                await world.stop()

    @classmethod
    @asynccontextmanager
    async def on_sockets(cls) -> AsyncIterator[World]:
        async with RawSockets() as wire:
            async with trio.open_nursery() as nursery:
                world = cls(None, wire, nursery)
                yield world
                await world.stop()

    async def stop(self) -> None:
        """Stop every host that still runs."""
        for node in list(self._hosts.values()):
            await node.stop()

    # -- puppets

    def puppet(self, rid: str = "puppet", **fields: Any) -> Puppet:
        """A puppet that does not listen yet."""
        return Puppet(self.wire, rid, **fields)

    async def listening(self, rid: str = "puppet", *, at: str = "tcp://127.0.0.1:0", **fields: Any) -> Puppet:
        """A puppet that listens."""
        puppet = self.puppet(rid, **fields)
        await puppet.listen(at)
        return puppet

    # -- hosts

    async def host(self, name: str = "n", **more: Any) -> Node:
        """Start a host; it runs until `Node.stop`, at the latest as long as the world."""
        return await self.keep(self.running(name, **more))

    async def keep(self, running: AbstractAsyncContextManager[NodeT]) -> NodeT:
        """Enter `running`, in a task that leaves it when the host is to stop."""
        node: NodeT = await self._nursery.start(self._run, running)
        return node

    async def _run(self, running: AbstractAsyncContextManager[NodeT], *, task_status: trio.TaskStatus[NodeT]) -> None:
        # A task of its own: the host's nurseries have to be left by the task that entered them.
        async with running as node:
            name = node.name
            self._hosts[name] = node
            task_status.started(node)
            await node.stopping.wait()
        self._hosts.pop(name, None)
        node.stopped.set()

    @asynccontextmanager
    async def running(
        self,
        name: str = "n",
        *,
        serves: Mapping[str, int] | None = None,
        uses: Sequence[str] = (CHANNEL,),
        peers: Sequence[str] = (),
        rid: str | None = None,
        listen: str = "tcp://127.0.0.1:0",
        store: bool = False,
        gate: Gate | None = None,
        object_client: bool = False,
        timeout: float | None = None,
        meshes: Sequence[str] = (),
        max_message_bytes: int = 0,
        **host_options: Any,
    ) -> AsyncIterator[Node]:
        """Run a host. `serves` maps channels to weights; `store` gives it a gate to the world's store."""
        host, telemetry, got, way = self.build(
            name, serves=serves, uses=uses, peers=peers, rid=rid, listen=listen, store=store, gate=gate,
            object_client=object_client, timeout=timeout, meshes=meshes, max_message_bytes=max_message_bytes,
            **host_options,
        )  # fmt: skip
        async with host.run() as rt:
            yield Node(name, host, rt, telemetry, way, got, self)
        assert telemetry.refused == []

    def bare(self, name: str, way: Gate | None, **host_options: Any) -> tuple[zl.Host, InMemoryTelemetry]:
        """A host of this world that has nothing registered."""
        telemetry = InMemoryTelemetry()
        number = next(self._numbers)
        options: dict[str, Any] = {
            "location_store": way,
            "entropy": SeededEntropy(f"{name}-{number}"),
            "telemetry": telemetry,
            "watchdog": False,
        } | host_options
        network = self.network
        if network is not None:
            options["transport"] = lambda entropy: network.transport(name)
            options["lease_driver"] = LeaseDriver.LOOP
        return zl.Host(**options), telemetry

    def build(
        self,
        name: str,
        *,
        serves: Mapping[str, int] | None,
        uses: Sequence[str],
        peers: Sequence[str],
        rid: str | None,
        listen: str,
        store: bool,
        gate: Gate | None,
        object_client: bool,
        timeout: float | None,
        meshes: Sequence[str],
        max_message_bytes: int = 0,
        **host_options: Any,
    ) -> tuple[zl.Host, InMemoryTelemetry, list[Any], Gate | None]:
        way = gate or (Gate(self.store) if store else None)
        host, telemetry = self.bare(name, way, **host_options)
        mesh = host.mesh(
            MESH,
            rid=(rid or name) if way is None else None,
            rid_prefix=None if way is None else name,
            listen=listen,
            peers=peers,
            default_request_timeout=timeout,
            max_message_bytes=max_message_bytes,
        )
        for other in meshes:
            host.mesh(other)
        got, echo, note = handlers_of(name)
        if object_client:
            mesh.object_client()
        else:
            mesh.on_node_request(echo)
            mesh.on_node_send(note)
        for channel, weight in (serves or {}).items():
            mesh.serve_channel(channel, weight=weight)
            mesh.on_channel_request(channel)(echo)
            mesh.on_channel_send(channel)(note)
        for channel in uses:
            if channel not in (serves or {}):
                mesh.use_channel(channel)
        return host, telemetry, got, way


def handlers_of(name: str) -> tuple[list[Any], Callable[..., Any], Callable[..., Any]]:
    """The list of messages that the two handlers of a node were given, and the handlers."""
    got: list[Any] = []

    async def echo(message: Echo, context: zl.MessageContext) -> Echoed:
        got.append(message)
        await trio.sleep(message.hold)
        return Echoed(message.n, name)

    async def note(message: Note) -> None:
        got.append(message)
        await trio.sleep(message.hold)

    return got, echo, note


# -- one host and one puppet, connected


@define(eq=False)
class Linked:
    """A host and a puppet with a ready connection; `T` is when it became ready."""

    n: Node
    p: Puppet
    pair: PuppetPair

    @property
    def T(self) -> float:
        at = self.pair.ready_at
        assert at is not None
        return at

    async def at(self, seconds: float) -> None:
        """Sleep until that many seconds after ready."""
        await trio.sleep_until(self.T + seconds)

    @property
    def on_mesh(self) -> bool:
        """False for the two ends of a ClientServer connection."""
        return type(self.p) is Puppet

    def note(self, n: int = 1, hold: float = 0.0) -> tuple[Any, bytes]:
        """A one-way message to the host's handler, as a peer sends it."""
        head = PayloadHead("Note", CODEC.content_type)
        return NodeSend(head) if self.on_mesh else ChannelSend(CHANNEL, head), CODEC.encode(Note(n, hold))

    def request(self, corr: int, hold: float = 0.0, ms: int = 120_000) -> tuple[Any, bytes]:
        """A request to the host's handler, as a peer sends it."""
        head = PayloadHead("Echo", CODEC.content_type)
        command = NodeRequest(corr, ms, head) if self.on_mesh else ChannelRequest(corr, ms, CHANNEL, head)
        return command, CODEC.encode(Echo(corr, hold))

    def answer(self, corr: int, n: int = 1) -> None:
        """The puppet's reply to a request of the host."""
        head = PayloadHead("Echoed", CODEC.content_type)
        self.pair.completion.send(Reply(corr, 0, 0, None, head), CODEC.encode(Echoed(n, "p")))

    async def ask(self, n: int = 1, **more: Any) -> Any:
        """A request of the host to the puppet."""
        if self.on_mesh:
            return await self.n.rt.request_to_node(MESH, "p", Echo(n), **more)
        return await self.n.rt.request_to_channel(CHANNEL, Echo(n), **more)

    async def tell(self, n: int = 1) -> None:
        """A one-way message of the host to the puppet."""
        if self.on_mesh:
            await self.n.rt.send_to_node(MESH, "p", Note(n))
        else:
            await self.n.rt.send_to_channel(CHANNEL, Note(n))


ROLES = ("dialling", "accepting")
"""What the host does: dial the puppet, or accept it."""
ALL_ROLES = (*ROLES, "client", "server")
"""With those on a ClientServer channel; a link item holds for all four (liveness.md §0)."""
CALLERS = ("accepting", "client")
"""Who calls whom by what: a node of a mesh the other, a client its server."""
TOLD = (*ROLES, "client")
"""Where the other end says what it is: a client says nothing."""


async def linked(
    world: World,
    role: str = "accepting",
    *,
    puppet: Mapping[str, Any] | None = None,
    also: Sequence[str] = (),
    **host: Any,
) -> Linked:
    """Connect host `n` and puppet `p`, which serves the channel. `also`: further endpoints for the host to dial."""
    fields: dict[str, Any] = {"channels": {CHANNEL: 100}} | dict(puppet or {})
    if role in ("client", "server"):
        # Imported here: its nodes are a kind of those above.
        from tests.contract.mesh.services import connected

        node, other = await connected(world, role, fields, also=also, **host)
        return Linked(node, other, other.pair)
    if role == "dialling":
        p = await world.listening("p", **fields)
        n = await world.host("n", peers=[p.endpoint, *also], **host)
        await until(lambda: p.pairs and p.pair.is_up)
    else:
        p = world.puppet("p", **fields)
        n = await world.host("n", peers=also, **host)
        await p.connect(n.endpoint)
    await until(lambda: n.is_ready("p"))
    return Linked(n, p, p.pair)


async def publish(world: World, puppet: Puppet, *, generation: int = 1, ttl_ms: int | None = None) -> None:
    """Put the puppet's descriptor and its owner's lease into the store; without `ttl_ms` the lease lasts an hour."""
    own = puppet.admission
    owner = f"owner of {puppet.rid}"
    descriptor = MeshNodeDescriptor(
        mesh_name=own.mesh_name,
        rid=own.node_rid,
        lifecycle_generation=own.lifecycle_generation,
        endpoint=own.advertised_endpoint,
        security_identity=own.security_identity,
        state=own.ext.runtime_state,
        channel_weights=dict(own.channels),
        object_role=own.ext.object_role,
    ).signed(own.descriptor_revision, owner, generation)
    lease = LeaseRow(owner, generation).encode()
    await put(world.store, keys.mesh_node(own.mesh_name, own.node_rid), encode_mesh_node(descriptor, 0))
    await put(world.store, keys.owner_lease(owner), lease, ttl_ms or 3_600_000)


async def withdraw(world: World, puppet: Puppet) -> None:
    """Remove the puppet's descriptor."""
    key = keys.mesh_node(puppet.admission.mesh_name, puppet.rid)
    assert isinstance(await world.store.write([], [Delete(key)]), Applied)


def refused(why: type[BaseException]) -> Any:
    """`pytest.raises` for a call whose route was not there (LV [D11])."""
    return pytest.raises(why, check=lambda error: getattr(error, "cause", None) == "RouteNotConnected")
