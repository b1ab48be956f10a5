"""The session router: one turn of a session at a time in the whole cluster, on whatever node it is asked for.

```python
class Chat(SessionHandler, ref="chat"):
    async def open(self, session_id, options, open_attributes): ...


async with SessionRouter(Chat, store="redis://...", node_id="web-1") as router:
    submitted = await router.submit("s1", "hello", handler="chat", key="k1")
    result = await submitted.future.result()
```

Here everything is put together; what it does is in the parts (see `core`). Services run in nurseries of their own, so
that one that is slow or blocked costs no other (facts §7; SR-014..017):

    service               runs in                               limit
    turns, drain passes   turn nursery                          the handler's own
    forward polls         forward nursery, a task per forward   4 calls at once
    closing of handles    teardown nursery                      8 at once
    delayed rings, writes background nursery                    -
    event relays          one task                              a batch a turn
    lease renewal         threads, or a task per lease          a connection each
    sweeps                one task each                         -
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import trio

from zlinkpy.entropy import Entropy, SystemEntropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.sessions.assembly import Given, MeshOfHost, assemble
from zlinkpy.sessions.core import HeldLease, RouterCore
from zlinkpy.sessions.dispatch import Dispatch, interrupt_here
from zlinkpy.sessions.endings import Endings, PurgeHook
from zlinkpy.sessions.errors import SessionSignalError
from zlinkpy.sessions.event_streams import EventStream
from zlinkpy.sessions.forwarding import Forwards
from zlinkpy.sessions.futures import SubmitDisposition
from zlinkpy.sessions.gate_machine import Gate, SessionSeat
from zlinkpy.sessions.handle_cache import HandleCache
from zlinkpy.sessions.handlers import HandlerRegistry, SessionFactory, SessionHandler, SessionOpener
from zlinkpy.sessions.metrics import MetricsPort
from zlinkpy.sessions.payloads import EventCodec, Interrupt
from zlinkpy.sessions.recovery import OrphanScan, Recovery
from zlinkpy.sessions.renewal import LeaseRenewer
from zlinkpy.sessions.session_events import SessionEvents
from zlinkpy.sessions.settlement import Settlement
from zlinkpy.sessions.spi import (
    EventJournal,
    IdempotencyStore,
    SessionInbox,
    SessionLeaseStore,
    SessionRecordStore,
    SessionSignalBus,
)
from zlinkpy.sessions.status_watch import StatusView
from zlinkpy.sessions.submission import Submission
from zlinkpy.sessions.subscriptions import Subscriptions
from zlinkpy.sessions.turn_pass import TurnPass
from zlinkpy.sessions.types import (
    ClusterSessionStatus,
    InterruptReason,
    Principal,
    Priority,
    RouterConfig,
    SignalKind,
    SubmitRequest,
    TurnInput,
)


class SessionRouter:
    """Runs the turns of sessions.

    Constructing it does no I/O; entering it (``async with``) starts everything, leaving it closes it at once.

    Args:
        handlers: `SessionHandler` classes or objects, or instead of them one of the next two.
        session_factory: a function that opens every session: (session id, handler ref, options).
        session_opener: the same with (session id, handler id, options, open attributes).
        store: URL of a server for everything that is not given on its own; ``memory://`` or None: in this process.
        mesh: a mesh of the host that carries the signals instead of the store.
        node_id: names this node among those that share the stores; made up in mode SINGLE_NODE.
        config: settings.
        record_store, lease_store, inbox, idempotency_store, bus, journal: back ends of the application's choice.
        metrics: an object with hooks of `SessionMetrics`.
        purge_hooks: called with the id of a session that is over here.
        event_codec: knows the application's event types.
        entropy: where ids come from.

    Raises:
        ConfigurationError: What is given cannot work; the text names the place and the fix.
    """

    def __init__(
        self,
        *handlers: type[SessionHandler] | SessionHandler,
        session_factory: SessionFactory | None = None,
        session_opener: SessionOpener | None = None,
        store: str | None = None,
        mesh: MeshOfHost | None = None,
        node_id: str | None = None,
        config: RouterConfig | None = None,
        record_store: SessionRecordStore | None = None,
        lease_store: SessionLeaseStore | None = None,
        inbox: SessionInbox | None = None,
        idempotency_store: IdempotencyStore | None = None,
        bus: SessionSignalBus | None = None,
        journal: EventJournal | None = None,
        metrics: object | None = None,
        purge_hooks: Sequence[PurgeHook] = (),
        event_codec: EventCodec | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.config = config or RouterConfig()
        self._entropy = entropy or SystemEntropy()
        registry = HandlerRegistry(handlers, session_factory=session_factory, session_opener=session_opener)
        given = Given(
            url=store,
            mesh=mesh,
            record_store=record_store,
            lease_store=lease_store,
            inbox=inbox,
            idempotency_store=idempotency_store,
            bus=bus,
            journal=journal,
        )
        parts = assemble(self.config, self._entropy, given, node_id)
        parts.store.attach()
        self._parts = parts
        core = self._core = RouterCore(
            node_id=parts.node_id,
            config=self.config,
            registry=registry,
            store=parts.store,
            inbox=parts.inbox,
            idempotency=parts.idempotency,
            bus=parts.bus,
            journal=parts.journal,
            metrics=MetricsPort(metrics),
            entropy=self._entropy,
        )
        dispatch = Dispatch(core)
        self._subscriptions = Subscriptions(core, dispatch.received)
        self._forwards = Forwards(core)
        self._settlement = Settlement(core, self._forwards)
        self._recovery = Recovery(core, self._forwards)
        self._orphans = OrphanScan(core)
        self._status = StatusView(core)
        self._submission = Submission(core, self._forwards, self._settlement, self._recovery, self._subscriptions)
        self._endings = Endings(
            core, self._forwards, self._settlement, self._subscriptions, self._status, tuple(purge_hooks)
        )
        dispatch.forwards, dispatch.endings, dispatch.status = self._forwards, self._endings, self._status
        core.renewer = LeaseRenewer(core)
        core.events = SessionEvents(
            bus=parts.bus,
            journal=parts.journal,
            codec=event_codec or EventCodec(),
            sign=core.signal,
            handler=dispatch.received,
            hear_control=self._subscriptions.ensure,
            drain_timeout=self.config.relay_close_drain_timeout,
        )
        core.start_drain = self._start_drain
        core.ensure_subscribed = self._subscriptions.ensure
        core.cache = HandleCache(
            idle_ttl=self.config.idle_ttl,
            limit=self.config.max_cached_sessions,
            metrics=core.metrics,
            on_closed=core.handle_closed,
            spawn=self._close_in_background,
        )
        self._stack: AsyncExitStack | None = None
        self._services: trio.CancelScope | None = None
        self._closed = trio.Event()
        self._closing = False
        self._graceful = False

    def __repr__(self) -> str:
        core = self._core
        state = "closed" if self._closed.is_set() else "open" if core.accepting else "closing"
        return (
            f"<SessionRouter {core.node_id} {state} [turns {len(core.turns)} | handles {len(core.cache)} | "
            f"leases {sum(each.lease is not None for each in core.seats.values())} | forwards {len(core.forwards)}]>"
        )

    @property
    def node_id(self) -> str:
        """The name under which this node holds leases."""
        return self._core.node_id

    # -- running

    async def __aenter__(self) -> SessionRouter:
        if self._stack is not None:
            raise ConfigurationError("a session router is entered once; make another one")
        self._stack = AsyncExitStack()
        try:
            await self._open(self._stack)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _open(self, stack: AsyncExitStack) -> None:
        core = self._core
        await self._parts.open(stack)
        # What comes later ends first: services, then what they hand work to, and the lease renewal last of all.
        nursery = await stack.enter_async_context(trio.open_nursery())
        core.background_nursery = await stack.enter_async_context(trio.open_nursery())
        core.teardown_nursery = await stack.enter_async_context(trio.open_nursery())
        core.forward_nursery = await stack.enter_async_context(trio.open_nursery())
        core.turn_nursery = await stack.enter_async_context(trio.open_nursery())
        stack.push_async_callback(self._stop_services, nursery)
        await nursery.start(core.renewer.run)
        for service in (
            self._cache_sweeps,
            self._recovery.sweep_for_ever,
            self._orphans.scan_for_ever,
            *core.events.services(),
        ):
            nursery.start_soon(service)

    async def _stop_services(self, nursery: trio.Nursery) -> None:
        core = self._core
        for each in (core.turn_nursery, core.forward_nursery, core.teardown_nursery, core.background_nursery, nursery):
            each.cancel_scope.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stack is not None
        with trio.CancelScope(shield=True):
            await self.close()
        # Without the error: each nursery would wrap it once more.
        await self._stack.aclose()

    async def _cache_sweeps(self) -> None:
        core = self._core
        while True:
            await trio.sleep(self.config.cache_sweep_interval)
            await core.cache.sweep()
            for session_id in await self._subscriptions.end_quiet_ones():
                await self._endings.call_hooks(session_id)

    def _close_in_background(self, close: Callable[[], Awaitable[None]]) -> None:
        async def limited() -> None:
            async with self._core.teardown_limit:
                await close()

        self._core.teardown_nursery.start_soon(limited)

    def _start_drain(self, seat: SessionSeat[HeldLease]) -> None:
        core = self._core
        if not seat.enter(Gate.DRAIN):
            return
        core.begin_work()
        core.turn_nursery.start_soon(TurnPass(core, self._settlement, self._forwards, seat).run)

    # -- the public calls

    async def submit(
        self,
        request: SubmitRequest | str,
        input: TurnInput | str | None = None,
        *,
        handler: str = "",
        variant: str | None = None,
        key: str | None = None,
        priority: Priority = Priority.NEXT,
        options: Mapping[str, Any] | None = None,
        submit_options: Mapping[str, Any] | None = None,
        open_attributes: Mapping[str, Any] | None = None,
        initiator: Principal | None = None,
    ) -> SubmitDisposition:
        """Have one input run as a turn of its session: here, or by whoever holds the session.

        Args:
            request: a whole `SubmitRequest`, or a session id that goes with the other arguments.
            input: the input, with a session id.
            handler: ref of the handler.
            key: an idempotency key: while its result is kept (24 h) the same key and input run once.

        Returns:
            At once: the future of the turn is in it. Cancelling the call before that leaves nothing behind, but for
            a message that was queued already: it runs.

        Raises:
            RouterClosedError, ReentrantSubmitError: See there.
            ConflictingHandlerError: The session belongs to another handler.
            IdempotencyConflictError: The key was used with another input or session.
            SessionLeaseError, SessionInboxError, IdempotencyStoreError, SessionRecordError: A store did not answer.
        """
        if not isinstance(request, SubmitRequest):
            if input is None:
                raise ValueError("submit needs an input beside the session id")
            request = SubmitRequest(
                session_id=request,
                handler_ref=handler,
                input=input,
                handler_variant=variant,
                options=options or {},
                submit_options=submit_options or {},
                open_attributes=open_attributes or {},
                idempotency_key=key,
                priority=priority,
                initiator=initiator,
            )
        return await self._submission.submit(request)

    async def interrupt(
        self, session_id: str, reason: InterruptReason = InterruptReason.USER, *, turn_id: str | None = None
    ) -> None:
        """Stop the session's turn wherever it runs, or only `turn_id`; no turn, no effect (SR-313..321).

        Raises:
            SessionSignalError: The other nodes could not be told; a turn on this one is interrupted all the same.
        """
        core = self._core
        await trio.lowlevel.checkpoint()
        interrupt_here(core, session_id, reason, turn_id)
        signal = core.signal(session_id, SignalKind.INTERRUPT, Interrupt(reason, turn_id).payload())
        if not await core.publish(signal):
            raise SessionSignalError("the interrupt could not be published to the other nodes", applied="unknown")

    def events(self, session_id: str, *, from_seq: int | None = None) -> EventStream:
        """The session's events until it is released, deleted, evicted or the router closes.

        Args:
            session_id: the session; it need not exist yet.
            from_seq: None: live only. A number: the events of the turn that runs now from there on, then the live
                ones, each once; what is not kept any more shows as a `Gap` (SR-397, SR-456).
        """
        return self._core.events.subscribe(session_id, from_seq)

    def status(self, session_id: str) -> ClusterSessionStatus:
        """What this node knows of a session's status; for people, never to decide anything."""
        return self._status.of(session_id)

    async def release(self, session_id: str) -> None:
        """End the session on every node: its turn is interrupted, what waits fails; its history stays.

        Raises:
            RouterClosedError, ReentrantSubmitError: See there.
            SessionBackendError: The first step that failed; all others were done.
        """
        await self._endings.release(session_id)

    async def delete(self, session_id: str) -> None:
        """Remove the session and its history.

        Raises:
            RouterClosedError, ReentrantSubmitError: See there.
            SessionBusyError: It was not given up within 5 s; nothing is changed.
            SessionBackendError, SessionNotHeldError: The record is still there; delete again.
        """
        await self._endings.delete(session_id)

    async def close(self, timeout: float = 0.0) -> bool:
        """Stop taking requests, let what runs end for `timeout` seconds, stop the rest, give every lease back.

        Returns:
            True when everything ended by itself. Handlers are not closed: they are the application's.
        """
        if self._closing:
            await self._closed.wait()
            return self._graceful
        self._closing = True
        try:
            if self._stack is not None:
                with trio.CancelScope(shield=True):
                    self._graceful = await self._endings.close(timeout)
        finally:
            self._core.accepting = False
            self._closed.set()
        return self._graceful
