"""`Runtime`: a host that runs. Calls, status, weights, shutdown (SA-212, OB §1, §4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from zlinkpy.errors import ConfigurationError, InvalidOperationError, NotFoundError, ZlinkError
from zlinkpy.location import OwnerLease, StoreHealth
from zlinkpy.mesh import (
    CONNECTIONS_CHANNEL,
    Calls,
    ChannelStatus,
    ClientOptions,
    ClientServerClient,
    ClientServerServer,
    ConnectionsAsked,
    LinkHolder,
    MeshCore,
    MeshSnapshot,
    MeshStatus,
    NodeConnections,
    RequestStatistics,
    RouteMesh,
    channel_reports,
    channel_status,
    mesh_reports,
)
from zlinkpy.runtime.channel_plan import ServerPlan
from zlinkpy.runtime.discovery import MeshLocation, ServiceLocation
from zlinkpy.runtime.fanout_running import FanoutParts, FanoutStatus
from zlinkpy.runtime.lifecycle_machine import Lifecycle
from zlinkpy.runtime.plan import HostOptions, MeshPlan
from zlinkpy.runtime.registration import check_timeout
from zlinkpy.runtime.status import (
    BlockedLoop,
    HostStatus,
    Observation,
    StatusSource,
    StoreStatus,
    TerminationOutcome,
    TerminationReason,
    TerminationResult,
    wall_clock,
)
from zlinkpy.runtime.watchdog import LoopWatchdog
from zlinkpy.telemetry import get_logger
from zlinkpy.wire import RuntimeState

log = get_logger("zlinkpy.runtime")

# After the last accepted handler ended, records of peers that had not read our `draining` yet may still be under way.
# The drain ends when none has come for this long; far above a round trip in one network, far below what anybody waits
# for. As long is waited after the last reply: it travels on another connection than the `close` that would follow at
# once, and a requester that reads the `close` first has lost the reply.
QUIET_SECONDS = 0.05


class Runtime(Calls):
    """What `Host.run()` gives. The messaging calls are those of `Calls`."""

    def __init__(
        self,
        core: MeshCore,
        options: HostOptions,
        *,
        lease: OwnerLease | None,
        health: StoreHealth,
        watchdog: LoopWatchdog | None,
    ) -> None:
        super().__init__(core)
        self.locations: dict[str, MeshLocation] = {}
        self._channel_locations: list[ServiceLocation[Any]] = []
        self._options = options
        self._lease = lease
        self._health = health
        self._watchdog = watchdog
        self._lifecycle = Lifecycle()
        self._meshes: dict[str, RouteMesh] = {}
        self._servers: dict[str, ClientServerServer] = {}
        self._clients: dict[str, ClientServerClient] = {}
        self._source = StatusSource()
        self.fanout = FanoutParts(core, self._source.publish)
        self._termination: TerminationResult | None = None
        self._stopping = False
        self._stopped = trio.Event()
        core.framework.serve(CONNECTIONS_CHANNEL, ConnectionsAsked, lambda _asked: self.connections())

    # -- start, called by Host ----------------------------------------------------------------------------------------

    def add_mesh(self, plan: MeshPlan) -> RouteMesh:
        """Build the node of one mesh."""
        mesh = RouteMesh(self._core, plan.options, plan.handlers)
        for channel in plan.channels:
            mesh.add_channel(channel.name, serves=channel.serves, weight=channel.weight)
        for name in plan.member_channels:
            mesh.add_member_channel(name)
        mesh.on_status = lambda _mesh: self._source.publish()
        self._meshes[plan.options.name] = mesh
        return mesh

    def add_server(self, plan: ServerPlan) -> ClientServerServer:
        """Build the server of one ClientServer channel."""
        server = ClientServerServer(self._core, plan.options, plan.handlers)
        server.on_status = lambda _server: self._source.publish()
        self._servers[server.name] = server
        self._core.served_only.add(server.name)
        return server

    def add_client(self, options: ClientOptions) -> ClientServerClient:
        """Build the client of one ClientServer channel."""
        client = ClientServerClient(self._core, options)
        client.on_status = lambda _client: self._source.publish()
        self._clients[client.name] = client
        self._core.served_only.discard(client.name)
        return client

    def add_location(self, location: ServiceLocation[Any]) -> None:
        """A part's side of the store, which runs until the host has stopped."""
        if isinstance(location, MeshLocation):
            self.locations[location.mesh_name] = location
        else:
            self._channel_locations.append(location)

    def all_locations(self) -> list[ServiceLocation[Any]]:
        """Every part's side of the store."""
        return [*self.locations.values(), *self._channel_locations]

    def serve(self) -> None:
        """Everything is bound and prepared: take calls, and let admitted peers become ready."""
        self._move(RuntimeState.SERVING)
        for mesh in self._meshes.values():
            mesh.prepare()
            log.info("mesh %s: node %s listens on %s", mesh.name, mesh.rid, mesh.endpoint)
        for server in self._servers.values():
            server.prepare()
            log.info("ClientServer channel %s: server %s listens on %s", server.name, server.rid, server.endpoint)
        for client in self._clients.values():
            client.prepare()

    def _move(self, state: RuntimeState) -> None:
        if self._lifecycle.move(state):
            self._core.set_state(state, accepting=self._lifecycle.accepting, taking=self._lifecycle.taking)
            self.fanout.state_changed()
            self._source.publish()

    def fail(self, error: Exception) -> None:
        """What this host is built on is gone for good: it takes and starts nothing more, and says so (LO-111, LO-136).

        Connections stay for what was accepted; the program ends the host when it sees the state.
        """
        if self._lifecycle.state in (RuntimeState.SERVING, RuntimeState.PREPARING):
            log.error("this host can serve no longer: %s", error)
            self._move(RuntimeState.ERROR)

    # -- status -------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> HostStatus:
        """The host at this instant; a copy (OB-03, SA-281)."""
        core = self._core
        permits = core.permits
        workers = core.workers.statistics()
        return HostStatus(
            state=self._lifecycle.state,
            is_ready=self._lifecycle.state is RuntimeState.SERVING,
            accepting_work=self._lifecycle.accepting,
            store=self._store_status(),
            permits_in_use=permits.in_use,
            permits_maximum=permits.maximum,
            pressure=permits.pressure,
            queued_jobs=workers.queued + core.ingress.parked,
            running_jobs=workers.running,
            pending_requests=len(core.requests),
            blocked_loops=self._watchdog.blocks if self._watchdog is not None else 0,
            last_blocked=self._last_blocked(),
            termination=self._termination,
            sequence=self._source.sequence,
            observed_at=wall_clock(),
        )

    def _last_blocked(self) -> BlockedLoop | None:
        last = self._watchdog.last if self._watchdog is not None else None
        return BlockedLoop(handler=last.label, seconds=last.seconds) if last is not None else None

    def _store_status(self) -> StoreStatus:
        if self._lease is None:
            return StoreStatus(state="not_configured", failing=(), lease="none")
        now = trio.current_time()
        failing = tuple(entry.operation.value for entry in self._health.report(now) if entry.failing_since is not None)
        state = "unavailable" if self._health.unavailable(now) else "failing" if failing else "available"
        return StoreStatus(state=state, failing=failing, lease=self._lease.state.value)

    @property
    def request_statistics(self) -> RequestStatistics:
        """How this host's requests ended so far."""
        return self._core.requests.statistics()

    def mesh_status(self, mesh: str) -> MeshStatus:
        """The topology status of `mesh`. Raises ConfigurationError for a mesh this host does not register (OB-09)."""
        return self._registered(mesh).status()

    def mesh_snapshot(self, mesh: str) -> MeshSnapshot:
        """The bounded diagnostic view of `mesh`: identities, phases, last failures (LV-164..169)."""
        return self._registered(mesh).snapshot()

    def connections(self) -> NodeConnections:
        """Every connection of this host at this instant, with the last failure of each; a copy."""
        now = trio.current_time()
        snapshots = [mesh.snapshot() for mesh in self._meshes.values()]
        channels = [self.channel_status(name) for name in {**self._servers, **self._clients}]
        return NodeConnections(
            state=self._lifecycle.state.name.lower(),
            connections=(
                *(report for snapshot in snapshots for report in mesh_reports(snapshot, now)),
                *(report for status in channels for report in channel_reports(status, now)),
                *self.fanout.reports(now),
            ),
            omitted=sum(snapshot.omitted for snapshot in snapshots)
            + sum(status.omitted + status.clients_omitted for status in channels)
            + self.fanout.omitted,
        )

    async def connections_of(self, mesh: str, rid: str, *, timeout: float = 5.0) -> NodeConnections:
        """Ask the node `rid` of `mesh` for its connections: what ``zlink peers`` shows.

        It answers without a permit, so also while its job queue is full. Raises NotFoundError for a node nobody knows,
        UnavailableError when it is not connected, DeadlineExceededError after `timeout` seconds.
        """
        if rid == self._registered(mesh).rid:
            return self.connections()
        return await self._ask_member(mesh, rid, CONNECTIONS_CHANNEL, ConnectionsAsked(), timeout=timeout)

    def node_rid(self, mesh: str) -> str:
        """This node's routing id in `mesh`."""
        return self._registered(mesh).rid

    def endpoint(self, mesh: str) -> str:
        """What this node advertises in `mesh`."""
        endpoint = self._registered(mesh).endpoint
        assert endpoint is not None
        return endpoint

    def channel_status(self, channel: str) -> ChannelStatus:
        """The status of a ClientServer channel: role, targets, servers and clients with phases and last failures.

        Raises ConfigurationError for a channel this host has registered neither as client nor as server (OB-09).
        """
        server, client = self._servers.get(channel), self._clients.get(channel)
        if server is None and client is None:
            known = ", ".join(sorted({*self._servers, *self._clients})) or "none"
            raise ConfigurationError(
                f"ClientServer channel {channel!r} is not registered in this host (it has: {known})"
            )
        return channel_status(server, client)

    def publisher_endpoint(self, channel: str) -> str:
        """What this host's publisher of the fanout channel advertises. Raises NotFoundError."""
        return self.fanout.endpoint(channel)

    def channel_endpoint(self, channel: str) -> str:
        """What this host's server of the ClientServer channel advertises. Raises as `set_client_server_weight`."""
        endpoint = self._server(channel).endpoint
        assert endpoint is not None
        return endpoint

    def _server(self, channel: str) -> ClientServerServer:
        server = self._servers.get(channel)
        if server is None:
            known = ", ".join(sorted(self._servers)) or "none"
            raise NotFoundError(f"this host serves no ClientServer channel {channel!r} (it serves: {known})")
        return server

    def _registered(self, mesh: str) -> RouteMesh:
        node = self._meshes.get(mesh)
        if node is None:
            known = ", ".join(sorted(self._meshes)) or "none"
            raise ConfigurationError(f"mesh {mesh!r} is not registered in this host (it has: {known})")
        return node

    def observe(self) -> Observation:
        """The current status, then one item per change; a slow reader gets the newest and the number it missed (OB
        §4)."""
        return Observation(self._source.changes(), lambda: self.status)

    async def wait_ready_target(self, channel: str) -> None:
        """Wait until a call on `channel` would find a target; unbounded, use a cancel scope.

        Raises NotFoundError when the channel is not registered here, ShuttingDownError when the host ends first.
        """
        path = self._core.channels.get(channel)
        if path is None:
            raise NotFoundError(f"channel {channel!r} is not registered in this process")
        async for _loss in self._source.changes():
            if not self._core.accepting:
                break
            if len(path.cycle):
                return
        raise self._closed()

    async def wait_ready_publisher(self, channel: str) -> None:
        """Wait until a publisher of the fanout channel is heard; unbounded, use a cancel scope.

        Raises NotFoundError when this host does not subscribe to the channel, ShuttingDownError when it ends first.
        """
        self.fanout.ready_publishers(channel)
        async for _loss in self._source.changes():
            if not self._core.accepting:
                break
            if self.fanout.ready_publishers(channel):
                return
        raise self._closed()

    # -- fanout --------------------------------------------------------------------------------------------------------

    async def publish(
        self, channel: str, topic: str | None, event: object, *, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Send one event to every subscriber of the fanout channel that is connected now (LV §7).

        Completes when the socket has taken it: it waits for no subscriber and fails for none, see docs/fanout.md for
        what is lost. `topic`: 1..255 bytes of UTF-8, None for the packet's name.

        Raises NotFoundError when this host does not publish the channel, ValueError for the framework's own topic and
        other arguments that cannot be sent, TypeError for what is no message, ShuttingDownError.
        """
        await self.fanout.publish(channel, topic, event, metadata)

    def fanout_status(self, channel: str) -> FanoutStatus:
        """The status of a fanout channel: its publisher here, and the publishers that are heard here.

        Raises ConfigurationError for a channel this host has registered neither way (OB-09).
        """
        return self.fanout.status(channel)

    # -- change at run time -------------------------------------------------------------------------------------------

    def set_channel_weight(self, mesh: str, channel: str, weight: int) -> None:
        """Change this node's weight in a channel it serves; peers and the Store learn it at once (wire.md §4, LO-133).

        Raises ValueError for a weight outside 0..10000, NotFoundError for a channel this mesh does not serve here.
        """
        self._registered(mesh).set_channel_weight(channel, weight)

    def set_client_server_weight(self, channel: str, weight: int) -> None:
        """Change the weight of this host's server of a ClientServer channel; its clients and the Store learn it at once
        (wire.md §4).

        Raises ValueError for a weight outside 0..10000, NotFoundError for a channel this host does not serve.
        """
        self._server(channel).set_weight(weight)

    # -- shutdown -----------------------------------------------------------------------------------------------------

    async def shutdown(self, deadline: float | None = None) -> TerminationResult:
        """Stop in order: no new calls, accepted handlers and replies finish, connections close, descriptors go
        (SA-212).

        `deadline` in seconds, the host's `shutdown_deadline` by default; it bounds the wait for accepted work.
        Idempotent: later callers wait for the first one's result. Once begun it is carried through, even when the
        caller is cancelled. Raises InvalidOperationError inside a handler, which it would have to wait for.
        """
        seconds = self._options.shutdown_deadline if deadline is None else deadline
        check_timeout(seconds, "deadline")
        if self._stopping:
            await self._stopped.wait()
            assert self._termination is not None
            return self._termination
        if self._core.workers.is_worker(trio.lowlevel.current_task()):
            raise InvalidOperationError(
                "a handler cannot wait for the shutdown, which waits for the handler; start it from a task of its own"
            )
        self._stopping = True
        result = TerminationResult(outcome=TerminationOutcome.FORCE_STOPPED, reason=TerminationReason.TEARDOWN_FAILED)
        with trio.CancelScope(shield=True):
            try:
                result = await self._stop(trio.current_time() + seconds)
            except Exception:
                # Whatever a part raised, who waits for the end of this host must see it end.
                log.exception("the shutdown failed")
            finally:
                self._termination = result
                self._lifecycle.move(RuntimeState.STOPPED)
                self._core.runtime_state = RuntimeState.STOPPED
                self._source.end()
                self._stopped.set()
        return result

    def unfinished(self) -> tuple[str, ...]:
        """What a shutdown would wait for now, for people: labels of handlers, of queued jobs, and of own requests."""
        core = self._core
        return (*core.workers.labels(), *core.ingress.labels(), *core.requests.labels())

    async def _stop(self, deadline: float) -> TerminationResult:
        core = self._core
        self._move(RuntimeState.DRAINING)
        for location in self.all_locations():
            try:
                with trio.move_on_at(deadline):
                    await location.settled()
            except ZlinkError as error:
                log.warning("could not publish that this node is draining: %s", error)
        drained = await self._drain(deadline)
        core.taking = False
        left = core.ingress.close()
        left += [] if drained else core.workers.cancel_remaining()
        left += core.requests.close()
        failed = not await self._close_holders()
        failed = not await self.fanout.aclose() or failed
        for location in self.all_locations():
            try:
                await location.remove()
            except Exception:
                failed = True
                log.exception("removing a descriptor failed")
        if left:
            log.warning("shutdown: the deadline passed before these ended: %s", ", ".join(left[:20]))
        if failed:
            return TerminationResult(
                outcome=TerminationOutcome.FORCE_STOPPED, reason=TerminationReason.TEARDOWN_FAILED, left=tuple(left)
            )
        if not drained:
            return TerminationResult(
                outcome=TerminationOutcome.FORCE_STOPPED, reason=TerminationReason.DEADLINE_EXCEEDED, left=tuple(left)
            )
        return TerminationResult(outcome=TerminationOutcome.STOPPED, reason=TerminationReason.NONE, left=tuple(left))

    async def _close_holders(self) -> bool:
        """Close all meshes and channels at once, for each may wait for peers that do not take its last records; False:
        one of them failed."""
        failures = 0

        async def close(holder: LinkHolder) -> None:
            nonlocal failures
            try:
                await holder.aclose()
            except Exception:
                failures += 1
                log.exception("closing %s %s failed", holder.kind, holder.name)

        async with trio.open_nursery() as nursery:
            for holder in self._core.holders:
                nursery.start_soon(close, holder)
        return failures == 0

    async def _drain(self, deadline: float) -> bool:
        """Wait for accepted work, for this host's own requests, and for a quiet moment on the wire."""
        core = self._core
        worked = trio.current_time()
        completed = core.workers.statistics().completed
        while True:
            if not await core.workers.drain(deadline):
                return False
            now = trio.current_time()
            before, completed = completed, core.workers.statistics().completed
            if completed != before:
                worked = now
            if now >= deadline:
                return False
            quiet_at = max(worked, core.last_taken) + QUIET_SECONDS
            if len(core.requests) == 0 and core.ingress.parked == 0 and (now >= quiet_at or not self._has_peers()):
                return True
            await trio.sleep_until(min(deadline, max(quiet_at, now + QUIET_SECONDS / 5)))

    def _has_peers(self) -> bool:
        return any(holder.links for holder in self._core.holders)
