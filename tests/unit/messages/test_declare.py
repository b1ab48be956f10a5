"""Declaring messages and requests."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from types import NoneType
from typing import Any

import attrs
import pytest

from tests.unit.messages.models import AskLater, Board, Later, Leave, PlaceMark, Seat
from zlinkpy.errors import ConfigurationError
from zlinkpy.messages import Codec, Request, is_message, message, packet_name_of, reply_type_of


@pytest.mark.contract("SA-274")
def test_the_packet_name_is_the_given_one_or_the_class_name() -> None:
    assert packet_name_of(Seat) == "Seat"
    assert packet_name_of(Seat("x")) == "Seat"
    assert packet_name_of(PlaceMark) == packet_name_of(PlaceMark(3)) == "place-mark"


def test_a_message_is_frozen_slotted_and_compared_by_value() -> None:
    seat = Seat("Ann")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        seat.name = "Bob"  # type: ignore[misc]
    assert not hasattr(seat, "__dict__")
    assert seat == Seat("Ann") != Seat("Bob")
    assert len({seat, Seat("Ann")}) == 1
    assert pickle.loads(pickle.dumps(seat)) == seat


def test_both_forms_of_the_decorator_with_defaults() -> None:
    @message()
    class Empty:
        pass

    @message("named")
    class Named:
        numbers: list[int] = attrs.field(factory=list)

    assert packet_name_of(Empty) == "Empty"
    assert packet_name_of(Named) == "named"
    assert Named().numbers == []


@pytest.mark.parametrize("name", ["", "x" * 256, "ä" * 128, "a\0b", "\ud800"])
def test_a_packet_name_the_wire_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"packet name .* give another one"):

        @message(name)
        class Bad:
            pass


@pytest.mark.parametrize("name", ["x", "x" * 255, "ä" * 127])
def test_packet_names_at_the_bounds(name: str) -> None:
    @message(name)
    class Good:
        pass

    assert packet_name_of(Good) == name


def test_a_decorator_argument_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="takes a packet name, not 3"):
        message(3)  # type: ignore[call-overload]


def test_a_plain_class_and_a_plain_subclass_are_no_messages() -> None:
    class Derived(Seat):
        pass

    for cls in (int, Derived):
        assert not is_message(cls)
        with pytest.raises(TypeError, match=f"{cls.__name__} is not a message; decorate it"):
            packet_name_of(cls)
    with pytest.raises(TypeError, match="is not a message"):
        packet_name_of(5)
    assert is_message(Seat)
    assert not is_message(Seat("x"))


def test_the_reply_type_travels_with_the_request_class() -> None:
    assert reply_type_of(PlaceMark) is Board
    assert reply_type_of(Leave) is NoneType
    assert reply_type_of(AskLater) is Later

    @message
    class More(PlaceMark):
        extra: int = 0

    assert reply_type_of(More) is Board
    assert packet_name_of(More) == "More"


def test_the_reply_type_has_to_be_a_message_or_none() -> None:
    @message
    class Numbers(Request[int]):
        pass

    @message
    class Missing(Request):  # type: ignore[type-arg]
        pass

    for cls in (Numbers, Missing):
        with pytest.raises(ConfigurationError, match=r"neither a message nor None; .*Request\[Board\]"):
            reply_type_of(cls)


def test_an_unknown_forward_name_is_named() -> None:
    @message
    class Lost(Request["Nowhere"]):  # type: ignore[name-defined] # noqa: F821
        pass

    with pytest.raises(ConfigurationError, match=r"'Nowhere' is not a name of module tests.*import it there"):
        reply_type_of(Lost)


def test_a_message_that_is_no_request_has_no_reply_type() -> None:
    not_a_class: Any = 3
    for value in (Seat, not_a_class):
        with pytest.raises(TypeError, match=r"is not a request; derive it from Request"):
            reply_type_of(value)


def test_the_first_example_of_the_page_works() -> None:
    page = (Path(__file__).parents[3] / "docs" / "messages.md").read_text()
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {"__name__": __name__}
    exec(example[1], names)
    request = names["PlaceMark"](4)
    assert reply_type_of(names["PlaceMark"]) is names["Board"]
    assert Codec().decoder_for(names["PlaceMark"])(Codec().encode(request)) == request
