"""Options that several commands have, spelled once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click
import trio

from zlinkpy.errors import ConfigurationError
from zlinkpy.location import LocationStore, open_store
from zlinkpy.runtime import SecurityOptions, Settings

F = TypeVar("F", bound=Callable[..., Any])

STORE_VARIABLE = "ZLINK_LOCATION_STORE"
_SECURITY_VARIABLES = "ZLINK_SECURITY_"


def json_option(function: F) -> F:
    """``--json``, in the parameter ``as_json`` that `ReportingCommand` looks at."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts, one document per line.")(
        function
    )


def store_option(function: F) -> F:
    """``--store`` of the commands that only look or call."""
    return click.option(
        "--store",
        metavar="URL",
        envvar=STORE_VARIABLE,
        show_envvar=True,
        help="Location Store, e.g. redis://localhost or valkey+embedded://PATH.",
    )(function)


def security_options(function: F) -> F:
    """``--key-file`` and ``--allow-list`` of the commands that join; their values go to `security_of`."""
    for option in (
        click.option("--allow-list", metavar="FILE", help="Names and public keys, where nodes have keys."),
        click.option("--key-file", metavar="FILE", help="Key file of this command's own node (zlink keygen)."),
    ):
        function = option(function)
    return function


def security_of(key_file: str | None, allow_list: str | None) -> SecurityOptions:
    """The security of a command's own node: the flags over the environment's ``ZLINK_SECURITY_…``."""
    environ = {name: value for name, value in os.environ.items() if name.startswith(_SECURITY_VARIABLES)}
    given = {"security.key_file": key_file, "security.allow_list": allow_list}
    overrides = {key: value for key, value in given.items() if value is not None}
    return Settings.load(environ=environ, overrides=overrides).security.over(SecurityOptions())


def required_store(store: str | None) -> str:
    """The store URL, or the usage error that says how to give one."""
    if not store:
        raise click.UsageError(f"no Location Store: give --store URL or set {STORE_VARIABLE}")
    return store


@asynccontextmanager
async def opened_store(url: str) -> AsyncIterator[LocationStore]:
    """The store of `url` for the time of the block; it is closed in order also when the command is interrupted."""
    store = open_store(url)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


def split_by_mesh(values: tuple[str, ...], meshes: tuple[str, ...], option: str) -> dict[str, list[str]]:
    """Values written ``[MESH=]VALUE`` by mesh; without MESH they belong to the host's only mesh.

    Raises ConfigurationError for a mesh the host does not register, or when the mesh is left out and there are several.
    """
    by_mesh: dict[str, list[str]] = {}
    for value in values:
        mesh, separator, rest = value.partition("=")
        if not separator:
            if len(meshes) != 1:
                known = ", ".join(meshes) or "none"
                raise ConfigurationError(
                    f"{option} {value}: say for which mesh, as in {option} MESH={value} (this host has: {known})"
                )
            mesh, rest = meshes[0], value
        elif mesh not in meshes:
            raise ConfigurationError(
                f"{option} {value}: this host has no mesh {mesh!r} (it has: {', '.join(meshes) or 'none'})"
            )
        by_mesh.setdefault(mesh, []).append(rest)
    return by_mesh


def split_pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    """Values written ``KEY=VALUE``; a usage error for anything else and for a key given twice."""
    pairs: dict[str, str] = {}
    for value in values:
        key, separator, rest = value.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE", param_hint=option)
        if key in pairs:
            raise click.BadParameter(f"{key} is given twice", param_hint=option)
        pairs[key] = rest
    return pairs
