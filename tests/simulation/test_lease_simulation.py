"""Three hosts, one store, and a network that pauses, loses requests, loses answers and delivers late.

The invariants, each in one sentence:

- expiry: no host counts its lease as valid when the store, by its own clock, has let that grant expire;
- identity: while a host counts its lease as valid, a live row under its OwnerId holds exactly its combination (or an
  earlier claim of the same run that landed late, after the store was emptied), and a run never holds more than one;
- numbers: no two runs hold one LeaseGeneration, unless the store was emptied between their claims;
- revisions: no descriptor revision is ever sent with two contents, and stored revisions only grow while the store keeps
  its rows;
- recovery: once everything works again, every running host holds a valid lease and has published what it last wanted.

Only the pure machines run here, on numbers. The run prints what it reached and fails when something was never reached.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.location_hosts import node
from zlinkpy.location import LeaseEventKind, LeaseState, LocationOptions, MeshNodeDescriptor, keys
from zlinkpy.location.descriptor_machine import DescriptorMachine
from zlinkpy.location.descriptors import decode_mesh_node
from zlinkpy.location.lease_machine import LeaseMachine
from zlinkpy.location.requests import Answer, Batch, Lookup, Request, no_answer
from zlinkpy.location.store import (
    Applied,
    Condition,
    Conflict,
    Found,
    IfMissing,
    IfVersion,
    Missing,
    Put,
    StoreFailure,
)

OPTIONS = LocationOptions()
EXAMPLES = 120
SECONDS = 180.0
CALM = 60.0
"""At the end everything works for this long."""

MUST_REACH = (
    "claimed",
    "renewed",
    "lapsed",
    "restored",
    "released",
    "failed round",
    "claim adopted after a lost answer",
    "request landed after its sender gave up",
    "own deadline passed while running",
    "host slept past its deadline",
    "store emptied",
    "host restarted",
    "publication repeated with the same revision",
    "publication skipped by a newer one",
    "descriptor published again after the store lost it",
)
reached: Counter[str] = Counter()


@define
class Row:
    value: bytes
    version: str
    expires_at: int | None


@define
class Store:
    """The store: rows, and a clock of its own that runs a little fast or slow."""

    rate: float
    rows: dict[bytes, Row] = field(factory=dict)
    granted: dict[bytes, int] = field(factory=dict)
    """The latest expiry ever given to a lease, which a flush does not take back from the one it was given to."""
    sequence: int = 0
    flushes: int = 0
    issued: dict[bytes, int] = field(factory=dict)
    """How often the store had been emptied when a combination first got into it."""

    def clock(self, now: float) -> int:
        return 1_700_000_000_000 + int(now * 1000 * self.rate)

    def live(self, key: bytes, ms: int) -> Row | None:
        row = self.rows.get(key)
        return row if row is not None and (row.expires_at is None or ms < row.expires_at) else None

    def execute(self, request: Request, now: float) -> Answer:
        ms = self.clock(now)
        if isinstance(request, Lookup):
            row = self.live(request.key, ms)
            return Missing(ms) if row is None else Found(row.value, row.version, row.expires_at, ms)
        if not all(self.holds(condition, ms) for condition in request.conditions):
            return Conflict(ms)
        versions = {}
        for mutation in request.mutations:
            if isinstance(mutation, Put):
                self.sequence += 1
                versions[mutation.key] = str(self.sequence)
                expiry = None if mutation.retention_ms is None else ms + mutation.retention_ms
                self.rows[mutation.key] = Row(mutation.value, str(self.sequence), expiry)
                if expiry is not None:
                    self.granted[mutation.key] = expiry
                    self.issued.setdefault(mutation.value, self.flushes)
            else:
                self.rows.pop(mutation.key, None)
        return Applied(versions, ms)

    def holds(self, condition: Condition, ms: int) -> bool:
        row = self.live(condition.key, ms)
        if isinstance(condition, IfMissing):
            return row is None
        if isinstance(condition, IfVersion):
            return row is not None and row.version == condition.version
        return row is not None and row.value == condition.value


class Machine(Protocol):
    def settle(self, answer: Answer, now: float) -> Request | None: ...


@define
class World:
    """Time, the store, and what the network does to requests."""

    random: random.Random
    store: Store
    now: float = 0.0
    calm: bool = False
    paused_until: float = 0.0
    _queue: list[tuple[float, int, Callable[[], None]]] = field(factory=list)
    _count: int = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (max(when, self.now), self._count, action))

    def run(self, until: float, check: Callable[[], None]) -> None:
        while self._queue and self._queue[0][0] <= until:
            when, _, action = heapq.heappop(self._queue)
            self.now = when
            check()
            action()
        self.now = until

    def send(self, request: Request, answered: Callable[[Answer], None]) -> None:
        """Deliver `request` as the network pleases; `answered` is called exactly once."""
        given_up = False
        done = False

        def finish(answer: Answer) -> None:
            nonlocal done
            if not done:
                done = True
                answered(answer)

        def give_up() -> None:
            nonlocal given_up
            given_up = True
            finish(no_answer(request))

        def land(lose_answer: bool) -> None:
            if self.now < self.paused_until:
                self.at(self.paused_until, lambda: land(lose_answer))
                return
            answer = self.store.execute(request, self.now)
            if given_up and isinstance(answer, Applied):
                reached["request landed after its sender gave up"] += 1
            if not lose_answer:
                self.at(self.now + self.random.expovariate(50), lambda: finish(answer))

        self.at(self.now + request.timeout, give_up)
        fate = 1.0 if self.calm else self.random.random()
        soon = self.now + self.random.expovariate(50)
        if fate < 0.08:
            return
        if fate < 0.16:
            self.at(soon, lambda: land(True))
        elif fate < 0.22:
            self.at(self.now + self.random.uniform(0.5, 20), lambda: land(self.random.random() < 0.5))
        elif fate < 0.27:
            unknown = "unknown" if isinstance(request, Batch) else "no"
            failure = StoreFailure("reset", applied=unknown, operation="write")  # type: ignore[arg-type]
            if self.random.random() < 0.5:
                self.at(soon, lambda: land(True))
            self.at(soon, lambda: finish(failure))
        elif fate < 0.30:
            self.at(soon, lambda: finish(StoreFailure("refused", applied="no", operation="write")))
        else:
            self.at(soon, lambda: land(False))


class Host:
    """One host: runs come and go, each with a lease and a descriptor of its own."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.runs = 0
        self.asleep_until = 0.0
        self.start()

    def start(self) -> None:
        self.runs += 1
        rid = f"{self.name}{self.runs}"
        self.lease = LeaseMachine(OPTIONS, f"owner-{rid}")
        self.descriptor = DescriptorMachine(OPTIONS, node(rid), self.lease.owner_id)
        self.wanted = node(rid)
        self.held: set[bytes] = set()
        self.stopping = False
        self.expired_seen = False
        self.sent: dict[int, MeshNodeDescriptor] = {}
        self.stored_revision = self.floor = self.floor_flushes = 0
        self.node_key = keys.mesh_node("main", rid)
        self.lease_key = keys.owner_lease(self.lease.owner_id)
        self.seen_row: Row | None = None
        self.attempts: Counter[int] = Counter()
        self.drive(self.runs)

    # A run's tasks are told apart by its number: what was scheduled for an ended run does nothing.

    def drive(self, run: int) -> None:
        if run != self.runs or self.stopping:
            return
        now = self.world.now
        if now < self.asleep_until:
            self.world.at(self.asleep_until, lambda: self.drive(run))
            return
        self.exchange(run, self.lease, self.lease.poll(now))
        row, generation = self.lease.row, self.lease.lease_generation
        if row is not None and generation is not None and self.lease.is_valid(now):
            self.exchange(run, self.descriptor, self.descriptor.poll(now, row, generation, 0))
        self.world.at(now + 0.5, lambda: self.drive(run))

    def exchange(self, run: int, machine: LeaseMachine | DescriptorMachine, request: Request | None) -> None:
        if request is None:
            return
        if isinstance(machine, DescriptorMachine):
            self.note_publication(request)

        def answered(answer: Answer) -> None:
            if run != self.runs:
                return
            if self.world.now < self.asleep_until:
                self.world.at(self.asleep_until, lambda: answered(answer))
                return
            unresolved = machine.state is LeaseState.UNCLAIMED if isinstance(machine, LeaseMachine) else False
            following = machine.settle(answer, self.world.now)
            if isinstance(machine, LeaseMachine):
                if unresolved and machine.state is LeaseState.HELD and isinstance(answer, Found):
                    reached["claim adopted after a lost answer"] += 1
                self.note_events(machine)
            elif isinstance(following, Batch) and not self.lease.is_valid(self.world.now):
                blocked = StoreFailure("no valid lease", applied="no", operation="write")
                following = machine.settle(blocked, self.world.now)
            if self.stopping and following is None and machine is self.lease:
                self.end(run)
            self.exchange(run, machine, following)

        self.world.send(request, answered)

    def end(self, run: int) -> None:
        if self.lease.state is LeaseState.RELEASED:
            reached["host restarted"] += 1
            self.start()
            return
        request = self.lease.release(self.world.now)
        self.note_events(self.lease)
        if request is None:
            self.start()
        else:
            self.exchange(run, self.lease, request)

    def stop(self) -> None:
        """A normal stop, begun when nothing of the lease is under way, else at the end of its round."""
        if self.stopping:
            return
        self.stopping = True
        idle = self.lease.next_deadline() is not None
        self.lease.stop()
        if idle:
            self.end(self.runs)

    def kill(self) -> None:
        self.start()
        reached["host restarted"] += 1

    def sleep(self, seconds: float) -> None:
        self.asleep_until = self.world.now + seconds
        deadline = self.lease.own_deadline
        if deadline is not None and self.world.now < deadline < self.asleep_until:
            reached["host slept past its deadline"] += 1

    def want(self, weight: int) -> None:
        skipped = self.descriptor.in_flight and not self.descriptor.is_current
        self.wanted = evolve(self.wanted, placement_weight=weight)
        self.descriptor.want(self.wanted)
        reached["publication skipped by a newer one"] += skipped

    def note_events(self, lease: LeaseMachine) -> None:
        for event in lease.take_events():
            reached[{"failed": "failed round"}.get(event.kind.value, event.kind.value)] += 1
            if event.kind is LeaseEventKind.RESTORED:
                self.descriptor.verify()

    def note_publication(self, request: Request) -> None:
        for mutation in request.mutations if isinstance(request, Batch) else ():
            if isinstance(mutation, Put) and mutation.key.startswith(keys.MESH_NODES_PREFIX):
                row = decode_mesh_node(mutation.value)
                known = self.sent.setdefault(row.descriptor_revision, row)
                assert known == row, "a revision was sent with two contents"
                if row.descriptor_revision < max(self.sent):
                    raise AssertionError("an old revision was sent after a newer one")
                repeated = row.descriptor_revision <= self.stored_revision
                reached["descriptor published again after the store lost it"] += repeated
                self.attempts[row.descriptor_revision] += 1
                again = self.attempts[row.descriptor_revision] == 2 and not repeated
                reached["publication repeated with the same revision"] += again

    # The invariants.

    def check(self) -> None:
        world, lease = self.world, self.lease
        assert lease.state is not LeaseState.LOST, lease.failure
        key = self.lease_key
        ms = world.store.clock(world.now)
        live = world.store.live(key, ms)
        if lease.is_valid(world.now):
            assert ms < world.store.granted[key], "a lease was counted as valid past its expiry in the store"
            assert lease.row is not None
            self.held.add(lease.row)
            assert len(self.held) == 1, "one run held two combinations"
            if live is not None and live.value != lease.row:
                assert world.store.flushes > world.store.issued[lease.row], "another combination is under this owner id"
                reached["own late claim found under the lease"] += 1
            self.expired_seen = False
        elif lease.state is LeaseState.HELD and not self.expired_seen:
            self.expired_seen = True
            reached["own deadline passed while running"] += 1
        descriptor = world.store.rows.get(self.node_key)
        if descriptor is not None and descriptor is not self.seen_row:
            self.seen_row = descriptor
            revision = decode_mesh_node(descriptor.value).descriptor_revision
            assert revision >= self.floor or world.store.flushes > self.floor_flushes, "a stored revision went back"
            self.floor, self.floor_flushes = revision, world.store.flushes
            self.stored_revision = max(revision, self.stored_revision)


def weather(world: World, hosts: list[Host]) -> None:
    """Something happens, and something else later."""
    if world.calm:
        return
    host = world.random.choice(hosts)
    kind = world.random.random()
    if kind < 0.15:
        world.paused_until = world.now + world.random.uniform(1, 25)
    elif kind < 0.25:
        host.sleep(world.random.uniform(1, 40))
    elif kind < 0.32:
        world.store.rows.clear()
        world.store.flushes += 1
        reached["store emptied"] += 1
    elif kind < 0.40:
        host.stop()
    elif kind < 0.46:
        host.kill()
    else:
        host.want(world.random.randrange(100))
    world.at(world.now + world.random.expovariate(0.4), lambda: weather(world, hosts))


def simulate(seed: int) -> None:
    chance = random.Random(seed)
    world = World(chance, Store(rate=chance.uniform(0.99, 1.01)))
    hosts = [Host(world, name) for name in ("a", "b", "c")]
    world.at(chance.uniform(0, 5), lambda: weather(world, hosts))

    def check() -> None:
        for host in hosts:
            host.check()
        valid = [host for host in hosts if host.lease.is_valid(world.now)]
        numbers = Counter((world.store.issued[host.lease.row or b""], host.lease.lease_generation) for host in valid)
        assert all(count == 1 for count in numbers.values()), "two runs hold one lease generation"

    world.run(SECONDS, check)
    world.calm = True
    world.paused_until = world.now
    for host in hosts:
        host.asleep_until = world.now
    world.run(SECONDS + CALM, check)
    for host in hosts:
        assert host.lease.is_valid(world.now), f"{host.name} did not recover: {host.lease.state}"
        row = world.store.rows[keys.mesh_node("main", host.wanted.rid)]
        assert decode_mesh_node(row.value).placement_weight == host.wanted.placement_weight
        assert host.descriptor.is_current


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32))
def run_many(seed: int) -> None:
    simulate(seed)


def test_three_hosts_keep_their_leases_apart() -> None:
    reached.clear()
    run_many()
    print()
    for name in MUST_REACH:
        print(f"{reached[name]:8} {name}")
    assert not [name for name in MUST_REACH if not reached[name]]
