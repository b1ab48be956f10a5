"""The signal bus of one process: every router in it shares one object.

Signals still become bytes and are read back, and handlers still run later, from the event loop's queue of calls: what
works here must not stop working between processes (SR-084, SR-395).
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from zlinkpy.sessions.errors import SignalPayloadError
from zlinkpy.sessions.signal_codec import decode_signal, encode_signal
from zlinkpy.sessions.signal_intake import (
    IntakeStatistics,
    Place,
    SignalIntake,
    SubscriberTable,
    TableSubscription,
    call_in,
)
from zlinkpy.sessions.spi import SignalHandler, Subscription
from zlinkpy.sessions.types import SessionSignal


class MemorySignalBus:
    """A `SessionSignalBus` without I/O. Needs no opening; belongs to one event loop."""

    def __init__(self) -> None:
        self._table = SubscriberTable()
        self._intake = SignalIntake(self._table)

    async def subscribe(self, session_id: str, handler: SignalHandler, events: bool = True) -> Subscription:
        """Effective at once."""
        await trio.lowlevel.checkpoint_if_cancelled()
        return TableSubscription(self._table.add(session_id, handler, events=events), self._unsubscribe)

    def _unsubscribe(self, place: Place) -> None:
        self._table.remove(place)

    async def publish(self, signal: SessionSignal) -> None:
        """Raises SignalPayloadError."""
        await self.publish_all((signal,))

    async def publish_all(self, signals: Sequence[SessionSignal]) -> None:
        """Raises the first SignalPayloadError once all others are on their way."""
        await trio.lowlevel.checkpoint_if_cancelled()
        failure: SignalPayloadError | None = None
        for signal in signals:
            try:
                self.receive(encode_signal(signal))
            except SignalPayloadError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        await trio.lowlevel.cancel_shielded_checkpoint()

    def receive(self, data: bytes) -> None:
        """Take a coded signal, as if it had come from another process."""
        signal = decode_signal(data)
        if signal is not None and signal.session_id in self._table and self._intake.put(signal, len(data)):
            call_in(trio.lowlevel.current_trio_token(), self._burst)

    def _burst(self) -> None:
        if self._intake.burst():
            call_in(trio.lowlevel.current_trio_token(), self._burst)

    def statistics(self) -> IntakeStatistics:
        """What waits, and what was lost."""
        return self._intake.statistics()
