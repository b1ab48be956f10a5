"""Moves, rows that nobody wrote, and the end of a host, against both providers (LO sections 12, 17 and 20)."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from tests.authority_hosts import (
    ENTRY,
    FAR,
    RELOCATION_ID,
    Cluster,
    P,
    Q,
    actor,
    actor_payload,
    committed_move,
    moved,
    order,
    owner,
    reserved,
    spot,
)
from tests.contract.location_store.conftest import Bench
from tests.location_hosts import OPTIONS, Gate, put
from zlinkpy.entropy import SeededEntropy
from zlinkpy.location import keys
from zlinkpy.location.authority import (
    ACTOR_SLOTS,
    AuthorityRepository,
    CapacityRow,
    Count,
    ExecutionMode,
    Full,
    Members,
    Membership,
    ObjectState,
    Refused,
    ReleaseCause,
    Released,
    Reserved,
    Slots,
    SpaceReserved,
    SpotChange,
    SpotKind,
    Swept,
    Why,
    Written,
    member_joined,
    member_left,
)
from zlinkpy.location.store import Delete, Put, StoreCorruption

READY, CLOSING = ObjectState.READY, ObjectState.CLOSING


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


@pytest.mark.contract("LO-207", "LO-208")
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


@pytest.mark.contract("LO-304")
@pytest.mark.parametrize("other", ["owner", "generation"])
async def test_an_owner_change_of_what_is_another_s_by_now_is_stale_at_once(cluster: Cluster, other: str) -> None:
    record = await cluster.create(actor(), P)
    if other == "owner":
        newer = (await moved(cluster, record)).record
        target = await cluster.start("f")
    else:
        assert await cluster["p"].release(record, ReleaseCause.DESTROY, FAR) == Released()
        newer = await cluster.create(actor(), P)
        target = Q
    late = committed_move(record, target, relocation_id=RELOCATION_ID[::-1])
    space = await cluster[target.rid].reserve_space(
        target, RELOCATION_ID[::-1], ACTOR_SLOTS, cluster.descriptors[target.rid], FAR
    )
    assert space == SpaceReserved()
    before = await cluster.image()
    assert await cluster[target.rid].change_owner(late, FAR) == Refused(Why.CHANGED, newer)
    assert await cluster.image() == before


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
    stale = await cluster.read(spot())
    left = await cluster["p"].change_membership(late, ENTRY, FAR)
    assert isinstance(left, Written)
    room = await cluster.read(spot())
    assert await cluster["q"].change_owner(committed_move(stale, Q), FAR) == Refused(Why.CHANGED, room)
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
    far = await cluster.create(spot("far"), Q)
    inside = await cluster.join(await cluster.create(actor("inside"), Q), far)
    far = await cluster.read(spot("far"))
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
    for record in (theirs, far, inside, gone.record, younger.record):
        assert after[record.key.encode()] == before[record.key.encode()]
    left = {key for key in after if key.startswith(keys.AUTHORITY_PREFIX)}
    assert left == {record.key.encode() for record in (theirs, far, inside, gone.record, younger.record)}
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
