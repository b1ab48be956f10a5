"""Session handlers: what an application registers to run the turns of its sessions (SR §1, §15).

Handlers belong to the application, are shared by all sessions of a node and are closed by nobody here (SR-026).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

from zlinkpy.errors import ConfigurationError
from zlinkpy.sessions.errors import UnknownHandlerError
from zlinkpy.sessions.spi import LiveSession
from zlinkpy.sessions.types import handler_id

SessionFactory: TypeAlias = Callable[[str, str, Mapping[str, Any]], Awaitable[LiveSession]]
"""(session id, handler ref, options) -> handle; never sees the open attributes (SR-003)."""

SessionOpener: TypeAlias = Callable[[str, str, Mapping[str, Any], Mapping[str, Any]], Awaitable[LiveSession]]
"""(session id, handler id, options, open attributes) -> handle (SR-004)."""

Opener: TypeAlias = Callable[[str, Mapping[str, Any], Mapping[str, Any]], Awaitable[LiveSession]]
"""(session id, options, open attributes) -> handle."""


class SessionHandler(ABC):
    """Opens the handles of one kind of session: ``class Chat(SessionHandler, ref="chat")``.

    Class arguments:
        ref: what submits name; a session is bound to one ref by its first turn.
        variant: set for one of several handlers of that ref.
    """

    ref: ClassVar[str] = ""
    variant: ClassVar[str | None] = None

    def __init_subclass__(cls, *, ref: str = "", variant: str | None = None, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if ref:
            try:
                handler_id(ref, variant)
            except ValueError as error:
                raise ConfigurationError(f"{cls.__qualname__}: {error}") from None
            cls.ref, cls.variant = ref, variant

    @abstractmethod
    async def open(
        self, session_id: str, options: Mapping[str, Any], open_attributes: Mapping[str, Any]
    ) -> LiveSession:
        """Make the node's handle on a session; called once per handle, before its first turn."""


class HandlerRegistry:
    """What this node can open, by handler id.

    Raises:
        ConfigurationError: Nothing to open with, two ways at once, a handler without ref, or one id twice.
    """

    def __init__(
        self,
        handlers: Iterable[type[SessionHandler] | SessionHandler],
        *,
        session_factory: SessionFactory | None = None,
        session_opener: SessionOpener | None = None,
    ) -> None:
        self._factory, self._opener = session_factory, session_opener
        self._handlers: dict[str, SessionHandler] = {}
        self._refs: set[str] = set()
        for each in handlers:
            self._register(each() if isinstance(each, type) else each)
        ways = [bool(self._handlers), session_factory is not None, session_opener is not None]
        if sum(ways) != 1:
            raise ConfigurationError(
                "a session router needs one way to open sessions: handlers, session_factory= or session_opener=, "
                f"and has {sum(ways)}"
            )

    def _register(self, handler: SessionHandler) -> None:
        if not handler.ref:
            raise ConfigurationError(
                f'{type(handler).__qualname__} has no ref: class {type(handler).__name__}(SessionHandler, ref="...")'
            )
        name = handler_id(handler.ref, handler.variant)
        if name in self._handlers:
            raise ConfigurationError(f"{name} is registered twice; give one of the handlers a variant=")
        self._handlers[name] = handler
        self._refs.add(handler.ref)

    def knows(self, handler_ref: str) -> bool:
        """Whether a handler of this ref is registered here, in any variant (SR-409, SR-458)."""
        return not self._handlers or handler_ref in self._refs

    def find(self, handler_ref: str, variant: str | None) -> Opener:
        """How to open a session. Raises UnknownHandlerError; nothing is made up on the fly (SR-027)."""
        name = handler_id(handler_ref, variant)
        factory, opener = self._factory, self._opener
        if factory is not None:
            return lambda session_id, options, _: factory(session_id, handler_ref, options)
        if opener is not None:
            return lambda session_id, options, attributes: opener(session_id, name, options, attributes)
        if name not in self._handlers:
            raise UnknownHandlerError(
                f"no handler is registered here as {name}; this node has {sorted(self._handlers)}"
            )
        return self._handlers[name].open
