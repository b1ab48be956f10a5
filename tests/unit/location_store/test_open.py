"""URLs and clients as descriptions of a place: no connection is made here."""

from __future__ import annotations

import logging

import pytest
import redis
from redis.backoff import NoBackoff
from redis.connection import SSLConnection

from zlinkpy.errors import ConfigurationError
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.open import open_store
from zlinkpy.location.redis_rows import Layout, walk_bounds
from zlinkpy.location.redis_store import RedisStore
from zlinkpy.location.redis_target import (
    ClusterPools,
    ClusterTarget,
    SentinelPools,
    SentinelTarget,
    ServerPools,
    ServerTarget,
    target_of_client,
)


def target(url: str) -> ServerTarget | SentinelTarget | ClusterTarget:
    store = open_store(url)
    assert isinstance(store, RedisStore)
    found = store._target
    assert isinstance(found, ServerTarget | SentinelTarget | ClusterTarget)
    return found


def test_memory_is_a_new_store_each_time() -> None:
    first, second = open_store("memory://"), open_store("memory://")
    assert isinstance(first, MemoryStore)
    assert first is not second
    assert first.label == "memory://"


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("redis://", "redis://localhost:6379"),
        ("redis://cache:7000/3", "redis://cache:7000"),
        ("redis://user:hunter2@cache", "redis://cache:6379"),
        ("rediss://:hunter2@cache:7001?ssl_ca_certs=/ca.pem", "rediss://cache:7001"),
        ("unix:///run/valkey.sock?db=2", "unix:///run/valkey.sock"),
        ("redis+sentinel://a,b:26380/zone", "redis+sentinel://a:26379,b:26380/zone"),
        ("rediss+sentinel://u:hunter2@a/zone/4?sentinel_password=hunter2", "rediss+sentinel://a:26379/zone"),
        ("redis+cluster://:hunter2@a:1,[::1]:2", "redis+cluster://a:1,[::1]:2"),
        ("rediss+cluster://a", "rediss+cluster://a:6379"),
        ("valkey+embedded:///var/lib/zlink/store", "valkey+embedded:///var/lib/zlink/store"),
    ],
)
def test_a_label_is_the_address_without_credentials(url: str, label: str) -> None:
    store = open_store(url)
    assert store.label == label
    assert isinstance(store, RedisStore)
    assert "hunter2" not in repr(store._target)


def test_a_server_url_carries_its_options() -> None:
    found = target("rediss://us%40er:pa%2Fss@cache:7001/5?ssl_ca_certs=/ca.pem&client_name=node")
    assert isinstance(found, ServerTarget)
    assert found.connection_class is SSLConnection
    assert dict(found.options) == {
        "host": "cache",
        "port": 7001,
        "db": 5,
        "username": "us@er",
        "password": "pa/ss",
        "ssl_ca_certs": "/ca.pem",
        "client_name": "node",
    }


def test_a_sentinel_url_tells_the_two_kinds_of_credentials_apart() -> None:
    found = target("redis+sentinel://user:data@a:1,b/zone/7?sentinel_username=s&sentinel_password=watch")
    assert isinstance(found, SentinelTarget)
    assert (found.service, found.sentinels, found.tls) == ("zone", (("a", 1), ("b", 26379)), False)
    assert dict(found.options) == {"username": "user", "password": "data", "db": 7}
    assert dict(found.sentinel_options) == {"username": "s", "password": "watch"}


def test_a_cluster_url_lists_seeds() -> None:
    found = target("rediss+cluster://user:data@a:1,b")
    assert isinstance(found, ClusterTarget)
    assert (found.nodes, found.tls) == ((("a", 1), ("b", 6379)), True)
    assert dict(found.options) == {"username": "user", "password": "data"}


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel", "rediss+cluster"])
@pytest.mark.contract("LO-054")
def test_no_pool_repeats_a_command(scheme: str) -> None:
    found = target(f"{scheme}://a:1/{'zone' if 'sentinel' in scheme else ''}")
    pools = found.open(4, 2.5)
    match pools:
        case ServerPools() | SentinelPools():
            pool = pools.pool()
        case ClusterPools():
            pool = pools._node(("a", 1))
        case _:
            raise AssertionError(pools)
    connection = pool.make_connection()
    assert connection.retry.get_retries() == 0
    assert isinstance(connection.retry._backoff, NoBackoff)
    assert connection.retry_on_error == []
    assert connection.protocol == 2
    assert not connection.encoder.decode_responses
    assert connection.socket_timeout == connection.socket_connect_timeout == 2.5
    assert connection.health_check_interval == 0
    assert pool.max_connections == 4
    pools.close()


def test_a_client_is_a_description_only() -> None:
    client = redis.Redis(
        host="cache", port=7, db=2, username="u", password="hunter2", decode_responses=True, retry_on_error=[OSError]
    )
    found = target_of_client(client)
    assert isinstance(found, ServerTarget)
    assert found.label == "redis://cache:7"
    assert {name: value for name, value in found.options.items() if name in ("host", "port", "db", "password")} == {
        "host": "cache", "port": 7, "db": 2, "password": "hunter2"
    }  # fmt: skip
    connection = found.open(1, 1.0).pool().make_connection()
    assert connection.retry.get_retries() == 0
    assert connection.retry_on_error == []
    assert not connection.encoder.decode_responses
    assert connection.password == "hunter2"
    tls = target_of_client(redis.Redis(host="cache", ssl=True, ssl_cert_reqs="none"))
    assert tls.label == "rediss://cache:6379"
    client.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("reddis://cache", "did you mean redis://"),
        ("redis+sentinal://cache/zone", "did you mean redis+sentinel://"),
        ("valkey-embedded:///x", "did you mean valkey+embedded://"),
        ("cache:6379", "cannot begin with"),
        ("", "no scheme"),
        ("redis+sentinel://a:1", "/service"),
        ("redis+sentinel://a:1/zone/x", "number"),
        ("redis+cluster://a:1/3", "one database"),
        ("unix://", "path of a socket"),
        ("valkey+embedded://", "directory"),
        ("valkey+embedded:///x?a=b", "no options"),
        ("redis://cache?pasword=hunter2", "did you mean 'password'"),
        ("redis+cluster://a?nonsense=hunter2", "'nonsense'"),
        ("redis://cache?socket_timeout=1", "'socket_timeout'"),
        ("redis://user:hunter2/x@cache", "percent-encoded"),
        ("redis://user:hunt/er2@cache/0", "percent-encoded"),
        ("redis+cluster://user:hunter2/x@cache", "percent-encoded"),
        ("redis+cluster://a:port", "percent-encoded"),
        ("redis+cluster://a,,b", "percent-encoded"),
        ("redis://[::1", "percent-encoded"),
    ],
)
def test_a_url_that_cannot_work_names_the_fix_and_no_secret(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "hunt" not in str(caught.value)


@pytest.mark.contract("LO-013")
@pytest.mark.parametrize("prefix", ["", "a{b", "a}", "a\0b", "{}"])
def test_a_prefix_is_not_empty_and_has_no_braces_and_no_nul(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        RedisStore(redis.Redis(), prefix=prefix)
    with pytest.raises(ConfigurationError, match="prefix"):
        open_store("redis://cache", prefix=prefix)
    with pytest.raises(ValueError, match="prefix"):
        Layout(prefix)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_an_operation_timeout_is_positive(timeout: float) -> None:
    with pytest.raises(ConfigurationError, match="operation_timeout"):
        open_store("redis://cache", operation_timeout=timeout)


@pytest.mark.parametrize(
    ("prefix", "last", "bounds"),
    [
        (b"", None, (b"-", b"+")),
        (b"a", None, (b"[a", b"(b")),
        (b"a\xff\xff", None, (b"[a\xff\xff", b"(b")),
        (b"\xff", None, (b"[\xff", b"+")),
        (b"a", b"ab", (b"(ab", b"(b")),
    ],
)
def test_a_prefix_becomes_a_range(prefix: bytes, last: bytes | None, bounds: tuple[bytes, bytes]) -> None:
    assert walk_bounds(prefix, last) == bounds


def test_failures_are_logged_for_operators_at_debug_level_only(caplog: pytest.LogCaptureFixture) -> None:
    from zlinkpy.location.redis_errors import classify

    with caplog.at_level(logging.INFO, "zlinkpy.location"):
        error = classify(redis.ConnectionError("x"), stage="connect", operation="read", label="redis://a", proven=False)
    assert str(error) == "read of the location store redis://a: no connection"
    assert caplog.records == []
