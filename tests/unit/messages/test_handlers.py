"""What a handler's signature says, and what is refused about it."""

from __future__ import annotations

import functools
from types import NoneType
from typing import Any

import pytest

from tests.unit.messages.models import Board, Leave, PlaceMark, Seat
from zlinkpy.errors import ConfigurationError
from zlinkpy.messages import HandlerSpec, MessageContext, check_handler, message

CONTEXT = MessageContext(mesh_name="play", packet_name="x")


async def place(request: PlaceMark) -> Board:
    return Board(str(request.cell))


def sit(seat: Seat) -> None: ...


async def leave_without_hint(request: Leave, context: MessageContext):  # type: ignore[no-untyped-def]
    return (request, context)


def forward(request: Defined) -> None: ...


class Table:
    async def place(self, request: PlaceMark, *, context: MessageContext, log: bool = False) -> Board:
        return Board(f"{request.cell}{context.mesh_name}")

    def __call__(self, seat: Seat, note: str = "", ctx: MessageContext | None = None) -> None: ...

    @staticmethod
    def alone(seat: Seat) -> None: ...


class AsyncCallable:
    async def __call__(self, seat: Seat) -> None: ...


def test_a_request_handler() -> None:
    spec = HandlerSpec.inspect(place, "request")
    assert (spec.packet_name, spec.message_type, spec.reply_type) == ("place-mark", PlaceMark, Board)
    assert (spec.function, spec.kind, spec.is_async, spec.wants_context) == (place, "request", True, False)
    assert spec.label == "tests.unit.messages.test_handlers:place"


async def test_calling_through_the_spec() -> None:
    assert await HandlerSpec.inspect(place, "request").call(PlaceMark(3), CONTEXT) == Board("3")
    assert await HandlerSpec.inspect(Table().place, "request").call(PlaceMark(3), CONTEXT) == Board("3play")
    leave = Leave()
    assert await HandlerSpec.inspect(leave_without_hint, "request").call(leave, CONTEXT) == (leave, CONTEXT)


def test_a_send_handler() -> None:
    spec = HandlerSpec.inspect(sit, "send")
    assert (spec.message_type, spec.reply_type, spec.is_async) == (Seat, None, False)
    assert spec.call(Seat("x"), None) is None


def test_a_reply_of_none_and_a_missing_return_hint() -> None:
    spec = HandlerSpec.inspect(leave_without_hint, "request")
    assert spec.reply_type is NoneType
    assert spec.wants_context


def test_methods_callables_partials_and_wrappers() -> None:
    assert HandlerSpec.inspect(Table().place, "request").label.endswith(":Table.place")
    assert HandlerSpec.inspect(Table.alone, "send").message_type is Seat
    assert HandlerSpec.inspect(AsyncCallable(), "send").is_async
    assert HandlerSpec.inspect(functools.partial(place), "request").is_async

    @functools.wraps(place)
    async def wrapped(*args: Any) -> Any:
        return await place(*args)

    assert HandlerSpec.inspect(wrapped, "request").packet_name == "place-mark"


@pytest.mark.contract("SA-17")
def test_a_message_parameter_without_a_hint_is_refused_when_decorated() -> None:
    def handler(request): ...  # type: ignore[no-untyped-def]

    for check in (check_handler, HandlerSpec.inspect):
        with pytest.raises(ConfigurationError) as caught:
            check(handler, "send")
        text = str(caught.value)
        assert "handler tests.unit.messages.test_handlers:test_a_message_parameter" in text
        assert f"{__file__}:{handler.__code__.co_firstlineno}" in text
        assert "the parameter 'request' has no type hint" in text
        assert "annotate it" in text


def wrong_reply(request: PlaceMark) -> Seat: ...
def none_reply(request: PlaceMark) -> None: ...
def some_reply(request: Leave) -> Board: ...
def optional_reply(request: PlaceMark) -> Board | None: ...


@pytest.mark.contract("SA-17")
@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (wrong_reply, "returns Seat but PlaceMark is answered with Board; return Board"),
        (none_reply, "returns NoneType but PlaceMark is answered with Board"),
        (some_reply, r"returns Board but Leave is answered with None; .*Request\[Board\]"),
        (optional_reply, "but PlaceMark is answered with Board"),
    ],
)
def test_a_return_hint_that_is_not_the_reply_type_is_refused(handler: Any, text: str) -> None:
    for check in (check_handler, HandlerSpec.inspect):
        with pytest.raises(ConfigurationError, match=text):
            check(handler, "request")


def no_parameters() -> None: ...
def only_keyword(*, seat: Seat) -> None: ...
def only_args(*seats: Seat) -> None: ...
def not_a_message(number: int) -> None: ...
def send_that_returns(seat: Seat) -> Board: ...
def request_of_a_plain_message(seat: Seat) -> None: ...
def unknown_second(seat: Seat, other: int) -> None: ...
def twice(seat: Seat, one: MessageContext, two: MessageContext) -> None: ...
def third_positional_only(seat: Seat, number: int = 1, context: MessageContext = CONTEXT, /) -> None: ...
def generator(seat: Seat) -> Any:
    yield seat


async def async_generator(seat: Seat) -> Any:
    yield seat


@pytest.mark.parametrize(
    ("handler", "kind", "text"),
    [
        (no_parameters, "send", "no positional parameter for the message"),
        (only_keyword, "send", "no positional parameter for the message"),
        (only_args, "send", "no positional parameter for the message"),
        (not_a_message, "send", "'number' is annotated with <class 'int'>, which is no message"),
        (send_that_returns, "send", "handles sends but returns"),
        (request_of_a_plain_message, "request", "Seat is not a Request; derive it"),
        (unknown_second, "send", "nothing can be passed for the parameter 'other'"),
        (twice, "send", "takes the MessageContext twice"),
        (third_positional_only, "send", "comes too late to be passed"),
        (generator, "send", "it is a generator"),
        (async_generator, "send", "it is a generator"),
    ],
)
def test_signatures_that_cannot_work(handler: Any, kind: Any, text: str) -> None:
    for check in (check_handler, HandlerSpec.inspect):
        with pytest.raises(ConfigurationError, match=text):
            check(handler, kind)


def test_names_that_do_not_exist_yet_are_left_for_the_host_start() -> None:
    def later(request: NotYet) -> None: ...  # type: ignore[name-defined] # noqa: F821

    check_handler(later, "send")
    with pytest.raises(ConfigurationError, match="type hints do not resolve .*'NotYet'.*at module level"):
        HandlerSpec.inspect(later, "send")
    check_handler(forward, "send")
    assert HandlerSpec.inspect(forward, "send").message_type is Defined


@message
class Defined:
    pass
