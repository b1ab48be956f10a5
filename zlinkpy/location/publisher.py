"""Publishing one descriptor, of whatever kind: the descriptor machine with a task (LO-130..144).

The task sleeps until there is something to do and performs one round at a time. A round is never cut by a
cancellation: its outcome is established, within the renew timeout, before anything is released (LO-183). While the
lease is not valid nothing is sent, whatever is wanted; each batch is checked again right before it goes out (LO-121).

Rejected: publishing in the task of whoever changes the content. Two callers would then have two publications under
way, and a cancelled one would leave a revision nobody knows the fate of.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from zlinkpy.errors import InvalidOperationError
from zlinkpy.location.calls import perform
from zlinkpy.location.descriptor_kind import Descriptor
from zlinkpy.location.descriptor_machine import DescriptorMachine
from zlinkpy.location.health import StoreHealth, StoreOperation
from zlinkpy.location.lease import OwnerLease
from zlinkpy.location.lease_machine import LeaseEvent, LeaseEventKind
from zlinkpy.location.options import LocationOptions
from zlinkpy.location.requests import Batch, Request
from zlinkpy.location.service import Service
from zlinkpy.location.store import LocationStore, StoreFailure


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class DescriptorPublisher(Service):
    """One row: ``async with DescriptorPublisher(store, lease, options) as publisher``, inside the lease's
    block.

    Leaving removes the row and the Entry claim if `remove` has not done so; do it before the lease is released
    (LO-113). `wall_clock` gives the milliseconds shown as the row's time of change and used for nothing else.
    """

    def __init__(
        self,
        store: LocationStore,
        lease: OwnerLease,
        options: LocationOptions,
        *,
        health: StoreHealth | None = None,
        wall_clock: Callable[[], int] = _wall_clock_ms,
    ) -> None:
        self._store = store
        self._lease = lease
        self._options = options
        self._health = health or StoreHealth(options.store_failure_grace)
        self._wall_clock = wall_clock
        self._machine: DescriptorMachine | None = None
        self._callbacks: list[Callable[[Exception], None]] = []
        self._wake = trio.Event()
        self._settled = trio.Event()
        self._idle = trio.Event()
        self._gone = trio.Event()
        self._work_scope = trio.CancelScope(shield=True)
        self._removed = False

    @property
    def revision(self) -> int:
        """The revision known to be stored; 0 before the first."""
        return 0 if self._machine is None else self._machine.revision

    @property
    def is_current(self) -> bool:
        """True when the store is known to have the newest content."""
        return self._machine is not None and self._machine.is_current

    @property
    def failure(self) -> Exception | None:
        """Why nothing is published any more: ids in use by a live node, an unreadable row, no revision left (the
        host's ERROR).
        """
        return None if self._machine is None else self._machine.failure

    @property
    def last_error(self) -> str:
        """The latest problem, for status; empty when there was none."""
        return "" if self._machine is None else self._machine.last_error

    def on_failure(self, callback: Callable[[Exception], None]) -> None:
        """Call `callback` once when publishing ends with `failure`. It must not block or raise."""
        self._callbacks.append(callback)

    async def publish(self, first: Descriptor) -> bool:
        """Publish the first descriptor, complete and with its actual endpoint (LO-130).

        Returns True when it is stored; False when the lease is not valid or the store failed: then it is published as
        soon as both work (LO-104). Takes at most the renew timeout once the lease is valid. Raises ConfigurationError
        when the descriptor cannot be stored whole (LO-081) or its routing id or Entry Spot id is held by a live owner
        (LO-131, LO-148). Cancelled, it goes on publishing; leaving the block removes the row.
        """
        if self._machine is not None:
            raise InvalidOperationError(f"{first.rid} is published already; change it with update()")
        if self._scope is None or self._removed:
            raise InvalidOperationError("a descriptor is published inside the publisher's async with block only")
        self._machine = DescriptorMachine(self._options, first, self._lease.owner_id)
        self._kick()
        return await self.settled()

    def update(self, descriptor: Descriptor) -> None:
        """Replace the content. A publication starts at once; of several that wait the latest wins (LO-133, LO-135).

        Content that is equal, or differs in capacity counts only, publishes nothing (LO-137). Raises
        InvalidOperationError when something that is identity under its key would change (LO-138). After `remove` it
        does nothing.
        """
        if self._machine is None:
            raise InvalidOperationError(f"{descriptor.rid} is not published yet; begin with publish()")
        self._machine.want(descriptor)
        self._kick()

    async def settled(self) -> bool:
        """Wait for the newest content: True when it is stored, False when storing it failed or may not be tried now.

        Does not wait for the next try, so it is bounded by the renew timeout, twice when an older publication is
        under way (LO-142). Raises the publisher's `failure`.
        """
        machine = self._machine
        if machine is None:
            raise InvalidOperationError("nothing is published yet; begin with publish()")
        failed = machine.failed_attempts
        await trio.lowlevel.checkpoint()
        while True:
            if machine.failure is not None:
                raise machine.failure
            if machine.is_current:
                return True
            blocked = self._removed or not self._lease.is_valid(trio.current_time())
            idle = not machine.in_flight
            if machine.failed_attempts != failed or (idle and (machine.is_failing or blocked)):
                return False
            await self._settled.wait()

    async def remove(self) -> None:
        """Delete the row and the Entry claim if they are still this run's, and stop publishing (LO-144).

        Bounded by the renew timeout, twice with a publication under way, also when cancelled. What cannot be deleted
        because the store or the lease is gone stays; the lapsed lease hides it (C12).
        """
        first, self._removed = not self._removed, True
        self._work_scope.cancel()
        with trio.CancelScope(shield=True):
            await self._idle.wait()
            if not first:
                await self._gone.wait()
            else:
                if self._machine is not None:
                    await self._round(self._machine, self._machine.remove(trio.current_time()))
                self._gone.set()
        await trio.lowlevel.checkpoint_if_cancelled()

    # Running.

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        self._lease.on_change(self._lease_changed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._work)
            try:
                yield
            finally:
                await self.remove()

    async def _work(self) -> None:
        try:
            with self._work_scope:
                while True:
                    request = self._next()
                    if request is None:
                        await self._wait()
                        continue
                    with trio.CancelScope(shield=True):
                        await self._round(self._machine, request)
        finally:
            self._idle.set()

    def _next(self) -> Request | None:
        now = trio.current_time()
        lease = self._lease
        row, generation = lease.row, lease.lease_generation
        if self._machine is None or row is None or generation is None or not lease.is_valid(now):
            return None
        request = self._machine.poll(now, row, generation, self._wall_clock())
        if request is None:
            # A refusal can come without a request: no revision left.
            self._tell()
        return request

    async def _wait(self) -> None:
        due = None if self._machine is None else self._machine.next_deadline()
        now = trio.current_time()
        if due is None or not self._lease.is_valid(now):
            await self._wake.wait()
            return
        with trio.move_on_after(max(0.0, due - now)):
            await self._wake.wait()

    async def _round(self, machine: DescriptorMachine | None, request: Request | None) -> None:
        assert machine is not None
        while request is not None:
            if isinstance(request, Batch) and not self._lease.is_valid(trio.current_time()):
                blocked = StoreFailure("the owner lease is not valid", applied="no", operation="write")
                request = machine.settle(blocked, trio.current_time())
            else:
                request = machine.settle(await perform(self._store, request), trio.current_time())
        if machine.is_failing or machine.failure is not None:
            self._health.failed(StoreOperation.DESCRIPTOR_WRITE, trio.current_time(), machine.last_error)
        elif machine.is_current:
            self._health.succeeded(StoreOperation.DESCRIPTOR_WRITE)
        self._tell()

    def _tell(self) -> None:
        self._settled.set()
        self._settled = trio.Event()
        if self._machine is not None and self._machine.failure is not None:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback(self._machine.failure)

    def _kick(self) -> None:
        self._wake.set()
        self._wake = trio.Event()

    def _lease_changed(self, event: LeaseEvent) -> None:
        if event.kind is LeaseEventKind.RESTORED and self._machine is not None:
            self._machine.verify()
        self._tell()
        self._kick()
