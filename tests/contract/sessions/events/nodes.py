"""Two routers' event sides on one bus and one journal, with a bus and a journal that can misbehave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field

from zlinkpy.sessions.errors import SessionBackendError, SessionSignalError
from zlinkpy.sessions.event_streams import EventStream
from zlinkpy.sessions.events import Gap, OutputDelta, TurnEvent
from zlinkpy.sessions.memory_bus import MemorySignalBus
from zlinkpy.sessions.memory_journal import MemoryEventJournal
from zlinkpy.sessions.payloads import EventCodec
from zlinkpy.sessions.session_events import SessionEvents
from zlinkpy.sessions.spi import JournalFrame, SignalHandler, Subscription
from zlinkpy.sessions.types import SessionSignal, SignalKind


class ShakyBus(MemorySignalBus):
    """A memory bus that keeps what was published, and can stall or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[SessionSignal]] = []
        self.stalled = False
        self.failing = False
        self.deaf = False
        self._go = trio.Event()

    def resume(self) -> None:
        self.stalled = False
        self._go.set()
        self._go = trio.Event()

    async def publish_all(self, signals: Sequence[SessionSignal]) -> None:
        while self.stalled:
            await self._go.wait()
        if self.failing:
            raise SessionSignalError("the bus is down", applied="no")
        self.batches.append(list(signals))
        await super().publish_all(signals)

    async def subscribe(self, session_id: str, handler: SignalHandler, events: bool = True) -> Subscription:
        if self.deaf:
            raise SessionSignalError("the bus is down", applied="no")
        return await super().subscribe(session_id, handler, events)

    @property
    def payloads(self) -> list[Mapping[str, Any]]:
        return [signal.payload for batch in self.batches for signal in batch]


class ShakyJournal(MemoryEventJournal):
    """A journal that can hang or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = self.fails = False
        self.calls = 0

    async def _shaken(self) -> None:
        self.calls += 1
        if self.hangs:
            await trio.sleep_forever()
        if self.fails:
            raise SessionBackendError("the journal is down")

    async def append(self, session_id: str, turn_id: str, frames: Sequence[JournalFrame]) -> None:
        await self._shaken()
        await super().append(session_id, turn_id, frames)

    async def read(self, session_id: str, turn_id: str, from_seq: int) -> list[JournalFrame]:
        await self._shaken()
        return await super().read(session_id, turn_id, from_seq)

    async def current(self, session_id: str) -> str | None:
        await self._shaken()
        return await super().current(session_id)

    async def finish(self, session_id: str, turn_id: str) -> None:
        await self._shaken()
        await super().finish(session_id, turn_id)


@define(eq=False)
class Side:
    """One router's event side."""

    name: str
    events: SessionEvents
    scope: trio.CancelScope


@define(eq=False)
class Sides:
    bus: ShakyBus
    journal: ShakyJournal
    _nursery: trio.Nursery
    codec: EventCodec = field(factory=EventCodec)

    def add(
        self, name: str, *, journal: bool = True, drain_timeout: float = 2.0, codec: EventCodec | None = None
    ) -> Side:
        def sign(session_id: str, kind: SignalKind, payload: Mapping[str, object], /) -> SessionSignal:
            return SessionSignal(session_id, kind, name, payload, name)

        def handler(signal: SessionSignal) -> None:
            # What the router does: its own are not news.
            if signal.origin_node != name and signal.kind is SignalKind.EVENT:
                side.received(signal)

        side = SessionEvents(
            bus=self.bus,
            journal=self.journal if journal else None,
            codec=codec or self.codec,
            sign=sign,
            handler=handler,
            drain_timeout=drain_timeout,
        )
        scope = trio.CancelScope()

        async def serve(service: Any) -> None:
            with trio.CancelScope() as own:
                scopes.append(own)
                await service()

        scopes: list[trio.CancelScope] = []
        for service in side.services():
            self._nursery.start_soon(serve, service)
        return Side(name, side, scope)


@asynccontextmanager
async def sides() -> AsyncIterator[Sides]:
    async with trio.open_nursery() as nursery:
        yield Sides(ShakyBus(), ShakyJournal(), nursery)
        nursery.cancel_scope.cancel()


class Reader(list[TurnEvent | Gap]):
    """Reads a stream in the background."""

    def __init__(self, stream: EventStream, nursery: trio.Nursery) -> None:
        super().__init__()
        self.stream = stream
        self.ended = False
        nursery.start_soon(self._read)

    async def _read(self) -> None:
        async for event in self.stream:
            self.append(event)
        self.ended = True

    @property
    def shown(self) -> list[object]:
        """Numbers, and pairs for gaps."""
        return [(each.first_seq, each.last_seq) if isinstance(each, Gap) else each.seq for each in self]


def outputs(relay: Any, first: int, last: int) -> None:
    """Emit pieces of output that carry their own number as text."""
    for number in range(first, last + 1):
        relay.emit(OutputDelta(str(number)))


async def settle() -> None:
    """Let everything that can happen now happen."""
    await trio.sleep(0.01)
