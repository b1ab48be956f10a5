"""Nodes of the chat example as processes, and what is asked of them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import trio
from attrs import frozen

from examples.chat_sessions.demo import Node


@contextmanager
def chat_nodes(store: str, *names: str, pace: float = 0.1) -> Iterator[list[Node]]:
    """Nodes of these names on one store; what is left of them at the end is ended, and ends in order."""
    nodes: list[Node] = []
    killed: list[int | None] = []
    try:
        nodes += [Node(name, store, pace=pace) for name in names]
        for node in nodes:
            node.wait_until_it_serves()
        yield nodes
        killed = [node.process.poll() for node in nodes]
    finally:
        for node in nodes:
            node.close()
    assert [node.process.returncode for node in nodes] == [code or 0 for code in killed]


@frozen
class Frame:
    """One Server-Sent Event; `id` is where a reconnect would go on."""

    id: str
    type: str
    data: dict[str, Any]

    @property
    def seq(self) -> int | None:
        return self.data.get("seq")


class Browser:
    """A client that posts turns and reads event streams."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def say(self, node: Node, session: str, text: str, key: str, **headers: str) -> httpx2.Response:
        """Post one turn; the answer of the server."""
        return await self._http.post(
            f"{node.url}/sessions/{session}/turns", json={"text": text}, headers={"Idempotency-Key": key, **headers}
        )

    async def queue(self, node: Node, session: str, text: str, key: str) -> str:
        """Post one turn without waiting for its end; its id."""
        response = await self.say(node, session, text, key, Prefer="respond-async")
        assert response.status_code == 202, response.text
        return str(response.json()["turn"])

    async def frames(
        self,
        node: Node,
        session: str,
        query: str = "",
        *,
        listening: trio.Event | None = None,
        last_id: str | None = None,
    ) -> AsyncGenerator[Frame, None]:
        """The frames of a stream as they come; `listening` is set when it is open."""
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        async with self._http.sse(f"{node.url}/sessions/{session}/events{query}", headers=headers) as events:
            if listening is not None:
                listening.set()
            async for event in events:
                yield Frame(event.id, event.event, json.loads(event.data))
