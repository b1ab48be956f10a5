"""What an owner does with its rows, and when nothing is changed, against both providers (LO section 12)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
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
    cart_payload,
    order,
    reserved,
    room_payload,
    spot,
)
from tests.contract.location_store.conftest import Bench
from zlinkpy.errors import UnavailableError
from zlinkpy.location.authority import (
    ACTOR_SLOTS,
    AllocationState,
    AuthorityRecord,
    Members,
    Membership,
    ObjectState,
    Occupied,
    Refused,
    ReleaseCause,
    Released,
    SpotKind,
    Swept,
    Why,
    Written,
)
from zlinkpy.location.authority.ownership import preserve, release

READY, CLOSING = ObjectState.READY, ObjectState.CLOSING


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


async def test_who_ends_an_incarnation_that_is_over_hears_of_the_next_and_leaves_it_alone(cluster: Cluster) -> None:
    first = await cluster.create(actor(), P)
    assert await cluster["p"].release(first, ReleaseCause.DESTROY, FAR) == Released()
    second = await cluster.create(actor(), P)
    assert second.row.object_generation > first.row.object_generation
    pending = await reserved(cluster, actor("new"))
    assert await cluster["p"].abort(pending, FAR) == Released()
    again = await reserved(cluster, actor("new"))
    before = await cluster.image()
    assert await cluster["p"].release(first, ReleaseCause.DESTROY, FAR) == Refused(Why.ENDED, second)
    assert await cluster["p"].abort(pending, FAR) == Refused(Why.ENDED, again)
    assert await cluster.image() == before


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


@pytest.mark.contract("LO-213")
async def test_what_belongs_to_a_run_without_a_lease_is_taken_by_nobody(cluster: Cluster) -> None:
    record = await cluster.create(actor(), P)
    cart = await cluster.create(spot("cart"), P, kind="cart", payload=cart_payload(CLOSING))
    # So that there is space to give back by mistake.
    pending = [await reserved(cluster, actor("new")), await reserved(cluster, spot("next"), kind="cart")]
    await cluster.lapse("p")
    before = await cluster.image()
    q = cluster["q"]
    for held in (record, cart):
        for cause in ReleaseCause:
            assert isinstance(await q.release(held, cause, FAR), Refused)
        assert await q.preserve(held, held.row.payload, FAR) == Refused(Why.OWNER, held)
        assert await q.reincarnate(held, held.row.payload.to(ObjectState.CREATING), FAR) == Refused(Why.OWNER, held)
        assert await q.release_orphan(held, FAR) == Refused(Why.STATE, held)
        again = order(held.key, Q, reservation="mine", kind="cart" if held is cart else "")
        assert await q.reserve(again, FAR) == Occupied(held)
    assert await q.release_own(FAR) == Swept(released=0, kept=0)
    assert await cluster.image() == before
    assert await q.release_orphans(FAR) == Swept(released=len(pending), kept=0)
    assert [await cluster.read(held.key) for held in (record, cart)] == [record, cart]


@pytest.mark.contract("LO-211")
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
