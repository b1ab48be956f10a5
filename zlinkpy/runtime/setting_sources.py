"""Where settings come from: a TOML file, the environment, and dotted overrides; each as a list of entries.

An entry is a key path, a value, and the place a person has to go to in order to change it. What the keys mean is not
known here, except that the environment needs to know them to tell ``MESH_PLAY_RID_PREFIX`` apart.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from zlinkpy.errors import ConfigurationError

ENVIRONMENT_PREFIX = "ZLINK_"

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=")


@frozen
class Entry:
    """One value somebody set.

    Attributes:
        path: The key's parts, ``("mesh", "play", "listen")``.
        value: As given; text where `is_text`.
        origin: ``file:line``, ``environment variable NAME`` or ``override``.
        is_text: Whether the value still has to be parsed.
    """

    path: tuple[str, ...]
    value: Any
    origin: str
    is_text: bool = False

    @property
    def key(self) -> str:
        """The key as people write it."""
        return ".".join(self.path)


def file_entries(file: Path) -> list[Entry]:
    """The entries of a TOML file.

    Raises:
        ConfigurationError: It cannot be read or is not TOML.
    """
    try:
        text = file.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"settings file {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"settings file {file}: not UTF-8 ({error.reason})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"settings file {file}: not TOML: {error}") from error
    lines = _line_numbers(text)
    return [Entry(path, value, _place(file, path, lines)) for path, value in _leaves(document, ())]


def _leaves(table: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        path = (*above, name)
        if isinstance(value, dict) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _place(file: Path, path: tuple[str, ...], lines: Mapping[tuple[str, ...], int]) -> str:
    # A key of an inline table has no line of its own; the line of what holds it is where it is written.
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return f"{file}:{lines[path[:length]]}"
    return str(file)


def _line_numbers(text: str) -> dict[tuple[str, ...], int]:
    """Where each table and key of a valid TOML text is written; tomllib does not say."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _parts(header[1])
            lines.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            lines.setdefault(table + _parts(assignment[1]), number)
    return lines


def _parts(dotted: str) -> tuple[str, ...]:
    path: list[str] = []
    table: Any = tomllib.loads(f"{dotted} = 0")
    while isinstance(table, dict):
        ((name, table),) = table.items()
        path.append(name)
    return tuple(path)


@frozen
class NamedTable:
    """A section with one table per mesh or channel: ``[mesh.play]``.

    Attributes:
        section: Its first part, ``mesh``.
        fields: The keys of one table.
        names: The names that are known already.
    """

    section: str
    fields: tuple[str, ...]
    names: tuple[str, ...]


def environment_entries(
    environ: Mapping[str, str], plain_keys: Iterable[tuple[str, ...]], tables: Iterable[NamedTable]
) -> list[Entry]:
    """The entries of all variables that start with ``ZLINK_``.

    The rest of the name is the key in upper case with ``_`` for ``.``: ``ZLINK_JOB_QUEUE_MAX``. In the key of a mesh
    or channel its name stands between: ``ZLINK_MESH_PLAY_LISTEN``. Any character but a letter or digit is ``_`` there;
    the name is matched against those that are known, and where none matches it is the lower-case text itself.

    Args:
        environ: The environment.
        plain_keys: Every key without a name in it.
        tables: The sections with names.

    Raises:
        ConfigurationError: A variable that fits two names.
    """
    names = {variable_name(path): path for path in plain_keys}
    known = tuple(tables)
    entries = []
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        path = names.get(variable) or next(filter(None, (_named_path(variable, table) for table in known)), None)
        # What is no key stays as it is: the error about an unknown key then shows it as it was written.
        entries.append(Entry(path or (variable,), value, f"environment variable {variable}", is_text=True))
    return entries


def variable_name(path: tuple[str, ...]) -> str:
    """The environment variable of a key."""
    return ENVIRONMENT_PREFIX + "_".join(_as_variable(part) for part in path)


def _as_variable(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _named_path(variable: str, table: NamedTable) -> tuple[str, str, str] | None:
    rest = variable.removeprefix(variable_name((table.section, "")))
    if rest == variable:
        return None
    by_variable: dict[str, list[str]] = {}
    for name in dict.fromkeys(table.names):
        by_variable.setdefault(_as_variable(name), []).append(name)
    # ..._DEFAULT_REQUEST_TIMEOUT ends in no other field's name, but a longer one must win should that change.
    for field in sorted(table.fields, key=len, reverse=True):
        middle = rest.removesuffix("_" + field.upper())
        if middle and middle != rest:
            fitting = by_variable.get(middle, [middle.lower()])
            if len(fitting) > 1:
                raise ConfigurationError(
                    f"environment variable {variable} fits both {' and '.join(map(repr, fitting))}; "
                    "set this key in the settings file instead"
                )
            return (table.section, fitting[0], field)
    return None


def override_entries(overrides: Mapping[str, Any], named: Container[str]) -> list[Entry]:
    """The entries of dotted keys, as the command line gives them; names in the sections `named` may have dots of
    their own."""
    entries = []
    for key, value in overrides.items():
        first, _, rest = key.partition(".")
        name, dot, field = rest.rpartition(".")
        path = (first, name, field) if first in named and dot else tuple(key.split("."))
        entries.append(Entry(path, value, "override", is_text=isinstance(value, str)))
    return entries
