"""Who is there: descriptor lists and lease reads in, candidates out. Pure (facts §6, LO-150..157, LO-165..173,
LO-186..191).

A poll is *begin, list, read leases, complete*; anything less ends in `failed`, and then nothing changes. So the
candidates always come from one snapshot whose every owner was checked (LO-166), minus ourselves and minus those we
must not connect to. The latter are shown apart, as live as the others: descriptors of dead hosts stay in the store, and
a list of them would grow for ever.

What is listed is an `Interest`: the nodes of a mesh, the servers of a ClientServer channel, the publishers of a fanout
channel. The rules are the same for all of them.

* A lease is judged by its own read: `expires_at > store_now` of that answer, same owner id and generation. Nothing is
  compared across answers (LO-152, LO-371). A live read is reused while it is young, a dead one never.
* Until when a target may be *chosen* is a local time: before the lease read, plus what was left, minus the margin
  (LO-153). After it the target stays a candidate and is chosen no more, also while the store is away (LO-189).
* After an outage a target that the first lists lack keeps its place: its host may still be putting its lease back. It
  goes only when a list read at least one TTL after the recovery lacks it (LO-190). A store that forgot *us* counts as
  an outage even when no call failed. It shows in our own descriptor, where we have one in the list, and in our own
  lease: that is looked at whenever a target has vanished, and putting it back tells the same (LO-192).
* Descriptors of crashed hosts stay in the store; the lease check hides them, and of two live ones on one endpoint the
  younger lease is the process that can be bound there (LO-154).

Rejected: change notifications. A lost one would have to be noticed by a poll, so the poll is all there is (LO-167).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic

from attrs import frozen

from zlinkpy.location.channel_descriptors import CLIENT_SERVER, FANOUT, ClientServerDescriptor, FanoutDescriptor
from zlinkpy.location.descriptor_kind import D, DescriptorKind
from zlinkpy.location.descriptors import MESH_NODE, MeshNodeDescriptor
from zlinkpy.location.health import StoreOperation
from zlinkpy.location.options import LocationOptions
from zlinkpy.location.rows import decode_lease, lease_remaining
from zlinkpy.location.store import Found, Item, Missing, StoreCorruption
from zlinkpy.wire import ObjectRole, RuntimeState


@frozen
class Candidate(Generic[D]):
    """A target whose owner's lease was live when it was last read. `usable_until` is trio time."""

    descriptor: D
    usable_until: float

    @property
    def rid(self) -> str:
        return self.descriptor.rid

    def is_selectable(self, now: float) -> bool:
        """True when new work may choose this target: it serves and its lease is known to last (LO-141, 153, 189)."""
        return self.descriptor.state is RuntimeState.SERVING and now < self.usable_until


@frozen(kw_only=True)
class Snapshot(Generic[D]):
    """What discovery knows. `candidates` come from the last complete list, sorted by routing id bytes."""

    candidates: tuple[Candidate[D], ...] = ()
    not_required: tuple[D, ...] = ()
    """Live entries of the same list that need no connection with us (LO-168): to be shown, never dialled."""
    complete: bool = False
    """False until a first list was read completely; `candidates` is empty then."""
    store_ok: bool = True
    failing_since: float | None = None
    operation: StoreOperation | None = None
    """What fails, while `store_ok` is False."""
    first_dials: bool = True
    """False once the failure outlasted the grace: targets never connected before are not dialled (LO-187)."""

    def find(self, rid: str) -> Candidate[D] | None:
        return next((candidate for candidate in self.candidates if candidate.rid == rid), None)

    def at_endpoint(self, endpoint: str) -> Candidate[D] | None:
        """The one candidate published there. A manual intent for it requires all of its identity (LO-159)."""
        return next((candidate for candidate in self.candidates if candidate.descriptor.endpoint == endpoint), None)


@frozen
class _LeaseReading:
    """One live lease as read: who holds it, when it was asked for, and how long it lasts by this host's clock."""

    generation: int
    read_at: float
    live_until: float
    usable_until: float


def connection_required(own: MeshNodeDescriptor, other: MeshNodeDescriptor) -> bool:
    """False for two Object Clients of which neither serves a channel: they have nothing to say to each other
    (LO-168).
    """
    both_clients = own.object_role is ObjectRole.CLIENT and other.object_role is ObjectRole.CLIENT
    return not both_clients or own.has_server_channels or other.has_server_channels


def _everybody(_descriptor: object) -> bool:
    return True


@frozen(kw_only=True)
class Interest(Generic[D]):
    """Whose descriptors are listed, and which of them are wanted.

    Attributes:
        scope: The mesh or channel.
        own_rid: Our own routing id where we publish into the same list; never a candidate (LO-173).
        is_required: False for a target that needs no connection with us (LO-168).
    """

    kind: DescriptorKind[D]
    scope: str
    own_rid: str | None = None
    is_required: Callable[[D], bool] = _everybody


def nodes_around(own: MeshNodeDescriptor) -> Interest[MeshNodeDescriptor]:
    """The other nodes of a mesh; the role and the channel names of `own` decide who must be connected."""
    return Interest(
        kind=MESH_NODE,
        scope=own.mesh_name,
        own_rid=own.rid,
        is_required=lambda other: connection_required(own, other),
    )


def servers_of(channel: str) -> Interest[ClientServerDescriptor]:
    """The servers of a ClientServer channel, one of this process included: its client connects to it like any other."""
    return Interest(kind=CLIENT_SERVER, scope=channel)


def publishers_of(channel: str) -> Interest[FanoutDescriptor]:
    """The publishers of a Classic fanout channel, one of this process included."""
    return Interest(kind=FANOUT, scope=channel)


class DiscoveryMachine(Generic[D]):
    """See the module. `owner_id` is this host's own, when it has a lease."""

    def __init__(self, options: LocationOptions, interest: Interest[D], owner_id: str | None = None) -> None:
        self.snapshot: Snapshot[D] = Snapshot()
        self.last_error = ""
        self._options = options
        self._interest = interest
        self._owner_id = owner_id
        kind, own_rid = interest.kind, interest.own_rid
        self._own_key = None if own_rid is None else kind.key(interest.scope, own_rid)
        self._decoded: dict[bytes, tuple[str, D]] = {}
        self._leases: dict[str, _LeaseReading] = {}
        self._listed: list[D] = []
        self._intents: dict[str, Candidate[D]] = {}
        self._not_required: list[D] = []
        self._required_owners: set[str] = set()
        self._poll_started = -math.inf
        self._recovered_at: float | None = None
        self._failing_since: float | None = None
        self._operation: StoreOperation | None = None
        self._complete = False
        self._self_listed = False
        self._self_was_listed = False
        self._lease_was_gone = False

    @property
    def prefix(self) -> bytes:
        """What to scan."""
        return self._interest.kind.prefix(self._interest.scope)

    @property
    def is_recovering(self) -> bool:
        """True when the next complete list would be the first, or the first after a failure: own lease first
        (LO-190).
        """
        return self._failing_since is not None or not self._complete

    def next_deadline(self) -> float | None:
        """When time alone changes the snapshot: the end of the grace."""
        if self._failing_since is None or not self.snapshot.first_dials:
            return None
        return self._failing_since + self._options.store_failure_grace

    # One poll.

    def begin(self, now: float) -> None:
        """A poll starts: its first page is about to be read."""
        self._poll_started = now
        self._lease_was_gone = False

    def listed(self, items: Sequence[Item]) -> list[str]:
        """Take the whole list; returns the owner ids whose leases have to be read now.

        Raises StoreCorruption when a row cannot be understood; call `failed` then.
        """
        decoded = {item.key: self._decode(item) for item in items}
        self._decoded = decoded
        self._self_listed = self._own_key in decoded
        self._listed = [descriptor for key, (_, descriptor) in decoded.items() if key != self._own_key]
        self._required_owners = {
            descriptor.owner_id for descriptor in self._listed if self._interest.is_required(descriptor)
        }
        self._leases = {
            owner: reading
            for owner, reading in self._leases.items()
            if self._poll_started < min(reading.live_until, reading.read_at + self._options.lease_reuse_age)
        }
        owners = [descriptor.owner_id for descriptor in self._listed if not self._lease_is_known(descriptor)]
        if self._owner_id is not None and not self._intents.keys() <= {each.rid for each in self._listed}:
            owners.append(self._owner_id)
        return list(dict.fromkeys(owners))

    def _decode(self, item: Item) -> tuple[str, D]:
        known = self._decoded.get(item.key)
        if known is not None and known[0] == item.version:
            return known
        return item.version, self._interest.kind.decode_at(item.key, item.value)

    def _lease_is_known(self, descriptor: D) -> bool:
        reading = self._leases.get(descriptor.owner_id)
        return reading is not None and reading.generation == descriptor.lease_generation

    def lease_read(self, owner_id: str, answer: Missing | Found, sent_at: float) -> None:
        """Take one lease read. Raises StoreCorruption for a lease without expiry or of another shape (LO-156), unless
        no candidate depends on it (LO-157).
        """
        self._leases.pop(owner_id, None)
        if isinstance(answer, Missing):
            self._lease_was_gone |= owner_id == self._owner_id
            return
        try:
            row, remaining = decode_lease(answer.value), lease_remaining(answer)
            if row.owner_id != owner_id:
                raise StoreCorruption("a lease row is stored under another owner's key")
        except StoreCorruption:
            if owner_id in self._required_owners:
                raise
            return
        if remaining > 0:
            left = min(remaining, self._options.owner_lease_ttl)
            usable_until = sent_at + left - self._options.owner_lease_fencing_margin
            self._leases[owner_id] = _LeaseReading(row.lease_generation, sent_at, sent_at + left, usable_until)

    def complete(self, now: float) -> Snapshot[D]:
        """Every lease asked for was read: apply the list."""
        forgotten = self._lease_was_gone or (self._self_was_listed and not self._self_listed)
        if self._failing_since is not None or forgotten:
            self._recovered_at = now
        elif (
            self._recovered_at is not None and self._poll_started >= self._recovered_at + self._options.owner_lease_ttl
        ):
            self._recovered_at = None
        self._self_was_listed = self._self_listed
        self._failing_since = self._operation = None
        self._complete = True
        live = self._live()
        seen = {each.rid: each for each in live if self._interest.is_required(each.descriptor)}
        self._not_required = [each.descriptor for each in live if each.rid not in seen]
        if self._recovered_at is not None:
            taken = {candidate.descriptor.endpoint for candidate in seen.values()}
            for rid, candidate in self._intents.items():
                if rid not in seen and candidate.descriptor.endpoint not in taken:
                    seen[rid] = candidate
        self._intents = seen
        return self._publish(now)

    def _live(self) -> list[Candidate[D]]:
        by_endpoint: dict[str, Candidate[D]] = {}
        for descriptor in self._listed:
            if not self._lease_is_known(descriptor):
                continue
            rival = by_endpoint.get(descriptor.endpoint)
            if rival is None or rival.descriptor.lease_generation < descriptor.lease_generation:
                reading = self._leases[descriptor.owner_id]
                by_endpoint[descriptor.endpoint] = Candidate(descriptor, reading.usable_until)
        return list(by_endpoint.values())

    def lease_put_back(self, now: float) -> None:
        """Our own lease had gone from the store and is there again: what else had gone may follow (LO-192)."""
        self._recovered_at = now

    # Failing.

    def failed(self, operation: StoreOperation, detail: str, now: float) -> Snapshot[D]:
        """The poll ended without a complete, checked list: candidates stay as they are (LO-156, LO-186, LO-191)."""
        if self._failing_since is None:
            self._failing_since = now
        self._operation = operation
        self.last_error = detail
        return self._publish(now)

    def tick(self, now: float) -> Snapshot[D]:
        """Let time pass: the grace may be over (LO-187)."""
        return self._publish(now)

    def _publish(self, now: float) -> Snapshot[D]:
        since = self._failing_since
        self.snapshot = Snapshot(
            candidates=tuple(sorted(self._intents.values(), key=lambda candidate: candidate.rid.encode())),
            not_required=tuple(sorted(self._not_required, key=lambda descriptor: descriptor.rid.encode())),
            complete=self._complete,
            store_ok=since is None,
            failing_since=since,
            operation=self._operation,
            first_dials=since is None or now < since + self._options.store_failure_grace,
        )
        return self.snapshot
