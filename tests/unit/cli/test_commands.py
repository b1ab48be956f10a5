"""What every command does with bad input and with nothing to show; no process is started here."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import click
import msgpack
import pytest

from tests.unit.cli.conftest import Zlink
from zlinkpy.cli.call import _call_of
from zlinkpy.cli.options import split_by_mesh
from zlinkpy.errors import ConfigurationError


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rnu"], "No such command 'rnu'"),
        (["run"], "Missing argument 'MODULE:HOST'"),
        (["nodes"], "no Location Store: give --store URL or set ZLINK_LOCATION_STORE"),
        (["request", "echo", "Echo"], "--store URL, ZLINK_LOCATION_STORE, or --peer"),
        (["request", "echo", "Echo", "--peer", "tcp://127.0.0.1:1"], "--peer needs --mesh NAME"),
        (["request", "echo", "--store", "memory://"], "expected CHANNEL PACKET [JSON], not 1"),
        (["request", "echo", "Echo", "{}", "x", "--store", "memory://"], "expected CHANNEL PACKET [JSON], not 4"),
        (
            ["request", "echo", "Echo", "{}", "--node", "r", "--store", "memory://"],
            "with --node expected PACKET",
        ),
        (["request", "echo", "Echo", "{", "--store", "memory://"], "not JSON"),
        (["request", "echo", "Echo", "[1]", "--store", "memory://"], "an object of fields, not [1]"),
        (["request", "echo", "Echo", f'{{"n": {2**70}}}', "--store", "memory://"], "cannot be sent"),
        (["request", "echo", "Echo", "--timeout", "0", "--store", "memory://"], "0"),
        (["send", "echo", "Echo", "--metadata", "nope", "--store", "memory://"], "'nope' is not KEY=VALUE"),
        (["send", "c", "E", "--metadata", "a=1", "--metadata", "a=2", "--store", "memory://"], "a is given twice"),
        (
            ["request", "--client-server", "c", "E", "--mesh", "m", "--store", "memory://"],
            "belongs to no mesh",
        ),
        (["request", "--client-server", "orders", "Place"], "--store URL, ZLINK_LOCATION_STORE, or --peer"),
        (["publish", "prices", "zinc"], "Missing argument 'PACKET'"),
        (["publish", "prices", "zinc", "Price", "["], "not JSON"),
        (["subscribe", "prices"], "--store URL, ZLINK_LOCATION_STORE, or --publisher"),
        (["subscribe", "prices", "--store", "memory://", "--publisher", "tcp://127.0.0.1:1"], "exclude each other"),
        (["run", "x:host", "--set", "job_queue.max"], "is not KEY=VALUE"),
        (["demo", "--seconds", "1"], "1"),
    ],
)
def test_wrong_usage_is_code_2_and_says_what_is_wrong(zlink: Zlink, arguments: list[str], said: str) -> None:
    result = zlink(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_store_and_peer_exclude_each_other_only_on_the_command_line(
    zlink: Zlink, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["request", "echo", "Echo", "--mesh", "m", "--peer", "tcp://127.0.0.1:1", "--timeout", "0.05"]
    assert zlink(*call, "--store", "memory://").exit_code == 2
    monkeypatch.setenv("ZLINK_LOCATION_STORE", "memory://")
    assert zlink(*call).exit_code == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "settings name"),
        (["--listen", "tcp://nope"], "mesh.play.listen"),
        (["--listen", "tcp://0.0.0.0:0"], "advertise_host"),
        (["--listen", "other=tcp://127.0.0.1:0"], "no mesh 'other' (it has: play)"),
        (["--peer", "tcp://127.0.0.1:0"], "mesh.play.peers"),
        (["--store", "mysql://u:secret@h"], "a location store URL cannot begin with mysql://"),
        (["--config", "none.toml"], "settings file none.toml: No such file"),
        (
            ["--config", "bad.toml"],
            "bad.toml:2: unknown key 'job_queue.maks'; the nearest",
        ),
        (["--config", "torn.toml"], "settings file torn.toml: not TOML"),
        (["--set", "shutdown_deadline=soon"], "shutdown_deadline is 'soon'"),
        (["--log-level", "loud"], "one of debug, info"),
    ],
)
def test_run_refuses_what_cannot_work_with_code_3(
    zlink: Zlink, folder: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "server.py").write_text("import zlinkpy as zl\nhost = zl.Host()\nhost.mesh('play')\n")
    (folder / "bad.toml").write_text("[job_queue]\nmaks = 3\n")
    (folder / "torn.toml").write_text("a = \n")
    if not arguments:
        monkeypatch.setenv("ZLINK_MESH_WORK_LISTEN", "tcp://127.0.0.1:0")
    result = zlink("run", "server:host", *arguments)
    assert result.exit_code == 3
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr
    assert result.stdout == ""


def test_values_belong_to_the_only_mesh_or_to_the_one_they_name() -> None:
    assert split_by_mesh(("tcp://a:1", "play=tcp://b:2"), ("play",), "--peer") == {"play": ["tcp://a:1", "tcp://b:2"]}
    assert split_by_mesh(("b=x",), ("a", "b"), "--peer") == {"b": ["x"]}
    with pytest.raises(ConfigurationError, match="say for which mesh, as in --peer MESH=x"):
        split_by_mesh(("x",), ("a", "b"), "--peer")


def test_an_empty_store_has_no_nodes(zlink: Zlink) -> None:
    result = zlink("nodes", "--store", "memory://")
    assert (result.exit_code, result.stderr) == (0, "no nodes\n")
    result = zlink("nodes", "--store", "memory://", "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "[]\n", "")


def test_a_request_over_an_empty_store_says_that_no_node_runs(zlink: Zlink) -> None:
    result = zlink("request", "echo", "Echo", "--store", "memory://")
    assert result.exit_code == 1
    assert "knows no node" in result.stderr


def test_json_from_standard_input_becomes_msgpack(zlink: Zlink) -> None:
    with click.Context(click.Command("x")):
        call, _ = _call_of(
            words=("echo", "Echo", '{"text": "é", "n": [1, 2.5, null, true]}'),
            mesh="m",
            store="memory://",
            peers=(),
            node=None,
            timeout=3,
            pairs=("a=b=c",),
            listen="tcp://127.0.0.1:0",
            advertise_host=None,
            client_server=False,
            as_json=False,
        )
    assert msgpack.unpackb(call.message.payload) == {"text": "é", "n": [1, 2.5, None, True]}
    assert call.metadata == {"a": "b=c"}
    result = zlink("request", "echo", "Echo", "-", "--store", "memory://", stdin="{nope")
    assert result.exit_code == 2
    assert "not JSON" in result.stderr


def test_doctor_reports_versions_and_features(zlink: Zlink) -> None:
    result = zlink("doctor", "--json")
    assert result.exit_code == 0
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert {"python", "zlinkpy", "libzmq", "trio", "redis", "msgpack extension", "embedded store"} <= checks.keys()
    assert "curve" in checks["libzmq"]["found"]
    text = zlink("doctor").stdout
    assert all(name in text for name in checks)


def test_doctor_tells_a_taken_port_from_a_free_one(zlink: Zlink) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        result = zlink("doctor", "--listen", endpoint)
    assert result.exit_code == 3
    assert f"problem     listen {endpoint}" in result.stdout
    assert "the port is taken" in result.stdout
    assert zlink("doctor", "--listen", endpoint).exit_code == 0
    assert zlink("doctor", "--listen", "nonsense").exit_code == 3


def test_doctor_says_that_a_store_is_not_there(zlink: Zlink) -> None:
    result = zlink("doctor", "--store", "redis://user:secret@127.0.0.1:1")
    assert result.exit_code == 4
    assert "unreachable store" in result.stdout
    assert "secret" not in result.stdout
    assert zlink("doctor", "--store", "memory://").exit_code == 0
