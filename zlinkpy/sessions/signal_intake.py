"""From received bytes to handlers: who subscribed to what, and in which order signals reach them.

Control first, always: a burst of 10,000 events in front of an INTERRUPT must not delay it (SR-091, SR-451). So
received signals stand in two lines. A *burst* hands out all control signals, then at most `EVENTS_PER_BURST` events,
then asks to be called again; between two bursts the event loop gets to run. Both lines are bounded; events are lost by
grade, control signals oldest first (re-ring and poll repair what a lost one would have said), and both are counted.

`SignalIntake.put` may be called on any thread, everything else belongs to the event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import trio
from attrs import define, field, frozen

from zlinkpy.sessions.graded_buffer import GradedBuffer
from zlinkpy.sessions.signal_codec import grade_of_signal
from zlinkpy.sessions.spi import SignalHandler
from zlinkpy.sessions.types import SessionSignal
from zlinkpy.telemetry import get_logger

log = get_logger("zlinkpy.sessions")

EVENTS_WAITING: Final = 8192
"""Events received and not handled yet. More than a turn's relay may hold for eight sessions; below 40 MB of text."""

CONTROL_WAITING: Final = 8192
"""Control signals received and not handled yet. A loop that does not take that many is blocked for seconds."""

BYTES_WAITING: Final = 32 << 20
"""Of each of the two lines, in coded bytes: signals may be large, and a count alone would bound nothing."""

EVENTS_PER_BURST: Final = 256


@define(eq=False)
class _Entry:
    handler: SignalHandler
    events: bool
    active: bool = True


@define(eq=False)
class _Session:
    entries: list[_Entry] = field(factory=list)
    event_handlers: int = 0


class Place:
    """One handler's place in the table."""

    __slots__ = ("_entry", "session_id", "wants_events")

    def __init__(self, session_id: str, entry: _Entry) -> None:
        self.session_id = session_id
        self.wants_events = entry.events
        self._entry = entry

    @property
    def active(self) -> bool:
        """False once it was removed."""
        return self._entry.active


class SubscriberTable:
    """The handlers of one bus, by session."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    def add(self, session_id: str, handler: SignalHandler, *, events: bool) -> Place:
        """Register `handler`."""
        session = self._sessions.setdefault(session_id, _Session())
        entry = _Entry(handler, events)
        session.entries.append(entry)
        session.event_handlers += events
        return Place(session_id, entry)

    def remove(self, place: Place) -> bool:
        """Take a handler out; it is not called again, not even for a signal that is being handed out. False: it was
        out already."""
        entry = place._entry
        if not entry.active:
            return False
        entry.active = False
        session = self._sessions[place.session_id]
        # A new list: a dispatch may be walking the old one.
        session.entries = [each for each in session.entries if each is not entry]
        session.event_handlers -= entry.events
        if not session.entries:
            del self._sessions[place.session_id]
        return True

    def has_event_handlers(self, session_id: str) -> bool:
        """True when somebody wants the session's EVENT and STATUS signals."""
        session = self._sessions.get(session_id)
        return session is not None and session.event_handlers > 0

    def with_events(self) -> list[str]:
        """The sessions somebody wants events of."""
        return [session_id for session_id, session in self._sessions.items() if session.event_handlers]

    def dispatch(self, signal: SessionSignal) -> None:
        """Call every handler of the session; what one raises touches no other (SR-083)."""
        session = self._sessions.get(signal.session_id)
        if session is None:
            return
        control = signal.kind.is_control
        for entry in session.entries:
            if entry.active and (control or entry.events):
                try:
                    entry.handler(signal)
                except Exception:
                    log.exception("a handler of %s signals failed", signal.kind.value)


@frozen
class IntakeStatistics:
    """What waits to be handled, and what was lost before it was."""

    control_waiting: int
    events_waiting: int
    control_lost: int
    events_lost: int


class SignalIntake:
    """The two lines in front of a table."""

    def __init__(self, table: SubscriberTable, *, events: int = EVENTS_WAITING, control: int = CONTROL_WAITING) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._control: GradedBuffer[SessionSignal] = GradedBuffer(control, BYTES_WAITING)
        self._events: GradedBuffer[SessionSignal] = GradedBuffer(events, BYTES_WAITING)
        self._due = False
        self._reported = 0

    def put(self, signal: SessionSignal, size: int) -> bool:
        """Queue a received signal of `size` bytes. True: no burst is due yet, so one has to be arranged."""
        with self._lock:
            line = self._control if signal.kind.is_control else self._events
            line.push(signal, grade_of_signal(signal), size)
            due, self._due = self._due, True
            return not due

    def claim(self) -> bool:
        """True when nothing waits and no burst is due: the caller hands out one signal itself. A burst is then due."""
        with self._lock:
            due, self._due = self._due, True
            return not due

    def burst(self) -> bool:
        """Hand out all control signals and some events. True: call again, after others had a chance."""
        with self._lock:
            control = self._control.take(len(self._control))
            events = self._events.take(EVENTS_PER_BURST)
            more = self._due = len(self._events) > 0
            lost, self._reported = self._control.dropped - self._reported, self._control.dropped
        if lost:
            log.warning("lost %d control signals: the event loop did not take them in time", lost)
        dispatch = self._table.dispatch
        for signal in control:
            dispatch(signal)
        for signal in events:
            # A control signal that comes in while the events before it are handled does not wait for the rest.
            while len(self._control):
                with self._lock:
                    urgent = self._control.pop()
                dispatch(urgent)
            dispatch(signal)
        return more

    def statistics(self) -> IntakeStatistics:
        """A copy of the counters."""
        with self._lock:
            return IntakeStatistics(
                control_waiting=len(self._control),
                events_waiting=len(self._events),
                control_lost=self._control.dropped,
                events_lost=self._events.dropped,
            )


def call_in(token: trio.lowlevel.TrioToken, function: Callable[[], object]) -> None:
    """Have `function` called on the loop; nothing happens when the loop is over."""
    try:
        token.run_sync_soon(function)
    except trio.RunFinishedError:
        pass


Unsubscribe = Callable[[Place], None]


class TableSubscription:
    """The `Subscription` of a bus with a table."""

    __slots__ = ("_place", "_remove")

    def __init__(self, place: Place, remove: Unsubscribe) -> None:
        self._place = place
        self._remove = remove

    async def aclose(self) -> None:
        """End it; the handler is not called again. Idempotent, and never waits."""
        self._remove(self._place)
