"""The owner lease of one process run as a machine: claim, renew, put back, release. Pure (facts §6, LO-100..115,
LO-120).

    UNCLAIMED   --claimed-->  HELD   --row gone-->  LAPSED  --put back-->  HELD
    UNCLAIMED, HELD, LAPSED   --row has other bytes, or no number left-->  LOST      (never writes again)
    UNCLAIMED, HELD, LAPSED   --release-->                                 RELEASED

Invariants:

* `own_deadline` is set from completed answers only: the time *before* the request was sent, plus what the store says
  is left, minus the margin. A late answer therefore makes it earlier relative to now, never later, and what is left
  is clamped to the TTL, so that a store clock that jumps back gives nothing away (LO-120, LO-373).
* Rounds start on a grid: the previous start plus the interval, or at once when the round took longer. There is one
  round at a time and one request at a time (LO-107).
* After a lost answer the row is read and decides (LO-105, LO-180). A claim whose answer was lost may still land after
  a read that did not see it, so its bytes stay known for the machine's life: found later, they are ours.
  Found while another combination is held (the store was emptied in between), they are no foreign owner: the held one
  replaces them.
* A claim or put-back that is still on its way (`_loose`) could put the row back after it was gone, and a renewal would
  not notice that it had been. While there is one, renewals are conditioned on the version, and a version that cannot
  be explained counts as put back: everything is verified again, once too often rather than never (LO-126).
* `is_valid` reads one attribute, so that another thread than the one that drives the machine may call it.

Rejected: conditioning every renewal on the version. A lost answer would then cost a read each time; everybody who
conditions on this lease conditions on the bytes (C1), and so does a renewal where nothing is loose.
"""

from __future__ import annotations

import math
from enum import Enum, auto

from attrs import frozen

from zlinkpy.errors import ConfigurationError, ZlinkError
from zlinkpy.location import keys
from zlinkpy.location.counters import GenerationExhausted, take
from zlinkpy.location.options import LocationOptions
from zlinkpy.location.requests import Answer, Batch, Lookup, Request
from zlinkpy.location.rows import LeaseRow, lease_remaining
from zlinkpy.location.store import (
    Applied,
    Conflict,
    Delete,
    Found,
    IfMissing,
    IfValue,
    IfVersion,
    Missing,
    Put,
    StoreCorruption,
    StoreFailure,
)


class LeaseState(Enum):
    """Where the lease stands."""

    UNCLAIMED = "unclaimed"
    HELD = "held"
    LAPSED = "lapsed"
    LOST = "lost"
    RELEASED = "released"


class LeaseEventKind(Enum):
    """What happened to the lease."""

    CLAIMED = "claimed"
    RENEWED = "renewed"
    FAILED = "failed"
    """A round ended without success; nothing else changed."""
    EXPIRED = "expired"
    """The own deadline passed: blocked until the next success."""
    LAPSED = "lapsed"
    RESTORED = "restored"
    """The same combination was put back: descriptors are republished, owned objects verified (LO-110)."""
    LOST = "lost"
    RELEASED = "released"


LEASE_CONFIRMED = frozenset({LeaseEventKind.CLAIMED, LeaseEventKind.RENEWED, LeaseEventKind.RESTORED})
"""The events that come with a new own deadline."""


@frozen
class LeaseEvent:
    """One event at host time `at`, with the own deadline as it is after it."""

    kind: LeaseEventKind
    at: float
    own_deadline: float | None
    detail: str = ""


class _Step(Enum):
    """What the request in flight is for."""

    COUNTER = auto()
    CLAIM = auto()
    CLAIM_CHECK = auto()
    RENEW = auto()
    CHECK = auto()
    PUT_BACK = auto()
    RELEASE = auto()
    RELEASE_CHECK = auto()


class LeaseMachine:
    """See the module. Times are seconds of one monotonic clock; `now` never goes back."""

    def __init__(self, options: LocationOptions, owner_id: str) -> None:
        self.owner_id = owner_id
        self.state = LeaseState.UNCLAIMED
        self.lease_generation: int | None = None
        self.own_deadline: float | None = None
        self.epoch = 0
        """How often the lease was put back. Work verified under an older epoch must be verified again (LO-126)."""
        self.failure: ZlinkError | None = None
        """Why the lease is LOST."""
        self._options = options
        self._key = keys.owner_lease(owner_id)
        self._row = b""
        self._version = ""
        self._unresolved: dict[bytes, int] = {}
        self._loose = 0
        self._lost_answers = 0
        self._step: _Step | None = None
        self._stopping = False
        self._due = -math.inf
        self._round_start = self._round_end = self._sent_at = -math.inf
        self._candidate = b""
        self._candidate_generation = 0
        self._events: list[LeaseEvent] = []

    # Reading.

    def is_valid(self, now: float) -> bool:
        """True while this host may act as an owner (LO-121)."""
        deadline = self.own_deadline
        return deadline is not None and now < deadline

    @property
    def row(self) -> bytes | None:
        """The canonical bytes for an `IfValue` on this lease, or None before it was claimed."""
        return self._row or None

    def next_deadline(self) -> float | None:
        """When `poll` starts the next round; None while a request is in flight and at the end."""
        if self._step is not None or self._stopping or self.state in (LeaseState.LOST, LeaseState.RELEASED):
            return None
        return self._due

    def take_events(self) -> list[LeaseEvent]:
        """The events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    # Driving.

    def poll(self, now: float) -> Request | None:
        """Start the round that is due, if one is. The caller performs the request at once."""
        due = self.next_deadline()
        if due is None or now < due:
            return None
        self._begin_round(now)
        if self.state is not LeaseState.UNCLAIMED:
            return self._renew(now)
        return self._lookup(_Step.CLAIM_CHECK, self._key, now) if self._unresolved else self._read_counter(now)

    def settle(self, answer: Answer, now: float) -> Request | None:
        """Take the answer to the request in flight; returns the next request of the round, None when it has ended."""
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError(f"no request of the lease of {self.owner_id} is in flight")
        if step is _Step.RELEASE or step is _Step.RELEASE_CHECK:
            return self._settle_release(step, answer, now)
        if step is _Step.COUNTER or step is _Step.CLAIM or step is _Step.CLAIM_CHECK:
            return self._settle_claim(step, answer, now)
        return self._settle_held(step, answer, now)

    def stop(self) -> None:
        """Start no further round, and no further request of the current one: only `release` is left."""
        self._stopping = True

    def release(self, now: float) -> Request | None:
        """Begin to give the lease up, after `stop` and with nothing in flight. None: there is nothing to give up
        (LO-113).

        A claim whose fate is unknown is looked up and released, too (LO-106).
        """
        self._stopping = True
        if self.state in (LeaseState.LOST, LeaseState.RELEASED):
            return None
        self._begin_round(now)
        if self.state is LeaseState.UNCLAIMED:
            return self._lookup(_Step.RELEASE_CHECK, self._key, now) if self._unresolved else self._released(now)
        return self._delete(self._row, now)

    # Rounds.

    def _begin_round(self, now: float) -> None:
        self._round_start = now
        self._round_end = now + self._options.owner_lease_renew_timeout
        self._lost_answers = 0

    def _end_round(self, now: float) -> None:
        self._due = max(self._round_start + self._options.owner_lease_renew_interval, now)

    def _emit(self, kind: LeaseEventKind, now: float, detail: str = "") -> None:
        self._events.append(LeaseEvent(kind, now, self.own_deadline, detail))

    # The methods that end a round return None, the absence of a next request, so that a step can end with one of
    # them.

    def _failed(self, now: float, detail: str) -> Request | None:
        self._end_round(now)
        self._emit(LeaseEventKind.FAILED, now, detail)
        return None

    def _lost(self, now: float, failure: ZlinkError) -> Request | None:
        self.state = LeaseState.LOST
        self.own_deadline = None
        self.failure = failure
        self._emit(LeaseEventKind.LOST, now, failure.message)
        return None

    def _room(self, now: float) -> bool:
        """True when the round may send another request."""
        return not self._stopping and now < self._round_end

    def _may_repeat(self, now: float) -> bool:
        """True when the round may send its write again: a store that loses answer after answer is left alone."""
        return self._room(now) and self._lost_answers <= 1

    def _send(self, step: _Step, request: Request, now: float) -> Request:
        self._step = step
        self._sent_at = now
        return request

    def _lookup(self, step: _Step, key: bytes, now: float) -> Request:
        return self._send(step, Lookup(key, self._round_end - now), now)

    # Claiming.

    def _read_counter(self, now: float) -> Request:
        return self._lookup(_Step.COUNTER, keys.OWNER_COUNTER, now)

    def _settle_claim(self, step: _Step, answer: Answer, now: float) -> Request | None:
        if isinstance(answer, StoreCorruption | ConfigurationError):
            return self._lost(now, answer)
        if step is _Step.CLAIM:
            return self._claim_answered(answer, now)
        if isinstance(answer, Missing | Found):
            return self._counter_read(answer, now) if step is _Step.COUNTER else self._claim_checked(answer, now)
        return self._failed(now, _text(answer))

    def _counter_read(self, counter: Missing | Found, now: float) -> Request | None:
        if not self._room(now):
            return self._failed(now, "no time was left to claim the owner lease")
        try:
            block = take(keys.OWNER_COUNTER, counter)
        except (GenerationExhausted, StoreCorruption) as failure:
            return self._lost(now, failure)
        self._candidate_generation = block.first
        self._candidate = LeaseRow(self.owner_id, block.first).encode()
        put = Put(self._key, self._candidate, self._options.ttl_ms)
        # Half of what is left: the other half is for reading back when no answer comes (LO-105).
        timeout = (self._round_end - now) / 2
        return self._send(_Step.CLAIM, Batch((IfMissing(self._key), block.condition), (put, block.put), timeout), now)

    def _claim_answered(self, answer: Answer, now: float) -> Request | None:
        if isinstance(answer, Applied):
            self._version = answer.versions[self._key]
            return self._hold(self._candidate, self._candidate_generation, self._options.owner_lease_ttl, now)
        if isinstance(answer, StoreFailure):
            if answer.applied == "no":
                return self._failed(now, _text(answer))
            self._unresolved[self._candidate] = self._candidate_generation
            self._loose += 1
            self._lost_answers += 1
        if not self._room(now):
            return self._failed(now, _text(answer))
        return self._lookup(_Step.CLAIM_CHECK, self._key, now)

    def _claim_checked(self, found: Missing | Found, now: float) -> Request | None:
        if isinstance(found, Missing):
            # Only the counter moved, or the claim did not arrive (yet): claim again within the same time (LO-102).
            return (
                self._read_counter(now) if self._may_repeat(now) else self._failed(now, "the claim was not confirmed")
            )
        generation = self._unresolved.get(found.value)
        if generation is None:
            return self._lost(now, self._taken())
        try:
            remaining = lease_remaining(found)
        except StoreCorruption as failure:
            return self._lost(now, failure)
        self._version = found.version
        self._loose -= 1
        return self._hold(found.value, generation, remaining, now)

    def _taken(self) -> ConfigurationError:
        return ConfigurationError(
            f"owner id {self.owner_id} is in use by another run; give every process an owner id of its own"
        )

    def _hold(self, row: bytes, generation: int, remaining: float, now: float) -> Request | None:
        self._row, self.lease_generation = row, generation
        self._unresolved.pop(row, None)
        self.state = LeaseState.HELD
        self._extend(remaining)
        self._end_round(now)
        self._emit(LeaseEventKind.CLAIMED, now)
        return None

    def _extend(self, remaining: float) -> None:
        left = min(remaining, self._options.owner_lease_ttl) - self._options.owner_lease_fencing_margin
        deadline = self._sent_at + left
        if self.own_deadline is None or deadline > self.own_deadline:
            self.own_deadline = deadline

    # Keeping.

    def _renew(self, now: float) -> Request:
        put = Put(self._key, self._row, self._options.ttl_ms)
        condition = IfVersion(self._key, self._version) if self._loose else IfValue(self._key, self._row)
        return self._send(_Step.RENEW, Batch((condition,), (put,), self._round_end - now), now)

    def _settle_held(self, step: _Step, answer: Answer, now: float) -> Request | None:
        if isinstance(answer, Applied):
            self._version = answer.versions[self._key]
            return self._renewed(self._options.owner_lease_ttl, now)
        if isinstance(answer, Missing | Found):
            return self._checked(answer, now)
        lost = isinstance(answer, StoreFailure) and answer.applied == "unknown"
        self._lost_answers += lost
        self._loose += lost and step is _Step.PUT_BACK
        if not (lost or isinstance(answer, Conflict)) or step is _Step.CHECK or not self._room(now):
            return self._failed(now, _text(answer))
        return self._lookup(_Step.CHECK, self._key, now)

    def _checked(self, found: Missing | Found, now: float) -> Request | None:
        if isinstance(found, Missing):
            return self._lapsed(IfMissing(self._key), now)
        if found.value in self._unresolved:
            return self._lapsed(IfValue(self._key, found.value), now)
        if found.value != self._row:
            return self._lost(now, self._taken())
        try:
            remaining = lease_remaining(found)
        except StoreCorruption as failure:
            return self._failed(now, failure.message)
        if self.state is LeaseState.LAPSED:
            self._loose = max(0, self._loose - 1)
        elif found.version != self._version and self._loose:
            self._gone(now)
        if found.version != self._version or self.state is LeaseState.LAPSED:
            self._version = found.version
            return self._renewed(remaining, now)
        # The row is as it was before the lost answer: the renewal did not happen.
        self._extend(remaining)
        return self._renew(now) if self._may_repeat(now) else self._failed(now, "the renewal was not confirmed")

    def _renewed(self, remaining: float, now: float) -> Request | None:
        restored = self.state is LeaseState.LAPSED
        self.state = LeaseState.HELD
        self._extend(remaining)
        self._end_round(now)
        if restored:
            self.epoch += 1
        self._emit(LeaseEventKind.RESTORED if restored else LeaseEventKind.RENEWED, now)
        return None

    def _lapsed(self, free: IfMissing | IfValue, now: float) -> Request | None:
        self._gone(now)
        if not self._may_repeat(now):
            return self._failed(now, "the lease could not be put back yet")
        put = Put(self._key, self._row, self._options.ttl_ms)
        return self._send(_Step.PUT_BACK, Batch((free,), (put,), self._round_end - now), now)

    def _gone(self, now: float) -> None:
        if self.state is not LeaseState.LAPSED:
            self.state = LeaseState.LAPSED
            self.own_deadline = None
            self._emit(LeaseEventKind.LAPSED, now, "the lease row was gone")

    # Ending.

    def _delete(self, row: bytes, now: float) -> Request:
        batch = Batch((IfValue(self._key, row),), (Delete(self._key),), (self._round_end - now) / 2)
        self._candidate = row
        return self._send(_Step.RELEASE, batch, now)

    def _settle_release(self, step: _Step, answer: Answer, now: float) -> Request | None:
        if now < self._round_end:
            if step is _Step.RELEASE and isinstance(answer, StoreFailure) and answer.applied == "unknown":
                return self._lookup(_Step.RELEASE_CHECK, self._key, now)
            if isinstance(answer, Found) and (answer.value == self._row or answer.value in self._unresolved):
                return self._delete(answer.value, now)
        return self._released(now, _text(answer) if isinstance(answer, Exception) else "")

    def _released(self, now: float, detail: str = "") -> Request | None:
        self.state = LeaseState.RELEASED
        self.own_deadline = None
        self._emit(LeaseEventKind.RELEASED, now, detail)
        return None


def _text(answer: Answer) -> str:
    return answer.message if isinstance(answer, ZlinkError) else "another writer was faster"
