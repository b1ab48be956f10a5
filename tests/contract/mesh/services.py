"""Hosts and puppets on a ClientServer channel, with the face of those on a mesh: a link item is one test for both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from attrs import evolve

import zlinkpy as zl
from tests.contract.mesh.nodes import CHANNEL, Node, World, handlers_of
from tests.location_hosts import Gate, put
from tests.puppet import until
from tests.service_puppet import ServicePuppet
from zlinkpy.link import Failure
from zlinkpy.location import CLIENT_SERVER, ClientServerDescriptor, keys
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Applied, Delete
from zlinkpy.mesh import PeerPhase


class ServiceNode(Node):
    """A host that serves the channel, uses it, or both; it has no mesh."""

    @property
    def channel(self) -> zl.ChannelStatus:
        return self.rt.channel_status(CHANNEL)

    @property
    def status(self) -> Any:
        return self.channel

    @property
    def snapshot(self) -> Any:
        return self.channel

    @property
    def rid(self) -> str:
        assert self.channel.server_rid is not None
        return self.channel.server_rid

    @property
    def endpoint(self) -> str:
        return self.rt.channel_endpoint(CHANNEL)


class ServerNode(ServiceNode):
    """A server of the channel. It knows no client by name: what is asked of one is answered for the only one."""

    @property
    def targets(self) -> int:
        return self.channel.ready_clients

    def peer(self, rid: str) -> Any:
        return next(iter(self.channel.clients), None)

    def phase(self, rid: str) -> PeerPhase | None:
        client = self.peer(rid)
        return client.phase if client is not None else None

    def failure(self, rid: str) -> Failure | None:
        return self.channel.last_client_failure


class ClientNode(ServiceNode):
    """A client of the channel."""

    @property
    def targets(self) -> int:
        return self.channel.ready_targets


@asynccontextmanager
async def serving(
    world: World,
    name: str = "s",
    *,
    weight: int | None = 100,
    uses: bool = False,
    servers: Sequence[str] = (),
    listen: str = "tcp://127.0.0.1:0",
    rid: str | None = None,
    store: bool = False,
    gate: Gate | None = None,
    timeout: float | None = None,
    limit: int | None = None,
    **host_options: Any,
) -> AsyncIterator[ServiceNode]:
    """Run a host: a server with a `weight`, a client without one or with `uses`."""
    way = gate or (Gate(world.store) if store else None)
    host, telemetry = world.bare(name, way, **host_options)
    got, echo, note = handlers_of(name)
    limits = {} if limit is None else {"max_message_bytes": limit}
    kind: type[ServiceNode] = ClientNode
    if weight is not None:
        ids = {"rid_prefix": name} if way is not None else {"rid": rid or name}
        channel = host.serve_client_server(CHANNEL, listen=listen, weight=weight, **ids, **limits)  # type: ignore[arg-type]
        channel.on_request(echo)
        channel.on_send(note)
        kind = ServerNode
    if weight is None or uses:
        host.use_client_server(CHANNEL, servers=servers, default_request_timeout=timeout, **limits)  # type: ignore[arg-type]
        kind = ClientNode
    async with host.run() as rt:
        yield kind(name, host, rt, telemetry, way, got, world)


async def server(world: World, name: str = "s", **more: Any) -> ServiceNode:
    """Start a server; it runs until `Node.stop`, at the latest as long as the world."""
    return await world.keep(serving(world, name, **more))


async def client(world: World, name: str = "c", **more: Any) -> ServiceNode:
    """Start a client."""
    return await world.keep(serving(world, name, weight=None, **more))


def server_puppet(world: World, rid: str = "p", **fields: Any) -> ServicePuppet:
    """A server that does not listen yet."""
    return ServicePuppet(world.wire, rid, channel=CHANNEL, serves=True, **fields)


async def listening(world: World, rid: str = "p", *, at: str = "tcp://127.0.0.1:0", **fields: Any) -> ServicePuppet:
    """A server puppet that listens."""
    puppet = server_puppet(world, rid, **fields)
    await puppet.listen(at)
    return puppet


def client_puppet(world: World, rid: str = "p", **fields: Any) -> ServicePuppet:
    """A client that has not dialled yet. The rid is a name for the test only."""
    return ServicePuppet(world.wire, rid, channel=CHANNEL, serves=False, **fields)


async def connected(
    world: World,
    role: str,
    fields: Mapping[str, Any],
    *,
    also: Sequence[str] = (),
    serves: Mapping[str, int] | None = None,
    **host: Any,
) -> tuple[ServiceNode, ServicePuppet]:
    """A host in `role` and the puppet at the other end, ready on both."""
    if role == "client":
        puppet = await listening(world, **fields)
        node = await client(world, "n", servers=[puppet.endpoint, *also], **host)
        await until(lambda: puppet.pairs and puppet.pair.is_up)
    else:
        puppet = client_puppet(world, **{name: value for name, value in fields.items() if name != "channels"})
        node = await server(world, "n", weight=(serves or {}).get(CHANNEL, 100), **host)
        await puppet.connect(node.endpoint)
    await until(lambda: node.is_ready("p"))
    return node, puppet


async def publish(world: World, puppet: ServicePuppet, *, generation: int = 1, **changes: Any) -> None:
    """Put the server puppet's descriptor, with `changes`, and its owner's lease into the store."""
    own = puppet.admission
    owner = f"owner of {puppet.rid}"
    descriptor = ClientServerDescriptor(
        channel_name=own.channel_name,
        rid=own.server_rid,
        lifecycle_generation=own.lifecycle_generation,
        endpoint=own.advertised_endpoint,
        security_identity=own.security_identity,
        state=own.runtime_state,
        weight=own.weight,
    )
    signed = evolve(descriptor, **changes).signed(own.descriptor_revision, owner, generation)
    await put(world.store, CLIENT_SERVER.key_of(signed), CLIENT_SERVER.encode(signed, 0))
    await put(world.store, keys.owner_lease(owner), LeaseRow(owner, generation).encode(), 3_600_000)


async def withdraw(world: World, puppet: ServicePuppet) -> None:
    """Remove the puppet's descriptor."""
    key = keys.client_server(CHANNEL, puppet.rid)
    assert isinstance(await world.store.write([], [Delete(key)]), Applied)
