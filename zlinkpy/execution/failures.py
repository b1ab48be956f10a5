"""Telling a handler's own failure from what merely passes through it."""

from __future__ import annotations

import trio


def is_failure(error: BaseException) -> bool:
    """True for what a handler raised on its own account, SystemExit and foreign base exceptions included: one message
    must not end the process, and its requester must not wait for ever. False for what is meant for others and passes
    through it: cancellation, Ctrl-C, the end of a coroutine."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_failure(each) for each in error.exceptions)
    return not isinstance(error, trio.Cancelled | KeyboardInterrupt | GeneratorExit)
