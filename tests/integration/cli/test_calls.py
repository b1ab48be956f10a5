"""`zlink request`, `send`, `nodes` and `doctor` against nodes and stores that run."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.zlink import Running, running, zlink_here
from tests.location_server import TestServer


def rid_of(node: Running) -> tuple[str, str]:
    entry = node.document()["nodes"][0]
    return entry["rid"], entry["endpoint"]


def test_a_pair_of_nodes_is_listed_and_called_through_the_store(place: Path, store: str) -> None:
    run = ["run", "server:host", "--store", store, "--json"]
    with running(*run, cwd=place) as one, running(*run, cwd=place) as two:
        rids = {rid_of(one), rid_of(two)}
        listed = json.loads(zlink_here("nodes", "--store", store, "--json").stdout)
        assert {(entry["rid"], entry["endpoint"]) for entry in listed} == rids
        for entry in listed:
            assert (entry["mesh"], entry["state"], entry["lease"]) == ("play", "serving", "live")
            assert entry["channels"] == {"talk": 100}
            assert 0 < entry["lease_seconds"] <= 15
        table = zlink_here("nodes", "--store", store, "--mesh", "play").stdout.splitlines()
        assert len(table) == 3
        assert all(any(rid in line and "talk=100" in line for line in table) for rid, _ in rids)
        assert zlink_here("nodes", "--store", store, "--mesh", "other", "--json").stdout == "[]\n"

        said = zlink_here("request", "talk", "Say", '{"text": "hé"}', "--store", store)
        assert (said.exit_code, said.stdout) == (0, '{"text": "hé"}\n')
        said = zlink_here(
            "request", "talk", "Say", "-", "--store", store, "--json", "--metadata", "tail=!",
            stdin='{"text": "a"}',
        )  # fmt: skip
        assert json.loads(said.stdout) == {"packet": "Said", "reply": {"text": "a!"}}
        for rid, _ in rids:
            said = zlink_here("request", "--node", rid, "Say", '{"text": "a"}', "--store", store)
            assert said.stdout == '{"text": "direct a"}\n'


def test_a_killed_node_is_listed_as_not_alive_once_its_lease_has_lapsed(place: Path, store: str) -> None:
    leases = [
        "--set", "location.owner_lease_ttl=1.5", "--set", "location.owner_lease_renew_interval=0.3",
        "--set", "location.owner_lease_renew_timeout=0.3", "--set", "location.owner_lease_fencing_margin=0.3",
    ]  # fmt: skip
    with running("store", f"{place}/store", cwd=place) as keeper:
        keeper.line("serving")
        with running("run", "server:host", "--store", store, *leases, cwd=place) as node:
            node.line("serving")
            node.signal(signal.SIGKILL)
            assert node.end() == -signal.SIGKILL
        with running("nodes", "--store", store, "--watch", "--json", cwd=place) as watch:
            while json.loads(watch.line())[0]["lease"] == "live":
                pass
            assert json.loads(watch.lines[-1])[0]["lease_seconds"] is None
            watch.signal(signal.SIGINT)
            assert watch.end() == 0


@pytest.fixture
def node(place: Path) -> Iterator[Running]:
    with running("run", "server:host", "--json", cwd=place) as running_node:
        yield running_node


def test_without_a_store_a_peer_is_dialled(place: Path, node: Running) -> None:
    rid, endpoint = rid_of(node)
    peer = ["--peer", endpoint, "--mesh", "play"]
    assert zlink_here("request", "talk", "Say", '{"text": "a"}', *peer).stdout == '{"text": "a"}\n'
    assert zlink_here("request", "--node", rid, "Say", '{"text": "a"}', *peer).stdout == '{"text": "direct a"}\n'
    sent = zlink_here("send", "talk", "Note", '{"text": "b"}', *peer)
    assert (sent.exit_code, sent.stdout) == (0, "sent to channel talk\n")
    assert node.line() == "noted b"
    sent = zlink_here("send", "talk", "Note", '{"text": "c"}', *peer, "--json")
    assert json.loads(sent.stdout) == {"sent": True, "target": "channel talk"}
    assert node.line() == "noted c"


def test_failures_say_why_and_have_their_code(place: Path, node: Running) -> None:
    _, endpoint = rid_of(node)

    def call(*arguments: str, mesh: str = "play") -> tuple[int, str]:
        result = zlink_here("request", *arguments, "--peer", endpoint, "--mesh", mesh, "--timeout", "0.7")
        assert result.stdout == ""
        return result.exit_code, result.stderr.strip().splitlines()[-1]

    code, line = call("talk", "Say", '{"txt": 1}')
    assert (code, line.endswith("[protocol_error]")) == (1, True)
    code, line = call("talk", "Nothing")
    assert (code, line.endswith("[not_found]")) == (1, True)
    code, line = call("talk", "Nap", '{"seconds": 30}')
    assert (code, line) == (4, "error: Nap: no reply within the time given [deadline_exceeded]")
    code, line = call("walk", "Say")
    assert (code, "no ready target for channel walk" in line, "serving talk" in line) == (4, True, True)
    code, line = call("--node", "nobody", "Say")
    assert (code, "no ready target for node nobody" in line) == (4, True)
    code, line = call("talk", "Say", mesh="other")
    assert (code, "topology_mismatch" in line) == (4, True)


def test_nobody_behind_the_peer_is_said_with_the_reason(place: Path) -> None:
    call = ["request", "talk", "Say", "--mesh", "play", "--timeout", "1", "--json"]
    result = zlink_here(*call, "--peer", "tcp://127.0.0.1:1")
    assert result.exit_code == 4
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    assert (error["kind"], error["cause"]) == ("unavailable", "RouteNotConnected")
    assert "tcp://127.0.0.1:1: application lane: connection refused" in error["message"]


def test_ctrl_c_ends_a_waiting_request_with_code_130(place: Path, node: Running) -> None:
    _, endpoint = rid_of(node)
    call = ["request", "talk", "Nap", '{"seconds": 30}', "--peer", endpoint, "--mesh", "play"]
    with running(*call, cwd=place) as caller:
        node.line("napping")
        caller.signal(signal.SIGINT)
        assert caller.end() == 130
        assert caller.stderr.splitlines()[-1] == "error: stopped by SIGINT [interrupted]"


def test_a_store_that_hangs_ends_the_listing_with_code_4(place: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"redis://u:secret@127.0.0.1:{listener.getsockname()[1]}"
        result = zlink_here("nodes", "--store", url)
    assert result.exit_code == 4
    assert "asking the store redis://127.0.0.1" in result.stderr
    assert "no answer within 3 s; check that it runs and that its URL is right" in result.stderr
    assert "secret" not in result.stderr


def test_doctor_measures_the_store_and_warns_of_eviction(place: Path, valkey: TestServer) -> None:
    result = zlink_here("doctor", "--store", valkey.url, "--json")
    assert result.exit_code == 0
    check = next(check for check in json.loads(result.stdout)["checks"] if check["name"] == "store")
    assert check["verdict"] == "ok"
    assert "answers in" in check["found"]
    assert "valkey 9" in check["found"]
    valkey.command("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
    try:
        result = zlink_here("doctor", "--store", valkey.url)
    finally:
        valkey.command("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
    assert result.exit_code == 3
    assert "may evict rows" in result.stdout
    assert "set maxmemory-policy noeviction (it is allkeys-lru)" in result.stdout


def test_peers_shows_how_one_node_s_connections_stand(place: Path, store: str) -> None:
    run = ["run", "server:host", "--store", store, "--json"]
    with running(*run, cwd=place) as one:
        rid, _ = rid_of(one)
        alone = zlink_here("peers", "--store", store, "--json")
        assert (alone.exit_code, json.loads(alone.stdout)["node"]) == (0, rid)
        with running(*run, cwd=place) as two:
            other, endpoint = rid_of(two)
            unclear = zlink_here("peers", "--store", store)
            assert unclear.exit_code == 1
            assert "mesh play has 2 nodes; name one: " in unclear.stderr
            answer = json.loads(zlink_here("peers", rid, "--store", store, "--json").stdout)
            assert (answer["node"], answer["state"], answer["omitted"]) == (rid, "serving", 0)
            (seen,) = answer["connections"]
            assert (seen["kind"], seen["name"], seen["peer"], seen["phase"]) == ("mesh", "play", other, "ready")
            assert (seen["endpoint"], seen["channels"], seen["last_failure"]) == (endpoint, {"talk": 100}, None)
            two.signal(signal.SIGKILL)
            two.end()
        table = zlink_here("peers", rid, "--store", store)
        assert table.exit_code == 0
        (row,) = table.stdout.splitlines()[1:]
        assert other in row
        assert "reconnecting" in row
        assert "transport_error" in row
        assert f"node {rid} is serving" in table.stderr


def test_a_client_server_channel_is_called_by_hand_and_through_the_store(place: Path, store: str) -> None:
    (place / "till.py").write_text(TILL)
    with running("run", "till:host", "--store", store, "--json", cwd=place) as till:
        (served,) = till.document()["client_servers"]
        for where in (["--store", store], ["--peer", served["endpoint"]]):
            placed = zlink_here("request", "--client-server", "orders", "Place", '{"item": "lamp"}', *where)
            assert (placed.exit_code, placed.stdout) == (0, '{"item": "lamp"}\n')
        sent = zlink_here("send", "--client-server", "orders", "Note", "{}", "--store", store)
        assert sent.stdout == "sent to channel orders\n"
        till.line("noted")
        gone = zlink_here(
            "request", "--client-server", "orders", "Place", "{}", "--peer", "tcp://127.0.0.1:1", "--timeout", "0.5"
        )
        assert gone.exit_code == 4
        assert "no ready server of ClientServer channel orders within 0.5 s: tcp://127.0.0.1:1: " in gone.stderr


TILL = """
import zlinkpy as zl


@zl.message
class Placed:
    item: str


@zl.message
class Place(zl.Request[Placed]):
    item: str


@zl.message
class Note:
    pass


host = zl.Host()
orders = host.serve_client_server("orders")


@orders.on_request
def place(request: Place) -> Placed:
    return Placed(request.item)


@orders.on_send
def note(message: Note) -> None:
    print("noted", flush=True)
"""


def test_peers_of_a_node_that_is_not_there_says_who_is(place: Path, node: Running) -> None:
    rid, endpoint = rid_of(node)
    peer = ["--peer", endpoint, "--mesh", "play"]
    assert json.loads(zlink_here("peers", *peer, "--json").stdout)["node"] == rid
    missing = zlink_here("peers", "nobody", *peer, "--timeout", "1")
    assert missing.exit_code == 4
    assert f"no ready target for node nobody of mesh play within 1 s: connected are {rid}" in missing.stderr


def test_events_travel_from_publish_to_subscribe_through_the_store(place: Path, store: str) -> None:
    with running("subscribe", "prices", "zinc", "--store", store, "--count", "2", "--json", cwd=place) as feed:
        publish = ["publish", "prices", "--store", store]
        first = zlink_here(*publish[:2], "zinc", "Price", '{"cents": 1}', *publish[2:], "--json")
        assert json.loads(first.stdout) == {
            "published": True, "channel": "prices", "topic": "zinc", "subscribers": 1,
        }  # fmt: skip
        zlink_here(*publish[:2], "iron", "Price", '{"cents": 9}', *publish[2:])
        last = zlink_here(*publish[:2], "zinc", "Price", "-", *publish[2:], "--metadata", "a=b", stdin='{"cents": 2}')
        assert last.stdout == "published to 1 subscriber of channel prices\n"
        assert feed.end() == 0
        one, two = (json.loads(line) for line in feed.lines)
    assert (one["topic"], one["packet"], one["event"], one["metadata"]) == ("zinc", "Price", {"cents": 1}, {})
    assert (two["event"], two["metadata"]) == ({"cents": 2}, {"a": "b"})
    assert one["publisher"].startswith("zlink-cli-")


def test_publish_without_subscribers_says_so_and_subscribe_ends_with_ctrl_c(place: Path) -> None:
    nobody = zlink_here("publish", "prices", "zinc", "Price", "--timeout", "0.5")
    assert nobody.exit_code == 4
    assert "0 of 1 subscriber(s) of channel prices connected within 0.5 s" in nobody.stderr
    assert zlink_here("publish", "prices", "zinc", "Price", "--subscribers", "0").exit_code == 0
    reserved = zlink_here("publish", "prices", "\x01ZLF1", "Price", "--subscribers", "0")
    assert reserved.exit_code == 2
    assert "reserved for the framework" in reserved.stderr
    with running("subscribe", "prices", "--publisher", "tcp://127.0.0.1:1", cwd=place) as feed:
        feed.wait_for_error("waiting for a publisher")
        feed.signal(signal.SIGINT)
        assert feed.end() == 0


def test_a_reader_that_has_gone_ends_the_command_without_a_traceback(place: Path) -> None:
    with running("nodes", "--store", "memory://", "--watch", "--json", cwd=place) as watch:
        watch.line()
        assert watch.process.stdout is not None
        os.dup2(os.open(os.devnull, os.O_RDONLY), watch.process.stdout.fileno())
        assert watch.process.wait(20) == 1
        assert watch.stderr == ""
