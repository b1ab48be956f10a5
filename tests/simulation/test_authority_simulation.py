"""Many writers of authority rows over a store that loses requests, loses answers and delivers late.

The invariants, each in one sentence:

- space: after every write, the capacity row of every node run equals the sum over the authority rows placed there plus
  the moves that reserved space there (LO-218);
- limits: active plus reserved never exceeds a limit, in any stored state (LO-216);
- members: a User Spot counts exactly the Actors whose rows name it;
- numbers: an ObjectGeneration is never given to two incarnations, and an object's owner generation never falls;
- results: what an operation says it did was done: its row was there, or was gone, at some instant before it said so.

Only the pure operations run here. Reads of one look are separate steps in any order, a crash is a generator that is
never resumed. The run prints what it reached and fails when something was never reached.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.authority_hosts import (
    ENTRY,
    LIFECYCLE,
    actor_payload,
    committed_move,
    order,
    owner,
    server,
)
from zlinkpy.location import keys
from zlinkpy.location.authority import (
    AuthorityRecord,
    CapacityRow,
    Count,
    ExecutionMode,
    Full,
    Membership,
    ObjectKey,
    ObjectState,
    Owner,
    Refused,
    ReleaseCause,
    Released,
    RelocationPhase,
    Reserved,
    Slots,
    SpaceReserved,
    SpotChange,
    SpotKind,
    Written,
    creation,
    decode_authority,
    decode_capacity,
    member_left,
    moves,
    ownership,
    unit_slots,
)
from zlinkpy.location.authority.payload import Payload
from zlinkpy.location.authority.rows import AuthorityRow, effective_owner
from zlinkpy.location.authority.steps import Look, Write
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import (
    Applied,
    Condition,
    Conflict,
    Delete,
    Found,
    IfMissing,
    IfVersion,
    Missing,
    Put,
    StoreFailure,
)

EXAMPLES = 100
STEPS = 1500
NODES = ("p", "q", "r")
ACTORS = [ObjectKey("actor", name) for name in ("ann", "bob", "cid")]
SPOTS = [ObjectKey("spot", name) for name in ("hall", "yard", "cart")]
LIMITS = {"actors": 2, "spots": 2, "rooms": 1}
NOW = 1_700_000_000_000

MUST_REACH = (
    "Reserved",
    "Full",
    "Occupied",
    "TargetUnfit",
    "commit: Written",
    "abort: Released",
    "release_orphan: Released",
    "preserve: Written",
    "join: Written",
    "leave: Written",
    "release: Released",
    "several released at once",
    "reincarnate: Written",
    "change_owner: Written",
    "change_owner of a Spot with members",
    "return_space: Released",
    "member of a moved Spot left",
    "answer lost",
    "write landed late",
    "write never landed",
    "conflict",
    "crash",
    "restart",
    "lease lapsed",
    "settled after a lost answer",
)
reached: Counter[str] = Counter()


@define
class Store:
    """Rows and versions; every write that applies is followed by all invariants."""

    rows: dict[bytes, tuple[bytes, str]] = field(factory=dict)
    sequence: int = 0
    generations: dict[int, ObjectKey] = field(factory=dict)
    owner_generations: dict[tuple[ObjectKey, int], int] = field(factory=dict)
    versions: set[tuple[ObjectKey, str]] = field(factory=set)
    gone: Counter[ObjectKey] = field(factory=Counter)

    def read(self, key: bytes) -> Missing | Found:
        row = self.rows.get(key)
        if row is None:
            return Missing(NOW)
        return Found(row[0], row[1], NOW + 15_000 if key.startswith(b"owner-lease") else None, NOW)

    def holds(self, condition: Condition) -> bool:
        row = self.rows.get(condition.key)
        if isinstance(condition, IfMissing):
            return row is None
        if isinstance(condition, IfVersion):
            return row is not None and row[1] == condition.version
        return row is not None and row[0] == condition.value

    def write(self, write: Write) -> Applied | Conflict:
        if not all(self.holds(condition) for condition in write.conditions):
            return Conflict(NOW)
        versions: dict[bytes, str] = {}
        for mutation in write.mutations:
            if isinstance(mutation, Put):
                self.put(mutation.key, mutation.value)
                versions[mutation.key] = str(self.sequence)
            else:
                assert isinstance(mutation, Delete)
                self.rows.pop(mutation.key, None)
                if mutation.key.startswith(keys.AUTHORITY_PREFIX):
                    self.gone[key_of(mutation.key)] += 1
        self.check()
        return Applied(versions, NOW)

    def put(self, key: bytes, value: bytes) -> None:
        self.sequence += 1
        self.rows[key] = value, str(self.sequence)

    def authority(self) -> Iterator[tuple[ObjectKey, AuthorityRow, str]]:
        for raw_key, (value, version) in list(self.rows.items()):
            if raw_key.startswith(keys.AUTHORITY_PREFIX):
                key = key_of(raw_key)
                yield key, decode_authority(value, key), version

    def record(self, key: ObjectKey) -> AuthorityRecord | None:
        row = self.rows.get(key.encode())
        return None if row is None else AuthorityRecord(key, decode_authority(row[0], key), row[1])

    # Invariants.

    def check(self) -> None:
        rows = {key: row for key, row, _ in self.authority()}
        sums: dict[bytes, CapacityRow] = defaultdict(CapacityRow)
        members: Counter[str] = Counter()
        for key, row, version in self.authority():
            self.versions.add((key, version))
            assert self.generations.setdefault(row.object_generation, key) == key
            home = row.payload.member_of
            spot = None
            if home is not None and home.kind is SpotKind.USER:
                members[home.spot_id] += 1
                spot = rows[ObjectKey("spot", home.spot_id)]
            placed, _ = effective_owner(row, spot)
            counted = sums[placed.capacity_key].reserve(row.slots)
            sums[placed.capacity_key] = counted.activate(row.slots) if row.is_active else counted
            life = key, row.object_generation
            assert row.owner_generation >= self.owner_generations.get(life, 0)
            self.owner_generations[life] = row.owner_generation
        for key, row in rows.items():
            if row.payload.members is not None:
                assert row.payload.members.count == members[key.object_id]
        stored = {key: decode_capacity(value) for key, (value, _) in self.rows.items() if key.startswith(b"capacity\0")}
        for key in stored.keys() | sums.keys():
            row = stored.get(key, CapacityRow())
            wanted = sums[key]
            for slots in row.moves.values():
                wanted = wanted.reserve(slots)
            assert evolve(row, moves={}) == wanted
            rooms = row.spot_types.get("userSpot:room", Count())
            for count, limit in ((row.actors, "actors"), (row.spots, "spots"), (rooms, "rooms")):
                assert count.active + count.reserved <= LIMITS[limit]


def key_of(raw: bytes) -> ObjectKey:
    _, kind, name = raw.decode().split("\0")
    return ObjectKey("actor" if kind == "actor" else "spot", name)


@define
class Node:
    """One host: its combination and lifecycle change when it restarts."""

    rid: str
    generation: int = 1
    lifecycle: int = LIFECYCLE

    @property
    def owner(self) -> Owner:
        return owner(self.rid, generation=self.generation, lifecycle=self.lifecycle)

    @property
    def me(self) -> LeaseRow:
        return LeaseRow(self.rid, self.generation)


@define(eq=False)
class Agent:
    """One operation under way."""

    name: str
    key: ObjectKey
    steps: Any
    ask: Look | Write
    after: Any = None
    seen: dict[bytes, Missing | Found] = field(factory=dict)
    lost: bool = False
    gone_before: int = 0


class World:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.store = Store()
        self.nodes = {rid: Node(rid) for rid in NODES}
        self.agents: list[Agent] = []
        self.late: list[Write] = []
        self.calm = False
        self.relocations = 0
        self.reservations = 0
        for node in self.nodes.values():
            self.publish(node)
            self.lease(node)

    def publish(self, node: Node) -> None:
        descriptor = evolve(server(node.rid, **LIMITS), lifecycle_generation=node.lifecycle, owner_id=node.rid).signed(
            1, node.rid, node.generation
        )
        self.store.put(node.owner.descriptor_key, descriptor.kind.encode(descriptor, 0))

    def lease(self, node: Node) -> None:
        self.store.put(node.owner.lease_key, node.me.encode())

    def run(self) -> None:
        for step in range(STEPS):
            self.calm = step > STEPS * 0.8
            self.disturb()
            if len(self.agents) < 5:
                self.begin()
            if self.agents:
                self.advance(self.dice.choice(self.agents))
        for agent in list(self.agents):
            for _ in range(200):
                if agent in self.agents:
                    self.advance(agent)
            assert agent not in self.agents, f"{agent.name} does not end although everything works"

    # What happens to nodes.

    def disturb(self) -> None:
        roll = self.dice.random()
        node = self.nodes[self.dice.choice(NODES)]
        if self.late and roll < 0.1:
            late = self.late.pop(self.dice.randrange(len(self.late)))
            if isinstance(self.store.write(late), Applied):
                reached["write landed late"] += 1
            else:
                reached["write never landed"] += 1
        elif self.calm:
            if node.owner.lease_key not in self.store.rows:
                self.lease(node)
        elif 0.1 <= roll < 0.102:
            self.store.rows.pop(node.owner.lease_key, None)
            reached["lease lapsed"] += 1
        elif 0.102 <= roll < 0.125:
            self.lease(node)
        elif 0.125 <= roll < 0.126:
            node.generation += 1
            node.lifecycle += 1
            self.publish(node)
            self.lease(node)
            reached["restart"] += 1

    # Operations.

    def start(self, name: str, key: ObjectKey, steps: Any, after: Any = None) -> None:
        try:
            ask = next(steps)
        except StopIteration:
            return  # nothing to do for what was seen
        self.agents.append(Agent(name, key, steps, ask, after, gone_before=self.store.gone[key]))

    def begin(self) -> None:
        dice = self.dice
        node = self.nodes[dice.choice(NODES)]
        key = dice.choice(ACTORS + SPOTS)
        record = self.store.record(key)
        if record is None:
            self.reservations += 1
            kind = "cart" if key.object_id == "cart" else ""
            mode = dice.choice(list(ExecutionMode))
            wanted = order(key, node.owner, kind=kind, reservation=f"r{self.reservations}", mode=mode)
            self.start("reserve", key, creation.reserve(wanted))
            return
        row = record.row
        if not row.is_active:
            choice = dice.choice(["commit", "commit", "abort", "release_orphan", "reserve"])
            if choice == "commit":
                self.start("commit", key, creation.commit(record, row.payload.to(ObjectState.READY)))
            elif choice == "abort":
                self.start("abort", key, creation.abort(record))
            elif choice == "release_orphan":
                self.start("release_orphan", key, creation.release_orphan(record))
            else:
                self.reservations += 1
                kind = "cart" if key.object_id == "cart" else ""
                wanted = order(key, node.owner, kind=kind, reservation=f"r{self.reservations}")
                self.start("reserve", key, creation.reserve(wanted))
            return
        self.begin_active(record)

    def begin_active(self, record: AuthorityRecord) -> None:
        dice, key, row = self.dice, record.key, record.row
        home = ownership.home_key(row.payload)
        spot = None if home is None else self.store.record(home)
        at, _ = effective_owner(row, None if spot is None else spot.row)
        me = self.nodes[at.rid].me
        name = dice.choice(["preserve", "release", "join", "leave", "change_owner", "return_space", "join"])
        if spot is not None and dice.random() < 0.3:
            # Rooms with people in them move, and those leave there.
            record, name = (record, "leave") if at != row.owner else (spot, "change_owner")
            key, row, spot = record.key, record.row, spot if name == "leave" else None
        if name == "preserve":
            if row.payload.state is ObjectState.CLOSING and key.object_id == "cart" and dice.random() < 0.5:
                born = Payload(state=ObjectState.CREATING, kind=SpotKind.INSTANCE)
                self.start("reincarnate", key, ownership.reincarnate(record, born, me))
                return
            state = dice.choice([ObjectState.READY, ObjectState.READY, ObjectState.CLOSING])
            settled = evolve(row.payload, state=state, relocation=None)
            self.start(name, key, ownership.preserve(record, settled, me))
        elif name == "release" and dice.random() < 0.3:
            # Some of a host's rows at once, as when it ends.
            group = [each for each in map(self.store.record, ACTORS + SPOTS) if each is not None]
            group = [each for each in group if ownership.home_key(each.row.payload) == home]
            self.start("release_together", key, ownership.release_together(group, me))
        elif name == "release":
            cause = dice.choice(list(ReleaseCause))
            self.start(name, key, ownership.release(record, cause, me))
        elif name in ("join", "leave") and key.kind == "actor":
            target = ENTRY if name == "leave" else Membership(dice.choice(["hall", "yard"]), SpotKind.USER)
            if name == "leave" and at != row.owner:
                name = "leave of a moved Spot"
            self.start(name, key, ownership.change_membership(record, target, me))
        elif name == "change_owner":
            self.begin_move(record, spot)
        elif name == "return_space":
            node = self.nodes[dice.choice(NODES)]
            found = self.store.rows.get(node.owner.capacity_key)
            held = [] if found is None else list(decode_capacity(found[0]).moves)
            if held and dice.random() < 0.2:
                self.start(name, key, moves.return_space(node.owner, bytes.fromhex(dice.choice(held))))

    def begin_move(self, record: AuthorityRecord, spot: AuthorityRecord | None) -> None:
        self.relocations += 1
        relocation_id = self.relocations.to_bytes(16, "big")
        target = self.nodes[self.dice.choice(NODES)].owner
        slots = unit_slots(record.row)
        limits = server(target.rid, **LIMITS)

        def commit() -> None:
            more: dict[str, Any] = {}
            if spot is not None:
                more = {
                    "payload": actor_payload(ObjectState.READY, ENTRY),
                    "spots": (SpotChange(spot.key, member_left),),
                }
            source, _ = effective_owner(record.row, None if spot is None else spot.row)
            phase = self.dice.choice([RelocationPhase.COMMITTED, RelocationPhase.ACTIVATED])
            move = committed_move(record, target, relocation_id=relocation_id, source=source, phase=phase, **more)
            self.start("change_owner", record.key, moves.change_owner(move))

        if target.rid != record.row.owner.rid:
            self.start("reserve_space", record.key, moves.reserve_space(target, relocation_id, slots, limits), commit)

    # One store call.

    def advance(self, agent: Agent) -> None:
        if not self.calm and self.dice.random() < 0.002:
            self.agents.remove(agent)
            reached["crash"] += 1
            return
        if isinstance(agent.ask, Look):
            # The keys of a look are read in any order.
            unread = [key for key in dict.fromkeys(agent.ask.keys) if key not in agent.seen]
            key = self.dice.choice(unread)
            agent.seen[key] = self.store.read(key)
            if len(unread) == 1:
                seen, agent.seen = agent.seen, {}
                self.resume(agent, tuple(seen[key] for key in agent.ask.keys))
            return
        self.resume(agent, self.answer(agent, agent.ask))

    def answer(self, agent: Agent, write: Write) -> Applied | Conflict | StoreFailure:
        roll = 1.0 if self.calm else self.dice.random()
        if roll < 0.1:
            return StoreFailure("refused", applied="no", operation="write")
        if roll < 0.3:
            agent.lost = True
            reached["answer lost"] += 1
            if roll < 0.2:
                self.store.write(write)
            else:
                self.late.append(write)
            return StoreFailure("lost", applied="unknown", operation="write")
        answer = self.store.write(write)
        reached["conflict"] += isinstance(answer, Conflict)
        return answer

    def resume(self, agent: Agent, answer: object) -> None:
        try:
            agent.ask = agent.steps.send(answer)
        except StopIteration as ended:
            self.agents.remove(agent)
            self.ended(agent, ended.value)

    def ended(self, agent: Agent, result: Any) -> None:
        kind = type(result).__name__
        reached[kind if agent.name == "reserve" else f"{agent.name}: {kind}"] += 1
        reached["settled after a lost answer"] += agent.lost and not isinstance(result, Refused)
        if isinstance(result, Reserved | Written):
            assert (agent.key, result.record.version) in self.store.versions
        if agent.name == "leave of a moved Spot" and isinstance(result, Written):
            reached["leave: Written"] += 1
            reached["member of a moved Spot left"] += 1
        if isinstance(result, Released) and agent.name in ("abort", "release", "release_orphan"):
            assert self.store.gone[agent.key] > agent.gone_before
        if agent.name == "change_owner" and isinstance(result, Written):
            members = result.record.row.payload.members
            reached["change_owner of a Spot with members"] += members is not None and members.count > 0
        if isinstance(result, ownership.SweptTogether):
            reached["several released at once"] += result.released > 1
        if isinstance(result, SpaceReserved):
            agent.after()
        assert not isinstance(result, Full) or result.what in ("actors", "spots", "userSpot:room")


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 2**32))
def _simulate(seed: int) -> None:
    World(seed).run()


@pytest.mark.contract("LO-218", "LO-216")
def test_capacity_equals_the_sum_of_the_rows_through_any_interleaving() -> None:
    reached.clear()
    _simulate()
    print(dict(reached))
    assert not [what for what in MUST_REACH if not reached[what]]


def test_the_check_notices_a_row_without_its_place() -> None:
    world = World(1)
    record = None
    while record is None:
        world.begin()
        world.advance(world.dice.choice(world.agents))
        record = world.store.record(ACTORS[0])
    unplaced = evolve(record.row, object_generation=99, slots=Slots(actors=1))
    world.store.put(ObjectKey("actor", "eve").encode(), unplaced.encode())
    with pytest.raises(AssertionError):
        world.store.check()
