"""Operations on authority rows against both providers: what each changes, and when it changes nothing (LO sections 5,
12, 13, 17).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.authority_hosts import (
    ENTRY,
    FAR,
    RELOCATION_ID,
    Cluster,
    actor,
    actor_payload,
    cart_payload,
    committed_move,
    order,
    owner,
    room_payload,
    spot,
)
from tests.contract.location_store.conftest import Bench
from tests.location_hosts import OPTIONS, Gate, plant, put
from zlinkpy.entropy import SeededEntropy
from zlinkpy.errors import UnavailableError
from zlinkpy.location import GenerationExhausted, keys
from zlinkpy.location.authority import (
    ACTOR_SLOTS,
    AllocationState,
    AuthorityRecord,
    AuthorityRepository,
    CapacityRow,
    Count,
    Creation,
    CreationTerminal,
    ExecutionMode,
    Full,
    IdClaimed,
    Members,
    Membership,
    ObjectState,
    Occupied,
    Refused,
    ReleaseCause,
    Released,
    Reserved,
    Slots,
    SpaceReserved,
    SpotChange,
    SpotKind,
    Swept,
    TargetUnfit,
    TerminalNote,
    Unfit,
    Why,
    Written,
    member_joined,
    member_left,
    unit_slots,
)
from zlinkpy.location.authority.ownership import preserve, release
from zlinkpy.location.rows import EntryClaimRow
from zlinkpy.location.store import Delete, Put, StoreCorruption
from zlinkpy.wire import CreateOutcome, FailureCode, RuntimeState, TerminalResult

READY, CLOSING = ObjectState.READY, ObjectState.CLOSING
OPERATION = b"\0" * 15 + b"\7"
COUNTERS = {keys.OBJECT_COUNTER, keys.AUTHORITY_OWNER_COUNTER}


@pytest.fixture
async def cluster(bench: Bench) -> Cluster:
    made = Cluster(bench.store)
    await made.start("p")
    await made.start("q")
    return made


P, Q = owner("p"), owner("q")


def note(terminal: CreationTerminal) -> TerminalNote:
    return TerminalNote("p", 7, OPERATION, terminal, 1_000)


async def reserved(cluster: Cluster, key: Any = None, **more: Any) -> AuthorityRecord:
    result = await cluster["p"].reserve(order(key or actor(), P, **more), FAR)
    assert isinstance(result, Reserved)
    return result.record


# --- reserve


@pytest.mark.contract("LO-220", "LO-090", "LO-092")
async def test_reserve_writes_the_row_the_numbers_and_the_place_in_one_batch(cluster: Cluster) -> None:
    before = await cluster.image()
    record = await reserved(cluster)
    after = await cluster.image()
    changed = {key for key in after if after[key] != before.get(key)}
    assert changed == {actor().encode(), P.capacity_key, *COUNTERS}
    row = record.row
    assert row.state is AllocationState.RESERVED
    assert (row.object_generation, row.owner_generation) == (1, 1)
    assert row.owner == P
    assert row.pending is not None
    assert (row.pending.reservation_id, row.pending.request()) == ("r1", b"please")
    assert after[keys.OBJECT_COUNTER][0] == after[keys.AUTHORITY_OWNER_COUNTER][0] == b"2"
    assert await cluster.capacity(P) == CapacityRow(actors=Count(0, 1))
    assert await cluster.read(actor()) == record


@pytest.mark.contract("LO-097", "LO-096")
async def test_two_objects_have_two_generations_and_a_new_life_has_another(cluster: Cluster) -> None:
    first = await cluster.create(actor("ann"), P)
    second = await cluster.create(spot(), Q)
    assert first.row.object_generation != second.row.object_generation
    assert isinstance(await cluster["p"].release(first, ReleaseCause.DESTROY, FAR), Released)
    again = await cluster.create(actor("ann"), P)
    assert again.row.object_generation not in (first.row.object_generation, second.row.object_generation)
    assert again.row.owner_generation > second.row.owner_generation > first.row.owner_generation


@pytest.mark.contract("LO-221")
async def test_of_two_nodes_that_reserve_one_id_one_gets_it(cluster: Cluster) -> None:
    results: list[Any] = []

    async def one(rid: str, at: Any, number: int) -> None:
        results.append(await cluster[rid].reserve(order(actor(f"a{number}"), at, reservation=f"r-{rid}"), FAR))

    for number in range(100):
        results.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "p", P, number)
            nursery.start_soon(one, "q", Q, number)
        kinds = Counter(type(result) for result in results)
        assert kinds == {Reserved: 1, Occupied: 1}
        assert results[0].record == results[1].record
    assert (await cluster.capacity(P)).actors.reserved + (await cluster.capacity(Q)).actors.reserved == 100


@pytest.mark.contract("LO-222")
async def test_a_target_that_cannot_take_it_is_named_and_nothing_is_written(cluster: Cluster) -> None:
    async def refused(at: Any) -> Any:
        before = await cluster.image()
        result = await cluster["p"].reserve(order(actor("x"), at, reservation="other"), FAR)
        assert await cluster.image() == before
        return result

    assert await refused(owner("q", lifecycle=8)) == TargetUnfit(Unfit.DESCRIPTOR)
    assert await refused(owner("q", generation=2)) == TargetUnfit(Unfit.LEASE)
    for state in RuntimeState:
        if state is not RuntimeState.SERVING:
            await plant(cluster.store, evolve(cluster.descriptors["q"], state=state), ttl_ms=60_000)  # type: ignore[arg-type]
            assert await refused(Q) == TargetUnfit(Unfit.STATE)
    await cluster.lapse("q")
    assert await refused(Q) == TargetUnfit(Unfit.LEASE)
    await cluster.renew("q")
    await cluster.store.write([], [Delete(Q.descriptor_key)])
    assert await refused(Q) == TargetUnfit(Unfit.DESCRIPTOR)
    await cluster.start("f", actors=1)
    await cluster.create(actor("fills"), owner("f"))
    assert await refused(owner("f")) == Full("actors")


@pytest.mark.contract("LO-216")
async def test_fifty_creations_from_four_nodes_stay_within_every_limit(cluster: Cluster, bench: Bench) -> None:
    await cluster.start("f", actors=10, spots=5, rooms=2)
    target = owner("f")
    for rid in ("m", "n"):
        await cluster.start(rid)
    results: Counter[Any] = Counter()
    seen: list[CapacityRow] = []

    async def one(rid: str, number: int) -> None:
        key = actor(f"a{number}") if number % 2 else spot(f"s{number}")
        kind = "cart" if number % 4 == 0 else ""
        result = await cluster[rid].reserve(order(key, target, kind=kind, reservation=f"r{number}"), FAR)
        seen.append(await cluster.capacity(target))
        results[result if isinstance(result, Full) else type(result)] += 1
        if isinstance(result, Reserved) and number % 3:
            ready = result.record.row.payload.to(READY)
            assert isinstance(await cluster["f"].commit(result.record, ready, FAR), Written)
            seen.append(await cluster.capacity(target))

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(one, ("p", "q", "m", "n")[number % 4], number)
    assert results[Full("actors")] == 15
    assert results[Reserved] == 15
    assert results[Full("spots")] + results[Full("userSpot:room")] == 20
    for row in [*seen, await cluster.capacity(target)]:
        rooms = row.spot_types.get("userSpot:room", Count())
        for count, limit in ((row.actors, 10), (row.spots, 5), (rooms, 2)):
            assert count.active + count.reserved <= limit


@pytest.mark.contract("LO-224")
async def test_the_id_of_an_entry_spot_is_not_given_away(cluster: Cluster) -> None:
    await put(cluster.store, keys.entry_spot("hall"), EntryClaimRow("main", "q", "q", 1).encode())
    before = await cluster.image()
    assert await cluster["p"].reserve(order(spot("hall"), P), FAR) == IdClaimed()
    assert await cluster.image() == before
    # Actors have a name space of their own.
    assert isinstance(await cluster["p"].reserve(order(actor("hall"), P), FAR), Reserved)


@pytest.mark.contract("LO-093", "LO-094")
@pytest.mark.parametrize("counter", sorted(COUNTERS))
async def test_an_exhausted_counter_changes_nothing(cluster: Cluster, counter: bytes) -> None:
    closing = await cluster.create(spot("cart"), P, kind="cart", payload=cart_payload(CLOSING))
    await put(cluster.store, counter, b"9223372036854775807")
    before = await cluster.image()
    for _ in range(2):
        with pytest.raises(GenerationExhausted):
            await cluster["p"].reserve(order(actor("x"), P), FAR)
        with pytest.raises(GenerationExhausted):
            await cluster["p"].reincarnate(closing, cart_payload(), FAR)
    assert await cluster.image() == before


@pytest.mark.contract("LO-202", "LO-072")
async def test_one_id_has_one_row_whatever_the_kind_of_spot(cluster: Cluster) -> None:
    first = await cluster.create(spot("x"), P)
    again = await cluster["q"].reserve(order(spot("x"), Q, kind="cart", reservation="r9"), FAR)
    assert again == Occupied(first)
    assert isinstance(await cluster["q"].reserve(order(actor("x"), Q, reservation="r9"), FAR), Reserved)


@pytest.mark.contract("LO-201")
async def test_looking_for_a_missing_id_makes_nothing(cluster: Cluster) -> None:
    before = await cluster.image()
    assert await cluster["p"].read(actor("nobody"), FAR) is None
    assert await cluster.image() == before


# --- the end of a creation


@pytest.mark.contract("LO-228", "LO-231")
@pytest.mark.parametrize("outcome", ["created", "rejected", "failed", "failed before the callback"])
async def test_a_creation_ends_in_one_batch(cluster: Cluster, outcome: str) -> None:
    record = await reserved(cluster)
    creation = Creation(CreateOutcome.CREATED, "actor", "ann", record.row.object_generation)
    ends = {
        "created": CreationTerminal(TerminalResult.OK, creation=creation, reply=b"welcome"),
        "rejected": CreationTerminal(
            TerminalResult.OK, creation=evolve(creation, outcome=CreateOutcome.REJECTED), reply=b"no"
        ),
        "failed": CreationTerminal(TerminalResult.INTERNAL_ERROR, FailureCode.ACTOR_CREATE_FAILED),
    }
    terminal = ends.get(outcome)
    before = await cluster.image()
    with_note = None if terminal is None else note(terminal)
    if outcome == "created":
        written = await cluster["p"].commit(record, actor_payload(READY), FAR, with_note)
        assert isinstance(written, Written)
        assert written.record == await cluster.read(actor())
        assert written.record.row == evolve(
            record.row, state=AllocationState.ACTIVE, payload=actor_payload(READY), pending=None
        )
        assert await cluster.capacity(P) == CapacityRow(actors=Count(1, 0))
    else:
        assert await cluster["p"].abort(record, FAR, with_note) == Released()
        assert await cluster.raw(actor().encode()) is None
        assert await cluster.capacity(P) == CapacityRow()
    after = await cluster.image()
    changed = {key for key in before.keys() | after.keys() if after.get(key) != before.get(key)}
    expected = {actor().encode(), P.capacity_key}
    if terminal is not None:
        expected.add(keys.creation_terminal("p", 7, OPERATION))
    assert changed == expected
    assert await cluster["q"].find_terminal("p", 7, OPERATION, FAR) == terminal
    assert await cluster["q"].find_terminal("p", 8, OPERATION, FAR) is None
    assert await cluster["q"].find_terminal("p", 7, OPERATION[:-1] + b"\x08", FAR) is None


@pytest.mark.contract("LO-231", "LO-232")
async def test_a_terminal_goes_five_minutes_after_its_deadline(memory_bench: Any) -> None:
    cluster = Cluster(memory_bench.store)
    await cluster.start("p")
    record = await reserved(cluster)
    failed = CreationTerminal(TerminalResult.INTERNAL_ERROR, FailureCode.ACTOR_CREATE_FAILED)
    assert await cluster["p"].abort(record, FAR, note(failed)) == Released()
    await memory_bench.pass_ms(300_999)
    assert await cluster["p"].find_terminal("p", 7, OPERATION, FAR) == failed
    await memory_bench.pass_ms(1)
    assert await cluster["p"].find_terminal("p", 7, OPERATION, FAR) is None


@pytest.mark.contract("LO-203", "LO-204")
async def test_operations_of_the_other_state_are_refused_and_change_nothing(cluster: Cluster) -> None:
    held = await reserved(cluster)
    active = await cluster.create(actor("bob"), P)
    before = await cluster.image()
    refusals = [
        await cluster["p"].preserve(held, actor_payload(CLOSING), FAR),
        await cluster["p"].reincarnate(held, actor_payload(), FAR),
        await cluster["p"].release(held, ReleaseCause.DESTROY, FAR),
        await cluster["p"].release(held, ReleaseCause.HOST_SHUTDOWN, FAR),
        await cluster["q"].change_owner(committed_move(held, Q), FAR),
        await cluster["p"].commit(active, actor_payload(READY), FAR),
        await cluster["p"].abort(active, FAR),
        await cluster["p"].release_orphan(active, FAR),
    ]
    assert [refused.why for refused in refusals] == [Why.STATE] * 8  # type: ignore[union-attr]
    assert await cluster.image() == before


@pytest.mark.contract("LO-234", "LO-235")
@pytest.mark.parametrize(
    "gone", ["nothing", "lease", "other generation", "descriptor", "other lifecycle", "no capacity row"]
)
async def test_a_reservation_is_released_exactly_when_nobody_will_finish_it(cluster: Cluster, gone: str) -> None:
    record = await reserved(cluster)
    if gone in ("lease", "no capacity row"):
        await cluster.lapse("p")
    if gone == "other generation":
        await cluster.renew("p", generation=2)
    if gone == "descriptor":
        await cluster.store.write([], [Delete(P.descriptor_key)])
    if gone == "other lifecycle":
        await plant(cluster.store, evolve(cluster.descriptors["p"], lifecycle_generation=8), ttl_ms=60_000)  # type: ignore[arg-type]
    if gone == "no capacity row":
        await cluster.store.write([], [Delete(P.capacity_key)])
    before = await cluster.image()
    result = await cluster["q"].release_orphan(record, FAR)
    after = await cluster.image()
    if gone == "nothing":
        assert result == Refused(Why.STATE, record)
        assert after == before
        return
    assert result == Released()
    assert actor().encode() not in after
    if gone == "no capacity row":
        assert before.keys() - after.keys() == {actor().encode()}
        assert P.capacity_key not in after
    else:
        assert await cluster.capacity(P) == CapacityRow()
    assert {key for key in after if after[key] != before[key]} <= {P.capacity_key}


@pytest.mark.contract("LO-234")
async def test_another_reservation_and_the_scan_at_start_release_what_is_in_the_way(cluster: Cluster) -> None:
    await reserved(cluster, actor("a"))
    await reserved(cluster, actor("b"))
    alive = await cluster["q"].reserve(order(actor("c"), Q), FAR)
    ready = await cluster.create(actor("d"), P)
    await cluster.lapse("p")
    mine = await cluster["q"].reserve(order(actor("a"), Q, reservation="mine"), FAR)
    assert isinstance(mine, Reserved)
    assert mine.record.row.owner == Q
    assert await cluster["q"].release_orphans(FAR) == Swept(released=1, kept=2)
    assert await cluster.raw(actor("b").encode()) is None
    assert isinstance(alive, Reserved)
    assert await cluster.read(actor("c")) == alive.record
    assert await cluster.read(actor("d")) == ready  # an active row of a dead owner stays
    assert await cluster.capacity(P) == CapacityRow(actors=Count(1, 0))


@pytest.mark.contract("LO-236")
async def test_of_a_release_and_the_targets_commit_one_wins(cluster: Cluster) -> None:
    wins: Counter[str] = Counter()

    async def run(name: str, call: Any, *arguments: Any) -> None:
        result = await call(*arguments)
        wins[name] += not isinstance(result, Refused)

    for number in range(30):
        record = await reserved(cluster, actor(f"a{number}"), reservation=f"r{number}")
        await cluster.store.write([], [Delete(P.descriptor_key)])
        wins.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "release", cluster["q"].release_orphan, record, FAR)
            nursery.start_soon(run, "commit", cluster["p"].commit, record, actor_payload(READY), FAR)
            if number % 2:
                await trio.lowlevel.checkpoint()
            await plant(cluster.store, cluster.descriptors["p"], ttl_ms=60_000)  # type: ignore[arg-type]
        found = await cluster.raw(actor(f"a{number}").encode())
        assert wins["release"] + wins["commit"] <= 1
        assert (found is None) == bool(wins["release"])


# --- the owner's operations


@pytest.mark.contract("LO-205")
async def test_preserve_changes_the_payload_and_nothing_else(cluster: Cluster) -> None:
    record = await cluster.create(actor(), P)
    before = await cluster.image()
    written = await cluster["p"].preserve(record, actor_payload(CLOSING), FAR)
    after = await cluster.image()
    assert isinstance(written, Written)
    assert {key for key in after if after[key] != before[key]} == {actor().encode()}
    assert written.record.row == evolve(record.row, payload=actor_payload(CLOSING))
    assert written.record.version != record.version


@pytest.mark.contract("LO-206", "LO-212")
async def test_a_former_owner_is_refused_whatever_it_sends(cluster: Cluster) -> None:
    record = await cluster.create(actor(), P)
    pending = await reserved(cluster, actor("new"))
    await cluster.lapse("p")
    before = await cluster.image()

    async def all_refused(held: AuthorityRecord, why: Why) -> None:
        for steps in (
            preserve(held, actor_payload(CLOSING), cluster.leases["p"].row),
            release(held, ReleaseCause.DESTROY, cluster.leases["p"].row),
        ):
            result = await cluster["p"]._run(steps, FAR)
            assert isinstance(result, Refused)
            assert result.why is why

    await all_refused(record, Why.LEASE)
    assert (await cluster["p"].commit(pending, actor_payload(READY), FAR)).why is Why.LEASE  # type: ignore[union-attr]
    await cluster.renew("p", generation=2)
    before = await cluster.image()
    await all_refused(record, Why.LEASE)
    # Another caller's version.
    cluster.leases["p"].lease_generation = 1
    await cluster.renew("p")
    other = await cluster["p"].preserve(record, actor_payload(CLOSING), FAR)
    assert isinstance(other, Written)
    before = await cluster.image()
    moved_on = await cluster["p"].release(record, ReleaseCause.DESTROY, FAR)
    assert moved_on == Refused(Why.CHANGED, other.record)
    # Somebody who is not the owner.
    not_mine = await cluster["q"].release(other.record, ReleaseCause.DESTROY, FAR)
    assert not_mine == Refused(Why.OWNER, other.record)
    assert await cluster.image() == before


@pytest.mark.contract("LO-121", "LO-206")
async def test_without_a_valid_lease_nothing_is_sent(cluster: Cluster, bench: Bench) -> None:
    record = await cluster.create(actor(), P)
    pending = await reserved(cluster, actor("new"))
    cluster.leases["p"].valid = False
    before = await cluster.image()
    calls: list[Any] = [
        lambda: cluster["p"].reserve(order(actor("x"), Q, reservation="x"), FAR),
        lambda: cluster["p"].commit(pending, actor_payload(READY), FAR),
        lambda: cluster["p"].abort(pending, FAR),
        lambda: cluster["p"].preserve(record, actor_payload(CLOSING), FAR),
        lambda: cluster["p"].release(record, ReleaseCause.DESTROY, FAR),
        lambda: cluster["p"].reserve_space(P, RELOCATION_ID, ACTOR_SLOTS, cluster.descriptors["p"], FAR),
    ]
    for call in calls:
        with pytest.raises(UnavailableError) as failure:
            await call()
        assert failure.value.cause == "OwnerLease"
    assert await cluster.image() == before


@pytest.mark.contract("LO-210", "LO-291")
@pytest.mark.parametrize(
    ("kind", "cause", "states"),
    [
        ("actor", ReleaseCause.DESTROY, [READY, CLOSING]),
        ("room", ReleaseCause.EXPLICIT_CLOSE, [CLOSING]),
        ("cart", ReleaseCause.EXPLICIT_CLOSE, [CLOSING]),
        ("cart", ReleaseCause.IDLE_EVICTED, [CLOSING]),
        ("actor", ReleaseCause.HOST_SHUTDOWN, list(ObjectState)),
        ("room", ReleaseCause.HOST_SHUTDOWN, list(ObjectState)),
    ],
)
async def test_a_release_takes_the_row_and_the_place_in_one_batch(
    cluster: Cluster, kind: str, cause: ReleaseCause, states: list[ObjectState]
) -> None:
    make = {"actor": actor_payload, "room": room_payload, "cart": cart_payload}[kind]
    for state in ObjectState:
        key = actor(state.value) if kind == "actor" else spot(state.value)
        record = await cluster.create(key, P, payload=make(state), **({"kind": "cart"} if kind == "cart" else {}))
        before = await cluster.image()
        full = await cluster.capacity(P)
        result = await cluster["p"].release(record, cause, FAR)
        after = await cluster.image()
        if state not in states:
            assert result == Refused(Why.STATE, record)
            assert after == before
            continue
        assert result == Released()
        assert before.keys() - after.keys() == {key.encode()}
        assert {each for each in after if after[each] != before[each]} == {P.capacity_key}
        assert await cluster.capacity(P) == full.release(record.row.slots)
        assert await cluster["p"].release(record, cause, FAR) == Refused(Why.GONE)


@pytest.mark.contract("LO-341", "LO-213")
async def test_what_may_not_be_released_for_a_cause_stays(cluster: Cluster) -> None:
    room = await cluster.create(spot(), P)
    ann = await cluster.join(await cluster.create(actor(), P), room)
    room = await cluster.read(spot())
    cart = await cluster.create(spot("cart"), P, kind="cart", payload=cart_payload(CLOSING))
    empty = await cluster.create(spot("empty"), P, payload=room_payload(CLOSING))
    before = await cluster.image()
    wrong = [
        (ann, ReleaseCause.DESTROY, Why.STATE),  # it is still in a User Spot
        (ann, ReleaseCause.EXPLICIT_CLOSE, Why.STATE),
        (ann, ReleaseCause.IDLE_EVICTED, Why.STATE),
        (cart, ReleaseCause.DESTROY, Why.STATE),
        (room, ReleaseCause.IDLE_EVICTED, Why.STATE),
        (empty, ReleaseCause.IDLE_EVICTED, Why.STATE),
        (room, ReleaseCause.HOST_SHUTDOWN, Why.MEMBERS),
    ]
    for record, cause, why in wrong:
        assert await cluster["p"].release(record, cause, FAR) == Refused(why, record)
    assert await cluster.image() == before


@pytest.mark.contract("LO-211", "LO-096")
async def test_reincarnate_gives_a_closing_object_new_numbers_in_the_same_place(cluster: Cluster) -> None:
    ready = await cluster.create(spot("cart"), P, kind="cart")
    assert await cluster["p"].reincarnate(ready, cart_payload(), FAR) == Refused(Why.STATE, ready)
    closing = await cluster["p"].preserve(ready, cart_payload(CLOSING), FAR)
    assert isinstance(closing, Written)
    capacity = await cluster.capacity(P)
    born = await cluster["p"].reincarnate(closing.record, cart_payload(), FAR)
    assert isinstance(born, Written)
    row = born.record.row
    assert row.object_generation > ready.row.object_generation
    assert row.owner_generation > ready.row.owner_generation
    assert (row.owner, row.state, row.slots, row.payload) == (
        P,
        AllocationState.ACTIVE,
        ready.row.slots,
        cart_payload(),
    )
    assert await cluster.capacity(P) == capacity


# --- membership


async def test_joining_and_leaving_change_both_rows_at_once(cluster: Cluster) -> None:
    room, other = await cluster.create(spot("room"), P), await cluster.create(spot("other"), P)
    ann = await cluster.create(actor(), P)
    capacity = await cluster.capacity(P)
    ann = await cluster.join(ann, room)
    assert (await cluster.read(spot("room"))).row.payload.members == Members(1, 2)
    ann = await cluster.join(ann, other)
    assert (await cluster.read(spot("room"))).row.payload.members == Members(0, 3)
    assert (await cluster.read(spot("other"))).row.payload.members == Members(1, 2)
    left = await cluster["p"].change_membership(ann, ENTRY, FAR)
    assert isinstance(left, Written)
    assert left.record.row.payload.member_of == ENTRY
    assert (await cluster.read(spot("other"))).row.payload.members == Members(0, 3)
    assert await cluster.capacity(P) == capacity
    again = await cluster["p"].change_membership(left.record, ENTRY, FAR)
    assert again == Written(left.record)
    assert (await cluster.read(actor())).version == left.record.version


async def test_a_join_that_is_none_is_refused(cluster: Cluster) -> None:
    ann = await cluster.create(actor(), P)
    cart = await cluster.create(spot("cart"), P, kind="cart")
    far = await cluster.create(spot("far"), Q)
    closing = await cluster.create(spot("closing"), P, payload=room_payload(CLOSING))
    before = await cluster.image()

    async def join(spot_id: str) -> Any:
        return await cluster["p"].change_membership(ann, Membership(spot_id, SpotKind.USER), FAR)

    assert await join("nowhere") == Refused(Why.GONE)
    assert await join("far") == Refused(Why.OWNER, far)
    assert await join("closing") == Refused(Why.STATE, closing)
    assert await join("cart") == Refused(Why.STATE, cart)
    assert await cluster.image() == before


async def test_concurrent_joins_are_all_counted(cluster: Cluster) -> None:
    room = await cluster.create(spot(), P)
    actors = [await cluster.create(actor(f"a{number}"), P) for number in range(8)]
    async with trio.open_nursery() as nursery:
        for each in actors:
            nursery.start_soon(cluster.join, each, room)
    assert (await cluster.read(spot())).row.payload.members == Members(8, 9)


# --- moves


@pytest.mark.contract("LO-302")
async def test_space_for_a_move_is_reserved_once_and_returned_once(cluster: Cluster) -> None:
    record = await cluster.create(actor(), P)
    rows = await cluster.raw(actor().encode())
    limits = cluster.descriptors["q"]
    for _ in range(2):
        assert await cluster["q"].reserve_space(Q, RELOCATION_ID, ACTOR_SLOTS, limits, FAR) == SpaceReserved()
        assert (await cluster.capacity(Q)).actors == Count(0, 1)
    changed = await cluster["q"].reserve_space(Q, RELOCATION_ID, Slots(actors=2), limits, FAR)
    assert changed == Refused(Why.CHANGED)
    for _ in range(2):
        assert await cluster["q"].return_space(Q, RELOCATION_ID, FAR) == Released()
        assert await cluster.capacity(Q) == CapacityRow()
    full = evolve(limits, capacity=evolve(limits.capacity, actors=evolve(limits.capacity.actors, limit=1)))
    too_many = await cluster["q"].reserve_space(Q, RELOCATION_ID, Slots(actors=2), full, FAR)
    assert too_many == Full("actors")
    await cluster.lapse("q")
    assert await cluster["q"].reserve_space(Q, RELOCATION_ID, ACTOR_SLOTS, limits, FAR) == Refused(Why.LEASE)
    assert await cluster.raw(actor().encode()) == rows == (record.row.encode(), record.version)


async def moved(cluster: Cluster, record: AuthorityRecord, **more: Any) -> Any:
    """`record` moved from p to q, with its space reserved before."""
    slots = unit_slots(record.row)
    space = await cluster["q"].reserve_space(Q, RELOCATION_ID, slots, cluster.descriptors["q"], FAR)
    assert space == SpaceReserved()
    return await cluster["q"].change_owner(committed_move(record, Q, **more), FAR)


@pytest.mark.contract("LO-207", "LO-208", "LO-096")
async def test_an_owner_change_moves_owner_and_space_in_one_batch(cluster: Cluster) -> None:
    record = await cluster.create(actor(), P)
    refused = await cluster["q"].change_owner(committed_move(record, Q), FAR)
    assert refused == Refused(Why.SPACE, record)
    written = await moved(cluster, record)
    assert isinstance(written, Written)
    row = written.record.row
    assert row.owner == Q
    assert row.object_generation == record.row.object_generation
    assert row.owner_generation > record.row.owner_generation
    assert await cluster.capacity(P) == CapacityRow()
    assert await cluster.capacity(Q) == CapacityRow(actors=Count(1, 0))
    image = await cluster.image()
    assert await cluster["q"].change_owner(committed_move(record, Q), FAR) == written
    assert await cluster.image() == image


@pytest.mark.contract("LO-209", "LO-304")
async def test_an_owner_change_needs_the_targets_lease_and_the_row_it_knows(cluster: Cluster) -> None:
    record = await cluster.create(actor(), P)
    space = await cluster["q"].reserve_space(Q, RELOCATION_ID, ACTOR_SLOTS, cluster.descriptors["q"], FAR)
    assert space == SpaceReserved()
    await cluster.lapse("q")
    before = await cluster.image()
    assert await cluster["q"].change_owner(committed_move(record, Q), FAR) == Refused(Why.LEASE, record)
    assert await cluster.image() == before
    await cluster.renew("q")
    other = await cluster["p"].preserve(record, actor_payload(CLOSING), FAR)
    assert isinstance(other, Written)
    assert await cluster["q"].change_owner(committed_move(record, Q), FAR) == Refused(Why.CHANGED, other.record)


@pytest.mark.contract("LO-207", "LO-252", "LO-308")
async def test_a_spot_wide_spot_takes_its_members_along_with_one_row(cluster: Cluster) -> None:
    room = await cluster.create(spot(), P)
    members = [await cluster.join(await cluster.create(actor(f"a{number}"), P), room) for number in range(3)]
    await cluster.create(actor("stays"), P)
    room = await cluster.read(spot())
    rows = [await cluster.raw(member.key.encode()) for member in members]
    late = await cluster.create(actor("late"), P)
    stale = room
    late = await cluster.join(late, room)
    assert isinstance(await moved(cluster, stale), Refused)
    left = await cluster["p"].change_membership(late, ENTRY, FAR)
    assert isinstance(left, Written)
    room = await cluster.read(spot())
    written = await moved(cluster, room)
    assert isinstance(written, Written)
    assert [await cluster.raw(member.key.encode()) for member in members] == rows
    assert await cluster.capacity(P) == CapacityRow(actors=Count(2, 0))
    spots = {"userSpot:room": Count(1, 0)}
    assert await cluster.capacity(Q) == CapacityRow(actors=Count(3, 0), spots=Count(1, 0), spot_types=spots)
    # Leaving writes the Actor's own owner again, with a generation that did not fall.
    gone = await cluster["q"].change_membership(members[0], ENTRY, FAR)
    assert isinstance(gone, Written)
    assert gone.record.row.owner == Q
    assert gone.record.row.owner_generation == written.record.row.owner_generation
    assert (await cluster["p"].change_membership(members[1], ENTRY, FAR)) == Refused(Why.OWNER, members[1])
    # The place of a member that ends is given back where its Spot is.
    assert await cluster["q"].release(members[2], ReleaseCause.HOST_SHUTDOWN, FAR) == Released()
    assert (await cluster.capacity(Q)).actors == Count(2, 0)
    assert (await cluster.read(spot())).row.payload.members == Members(1, 8)


@pytest.mark.contract("LO-207")
async def test_an_actor_that_moves_changes_both_its_spots(cluster: Cluster) -> None:
    alone = ExecutionMode.PER_ACTOR
    here = await cluster.create(spot("here"), P, mode=alone)
    await cluster.create(spot("there"), Q, mode=alone)
    ann = await cluster.join(await cluster.create(actor(), P), here)
    written = await moved(
        cluster,
        ann,
        payload=actor_payload(READY, Membership("there", SpotKind.USER)),
        spots=(SpotChange(spot("here"), member_left), SpotChange(spot("there"), member_joined)),
    )
    assert isinstance(written, Written)
    assert (await cluster.read(spot("here"))).row.payload.members == Members(0, 3)
    assert (await cluster.read(spot("there"))).row.payload.members == Members(1, 2)
    assert (await cluster.capacity(P)).actors == Count()
    assert (await cluster.capacity(Q)).actors == Count(1, 0)


# --- rows that nobody wrote, and ends of hosts


@pytest.mark.contract("LO-217")
async def test_a_count_that_would_go_below_zero_is_corruption_and_changes_nothing(cluster: Cluster) -> None:
    record = await cluster.create(actor(), P)
    pending = await reserved(cluster, actor("new"))
    await put(cluster.store, P.capacity_key, CapacityRow().encode())
    before = await cluster.image()
    for call in (
        lambda: cluster["p"].release(record, ReleaseCause.DESTROY, FAR),
        lambda: cluster["p"].commit(pending, actor_payload(READY), FAR),
        lambda: cluster["p"].abort(pending, FAR),
        lambda: moved(cluster, record),
    ):
        with pytest.raises(StoreCorruption):
            await call()
    after = await cluster.image()
    assert {key for key in after if after[key] != before.get(key)} == {Q.capacity_key}  # the space of the move
    await cluster.lapse("p")
    with pytest.raises(StoreCorruption):
        await cluster["q"].release_orphan(pending, FAR)


@pytest.mark.contract("LO-080", "LO-155")
@pytest.mark.parametrize("which", ["authority", "lease", "lease without expiry", "descriptor", "capacity", "counter"])
async def test_no_operation_acts_on_a_row_it_cannot_understand(cluster: Cluster, which: str) -> None:
    pending = await reserved(cluster, actor("new"))
    spoilt = {
        "authority": actor("x").encode(),
        "lease": P.lease_key,
        "lease without expiry": P.lease_key,
        "descriptor": P.descriptor_key,
        "capacity": P.capacity_key,
        "counter": keys.OBJECT_COUNTER,
    }[which]
    raw = cluster.leases["p"].row.encode() if which == "lease without expiry" else b"?"
    await put(cluster.store, spoilt, raw, 60_000 if which == "lease" else None)
    before = await cluster.image()
    with pytest.raises(StoreCorruption):
        await cluster["q"].reserve(order(actor("x"), P, reservation="x"), FAR)
    if which not in ("authority", "counter"):
        with pytest.raises(StoreCorruption):
            await cluster["p"].commit(pending, actor_payload(READY), FAR)
    assert await cluster.image() == before


@pytest.mark.contract("LO-351")
async def test_a_host_that_ends_releases_its_own_rows_and_no_others(cluster: Cluster) -> None:
    room = await cluster.create(spot(), P)
    for number in range(3):
        await cluster.join(await cluster.create(actor(f"in{number}"), P), room)
    await cluster.create(spot("cart"), P, kind="cart")
    await reserved(cluster, actor("half"))
    theirs = await cluster.create(actor("theirs"), Q)
    gone = await moved(cluster, await cluster.create(actor("moved"), P))
    cluster.leases["p"].lease_generation = 2
    await cluster.renew("p", generation=2)
    younger = await cluster["p"].reserve(order(actor("younger"), owner("p", generation=2), reservation="y"), FAR)
    assert isinstance(younger, Reserved)
    cluster.leases["p"].lease_generation = 1
    await cluster.renew("p")
    before = await cluster.image()
    swept = await cluster["p"].release_own(FAR)
    assert swept == Swept(released=6, kept=0)
    after = await cluster.image()
    for record in (theirs, gone.record, younger.record):
        assert after[record.key.encode()] == before[record.key.encode()]
    left = {key for key in after if key.startswith(keys.AUTHORITY_PREFIX)}
    assert left == {record.key.encode() for record in (theirs, gone.record, younger.record)}
    assert await cluster.capacity(P) == CapacityRow(actors=Count(0, 1))  # of the younger generation


@pytest.mark.contract("LO-352")
async def test_five_thousand_rows_are_released_in_batches(cluster: Cluster, bench: Bench) -> None:
    template = (await cluster.create(actor("first"), P)).row
    room = await cluster.create(spot("room"), P)
    inside = template.with_payload(actor_payload(READY, Membership("room", SpotKind.USER)))
    members = evolve(room.row, payload=room.row.payload.with_members(Members(2000, 2001)))
    total = 5000
    for first in range(0, total, 500):
        puts = [
            Put(
                actor(f"a{number}").encode(),
                evolve(inside if number < 2000 else template, object_generation=number + 10).encode(),
            )
            for number in range(first, first + 500)
        ]
        await cluster.store.write([], puts)
    await put(cluster.store, spot("room").encode(), members.encode())
    full = evolve(await cluster.capacity(P), actors=Count(total + 1, 0))
    await put(cluster.store, P.capacity_key, full.encode())
    theirs = await cluster.create(actor("theirs"), Q)
    writes = Gate(cluster.store)
    repository = AuthorityRepository(writes, cluster.leases["p"], OPTIONS, SeededEntropy("p"))
    changed = 0

    async def before(call: Any) -> None:
        nonlocal changed
        # A row of one batch changes under it.
        if call.operation == "write" and not changed and spot("room").encode() not in call.written:
            changed += 1
            key = next(mutation.key for mutation in call.mutations if isinstance(mutation, Delete))
            await put(cluster.store, key, template.encode())

    writes.before = before
    swept = await repository.release_own(FAR)
    assert swept == Swept(released=total + 1, kept=1)
    assert len(writes.writes(b"authority\0")) <= total / 256 + 6
    left = {key for key in await cluster.image() if key.startswith(b"authority\0")}
    assert len(left) == 2
    assert theirs.key.encode() in left
    assert await cluster.capacity(P) == CapacityRow(actors=Count(1, 0))
