"""`zlink demo`: it proves what it shows, in time, and cleans up however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.cli.zlink import COMMAND, environment, none_left, processes_naming, running

NODE = "zlinkpy.cli.demo.node:host"


def demo_folders(place: Path) -> set[str]:
    return {name for name in os.listdir(place) if name.startswith("zlink-demo-")}


def folders_gone(place: Path) -> bool:
    """True once no folder of a demo is left in `place`."""
    pause = threading.Event()
    for _ in range(100):
        if not demo_folders(place):
            return True
        pause.wait(0.05)
    return False


@pytest.fixture
def temporary(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the demo of this test keeps its folder. What it leaves, killed or defective, is ended afterwards."""
    monkeypatch.setenv("TMPDIR", str(place))
    yield place
    for folder in demo_folders(place):
        for pid in processes_naming(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_the_demo_survives_a_crash_without_losing_a_request(place: Path, temporary: Path) -> None:
    result = subprocess.run(
        [*COMMAND, "demo", "--headless", "--seconds", "5"],
        cwd=place, env=environment(), capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    summary = re.fullmatch(
        r"demo: 3 nodes, (\d+) requests, 0 lost, (\d+) cut off, p50 [\d.]+ ms, p99 [\d.]+ ms, (\d+) events, "
        r"node killed and back in ([\d.]+) s",
        lines[-1],
    )
    assert summary
    assert int(summary[1]) > 100
    assert int(summary[3]) > 10
    assert 2 <= float(summary[4]) < 25
    text = result.stdout
    steps = ["three nodes are ready", "node-2 was killed", "node-2 is not ready any more", "answers again under a new"]
    assert [text.index(step) for step in steps] == sorted(text.index(step) for step in steps)
    assert "node-2 killed" in text
    assert none_left(NODE)
    assert folders_gone(temporary)


def test_the_demo_speaks_json_and_ends_in_order_on_ctrl_c(place: Path, temporary: Path) -> None:
    with running("demo", "--json", cwd=place) as demo:
        while (document := demo.document())["event"] != "status":
            pass
        assert [node["name"] for node in document["nodes"]] == ["node-1", "node-2", "node-3"]
        assert document["ready_peers"] == 3
        demo.signal(signal.SIGINT)
        assert demo.end() == 130
        assert json.loads(demo.stderr.splitlines()[-1])["error"]["kind"] == "interrupted"
    assert none_left(NODE)
    assert folders_gone(temporary)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["twice", "killed"])
def test_no_node_outlives_the_demo(place: Path, temporary: Path, how: str) -> None:
    with running("demo", "--headless", cwd=place) as demo:
        demo.line("  ")
        while "three nodes are ready" not in demo.lines[-1]:
            demo.line()
        if how == "twice":
            assert demo.press_ctrl_c_until_it_ends() == 130
        else:
            demo.signal(signal.SIGKILL)
            demo.end()
    assert none_left(NODE)
    assert all(none_left(folder) for folder in demo_folders(temporary))  # the store, too
    if how == "twice":
        assert folders_gone(temporary)
