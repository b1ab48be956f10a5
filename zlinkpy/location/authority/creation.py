"""Reserve, commit, abort, release of orphans: how an object's row comes to be, or does not. Pure (facts §5,
LO-220..236).

See `steps` for how an operation is driven and why it may be repeated. Conditions and changes of each are exactly those
of the table in the facts; none of them builds anything or runs a factory.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from attrs import evolve, frozen

from zlinkpy.location import keys
from zlinkpy.location.authority.capacity import CapacityUnderflow, Slots
from zlinkpy.location.authority.payload import Payload
from zlinkpy.location.authority.rows import (
    AllocationState,
    AuthorityRecord,
    AuthorityRow,
    ObjectKey,
    OwnedKind,
    Owner,
    PendingCreation,
)
from zlinkpy.location.authority.steps import (
    Look,
    Refused,
    Released,
    Seen,
    Steps,
    Why,
    Write,
    Written,
    absence,
    capacity_of,
    condition_on,
    confirmed,
    counter,
    is_orphaned,
    lease_of,
    node_of,
    put_capacity,
    put_row,
    record_of,
    same_incarnation,
)
from zlinkpy.location.authority.terminal import TerminalNote
from zlinkpy.location.store import Applied, Condition, Delete, Found, IfMissing, IfValue, IfVersion, Missing, Mutation
from zlinkpy.wire import RuntimeState


@frozen(kw_only=True)
class ReserveOrder:
    """One wanted reservation: which object, built from what, at which node run.

    `pending.reservation_id` is the mark by which a repeated reservation is recognised; take a new one per creation.
    """

    key: ObjectKey
    target: Owner
    object_kind: OwnedKind
    stable_type: str
    slots: Slots
    payload: Payload
    pending: PendingCreation


@frozen
class Reserved:
    """The place is taken for this reservation. Its owner is that of the *row*: an earlier try may have named another
    target.
    """

    record: AuthorityRecord


@frozen
class Occupied:
    """The id has a row: another live reservation, or an object."""

    record: AuthorityRecord


@frozen
class Full:
    """The target has no room; `what` names the limit: ``actors``, ``spots``, ``kind:type`` (LO-216)."""

    what: str


class Unfit(Enum):
    """Why a target takes nothing new (LO-222)."""

    LEASE = "its owner lease is not in the store"
    DESCRIPTOR = "its descriptor is gone or of another run"
    STATE = "it is not serving"


@frozen
class TargetUnfit:
    """The target cannot take the object; the caller chooses another."""

    why: Unfit


@frozen
class IdClaimed:
    """The id is that of a node's Entry Spot (LO-224)."""


Reservation: TypeAlias = Reserved | Occupied | Full | TargetUnfit | IdClaimed


def reserve(order: ReserveOrder) -> Steps[Reservation]:
    """Missing -> reserved, with both generations, a place at the target and the request (LO-220).

    A reservation that nobody will finish is released on the way (LO-234). Raises GenerationExhausted with nothing
    changed (LO-094).
    """
    key, target = order.key.encode(), order.target
    looked = [
        key,
        target.lease_key,
        target.descriptor_key,
        target.capacity_key,
        keys.OBJECT_COUNTER,
        keys.AUTHORITY_OWNER_COUNTER,
    ]
    if order.key.kind == "spot":
        looked.append(keys.entry_spot(order.key.object_id))
    while True:
        seen = yield Look(tuple(looked))
        authority, lease, descriptor, capacity, objects, owners = seen[:6]
        record = record_of(order.key, authority)
        if record is not None:
            pending = record.row.pending
            if pending is not None and pending.reservation_id == order.pending.reservation_id:
                return Reserved(record)
            if record.row.is_active:
                return Occupied(record)
            ended = yield from release_orphan(record)
            if isinstance(ended, Refused) and ended.why is Why.STATE:
                return Occupied(record)
            continue
        if any(isinstance(claim, Found) for claim in seen[6:]):
            return IdClaimed()
        fit = _fitness(order, lease, descriptor, capacity)
        if not isinstance(fit, IfValue):
            return fit
        numbers = counter(keys.OBJECT_COUNTER, objects), counter(keys.AUTHORITY_OWNER_COUNTER, owners)
        row = AuthorityRow(
            payload=order.payload,
            object_generation=numbers[0].first,
            owner_generation=numbers[1].first,
            owner=target,
            state=AllocationState.RESERVED,
            object_kind=order.object_kind,
            stable_type=order.stable_type,
            slots=order.slots,
            pending=order.pending,
        )
        answer = yield Write(
            (
                IfMissing(key),
                fit,
                condition_on(target.descriptor_key, descriptor),
                condition_on(target.capacity_key, capacity),
                *(number.condition for number in numbers),
                *(IfMissing(claim) for claim in looked[6:]),
            ),
            (
                put_row(order.key, row),
                put_capacity(target, capacity_of(capacity).reserve(order.slots)),
                *(number.put for number in numbers),
            ),
        )
        if isinstance(answer, Applied):
            return Reserved(AuthorityRecord(order.key, row, answer.versions[key]))


def _fitness(order: ReserveOrder, lease: Seen, descriptor: Seen, capacity: Seen) -> IfValue | Full | TargetUnfit:
    held = lease_of(order.target, lease)
    if held is None:
        return TargetUnfit(Unfit.LEASE)
    node = node_of(order.target, descriptor)
    if node is None:
        return TargetUnfit(Unfit.DESCRIPTOR)
    if node.state is not RuntimeState.SERVING:
        return TargetUnfit(Unfit.STATE)
    shortage = capacity_of(capacity).shortage(order.slots, node)
    return held if shortage is None else Full(shortage)


def commit(held: AuthorityRecord, payload: Payload, note: TerminalNote | None = None) -> Steps[Written | Refused]:
    """Reserved -> active, and the creation's terminal, if any, with it (LO-228).

    `payload` is the object's from now on, usually ready; an Instance Spot keeps its activation pointer in it.
    """
    row = held.row
    terminal = () if note is None else (note.key,)
    while True:
        seen = yield Look((*_looked(held), *terminal))
        current = record_of(held.key, seen[0])
        if current is None:
            return Refused(Why.ENDED if note is not None and _is_noted(note, seen[4]) else Why.GONE)
        if current.version != held.version:
            done = current.row.is_active and same_incarnation(row, current.row)
            return Written(current) if done and not row.is_active else Refused(Why.CHANGED, current)
        if row.is_active:
            return Refused(Why.STATE, current)
        _, lease, descriptor, capacity = seen[:4]
        live = _live_target(row.owner, lease, descriptor)
        if isinstance(live, Why):
            return Refused(live, current)
        try:
            counted = capacity_of(capacity).activate(row.slots)
        except CapacityUnderflow as problem:
            yield from confirmed([held], [held], problem)
            continue
        ready = evolve(row, state=AllocationState.ACTIVE, payload=payload, pending=None)
        answer = yield Write(
            _target_conditions(held, live, descriptor, capacity),
            (put_row(held.key, ready), put_capacity(row.owner, counted), *_notes(note)),
        )
        if isinstance(answer, Applied):
            return Written(AuthorityRecord(held.key, ready, answer.versions[held.key.encode()]))


def abort(held: AuthorityRecord, note: TerminalNote | None = None) -> Steps[Released | Refused]:
    """Reserved -> Missing with its space returned: aborted, rejected or failed, as the terminal says (LO-228).

    Found gone, it was this call's doing when its terminal is there, or, without one, when a batch of it had been sent.
    """
    row, sent = held.row, False
    terminal = () if note is None else (note.key,)
    while True:
        seen = yield Look((*_looked(held), *terminal))
        current = record_of(held.key, seen[0])
        over = absence(held, current, sent=sent and note is None)
        if over is not None:
            return Released() if note is not None and _is_noted(note, seen[4]) else over
        if current is None or current.version != held.version:
            return Refused(Why.CHANGED, current)
        if row.is_active:
            return Refused(Why.STATE, current)
        _, lease, descriptor, capacity = seen[:4]
        live = _live_target(row.owner, lease, descriptor)
        if isinstance(live, Why):
            return Refused(live, current)
        try:
            counted = capacity_of(capacity).unreserve(row.slots)
        except CapacityUnderflow as problem:
            yield from confirmed([held], [held], problem)
            continue
        sent = True
        answer = yield Write(
            _target_conditions(held, live, descriptor, capacity),
            (Delete(held.key.encode()), put_capacity(row.owner, counted), *_notes(note)),
        )
        if isinstance(answer, Applied):
            return Released()


def release_orphan(held: AuthorityRecord) -> Steps[Released | Refused]:
    """Turn a reservation that nobody will finish into Missing and return its space (LO-234).

    Refused with `Why.STATE` while the target lives (LO-235) and for an active row; with `CHANGED` or `GONE` when
    somebody was faster. Everything is conditioned as read, so of this and the target's commit one wins (LO-236).
    """
    row, sent = held.row, False
    while True:
        authority, lease, descriptor, capacity = yield Look(_looked(held))
        current = record_of(held.key, authority)
        over = absence(held, current, sent=sent)
        if over is not None:
            return over
        if current is None or current.version != held.version:
            return Refused(Why.CHANGED, current)
        if row.is_active or not is_orphaned(row, lease, descriptor):
            return Refused(Why.STATE, current)
        owner = row.owner
        mutations: list[Mutation] = [Delete(held.key.encode())]
        if isinstance(capacity, Found):
            try:
                mutations.append(put_capacity(owner, capacity_of(capacity).unreserve(row.slots)))
            except CapacityUnderflow as problem:
                yield from confirmed([held], [held], problem)
                continue
        as_read: tuple[Condition, ...] = (
            IfVersion(held.key.encode(), held.version),
            IfMissing(owner.lease_key) if isinstance(lease, Missing) else IfValue(owner.lease_key, lease.value),
            condition_on(owner.descriptor_key, descriptor),
            condition_on(owner.capacity_key, capacity),
        )
        sent = True
        if isinstance((yield Write(as_read, tuple(mutations))), Applied):
            return Released()


def _looked(held: AuthorityRecord) -> tuple[bytes, ...]:
    owner = held.row.owner
    return held.key.encode(), owner.lease_key, owner.descriptor_key, owner.capacity_key


def _live_target(owner: Owner, lease: Seen, descriptor: Seen) -> IfValue | Why:
    held = lease_of(owner, lease)
    if held is None:
        return Why.LEASE
    return held if node_of(owner, descriptor) is not None else Why.DESCRIPTOR


def _target_conditions(
    held: AuthorityRecord, lease: IfValue, descriptor: Seen, capacity: Seen
) -> tuple[Condition, ...]:
    owner = held.row.owner
    return (
        IfVersion(held.key.encode(), held.version),
        lease,
        condition_on(owner.descriptor_key, descriptor),
        condition_on(owner.capacity_key, capacity),
    )


def _notes(note: TerminalNote | None) -> tuple[Mutation, ...]:
    return () if note is None else (note.put,)


def _is_noted(note: TerminalNote, seen: Seen) -> bool:
    return isinstance(seen, Found) and seen.value == note.terminal.encode()
