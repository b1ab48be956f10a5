"""A node of the storm: a session router that submits what it is told to on standard input.

A line in is ``{"session": …, "key": …}``; a line out is ``{"key": …, "error": null or its name}``, in any order.
At the end of the input it waits until nothing is open, and says what is left.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping
from itertools import count
from typing import Any

import redis
import trio

from benchmarks.sessions.bare import BareSession
from benchmarks.sessions.ledger import Ledger
from zlinkpy.sessions.errors import SessionError
from zlinkpy.sessions.handlers import SessionHandler
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.spi import TurnContext
from zlinkpy.sessions.types import (
    DeploymentMode,
    LiveSessionStatus,
    RouterConfig,
    TurnResult,
)

TURN_SECONDS = 0.04
"""Turns take this long at most, at random."""
LEFT_SECONDS = 60.0


class Storm(SessionHandler, ref="storm"):
    """Turns that write themselves down and add their key to the session's state."""

    def __init__(self, ledger: Ledger, node: str) -> None:
        self._ledger, self._node, self._numbers = ledger, node, count()

    async def open(
        self, session_id: str, options: Mapping[str, Any], open_attributes: Mapping[str, Any]
    ) -> StormSession:
        return StormSession(self._ledger, self._node, self._numbers)


class StormSession(BareSession):
    """The handle of one session. Turns are short; they end by themselves."""

    def __init__(self, ledger: Ledger, node: str, numbers: count[int]) -> None:
        self._ledger, self._node, self._numbers = ledger, node, numbers

    async def run_turn(self, ctx: TurnContext) -> TurnResult:
        key, run = ctx.input.text, f"{self._node}/{next(self._numbers)}"
        await trio.to_thread.run_sync(self._ledger.begin, ctx.session_id, run, key)
        try:
            await trio.sleep(random.uniform(0, TURN_SECONDS))
            ctx.state = (ctx.state or b"") + key.encode() + b"\n"
            return TurnResult(True, answer=key)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._ledger.end, ctx.session_id, run)

    def status(self) -> LiveSessionStatus:
        return LiveSessionStatus("storm")


class Worker:
    """One node."""

    def __init__(self, router: SessionRouter) -> None:
        self._router = router
        self._open = 0
        self._answered = trio.Event()

    async def run(self) -> dict[str, Any]:
        """Submit until the input ends; what is left then."""
        async with trio.open_nursery() as nursery:
            stdin = trio.lowlevel.FdStream(sys.stdin.fileno())
            rest = b""
            async for data in stdin:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._open += 1
                    nursery.start_soon(self._submit, json.loads(line))
            core = self._router._core
            with trio.move_on_after(LEFT_SECONDS):
                while self._open:
                    await self._answered.wait()
                while core.turns:  # noqa: ASYNC110 - a pass ends a little later than its last turn
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        return {"left": self._open, "forwards": sum(1 for _ in core.forwards), "turns": len(core.turns)}

    async def _submit(self, order: dict[str, str]) -> None:
        error = None
        try:
            submitted = await self._router.submit(order["session"], order["key"], handler="storm", key=order["key"])
            result = await submitted.future.result()
            assert result.answer == order["key"]
        except SessionError as raised:
            error = type(raised).__name__
        say({"key": order["key"], "error": error})
        self._open -= 1
        self._answered.set()
        self._answered = trio.Event()


def say(document: Mapping[str, Any]) -> None:
    """One line out. A pipe takes it whole or, once the storm is gone, not at all."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def main(store: str, node: str, scale: float) -> None:
    """A node from its start to the end of its input."""
    config = RouterConfig(mode=DeploymentMode.DISTRIBUTED).scaled(scale)
    server = redis.Redis.from_url(store, protocol=2)
    async with SessionRouter(Storm(Ledger(server, node), node), store=store, node_id=node, config=config) as router:
        say({"serving": node})
        left = await Worker(router).run()
    say(left)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--scale", type=float, required=True)
    options = parser.parse_args()
    trio.run(main, options.store, options.node, options.scale)
