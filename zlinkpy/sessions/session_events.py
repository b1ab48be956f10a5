"""The event side of one router: relays of the turns that run here, streams of the subscribers here, and the bus and the
journal between nodes (facts §6; SR section 21, SR-397..401, SR-418).

An event of a turn is stamped once, goes to the streams of this node at once, and into the turn's relay. Some tasks
dispatch: each takes a batch from the wheel, writes it into the journal, and publishes it. In this order, so that a
subscriber that listens first and reads the journal then misses nothing. One task was rejected: each batch waits for the
store twice, and a turn's end waits for its batch, so that a node could end a hundred turns a second and no more. One
more task keeps the bus subscribed for the sessions somebody listens to here. None can hold up a turn: the relay is
bounded and `emit` is synchronous.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import trio
from attrs import define, evolve, field

from zlinkpy.sessions.errors import SignalPayloadError
from zlinkpy.sessions.event_streams import EventHub, EventStream, grade_of
from zlinkpy.sessions.events import TurnEvent
from zlinkpy.sessions.payloads.events import EventCodec
from zlinkpy.sessions.payloads.values import pack, unpack
from zlinkpy.sessions.relay_machine import Batch, Relay, RelayState, RelayWheel
from zlinkpy.sessions.spi import EventJournal, JournalFrame, SessionSignalBus, SignalHandler, Subscription
from zlinkpy.sessions.types import SessionSignal, SignalKind
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.sessions")

DISPATCHERS: Final = 8
"""Batches under way at once, each of another session."""
DRAIN_SECONDS: Final = 2.0
JOURNAL_SECONDS: Final = 2.0
"""How long one call of the journal may hold up the dispatch."""
JOURNAL_REST: Final = 5.0
"""A journal that failed is left alone for so long: it must not slow the relay down batch after batch."""
HEAR_SECONDS: Final = 3.0
"""How long a subscriber that asks for a replay waits for the bus before it reads the journal."""
HEAR_RETRY: Final = 1.0


class Sign(Protocol):
    """Makes a signal of this router."""

    def __call__(self, session_id: str, kind: SignalKind, payload: Mapping[str, object], /) -> SessionSignal: ...


class TurnEventRelay:
    """The events of one turn. Made by `SessionEvents.open_relay`."""

    def __init__(self, events: SessionEvents, relay: Relay[TurnEvent]) -> None:
        self._events = events
        self._relay = relay

    @property
    def dropped_event_count(self) -> int:
        """Events of the turn that other nodes did not get (SR-336)."""
        return self._relay.dropped

    def emit(self, event: TurnEvent) -> None:
        """Stamp the event with turn, number and time and send it; never waits. Raises TypeError for what is none."""
        if not isinstance(event, TurnEvent):
            raise TypeError(f"a turn emits TurnEvents; {type(event).__name__} is none")
        self._events.relayed(self._relay, event)

    async def aclose(self) -> None:
        """The turn is over. Waits until everything was published, at most the drain timeout; then deltas are dropped,
        and structural frames follow on their own (SR-337)."""
        await self._events.close_relay(self._relay)


@define(eq=False)
class _Ear:
    """The bus subscription of one session."""

    wanted: bool = True
    heard: trio.Event = field(factory=trio.Event)
    """Subscribed, or the first attempt has failed."""
    change: trio.Event = field(factory=trio.Event)


class SessionEvents:
    """See the module.

    Args:
        bus: where EVENT signals go and come from.
        journal: keeps the events of running turns for late subscribers; None for none.
        codec: the event types that cross nodes.
        sign: makes signals of this router.
        handler: gets the signals of the events channel that come for sessions listened to here; hands those of other
            routers to `received`.
        hear_control: has the router hear the session's control signals, so that a stream ends with its session also on
            a node that only listens (SR-322, SR-344).
        drain_timeout: seconds a turn's end waits for its events.
    """

    def __init__(
        self,
        *,
        bus: SessionSignalBus,
        journal: EventJournal | None,
        codec: EventCodec,
        sign: Sign,
        handler: SignalHandler,
        hear_control: Callable[[str], Awaitable[None]] | None = None,
        drain_timeout: float = DRAIN_SECONDS,
    ) -> None:
        self._bus = bus
        self._journal = journal
        self._codec = codec
        self._sign = sign
        self._handler = handler
        self._hear_control = hear_control
        self._drain_timeout = drain_timeout
        self._wheel: RelayWheel[TurnEvent] = RelayWheel()
        self._idle = trio.lowlevel.ParkingLot()
        self._progress = trio.Event()
        self._hub = EventHub()
        self._hub.on_change = self._listeners_changed
        self._ears: dict[str, _Ear] = {}
        self._listening = trio.Event()
        self._journal_rests_until = 0.0
        self._failing = 0

    def services(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Tasks that run as long as the router."""
        return (*(self._dispatch,) * DISPATCHERS, self._listen)

    # -- a turn --------------------------------------------------------------------------------------------------------

    def open_relay(self, session_id: str, turn_id: str) -> TurnEventRelay:
        """A new turn's relay."""
        return TurnEventRelay(self, self._wheel.open(session_id, turn_id))

    def relayed(self, relay: Relay[TurnEvent], event: TurnEvent) -> None:
        """An event of the turn that `relay` belongs to."""
        stamped = evolve(event, turn_id=relay.turn_id, seq=relay.next_seq(), ts=_epoch_ms())
        if relay.state is RelayState.OPEN:
            self._hub.emit(relay.session_id, stamped)
        self._wheel.push(relay, stamped, grade_of(stamped))
        self._idle.unpark()

    async def close_relay(self, relay: Relay[TurnEvent]) -> None:
        """See `TurnEventRelay.aclose`."""
        self._wheel.close(relay)
        self._idle.unpark()
        try:
            with trio.move_on_after(self._drain_timeout):
                while relay.state is not RelayState.DONE:
                    await self._progress.wait()
        finally:
            self._wheel.abandon(relay)
            self._idle.unpark()
            if relay.dropped:
                log.warning(
                    "%d events of a turn of session %r did not reach the other nodes", relay.dropped, relay.session_id
                )

    # -- what belongs to no turn ---------------------------------------------------------------------------------------

    def emit(self, session_id: str, event: TurnEvent) -> None:
        """To the subscribers on this node only."""
        self._hub.emit(session_id, event if event.ts else evolve(event, ts=_epoch_ms()))

    async def publish(self, session_id: str, event: TurnEvent) -> None:
        """To the subscribers on the other nodes, as it is. Failures are logged."""
        payload = self._encoded(event if event.ts else evolve(event, ts=_epoch_ms()))
        if payload is not None:
            try:
                await self._bus.publish(self._sign(session_id, SignalKind.EVENT, payload))
            except Exception as error:  # noqa: BLE001 - a bus of the application's
                log.warning("an event of session %r was not published: %r", session_id, error)

    def received(self, signal: SessionSignal) -> None:
        """An EVENT signal of another router."""
        event = self._codec.decode(signal.payload)
        if event is not None:
            self._hub.emit(signal.session_id, event)

    # -- subscribers ---------------------------------------------------------------------------------------------------

    def subscribe(self, session_id: str, from_seq: int | None = None) -> EventStream:
        """The session's events from now on, or the active turn's from number `from_seq` on (SR-397, SR-456).

        Raises ValueError for a number below 1.
        """
        if from_seq is None:
            return self._hub.subscribe(session_id)
        if isinstance(from_seq, bool) or not isinstance(from_seq, int) or from_seq < 1:
            raise ValueError(f"from_seq counts from 1, it cannot be {from_seq!r}")
        return self._hub.subscribe(session_id, replay=lambda: self._kept(session_id, from_seq))

    def has_subscribers(self, session_id: str) -> bool:
        """Whether anybody listens here."""
        return session_id in self._hub

    def complete(self, session_id: str) -> None:
        """The session's streams end, after what is buffered for them (SR-344)."""
        self._hub.complete(session_id)

    def complete_all(self) -> None:
        """All streams end: the router closes."""
        self._hub.complete_all()

    async def _kept(self, session_id: str, from_seq: int) -> tuple[str, int, list[TurnEvent]] | None:
        """The running turn's events as far as they are kept anywhere. The stream has been listening before."""
        relay = self._wheel.latest(session_id)
        if relay is not None:
            # Its own node. What is not in the journal yet is in the relay, as it is now.
            pending = relay.pending()
            kept = await self._read(session_id, relay.turn_id, from_seq)
            return relay.turn_id, from_seq, _merged(kept, pending)
        ear = self._ears.get(session_id)
        if ear is not None:
            with trio.move_on_after(HEAR_SECONDS):
                await ear.heard.wait()
        turn_id = await self._running_turn(session_id)
        if turn_id is None:
            return None
        return turn_id, from_seq, await self._read(session_id, turn_id, from_seq)

    async def _running_turn(self, session_id: str) -> str | None:
        journal = self._journal
        if journal is None:
            return None
        turn_id: str | None = await self._asked(lambda: journal.current(session_id), None)
        return turn_id

    async def _read(self, session_id: str, turn_id: str, from_seq: int) -> list[TurnEvent]:
        journal = self._journal
        if journal is None:
            return []
        frames = await self._asked(lambda: journal.read(session_id, turn_id, from_seq), [])
        events = []
        for frame in frames:
            try:
                event = self._codec.decode(unpack(frame.payload))
            except Exception as problem:  # noqa: BLE001 - msgpack's errors share no base class
                log.warning("a journal frame was ignored: %s", type(problem).__name__)
                continue
            if event is not None and event.turn_id == turn_id:
                events.append(event)
        return events

    async def _asked(self, call: Callable[[], Awaitable[Any]], otherwise: Any) -> Any:
        """The journal's answer; a journal that fails costs the replay, nothing else (SR-401)."""
        with trio.move_on_after(JOURNAL_SECONDS):
            try:
                return await call()
            except Exception as error:  # noqa: BLE001 - a journal of the application's
                log.warning("the event journal could not be read: %r", error)
                return otherwise
        log.warning("the event journal did not answer within %g s", JOURNAL_SECONDS)
        return otherwise

    # -- service: to the other nodes -----------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        while True:
            for relay in self._wheel.take_ended():
                if relay.last_seq:
                    await self._finish(relay)
            batch = self._wheel.next_batch()
            if batch is None:
                await self._idle.park()
                continue
            failed = len(batch.frames)
            try:
                failed = await self._send(batch)
            finally:
                self._wheel.settled(batch, failed=failed)
                self._progress.set()
                self._progress = trio.Event()

    async def _send(self, batch: Batch[TurnEvent]) -> int:
        """Publish a batch; how many of its frames did not go, as far as is known."""
        session_id = batch.relay.session_id
        frames = [(event, payload) for event in batch.frames if (payload := self._encoded(event)) is not None]
        if not frames:
            return 0
        await self._keep(batch.relay, frames)
        try:
            await self._bus.publish_all([self._sign(session_id, SignalKind.EVENT, payload) for _, payload in frames])
        except SignalPayloadError as error:
            log.warning("an event of session %r cannot be sent to other nodes: %s", session_id, error)
            return 1
        except Exception as error:  # noqa: BLE001 - a bus of the application's
            if not self._failing:
                log.warning("events are not reaching the other nodes: %r", error)
            self._failing += len(frames)
            return len(frames)
        if self._failing:
            log.info("events are reaching the other nodes again; %d were lost", self._failing)
            self._failing = 0
        return 0

    def _encoded(self, event: TurnEvent) -> dict[str, Any] | None:
        try:
            return self._codec.encode(event)
        except Exception:
            log.exception("the codec of %s failed", type(event).__name__)
            return None

    async def _keep(self, relay: Relay[TurnEvent], frames: Sequence[tuple[TurnEvent, Mapping[str, Any]]]) -> None:
        def append(journal: EventJournal) -> Awaitable[None]:
            kept = [JournalFrame(event.seq or 0, grade_of(event), pack(payload)) for event, payload in frames]
            return journal.append(relay.session_id, relay.turn_id, kept)

        await self._journalled(append)

    async def _finish(self, relay: Relay[TurnEvent]) -> None:
        await self._journalled(lambda journal: journal.finish(relay.session_id, relay.turn_id))

    async def _journalled(self, call: Callable[[EventJournal], Awaitable[None]]) -> None:
        if self._journal is None or trio.current_time() < self._journal_rests_until:
            return
        problem: object = f"no answer within {JOURNAL_SECONDS:g} s"
        with trio.move_on_after(JOURNAL_SECONDS):
            try:
                await call(self._journal)
                return
            except Exception as error:  # noqa: BLE001 - a journal of the application's
                problem = error
        self._journal_rests_until = trio.current_time() + JOURNAL_REST
        log.warning("the event journal failed and rests for %g s: %r", JOURNAL_REST, problem)

    # -- service: from the other nodes ---------------------------------------------------------------------------------

    def _listeners_changed(self, session_id: str) -> None:
        ear = self._ears.get(session_id)
        wanted = session_id in self._hub
        if ear is not None:
            ear.wanted = wanted
            ear.change.set()
        elif wanted:
            self._ears[session_id] = _Ear()
            self._listening.set()

    async def _listen(self) -> None:
        begun: set[str] = set()
        async with trio.open_nursery() as nursery:

            async def hear(session_id: str, ear: _Ear) -> None:
                try:
                    await self._hear(session_id, ear)
                finally:
                    begun.discard(session_id)
                    self._ears.pop(session_id, None)
                    self._listeners_changed(session_id)

            while True:
                for session_id, ear in tuple(self._ears.items()):
                    if session_id not in begun:
                        begun.add(session_id)
                        nursery.start_soon(hear, session_id, ear)
                self._listening = trio.Event()
                await self._listening.wait()

    async def _hear(self, session_id: str, ear: _Ear) -> None:
        subscription: Subscription | None = None
        try:
            while ear.wanted:
                ear.change = trio.Event()
                if subscription is None:
                    if self._hear_control is not None:
                        await self._hear_control(session_id)
                    try:
                        subscription = await self._bus.subscribe(session_id, self._take, events=True)
                    except Exception as error:  # noqa: BLE001 - a bus of the application's
                        log.warning("events of session %r are not heard here: %r", session_id, error)
                        ear.heard.set()
                        with trio.move_on_after(HEAR_RETRY):
                            await ear.change.wait()
                        continue
                    ear.heard.set()
                await ear.change.wait()
        finally:
            ear.heard.set()
            if subscription is not None:
                with trio.CancelScope(shield=True):
                    await subscription.aclose()

    def _take(self, signal: SessionSignal) -> None:
        # The router has a place of its own for control signals, which it keeps longer.
        if not signal.kind.is_control:
            self._handler(signal)


def _merged(kept: Sequence[TurnEvent], pending: Sequence[TurnEvent]) -> list[TurnEvent]:
    by_number = {event.seq or 0: event for event in (*kept, *pending)}
    return [by_number[seq] for seq in sorted(by_number)]


def _epoch_ms() -> int:
    """For people who read the event; nothing is decided by it."""
    return time.time_ns() // 1_000_000
