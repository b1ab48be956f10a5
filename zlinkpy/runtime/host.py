"""`Host`: the composition root. Registration first, then `async with host.run() as rt` (architecture.md §5).

The nesting of the `async with` blocks in `_running` is the order of the shutdown, read from the inside out: calls end,
accepted work finishes, connections close, descriptors go, the lease goes, the store closes (LO-113, LO-144, SA-212,
LV-157).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Sequence
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
from zlinkpy.mesh import DEFAULT_WEIGHT, MeshCore
from zlinkpy.messages import Codecs
from zlinkpy.runtime.discovery import MeshLocation
from zlinkpy.runtime.plan import HostOptions, MeshPlan, plan_meshes
from zlinkpy.runtime.registration import DEFAULT_LISTEN, Mesh, check_timeout, make_mesh
from zlinkpy.runtime.running import Runtime
from zlinkpy.runtime.settings import Settings
from zlinkpy.runtime.watchdog import LoopWatchdog
from zlinkpy.telemetry import NullTelemetry, Telemetry
from zlinkpy.transport import Transport, ZmqTransport

log = logging.getLogger("zlinkpy.runtime")

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
        telemetry: where numbers go; nothing by default.
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
        self._telemetry = telemetry or NullTelemetry()
        self._entropy = entropy or SystemEntropy()
        self._transport = transport or (lambda entropy: ZmqTransport(entropy=entropy))
        self._watchdog = watchdog
        self._lease_driver = lease_driver
        self._meshes: dict[str, Mesh] = {}
        self._started = False

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
    ) -> Mesh:
        """Become a member of the mesh `name`; returns the registration to add channels and handlers to.

        Args:
            listen: ``tcp://HOST:PORT`` to bind; port 0 takes a free one.
            advertise_host: what others connect to; required when `listen` names every interface.
            rid_prefix: prefix of the automatic node id ``<prefix>-<uuid4>``.
            rid: a fixed node id; manual topology only.
            peers: endpoints of peers to dial, for manual topology.
            default_request_timeout: seconds, overrides the host's.
            placement_weight: share of new objects, 0..10000.

        Raises ConfigurationError for a name registered twice or arguments that cannot work.
        """
        if self._started:
            raise InvalidOperationError("the host has started; meshes are fixed")
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
        )
        self._meshes[name] = mesh
        return mesh

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
        permits = Permits(options.job_queue)
        self._started = True
        core = MeshCore(
            entropy=self._entropy,
            telemetry=self._telemetry,
            codecs=codecs,
            permits=permits,
            workers=Workers(permits),
        )
        body: BaseException | None = None
        try:
            async with self._running(options, plans, core, require_store=require_store) as rt:
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
        self, options: HostOptions, plans: tuple[MeshPlan, ...], core: MeshCore, *, require_store: bool
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
            transport: Transport = await stack.enter_async_context(self._transport(self._entropy))
            nursery = await stack.enter_async_context(trio.open_nursery())
            # Undone in reverse: the timer and the workers run until everything that was started on top of them has
            # ended.
            stack.callback(nursery.cancel_scope.cancel)
            watchdog: LoopWatchdog | None = None
            if self._watchdog:
                watchdog = LoopWatchdog(telemetry=self._telemetry)
                for plan in plans:
                    for handler in plan.handlers:
                        code = getattr(inspect.unwrap(handler.spec.function), "__code__", None)
                        if code is not None:
                            watchdog.register(code, handler.label)
                await nursery.start(watchdog.run)
            rt = Runtime(core, options, lease=lease, health=health, watchdog=watchdog)
            if lease is not None:
                lease.on_change(partial(_watch_lease, rt, lease))
            if transport.receive_stage is not None:
                core.workers.lead(transport.receive_stage)
            # Shielded: when the body is cancelled, accepted work still gets ABORT_DEADLINE, and needs its workers.
            core_scope = trio.CancelScope(shield=True)
            stack.callback(core_scope.cancel)
            await nursery.start(_run_shielded, core, core_scope)
            try:
                for plan in plans:
                    mesh = rt.add_mesh(plan)
                    await mesh.start(transport)
                    if lease is not None and store is not None:
                        location = MeshLocation(mesh, store, lease, options.location, health)
                        location.on_failure(rt.fail)
                        rt.locations[plan.options.name] = await stack.enter_async_context(location)
                rt.serve()
                for location in rt.locations.values():
                    await location.publish()
                yield rt
            except BaseException:
                with trio.CancelScope(shield=True):
                    await rt.shutdown(min(options.shutdown_deadline, ABORT_DEADLINE))
                raise
            with trio.CancelScope(shield=True):
                await rt.shutdown()


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
