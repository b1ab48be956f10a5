"""Blocking store calls from the event loop: one worker thread each, bounded in number and in time.

The time bounds a call as a whole: waiting for a thread, for a connection and for the answer (LO-057). When it passes,
the worker thread is left behind; it ends by itself, because its socket has the same timeout, and it can no longer
send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from zlinkpy.location.redis_errors import Operation, closed, timed_out
from zlinkpy.location.redis_session import StoreIdentity, Ticket

T = TypeVar("T")


class StoreCalls:
    """The calls of one store that are running now.

    Args:
        identity: names the store in errors.
        timeout: seconds, bounds every call.
        threads: calls that run at the same time; others wait for their turn within their timeout.
    """

    def __init__(self, identity: StoreIdentity, *, timeout: float, threads: int) -> None:
        self._identity = identity
        self._timeout = timeout
        self._limiter = trio.CapacityLimiter(threads)
        self._running = 0
        self._quiet: trio.Event | None = None
        self._closed = False

    @contextmanager
    def counted(self, operation: Operation) -> Iterator[None]:
        """Count a running call, so that closing can wait for it (LO-009). Raises StoreFailure when closed."""
        if self._closed:
            raise closed(operation, self._identity.label, noun=self._identity.noun)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running and self._quiet is not None:
                self._quiet.set()

    async def in_thread(self, operation: Operation, work: Callable[[Ticket], T]) -> T:
        """Run `work` in a worker thread. Cancelled before it was sent, nothing was; cancelled later, it may have been.

        Raises StoreFailure when the time is over, and what `work` raises.
        """
        ticket = Ticket()
        await trio.lowlevel.checkpoint_if_cancelled()
        with self.counted(operation):
            sent = False
            try:
                with trio.move_on_after(self._timeout):
                    return await trio.to_thread.run_sync(work, ticket, abandon_on_cancel=True, limiter=self._limiter)
            finally:
                sent = ticket.abandon()
            names = self._identity
            raise timed_out(operation, names.label, self._timeout, sent=sent, noun=names.noun)

    async def close_after(self, close: Callable[[], None]) -> None:
        """Refuse new calls, let the running ones end, each within its time, then run `close` in a thread. Idempotent;
        not cut short by cancellation.
        """
        self._closed = True
        with trio.CancelScope(shield=True):
            if self._running:
                if self._quiet is None:
                    self._quiet = trio.Event()
                await self._quiet.wait()
            await trio.to_thread.run_sync(close)
