"""A node that serves one channel; tests run it as ``zlink run tests.integration.programs.node:host``."""

from __future__ import annotations

import os

import trio

import zlinkpy as zl

MESH = "play"
CHANNEL = "work"


@zl.message
class Answer:
    n: int
    pid: int


@zl.message
class Ask(zl.Request[Answer]):
    n: int
    hold: float = 0.0


host = zl.Host()
mesh = host.mesh(MESH, rid=os.environ.get("NODE_RID"), rid_prefix=None if "NODE_RID" in os.environ else "node")
mesh.serve_channel(CHANNEL)


@mesh.on_channel_request(CHANNEL)
async def ask(message: Ask) -> Answer:
    """Answer who this is, after a while."""
    if message.hold:
        print("holding", flush=True)
    await trio.sleep(message.hold)
    return Answer(message.n, os.getpid())
