"""Authority rows at run time: drives the operations of `creation`, `ownership` and `moves` against a store (facts §5).

What the driver adds to an operation, and nothing else:

* Every batch goes out only while this host's own lease is valid and the operation's deadline has not passed (LO-121).
* A look that fails is repeated until the deadline, so that an outage shorter than that is not noticed (LO-125,
  LO-303); a conflict is followed by 1 to 5 ms of pause, a failure by 50 ms rising to 1 s.
* From the moment a batch is sent until its outcome is read, a cancellation waits, for at most the renew timeout
  (LO-183).
* An operation that ends without having read the outcome of one of its batches raises `StoreFailure` with
  ``applied="unknown"``. Calling it again with the same arguments settles it; nothing else may be concluded.

Rejected: one method per operation with its own error handling; fourteen chances to guess after a lost answer.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

import trio
from attrs import define, frozen

from zlinkpy.entropy import Entropy
from zlinkpy.errors import DeadlineExceededError, UnavailableError
from zlinkpy.location import keys
from zlinkpy.location.authority import creation, moves, ownership
from zlinkpy.location.authority.capacity import CapacityRow, Slots
from zlinkpy.location.authority.creation import Full, Reservation, ReserveOrder, TargetUnfit, Unfit
from zlinkpy.location.authority.moves import MoveOrder, SpaceReserved
from zlinkpy.location.authority.ownership import ReleaseCause
from zlinkpy.location.authority.payload import Membership, Payload
from zlinkpy.location.authority.rows import AuthorityRecord, ObjectKey, Owner
from zlinkpy.location.authority.steps import (
    Look,
    Refused,
    Released,
    Seen,
    Steps,
    Why,
    Write,
    Written,
    capacity_of,
    look_at,
)
from zlinkpy.location.authority.terminal import CreationTerminal, TerminalNote, decode_terminal
from zlinkpy.location.calls import perform
from zlinkpy.location.descriptors import MeshNodeDescriptor
from zlinkpy.location.options import LocationOptions
from zlinkpy.location.requests import Answer, Batch, Lookup
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Applied, Conflict, Expired, Found, LocationStore, Missing, Page, StoreFailure

ResultT = TypeVar("ResultT")

CONFLICT_PAUSE = (0.001, 0.005)
"""Seconds between a conflict and the next look, drawn at random so that two writers part."""
SWEEP_BATCH = 256
"""Rows released in one write when a host ends: far below the limits of a batch, and short for the store."""
FAILURE_PAUSES = (0.05, 1.0)
"""Seconds after a failed look or write: the first pause, doubled each time up to the last."""


class HeldLease(Protocol):
    """What an `OwnerLease` says of itself."""

    @property
    def owner_id(self) -> str: ...

    @property
    def lease_generation(self) -> int | None: ...

    def is_valid(self, now: float) -> bool: ...


@frozen
class Swept:
    """What one pass over the authority rows did."""

    released: int
    kept: int
    """Rows that were looked at and stay: they changed meanwhile, or have members."""


@define
class _Run:
    """One operation under way."""

    deadline: float
    scope: trio.CancelScope
    pause: float = 0.0
    next_pause: float = FAILURE_PAUSES[0]
    failure: StoreFailure | None = None
    lost: StoreFailure | None = None
    """The first answer that never came. Even a look that did not see its batch proves nothing for later."""
    settle_by: float = -math.inf

    def failed(self, failure: StoreFailure) -> None:
        self.failure = failure
        self.pause = self.next_pause
        self.next_pause = min(2 * self.pause, FAILURE_PAUSES[1])


class AuthorityRepository:
    """Every operation on authority rows. All take a deadline in trio time and may raise, besides what they say:

    UnavailableError with cause ``OwnerLease`` when this host's lease is not valid; StoreFailure when the store did not
    answer until the deadline (``applied="unknown"``: call again to learn what happened); DeadlineExceededError when
    only conflicts were left; StoreCorruption for rows that cannot be understood or contradict each other;
    InvalidOperationError for a row above 1 MiB.
    """

    def __init__(self, store: LocationStore, lease: HeldLease, options: LocationOptions, entropy: Entropy) -> None:
        self._store = store
        self._lease = lease
        self._options = options.validate()
        self._entropy = entropy

    # Reading.

    async def read(self, key: ObjectKey, deadline: float) -> AuthorityRecord | None:
        """The row as it is now; creates nothing (LO-201)."""
        return await self._run(look_at(key), deadline)

    async def read_capacity(self, owner: Owner, deadline: float) -> CapacityRow:
        """What is in use at one node run."""

        def steps() -> Steps[CapacityRow]:
            (seen,) = yield Look((owner.capacity_key,))
            return capacity_of(seen)

        return await self._run(steps(), deadline)

    async def find_terminal(
        self, source_rid: str, source_lifecycle: int, operation_id: bytes, deadline: float
    ) -> CreationTerminal | None:
        """How that operation's creation ended, while that is kept (LO-231)."""

        def steps() -> Steps[CreationTerminal | None]:
            (seen,) = yield Look((keys.creation_terminal(source_rid, source_lifecycle, operation_id),))
            return decode_terminal(seen.value) if isinstance(seen, Found) else None

        return await self._run(steps(), deadline)

    # Creation.

    async def reserve(self, order: ReserveOrder, deadline: float) -> Reservation:
        """See `creation.reserve`. Raises GenerationExhausted when no number is left (LO-094)."""
        return await self._run(creation.reserve(order), deadline)

    async def commit(
        self, held: AuthorityRecord, payload: Payload, deadline: float, note: TerminalNote | None = None
    ) -> Written | Refused:
        """See `creation.commit`."""
        return await self._run(creation.commit(held, payload, note), deadline)

    async def abort(
        self, held: AuthorityRecord, deadline: float, note: TerminalNote | None = None
    ) -> Released | Refused:
        """See `creation.abort`; for a creation that was aborted, rejected or failed."""
        return await self._run(creation.abort(held, note), deadline)

    async def release_orphan(self, held: AuthorityRecord, deadline: float) -> Released | Refused:
        """See `creation.release_orphan`."""
        return await self._run(creation.release_orphan(held), deadline)

    # The owner's.

    async def preserve(self, held: AuthorityRecord, payload: Payload, deadline: float) -> Written | Refused:
        """See `ownership.preserve`."""
        return await self._run(ownership.preserve(held, payload, self._me()), deadline)

    async def change_membership(self, held: AuthorityRecord, to: Membership, deadline: float) -> Written | Refused:
        """See `ownership.change_membership`: join and leave."""
        return await self._run(ownership.change_membership(held, to, self._me()), deadline)

    async def release(self, held: AuthorityRecord, cause: ReleaseCause, deadline: float) -> Released | Refused:
        """See `ownership.release`: the only way in which the row of an object leaves the store."""
        return await self._run(ownership.release(held, cause, self._me()), deadline)

    async def reincarnate(self, held: AuthorityRecord, payload: Payload, deadline: float) -> Written | Refused:
        """See `ownership.reincarnate`. Raises GenerationExhausted when no number is left (LO-094)."""
        return await self._run(ownership.reincarnate(held, payload, self._me()), deadline)

    # A relocation's target's.

    async def reserve_space(
        self, target: Owner, relocation_id: bytes, slots: Slots, limits: MeshNodeDescriptor, deadline: float
    ) -> SpaceReserved | Full | Refused:
        """See `moves.reserve_space`."""
        return await self._run(moves.reserve_space(target, relocation_id, slots, limits), deadline)

    async def return_space(self, target: Owner, relocation_id: bytes, deadline: float) -> Released | Refused:
        """See `moves.return_space`."""
        return await self._run(moves.return_space(target, relocation_id), deadline)

    async def change_owner(self, order: MoveOrder, deadline: float) -> Written | Refused:
        """See `moves.change_owner`; `deadline` is the end of the restore's validity (C6)."""
        return await self._run(moves.change_owner(order), deadline)

    # Passes over all rows.

    async def release_orphans(self, deadline: float) -> Swept:
        """Release every reservation that nobody will finish (LO-234): the scan at a host's start."""
        released = kept = 0
        async for record in self._scan(deadline):
            if record.row.is_active:
                continue
            ended = await self.release_orphan(record, deadline)
            released += isinstance(ended, Released)
            kept += isinstance(ended, Refused)
        return Swept(released, kept)

    async def release_own(self, deadline: float) -> Swept:
        """Release every object this combination owns (LO-350..352): Actors first, so that their Spots are empty.

        Rows of other owners, of other generations of this owner and of objects that moved away are not touched. A host
        that dies midway leaves rows that are whole, and no others.
        """
        released = kept = 0
        for kind in ("actor", "spot"):
            groups: dict[object, list[AuthorityRecord]] = {}
            async for record in self._scan(deadline):
                if record.key.kind != kind:
                    continue
                home = ownership.home_key(record.row.payload)
                if not record.row.is_active:
                    swept = await self._abort_own(record, deadline)
                elif home is None and not self._is_mine(record.row.owner):
                    continue
                else:
                    group = groups.setdefault(home or record.row.owner, [])
                    group.append(record)
                    if len(group) < SWEEP_BATCH:
                        continue
                    swept = await self._sweep(group, deadline)
                released, kept = released + swept.released, kept + swept.kept
            for group in filter(None, groups.values()):
                swept = await self._sweep(group, deadline)
                released, kept = released + swept.released, kept + swept.kept
        return Swept(released, kept)

    async def _sweep(self, group: list[AuthorityRecord], deadline: float) -> Swept:
        records, group[:] = list(group), []
        swept = await self._run(ownership.release_together(records, self._me()), deadline)
        return Swept(swept.released, swept.kept)

    async def _abort_own(self, record: AuthorityRecord, deadline: float) -> Swept:
        if not self._is_mine(record.row.owner):
            return Swept(0, 0)
        ended = await self.abort(record, deadline)
        return Swept(isinstance(ended, Released), isinstance(ended, Refused))

    def _is_mine(self, owner: Owner) -> bool:
        me = self._me()
        return (owner.owner_id, owner.lease_generation) == (me.owner_id, me.lease_generation)

    async def _scan(self, deadline: float) -> AsyncIterator[AuthorityRecord]:
        """Every object, each read again (LO-042). A snapshot that expires is begun anew: what was handled is gone, and
        looking twice at what stayed does no harm.
        """
        cursor: str | None = None
        while True:
            page = await self._page(cursor, deadline)
            if isinstance(page, Expired):
                if trio.current_time() >= deadline:
                    raise UnavailableError("the store keeps no snapshot as long as a scan takes", cause="LocationStore")
                cursor = None
                continue
            for item in page.items:
                _, kind, object_id = item.key.decode().split("\0")
                record = await self.read(ObjectKey("actor" if kind == "actor" else "spot", object_id), deadline)
                if record is not None:
                    yield record
            if page.cursor is None:
                return
            cursor = page.cursor

    async def _page(self, cursor: str | None, deadline: float) -> Page | Expired:
        run = _Run(deadline, trio.CancelScope())
        while True:
            with trio.move_on_after(self._options.owner_lease_renew_timeout):
                try:
                    return await self._store.scan(keys.AUTHORITY_PREFIX, cursor=cursor)
                except StoreFailure as failure:
                    run.failed(failure)
            if trio.current_time() >= deadline:
                raise self._unfinished(run)
            await self._rest(run)

    # Driving.

    def _me(self) -> LeaseRow:
        generation = self._lease.lease_generation
        if generation is None:
            raise UnavailableError("this host has no owner lease yet", cause="OwnerLease")
        return LeaseRow(self._lease.owner_id, generation)

    async def _run(self, steps: Steps[ResultT], deadline: float) -> ResultT:
        with trio.CancelScope() as scope:
            run = _Run(deadline, scope)
            try:
                ask = next(steps)
                while True:
                    answer = await (self._write(ask, run) if isinstance(ask, Write) else self._look(ask, run))
                    ask = steps.send(answer)
            except StopIteration as ended:
                result: ResultT = ended.value
            finally:
                steps.close()
        if run.lost is not None and _is_for_want_of_a_lease(result):
            raise run.lost
        return result

    async def _look(self, look: Look, run: _Run) -> tuple[Seen, ...]:
        while True:
            await self._rest(run)
            seen: dict[bytes, Answer] = {}
            left = run.settle_by - trio.current_time()
            timeout = left if left > 0 else self._options.owner_lease_renew_timeout

            async def read(key: bytes, seen: dict[bytes, Answer] = seen, timeout: float = timeout) -> None:
                seen[key] = await perform(self._store, Lookup(key, timeout))

            async with trio.open_nursery() as nursery:
                for key in look.keys:
                    nursery.start_soon(read, key)
            answers = [seen[key] for key in look.keys]
            good = tuple(answer for answer in answers if isinstance(answer, Missing | Found))
            if len(good) == len(answers):
                run.settle_by, run.next_pause = -math.inf, FAILURE_PAUSES[0]
                return good
            for answer in answers:
                if isinstance(answer, Exception) and not isinstance(answer, StoreFailure):
                    raise answer
            # However many rows it is about: one look, one failure.
            run.failed(next(answer for answer in answers if isinstance(answer, StoreFailure)))
            if trio.current_time() >= max(run.deadline, run.settle_by):
                raise self._unfinished(run)

    async def _write(self, write: Write, run: _Run) -> Applied | Conflict | StoreFailure:
        now = trio.current_time()
        if not self._lease.is_valid(now):
            raise run.lost or UnavailableError("this host's owner lease is not valid", cause="OwnerLease")
        if now >= run.deadline:
            raise self._unfinished(run)
        run.scope.shield = True
        whole = self._options.owner_lease_renew_timeout
        # Half for the answer, half for reading back when none comes.
        answer = await perform(self._store, Batch(write.conditions, write.mutations, whole / 2))
        if isinstance(answer, StoreFailure):
            run.failed(answer)
            if answer.applied == "unknown":
                run.lost = run.lost or answer
                run.settle_by = now + whole
        elif isinstance(answer, Conflict):
            run.pause = self._entropy.uniform(*CONFLICT_PAUSE)
        elif not isinstance(answer, Applied):
            assert isinstance(answer, Exception)
            raise answer
        run.scope.shield = run.settle_by > now
        return answer

    async def _rest(self, run: _Run) -> None:
        """The pause before a look, and where a cancellation is noticed once no outcome is open."""
        pause, run.pause = run.pause, 0.0
        run.scope.shield = trio.current_time() < run.settle_by
        limit = run.settle_by if run.scope.shield else run.deadline
        with trio.move_on_at(limit):
            await trio.sleep(pause)
        run.scope.shield = trio.current_time() < run.settle_by

    def _unfinished(self, run: _Run) -> Exception:
        return run.lost or run.failure or DeadlineExceededError("other writers were faster until the deadline passed")


def _is_for_want_of_a_lease(result: object) -> bool:
    """A lease is the one condition that can become true again: a lapsed one is put back with the same bytes. While a
    batch may still be on its way, "not done" would be a guess.
    """
    return (isinstance(result, Refused) and result.why is Why.LEASE) or result == TargetUnfit(Unfit.LEASE)
