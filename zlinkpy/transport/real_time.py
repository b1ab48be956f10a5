"""Waiting for libzmq's threads, whose lingers and ends take real time whatever clock the event loop runs on."""

from __future__ import annotations

import threading

import trio


async def within(seconds: float, done: threading.Event) -> bool:
    """Wait for `done`, so many real seconds at most; True: it came. Not cancelled: what is waited for is a close that
    nothing can hurry."""
    if not done.is_set():
        with trio.CancelScope(shield=True):
            # A limiter of its own: threads of the application must not be able to hold up a shutdown.
            await trio.to_thread.run_sync(done.wait, seconds, limiter=trio.CapacityLimiter(1))
    return done.is_set()
