"""A part with background tasks that is used with ``async with``.

The tasks live in a nursery of their own, opened on entry and gone on exit. A nursery wraps every exception that
passes it into a group; whoever writes ``async with`` around a block expects the block's own exception back, so a
group that holds exactly one exception is unwrapped on both ways out. Groups with more than one keep their shape: then
more than one thing went wrong.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self


class Service(ABC):
    """Base of the location parts that run while their block runs."""

    _scope: AbstractAsyncContextManager[None] | None = None

    @abstractmethod
    def _running(self) -> AbstractAsyncContextManager[None]:
        """Run the tasks around one block; called once."""

    async def __aenter__(self) -> Self:
        if self._scope is not None:
            raise RuntimeError(f"{type(self).__name__} is used for one block only")
        self._scope = self._running()
        try:
            await self._scope.__aenter__()
        except BaseExceptionGroup as group:
            raise _only(group) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        assert self._scope is not None
        try:
            return bool(await self._scope.__aexit__(kind, error, traceback))
        except BaseExceptionGroup as group:
            only = _only(group)
            if only is error:
                return False
            raise only from None


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    return group.exceptions[0] if len(group.exceptions) == 1 else group
