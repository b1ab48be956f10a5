"""The least a session handler can be: what the figures are measured with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from zlinkpy.location.embedded_server import EmbeddedServer
from zlinkpy.sessions.events import OutputDelta
from zlinkpy.sessions.handlers import SessionHandler
from zlinkpy.sessions.spi import TurnContext
from zlinkpy.sessions.types import InterruptReason, LiveSessionStatus, TurnInput, TurnResult


class BareSession:
    """Emits one event and is done."""

    accepts_offers = False

    async def run_turn(self, ctx: TurnContext) -> TurnResult:
        ctx.emit(OutputDelta("x"))
        await trio.lowlevel.checkpoint()
        return TurnResult(True, answer="x")

    def interrupt(self, reason: InterruptReason, turn_id: str | None = None) -> None:
        """Over before it could stop."""

    def offer(self, input: TurnInput) -> bool:
        return False

    def take_unconsumed(self) -> list[TurnInput]:
        return []

    def status(self) -> LiveSessionStatus:
        return LiveSessionStatus("bare")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Bare(SessionHandler, ref="bare"):
    """Opens them."""

    async def open(
        self, session_id: str, options: Mapping[str, Any], open_attributes: Mapping[str, Any]
    ) -> BareSession:
        return BareSession()


@contextmanager
def real_store() -> Iterator[EmbeddedServer]:
    """A Valkey of its own."""
    with tempfile.TemporaryDirectory(prefix="zl-bench-") as directory:
        server = EmbeddedServer(Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()
