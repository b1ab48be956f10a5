"""Which annotations a message field may have, checked once per class before the first message is coded.

The list is closed on purpose: every entry has exactly one msgpack form, so two languages cannot read a field
differently, and an annotation outside it is refused at host start instead of half working on some values.

==============================================  ===========================================================
annotation                                      msgpack form
==============================================  ===========================================================
`bool`, `int`, `float`, `str`, `bytes`          the same type; an int is accepted where a float is declared
`None`, ``X | None``                            nil, or the form of X
a union of the five above (and ``None``)        the form of the value
`enum.Enum` with int or str values, `Literal`   the value
`list[X]`, `set[X]`, `frozenset[X]`             array
``tuple[X, ...]``, ``tuple[X, Y]``              array; the latter of exactly that length
``dict[K, V]``, K one of str, int               map
another message, or any attrs class             map of field names
`datetime.datetime`, `uuid.UUID`                text: ISO 8601, canonical
`typing.Any`                                    unchecked; plain values only
==============================================  ===========================================================
"""

from __future__ import annotations

import datetime
import types
import typing
import uuid
from collections.abc import Mapping
from enum import Enum
from types import NoneType
from typing import Any

import attrs
from attrs import define

from zlinkpy.errors import ConfigurationError

SCALARS = frozenset({bool, int, float, str, bytes})
_TEXTS = frozenset({datetime.datetime, uuid.UUID})
_ARRAYS = frozenset({list, set, frozenset})


@define
class FieldTypes:
    """What a walk over one class found.

    Attributes:
        enums: Enum classes in use; the codec needs a hook for each.
        int_keys: Whether some map is keyed by int, which the unpacker refuses otherwise.
    """

    enums: set[type[Enum]] = attrs.Factory(set)
    int_keys: bool = False
    _seen: set[type] = attrs.Factory(set)

    def walk(self, cls: type, path: str) -> None:
        """Check every field below `cls`.

        Raises:
            ConfigurationError: Naming the field, its annotation and what is supported.
        """
        if cls in self._seen:
            return
        self._seen.add(cls)
        if getattr(cls, "__parameters__", ()):
            raise _unsupported(path, cls, "a generic class")
        try:
            hints = typing.get_type_hints(cls, include_extras=False)
        except NameError as unknown:
            raise ConfigurationError(
                f"{path} ({cls.__module__}.{cls.__qualname__}): {unknown}; a field's annotation must name something "
                "its module defines or imports at run time, at module level"
            ) from unknown
        for field in attrs.fields(cls):
            if field.init:
                self._check(hints.get(field.name, field.type), f"{path}.{field.name}")

    def _check(self, hint: Any, path: str) -> None:
        if isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if hint in SCALARS or hint in _TEXTS or hint is Any or hint in (None, NoneType):
            return
        if origin is typing.Literal:
            self._check_literal(arguments, hint, path)
        elif origin in (typing.Union, types.UnionType):
            self._check_union(arguments, hint, path)
        elif origin in _ARRAYS:
            self._check(arguments[0], f"{path}[]")
        elif origin is tuple:
            for argument in arguments:
                if argument is not Ellipsis:
                    self._check(argument, f"{path}[]")
        elif origin in (dict, Mapping):
            self._check_key(arguments[0], hint, path)
            self._check(arguments[1], f"{path}[]")
        elif isinstance(hint, type) and issubclass(hint, Enum):
            self._check_enum(hint, path)
        elif isinstance(hint, type) and attrs.has(hint):
            self.walk(hint, path)
        else:
            raise _unsupported(path, hint)

    def _check_literal(self, values: tuple[Any, ...], hint: Any, path: str) -> None:
        if not all(value is None or type(value) in (bool, int, str) for value in values):
            raise _unsupported(path, hint, "a Literal of anything but bool, int, str and None")

    def _check_union(self, members: tuple[Any, ...], hint: Any, path: str) -> None:
        present = [member for member in members if member is not NoneType]
        if len(present) == 1:
            self._check(present[0], path)
        elif not all(member in SCALARS for member in present):
            raise _unsupported(
                path, hint, "a union of more than plain scalars and None, whose members look alike coded"
            )

    def _check_key(self, key: Any, hint: Any, path: str) -> None:
        if isinstance(key, typing.NewType):
            key = key.__supertype__
        if key is int:
            self.int_keys = True
        elif key is not str:
            raise _unsupported(path, hint, "a mapping with keys that are neither str nor int")

    def _check_enum(self, hint: type[Enum], path: str) -> None:
        if not all(type(member.value) in (int, str) for member in hint):
            raise _unsupported(path, hint, "an enum with values that are neither int nor str")
        self.enums.add(hint)


def _unsupported(path: str, hint: Any, what: str = "not a message field type") -> ConfigurationError:
    return ConfigurationError(
        f"{path}: {hint!r} is {what}; use bool, int, float, str, bytes, None, Enum, Literal, list, set, frozenset, "
        "tuple, dict with str or int keys, datetime, UUID, Any, another message, or `X | None` (docs/messages.md)"
    )
