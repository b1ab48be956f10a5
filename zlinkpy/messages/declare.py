"""How a class becomes a message, and how a request class knows the type of its answer.

A message is a frozen, slotted attrs class with a *packet name*, the only thing about its type that travels. The reply
type is the type argument of `Request`, so that `await rt.request_to_actor(id, PlaceMark(4))` is a ``Board`` for type
checkers and for the codec alike, and cannot disagree with what the handler returns.

Rejected: a registry "packet name -> class". One name may be a send in one owner and a request in another, and two
versions of a class may live in one process during a test; handlers and callers both know the class they mean.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from types import NoneType
from typing import Any, Generic, TypeVar, dataclass_transform, overload

import attrs

from zlinkpy.errors import ConfigurationError

R = TypeVar("R", covariant=True)
C = TypeVar("C", bound=type)

NAME_BYTES = 255
"""Longest packet name in UTF-8 bytes (the wire's name type)."""

_PACKET = "__zlink_packet__"


class Request(Generic[R]):
    """Base of a message that is answered by an `R`: another message class, or ``None``.

    Example:
        ```python
        @message
        class PlaceMark(Request[Board]):
            cell: int
        ```
    """

    __slots__ = ()


@overload
def message(declared: C, /) -> C: ...


@overload
def message(declared: str | None = None, /) -> Callable[[C], C]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def message(declared: Any = None, /) -> Any:
    """Turn a class into a message: frozen, slotted, compared by value, with a packet name (SA-274).

    Args:
        declared: The class (`@message`) or its packet name (`@message("chat.say")`), 1..255 UTF-8 bytes without NUL.
            The default packet name is the class name.

    Returns:
        The class, or a decorator for it. Fields are those of `attrs.frozen`; `attrs.field(default=...)` works.

    Raises:
        ConfigurationError: The packet name is empty, too long, or has a NUL.
    """
    if isinstance(declared, type):
        return _declare(declared, declared.__name__)
    if declared is not None and not isinstance(declared, str):
        raise ConfigurationError(f"@message takes a packet name, not {declared!r}; write @message or @message('name')")

    def decorate(cls: C) -> C:
        return _declare(cls, cls.__name__ if declared is None else declared)

    return decorate


def _declare(cls: C, name: str) -> C:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= NAME_BYTES or "\0" in name:
        raise ConfigurationError(
            f"{_where(cls)}: packet name {name!r} must be 1..{NAME_BYTES} bytes of UTF-8 without NUL; "
            "give another one with @message('name')"
        )
    made = attrs.frozen(cls, auto_attribs=True, slots=True)
    setattr(made, _PACKET, name)
    return made


def is_message(cls: object) -> bool:
    """Whether `cls` is itself decorated with `@message`; a plain subclass of a message is not."""
    return isinstance(cls, type) and _PACKET in cls.__dict__


def packet_name_of(cls_or_obj: object) -> str:
    """The packet name of a message class or of one of its instances (SA-274).

    Raises:
        TypeError: Not a message.
    """
    cls = cls_or_obj if isinstance(cls_or_obj, type) else cls_or_obj.__class__
    try:
        name: str = cls.__dict__[_PACKET]
    except KeyError:
        raise TypeError(f"{_where(cls)} is not a message; decorate it with @message") from None
    return name


def reply_type_of(cls: type[Request[Any]] | type[Any]) -> type[Any]:
    """What a request class is answered with: a message class, or `NoneType` for ``Request[None]``.

    Forward names in ``Request["Board"]`` are looked up in the module of `cls`, so call this at host start, not while
    modules are still being imported.

    Raises:
        TypeError: `cls` is not a subclass of `Request`.
        ConfigurationError: The type argument is missing, unknown, or neither a message nor ``None``.
    """
    if not (isinstance(cls, type) and issubclass(cls, Request)):
        raise TypeError(f"{_where(cls)} is not a request; derive it from Request[<reply>]")
    argument = _request_argument(cls)
    if isinstance(argument, typing.ForwardRef):
        argument = _resolve(cls, argument)
    if argument is None:
        return NoneType
    if argument is NoneType or is_message(argument):
        return typing.cast("type[Any]", argument)
    raise ConfigurationError(
        f"{_where(cls)}: the reply type {argument!r} is neither a message nor None; "
        "name one in the base, as in Request[Board] or Request[None]"
    )


def _request_argument(cls: type) -> Any:
    for owner in cls.__mro__:
        for base in owner.__dict__.get("__orig_bases__", ()):
            if typing.get_origin(base) is Request:
                return typing.get_args(base)[0]
    return "missing"


def _resolve(cls: type, name: typing.ForwardRef) -> Any:
    scope = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    try:
        hints = typing.get_type_hints(type("_", (), {"__annotations__": {"reply": name}}), globalns=scope)
    except NameError as unknown:
        raise ConfigurationError(
            f"{_where(cls)}: the reply type {name.__forward_arg__!r} is not a name of module {cls.__module__} "
            f"({unknown}); import it there or define it at module level"
        ) from unknown
    return hints["reply"]


def _where(cls: object) -> str:
    if isinstance(cls, type):
        return f"{cls.__module__}.{cls.__qualname__}"
    return repr(cls)
