"""The chat itself: a session handler that answers slowly, word by word, and remembers what was said.

It stands in for a language model. What matters here: the conversation lives in the session's record, which the router
reads before a turn and writes after it, under the fence; the handle keeps nothing that another node could not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import trio

import zlinkpy as zl
from zlinkpy.sessions.types import TurnProgress


class ChatSession:
    """One conversation on the node that holds it."""

    accepts_offers = False

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._turn_id: str | None = None
        self._scope = trio.CancelScope()

    async def run_turn(self, ctx: zl.TurnContext) -> zl.TurnResult:
        """Answer one input. A turn that is interrupted, or dies with its node, leaves no trace in the conversation."""
        said: list[str] = json.loads(ctx.state or b"[]")
        answer = f"{len(said) + 1}. you said: {ctx.input.text}"
        ctx.emit(zl.TurnStarted())
        self._turn_id, self._scope = ctx.turn_id, trio.CancelScope()
        try:
            with self._scope:
                for word in answer.split():
                    ctx.emit(zl.OutputDelta(word))
                    await trio.sleep(self._pace)
        finally:
            self._turn_id = None
        if self._scope.cancelled_caught:
            return zl.TurnResult(False, error_message="interrupted", completion="interrupted")
        ctx.emit(zl.OutputSnapshot(answer))
        ctx.state = json.dumps([*said, ctx.input.text]).encode()
        return zl.TurnResult(True, answer=answer)

    def interrupt(self, reason: zl.InterruptReason, turn_id: str | None = None) -> None:
        """Stop answering."""
        if self._turn_id is not None and turn_id in (None, self._turn_id):
            self._scope.cancel()

    def offer(self, input: zl.TurnInput) -> bool:
        """Nothing is taken into a turn that runs; the next turn gets it."""
        return False

    def take_unconsumed(self) -> list[zl.TurnInput]:
        """Nothing was taken."""
        return []

    def status(self) -> zl.LiveSessionStatus:
        """For people."""
        turn = None if self._turn_id is None else TurnProgress(self._turn_id)
        return zl.LiveSessionStatus("idle" if turn is None else "answering", interruptible=turn is not None, turn=turn)

    async def aclose(self) -> None:
        """Nothing to give back."""


class Chat(zl.SessionHandler, ref="chat"):
    """Opens conversations.

    Args:
        pace: seconds between two words.
    """

    def __init__(self, pace: float = 0.1) -> None:
        self._pace = pace

    async def open(
        self, session_id: str, options: Mapping[str, Any], open_attributes: Mapping[str, Any]
    ) -> ChatSession:
        """A handle; the conversation comes with each turn."""
        return ChatSession(self._pace)
