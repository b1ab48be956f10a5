"""`Host`: the composition root. Registration first, then `async with host.run() as rt` (architecture.md §5).

The nesting of the `async with` blocks in `_running` is the order of the shutdown, read from the inside out: calls end,
accepted work finishes, connections close, descriptors go, the lease goes, the store closes (LO-113, LO-144, SA-212,
LV-157).
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import trio
from attrs import evolve

from zlinkpy.entropy import Entropy, SystemEntropy
from zlinkpy.errors import ConfigurationError, InvalidOperationError, UnavailableError
from zlinkpy.execution import JobQueueOptions, Permits, Workers
from zlinkpy.location import (
    LeaseDriver,
    LeaseEvent,
    LeaseEventKind,
    LocationOptions,
    LocationStore,
    OwnerLease,
    StoreHealth,
    open_store,
)
from zlinkpy.mesh import DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_WEIGHT, MeshCore
from zlinkpy.messages import Codecs, HandlerSpec
from zlinkpy.runtime.channel_plan import ChannelPlans, plan_channels
from zlinkpy.runtime.channel_registration import ServedChannel, UsedChannel, serve_channel, use_channel
from zlinkpy.runtime.discovery import (
    MeshLocation,
    ServiceLocation,
    client_location,
    publisher_location,
    server_location,
    subscriber_location,
)
from zlinkpy.runtime.fanout_plan import FanoutPlans, plan_fanout
from zlinkpy.runtime.fanout_registration import (
    PublishedChannel,
    SubscribedChannel,
    publish_channel,
    subscribe_channel,
)
from zlinkpy.runtime.plan import HostOptions, MeshPlan, plan_meshes
from zlinkpy.runtime.registration import DEFAULT_LISTEN, Mesh, check_timeout, make_mesh
from zlinkpy.runtime.running import Runtime
from zlinkpy.runtime.security import HostSecurity, SecurityOptions
from zlinkpy.runtime.settings import Settings
from zlinkpy.runtime.watchdog import LoopWatchdog
from zlinkpy.telemetry import Telemetry, fenced, get_logger
from zlinkpy.transport import Transport, ZmqTransport

log = get_logger("zlinkpy.runtime")

# When the body of `async with host.run()` raises or is cancelled, accepted work gets this long and no longer.
ABORT_DEADLINE = 2.0


class Host:
    """One framework instance of a process.

    Args:
        location_store: a URL (``memory://``, ``valkey+embedded://PATH``, ``redis://…``, ``rediss://…``,
        ``redis+sentinel://…``,
            ``redis+cluster://…``), a provider object, or None for manual topology.
        application_version: published with every node; relocation goes to equal or newer versions.
        default_request_timeout: seconds, for requests that name none and whose mesh names none.
        shutdown_deadline: seconds that accepted work gets when `run()` is left in order.
        job_queue: size and pressure marks of the Application Job Queue.
        location: times of lease and discovery.
        security: its keys and who may be connected with it; without any it listens on loopback addresses only.
        telemetry: where numbers go; nothing by default. One that fails is logged and changes no call (SA-284).
        entropy: source of ids and jitter; the operating system's by default.
        transport: builds the transport; ZeroMQ by default. Simulations give the in-memory twin.
        watchdog: False switches the loop watchdog off, for clocks that do not follow real time.
        lease_driver: who renews the owner lease; for such clocks the loop, because a clock that jumps waits for no
            thread.

    Registration does no I/O. A host runs once.
    """

    def __init__(
        self,
        *,
        location_store: str | LocationStore | None = None,
        application_version: int = 0,
        default_request_timeout: float = 30.0,
        shutdown_deadline: float = 30.0,
        job_queue: JobQueueOptions | None = None,
        location: LocationOptions | None = None,
        security: SecurityOptions | None = None,
        telemetry: Telemetry | None = None,
        entropy: Entropy | None = None,
        transport: Callable[[Entropy], Any] | None = None,
        watchdog: bool = True,
        lease_driver: LeaseDriver = LeaseDriver.THREAD,
    ) -> None:
        self._base = HostOptions(
            location_store=location_store,
            application_version=application_version,
            default_request_timeout=default_request_timeout,
            shutdown_deadline=shutdown_deadline,
            job_queue=job_queue or JobQueueOptions(),
            location=location or LocationOptions(),
        )
        self._security = security or SecurityOptions()
        self._telemetry = fenced(telemetry)
        self._entropy = entropy or SystemEntropy()
        self._transport = transport or (lambda entropy: ZmqTransport(entropy=entropy))
        self._watchdog = watchdog
        self._lease_driver = lease_driver
        self._meshes: dict[str, Mesh] = {}
        self._served: dict[str, ServedChannel] = {}
        self._used: dict[str, UsedChannel] = {}
        self._published: dict[str, PublishedChannel] = {}
        self._subscribed: dict[str, SubscribedChannel] = {}
        self._started = False
        self._runtime: Runtime | None = None

    @property
    def runtime(self) -> Runtime:
        """What `run()` gave, for handlers that call others. Raises InvalidOperationError while the host does not
        run."""
        if self._runtime is None:
            raise InvalidOperationError("the host is not running")
        return self._runtime

    def mesh(
        self,
        name: str,
        *,
        listen: str = DEFAULT_LISTEN,
        advertise_host: str | None = None,
        rid_prefix: str | None = None,
        rid: str | None = None,
        peers: Sequence[str] = (),
        default_request_timeout: float | None = None,
        placement_weight: int = DEFAULT_WEIGHT,
        max_message_bytes: int = 0,
    ) -> Mesh:
        """Become a member of the mesh `name`; returns the registration to add channels and handlers to.

        Args:
            listen: ``tcp://HOST:PORT`` to bind; port 0 takes a free one.
            advertise_host: what others connect to; required when `listen` names every interface.
            rid_prefix: prefix of the automatic node id ``<prefix>-<uuid4>``.
            rid: a fixed node id; manual topology only.
            peers: endpoints of peers to dial, for manual topology; with keys, ``NAME@tcp://HOST:PORT``, NAME being the
                peer's on the allow-list.
            default_request_timeout: seconds, overrides the host's.
            placement_weight: share of new objects, 0..10000.
            max_message_bytes: a larger frame drops the connection it comes on, before it is allocated; the peer is not
                told why. 0: no bound, as the wire has none for a mesh (wire.md §5).

        Raises ConfigurationError for a name registered twice or arguments that cannot work.
        """
        self._open("meshes")
        if name in self._meshes:
            raise ConfigurationError(f"mesh {name!r} is registered twice")
        mesh = make_mesh(
            name,
            lambda: self._started,
            listen=listen,
            advertise_host=advertise_host,
            rid_prefix=rid_prefix,
            rid=rid,
            peers=peers,
            default_request_timeout=default_request_timeout,
            placement_weight=placement_weight,
            max_message_bytes=max_message_bytes,
        )
        self._meshes[name] = mesh
        return mesh

    def serve_client_server(
        self,
        name: str,
        *,
        listen: str = DEFAULT_LISTEN,
        advertise_host: str | None = None,
        weight: int = DEFAULT_WEIGHT,
        rid_prefix: str | None = None,
        rid: str | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> ServedChannel:
        """Be a server of the ClientServer channel `name`; returns the registration to add handlers to.

        Args:
            listen: ``tcp://HOST:PORT`` to bind, a listener of its own; port 0 takes a free one.
            advertise_host: what clients connect to; required when `listen` names every interface.
            weight: share of the channel's messages, 0..10000 (0: a server that is never selected).
            rid_prefix: prefix of the automatic server id ``<prefix>-<uuid4>``.
            rid: a fixed server id; manual topology only.
            max_message_bytes: the largest record that is taken or sent, over all its frames; 0 for no cap.

        Raises ConfigurationError for a channel served twice or arguments that cannot work. The same process may use the
        channel, too; it then reaches this server through the socket, like any other.
        """
        self._open("channels")
        if name in self._served:
            raise ConfigurationError(f"ClientServer channel {name!r} is served twice")
        self._served[name] = channel = serve_channel(
            name,
            lambda: self._started,
            listen=listen,
            advertise_host=advertise_host,
            weight=weight,
            rid_prefix=rid_prefix,
            rid=rid,
            max_message_bytes=max_message_bytes,
        )
        return channel

    def use_client_server(
        self,
        name: str,
        *,
        servers: Sequence[str] = (),
        default_request_timeout: float | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        """Be able to call the ClientServer channel `name`: this host connects to all its servers.

        Args:
            servers: endpoints of servers to dial, besides those the Location Store shows; without a store there has to
                be one.
            default_request_timeout: seconds, overrides the host's.
            max_message_bytes: the largest record that is sent or taken, over all its frames; 0 for no cap. What is sent
                is also held to the server's own limit.

        Raises ConfigurationError for a channel used twice or arguments that cannot work.
        """
        self._open("channels")
        if name in self._used:
            raise ConfigurationError(f"ClientServer channel {name!r} is used twice")
        self._used[name] = use_channel(
            name,
            servers=servers,
            default_request_timeout=default_request_timeout,
            max_message_bytes=max_message_bytes,
        )

    def fanout_publisher(
        self,
        name: str,
        *,
        listen: str = DEFAULT_LISTEN,
        advertise_host: str | None = None,
        rid_prefix: str | None = None,
        rid: str | None = None,
    ) -> None:
        """Be a publisher of the fanout channel `name`, for `Runtime.publish`.

        Args:
            listen: ``tcp://HOST:PORT`` to bind, a socket of its own; port 0 takes a free one.
            advertise_host: what subscribers connect to; required when `listen` names every interface.
            rid_prefix: prefix of the automatic publisher id ``<prefix>-<uuid4>``.
            rid: a fixed publisher id; manual topology only.

        Raises ConfigurationError for a channel published twice or arguments that cannot work.
        """
        self._open("channels")
        if name in self._published:
            raise ConfigurationError(f"fanout channel {name!r} is published twice")
        self._published[name] = publish_channel(
            name, listen=listen, advertise_host=advertise_host, rid_prefix=rid_prefix, rid=rid
        )

    def fanout_subscriber(self, name: str, *, publishers: Sequence[str] = ()) -> SubscribedChannel:
        """Hear the publishers of the fanout channel `name`; returns the registration to add handlers to.

        Args:
            publishers: their endpoints, with keys as ``NAME@tcp://HOST:PORT``, where NAME is on the allow-list. Empty:
                those the Location Store shows, which has to be there then.

        Raises ConfigurationError for a channel subscribed to twice or arguments that cannot work.
        """
        self._open("channels")
        if name in self._subscribed:
            raise ConfigurationError(f"fanout channel {name!r} is subscribed to twice")
        self._subscribed[name] = channel = subscribe_channel(name, lambda: self._started, publishers=publishers)
        return channel

    def _open(self, what: str) -> None:
        if self._started:
            raise InvalidOperationError(f"the host has started; {what} are fixed")

    @property
    def client_servers(self) -> tuple[str, ...]:
        """The names of the registered ClientServer channels, in whatever role."""
        return tuple(dict.fromkeys((*self._served, *self._used)))

    @property
    def fanouts(self) -> tuple[str, ...]:
        """The names of the registered fanout channels, in whatever role."""
        return tuple(dict.fromkeys((*self._published, *self._subscribed)))

    @property
    def meshes(self) -> tuple[str, ...]:
        """The names of the registered meshes."""
        return tuple(self._meshes)

    @property
    def location_store(self) -> str | LocationStore | None:
        """The store given in code; settings may name another."""
        return self._base.location_store

    @asynccontextmanager
    async def run(self, *, settings: Settings | None = None, require_store: bool = False) -> AsyncIterator[Runtime]:
        """Start everything; the host is SERVING inside the block and has shut down after it.

        `settings` (file, environment, command line) override what was given in code. With a store that does not answer
        the host starts all the same, blocked: it serves configured peers, and is published as soon as the store answers
        (LO-104). `require_store` makes that an UnavailableError instead, before anything is bound.

        Raises ConfigurationError before anything is bound when registration or settings cannot work, and when a
        listener cannot be bound or the store refuses this client. An exception of the body comes out as itself.
        """
        if self._started:
            raise InvalidOperationError("a Host runs once; build another one")
        options = self._options(settings)
        codecs = Codecs()
        plans = plan_meshes(
            self._meshes, settings.mesh if settings else {}, options, codecs=codecs, entropy=self._entropy
        )
        on_meshes = {channel: mesh.name for mesh in self._meshes.values() for channel in mesh.channels}
        channels = plan_channels(
            self._served,
            self._used,
            settings.client_server if settings else {},
            options,
            on_meshes=on_meshes,
            codecs=codecs,
            entropy=self._entropy,
        )
        fanout = plan_fanout(
            self._published,
            self._subscribed,
            settings.fanout if settings else {},
            options,
            elsewhere={channel: f"on the mesh {mesh!r}" for channel, mesh in on_meshes.items()}
            | dict.fromkeys(self.client_servers, "as a ClientServer channel"),
            codecs=codecs,
            telemetry=self._telemetry,
            entropy=self._entropy,
        )
        permits = Permits(options.job_queue)
        self._started = True
        core = MeshCore(
            entropy=self._entropy,
            telemetry=self._telemetry,
            codecs=codecs,
            permits=permits,
            workers=Workers(permits),
            keys=options.security.keys,
        )
        body: BaseException | None = None
        try:
            async with self._running(options, plans, channels, fanout, core, require_store=require_store) as rt:
                try:
                    yield rt
                except BaseException as error:
                    body = error
                    raise
        except BaseExceptionGroup as group:
            # Each nursery that the error passed through has wrapped it once more.
            if body is None or _leaves(group) != _leaves(body):
                raise _unwrapped(group) from None
        if body is not None:
            raise body

    def _options(self, settings: Settings | None) -> HostOptions:
        options = self._base
        security = self._security if settings is None else settings.security.over(self._security)
        options = evolve(options, security=HostSecurity(keys=security.load(), insecure=security.insecure))
        if settings is not None:
            given = {
                name: value
                for name in ("location_store", "application_version", "default_request_timeout", "shutdown_deadline")
                if (value := getattr(settings, name)) is not None
            }
            options = evolve(
                options,
                job_queue=settings.job_queue.over(options.job_queue),
                location=settings.location.over(options.location),
                **given,
            )
        options.location.validate()
        options.job_queue.validate()
        check_timeout(options.default_request_timeout, "default_request_timeout")
        check_timeout(options.shutdown_deadline, "shutdown_deadline")
        version = options.application_version
        if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63:
            raise ConfigurationError(f"application_version must be an integer from 0 to 2^63 - 1, not {version!r}")
        return options

    @asynccontextmanager
    async def _running(
        self,
        options: HostOptions,
        plans: tuple[MeshPlan, ...],
        channels: ChannelPlans,
        fanout: FanoutPlans,
        core: MeshCore,
        *,
        require_store: bool,
    ) -> AsyncIterator[Runtime]:
        health = StoreHealth(options.location.store_failure_grace)
        async with AsyncExitStack() as stack:
            store = options.location_store
            if isinstance(store, str):
                store = open_store(store, entropy=self._entropy)
            lease: OwnerLease | None = None
            if store is not None:
                stack.push_async_callback(_close_store, store)
                lease = await stack.enter_async_context(
                    OwnerLease(store, options.location, self._entropy, driver=self._lease_driver, health=health)
                )
                if lease.lease_generation is None:
                    label = getattr(store, "label", type(store).__name__)
                    if require_store:
                        raise UnavailableError(
                            f"the Location Store {label} does not answer; check that it runs and that its URL is right",
                            cause="LocationStore",
                        )
                    log.warning(
                        "the Location Store %s does not answer; serving without it and trying again every %g s",
                        label,
                        options.location.owner_lease_renew_interval,
                    )
            made = self._transport(self._entropy)
            if options.security.keys is not None:
                made.secure(options.security.keys)
            transport: Transport = await stack.enter_async_context(made)
            nursery = await stack.enter_async_context(trio.open_nursery())
            # Undone in reverse: the timer and the workers run until everything that was started on top of them has
            # ended.
            stack.callback(nursery.cancel_scope.cancel)
            watchdog: LoopWatchdog | None = None
            if self._watchdog:
                watchdog = LoopWatchdog(telemetry=self._telemetry)
                for spec in _specs(plans, channels, fanout):
                    code = getattr(inspect.unwrap(spec.function), "__code__", None)
                    if code is not None:
                        watchdog.register(code, spec.label)
                await nursery.start(watchdog.run)
            rt = self._runtime = Runtime(core, options, lease=lease, health=health, watchdog=watchdog)
            stack.callback(self._ended)
            if lease is not None:
                lease.on_change(partial(_watch_lease, rt, lease))
            if transport.receive_stage is not None:
                core.workers.lead(transport.receive_stage)
            # Shielded: when the body is cancelled, accepted work still gets ABORT_DEADLINE, and needs its workers.
            core_scope = trio.CancelScope(shield=True)
            stack.callback(core_scope.cancel)
            # The start as well: `start` of a cancelled host drops `started()`, and would then wait for them for ever.
            with trio.CancelScope(shield=True):
                await nursery.start(_run_shielded, core, core_scope)

            async def locate(make: Callable[..., ServiceLocation[Any]], holder: object) -> None:
                if lease is not None and store is not None:
                    location = make(holder, store, lease, options.location, health)
                    location.on_failure(rt.fail)
                    rt.add_location(await stack.enter_async_context(location))

            try:
                await self._start(rt, plans, channels, fanout, transport, locate)
                rt.serve()
                for each in rt.all_locations():
                    await each.publish()
                yield rt
            except BaseException:
                with trio.CancelScope(shield=True):
                    await rt.shutdown(min(options.shutdown_deadline, ABORT_DEADLINE))
                raise
            with trio.CancelScope(shield=True):
                await rt.shutdown()

    def _ended(self) -> None:
        self._runtime = None
        for mesh in self._meshes.values():
            mesh.node = None

    async def _start(
        self,
        rt: Runtime,
        plans: tuple[MeshPlan, ...],
        channels: ChannelPlans,
        fanout: FanoutPlans,
        transport: Transport,
        locate: Callable[[Callable[..., ServiceLocation[Any]], object], Awaitable[None]],
    ) -> None:
        """Bind and dial everything; `locate` connects one started part with the store, where there is one."""
        for plan in plans:
            mesh = rt.add_mesh(plan)
            await mesh.start(transport)
            self._meshes[mesh.name].node = mesh
            await locate(MeshLocation, mesh)
        for server_plan in channels.servers:
            server = rt.add_server(server_plan)
            await server.start(transport)
            await locate(server_location, server)
        for client_options in channels.clients:
            client = rt.add_client(client_options)
            client.start(transport)
            await locate(client_location, client)
        for publisher_options in fanout.publishers:
            publisher = rt.fanout.add_publisher(publisher_options)
            await publisher.start(transport)
            await locate(publisher_location, publisher)
        for subscriber_plan in fanout.subscribers:
            subscriber = rt.fanout.add_subscriber(subscriber_plan)
            subscriber.start(transport)
            if not subscriber_plan.publishers:
                await locate(subscriber_location, subscriber)


def _specs(plans: tuple[MeshPlan, ...], channels: ChannelPlans, fanout: FanoutPlans) -> Iterator[HandlerSpec]:
    """Every registered handler."""
    for table in (*(plan.handlers for plan in plans), *(plan.handlers for plan in channels.servers)):
        yield from (handler.spec for handler in table)
    for subscriber in fanout.subscribers:
        yield from (handler.spec for handler in subscriber.handlers)


async def _run_shielded(
    core: MeshCore, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with scope:
        await core.run(task_status=task_status)


def _watch_lease(rt: Runtime, lease: OwnerLease, event: LeaseEvent) -> None:
    if event.kind is LeaseEventKind.LOST:
        rt.fail(lease.failure or InvalidOperationError("the owner lease was lost"))


def _unwrapped(error: BaseException) -> BaseException:
    """The error inside groups of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _leaves(error: BaseException) -> set[int]:
    """The identities of the errors in a group, at whatever depth."""
    if isinstance(error, BaseExceptionGroup):
        return {leaf for each in error.exceptions for leaf in _leaves(each)}
    return {id(error)}


async def _close_store(store: LocationStore) -> None:
    with trio.CancelScope(shield=True):
        await store.aclose()
