"""Clusters and sentinel groups of real servers (LO-051, LO-064)."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import trio
from redis.cluster import LoadBalancingStrategy

from tests.contract.location_store.conftest import numbered
from tests.contract.location_store.test_interface import found, put, scan_all
from tests.location_server import TestServer
from zlinkpy.location.embedded_server import server_binary
from zlinkpy.location.open import open_store
from zlinkpy.location.redis_rows import TAG
from zlinkpy.location.redis_store import RedisStore
from zlinkpy.location.redis_target import ClusterTarget, SentinelTarget, target_of_client
from zlinkpy.location.store import Applied, Conflict, Delete, Expired, Found, IfMissing, IfVersion, Missing, Page, Put

SLOTS = 16384
EVERYWHERE = LoadBalancingStrategy.ROUND_ROBIN
QUICK = ("--repl-diskless-sync-delay", "0")


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; all are held until the last is known, so they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def eventually(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1500):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("did not come about")


def tcp_server(directory: Path, port: int, *arguments: str) -> TestServer:
    server = TestServer(
        directory / str(port), arguments=("--port", str(port), "--bind", "127.0.0.1", *QUICK, *arguments)
    )
    server.start()
    return server


class Cluster:
    """Three primaries, each with a third of the slots; the one that has ours has a replica (the fourth node)."""

    def __init__(self, directory: Path) -> None:
        ports = free_ports(8)
        self.nodes = [
            tcp_server(
                directory,
                port,
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                str(bus),
                "--cluster-node-timeout",
                "2000",
            )
            for port, bus in zip(ports[:4], ports[4:])
        ]
        self.ports = ports[:4]
        bounds = [0, SLOTS // 3, 2 * SLOTS // 3, SLOTS]
        for at, node in enumerate(self.nodes[:3]):
            node.command("CLUSTER", "ADDSLOTSRANGE", bounds[at], bounds[at + 1] - 1)
            node.command("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for port, bus in zip(ports[1:4], ports[5:8]):
            self.nodes[0].command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        eventually(lambda: all(b"cluster_state:ok" in self.info(node) for node in self.nodes))
        self.slot = int(self.nodes[0].command("CLUSTER", "KEYSLOT", TAG))
        primary = self.nodes[self.owner].command("CLUSTER", "MYID")
        eventually(lambda: self._replicates(primary))
        eventually(lambda: self.replica.command("INFO", "replication")["master_link_status"] == "up")

    @property
    def replica(self) -> TestServer:
        return self.nodes[3]

    def _replicates(self, primary: object) -> bool:
        try:
            return self.replica.command("CLUSTER", "REPLICATE", primary) in (True, b"OK")
        except redis.ResponseError:  # it has not heard of the primary yet
            return False

    def info(self, node: TestServer) -> bytes:
        raw = node.command("CLUSTER", "INFO")
        return str(raw).replace("': '", ":").encode()

    @property
    def owner(self) -> int:
        return next(at for at in range(3) if SLOTS * at // 3 <= self.slot < SLOTS * (at + 1) // 3)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="zl-") as directory:
        cluster = Cluster(Path(directory))
        yield cluster
        cluster.stop()


@pytest.mark.contract("LO-051")
async def test_every_operation_works_in_a_cluster_and_stays_in_one_slot(cluster: Cluster) -> None:
    stranger = cluster.ports[(cluster.owner + 1) % 3]
    store = open_store(f"redis+cluster://127.0.0.1:{stranger}")
    version = await put(store, b"a", b"1", 60_000)
    assert isinstance(await store.write([IfMissing(b"a")], [Put(b"b", b"")]), Conflict)
    assert isinstance(
        await store.write([IfVersion(b"a", version)], [Put(key, b"v", 60_000) for key in numbered(300)]), Applied
    )
    assert isinstance(await store.write([], [Delete(b"a")]), Applied)
    assert isinstance(await store.read(b"a"), Missing)
    page = await store.scan(b"k", limit=100)
    assert isinstance(page, Page)
    assert isinstance(await store.scan(b"k", cursor=page.cursor, limit=100), Page)
    assert await store.scan(b"other", cursor=page.cursor) == Expired()
    assert len(await scan_all(store, b"k", 100)) == 300
    handle = store.dedicated()
    row = await trio.to_thread.run_sync(handle.read_blocking, b"k000000")
    assert isinstance(row, Found)
    handle.close()
    keys = [key for node in cluster.nodes[:3] for key in node.command("KEYS", "*")]
    assert len(keys) > 300
    assert {int(cluster.nodes[0].command("CLUSTER", "KEYSLOT", key)) for key in keys} == {cluster.slot}
    await store.aclose()


@pytest.mark.contract("LO-051")
async def test_a_moved_slot_is_followed(cluster: Cluster) -> None:
    store = open_store(f"redis+cluster://127.0.0.1:{cluster.ports[0]},127.0.0.1:{cluster.ports[1]}")
    await put(store, b"a", b"1")
    old, new = cluster.owner, (cluster.owner + 1) % 3
    cluster.nodes[old].command("FLUSHALL")
    # The receiving node first: it must not learn from the other one that nobody has the slot.
    for target, order in ((new, (new, old, 3 - new - old)), (old, (old, new, 3 - new - old))):
        name = cluster.nodes[target].command("CLUSTER", "MYID")
        for at in order:
            cluster.nodes[at].command("CLUSTER", "SETSLOT", cluster.slot, "NODE", name)
        assert isinstance(await store.write([IfMissing(b"a")], [Put(b"a", b"2")]), Applied)
        assert (await found(store, b"a")).value == b"2"
        assert cluster.nodes[target].command("DBSIZE") > 0
        cluster.nodes[target].command("FLUSHALL")
    await store.aclose()


@pytest.mark.contract("LO-051")
async def test_a_slot_on_its_way_is_asked_for_where_it_goes(cluster: Cluster) -> None:
    """With all keys moved already, the old node answers ASK for each; the call goes on at the new one."""
    store = open_store(f"redis+cluster://127.0.0.1:{cluster.ports[0]}")
    await store.read(b"warm")
    old, new = cluster.owner, (cluster.owner + 1) % 3
    cluster.nodes[old].command("FLUSHALL")
    names = [cluster.nodes[at].command("CLUSTER", "MYID") for at in range(3)]
    cluster.nodes[new].command("CLUSTER", "SETSLOT", cluster.slot, "IMPORTING", names[old])
    cluster.nodes[old].command("CLUSTER", "SETSLOT", cluster.slot, "MIGRATING", names[new])
    try:
        before = cluster.nodes[new].scripts_run()
        assert isinstance(await store.read(b"a"), Missing)
        assert cluster.nodes[new].scripts_run() > before
    finally:
        for at in (new, old):
            cluster.nodes[at].command("CLUSTER", "SETSLOT", cluster.slot, "STABLE")
    await store.aclose()


@pytest.mark.contract("LO-051")
async def test_a_cluster_client_describes_its_cluster(cluster: Cluster) -> None:
    client = redis.RedisCluster(host="127.0.0.1", port=cluster.ports[0])
    target = target_of_client(client)
    assert isinstance(target, ClusterTarget)
    store = RedisStore(client, prefix="c")
    await put(store, b"a")
    assert isinstance(await store.read(b"a"), Found)
    await store.aclose()
    client.close()


class SentinelGroup:
    """A primary, a replica, and one sentinel that watches them."""

    def __init__(self, directory: Path) -> None:
        primary, replica, watch = free_ports(3)
        self.primary = tcp_server(directory, primary)
        self.replica = tcp_server(directory, replica, "--replicaof", f"127.0.0.1 {primary}")
        config = directory / "sentinel.conf"
        config.write_text(f"port {watch}\nbind 127.0.0.1\nsentinel monitor zone 127.0.0.1 {primary} 1\n")
        self.port = watch
        self.sentinel = subprocess.Popen(
            [server_binary(), str(config), "--sentinel"],
            cwd=directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(lambda: b"master_link_status:up" in self._replication())
        eventually(self._knows)

    def _replication(self) -> bytes:
        facts = self.replica.command("INFO", "replication")
        assert isinstance(facts, dict)
        return b"master_link_status:" + str(facts.get("master_link_status")).encode()

    def _knows(self) -> bool:
        client = redis.Redis(port=self.port, socket_timeout=1)
        try:
            return bool(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "zone"))
        except redis.ConnectionError:
            return False
        finally:
            client.close()

    def stop(self) -> None:
        self.sentinel.kill()
        self.sentinel.wait()
        self.replica.stop()
        self.primary.stop()


@pytest.fixture(scope="module")
def group() -> Iterator[SentinelGroup]:
    with tempfile.TemporaryDirectory(prefix="zl-") as directory:
        group = SentinelGroup(Path(directory))
        yield group
        group.stop()


@pytest.mark.contract("LO-064")
@pytest.mark.parametrize("made_from", ["url", "client"])
async def test_behind_sentinels_only_the_primary_is_asked(group: SentinelGroup, made_from: str) -> None:
    before = group.replica.scripts_run()
    if made_from == "url":
        store = open_store(f"redis+sentinel://127.0.0.1:{group.port}/zone")
    else:
        sentinel = redis.Sentinel([("127.0.0.1", group.port)])
        client = sentinel.master_for("zone")
        target = target_of_client(client)
        assert isinstance(target, SentinelTarget)
        assert target.label == f"redis+sentinel://127.0.0.1:{group.port}/zone"
        store = RedisStore(client)
        client.close()
        for one in sentinel.sentinels:
            one.close()
    await store.write([], [Put(key, b"v") for key in numbered(20)])
    primary = group.primary.scripts_run()
    for key in numbered(20):
        assert isinstance(await store.read(key), Found)
    assert len(await scan_all(store)) == 20
    assert group.primary.scripts_run() - primary >= 22
    assert group.replica.scripts_run() == before
    await store.aclose()


@pytest.mark.contract("LO-064")
async def test_in_a_cluster_only_the_primary_is_asked(cluster: Cluster) -> None:
    """A cluster client that prefers replicas is taken as a description; the preference is not."""
    client = redis.RedisCluster(host="127.0.0.1", port=cluster.ports[0], load_balancing_strategy=EVERYWHERE)
    store = RedisStore(client, prefix="r")
    client.close()
    await put(store, b"a")
    before = [node.scripts_run() for node in cluster.nodes]
    for _ in range(5):
        assert isinstance(await store.read(b"a"), Found)
    grown = [node.scripts_run() - old for node, old in zip(cluster.nodes, before)]
    assert grown == [5 if at == cluster.owner else 0 for at in range(4)]
    assert cluster.replica.command("INFO", "replication")["role"] == "slave"
    await store.aclose()
