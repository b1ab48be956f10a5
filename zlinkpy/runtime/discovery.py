"""One service's side of the Location Store: its descriptor out, the others' descriptors in (LO §8, §10).

`ServiceLocation` has the two halves, each of which may be left out: a ClientServer server and a fanout publisher only
publish, their clients and subscribers only discover, a mesh node does both. `MeshLocation`, `server_location` and
`client_location` are the only places that translate between `location` and `mesh`, which do not know each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Generic, TypeVar

import trio

from zlinkpy.errors import ZlinkError
from zlinkpy.fanout import FanoutPublisher, FanoutSubscriber, ListedPublisher
from zlinkpy.location import (
    ClientServerDescriptor,
    Descriptor,
    DescriptorPublisher,
    FanoutDescriptor,
    Interest,
    LocationOptions,
    LocationStore,
    MeshNodeDescriptor,
    OwnerLease,
    Service,
    ServiceDiscovery,
    Snapshot,
    StoreHealth,
    nodes_around,
    publishers_of,
    servers_of,
)
from zlinkpy.mesh import ANONYMOUS, ClientServerClient, ClientServerServer, ListedNode, RouteMesh
from zlinkpy.telemetry import get_logger
from zlinkpy.wire import ObjectRole

log = get_logger("zlinkpy.runtime")

D = TypeVar("D", bound=Descriptor)


def _ignore(_snapshot: object) -> None:
    return None


class ServiceLocation(Service, Generic[D]):
    """Publishes, discovers, or both: ``async with ServiceLocation(…)``, inside the lease's block.

    Args:
        publish: gives the descriptor with the content of this moment; its endpoint must be the actual one by the time
            of `publish()`. Without it `publish`, `changed`, `settled` and `remove` have nothing to do.
        discover: what is listed: `nodes_around`, `servers_of` or `publishers_of`. Without it `refresh` has nothing to
            do.
        on_snapshot: called on the trio thread with every snapshot that differs from the one before, also before the
            first complete one. It must not block or raise.
    """

    def __init__(
        self,
        store: LocationStore,
        lease: OwnerLease,
        options: LocationOptions,
        health: StoreHealth,
        *,
        publish: Callable[[], Descriptor] | None = None,
        discover: Interest[D] | None = None,
        on_snapshot: Callable[[Snapshot[D]], None] = _ignore,
    ) -> None:
        self._content = publish
        self._publisher = None if publish is None else DescriptorPublisher(store, lease, options, health=health)
        self._discovery: ServiceDiscovery[D] | None = None
        if discover is not None:
            self._discovery = ServiceDiscovery(store, options, discover, on_snapshot, lease=lease, health=health)
        self._published = False
        self._refreshing = False
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        if self._publisher is None:
            async with self._discovering():
                yield
        else:
            async with self._publisher, self._discovering():
                yield

    @asynccontextmanager
    async def _discovering(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as self._nursery:
            if self._discovery is not None:
                self._nursery.start_soon(self._discovery.run)
            try:
                yield
            finally:
                nursery, self._nursery = self._nursery, None
                nursery.cancel_scope.cancel()

    # Publishing.

    def on_failure(self, callback: Callable[[Exception], None]) -> None:
        """Call `callback` when the descriptor can be published no more (LO-131, LO-136)."""
        if self._publisher is not None:
            self._publisher.on_failure(callback)

    async def publish(self) -> None:
        """Publish the descriptor with the current content; tell later changes with `changed`.

        Raises ConfigurationError when the id is held by a live process (LO-148). Without a valid lease or an answering
        store it returns and the publication follows later.
        """
        if self._publisher is not None and self._content is not None:
            self._published = True
            await self._publisher.publish(self._content())

    def changed(self) -> None:
        """The content may be another one: publish it at once if it is (LO-133). Nothing before `publish`."""
        if self._published and self._publisher is not None and self._content is not None:
            self._publisher.update(self._content())

    async def settled(self) -> bool:
        """Wait until the newest content is stored (True) or could not be (LO-142)."""
        return self._publisher is None or await self._publisher.settled()

    async def remove(self) -> None:
        """Delete the descriptor (LO-144)."""
        if self._publisher is not None:
            await self._publisher.remove()

    # Discovering.

    def refresh(self) -> None:
        """Read a fresh list now, in the background; of several calls during one reading one counts."""
        if self._discovery is not None and self._nursery is not None and not self._refreshing:
            self._refreshing = True
            self._nursery.start_soon(self._refresh, self._discovery)

    async def _refresh(self, discovery: ServiceDiscovery[D]) -> None:
        try:
            await discovery.refresh()
        except ZlinkError as error:
            # Discovery has recorded and reported it; the handshake that asked for the list waits for the next one.
            log.debug("a fresh list could not be read: %s", error)
        finally:
            self._refreshing = False


class MeshLocation(ServiceLocation[MeshNodeDescriptor]):
    """Publishes and discovers for one RouteMesh that has started."""

    def __init__(
        self,
        mesh: RouteMesh,
        store: LocationStore,
        lease: OwnerLease,
        options: LocationOptions,
        health: StoreHealth,
    ) -> None:
        content = partial(_descriptor, mesh)
        super().__init__(
            store,
            lease,
            options,
            health,
            publish=content,
            discover=nodes_around(content()),
            on_snapshot=partial(_apply, mesh),
        )
        self._mesh = mesh

    @property
    def mesh_name(self) -> str:
        """The mesh it is about."""
        return self._mesh.name

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        mesh = self._mesh
        async with super()._running():
            mesh.refresh_discovery = self.refresh
            mesh.on_content = lambda _mesh: self.changed()
            try:
                yield
            finally:
                mesh.refresh_discovery = None
                mesh.on_content = None


def server_location(
    server: ClientServerServer, store: LocationStore, lease: OwnerLease, options: LocationOptions, health: StoreHealth
) -> ServiceLocation[ClientServerDescriptor]:
    """Publishes one ClientServer server that has started."""
    location: ServiceLocation[ClientServerDescriptor] = ServiceLocation(
        store, lease, options, health, publish=partial(_server_descriptor, server)
    )
    # Nothing to undo: once its block has ended a location publishes no more.
    server.on_content = lambda _server: location.changed()
    return location


def client_location(
    client: ClientServerClient, store: LocationStore, lease: OwnerLease, options: LocationOptions, health: StoreHealth
) -> ServiceLocation[ClientServerDescriptor]:
    """Shows the servers of its channel to one ClientServer client that has started."""
    return ServiceLocation(
        store,
        lease,
        options,
        health,
        discover=servers_of(client.name),
        on_snapshot=partial(_apply_servers, client),
    )


def publisher_location(
    publisher: FanoutPublisher, store: LocationStore, lease: OwnerLease, options: LocationOptions, health: StoreHealth
) -> ServiceLocation[FanoutDescriptor]:
    """Publishes one fanout publisher that has started."""
    location: ServiceLocation[FanoutDescriptor] = ServiceLocation(
        store, lease, options, health, publish=partial(_publisher_descriptor, publisher)
    )
    publisher.on_content = location.changed
    return location


def subscriber_location(
    subscriber: FanoutSubscriber, store: LocationStore, lease: OwnerLease, options: LocationOptions, health: StoreHealth
) -> ServiceLocation[FanoutDescriptor]:
    """Shows the publishers of its channel to one subscriber without endpoints of its own."""
    return ServiceLocation(
        store,
        lease,
        options,
        health,
        discover=publishers_of(subscriber.channel),
        on_snapshot=partial(_apply_publishers, subscriber),
    )


def _descriptor(mesh: RouteMesh) -> MeshNodeDescriptor:
    admission = mesh.admission()
    return MeshNodeDescriptor(
        mesh_name=admission.mesh_name,
        rid=admission.node_rid,
        lifecycle_generation=admission.lifecycle_generation,
        endpoint=admission.advertised_endpoint,
        security_identity=admission.security_identity,
        state=admission.ext.runtime_state,
        channel_weights=dict(admission.channels),
        application_version=admission.ext.application_version,
        object_role=admission.ext.object_role,
        placement_weight=admission.ext.placement_weight,
    )


def _apply(mesh: RouteMesh, snapshot: Snapshot[MeshNodeDescriptor]) -> None:
    if not snapshot.complete:
        return
    mesh.first_dials = snapshot.first_dials
    shown = [candidate.descriptor for candidate in snapshot.candidates]
    # With those nobody connects to; the mesh decides from the roles, and lists them as not required (LV-29).
    shown += snapshot.not_required
    mesh.apply_list({descriptor.rid: _listed(descriptor) for descriptor in shown})


def _listed(descriptor: MeshNodeDescriptor) -> ListedNode:
    return ListedNode(
        rid=descriptor.rid,
        endpoint=descriptor.endpoint,
        security_identity=descriptor.security_identity,
        lifecycle_generation=descriptor.lifecycle_generation,
        object_role=descriptor.object_role,
        channels=descriptor.channel_weights,
        runtime_state=descriptor.state,
    )


def _server_descriptor(server: ClientServerServer) -> ClientServerDescriptor:
    admission = server.admission()
    return ClientServerDescriptor(
        channel_name=admission.channel_name,
        rid=admission.server_rid,
        lifecycle_generation=admission.lifecycle_generation,
        endpoint=admission.advertised_endpoint,
        security_identity=admission.security_identity,
        state=admission.runtime_state,
        weight=admission.weight,
    )


def _apply_servers(client: ClientServerClient, snapshot: Snapshot[ClientServerDescriptor]) -> None:
    if not snapshot.complete:
        return
    client.first_dials = snapshot.first_dials
    shown = [candidate.descriptor for candidate in snapshot.candidates]
    client.apply_list({descriptor.rid: _listed_server(descriptor) for descriptor in shown})


def _listed_server(descriptor: ClientServerDescriptor) -> ListedNode:
    return ListedNode(
        rid=descriptor.rid,
        endpoint=descriptor.endpoint,
        security_identity=descriptor.security_identity,
        lifecycle_generation=descriptor.lifecycle_generation,
        object_role=ObjectRole.NONE,
        channels={descriptor.channel_name: descriptor.weight},
        runtime_state=descriptor.state,
    )


def _publisher_descriptor(publisher: FanoutPublisher) -> FanoutDescriptor:
    assert publisher.endpoint is not None
    return FanoutDescriptor(
        channel_name=publisher.channel,
        rid=publisher.rid,
        lifecycle_generation=publisher.generation,
        endpoint=publisher.endpoint,
        security_identity=publisher.security_identity,
        state=publisher.runtime_state,
    )


def _apply_publishers(subscriber: FanoutSubscriber, snapshot: Snapshot[FanoutDescriptor]) -> None:
    if not snapshot.complete:
        return
    subscriber.first_dials = snapshot.first_dials
    subscriber.apply_list(
        {
            descriptor.rid: ListedPublisher(
                rid=descriptor.rid,
                endpoint=descriptor.endpoint,
                lifecycle_generation=descriptor.lifecycle_generation,
                security_identity=None if descriptor.security_identity == ANONYMOUS else descriptor.security_identity,
                takes_subscribers=descriptor.takes_connections,
            )
            for descriptor in (candidate.descriptor for candidate in snapshot.candidates)
        }
    )
