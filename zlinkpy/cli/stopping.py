"""Ctrl-C and SIGTERM: the first asks for an end in order, a second Ctrl-C ends the process at once.

The handler is a plain Python signal handler rather than a task that reads signals: a task does not run while some
handler blocks the event loop, and that is exactly when somebody presses Ctrl-C twice.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

import trio

from zlinkpy.cli.exit_codes import ExitCode
from zlinkpy.cli.failures import Interrupted

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Listens for SIGINT and SIGTERM while its block runs; enter it inside trio on the main thread.

    `asked` is set by the first of them and `number` says which it was. `at_once` is called, in the signal handler,
    before a second Ctrl-C ends the process.
    """

    def __init__(self, at_once: Callable[[], None] | None = None) -> None:
        self.asked = trio.Event()
        self.number: int | None = None
        self._at_once = at_once
        self._before: dict[int, Any] = {}
        self._token: trio.lowlevel.TrioToken | None = None

    def __enter__(self) -> Self:
        self._token = trio.lowlevel.current_trio_token()
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            assert self._token is not None
            self._token.run_sync_soon(self.asked.set)
        elif number == signal.SIGINT:
            # No print and no exit through Python's own shutdown: the interrupted code may hold any lock.
            os.write(2, b"stopped at once\n")
            try:
                if self._at_once is not None:
                    self._at_once()
            finally:
                os._exit(ExitCode.INTERRUPTED)


def run_until_done(main: Callable[[], Awaitable[T]], at_once: Callable[[], None] | None = None) -> T:
    """Run a command that ends by itself. SIGINT and SIGTERM cancel it, its cleanup runs, and `Interrupted` is raised.

    `at_once` is what is left to do when a second Ctrl-C ends the process without that cleanup.
    """
    return trio.run(_until_done, main, at_once)


async def _until_done(main: Callable[[], Awaitable[T]], at_once: Callable[[], None] | None) -> T:
    results: list[T] = []
    with StopSignals(at_once) as stop:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when, stop.asked, nursery.cancel_scope)
            results.append(await main())
            nursery.cancel_scope.cancel()
    if not results:
        assert stop.number is not None
        raise Interrupted(stop.number)
    return results[0]


async def cancel_when(asked: trio.Event, scope: trio.CancelScope) -> None:
    """Cancel `scope` once `asked` is set."""
    await asked.wait()
    scope.cancel()
