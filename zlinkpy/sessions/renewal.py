"""Keeping leases: `lease_machine` with threads or tasks (facts §7; SR §10).

A handler that blocks the event loop must not cost the node its sessions: a queued tick looks like a stolen lease to the
others. Where the stores offer connections of their own, renewals and touches therefore run on plain threads, sessions
shared out among them, all that is due in one round trip; the loop only learns of losses. A C call that keeps the GIL
still blocks them. In-memory stores have no such connections: then each lease has a task.

The threads read the held leases under a lock and a lease's touch slot as one tuple. Losing a lease is decided on the
loop, once, whoever noticed it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from zlinkpy.sessions.core import HeldLease, RouterCore
from zlinkpy.sessions.errors import SessionBackendError
from zlinkpy.sessions.lease_machine import RenewalState, RenewalStep
from zlinkpy.sessions.spi import BlockingRenewer, BlockingTouches, DedicatedTouches
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.sessions")

IDLE_WAIT: Final = 3600.0
"""Seconds a thread without leases sleeps; a new lease wakes it."""


class LeaseRenewer:
    """What renews the leases of one router; `run` until cancelled."""

    def __init__(self, core: RouterCore) -> None:
        self._core = core
        self._shards: list[_Shard] = []
        self._nursery: trio.Nursery | None = None
        self._held: set[HeldLease] = set()
        self._changed = trio.Event()

    @property
    def workers(self) -> int:
        """Threads that renew, 0 where tasks do (SR-014)."""
        return len(self._shards)

    def start(self, held: HeldLease) -> None:
        """Renew a lease from now on. One that is won while the router closes is given back by who won it."""
        if self._core.is_closed:
            return
        if not self._shards:
            scope = trio.CancelScope()
            held.attach(scope.cancel)
            assert self._nursery is not None
            self._nursery.start_soon(self._renew_on_loop, held, scope)
            return
        self._held.add(held)
        self._changed.set()
        shard = self._shards[hash(held.lease.session_id) % len(self._shards)]
        held.attach(partial(self._forget, shard, held))
        shard.add(held)

    def _forget(self, shard: _Shard, held: HeldLease) -> None:
        self._held.discard(held)
        shard.remove(held)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the threads or tasks."""
        core = self._core
        timeout = core.config.lock_extend_interval / 2
        first = core.store.renewer(timeout=timeout)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if first is not None:
                self._open_shards(first, timeout)
                nursery.start_soon(self._watch_expiry)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    for shard in self._shards:
                        shard.stop()
                    for shard in self._shards:
                        await shard.finished.wait()
                        shard.thread.join()

    # -- tasks

    async def _renew_on_loop(self, held: HeldLease, scope: trio.CancelScope) -> None:
        core, renewal = self._core, held.renewal
        with scope:
            while (due := renewal.next_deadline()) is not None:
                await trio.sleep_until(due)
                sent_at = trio.current_time()
                step = renewal.poll(sent_at)
                if step is RenewalStep.RENEW:
                    # In the middle of a call the local deadline still holds (SR-167).
                    answer: bool | None = None
                    with trio.move_on_at(renewal.lapses_at):
                        answer = await self._ask(held)
                    step = renewal.settle(answer, sent_at, trio.current_time())
                if step is RenewalStep.TOUCH:
                    core.metrics.on_lease_extend_succeeded()
                    for key, reserver in held.slot.bound:
                        # A touch that hangs must not cost the lease.
                        with trio.move_on_after(core.config.lock_extend_interval / 2):
                            await self._touch(key, reserver)
                elif step is RenewalStep.LOST:
                    core.lease_lost(held)

    async def _ask(self, held: HeldLease) -> bool | None:
        try:
            return await self._core.store.renew(held.lease, self._core.config.lock_lease)
        except SessionBackendError as error:
            log.warning("the lease of session %r was not renewed: %s", held.lease.session_id, error)
        except Exception:
            log.exception("renewing the lease of session %r raised", held.lease.session_id)
        return None

    async def _touch(self, key: str, reserver: str) -> None:
        try:
            await self._core.idempotency.touch(key, reserver)
        except SessionBackendError as error:
            log.warning("a reservation was not touched: %s", error)
        except Exception:
            log.exception("touching a reservation raised")

    # -- threads

    def _open_shards(self, first: BlockingRenewer, timeout: float) -> None:
        core = self._core
        token, clock = trio.lowlevel.current_trio_token(), trio.lowlevel.current_clock()
        for number in range(max(2, os.cpu_count() or 1)):
            renewer = first if number == 0 else core.store.renewer(timeout=timeout)
            assert renewer is not None
            touches: BlockingTouches | None = None
            if isinstance(core.idempotency, DedicatedTouches):
                touches = core.idempotency.dedicated(timeout=timeout)
            shard = _Shard(
                number,
                renewer,
                touches,
                clock=clock,
                duration=core.config.lock_lease,
                say=lambda held, step, pairs: token.run_sync_soon(self._told, held, step, pairs),
                ended=token.run_sync_soon,
            )
            self._shards.append(shard)

    def _told(self, held: HeldLease, step: RenewalStep | None, untouched: tuple[tuple[str, str], ...]) -> None:
        core = self._core
        if step is RenewalStep.LOST:
            core.lease_lost(held)
        elif step is RenewalStep.TOUCH:
            core.metrics.on_lease_extend_succeeded()
            for key, reserver in untouched:
                core.background_nursery.start_soon(self._touch, key, reserver)

    async def _watch_expiry(self) -> None:
        """A thread in the middle of a call cannot say that a lease's time is over (SR-384)."""
        while True:
            now = trio.current_time()
            for held in [each for each in self._held if now >= each.renewal.lapses_at]:
                if held.renewal.lose():
                    self._core.lease_lost(held)
                self._held.discard(held)
            due = min((each.renewal.lapses_at for each in self._held), default=now + IDLE_WAIT)
            with trio.move_on_at(due):
                await self._changed.wait()
                self._changed = trio.Event()


class _Shard:
    """One thread with its connections and its share of the leases."""

    def __init__(
        self,
        number: int,
        renewer: BlockingRenewer,
        touches: BlockingTouches | None,
        *,
        clock: trio.abc.Clock,
        duration: float,
        say: Callable[[HeldLease, RenewalStep | None, tuple[tuple[str, str], ...]], None],
        ended: Callable[[Callable[[], None]], None],
    ) -> None:
        self._renewer, self._touches = renewer, touches
        self._clock, self._duration = clock, duration
        self._say, self._ended = say, ended
        self._held: set[HeldLease] = set()
        self._wake = threading.Condition()
        self._stopped = False
        self.finished = trio.Event()
        self.thread = threading.Thread(target=self._main, name=f"zlink-session-leases-{number}", daemon=True)
        self.thread.start()

    def add(self, held: HeldLease) -> None:
        with self._wake:
            self._held.add(held)
            self._wake.notify()

    def remove(self, held: HeldLease) -> None:
        with self._wake:
            self._held.discard(held)

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()

    def _main(self) -> None:
        try:
            while (due := self._next_round()) is not None:
                self._round(due)
        except Exception:
            log.exception("a lease renewal thread failed; its leases will expire")
        finally:
            self._renewer.close()
            if self._touches is not None:
                self._touches.close()
            self._ended(self.finished.set)

    def _next_round(self) -> list[HeldLease] | None:
        """Wait for something due; None at the end."""
        with self._wake:
            while not self._stopped:
                now = self._clock.current_time()
                # A copy: what is done with it happens outside the lock.
                times = [(each.renewal.next_deadline(), each) for each in self._held]
                due = [each for at, each in times if at is not None and at <= now]
                if due:
                    return due
                at = min((at for at, _ in times if at is not None), default=now + IDLE_WAIT)
                self._wake.wait(max(0.0, self._clock.deadline_to_sleep_time(at)))
        return None

    def _round(self, due: list[HeldLease]) -> None:
        sent_at = self._clock.current_time()
        renew: list[HeldLease] = []
        for held in due:
            step = held.renewal.poll(sent_at)
            if step is RenewalStep.RENEW:
                renew.append(held)
            elif step is RenewalStep.LOST:
                self._say(held, step, ())
        if not renew:
            return
        answers = self._renewer.renew_all([each.lease for each in renew], self._duration)
        now = self._clock.current_time()
        touched: list[HeldLease] = []
        for held, answer in zip(renew, answers, strict=True):
            if isinstance(answer, SessionBackendError):
                log.warning("the lease of session %r was not renewed: %s", held.lease.session_id, answer)
            step = held.renewal.settle(answer if isinstance(answer, bool) else None, sent_at, now)
            if step is RenewalStep.TOUCH:
                touched.append(held)
            elif step is RenewalStep.LOST:
                self._say(held, step, ())
        # What is bound is read after the renewals: a reservation that ended meanwhile is not touched.
        pairs = [pair for held in touched for pair in held.slot.bound if held.renewal.state is RenewalState.HELD]
        for held in touched:
            self._say(held, RenewalStep.TOUCH, () if self._touches is not None else held.slot.bound)
        if pairs and self._touches is not None:
            for outcome in self._touches.touch_all(pairs):
                if isinstance(outcome, SessionBackendError):
                    log.warning("a reservation was not touched: %s", outcome)
