"""The way of a turn's events to other nodes: one relay per turn, one wheel per node (SR-326..338). Pure.

A relay belongs to one turn, numbers its events from 1 (before any is dropped), and keeps at most `RELAY_CAPACITY` of
them. The wheel turns over the sessions that have something to send and takes one batch from each in turn, so that a
talkative session delays the others by one batch and no more. Within a session the turns keep their order: nothing of a
turn is sent before everything of the turn before it.

    relay      event                next       effect
    OPEN       push                 OPEN       buffered, or dropped by grade and counted
    OPEN       close                CLOSING    what is buffered still goes
    CLOSING    empty                DONE       out of the wheel
    CLOSING    abandon              ABANDONED  deltas are dropped and counted; structural frames still go
    ABANDONED  empty                DONE       out of the wheel
    any but OPEN  push              as it was  dropped and counted
    any        batch failed         as it was  its frames are counted as dropped; they are not sent again
    any        batch done           as it was  the next session's batch

Frames under way count as not sent: a relay is empty when its last batch was settled.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final, Generic, TypeVar

from attrs import define, frozen

from zlinkpy.sessions.graded_buffer import GradedBuffer

RELAY_CAPACITY: Final = 1024
BATCH_LIMIT: Final = 256

F = TypeVar("F")


class RelayState(Enum):
    OPEN = "open"
    CLOSING = "closing"
    ABANDONED = "abandoned"
    DONE = "done"


@define(eq=False)
class Relay(Generic[F]):
    """The events of one turn. Made by `RelayWheel.open`."""

    session_id: str
    turn_id: str
    buffer: GradedBuffer[F]
    state: RelayState = RelayState.OPEN
    under_way: tuple[F, ...] = ()
    lost: int = 0
    """Frames of batches that failed, and frames that came after the end."""
    _seq: int = 0

    def next_seq(self) -> int:
        """The number of the next event."""
        self._seq += 1
        return self._seq

    @property
    def last_seq(self) -> int:
        """The number of the last event; 0 before the first."""
        return self._seq

    @property
    def is_empty(self) -> bool:
        """True when nothing is left to send."""
        return not len(self.buffer) and not self.under_way

    @property
    def dropped(self) -> int:
        """Events that other nodes will not get."""
        return self.buffer.dropped + self.lost

    def pending(self) -> list[F]:
        """What is not sent yet, oldest first."""
        return [*self.under_way, *self.buffer.items()]


@frozen
class Batch(Generic[F]):
    """Frames of one relay, to be sent in this order."""

    relay: Relay[F]
    frames: tuple[F, ...]


class RelayWheel(Generic[F]):
    """The relays of one node."""

    def __init__(self, *, capacity: int = RELAY_CAPACITY) -> None:
        self._capacity = capacity
        self._turns: dict[str, deque[Relay[F]]] = {}
        self._ended: list[Relay[F]] = []
        self._ring: deque[str] = deque()
        self._in_ring: set[str] = set()

    def __len__(self) -> int:
        """Relays that are not done."""
        return sum(len(turns) for turns in self._turns.values())

    def open(self, session_id: str, turn_id: str) -> Relay[F]:
        """A new turn begins."""
        relay: Relay[F] = Relay(session_id, turn_id, GradedBuffer(self._capacity))
        self._turns.setdefault(session_id, deque()).append(relay)
        return relay

    def latest(self, session_id: str) -> Relay[F] | None:
        """The relay of the session's last turn here, until it is done."""
        turns = self._turns.get(session_id)
        return turns[-1] if turns else None

    def take_ended(self) -> list[Relay[F]]:
        """The relays that are done, each once."""
        ended, self._ended = self._ended, []
        return ended

    def push(self, relay: Relay[F], frame: F, grade: int) -> None:
        """Buffer a frame of `relay`, which it may cost another one, or its own place."""
        if relay.state is not RelayState.OPEN:
            relay.lost += 1
            return
        relay.buffer.push(frame, grade)
        self._enter(relay.session_id)

    def close(self, relay: Relay[F]) -> None:
        """The turn is over."""
        if relay.state is RelayState.OPEN:
            relay.state = RelayState.CLOSING
            self._tidy(relay.session_id)

    def abandon(self, relay: Relay[F]) -> None:
        """Its time is over: only structural frames still go."""
        if relay.state is RelayState.CLOSING:
            relay.state = RelayState.ABANDONED
            relay.buffer.abandon()
            self._tidy(relay.session_id)

    def next_batch(self) -> Batch[F] | None:
        """The next batch, which is then under way; None when there is nothing to send."""
        while self._ring:
            session_id = self._ring.popleft()
            self._in_ring.discard(session_id)
            for relay in self._turns.get(session_id, ()):
                if relay.under_way:
                    break
                if len(relay.buffer):
                    relay.under_way = tuple(relay.buffer.take(BATCH_LIMIT))
                    return Batch(relay, relay.under_way)
        return None

    def settled(self, batch: Batch[F], *, failed: int = 0) -> None:
        """The batch was handed to the bus, all but `failed` of its frames. Its session goes to the end of the ring."""
        relay = batch.relay
        relay.under_way = ()
        relay.lost += failed
        self._tidy(relay.session_id)
        if any(len(each.buffer) for each in self._turns.get(relay.session_id, ())):
            self._enter(relay.session_id)

    def _enter(self, session_id: str) -> None:
        if session_id not in self._in_ring:
            self._in_ring.add(session_id)
            self._ring.append(session_id)

    def _tidy(self, session_id: str) -> None:
        turns = self._turns.get(session_id)
        if turns is None:
            return
        for relay in [each for each in turns if each.state is not RelayState.OPEN and each.is_empty]:
            relay.state = RelayState.DONE
            self._ended.append(relay)
            turns.remove(relay)
        if not turns:
            del self._turns[session_id]
