"""From a URL to a Location Store. Opening does no I/O: the first call connects (or starts the embedded server).

====================================================  ==============================================================
``memory://``                                         one process; every call of `open_store` makes a new, empty one
``redis://[user:password@]host:port[/db]``            one server; ``rediss://`` with TLS, ``unix:///path`` by socket
``redis+sentinel://host:port,host:port/service``      the primary of a sentinel group
``redis+cluster://host:port,host:port``               a cluster; ``rediss+sentinel``, ``rediss+cluster`` with TLS
``valkey+embedded://PATH``                            a real Valkey that the processes of one machine share
====================================================  ==============================================================

Options go into the query as redis-py spells them (``?client_name=…``, ``?ssl_ca_certs=…``); one that is not known is
an error, because a misspelt option that is silently dropped is found in production.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.connection import Connection, UnixDomainSocketConnection, parse_url

from zlinkpy.entropy import Entropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.redis_store import DEFAULT_PREFIX, OPERATION_TIMEOUT, RedisStore
from zlinkpy.location.redis_target import (
    ClusterTarget,
    RedisTarget,
    SentinelTarget,
    ServerTarget,
    carried_options,
    cluster_label,
    sentinel_label,
    server_label,
)

_SENTINEL_PORT: Final = 26379
_SERVER_PORT: Final = 6379


def open_store(
    url: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    operation_timeout: float = OPERATION_TIMEOUT,
    entropy: Entropy | None = None,
) -> MemoryStore | RedisStore:
    """The store that `url` names.

    Args:
        url: see the module.
        prefix: beginning of all physical keys; processes that share a prefix share a domain.
        operation_timeout: seconds that one call may take, waiting included (LO-057).
        entropy: where version and scan names come from.

    Raises:
        ConfigurationError: for a URL, prefix or timeout that cannot work. Its text never repeats credentials.
    """
    target = store_target(url)
    if target is None:
        return MemoryStore(entropy=entropy)
    try:
        return RedisStore(target, prefix=prefix, operation_timeout=operation_timeout, entropy=entropy)
    except ValueError as error:
        raise ConfigurationError(f"location store: {error}") from None


def store_label(url: str) -> str:
    """The address in `url` for people, without credentials. Raises ConfigurationError as `open_store`."""
    target = store_target(url)
    return "memory://" if target is None else target.label


def store_target(url: str) -> RedisTarget | None:
    """The place a URL names; None for the memory store. Raises ConfigurationError.

    No text here quotes the URL: a password with a slash in it can end up in any part."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "memory":
            return None
        if parts.scheme not in _SCHEMES:
            shown = f"{parts.scheme}://" if parts.scheme else "no scheme"
            raise ConfigurationError(f"a location store URL cannot begin with {shown}: {_suggestion(parts.scheme)}")
        if "@" in parts.path and parts.scheme not in ("unix", "valkey+embedded"):
            raise ValueError("user or password contain a slash")
        return _SCHEMES[parts.scheme](parts)
    except ValueError:
        raise ConfigurationError(
            "the location store URL does not parse: expected scheme://user:password@host:port, "
            "with special characters in user and password percent-encoded"
        ) from None


def _server(parts: SplitResult) -> RedisTarget:
    parse: Any = parse_url  # not typed
    options: dict[str, Any] = parse(f"{parts.scheme}://{parts.netloc}{parts.path}?{parts.query}")
    kind: type[Connection | UnixDomainSocketConnection] = options.pop("connection_class", Connection)
    if kind is UnixDomainSocketConnection:
        if not options.get("path"):
            raise ConfigurationError("a location store URL unix:// needs the path of a socket: unix:///run/valkey.sock")
    else:
        options.setdefault("host", "localhost")
        options.setdefault("port", _SERVER_PORT)
    return ServerTarget(server_label(kind, options), kind, _known(options))


def _sentinel(parts: SplitResult) -> RedisTarget:
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ConfigurationError(
            "a location store URL for sentinels names the group behind the addresses: "
            "redis+sentinel://host:26379,host:26379/service"
        )
    options = _credentials(parts) | _query(parts)
    if database:
        options["db"] = _database(database)
    own = {name.removeprefix("sentinel_"): options.pop(name) for name in list(options) if name.startswith("sentinel_")}
    places = _addresses(parts, _SENTINEL_PORT)
    tls = parts.scheme.startswith("rediss")
    return SentinelTarget(
        sentinel_label(places, service, tls=tls), service, places, _known(options), _known(own), tls=tls
    )


def _cluster(parts: SplitResult) -> RedisTarget:
    if parts.path.strip("/"):
        raise ConfigurationError("a location store URL for a cluster has no path: clusters have one database only")
    places = _addresses(parts, _SERVER_PORT)
    options = _known(_credentials(parts) | _query(parts))
    tls = parts.scheme.startswith("rediss")
    return ClusterTarget(cluster_label(places, tls=tls), places, options, tls=tls)


def _embedded(parts: SplitResult) -> RedisTarget:
    path = unquote(parts.netloc + parts.path)
    if not path:
        raise ConfigurationError("an embedded location store needs a directory: valkey+embedded://PATH")
    if parts.query:
        raise ConfigurationError("an embedded location store has no options")
    try:
        from zlinkpy.location.embedded import EmbeddedTarget
    except ImportError:  # no flock on this system
        raise ConfigurationError(
            "an embedded location store needs Linux or macOS; use redis://HOST:PORT instead"
        ) from None
    return EmbeddedTarget(Path(path).expanduser().absolute())


_SCHEMES: Final[dict[str, Callable[[SplitResult], RedisTarget]]] = {
    "redis": _server,
    "rediss": _server,
    "unix": _server,
    "redis+sentinel": _sentinel,
    "rediss+sentinel": _sentinel,
    "redis+cluster": _cluster,
    "rediss+cluster": _cluster,
    "valkey+embedded": _embedded,
}


def _suggestion(scheme: str) -> str:
    known = ["memory", *_SCHEMES]
    near = difflib.get_close_matches(scheme, known, n=1, cutoff=0.0) if scheme else []
    shown = f"did you mean {near[0]}://? " if near else ""
    return f"{shown}Known are {', '.join(f'{name}://' for name in known)}"


def _addresses(parts: SplitResult, default: int) -> tuple[tuple[str, int], ...]:
    return tuple(_address(address, default) for address in parts.netloc.rpartition("@")[2].split(","))


def _address(address: str, default: int) -> tuple[str, int]:
    split = urlsplit(f"//{address}")
    if not split.hostname:
        raise ValueError("no host")
    return split.hostname, default if split.port is None else split.port


def _credentials(parts: SplitResult) -> dict[str, Any]:
    user, colon, password = parts.netloc.rpartition("@")[0].partition(":")
    found = {"username": unquote(user)} if user else {}
    return found | ({"password": unquote(password)} if colon else {})


def _query(parts: SplitResult) -> dict[str, Any]:
    return dict(parse_qsl(parts.query))


def _database(text: str) -> int:
    if not text.isdecimal():
        raise ConfigurationError("a location store URL names the database by its number, behind the group's name")
    return int(text)


def _known(options: dict[str, Any]) -> dict[str, Any]:
    known = carried_options(options)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, ("db", "client_name", "username", "password", "ssl_ca_certs"), n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"a location store URL has the unknown option {name!r}{hint}")
    return known
