"""The story of this example: two nodes, one conversation, and one of them dies in the middle of a turn."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx2
import trio

from zlinkpy.location.embedded import serve_embedded

SCALE: Final = 0.1
"""All durations of the routers are a tenth, so that nobody has to wait 45 s for the end."""
LOST_WITHIN: Final = 45.0 * SCALE
"""A turn's claim lives 30 s past its node's last sign of life, and nodes look for dead claims every 15 s."""
CLOSE_SECONDS: Final = 20.0
ROOT: Final = Path(__file__).resolve().parents[2]


class Node:
    """One process of the chat."""

    def __init__(self, name: str, store: str, *, pace: float = 0.1) -> None:
        self.name = name
        command = [sys.executable, "-m", "examples.chat_sessions.node", "--store", store, "--node", name]
        command += ["--scale", str(SCALE), "--pace", str(pace)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.url = ""

    def wait_until_it_serves(self) -> None:
        """Blocks until it takes requests, or has ended without."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()} before it served")
        self.url = json.loads(line)["url"]

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()

    def close(self) -> None:
        """End it in order; what does not end is killed."""
        self.process.terminate()
        try:
            self.process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Client:
    """A client of the chat behind a load balancer that takes turns: every request goes to the next node."""

    def __init__(self, http: httpx2.AsyncClient, nodes: list[Node]) -> None:
        self._http = http
        self.nodes = nodes

    def _next(self) -> Node:
        self.nodes.append(self.nodes.pop(0))
        return self.nodes[-1]

    async def say(self, session: str, text: str, key: str) -> dict[str, Any]:
        """One turn. The answer of the server, with its HTTP status."""
        node = self._next()
        response = await self._http.post(
            f"{node.url}/sessions/{session}/turns", json={"text": text}, headers={"Idempotency-Key": key}
        )
        print(f"  {node.name} answers {response.status_code}: {response.json()}")
        return {"status": response.status_code, **response.json()}


async def wait_for_words(http: httpx2.AsyncClient, node: Node, session: str, count: int) -> None:
    """Watch the session through `node` until so many words of an answer have come."""
    async with http.sse(f"{node.url}/sessions/{session}/events?from_seq=1") as events:
        async for event in events:
            if event.event == "OutputDelta":
                print(f"  {node.name} streams: {json.loads(event.data)['text']}")
                count -= 1
                if not count:
                    return


async def tell(folder: str) -> int:
    """Run the story; 0 when all went as it should."""
    async with trio.open_nursery() as nursery:
        store = await nursery.start(serve_embedded, folder)
        with ExitStack() as stack:
            one, two = Node("web-1", store), Node("web-2", store)
            stack.callback(one.close)
            stack.callback(two.close)
            await trio.to_thread.run_sync(one.wait_until_it_serves)
            await trio.to_thread.run_sync(two.wait_until_it_serves)
            async with httpx2.AsyncClient(timeout=30) as http:
                ended = await story(Client(http, [one, two]), http, one, two)
        nursery.cancel_scope.cancel()
    return ended


async def story(client: Client, http: httpx2.AsyncClient, one: Node, two: Node) -> int:
    """`one` gets the first request, so it holds the session; requests then alternate."""
    session, key = "story", str(uuid4())
    print("Requests alternate between two nodes; the session is held by the one that got the first.")
    first = await client.say(session, "hello", str(uuid4()))
    second = await client.say(session, "again", str(uuid4()))
    if (first["answer"], second["answer"]) != ("1. you said: hello", "2. you said: again"):
        return 1
    print("Now the holder dies in the middle of a turn that came in through the other node.")
    client.nodes = [two]
    lost: dict[str, Any] = {}
    text = "a long one, " * 8 + "and its end"
    killed_at = 0.0

    async def ask() -> None:
        lost.update(await client.say(session, text, key))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_for_words(http, two, session, 3)
        one.kill()
        killed_at = trio.current_time()
        print(f"  {one.name} is killed")
    took = trio.current_time() - killed_at
    print(f"HOLDER_LOST came {took:.1f} s after the kill; {LOST_WITHIN:.1f} s are the limit.")
    if lost.get("error") != "HOLDER_LOST" or took > LOST_WITHIN + 1:
        return 1
    print("The client sends the same turn again, twice, with the same key. It runs once.")
    retried = await client.say(session, text, key)
    same = await client.say(session, text, key)
    last = await client.say(session, "done", str(uuid4()))
    once = retried == same and retried["answer"].startswith("3.") and last["answer"].startswith("4.")
    print("It ran once: the next turn is the fourth." if once else "It did not run exactly once.")
    return 0 if once else 1
