"""Where a Redis or Valkey is, and the connection pools that lead there: one server, a sentinel group, or a cluster.

redis-py repeats commands by default, up to ten times. A conditional write whose answer was lost is then executed
twice, and the caller is told Conflict for its own applied write (LO-054). So the client's command layer is not used
at all: `NodePools` hands out *connections*, `redis_session` sends one command on one of them, and every pool is built
here with the retries switched off. A client handed in by the application is treated as a description: its address and
credentials are copied, its pool, retries, decoding and protocol are not.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeAlias

import redis
from attrs import field, frozen
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.crc import key_slot
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from zlinkpy.errors import ConfigurationError
from zlinkpy.location.redis_rows import TAG

# What is taken over from a URL or a client; everything else is ours to decide.
_CARRIED: Final = frozenset(
    {
        "host",
        "port",
        "path",
        "db",
        "username",
        "password",
        "credential_provider",
        "client_name",
        "socket_keepalive",
        "socket_keepalive_options",
    }
)
Options: TypeAlias = Mapping[str, Any]
Pool: TypeAlias = ConnectionPool


class NodePools(Protocol):
    """Connections to the node that holds the rows. Methods block and are called on worker threads."""

    def pool(self) -> Pool:
        """The pool to use now. May look up the topology; raises the client library's exceptions."""
        ...

    def refused(self) -> bool:
        """A connection could not be made. True when something was done about it and one more try is worth it."""
        ...

    def moved(self, error: redis.exceptions.MovedError) -> None:
        """The node said that the rows are elsewhere for good."""
        ...

    def asked(self, error: redis.exceptions.AskError) -> Pool:
        """The node said that this one call belongs elsewhere: the pool to repeat it on."""
        ...

    def close(self) -> None:
        """Close every connection, also those in use. Idempotent."""
        ...


class RedisTarget(Protocol):
    """A place to connect to."""

    @property
    def label(self) -> str:
        """Name for people: scheme and address, never credentials."""
        ...

    def open(self, size: int, timeout: float) -> NodePools:
        """Pools of at most `size` connections whose socket operations take at most `timeout` seconds. No I/O yet."""
        ...


def carried_options(options: Options) -> dict[str, Any]:
    """The address, credential and TLS settings among connection arguments."""
    return {name: value for name, value in options.items() if name in _CARRIED or name.startswith("ssl_")}


def own_options(timeout: float) -> dict[str, Any]:
    """What every connection of ours has, whatever the client it was copied from said."""
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "health_check_interval": 0,
        "decode_responses": False,
        "protocol": 2,
    }


def exchange(connection: Connection, *command: bytes | int | str) -> Any:
    """Send one command and read its answer. After anything but an answer the connection is closed: a late answer must
    not be taken for the next command's (a sentinel-managed connection would stay open by itself).
    """
    untyped: Any = connection
    untyped.send_command(*command)
    return untyped.read_response(disconnect_on_error=True)


class SinglePool:
    """What places with one pool have in common: nothing to look up, and a redirection means the wrong kind of URL."""

    _pool: Pool

    def pool(self) -> Pool:
        return self._pool

    def refused(self) -> bool:
        return False

    def moved(self, error: redis.exceptions.MovedError) -> None:
        raise _wrong_kind()

    def asked(self, error: redis.exceptions.AskError) -> Pool:
        raise _wrong_kind()

    def close(self) -> None:
        self._pool.disconnect(inuse_connections=True)


@frozen
class ServerTarget:
    """One server, over TCP, TLS or a Unix socket."""

    label: str
    connection_class: type[Connection | UnixDomainSocketConnection]
    options: Options = field(repr=False)

    def open(self, size: int, timeout: float) -> NodePools:
        return ServerPools(self, size, timeout)


class ServerPools(SinglePool):
    """One server."""

    def __init__(self, target: ServerTarget, size: int, timeout: float) -> None:
        self._pool = ConnectionPool(
            connection_class=target.connection_class,
            max_connections=size,
            **carried_options(target.options),
            **own_options(timeout),
        )


@frozen
class SentinelTarget:
    """The primary of a named group, found through sentinels."""

    label: str
    service: str
    sentinels: tuple[tuple[str, int], ...]
    options: Options = field(repr=False)
    sentinel_options: Options = field(repr=False)
    tls: bool = False

    def open(self, size: int, timeout: float) -> NodePools:
        return SentinelPools(self, size, timeout)


class SentinelPools(SinglePool):
    """A pool that asks the sentinels before each connect. `is_master` keeps reads off the replicas (LO-064)."""

    def __init__(self, target: SentinelTarget, size: int, timeout: float) -> None:
        own = own_options(timeout)
        sentinel_class: Any = Sentinel  # neither class is typed
        pool_class: Any = SentinelConnectionPool
        self._sentinel = sentinel_class(
            list(target.sentinels), sentinel_kwargs={**carried_options(target.sentinel_options), **own}
        )
        self._pool: Pool = pool_class(
            target.service,
            self._sentinel,
            is_master=True,
            ssl=target.tls,
            max_connections=size,
            **carried_options(target.options),
            **own,
        )

    def close(self) -> None:
        super().close()
        for sentinel in self._sentinel.sentinels:
            sentinel.close()


@frozen
class ClusterTarget:
    """A cluster, known by some of its nodes."""

    label: str
    nodes: tuple[tuple[str, int], ...]
    options: Options = field(repr=False)
    tls: bool = False

    def open(self, size: int, timeout: float) -> NodePools:
        return ClusterPools(self, size, timeout)


class ClusterPools:
    """The primary that owns our one slot (LO-051): asked for before the first call and after a failed connect.

    The library's cluster client is not used: it has retries of its own, insists that every slot of the cluster is
    covered, and hides refused credentials behind another error. One slot needs one line of the slot table.
    """

    def __init__(self, target: ClusterTarget, size: int, timeout: float) -> None:
        self._connection_class = SSLConnection if target.tls else Connection
        self._seeds = target.nodes
        self._settings = {**carried_options(target.options), **own_options(timeout), "max_connections": size}
        for name in _ADDRESS:
            self._settings.pop(name, None)
        self._lock = threading.Lock()
        self._nodes: dict[tuple[str, int], Pool] = {}
        self._owner: tuple[str, int] | None = None

    def pool(self) -> Pool:
        with self._lock:
            if self._owner is None:
                self._owner = self._look_up()
            return self._node(self._owner)

    def refused(self) -> bool:
        """The primary may have changed: ask again before the next connect."""
        with self._lock:
            self._owner = None
        return True

    def moved(self, error: redis.exceptions.MovedError) -> None:
        with self._lock:
            self._owner = self._address(error)

    def asked(self, error: redis.exceptions.AskError) -> Pool:
        with self._lock:
            return self._node(self._address(error))

    def close(self) -> None:
        with self._lock:
            nodes, self._nodes = self._nodes, {}
        for pool in nodes.values():
            pool.disconnect(inuse_connections=True)

    def _address(self, error: redis.exceptions.AskError) -> tuple[str, int]:
        # An empty host means "the node you asked".
        host = error.host or (self._owner or self._seeds[0])[0]
        return host, error.port

    def _node(self, address: tuple[str, int]) -> Pool:
        if address not in self._nodes:
            host, port = address
            self._nodes[address] = ConnectionPool(
                connection_class=self._connection_class, host=host, port=port, **self._settings
            )
        return self._nodes[address]

    def _look_up(self) -> tuple[str, int]:
        failure: Exception = redis.ConnectionError("no node of the cluster was reached")
        for address in dict.fromkeys((*self._nodes, *self._seeds)):
            pool = self._node(address)
            try:
                connection = pool.get_connection()
                try:
                    table = exchange(connection, "CLUSTER", "SLOTS")
                finally:
                    pool.release(connection)
            except redis.exceptions.AuthenticationError:
                raise
            except (redis.RedisError, OSError) as error:
                failure = error
                continue
            for first, last, primary, *_ in table:
                if first <= _SLOT <= last:
                    return (_host(primary[0]) or address[0], int(primary[1]))
            failure = redis.exceptions.ClusterDownError("Hash slot not served")
        raise failure


_ADDRESS: Final = frozenset({"host", "port", "path", "db"})
_SLOT: Final = key_slot(TAG[1:-1].encode())


def _host(name: bytes | str | None) -> str:
    return name.decode() if isinstance(name, bytes) else (name or "")


def _wrong_kind() -> ConfigurationError:
    return ConfigurationError("the location store is a cluster: its URL must begin with redis+cluster://")


def target_of_client(client: redis.Redis | RedisCluster) -> ServerTarget | SentinelTarget | ClusterTarget:
    """The place that an existing client talks to (LO-054). The client itself is neither used nor closed."""
    if isinstance(client, RedisCluster):
        nodes = tuple((str(node.host), int(node.port)) for node in client.nodes_manager.startup_nodes.values())
        options = client.nodes_manager.connection_kwargs
        tls = bool(options.get("ssl"))
        return ClusterTarget(cluster_label(nodes, tls=tls), nodes, options, tls=tls)
    pool = client.connection_pool
    options = pool.connection_kwargs
    if isinstance(pool, SentinelConnectionPool):
        manager = pool.sentinel_manager
        places = tuple(
            (str(at["host"]), int(at["port"]))
            for at in (sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels)
        )
        tls = issubclass(pool.connection_class, SSLConnection)
        label = sentinel_label(places, pool.service_name, tls=tls)
        return SentinelTarget(label, pool.service_name, places, options, manager.sentinel_kwargs, tls=tls)
    kind = pool.connection_class
    plain = (
        UnixDomainSocketConnection
        if issubclass(kind, UnixDomainSocketConnection)
        else (SSLConnection if issubclass(kind, SSLConnection) else Connection)
    )
    return ServerTarget(server_label(plain, options), plain, options)


def server_label(kind: type, options: Options) -> str:
    """``redis://host:port``, ``rediss://…`` or ``unix://path``."""
    if issubclass(kind, UnixDomainSocketConnection):
        return f"unix://{options.get('path', '')}"
    scheme = "rediss" if issubclass(kind, SSLConnection) else "redis"
    return f"{scheme}://{options.get('host', 'localhost')}:{options.get('port', 6379)}"


def sentinel_label(places: tuple[tuple[str, int], ...], service: str, *, tls: bool) -> str:
    """``redis+sentinel://host:port,host:port/service``."""
    return f"{'rediss' if tls else 'redis'}+sentinel://{_places(places)}/{service}"


def cluster_label(places: tuple[tuple[str, int], ...], *, tls: bool) -> str:
    """``redis+cluster://host:port,host:port``."""
    return f"{'rediss' if tls else 'redis'}+cluster://{_places(places)}"


def _places(places: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in places)
