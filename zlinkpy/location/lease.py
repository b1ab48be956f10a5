"""The owner lease at run time: the lease machine with a thread, a connection and a clock of its own (LO-100..115,
LO-059).

Renewals run on a plain thread by default. An event loop that a handler blocks for longer than the lease's life must
not cost the host everything it owns, and a renewal must not queue behind other store calls; so the thread has its own
connection and reads the clock object captured from the loop. `LeaseDriver.LOOP` drives the same machine from a trio
task instead, for virtual time: a clock that jumps cannot wait for a thread.

One thread of control owns the machine at any time: the driver from entry until it has ended, nobody afterwards.
Everybody else reads single attributes and learns of changes through `on_change`, on the trio thread.

Rejected: a task in the caller's nursery with the caller's cancellation. A claim or renewal that is under way is
always seen to its end, within the renew timeout, because only then it is known what to release (LO-106, LO-183).
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import TypeAlias

import trio

from zlinkpy.entropy import Entropy
from zlinkpy.errors import ConfigurationError, UnavailableError
from zlinkpy.location.calls import perform, perform_blocking
from zlinkpy.location.health import StoreHealth, StoreOperation
from zlinkpy.location.lease_machine import LEASE_CONFIRMED, LeaseEvent, LeaseEventKind, LeaseMachine, LeaseState
from zlinkpy.location.options import LocationOptions
from zlinkpy.location.requests import Answer, Request
from zlinkpy.location.service import Service
from zlinkpy.location.store import BlockingStore, DedicatedProvider, LocationStore

_Handles: TypeAlias = tuple[BlockingStore, BlockingStore]


class LeaseDriver(Enum):
    """Who performs claims and renewals."""

    THREAD = "thread"
    """A thread with a connection of its own: production."""
    LOOP = "loop"
    """A trio task on the shared store: virtual time."""


class OwnerLease(Service):
    """One process run's lease: ``async with OwnerLease(store, options, entropy) as lease``.

    Entering claims the lease and takes at most the renew timeout. Not confirmed by then, it returns with a lease that
    is not valid and goes on claiming every renew interval (LO-104). It raises ConfigurationError when the owner id is
    in use or the store refuses this client, GenerationExhausted when no number is left, StoreCorruption when the
    counter cannot be read (LO-103). Leaving releases the lease, within the renew timeout, also when cancelled; leave
    before the store is closed and after descriptors are removed (LO-113).
    """

    def __init__(
        self,
        store: LocationStore,
        options: LocationOptions,
        entropy: Entropy,
        *,
        driver: LeaseDriver = LeaseDriver.THREAD,
        health: StoreHealth | None = None,
    ) -> None:
        self._store = store
        self._options = options.validate()
        self._driver = driver
        self._health = health or StoreHealth(options.store_failure_grace)
        self._machine = LeaseMachine(options, entropy.uuid4())
        self._callbacks: list[Callable[[LeaseEvent], None]] = []
        self._changed = trio.Event()
        self._answered = trio.Event()
        self._ended = trio.Event()
        # A thread's event, because the thread waits on it as well as reads it.
        self._stop = threading.Event()
        # Shielded: what ends the driver is the end of the block, never the cancellation that led to it.
        self._driver_scope = trio.CancelScope(shield=True)
        self._crash: BaseException | None = None

    # Reading, from any thread.

    @property
    def owner_id(self) -> str:
        """Random per run, never used by another (LO-100)."""
        return self._machine.owner_id

    @property
    def lease_generation(self) -> int | None:
        """The number of this run, or None until the claim is confirmed."""
        return self._machine.lease_generation

    @property
    def state(self) -> LeaseState:
        return self._machine.state

    @property
    def own_deadline(self) -> float | None:
        """Until when (trio time) this host may act as an owner; None while it may not."""
        return self._machine.own_deadline

    @property
    def epoch(self) -> int:
        """Grows when the row was gone and has been put back; what an object was verified under (LO-126)."""
        return self._machine.epoch

    @property
    def row(self) -> bytes | None:
        """The bytes for an `IfValue` on this lease; None until the claim is confirmed."""
        return self._machine.row

    @property
    def failure(self) -> Exception | None:
        """Why the lease is LOST, which is the host's ERROR (LO-111)."""
        return self._machine.failure

    def is_valid(self, now: float) -> bool:
        """The one question before anything of LO-121 starts. `now` is trio time, read for this call."""
        return self._machine.is_valid(now)

    # Waiting, on the trio thread.

    def on_change(self, callback: Callable[[LeaseEvent], None]) -> None:
        """Call `callback` on the trio thread for every event from now on. It must not block or raise."""
        self._callbacks.append(callback)

    async def wait_held(self) -> None:
        """Return while the lease is valid. Unbounded; raises UnavailableError when it can never be valid again."""
        await trio.lowlevel.checkpoint()
        while not self.is_valid(trio.current_time()):
            if self._stop.is_set() or self.state in (LeaseState.LOST, LeaseState.RELEASED):
                raise UnavailableError(f"owner lease {self.owner_id} is {self.state.value}", cause="OwnerLease")
            await self._changed.wait()

    # Running.

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._drive)
            nursery.start_soon(self._announce_expiry)
            try:
                with trio.move_on_after(self._options.owner_lease_renew_timeout):
                    await self._answered.wait()
                if self._machine.failure is not None:
                    raise self._machine.failure
                yield
            finally:
                self._stop.set()
                self._driver_scope.cancel()
                with trio.CancelScope(shield=True):
                    await self._ended.wait()
                nursery.cancel_scope.cancel()

    async def _drive(self) -> None:
        try:
            if self._driver is LeaseDriver.LOOP:
                await self._drive_on_loop()
            else:
                await self._drive_on_thread()
        finally:
            self._ended.set()
        if self._crash is not None:
            raise self._crash

    async def _drive_on_loop(self) -> None:
        machine = self._machine
        with self._driver_scope:
            while (due := machine.next_deadline()) is not None:
                await trio.sleep_until(due)
                with trio.CancelScope(shield=True):
                    await self._round_on_loop()
        machine.stop()
        with trio.CancelScope(shield=True):
            request = machine.release(trio.current_time())
            while request is not None:
                request = machine.settle(await perform(self._store, request), trio.current_time())
        self._announce(machine.take_events())

    async def _round_on_loop(self) -> None:
        machine = self._machine
        request = machine.poll(trio.current_time())
        while request is not None:
            answer = await perform(self._store, request)
            if self._stop.is_set():
                machine.stop()
            request = machine.settle(answer, trio.current_time())
            self._announce(machine.take_events())

    async def _drive_on_thread(self) -> None:
        if not isinstance(self._store, DedicatedProvider):
            raise ConfigurationError(
                f"{type(self._store).__name__} offers no dedicated connection for lease renewals; give it dedicated()"
            )
        whole = self._options.owner_lease_renew_timeout
        # Two connections, because a connection's timeout is fixed: requests that must leave time for a read-back, and
        # the others (LO-105).
        handles = self._store.dedicated(timeout=whole / 2), self._store.dedicated(timeout=whole)
        token = trio.lowlevel.current_trio_token()
        clock = trio.lowlevel.current_clock()
        finished = trio.Event()
        thread = threading.Thread(
            target=self._thread_main, args=(handles, token, clock, finished), name="zlink-owner-lease", daemon=True
        )
        thread.start()
        with trio.CancelScope(shield=True):
            await finished.wait()
        thread.join()

    def _thread_main(
        self, handles: _Handles, token: trio.lowlevel.TrioToken, clock: trio.abc.Clock, finished: trio.Event
    ) -> None:
        try:
            self._rounds_on_thread(handles, token, clock)
        except BaseException as crash:  # noqa: BLE001 - carried over to the loop, which raises it
            self._crash = crash
        finally:
            for handle in handles:
                handle.close()
            token.run_sync_soon(finished.set)

    def _rounds_on_thread(self, handles: _Handles, token: trio.lowlevel.TrioToken, clock: trio.abc.Clock) -> None:
        machine = self._machine
        while not self._stop.is_set() and (due := machine.next_deadline()) is not None:
            request = machine.poll(clock.current_time())
            if request is None:
                self._stop.wait(max(0.0, clock.deadline_to_sleep_time(due)))
                continue
            while request is not None:
                answer = self._ask(handles, request)
                if self._stop.is_set():
                    machine.stop()
                request = machine.settle(answer, clock.current_time())
                token.run_sync_soon(self._announce, machine.take_events())
        machine.stop()
        request = machine.release(clock.current_time())
        while request is not None:
            request = machine.settle(self._ask(handles, request), clock.current_time())
        token.run_sync_soon(self._announce, machine.take_events())

    def _ask(self, handles: _Handles, request: Request) -> Answer:
        quick, patient = handles
        short = request.timeout <= self._options.owner_lease_renew_timeout / 2
        return perform_blocking(quick if short else patient, request)

    # Telling.

    def _announce(self, events: list[LeaseEvent]) -> None:
        for event in events:
            if event.kind is LeaseEventKind.FAILED:
                self._health.failed(StoreOperation.LEASE, event.at, event.detail)
            elif event.kind in LEASE_CONFIRMED:
                self._health.succeeded(StoreOperation.LEASE)
            self._answered.set()
            self._changed.set()
            self._changed = trio.Event()
            for callback in self._callbacks:
                callback(event)

    async def _announce_expiry(self) -> None:
        """Say that the own deadline passed, once per deadline. `is_valid` needs nobody to say so; waiting code does."""
        announced: float | None = None
        while True:
            deadline = self._machine.own_deadline
            if deadline is None or deadline == announced:
                await self._changed.wait()
                continue
            with trio.move_on_at(deadline):
                await self._changed.wait()
            now = trio.current_time()
            if self._machine.own_deadline == deadline and now >= deadline:
                announced = deadline
                self._announce([LeaseEvent(LeaseEventKind.EXPIRED, now, deadline, "not renewed in time")])
