"""What a handler function says about itself: which message, which reply, whether it wants the context.

The annotation of the first parameter chooses the message; further parameters are matched by their annotations.
Hints are resolved when the host starts, so a handler may name classes that its module defines further down. What
can be seen without resolving anything, such as a missing hint, is refused when the function is decorated (SA-17).
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from types import NoneType
from typing import Any, Literal

from attrs import field, frozen

from zlinkpy.errors import ConfigurationError
from zlinkpy.messages.context import MessageContext
from zlinkpy.messages.declare import Request, is_message, packet_name_of, reply_type_of

HandlerKind = Literal["send", "request"]


@frozen(kw_only=True)
class HandlerSpec:
    """A handler as the runtime uses it.

    Attributes:
        function: What was registered.
        kind: Whether it takes sends or requests.
        packet_name: The packet it handles.
        message_type: The class its payload is decoded to.
        reply_type: Requests only: the class of the reply, `NoneType` for ``Request[None]``; ``None`` for sends.
        wants_context: Whether a `MessageContext` has to be made for a call.
        is_async: Whether calling it gives a coroutine.
        label: ``module:qualname``, for logs, errors and the watchdog.
        call: ``call(message, context)`` calls the function with the arguments it wants, in its order.
    """

    function: Callable[..., Any]
    kind: HandlerKind
    packet_name: str
    message_type: type[Any]
    reply_type: type[Any] | None
    wants_context: bool
    is_async: bool
    label: str
    call: Callable[[Any, MessageContext | None], Any] = field(repr=False, eq=False)

    @classmethod
    def raw(cls, function: Callable[..., Any]) -> HandlerSpec:
        """The spec of a handler of raw messages, whatever their packet; otherwise as `inspect`."""
        message_parameter, rest = _parameters(function)
        context = _context_parameter(function, rest, _resolved_hints(function))
        return cls(
            function=function,
            kind="send",
            packet_name="",
            message_type=object,
            reply_type=None,
            wants_context=context is not None,
            is_async=_is_async(function),
            label=label_of(function),
            call=_caller(function, message_parameter, context),
        )

    @classmethod
    def inspect(cls, function: Callable[..., Any], kind: HandlerKind) -> HandlerSpec:
        """Read a handler's signature; call it at host start, when every name it uses exists.

        Args:
            function: A function, a bound method or a callable object, sync or async.
            kind: What it is registered for.

        Raises:
            ConfigurationError: Naming the function, its file and line, and the fix (SA-17).
        """
        message_parameter, rest = _parameters(function)
        hints = _resolved_hints(function)
        message_type = hints[message_parameter.name]
        if not is_message(message_type):
            raise _wrong(
                function,
                f"the parameter {message_parameter.name!r} is annotated with {message_type!r}, which is no message",
                "annotate it with a class decorated with @message",
            )
        reply_type = _reply_type(function, kind, message_type, hints)
        context = _context_parameter(function, rest, hints)
        return cls(
            function=function,
            kind=kind,
            packet_name=packet_name_of(message_type),
            message_type=message_type,
            reply_type=reply_type,
            wants_context=context is not None,
            is_async=_is_async(function),
            label=label_of(function),
            call=_caller(function, message_parameter, context),
        )


def check_handler(function: Callable[..., Any], kind: HandlerKind) -> None:
    """Refuse at decoration what is wrong with a handler already; names that do not exist yet are left for host start.

    Raises:
        ConfigurationError: As `HandlerSpec.inspect`.
    """
    _parameters(function)
    try:
        _hints(function)
    except NameError:
        return
    HandlerSpec.inspect(function, kind)


def label_of(function: Callable[..., Any]) -> str:
    """``module:qualname`` of a function, the name under which logs and the watchdog show it."""
    named = _underlying(function)
    return f"{getattr(named, '__module__', '?')}:{getattr(named, '__qualname__', type(named).__qualname__)}"


def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, list[inspect.Parameter]]:
    if inspect.isasyncgenfunction(_underlying(function)) or inspect.isgeneratorfunction(_underlying(function)):
        raise _wrong(function, "it is a generator", "return the reply instead of yielding it")
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind in (inspect.Parameter.KEYWORD_ONLY, *_VARIADIC):
        raise _wrong(
            function, "it has no positional parameter for the message", "add one annotated with the message class"
        )
    if parameters[0].annotation is inspect.Parameter.empty:
        raise _wrong(
            function,
            f"the parameter {parameters[0].name!r} has no type hint, so nothing says which message it handles",
            f"annotate it, as in `{parameters[0].name}: PlaceMark`",
        )
    return parameters[0], parameters[1:]


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(_underlying(function))


def _resolved_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return _hints(function)
    except NameError as unknown:
        raise _wrong(
            function, f"its type hints do not resolve ({unknown})", "define or import that name at module level"
        ) from unknown


def _reply_type(function: Callable[..., Any], kind: HandlerKind, message_type: type, hints: dict[str, Any]) -> Any:
    name = message_type.__qualname__
    returned = hints.get("return", _ABSENT)
    if kind == "send":
        if returned not in (_ABSENT, NoneType):
            raise _wrong(
                function, f"it handles sends but returns {returned!r}", "return None, or register it for requests"
            )
        return None
    if not issubclass(message_type, Request):
        raise _wrong(
            function,
            f"it handles requests but {name} is not a Request",
            "derive it from Request[<reply>], or register the handler for sends",
        )
    expected = reply_type_of(message_type)
    if returned is not _ABSENT and returned is not expected:
        shown = "None" if expected is NoneType else expected.__qualname__
        raise _wrong(
            function,
            f"it returns {getattr(returned, '__qualname__', returned)!s} but {name} is answered with {shown}",
            f"return {shown}, or change the class to Request[{getattr(returned, '__qualname__', returned)!s}]",
        )
    return expected


_ABSENT: Any = object()


def _context_parameter(
    function: Callable[..., Any], rest: list[inspect.Parameter], hints: dict[str, Any]
) -> inspect.Parameter | None:
    context = None
    for parameter in rest:
        if hints.get(parameter.name) is MessageContext and parameter.kind not in _VARIADIC:
            if context is not None:
                raise _wrong(function, "it takes the MessageContext twice", f"drop the parameter {parameter.name!r}")
            context = parameter
        elif parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIADIC:
            raise _wrong(
                function,
                f"nothing can be passed for the parameter {parameter.name!r}",
                "annotate it with MessageContext, give it a default, or remove it",
            )
    return context


def _caller(
    function: Callable[..., Any], message: inspect.Parameter, context: inspect.Parameter | None
) -> Callable[[Any, MessageContext | None], Any]:
    if context is None:
        return lambda value, _: function(value)
    name = context.name
    positions = list(inspect.signature(function).parameters)
    if positions.index(name) == 1 and context.kind is not inspect.Parameter.KEYWORD_ONLY:
        return function
    if context.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise _wrong(
            function, f"the MessageContext parameter {name!r} comes too late to be passed", "make it the second"
        )
    return lambda value, given: function(value, **{name: given})


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(_underlying(function))


def _underlying(function: Callable[..., Any]) -> Any:
    """The function object behind partials, bound methods, wrappers and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        function = type(function).__call__
    return inspect.unwrap(getattr(function, "__func__", function))


def _wrong(function: Callable[..., Any], problem: str, fix: str) -> ConfigurationError:
    code = getattr(_underlying(function), "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return ConfigurationError(f"handler {label_of(function)}{place}: {problem}; {fix}")
