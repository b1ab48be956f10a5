"""Discovery at run time: polls one mesh or channel and says who is there (LO-165..174, LO-186..194).

One task, one poll at a time. A poll scans one prefix in one snapshot, then reads the leases it needs all at
once, so that the provider can put them into one round trip (LO-174). Every change reaches `on_snapshot`
synchronously, on the trio thread.

Nothing is written here, and nothing is decided from half a poll; cancelling at any point is safe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

import trio

from zlinkpy.errors import UnavailableError, ZlinkError
from zlinkpy.location import keys
from zlinkpy.location.descriptor_kind import D
from zlinkpy.location.discovery_machine import DiscoveryMachine, Interest, Snapshot
from zlinkpy.location.health import StoreHealth, StoreOperation
from zlinkpy.location.lease import OwnerLease
from zlinkpy.location.lease_machine import LEASE_CONFIRMED, LeaseEvent, LeaseEventKind
from zlinkpy.location.options import LocationOptions
from zlinkpy.location.store import Expired, Found, Item, LocationStore, Missing, Page, StoreCorruption, StoreFailure

# A snapshot that expires again and again means a store that cannot keep one for as long as a scan takes.
SCAN_ATTEMPTS = 3


class _PollFailure(Exception):
    """Carries what failed, and in which step, out of a poll."""

    def __init__(self, operation: StoreOperation, cause: ZlinkError) -> None:
        super().__init__(cause.message)
        self.operation = operation
        self.cause = cause


class ServiceDiscovery(Generic[D]):
    """Whoever publishes in one mesh or channel; run it with ``await nursery.start(discovery.run)``.

    Args:
        interest: what is listed: `nodes_around`, `servers_of` or `publishers_of`.
        on_snapshot: called on the trio thread with every snapshot that differs from the one before. It must not block
            or raise.
        lease: this host's lease, when it has one; the first list and the first after an outage wait for it (LO-190).
    """

    def __init__(
        self,
        store: LocationStore,
        options: LocationOptions,
        interest: Interest[D],
        on_snapshot: Callable[[Snapshot[D]], None],
        *,
        lease: OwnerLease | None = None,
        health: StoreHealth | None = None,
    ) -> None:
        self._store = store
        self._options = options.validate()
        self._machine = DiscoveryMachine(options, interest, None if lease is None else lease.owner_id)
        self._on_snapshot = on_snapshot
        self._lease = lease
        self._health = health or StoreHealth(options.store_failure_grace)
        if lease is not None:
            lease.on_change(self._lease_changed)
        self._shown = self._machine.snapshot
        self._failure: ZlinkError | None = None
        self._polls_begun = 0
        self._polls_ended = 0
        self._wake = trio.Event()
        self._polled = trio.Event()

    @property
    def snapshot(self) -> Snapshot[D]:
        """What is known now."""
        return self._machine.snapshot

    @property
    def last_error(self) -> str:
        """The latest problem, for status; empty when there was none."""
        return self._machine.last_error

    async def run(self, *, task_status: trio.TaskStatus[Snapshot[D]] = trio.TASK_STATUS_IGNORED) -> None:
        """Poll for ever. Started after the first poll, whether it succeeded or not; a host whose lease is not valid
        yet starts without one (LO-104).
        """
        started = False
        while True:
            began = trio.current_time()
            await self._poll()
            if not started:
                started = True
                task_status.started(self.snapshot)
            await self._wait(began + self._options.polling_interval)

    async def refresh(self) -> Snapshot[D]:
        """A snapshot from a poll that began after this call; needs `run`.

        Raises UnavailableError when the poll failed (LO-194) and StoreCorruption when a row in it cannot be
        understood. Bounded by the renew timeout per page and for the lease reads, plus a poll under way.
        """
        await trio.lowlevel.checkpoint()
        number = self._polls_begun + 1
        self._wake.set()
        while self._polls_ended < number:
            await self._polled.wait()
        if self._failure is not None:
            raise self._failure
        return self.snapshot

    async def _wait(self, due: float) -> None:
        while not self._wake.is_set():
            grace = self._machine.next_deadline()
            with trio.move_on_at(grace if grace is not None and trio.current_time() < grace < due else due):
                await self._wake.wait()
            now = trio.current_time()
            self._show(self._machine.tick(now))
            if now >= due:
                break
        self._wake = trio.Event()

    def _lease_changed(self, event: LeaseEvent) -> None:
        """A recovery that waits for the lease goes on with it."""
        if event.kind is LeaseEventKind.RESTORED:
            self._machine.lease_put_back(trio.current_time())
        if event.kind in LEASE_CONFIRMED and self._machine.is_recovering:
            self._wake.set()

    async def _poll(self) -> None:
        self._polls_begun += 1
        now = trio.current_time()
        if self._lease is not None and self._machine.is_recovering and not self._lease.is_valid(now):
            # Own lease first: a list read earlier would be acted on by a host that may not own anything yet.
            failure: ZlinkError | None = UnavailableError("the owner lease is not valid", cause="OwnerLease")
            await trio.lowlevel.checkpoint()
            self._show(self._machine.tick(now))
        else:
            failure = await self._poll_store(now)
        # Set at the end only: whoever waits for this poll may run after the next one has begun.
        self._failure = failure
        self._polls_ended += 1
        self._polled.set()
        self._polled = trio.Event()

    async def _poll_store(self, began: float) -> ZlinkError | None:
        machine = self._machine
        machine.begin(began)
        try:
            owners = self._understood(await self._list())
            await self._read_leases(owners)
        except _PollFailure as failure:
            now = trio.current_time()
            self._health.failed(failure.operation, now, failure.cause.message)
            self._show(machine.failed(failure.operation, failure.cause.message, now))
            return failure.cause
        self._health.succeeded(StoreOperation.LEASE_READ)
        self._show(machine.complete(trio.current_time()))
        return None

    async def _list(self) -> list[Item]:
        try:
            for _ in range(SCAN_ATTEMPTS):
                items = await self._scan()
                if items is not None:
                    return items
        except (StoreFailure, StoreCorruption) as failure:
            raise _PollFailure(StoreOperation.DESCRIPTOR_READ, failure) from None
        raise _PollFailure(
            StoreOperation.DESCRIPTOR_READ,
            UnavailableError("the store does not keep a snapshot as long as a scan takes"),
        )

    async def _scan(self) -> list[Item] | None:
        """All pages of one snapshot, or None when it expired: pages read so far are dropped (LO-041)."""
        items: list[Item] = []
        cursor: str | None = None
        while True:
            page: Page | Expired | None = None
            with trio.move_on_after(self._options.owner_lease_renew_timeout):
                page = await self._store.scan(self._machine.prefix, cursor=cursor)
            if page is None:
                raise StoreFailure("the store did not answer a scan", applied="no", operation="scan")
            if isinstance(page, Expired):
                return None
            items.extend(page.items)
            if page.cursor is None:
                return items
            cursor = page.cursor

    def _understood(self, items: list[Item]) -> list[str]:
        try:
            owners = self._machine.listed(items)
        except StoreCorruption as failure:
            raise _PollFailure(StoreOperation.DESCRIPTOR_READ, failure) from None
        self._health.succeeded(StoreOperation.DESCRIPTOR_READ)
        return owners

    async def _read_leases(self, owners: list[str]) -> None:
        answers: dict[str, tuple[Missing | Found, float]] = {}
        failures: list[ZlinkError] = []

        async def read(owner: str) -> None:
            sent_at = trio.current_time()
            try:
                answers[owner] = await self._store.read(keys.owner_lease(owner)), sent_at
            except (StoreFailure, StoreCorruption) as failure:
                failures.append(failure)

        with trio.move_on_after(self._options.owner_lease_renew_timeout):
            async with trio.open_nursery() as nursery:
                for owner in owners:
                    nursery.start_soon(read, owner)
        if not failures and len(answers) < len(owners):
            failures.append(StoreFailure("the store did not answer the lease reads", applied="no", operation="read"))
        if failures:
            raise _PollFailure(StoreOperation.LEASE_READ, failures[0])
        try:
            for owner, (answer, sent_at) in answers.items():
                self._machine.lease_read(owner, answer, sent_at)
        except StoreCorruption as failure:
            raise _PollFailure(StoreOperation.LEASE_READ, failure) from None

    def _show(self, snapshot: Snapshot[D]) -> None:
        if snapshot != self._shown:
            self._shown = snapshot
            self._on_snapshot(snapshot)
