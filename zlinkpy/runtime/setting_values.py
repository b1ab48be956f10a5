"""The kinds of value a setting can have: how each is read from a file and from text, and what it expects to be.

A kind answers with the typed value or raises `ValueError`; the caller adds the key, the value and the place. The
wording in `expects` is used by those errors and by docs/settings.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

from attrs import frozen

from zlinkpy.messages import MAX_MILLISECONDS, to_milliseconds
from zlinkpy.security import Secret

LEAST_MESSAGE_CAP = 2 << 20
"""Bytes. What the framework itself sends must fit: an admission and a join may each take 1 MiB, and a head (wire.md §4,
§5)."""


class Kind(Protocol):
    """One kind of value."""

    @property
    def expects(self) -> str:
        """What a value has to be, as the end of "must be"."""
        ...

    def read(self, value: object) -> Any:
        """The typed value of something TOML or a program gave."""
        ...

    def read_text(self, text: str) -> Any:
        """The typed value of an environment variable or a command-line flag."""
        ...


@frozen
class Text:
    """A string that is not empty."""

    expects: str = "a text that is not empty"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError
        return value

    def read_text(self, text: str) -> str:
        return self.read(text.strip())


@frozen
class SecretText:
    """A text that is shown nowhere, and that only the environment may hold: files are shipped and flags are listed."""

    expects: str

    def read(self, value: object) -> Secret:
        raise ValueError

    def read_text(self, text: str) -> Secret:
        if not text.strip():
            raise ValueError
        return Secret(text.strip())


@frozen
class Flag:
    """Yes or no."""

    expects: str = "true or false"

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def read_text(self, text: str) -> bool:
        if text.strip().lower() not in ("true", "false"):
            raise ValueError
        return text.strip().lower() == "true"


@frozen
class TextList:
    """Strings; in text separated by commas, an empty text being no strings at all."""

    expects: str

    def read(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
            raise ValueError
        return tuple(value)

    def read_text(self, text: str) -> tuple[str, ...]:
        return self.read([item.strip() for item in text.split(",")] if text.strip() else [])


@frozen
class Whole:
    """A whole number in a range."""

    low: int
    high: int

    @property
    def expects(self) -> str:
        return f"a whole number in {self.low}..{self.high}"

    def read(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise ValueError
        return value

    def read_text(self, text: str) -> int:
        return self.read(int(text))


@frozen
class Cap:
    """A whole number in a range, or 0 for no bound."""

    low: int
    high: int

    @property
    def expects(self) -> str:
        return f"0 for no bound, or a whole number in {self.low}..{self.high}"

    def read(self, value: object) -> int:
        return 0 if value == 0 and isinstance(value, int) and not isinstance(value, bool) else self._range.read(value)

    def read_text(self, text: str) -> int:
        return self.read(int(text))

    @property
    def _range(self) -> Whole:
        return Whole(self.low, self.high)


@frozen
class Seconds:
    """A duration; `check` raises `ValueError` for one that is out of range."""

    expects: str
    check: Callable[[float], object]

    def read(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError
        self.check(value)
        return float(value)

    def read_text(self, text: str) -> float:
        return self.read(float(text))


def _above_zero(value: float) -> None:
    if value <= 0:
        raise ValueError


def _not_negative(value: float) -> None:
    if value < 0:
        raise ValueError


MESSAGE_CAP = Cap(LEAST_MESSAGE_CAP, 2**32 - 1)
TIMEOUT = Seconds(f"a number of seconds above 0 and at most {MAX_MILLISECONDS / 1000}", to_milliseconds)
POSITIVE = Seconds("a number of seconds above 0", _above_zero)
OR_OFF = Seconds("a number of seconds, 0 for off", _not_negative)


@frozen
class Choice:
    """One member of an enum, by its name in lower case."""

    enum: type[Enum]

    @property
    def expects(self) -> str:
        return "one of " + ", ".join(member.name.lower() for member in self.enum)

    def read(self, value: object) -> Enum:
        if isinstance(value, self.enum):
            return value
        if isinstance(value, str):
            for member in self.enum:
                if member.name.lower() == value.lower():
                    return member
        raise ValueError

    def read_text(self, text: str) -> Enum:
        return self.read(text.strip())
