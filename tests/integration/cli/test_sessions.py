"""`zlink session` against a node of the chat example, which has all durations at a tenth."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from examples.chat_sessions.demo import Node
from tests.integration.cli.zlink import Running, zlink_here
from tests.integration.sessions.chat import chat_nodes
from tests.location_server import TestServer


@pytest.fixture
def node(valkey: TestServer) -> Iterator[Node]:
    with chat_nodes(valkey.url, "web-1", pace=0.05) as [node]:
        yield node


def post(node: Node, session: str, text: str, key: str, **headers: str) -> httpx2.Response:
    return httpx2.post(
        f"{node.url}/sessions/{session}/turns",
        json={"text": text},
        headers={"Idempotency-Key": key, **headers},
        timeout=30,
    )


def test_a_turn_runs_where_the_session_is_held(node: Node, valkey: TestServer) -> None:
    post(node, "s", "hello", "k0")
    store = ("--store", valkey.url)
    first = zlink_here("session", "submit", "s", "again", "--key", "k1", *store)
    assert (first.exit_code, first.stdout) == (0, "2. you said: again\n")
    # Same key, same input: the result that is kept.
    second = zlink_here("session", "submit", "s", "again", "--key", "k1", "--json", *store)
    document = json.loads(second.stdout)
    assert (document["success"], document["answer"], document["session"]) == (True, "2. you said: again", "s")
    other = zlink_here("session", "submit", "s", "other", "--key", "k1", *store)
    assert other.exit_code == 1
    assert other.stderr.count("\n") == 1
    wrong = zlink_here("session", "submit", "s", "x", "--handler", "poker", *store)
    assert (wrong.exit_code, "'chat'" in wrong.stderr) == (1, True)
    queued = zlink_here("session", "submit", "s", "later", "--no-wait", "--json", *store)
    assert json.loads(queued.stdout)["queued"] is True
    assert post(node, "s", "last", "k2").json()["answer"] == "4. you said: last"


def test_a_session_that_nobody_holds_is_taken_by_a_node_that_finds_the_input(node: Node, valkey: TestServer) -> None:
    store = ("--store", valkey.url)
    unbound = zlink_here("session", "submit", "new", "hello", *store)
    blank = zlink_here("session", "submit", "new", "hello", "--handler", " ", *store)
    assert (blank.exit_code, "not blank" in blank.stderr) == (2, True)
    assert (unbound.exit_code, "--handler REF" in unbound.stderr) == (1, True)
    found = zlink_here("session", "submit", "new", "hello", "--handler", "chat", "--timeout", "30", *store)
    assert (found.exit_code, found.stdout) == (0, "1. you said: hello\n")
    # Whatever takes longer than a second says what it waits for.
    assert "waiting for turn" in found.stderr
    assert "a node to take it" in found.stderr


def test_what_has_not_begun_in_time_is_taken_back(valkey: TestServer) -> None:
    late = zlink_here("session", "submit", "s", "hello", "--handler", "chat", "--timeout", "2", "--store", valkey.url)
    assert (late.exit_code, "[deadline_exceeded]" in late.stderr) == (4, True)
    state = zlink_here("session", "status", "s", "--store", valkey.url)
    assert (state.exit_code, "[not_found]" in state.stderr) == (1, True)


def test_watching_and_interrupting(node: Node, valkey: TestServer, place: Path) -> None:
    post(node, "s", "hello", "k0")
    watching = Running("session", "watch", "s", "--json", "--store", valkey.url, cwd=place)
    try:
        replayed: list[str] = []
        post(node, "s", "word " * 300, "k1", Prefer="respond-async")
        turn = watching.document()["turn"]
        late = zlink_here("session", "watch", "s", "--from", "1", "--count", "3", "--store", valkey.url)
        replayed = late.stdout.splitlines()
        assert [line.split()[:3] for line in replayed] == [
            [turn, "1", "TurnStarted"],
            [turn, "2", "OutputDelta"],
            [turn, "3", "OutputDelta"],
        ]
        stopped = zlink_here("session", "interrupt", "s", "--turn", turn, "--store", valkey.url)
        assert (stopped.exit_code, stopped.stdout) == (0, "told the node that holds session s\n")
        while (event := watching.document())["type"] != "TurnCompleted":
            assert event["turn"] == turn
        assert (event["success"], event["completion"]) == (False, "interrupted")
        # A turn without success is an exit code of its own kind.
        again = zlink_here("session", "submit", "s", "word " * 300, "--key", "k1", "--store", valkey.url)
        assert (again.exit_code, again.stdout) == (1, "no success: interrupted\n")
        gone = zlink_here("session", "release", "s", "--store", valkey.url)
        assert (gone.exit_code, gone.stdout) == (0, "released session s\n")
        # Its streams end with the session.
        assert watching.end() == 0
    finally:
        watching.close()
    nothing = zlink_here("session", "interrupt", "s", "--store", valkey.url)
    assert (nothing.exit_code, "[not_found]" in nothing.stderr) == (1, True)


def test_status_and_ends(node: Node, valkey: TestServer) -> None:
    store = ("--store", valkey.url)
    post(node, "s", "hello", "k0")
    shown = json.loads(zlink_here("session", "status", "s", "--json", *store).stdout)
    assert shown["holder"]["node"] == "web-1"
    assert 0 < shown["holder"]["expires_in"] <= 3
    assert (shown["record"]["handler"], shown["record"]["version"], shown["waiting"]) == ("chat", 1, False)
    assert shown["status"] is None
    lines = zlink_here("session", "status", "s", *store).stdout.splitlines()
    assert re.fullmatch(r"held by web-1 for \d\.\d s more", lines[0])
    assert lines[1:] == ["handler chat, version 1, 9 bytes of state", "no input waits"]
    assert zlink_here("session", "release", "s", *store).exit_code == 0
    assert zlink_here("session", "status", "s", *store).stdout.startswith("held by no node\n")
    # The history is still there, until it is deleted; this command gets the lease for that, and no input meanwhile.
    assert post(node, "s", "again", "k1").json()["answer"] == "2. you said: again"
    gone = zlink_here("session", "delete", "s", "--json", *store)
    assert (gone.exit_code, json.loads(gone.stdout)) == (0, {"session": "s", "deleted": True})
    for command in ("status", "release", "delete"):
        assert zlink_here("session", command, "s", *store).exit_code == 1
    assert post(node, "s", "new", "k2").json()["answer"] == "1. you said: new"


def test_ctrl_c_leaves_the_input_queued_and_says_so(valkey: TestServer, place: Path) -> None:
    waiting = Running("session", "submit", "s", "hello", "--handler", "chat", "--store", valkey.url, cwd=place)
    try:
        waiting.wait_for_error("a node to take it")
        waiting.signal(signal.SIGINT)
        assert waiting.end() == 130
    finally:
        waiting.close()
    assert "stays queued" in waiting.stderr
    shown = json.loads(zlink_here("session", "status", "s", "--json", "--store", valkey.url).stdout)
    assert (shown["waiting"], shown["holder"], shown["record"]) == (True, None, None)


@pytest.mark.parametrize(
    "command",
    [("submit", "s", "x"), ("watch", "s"), ("status", "s"), ("interrupt", "s"), ("release", "s"), ("delete", "s")],
)
def test_a_store_that_is_not_there(command: tuple[str, ...], place: Path) -> None:
    failed = zlink_here("session", *command, "--store", f"unix://{place}/nothing")
    assert (failed.exit_code, failed.stdout) == (4, "")
    assert failed.stderr.rstrip().endswith("[unavailable]")
    assert zlink_here("session", *command).exit_code == 2
    assert zlink_here("session", *command, "--store", "memory://").exit_code == 3
