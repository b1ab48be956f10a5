"""`zlink run` as a process: it says when it serves, stops in order, and leaves nothing."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.zlink import none_left, running, zlink, zlink_here
from zlinkpy.cli import main

SERVING = re.compile(r"serving: mesh play, node node-[0-9a-f-]{36}, tcp://127\.0\.0\.1:\d+")


def endpoint_of(line: str) -> str:
    found = re.search(r"tcp://[\d.:]+", line)
    assert found
    return found[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_node_in_order_and_leaves_no_process(place: Path, store: str, number: int) -> None:
    with running("run", "server:host", "--store", store, cwd=place) as node:
        line = node.line("serving")
        assert SERVING.match(line)
        assert line.endswith(f", store {store}")
        node.signal(number)
        assert node.end() == 0
        assert node.lines[-1] == "stopped"
        assert node.stderr == ""
        assert node.session_is_empty()
    assert none_left(store.partition("://")[2])


def test_a_stopped_node_is_gone_from_the_store(place: Path, store: str) -> None:
    with running("store", f"{place}/store", cwd=place) as keeper:
        keeper.line("serving")
        with running("run", "server:host", "--store", store, cwd=place) as node:
            node.line("serving")
            assert '"lease": "live"' in zlink_here("nodes", "--store", store, "--json").stdout
            node.signal(signal.SIGTERM)
            assert node.end() == 0
        assert zlink_here("nodes", "--store", store, "--json").stdout == "[]\n"
        keeper.signal(signal.SIGINT)
        assert keeper.end() == 0
        assert keeper.lines[-1] == "stopped"


def test_json_says_where_it_serves_and_how_it_ended(place: Path) -> None:
    with running("run", "server:host", "--json", "--listen", "play=tcp://127.0.0.1:0", cwd=place) as node:
        serving = node.document()
        assert serving["event"] == "serving"
        assert serving["pid"] == node.process.pid
        assert serving["store"] is None
        assert [(entry["mesh"], entry["endpoint"][:16]) for entry in serving["nodes"]] == [("play", "tcp://127.0.0.1:")]
        node.signal(signal.SIGTERM)
        assert node.document() == {"event": "stopped", "outcome": "stopped", "reason": "none", "left": []}
        assert node.end() == 0


class Trigger(io.StringIO):
    """Standard output that answers "serving" with SIGTERM to this process."""

    def write(self, text: str) -> int:
        if "serving" in text:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().write(text)


def test_after_sigterm_no_thread_descriptor_or_handler_is_left(
    place: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run_once() -> tuple[set[threading.Thread], list[str], object]:
        sys.modules.pop("server", None)
        output = Trigger()
        monkeypatch.setattr(sys, "stdout", output)
        main(["run", "server:host", "--store", store], standalone_mode=False)
        monkeypatch.undo()
        monkeypatch.chdir(place)
        monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
        assert output.getvalue().endswith("stopped\n")
        descriptors = sorted(os.readlink(f"/proc/self/fd/{number}") for number in open_descriptors())
        return set(threading.enumerate()), descriptors, signal.getsignal(signal.SIGTERM)

    first = run_once()  # what the process keeps for good (thread caches, the random source) is there now
    second = run_once()
    sys.modules.pop("server", None)
    assert {thread.name for thread in second[0]} == {thread.name for thread in first[0]}
    assert not [thread.name for thread in second[0] if thread.name.startswith("zlink")]
    assert second[1:] == first[1:]


def open_descriptors() -> list[int]:
    """Numbers of open descriptors, without the one the listing itself needed."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return [number for number in numbers if os.path.lexists(f"/proc/self/fd/{number}")]


def test_accepted_work_is_finished_and_waiting_for_it_is_said(place: Path) -> None:
    with running("run", "server:host", cwd=place) as node:
        endpoint = endpoint_of(node.line("serving"))
        nap = ["request", "talk", "Nap", '{"seconds": 1.7}', "--peer", endpoint, "--mesh", "play"]
        with running(*nap, cwd=place) as caller:
            node.line("napping")
            node.signal(signal.SIGTERM)
            assert caller.line() == "null"
            assert caller.end() == 0
        assert node.end() == 0
        assert "shutting down, waiting for server:nap (1 s)" in node.stderr


def test_work_that_outlasts_the_deadline_is_cut_off_and_named(place: Path) -> None:
    with running("run", "server:host", "--set", "shutdown_deadline=0.3", "--json", cwd=place) as node:
        endpoint = node.document()["nodes"][0]["endpoint"]
        nap = ["request", "talk", "Nap", '{"seconds": 60}', "--peer", endpoint, "--mesh", "play"]
        with running(*nap, cwd=place) as caller:
            node.line("napping")
            node.signal(signal.SIGTERM)
            stopped = node.document()
            assert (stopped["outcome"], stopped["reason"]) == ("force_stopped", "deadline_exceeded")
            assert stopped["left"] == ["server:nap"]
            assert node.end() == 5
            assert "cut off: server:nap" in node.stderr
            assert caller.end() in (1, 4)


@pytest.mark.parametrize("handler", ["Nap", "Block"])
def test_a_second_ctrl_c_ends_it_at_once(place: Path, handler: str) -> None:
    """Also while a handler blocks the event loop, which is when somebody presses twice."""
    with running("run", "server:host", cwd=place) as node:
        endpoint = endpoint_of(node.line("serving"))
        call = ["request", "talk", handler, '{"seconds": 60}', "--peer", endpoint, "--mesh", "play"]
        with running(*call, cwd=place):
            node.line({"Nap": "napping", "Block": "blocking"}[handler])
            if handler == "Nap":
                node.signal(signal.SIGINT)
                node.wait_for_error("shutting down, waiting for server:nap")
            assert node.press_ctrl_c_until_it_ends() == 130
        assert node.stderr.endswith("stopped at once\n")
        assert node.session_is_empty()


def test_it_stops_when_its_starter_is_gone(place: Path) -> None:
    with running("run", "server:host", "--stop-at-eof", cwd=place) as node:
        node.line("serving")
        assert node.process.stdin is not None
        node.process.stdin.close()
        assert node.end() == 0
        assert node.lines[-1] == "stopped"


def test_a_taken_port_is_named_with_the_fix(place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        result = zlink("run", "server:host", "--listen", endpoint, cwd=place)
    assert result.returncode == 3
    assert result.stderr.count("\n") == 1
    assert endpoint in result.stderr
    assert "the port is taken: stop the other process" in result.stderr


def test_an_unknown_module_and_a_bad_file_are_one_line_each(place: Path) -> None:
    result = zlink("run", "sevrer:host", cwd=place)
    assert (result.returncode, result.stderr.count("\n")) == (3, 1)
    assert "there is server" in result.stderr
    (place / "zlink.toml").write_text("location_store = 5\n")
    result = zlink("run", "server:host", "--config", "zlink.toml", cwd=place)
    assert (result.returncode, result.stderr.count("\n")) == (3, 1)
    assert "zlink.toml:1" in result.stderr


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that accepts and never says anything."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"redis://user:secret@127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["unreachable", "hanging"])
def test_a_store_that_does_not_answer_is_said_with_code_4(place: Path, silent: str, kind: str) -> None:
    url = "redis://user:secret@127.0.0.1:1" if kind == "unreachable" else silent
    result = zlink("run", "server:host", "--store", url, cwd=place)
    assert result.returncode == 4
    last = result.stderr.strip().splitlines()[-1]
    assert "does not answer; check that it runs and that its URL is right [unavailable]" in last
    assert url.rpartition("@")[2] in last
    assert "secret" not in result.stderr
    assert "serving" not in result.stderr
    assert result.stdout == ""


def test_starting_without_the_store_is_possible_when_asked_for(place: Path) -> None:
    arguments = ["run", "server:host", "--store", "redis://127.0.0.1:1", "--start-without-store"]
    with running(*arguments, cwd=place) as node:
        node.line("serving")
        node.signal(signal.SIGTERM)
        assert node.end() == 0
        assert "does not answer; serving without it" in node.stderr


def test_a_signal_during_the_start_ends_it_in_order(place: Path, silent: str) -> None:
    with running("run", "server:host", "--store", silent, cwd=place) as node:
        node.wait_for_error("starting, store redis://127.0.0.1")
        node.signal(signal.SIGTERM)
        assert node.end() == 0
        assert node.lines == ["stopped before serving"]


def test_a_served_channel_is_named_with_its_endpoint() -> None:
    root = Path(__file__).parents[3]
    listen = "client_server.orders.listen=tcp://127.0.0.1:0"
    with running("run", "examples.orders:till", "--set", listen, cwd=root) as node:
        assert re.match(
            r"serving: ClientServer channel orders, server till-[0-9a-f-]{36}, tcp://127\.0\.0\.1:\d+$",
            node.line("serving"),
        )
        node.signal(signal.SIGTERM)
        assert node.end() == 0
    with running("run", "examples.orders:till", "--json", cwd=root) as node:
        (served,) = node.document()["client_servers"]
        assert (served["channel"], served["endpoint"][:16]) == ("orders", "tcp://127.0.0.1:")
        node.signal(signal.SIGTERM)
        assert node.document()["outcome"] == "stopped"


def test_the_example_of_a_channel_shares_orders_by_weight() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.orders"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "small took 10 orders, large took 30\n"
