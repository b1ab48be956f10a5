"""A cattrs converter that checks instead of coercing.

cattrs reads an `int` field with ``int(value)``, so ``"7"``, ``7.9`` and ``True`` all pass, and a `list[str]` field
takes the string ``"abc"``. Bytes from a peer must not be reinterpreted: each hook here accepts one msgpack form
and raises `TypeError` or `ValueError` for every other. cattrs still generates the per-class code, which is what makes
decoding a
small message cost about a microsecond.

The same hooks serve two converters. ``detailed=False`` is the hot path and says only that something is wrong;
``detailed=True`` runs after a failure, to learn which field it was.
"""

from __future__ import annotations

import collections.abc
import datetime
import types
import typing
import uuid
from collections.abc import Callable
from enum import Enum
from types import NoneType
from typing import Any

import attrs
from cattrs import Converter
from cattrs.cols import (
    homogenous_tuple_structure_factory,
    list_structure_factory,
    mapping_structure_factory,
)

from zlinkpy.messages.field_types import SCALARS

Hook = Callable[[Any, Any], Any]


class Mismatch(TypeError):
    """A value of another type than the annotation allows; the text says both."""


def strict_converter(*, detailed: bool) -> Converter:
    """A converter with every hook of the supported field types (`zlinkpy.messages.field_types`)."""
    converter = Converter(
        detailed_validation=detailed,
        unstruct_collection_overrides={collections.abc.Set: list},
    )
    for scalar, hook in _SCALAR_HOOKS.items():
        converter.register_structure_hook(scalar, hook)
    converter.register_structure_hook(datetime.datetime, _datetime)
    converter.register_structure_hook(uuid.UUID, _uuid)
    converter.register_unstructure_hook(datetime.datetime, datetime.datetime.isoformat)
    converter.register_unstructure_hook(uuid.UUID, str)
    for matches, factory in (
        (attrs.has, _attrs_factory),
        (_originates(list), _list_factory),
        (_originates(set), _set_factory),
        (_originates(frozenset), _frozenset_factory),
        (_originates(tuple), _tuple_factory),
        (_originates(dict, collections.abc.Mapping), _mapping_factory),
        (_originates(typing.Literal), _literal_factory),
        (_originates(typing.Union, types.UnionType), _union_factory),
    ):
        converter.register_structure_hook_factory(matches, factory)
    converter.register_structure_hook_func(lambda hint: hint in (None, NoneType), _none)
    return converter


def register_enum(converter: Converter, enum: type[Enum]) -> None:
    """Teach `converter` one enum: by value, and a bool is not the number it equals."""
    members = {(type(member.value), member.value): member for member in enum.__members__.values()}
    expected = ", ".join(repr(member.value) for member in enum)

    def structure(value: Any, _: Any) -> Enum:
        try:
            return members[type(value), value]
        except (KeyError, TypeError):
            raise ValueError(f"expected one of {expected}, got {_shown(value)}") from None

    def unstructure(member: Any) -> Any:
        if member.__class__ is not enum:
            raise Mismatch(f"expected {enum.__name__}, got {_shown(member)}")
        return member.value

    converter.register_structure_hook(enum, structure)
    converter.register_unstructure_hook(enum, unstructure)


def _scalar_hook(scalar: type) -> Hook:
    def structure(value: Any, _: Any) -> Any:
        if value.__class__ is scalar:
            return value
        raise Mismatch(f"expected {scalar.__name__}, got {_shown(value)}")

    return structure


def _float(value: Any, _: Any) -> float:
    if value.__class__ is float or value.__class__ is int:
        return float(value)
    raise Mismatch(f"expected float, got {_shown(value)}")


_SCALAR_HOOKS: dict[type, Hook] = {scalar: _scalar_hook(scalar) for scalar in SCALARS} | {float: _float}


def _none(value: Any, _: Any) -> None:
    if value is not None:
        raise Mismatch(f"expected nil, got {_shown(value)}")


def _datetime(value: Any, _: Any) -> datetime.datetime:
    if value.__class__ is not str:
        raise Mismatch(f"expected ISO 8601 text, got {_shown(value)}")
    return datetime.datetime.fromisoformat(value)


def _uuid(value: Any, _: Any) -> uuid.UUID:
    if value.__class__ is not str:
        raise Mismatch(f"expected UUID text, got {_shown(value)}")
    return uuid.UUID(value)


def _originates(*origins: Any) -> Callable[[Any], bool]:
    return lambda hint: typing.get_origin(hint) in origins


def _guarded(inner: Hook, form: type, wording: str, then: Callable[[Any], Any] | None = None) -> Hook:
    """`inner`, but only for values of the msgpack form `form`."""
    if then is None:

        def structure(value: Any, hint: Any) -> Any:
            if value.__class__ is form:
                return inner(value, hint)
            raise Mismatch(f"expected {wording}, got {_shown(value)}")

    else:

        def structure(value: Any, hint: Any) -> Any:
            if value.__class__ is form:
                return then(inner(value, hint))
            raise Mismatch(f"expected {wording}, got {_shown(value)}")

    return structure


def _attrs_factory(cls: Any, converter: Converter) -> Hook:
    return _guarded(converter.gen_structure_attrs_fromdict(cls), dict, f"a map with the fields of {cls.__name__}")


def _list_factory(hint: Any, converter: Converter) -> Hook:
    return _guarded(list_structure_factory(hint, converter), list, "an array")


def _set_factory(hint: Any, converter: Converter) -> Hook:
    return _guarded(list_structure_factory(_list_of(hint), converter), list, "an array", set)


def _frozenset_factory(hint: Any, converter: Converter) -> Hook:
    return _guarded(list_structure_factory(_list_of(hint), converter), list, "an array", frozenset)


def _list_of(hint: Any) -> Any:
    return types.GenericAlias(list, typing.get_args(hint))


def _tuple_factory(hint: Any, converter: Converter) -> Hook:
    arguments = typing.get_args(hint)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _guarded(homogenous_tuple_structure_factory(hint, converter), list, "an array")
    inner = converter.gen_structure_hetero_tuple(hint)
    size = len(arguments)

    def structure(value: Any, hint: Any) -> Any:
        if value.__class__ is not list or len(value) != size:
            raise Mismatch(f"expected an array of {size}, got {_shown(value)}")
        return inner(value, hint)

    return structure


def _mapping_factory(hint: Any, converter: Converter) -> Hook:
    return _guarded(mapping_structure_factory(hint, converter), dict, "a map")


def _literal_factory(hint: Any, converter: Converter) -> Hook:
    allowed = {(type(value), value) for value in typing.get_args(hint)}
    expected = ", ".join(repr(value) for value in typing.get_args(hint))

    def structure(value: Any, _: Any) -> Any:
        # The class is looked at first: a list or map is not hashable.
        if value.__class__ in (bool, int, str, NoneType) and (type(value), value) in allowed:
            return value
        raise ValueError(f"expected one of {expected}, got {_shown(value)}")

    return structure


def _union_factory(hint: Any, converter: Converter) -> Hook:
    present = [member for member in typing.get_args(hint) if member is not NoneType]
    if len(present) == 1:
        return _optional_hook(present[0], converter)
    allowed = frozenset(typing.get_args(hint))
    expected = " or ".join(sorted(member.__name__ for member in allowed)).replace("NoneType", "nil")
    widen = float in allowed and int not in allowed

    def structure(value: Any, _: Any) -> Any:
        if value.__class__ in allowed:
            return value
        if widen and value.__class__ is int:
            return float(value)
        raise Mismatch(f"expected {expected}, got {_shown(value)}")

    return structure


def _optional_hook(member: Any, converter: Converter) -> Hook:
    try:
        inner = converter.get_structure_hook(member)
    except RecursionError:
        inner = converter.structure  # the class refers to itself: look the hook up when it is needed

    def structure(value: Any, _: Any) -> Any:
        return None if value is None else inner(value, member)

    return structure


def _shown(value: Any) -> str:
    """The type of a value, with the value where it is short: what a peer sent may be large, and lands in a log."""
    text = repr(value) if isinstance(value, bool | int | float | NoneType) else ""
    if isinstance(value, str | bytes):
        text = repr(value[:32]) + ("…" if len(value) > 32 else "")
    return f"{type(value).__name__} {text}" if 0 < len(text) <= 80 else type(value).__name__
