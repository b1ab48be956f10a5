"""The future of a turn: settled once, awaited by as many as like (SR-141, SR-142)."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context

import trio
from attrs import frozen

from zlinkpy.sessions.types import DispositionKind, TurnResult
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.sessions")


class TurnFuture:
    """What a turn will bring. Cancelling an `await future.result()` leaves the turn alone."""

    __slots__ = ("_callbacks", "_done", "_error", "_result")

    def __init__(self) -> None:
        self._done = trio.Event()
        self._result: TurnResult | None = None
        self._error: BaseException | None = None
        self._callbacks: list[tuple[Callable[[TurnFuture], None], Context]] = []

    @classmethod
    def completed(cls, result: TurnResult) -> TurnFuture:
        """A future that has its result."""
        future = cls()
        future.set(result)
        return future

    def done(self) -> bool:
        """True once there is a result or an error."""
        return self._done.is_set()

    def error(self) -> BaseException | None:
        """The error of a done future, None when it has a result or is not done."""
        return self._error

    def add_done_callback(self, callback: Callable[[TurnFuture], None]) -> None:
        """Call `callback(future)` once it is done, at once if it is; on the event loop, must not block.

        It sees the context variables of who adds it. A pass settles its futures in its own context, where a retry from
        a callback would count as one from inside the turn (SR-139, SR-414).
        """
        context = copy_context()
        if self.done():
            self._call(callback, context)
        else:
            self._callbacks.append((callback, context))

    async def result(self) -> TurnResult:
        """Wait for the end of the turn. Unbounded by itself: a forwarded turn has the forward deadline.

        Raises:
            SessionError: The turn has no result: `TurnFailedError`, `HolderLostError`, `LeaseLostError`,
                `SessionEvictedError`, `ForwardTimeoutError`, ... (SR-143).
        """
        await self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def set(self, outcome: TurnResult | BaseException) -> bool:
        """Settle it. False when it was settled before, and then nothing changes."""
        if self.done():
            return False
        if isinstance(outcome, BaseException):
            self._error = outcome
        else:
            self._result = outcome
        self._done.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback, context in callbacks:
            self._call(callback, context)
        return True

    def _call(self, callback: Callable[[TurnFuture], None], context: Context) -> None:
        try:
            context.run(callback, self)
        except Exception:
            log.exception("a done callback of a turn future raised")


@frozen
class SubmitDisposition:
    """What became of a submit. It does not say which node runs the turn (SR-028).

    `inbox_id` is set for FORWARDED only; ``idem-<key>`` where the submit attached to a turn under way (SR-213).
    """

    kind: DispositionKind
    turn_id: str
    future: TurnFuture
    inbox_id: str | None = None
