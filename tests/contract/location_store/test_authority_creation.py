"""Reservations and how creations end, against both providers (LO sections 5 and 13)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.authority_hosts import (
    FAR,
    Cluster,
    P,
    Q,
    actor,
    actor_payload,
    cart_payload,
    committed_move,
    order,
    owner,
    reserved,
    spot,
)
from tests.contract.location_store.conftest import Bench
from tests.location_hosts import plant, put
from zlinkpy.errors import ErrorKind
from zlinkpy.location import GenerationExhausted, keys
from zlinkpy.location.authority import (
    AllocationState,
    CapacityRow,
    Count,
    Creation,
    CreationTerminal,
    Full,
    IdClaimed,
    ObjectState,
    Occupied,
    Refused,
    ReleaseCause,
    Released,
    Reserved,
    Swept,
    TargetUnfit,
    TerminalNote,
    Unfit,
    Why,
    Written,
)
from zlinkpy.location.rows import EntryClaimRow
from zlinkpy.location.store import Delete
from zlinkpy.wire import CreateOutcome, FailureCode, RuntimeState, TerminalResult

READY, CLOSING = ObjectState.READY, ObjectState.CLOSING
OPERATION = b"\0" * 15 + b"\7"
COUNTERS = {keys.OBJECT_COUNTER, keys.AUTHORITY_OWNER_COUNTER}


def note(terminal: CreationTerminal) -> TerminalNote:
    return TerminalNote("p", 7, OPERATION, terminal, 1_000)


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


@pytest.mark.contract("LO-097")
async def test_two_objects_have_two_generations_and_a_new_life_has_another(cluster: Cluster) -> None:
    first = await cluster.create(actor("ann"), P)
    second = await cluster.create(spot(), Q)
    assert first.row.object_generation != second.row.object_generation
    assert isinstance(await cluster["p"].release(first, ReleaseCause.DESTROY, FAR), Released)
    again = await cluster.create(actor("ann"), P)
    assert again.row.object_generation not in (first.row.object_generation, second.row.object_generation)
    assert again.row.owner_generation > second.row.owner_generation > first.row.owner_generation


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


@pytest.mark.contract("LO-072")
async def test_the_id_of_an_entry_spot_is_not_given_away(cluster: Cluster) -> None:
    await put(cluster.store, keys.entry_spot("hall"), EntryClaimRow("main", "q", "q", 1).encode())
    before = await cluster.image()
    assert await cluster["p"].reserve(order(spot("hall"), P), FAR) == IdClaimed()
    assert await cluster.image() == before
    # Actors have a name space of their own.
    assert isinstance(await cluster["p"].reserve(order(actor("hall"), P), FAR), Reserved)


@pytest.mark.contract("LO-093")
@pytest.mark.parametrize("counter", sorted(COUNTERS))
async def test_an_exhausted_counter_creates_nothing(cluster: Cluster, counter: bytes) -> None:
    await put(cluster.store, counter, b"9223372036854775807")
    before = await cluster.image()
    for _ in range(2):
        with pytest.raises(GenerationExhausted):
            await cluster["p"].reserve(order(actor("x"), P), FAR)
    assert await cluster.image() == before


@pytest.mark.contract("LO-094")
@pytest.mark.parametrize("counter", sorted(COUNTERS))
async def test_an_exhausted_counter_leaves_an_object_as_it_was_and_is_the_caller_s_internal_failure(
    cluster: Cluster, counter: bytes
) -> None:
    closing = await cluster.create(spot("cart"), P, kind="cart", payload=cart_payload(CLOSING))
    await put(cluster.store, counter, b"9223372036854775807")
    before = await cluster.image()
    for _ in range(2):
        with pytest.raises(GenerationExhausted) as failure:
            await cluster["p"].reincarnate(closing, cart_payload(), FAR)
        assert failure.value.kind is ErrorKind.INTERNAL_FAILURE
    assert await cluster.image() == before


@pytest.mark.contract("LO-072")
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


@pytest.mark.contract("LO-228")
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


@pytest.mark.contract("LO-232")
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
