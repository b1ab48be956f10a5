"""The signal bus over Redis or Valkey pub/sub: two channels per session, two threads, two connections (SR-093, SR-452).

``zl:sig:c:<session>`` carries control signals, ``zl:sig:e:<session>`` EVENT and STATUS. A session's channels are
subscribed while somebody here listens. Publishing and reading are `PublisherThread` and `ReaderThread`; here is what
belongs to the event loop.

At most once: what is published while this node has no connection is not heard here, and a publish whose answer was lost
raises and is not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Final

import trio
from attrs import frozen

from zlinkpy.entropy import Entropy, SystemEntropy
from zlinkpy.errors import ConfigurationError, InvalidOperationError
from zlinkpy.location.open import store_target
from zlinkpy.location.redis_target import ClusterTarget, NodePools, RedisTarget
from zlinkpy.sessions.errors import SessionSignalError, SignalPayloadError
from zlinkpy.sessions.redis_bus_publisher import Call, PublisherStatistics, PublisherThread
from zlinkpy.sessions.redis_bus_reader import ReaderStatistics, ReaderThread
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

CALL_SECONDS: Final = 2.0
"""How long a publish or a subscribe may take before it raises, on the loop's clock."""

SOCKET_SECONDS: Final = 2.0
JOIN_SECONDS: Final = 3.0


@frozen(kw_only=True)
class RedisBusStatistics:
    """What the bus of one node did, holds and has lost."""

    publisher: PublisherStatistics
    reader: ReaderStatistics
    intake: IntakeStatistics


class RedisSignalBus:
    """A `SessionSignalBus` on one server: ``async with RedisSignalBus("redis://…") as bus``. Any number of sessions.

    Entering starts the threads and does not wait for the server: calls raise SessionSignalError while it is away.

    Args:
        target: a URL as of a Location Store, or what `store_target` makes of one.
        prefix: beginning of the channel names; nodes that share it hear each other.
        entropy: where the jitter of reconnects comes from.

    Raises ConfigurationError for a URL that names no single primary (SR-457).
    """

    def __init__(self, target: str | RedisTarget, *, prefix: str = "zl", entropy: Entropy | None = None) -> None:
        place = store_target(target) if isinstance(target, str) else target
        if place is None:
            raise ConfigurationError("the Redis signal bus needs a server; memory:// has none")
        if isinstance(place, ClusterTarget):
            raise ConfigurationError(
                f"{place.label}: sessions need one primary, a cluster has several; use redis:// or redis+sentinel://"
            )
        self.label = place.label
        self._target = place
        self._prefix = prefix
        self._entropy = entropy or SystemEntropy()
        self._table = SubscriberTable()
        self._intake = SignalIntake(self._table)
        self._progress = trio.Event()
        self._progress_due = False
        self._publisher: PublisherThread | None = None
        self._reader: ReaderThread | None = None
        self._pools: tuple[NodePools, NodePools] | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> RedisSignalBus:
        """Start the threads."""
        if self._pools is not None:
            raise InvalidOperationError("this signal bus is open already")
        await trio.lowlevel.checkpoint()
        token = self._token = trio.lowlevel.current_trio_token()
        publishing, reading = self._pools = (
            self._target.open(1, SOCKET_SECONDS),
            self._target.open(1, SOCKET_SECONDS),
        )
        self._publisher = PublisherThread(publishing, self.label, token)
        self._reader = ReaderThread(
            reading,
            self.label,
            self._entropy,
            received=self._received,
            confirmed=self._confirmed,
        )
        self._publisher.thread.start()
        self._reader.thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._pools is not None
        assert self._publisher is not None
        assert self._reader is not None
        pools, publisher, reader = self._pools, self._publisher, self._reader

        publisher.close()
        reader.close()

        def end() -> None:
            for pool in pools:
                pool.close()
            for thread in (publisher.thread, reader.thread):
                thread.join(JOIN_SECONDS)

        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(end)
        self._pools = self._publisher = self._reader = None

    @property
    def is_open(self) -> bool:
        """True inside ``async with``."""
        return self._pools is not None

    def _open(self) -> tuple[PublisherThread, ReaderThread]:
        if self._publisher is None or self._reader is None:
            raise SessionSignalError(f"the signal bus {self.label} is not open", applied="no")
        return self._publisher, self._reader

    # -- subscribing ---------------------------------------------------------------------------------------------------

    def _channel(self, session_id: str, *, control: bool) -> bytes:
        return f"{self._prefix}:sig:{'c' if control else 'e'}:{session_id}".encode()

    async def subscribe(self, session_id: str, handler: SignalHandler, events: bool = True) -> Subscription:
        """Effective when it returns. Raises SessionSignalError, and leaves nothing behind, when the server has not
        confirmed it within 2 s."""
        _, reader = self._open()
        await trio.lowlevel.checkpoint_if_cancelled()
        place = self._table.add(session_id, handler, events=events)
        channels = [self._channel(session_id, control=True)]
        if events:
            channels.append(self._channel(session_id, control=False))
        try:
            reader.want(channels, on=True)
            with trio.move_on_after(CALL_SECONDS):
                while not reader.effective(channels):
                    await self._progress.wait()
            if not reader.effective(channels):
                raise SessionSignalError(
                    f"the signal bus {self.label} has not confirmed a subscription within {CALL_SECONDS:g} s"
                )
        except BaseException:
            self._unsubscribe(place)
            raise
        return TableSubscription(place, self._unsubscribe)

    def _unsubscribe(self, place: Place) -> None:
        if not self._table.remove(place) or self._reader is None:
            return
        channels = []
        if place.session_id not in self._table:
            channels.append(self._channel(place.session_id, control=True))
        if place.wants_events and not self._table.has_event_handlers(place.session_id):
            channels.append(self._channel(place.session_id, control=False))
        if channels:
            self._reader.want(channels, on=False)

    def _confirmed(self) -> None:
        # On the reading thread. Confirmations come in bursts, and every waiter looks at each wake-up.
        if not self._progress_due:
            self._progress_due = True
            assert self._token is not None
            call_in(self._token, self._progressed)

    def _progressed(self) -> None:
        self._progress_due = False
        self._progress.set()
        self._progress = trio.Event()

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def publish(self, signal: SessionSignal) -> None:
        """Returns when the server has it. Raises SignalPayloadError or SessionSignalError, the latter within 2 s."""
        await self.publish_all((signal,))

    async def publish_all(self, signals: Sequence[SessionSignal]) -> None:
        """Returns when the server has all of them. Raises the first failure when all were tried.

        Cancellation and the 2 s withdraw what was not sent yet.
        """
        publisher, _ = self._open()
        await trio.lowlevel.checkpoint_if_cancelled()
        control: list[tuple[bytes, bytes]] = []
        events: list[tuple[bytes, bytes]] = []
        failure: SignalPayloadError | SessionSignalError | None = None
        for signal in signals:
            try:
                data = encode_signal(signal)
            except SignalPayloadError as error:
                failure = failure or error
            else:
                is_control = signal.kind.is_control
                line = control if is_control else events
                line.append((self._channel(signal.session_id, control=is_control), data))
        if control or events:
            call = Call(len(control) + len(events))
            publisher.put(control, events, call)
            try:
                with trio.move_on_after(CALL_SECONDS):
                    await call.done.wait()
            finally:
                call.withdrawn = True
            if not call.done.is_set():
                raise SessionSignalError(
                    f"publishing on {self.label}: no answer within {CALL_SECONDS:g} s",
                    applied="unknown" if call.sent else "no",
                )
            failure = failure or call.error
        if failure is not None:
            raise failure

    # -- receiving, on the reading thread ------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        signal = decode_signal(data)
        if signal is not None and signal.session_id in self._table and self._intake.put(signal, len(data)):
            assert self._token is not None
            call_in(self._token, self._burst)

    def _burst(self) -> None:
        if self._intake.burst():
            assert self._token is not None
            call_in(self._token, self._burst)

    # -- observation ---------------------------------------------------------------------------------------------------

    def statistics(self) -> RedisBusStatistics:
        """A copy of the counters. Raises SessionSignalError when the bus is not open."""
        publisher, reader = self._open()
        return RedisBusStatistics(
            publisher=publisher.statistics(), reader=reader.statistics(), intake=self._intake.statistics()
        )
