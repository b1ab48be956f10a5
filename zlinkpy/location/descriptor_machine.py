"""Keeping one descriptor row equal to what its publisher last said, as a machine. Pure (facts §5, LO-130..144).

One machine for every kind of descriptor: what sets the kinds apart is asked of the `DescriptorKind`.

The machine knows what is *wanted*, what was last *sent* and what is *stored*; a round makes the latter two follow the
first.

* One publication is in flight; what was wanted in between is skipped, the latest content wins (LO-135).
* A revision is spent when it is first sent, whether or not the answer came back, together with the exact row bytes.
  The same content goes out again with the same bytes, other content with the next revision: no revision ever has two
  contents.
* After a lost answer or a Conflict the row is read and decides (LO-180). A row of a live foreign owner is a refusal,
  for good (LO-148); a row of a dead one is replaced, on condition that its owner is still as it was read.
* Identity is checked when content is wanted, not when it is sent: the caller that wants it hears of it (LO-138).

Rejected: repeating a publication without reading first. A batch that was applied would then fail on its own version
and look like somebody else's.
"""

from __future__ import annotations

from enum import Enum, auto

from zlinkpy.errors import ConfigurationError, InvalidOperationError, ZlinkError
from zlinkpy.location import keys
from zlinkpy.location.counters import GenerationExhausted
from zlinkpy.location.descriptor_kind import Descriptor
from zlinkpy.location.options import LocationOptions
from zlinkpy.location.requests import Answer, Batch, Lookup, Request
from zlinkpy.location.rows import GENERATION_MAX, EntryClaimRow, LeaseRow, decode_entry_claim, lease_remaining
from zlinkpy.location.store import (
    Applied,
    Condition,
    Conflict,
    Delete,
    Found,
    IfMissing,
    IfValue,
    IfVersion,
    Missing,
    Mutation,
    Put,
    StoreCorruption,
    StoreFailure,
)


class _Step(Enum):
    """What the request in flight is for."""

    WRITE = auto()
    CHECK = auto()
    CLAIM_CHECK = auto()
    HOLDER = auto()
    REMOVE = auto()
    REMOVE_CHECK = auto()


class _Why(Enum):
    """Why the row is being read."""

    CONFLICT = auto()
    LOST_ANSWER = auto()
    VERIFY = auto()


class DescriptorMachine:
    """See the module. Times are seconds of one monotonic clock."""

    def __init__(self, options: LocationOptions, first: Descriptor, owner_id: str) -> None:
        """Raises ConfigurationError when `first` cannot be published whole (LO-081)."""
        self._kind = first.kind
        self._kind.check_publishable(first)
        self.failure: ZlinkError | None = None
        """Why nothing is published any more: the host's ERROR."""
        self.is_failing = False
        """True when the newest content was tried and could not be stored; it is tried again."""
        self.failed_attempts = 0
        """How often that happened: a next try may begin before anybody has seen the flag."""
        self.last_error = ""
        self._options = options
        self._owner_id = owner_id
        self._key = self._kind.key_of(first)
        self._claim_key = None if first.claimed_spot is None else keys.entry_spot(first.claimed_spot)
        self._wanted = first
        self._sent: Descriptor | None = None
        self._sent_row = b""
        self._stored: Descriptor | None = None
        self._version: str | None = None
        self._row_condition: Condition = IfMissing(self._key)
        self._claim_condition: Condition | None = self._claim_free()
        self._holders: dict[bytes, Condition] = {}
        self._verify = False
        self._restored = False
        self._ended = False
        self._step: _Step | None = None
        self._why = _Why.CONFLICT
        self._contested: tuple[bytes, Found, str, int] | None = None
        self._round_start = 0.0
        self._round_content = first
        self._used: list[Condition] = []
        self._lost_answers = 0
        self._due: float | None = None
        self._lease_row = b""
        self._lease_generation = 0
        self._stamp = 0

    # Reading.

    @property
    def revision(self) -> int:
        """The stored revision, 0 before the first is confirmed."""
        return 0 if self._stored is None else self._stored.descriptor_revision

    @property
    def wanted(self) -> Descriptor:
        return self._wanted

    @property
    def is_current(self) -> bool:
        """True when the store is known to have the newest content, and nothing else of ours can still arrive there."""
        if self._version is None or self._stored is None or self._sent is None or self._verify or self._restored:
            return False
        # The content alone is not enough: a later revision whose answer was lost may be on its way.
        newest = self._stored.descriptor_revision == self._sent.descriptor_revision
        return newest and self._kind.same_content(self._stored, self._wanted)

    @property
    def in_flight(self) -> bool:
        return self._step is not None

    def next_deadline(self) -> float | None:
        """When `poll` has something to do; None when only a change gives it something to do."""
        if self._step is not None or self._ended or self.failure is not None or self.is_current:
            return None
        return self._round_start if self._due is None else self._due

    # Driving.

    def want(self, descriptor: Descriptor) -> None:
        """Take new content; the next `poll` publishes it. Equal content changes nothing (LO-133, LO-137).

        Raises InvalidOperationError when it would change who is described (LO-138).
        """
        name = self._kind.changed_identity(self._wanted, descriptor)
        if name is not None:
            raise InvalidOperationError(
                f"{name} of {descriptor.rid} cannot change while it is published; start anew for that"
            )
        changed = not self._kind.same_content(self._wanted, descriptor)
        self._wanted = descriptor
        if changed:
            self.is_failing = False
            self._due = None

    def verify(self) -> None:
        """The lease was put back: the row may be gone with it, so look (LO-110, LO-192)."""
        # Apart from `_verify`: an answer that is under way began before the restoration and proves nothing about it.
        self._restored = True
        self._due = None

    def poll(self, now: float, lease_row: bytes, lease_generation: int, stamp: int) -> Request | None:
        """Start a round when there is something to do. Call it while the lease is valid.

        `lease_row` are the lease's bytes; `stamp` is wall-clock milliseconds, displayed only.
        """
        due = self.next_deadline()
        if due is None or now < due:
            return None
        self._lease_row, self._lease_generation, self._stamp = lease_row, lease_generation, stamp
        self._round_start = now
        self._round_content = self._wanted
        self._lost_answers = 0
        self._verify, self._restored = self._verify or self._restored, False
        if self._verify:
            return self._check(_Why.VERIFY, now)
        return self._write(now)

    def settle(self, answer: Answer, now: float) -> Request | None:
        """Take the answer to the request in flight; returns the next request of the round, None when it has ended."""
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError(f"no request for the descriptor of {self._wanted.rid} is in flight")
        if isinstance(answer, StoreCorruption) and step is not _Step.REMOVE and step is not _Step.REMOVE_CHECK:
            return self._refused(answer)
        if step is _Step.REMOVE or step is _Step.REMOVE_CHECK:
            return self._settle_remove(step, answer, now)
        if step is _Step.WRITE:
            return self._written(answer, now)
        if not isinstance(answer, Missing | Found):
            return self._failed(now, _text(answer))
        if step is _Step.CHECK:
            return self._checked(answer, now)
        if step is _Step.CLAIM_CHECK:
            return self._claim_checked(answer, now)
        return self._holder_read(answer, now)

    def remove(self, now: float) -> Request | None:
        """Begin to delete the row and the Entry claim, with nothing in flight. None: nothing of ours is there
        (LO-144).
        """
        self._ended = True
        self._round_start = now
        if self._sent is None:
            return None
        if self._version is None:
            return self._lookup(_Step.REMOVE_CHECK, self._key, now)
        return self._delete(now)

    # Writing.

    def _room(self, now: float) -> bool:
        return not self._ended and now < self._round_end

    @property
    def _round_end(self) -> float:
        return self._round_start + self._options.owner_lease_renew_timeout

    def _lookup(self, step: _Step, key: bytes, now: float) -> Request:
        self._step = step
        return Lookup(key, self._round_end - now)

    def _batch(self, step: _Step, conditions: list[Condition], mutations: list[Mutation], now: float) -> Request:
        self._step = step
        # Half of what is left: the other half is for reading back when no answer comes (LO-180).
        return Batch(tuple(conditions), tuple(mutations), (self._round_end - now) / 2)

    def _conditions(self) -> list[Condition]:
        lease = IfValue(keys.owner_lease(self._owner_id), self._lease_row)
        claim = [] if self._claim_condition is None else [self._claim_condition]
        return [self._row_condition, lease, *claim, *self._holders.values()]

    def _write(self, now: float) -> Request | None:
        if self._sent is None or not self._kind.same_content(self._sent, self._wanted):
            revision = 1 if self._sent is None else self._sent.descriptor_revision + 1
            if revision > GENERATION_MAX:
                return self._refused(GenerationExhausted())
            self._sent = self._wanted.signed(revision, self._owner_id, self._lease_generation)
            self._sent_row = self._kind.encode(self._sent, self._stamp)
        self._used = self._conditions()
        mutations: list[Mutation] = [Put(self._key, self._sent_row)]
        if self._claim_key is not None and self._claim_condition is not None:
            mutations.append(Put(self._claim_key, self._claim_row()))
        return self._batch(_Step.WRITE, self._used, mutations, now)

    def _claim_row(self) -> bytes:
        return EntryClaimRow(self._wanted.scope, self._wanted.rid, self._owner_id, self._lease_generation).encode()

    def _claim_free(self) -> Condition | None:
        return None if self._claim_key is None else IfMissing(self._claim_key)

    def _written(self, answer: Answer, now: float) -> Request | None:
        if isinstance(answer, Applied):
            return self._confirmed(self._sent, answer.versions[self._key], now)
        if isinstance(answer, Conflict) and self._room(now):
            return self._check(_Why.CONFLICT, now)
        lost = isinstance(answer, StoreFailure) and answer.applied == "unknown"
        self._lost_answers += lost
        if lost and self._room(now):
            return self._check(_Why.LOST_ANSWER, now)
        # With no time left to read, the next round begins with reading.
        self._verify = self._verify or lost or isinstance(answer, Conflict)
        return self._failed(now, _text(answer))

    def _confirmed(self, stored: Descriptor | None, version: str, now: float) -> Request | None:
        self._stored, self._version = stored, version
        self._row_condition, self._claim_condition = IfVersion(self._key, version), None
        self._holders.clear()
        self._verify = False
        if self.is_current:
            self.is_failing = False
            self._due = None
            return None
        if stored is not self._sent and self._kind.same_content(self._round_content, self._wanted):
            return self._again(now)
        # Something newer is wanted by now: it gets a round of its own, at once.
        self._due = now
        return None

    # Reading back.

    def _check(self, why: _Why, now: float) -> Request:
        self._why = why
        self._verify = True
        return self._lookup(_Step.CHECK, self._key, now)

    def _checked(self, found: Missing | Found, now: float) -> Request | None:
        if isinstance(found, Missing):
            return self._row_missing(now)
        try:
            row = self._kind.decode(found.value)
        except StoreCorruption as failure:
            return self._refused(failure)
        if row.owner_id != self._owner_id or row.lease_generation != self._lease_generation:
            return self._contest(self._key, found, row.owner_id, row.lease_generation, now)
        if row.lifecycle_generation != self._wanted.lifecycle_generation:
            return self._refused(self._taken())
        if self._why is _Why.CONFLICT and found.version == self._version:
            return self._failed(now, "the owner lease was not in the store")
        if self._sent is None or row.descriptor_revision > self._sent.descriptor_revision:
            self._sent, self._sent_row = row, found.value
        return self._confirmed(
            self._sent if row.descriptor_revision == self._sent.descriptor_revision else row, found.version, now
        )

    def _row_missing(self, now: float) -> Request | None:
        self._version = None
        self._verify = False
        self._row_condition = IfMissing(self._key)
        return self._check_claim(now)

    def _check_claim(self, now: float) -> Request | None:
        if self._claim_key is None:
            return self._again(now)
        return self._lookup(_Step.CLAIM_CHECK, self._claim_key, now)

    def _claim_checked(self, found: Missing | Found, now: float) -> Request | None:
        assert self._claim_key is not None
        if isinstance(found, Missing):
            self._claim_condition = IfMissing(self._claim_key)
            return self._again(now)
        if found.value == self._claim_row():
            self._claim_condition = IfVersion(self._claim_key, found.version)
            return self._again(now)
        try:
            claim = decode_entry_claim(found.value)
        except StoreCorruption as failure:
            return self._refused(failure)
        return self._contest(self._claim_key, found, claim.owner_id, claim.lease_generation, now)

    def _again(self, now: float) -> Request | None:
        # Refused, and everything else is as the refused batch said: then it was the lease, and repeating would spin.
        if self._why is _Why.CONFLICT and self._conditions() == self._used:
            return self._failed(now, "the owner lease was not in the store")
        # A store that loses answer after answer is left alone until the next round.
        if self._room(now) and self._lost_answers <= 1:
            return self._write(now)
        return self._failed(now, "the publication was not confirmed")

    def _contest(self, key: bytes, found: Found, owner_id: str, generation: int, now: float) -> Request:
        self._contested = (key, found, owner_id, generation)
        return self._lookup(_Step.HOLDER, keys.owner_lease(owner_id), now)

    def _holder_read(self, lease: Missing | Found, now: float) -> Request | None:
        assert self._contested is not None
        key, found, owner_id, generation = self._contested
        lease_key = keys.owner_lease(owner_id)
        if isinstance(lease, Found):
            try:
                live = lease.value == LeaseRow(owner_id, generation).encode() and lease_remaining(lease) > 0
            except StoreCorruption as failure:
                return self._refused(failure)
            if live:
                return self._refused(self._taken())
        if lease_key != keys.owner_lease(self._owner_id):
            self._holders[lease_key] = (
                IfMissing(lease_key) if isinstance(lease, Missing) else IfVersion(lease_key, lease.version)
            )
        if key != self._key:
            self._claim_condition = IfVersion(key, found.version)
            return self._again(now)
        self._row_condition = IfVersion(key, found.version)
        return self._check_claim(now)

    def _taken(self) -> ConfigurationError:
        wanted = self._wanted
        what = f"routing id {wanted.rid} of {self._kind.scope_name} {wanted.scope}"
        if self._contested is not None and self._contested[0] == self._claim_key:
            what = f"entry spot id {wanted.claimed_spot}"
        return ConfigurationError(f"{what} is in use by another running process; start every one with ids of its own")

    # Ending.

    def _failed(self, now: float, detail: str) -> Request | None:
        self.last_error = detail
        if not self._kind.same_content(self._round_content, self._wanted):
            self._due = now
            return None
        self.is_failing = True
        self.failed_attempts += 1
        # A lease that was put back meanwhile may have been all that was missing.
        self._due = now if self._restored else max(self._round_start + self._options.polling_interval, now)
        return None

    def _refused(self, failure: ZlinkError) -> Request | None:
        self.failure = failure
        self.last_error = failure.message
        return None

    def _delete(self, now: float) -> Request:
        assert self._version is not None
        conditions: list[Condition] = [
            IfVersion(self._key, self._version),
            IfValue(keys.owner_lease(self._owner_id), self._lease_row),
        ]
        mutations: list[Mutation] = [Delete(self._key)]
        if self._claim_key is not None:
            mutations.append(Delete(self._claim_key))
        return self._batch(_Step.REMOVE, conditions, mutations, now)

    def _settle_remove(self, step: _Step, answer: Answer, now: float) -> Request | None:
        if now >= self._round_end or isinstance(answer, Applied | Missing):
            return None
        if step is _Step.REMOVE:
            if isinstance(answer, Conflict):
                self._why = _Why.CONFLICT
            elif isinstance(answer, StoreFailure) and answer.applied == "unknown":
                self._why = _Why.LOST_ANSWER
            else:
                return None
            return self._lookup(_Step.REMOVE_CHECK, self._key, now)
        if not isinstance(answer, Found) or (self._why is _Why.CONFLICT and answer.version == self._version):
            # Unreadable; or refused and unchanged: then the lease is gone, and the row is no longer ours to touch.
            return None
        try:
            row = self._kind.decode(answer.value)
        except StoreCorruption:
            return None
        if (row.owner_id, row.lease_generation) != (self._owner_id, self._lease_generation):
            return None
        self._version = answer.version
        return self._delete(now)


def _text(answer: Answer) -> str:
    return answer.message if isinstance(answer, ZlinkError) else "another writer was faster"
