"""Who is there: descriptor lists and lease reads in, candidates out. Pure (facts §6, LO-150..157, LO-165..173,
LO-186..191).

A poll is *begin, list, read leases, complete*; anything less ends in `failed`, and then nothing changes. So the
candidates always come from one snapshot whose every owner was checked (LO-166), minus ourselves and minus nodes we
must not connect to. The latter are shown apart, as live as the others: descriptors of dead hosts stay in the store, and
a list of them would grow for ever.

* A lease is judged by its own read: `expires_at > store_now` of that answer, same owner id and generation. Nothing is
  compared across answers (LO-152, LO-371). A live read is reused while it is young, a dead one never.
* Until when a target may be *chosen* is a local time: before the lease read, plus what was left, minus the margin
  (LO-153). After it the target stays a candidate and is chosen no more, also while the store is away (LO-189).
* After an outage a target that the first lists lack keeps its place: its host may still be putting its lease back. It
  goes only when a list read at least one TTL after the recovery lacks it (LO-190). A store that forgot *us* counts as
  an outage even when no call failed.
* Descriptors of crashed hosts stay in the store; the lease check hides them, and of two live ones on one endpoint the
  younger lease is the process that can be bound there (LO-154).

Rejected: change notifications. A lost one would have to be noticed by a poll, so the poll is all there is (LO-167).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

from zlinkpy.location import keys
from zlinkpy.location.descriptors import MeshNodeDescriptor, decode_mesh_node
from zlinkpy.location.health import StoreOperation
from zlinkpy.location.options import LocationOptions
from zlinkpy.location.rows import decode_lease, lease_remaining
from zlinkpy.location.store import Found, Item, Missing, StoreCorruption
from zlinkpy.wire import ObjectRole, RuntimeState


@frozen
class Candidate:
    """A node whose owner's lease was live when it was last read. `usable_until` is trio time."""

    descriptor: MeshNodeDescriptor
    usable_until: float

    @property
    def rid(self) -> str:
        return self.descriptor.rid

    def is_selectable(self, now: float) -> bool:
        """True when new work may choose this node: it serves and its lease is known to last (LO-141, 153, 189)."""
        return self.descriptor.state is RuntimeState.SERVING and now < self.usable_until


@frozen(kw_only=True)
class Snapshot:
    """What discovery knows. `candidates` come from the last complete list, sorted by routing id bytes."""

    candidates: tuple[Candidate, ...] = ()
    not_required: tuple[MeshNodeDescriptor, ...] = ()
    """Live nodes of the same list that this node needs no connection with (LO-168): to be shown, never dialled."""
    complete: bool = False
    """False until a first list was read completely; `candidates` is empty then."""
    store_ok: bool = True
    failing_since: float | None = None
    operation: StoreOperation | None = None
    """What fails, while `store_ok` is False."""
    first_dials: bool = True
    """False once the failure outlasted the grace: targets never connected before are not dialled (LO-187)."""

    def find(self, rid: str) -> Candidate | None:
        return next((candidate for candidate in self.candidates if candidate.rid == rid), None)

    def at_endpoint(self, endpoint: str) -> Candidate | None:
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


class DiscoveryMachine:
    """See the module. `own` is this node's descriptor; only its identity, role and channel names are used."""

    def __init__(self, options: LocationOptions, own: MeshNodeDescriptor) -> None:
        self.snapshot = Snapshot()
        self.last_error = ""
        self._options = options
        self._own = own
        self._own_key = keys.mesh_node(own.mesh_name, own.rid)
        self._decoded: dict[bytes, tuple[str, MeshNodeDescriptor]] = {}
        self._leases: dict[str, _LeaseReading] = {}
        self._listed: list[MeshNodeDescriptor] = []
        self._intents: dict[str, Candidate] = {}
        self._not_required: list[MeshNodeDescriptor] = []
        self._required_owners: set[str] = set()
        self._poll_started = -math.inf
        self._recovered_at: float | None = None
        self._failing_since: float | None = None
        self._operation: StoreOperation | None = None
        self._complete = False
        self._self_listed = False
        self._self_was_listed = False

    @property
    def prefix(self) -> bytes:
        """What to scan."""
        return keys.mesh_node_prefix(self._own.mesh_name)

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

    def listed(self, items: Sequence[Item]) -> list[str]:
        """Take the whole list; returns the owner ids whose leases have to be read now.

        Raises StoreCorruption when a row cannot be understood; call `failed` then.
        """
        decoded = {item.key: self._decode(item) for item in items}
        self._decoded = decoded
        self._self_listed = self._own_key in decoded
        self._listed = [descriptor for key, (_, descriptor) in decoded.items() if key != self._own_key]
        self._required_owners = {
            descriptor.owner_id for descriptor in self._listed if connection_required(self._own, descriptor)
        }
        self._leases = {
            owner: reading
            for owner, reading in self._leases.items()
            if self._poll_started < min(reading.live_until, reading.read_at + self._options.lease_reuse_age)
        }
        return list(
            dict.fromkeys(descriptor.owner_id for descriptor in self._listed if not self._lease_is_known(descriptor))
        )

    def _decode(self, item: Item) -> tuple[str, MeshNodeDescriptor]:
        known = self._decoded.get(item.key)
        if known is not None and known[0] == item.version:
            return known
        descriptor = decode_mesh_node(item.value)
        if keys.mesh_node(descriptor.mesh_name, descriptor.rid) != item.key:
            raise StoreCorruption("a mesh node row is stored under another node's key")
        return item.version, descriptor

    def _lease_is_known(self, descriptor: MeshNodeDescriptor) -> bool:
        reading = self._leases.get(descriptor.owner_id)
        return reading is not None and reading.generation == descriptor.lease_generation

    def lease_read(self, owner_id: str, answer: Missing | Found, sent_at: float) -> None:
        """Take one lease read. Raises StoreCorruption for a lease without expiry or of another shape (LO-156), unless
        no candidate depends on it (LO-157).
        """
        self._leases.pop(owner_id, None)
        if isinstance(answer, Missing):
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

    def complete(self, now: float) -> Snapshot:
        """Every lease asked for was read: apply the list."""
        if self._failing_since is not None or (self._self_was_listed and not self._self_listed):
            self._recovered_at = now
        elif (
            self._recovered_at is not None and self._poll_started >= self._recovered_at + self._options.owner_lease_ttl
        ):
            self._recovered_at = None
        self._self_was_listed = self._self_listed
        self._failing_since = self._operation = None
        self._complete = True
        live = self._live()
        seen = {each.rid: each for each in live if connection_required(self._own, each.descriptor)}
        self._not_required = [each.descriptor for each in live if each.rid not in seen]
        if self._recovered_at is not None:
            taken = {candidate.descriptor.endpoint for candidate in seen.values()}
            for rid, candidate in self._intents.items():
                if rid not in seen and candidate.descriptor.endpoint not in taken:
                    seen[rid] = candidate
        self._intents = seen
        return self._publish(now)

    def _live(self) -> list[Candidate]:
        by_endpoint: dict[str, Candidate] = {}
        for descriptor in self._listed:
            if not self._lease_is_known(descriptor):
                continue
            rival = by_endpoint.get(descriptor.endpoint)
            if rival is None or rival.descriptor.lease_generation < descriptor.lease_generation:
                reading = self._leases[descriptor.owner_id]
                by_endpoint[descriptor.endpoint] = Candidate(descriptor, reading.usable_until)
        return list(by_endpoint.values())

    # Failing.

    def failed(self, operation: StoreOperation, detail: str, now: float) -> Snapshot:
        """The poll ended without a complete, checked list: candidates stay as they are (LO-156, LO-186, LO-191)."""
        if self._failing_since is None:
            self._failing_since = now
        self._operation = operation
        self.last_error = detail
        return self._publish(now)

    def tick(self, now: float) -> Snapshot:
        """Let time pass: the grace may be over (LO-187)."""
        return self._publish(now)

    def _publish(self, now: float) -> Snapshot:
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
