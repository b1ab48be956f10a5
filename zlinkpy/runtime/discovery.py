"""One mesh node's side of the Location Store: its descriptor out, the others' descriptors in (LO §8, §10).

The only place that translates between `location` and `mesh`, which do not know each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from zlinkpy.errors import ZlinkError
from zlinkpy.location import (
    DescriptorPublisher,
    LocationOptions,
    LocationStore,
    MeshDiscovery,
    MeshNodeDescriptor,
    OwnerLease,
    Service,
    Snapshot,
    StoreHealth,
)
from zlinkpy.mesh import ListedNode, RouteMesh
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.runtime")


class MeshLocation(Service):
    """Publishes and discovers for one RouteMesh: ``async with MeshLocation(…)``, inside the lease's block."""

    def __init__(
        self,
        mesh: RouteMesh,
        store: LocationStore,
        lease: OwnerLease,
        options: LocationOptions,
        health: StoreHealth,
    ) -> None:
        self._mesh = mesh
        self._store = store
        self._lease = lease
        self._options = options
        self._health = health
        self._publisher = DescriptorPublisher(store, lease, options, health=health)
        self._published = False
        self._refreshing = False

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        discovery = MeshDiscovery(
            self._store, self._options, self._descriptor(), self._apply, lease=self._lease, health=self._health
        )
        mesh = self._mesh
        async with self._publisher, trio.open_nursery() as nursery:
            nursery.start_soon(discovery.run)

            def refresh() -> None:
                if not self._refreshing:
                    self._refreshing = True
                    nursery.start_soon(self._refresh, discovery)

            mesh.refresh_discovery = refresh
            mesh.on_content = self._content_changed
            try:
                yield
            finally:
                mesh.refresh_discovery = None
                mesh.on_content = None
                nursery.cancel_scope.cancel()

    async def _refresh(self, discovery: MeshDiscovery) -> None:
        try:
            await discovery.refresh()
        except ZlinkError as error:
            # Discovery has recorded and reported it; the handshake that asked for the list waits for the next one.
            log.debug("a fresh list could not be read: %s", error)
        finally:
            self._refreshing = False

    def on_failure(self, callback: Callable[[Exception], None]) -> None:
        """Call `callback` when nothing of this node can be published any more (LO-131, LO-136)."""
        self._publisher.on_failure(callback)

    async def publish(self) -> None:
        """Publish the descriptor with the node's current content; later changes follow by themselves.

        Raises ConfigurationError when the id is held by a live node (LO-148). Without a valid lease or an answering
        store it returns and the publication follows later.
        """
        self._published = True
        await self._publisher.publish(self._descriptor())

    async def settled(self) -> bool:
        """Wait until the newest content is stored or could not be (LO-142)."""
        return await self._publisher.settled()

    async def remove(self) -> None:
        """Delete the descriptor (LO-144)."""
        await self._publisher.remove()

    def _content_changed(self, _mesh: RouteMesh) -> None:
        if self._published:
            self._publisher.update(self._descriptor())

    def _descriptor(self) -> MeshNodeDescriptor:
        admission = self._mesh.admission()
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

    def _apply(self, snapshot: Snapshot) -> None:
        if not snapshot.complete:
            return
        self._mesh.first_dials = snapshot.first_dials
        shown = [candidate.descriptor for candidate in snapshot.candidates]
        # With those nobody connects to; the mesh decides from the roles, and lists them as not required (LV-29).
        shown += snapshot.not_required
        self._mesh.apply_list({descriptor.rid: _listed(descriptor) for descriptor in shown})


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
