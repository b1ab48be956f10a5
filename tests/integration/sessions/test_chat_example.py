"""The chat example as docs/sessions.md tells it: real nodes, a real store, HTTP.

Durations of the routers are a tenth of the defaults.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import aclosing

import httpx2
import pytest
import trio

from examples.chat_sessions.demo import LOST_WITHIN, ROOT
from tests.integration.sessions.chat import Browser, Frame, chat_nodes
from tests.location_server import TestServer

TOLERANCE = 0.5

# The client's own generators stay behind when a stream is left before its end.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning")


def _store(valkey: TestServer) -> str:
    return f"unix://{valkey.socket_path}"


@pytest.mark.slow
def test_the_story_that_the_documentation_tells() -> None:
    command = [sys.executable, "-m", "examples.chat_sessions"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'error': 'HOLDER_LOST'" in done.stdout
    assert "It ran once" in done.stdout


@pytest.mark.contract("SR-222", "SR-242", "SR-248", "SR-382")
async def test_a_holder_dies_in_the_middle_of_a_turn(valkey: TestServer) -> None:
    seen: list[Frame] = []
    with chat_nodes(_store(valkey), "web-1", "web-2") as [one, two]:
        async with httpx2.AsyncClient(timeout=30) as http, trio.open_nursery() as nursery:
            browser, listening, begun, lost = Browser(http), trio.Event(), trio.Event(), trio.Event()
            assert (await browser.say(one, "s", "first", "k0")).json()["answer"] == "1. you said: first"

            async def watch() -> None:
                async with aclosing(browser.frames(two, "s", listening=listening)) as frames:
                    async for frame in frames:
                        seen.append(frame)
                        if frame.type == "OutputDelta":
                            begun.set()
                        if frame.type == "InterruptedAt":
                            lost.set()

            answers: list[httpx2.Response] = []

            async def ask() -> None:
                answers.append(await browser.say(two, "s", "long " * 100, "k1"))

            nursery.start_soon(watch)
            with trio.fail_after(10):
                await listening.wait()
                nursery.start_soon(ask)
                await begun.wait()
                await browser.queue(two, "s", "second", "k2")
                await browser.queue(two, "s", "third", "k3")
            one.kill()
            killed_at = trio.current_time()
            with trio.fail_after(20):
                await lost.wait()
                while not answers:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert trio.current_time() - killed_at <= LOST_WITHIN + TOLERANCE
            [answer] = answers
            assert (answer.status_code, answer.json()["error"]) == (503, "HOLDER_LOST")
            [news] = [frame for frame in seen if frame.type == "InterruptedAt"]
            assert (news.data["reason"], news.data.get("turn"), news.seq) == ("HOLDER_LOST", None, None)
            with trio.fail_after(20):
                # What waited runs on the other node; nothing of the turn that died is in the conversation.
                assert (await browser.say(two, "s", "second", "k2")).json()["answer"] == "2. you said: second"
                assert (await browser.say(two, "s", "third", "k3")).json()["answer"] == "3. you said: third"
                retried = await browser.say(two, "s", "long " * 5, "k1")
                assert retried.status_code == 200, "the key is free, for another input too"
                assert retried.json()["answer"].startswith("4. ")
                again = await browser.say(two, "s", "long " * 5, "k1")
                assert again.json() == retried.json()
                assert (await browser.say(two, "s", "last", "k4")).json()["answer"] == "5. you said: last"
            nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.contract("SR-397", "SR-400", "SR-456")
async def test_a_browser_that_comes_late_sees_the_turn_from_its_beginning(valkey: TestServer) -> None:
    with chat_nodes(_store(valkey), "web-1", "web-2", pace=0.03) as [one, two]:
        async with httpx2.AsyncClient(timeout=30) as http:
            browser, text = Browser(http), "word " * 150
            turn = await browser.queue(one, "s", text, "k")

            async def read(query: str, count: int) -> list[Frame]:
                frames: list[Frame] = []
                async with aclosing(browser.frames(two, "s", query)) as stream:
                    async for frame in stream:
                        frames.append(frame)
                        if len(frames) == count:
                            break
                return frames

            with trio.fail_after(20):
                # The same turn posted again attaches to the one that runs.
                await browser.queue(two, "s", text, "k")
                early = await read("?from_seq=1", 45)
                assert [frame.seq for frame in early] == list(range(1, 46))
                assert {frame.data["turn"] for frame in early} == {turn}
                assert early[0].type == "TurnStarted"
                late = await read("?from_seq=31", 60)
                assert [frame.seq for frame in late] == list(range(31, 91))
                assert late[:15] == early[30:]
                after: list[Frame] = []
                last = late[-1].id
                async with aclosing(browser.frames(two, "s", last_id=last)) as stream:
                    async for frame in stream:
                        after.append(frame)
                        if frame.type == "TurnCompleted":
                            break
            assert [frame.seq for frame in after] == list(range(91, 91 + len(after)))
            assert (await browser.say(two, "s", text, "k")).json()["answer"] == f"1. you said: {text}"


async def test_what_is_wrong_with_a_request_is_said(valkey: TestServer) -> None:
    with chat_nodes(_store(valkey), "web-1", pace=0.0) as [one]:
        async with httpx2.AsyncClient(timeout=30) as http:
            browser, turns = Browser(http), f"{one.url}/sessions/s/turns"
            bad = [
                await http.post(turns, json={"text": "x"}),
                await http.post(turns, content=b"{", headers={"Idempotency-Key": "k"}),
                await http.post(turns, json={"text": ""}, headers={"Idempotency-Key": "k"}),
                await http.get(f"{one.url}/sessions/s/events?from_seq=0"),
                await http.get(f"{one.url}/sessions/s/events?from_seq=x"),
            ]
            assert [(each.status_code, each.json()["error"]) for each in bad] == [
                (400, "IDEMPOTENCY_KEY_MISSING"),
                (400, "BAD_BODY"),
                (400, "BAD_BODY"),
                (400, "BAD_QUERY"),
                (400, "BAD_QUERY"),
            ]
            assert (await browser.say(one, "s", "one", "k")).status_code == 200
            other = await browser.say(one, "s", "two", "k")
            assert (other.status_code, other.json()["error"]) == (409, "IDEMPOTENCY_CONFLICT")


async def test_a_session_is_interrupted_and_ended_through_any_node(valkey: TestServer) -> None:
    with chat_nodes(_store(valkey), "web-1", "web-2", pace=0.05) as [one, two]:
        async with httpx2.AsyncClient(timeout=30) as http, trio.open_nursery() as nursery:
            browser, listening, begun, over = Browser(http), trio.Event(), trio.Event(), trio.Event()

            async def watch() -> None:
                async for frame in browser.frames(one, "s", listening=listening):
                    if frame.type == "OutputDelta":
                        begun.set()
                over.set()

            nursery.start_soon(watch)
            with trio.fail_after(20):
                await listening.wait()
                await browser.queue(one, "s", "long " * 300, "k")
                await begun.wait()
                assert (await http.post(f"{two.url}/sessions/s/interrupt")).status_code == 204
                stopped = (await browser.say(two, "s", "long " * 300, "k")).json()
                assert (stopped["success"], stopped["completion"]) == (False, "interrupted")
                assert (await http.delete(f"{two.url}/sessions/s")).status_code == 204
                await over.wait()
                assert (await browser.say(one, "s", "new", "k2")).json()["answer"] == "1. you said: new"
