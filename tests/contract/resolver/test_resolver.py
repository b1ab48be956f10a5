"""The resolver: one closed result from rows, lease and link evidence, and the routes it keeps (LO section 14)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from attrs import evolve

from tests.authority_hosts import (
    ENTRY,
    FAR,
    actor,
    actor_payload,
    cart_payload,
    order,
    owner,
    room_payload,
    spot,
)
from tests.contract.resolver.conftest import Bench
from tests.location_hosts import every, put
from zlinkpy.errors import InvalidOperationError
from zlinkpy.location import keys
from zlinkpy.location.authority import (
    CapacityRow,
    ExecutionMode,
    ObjectKey,
    ObjectState,
    ReleaseCause,
    Released,
    RelocationPhase,
    Reserved,
    Written,
    resolution,
)
from zlinkpy.location.authority.resolution import (
    Closing,
    Creating,
    Lacking,
    Missing,
    Moving,
    Ready,
    Route,
    StoreFailure,
    Unavailable,
)
from zlinkpy.location.store import Delete, StoreCorruption

READY, CLOSING = ObjectState.READY, ObjectState.CLOSING
P, Q = owner("p"), owner("q")
RELOCATION = (1).to_bytes(16, "big")


# --- results


@pytest.mark.contract("LO-245")
@pytest.mark.parametrize("where", ["p", "me"])
async def test_a_ready_object_of_a_reachable_owner_is_ready(autojump_clock: object, bench: Bench, where: str) -> None:
    await put(bench.cluster.store, keys.AUTHORITY_OWNER_COUNTER, b"5")  # so that no number stands in for another
    record = await bench.cluster.create(actor(), owner(where))
    assert record.row.owner_generation > record.row.object_generation
    if where == "me":
        bench.links.ready.clear()  # one needs no link to oneself
    assert await bench.resolver.resolve(actor()) == Ready(
        Route(
            key=actor(),
            object_kind="actor",
            stable_type="user",
            object_generation=record.row.object_generation,
            owner_generation=record.row.owner_generation,
            owner=owner(where),
            version=record.version,
        )
    )


@pytest.mark.contract("LO-246", "LO-201", "LO-254")
@pytest.mark.parametrize("name", ["nobody", "tcp://10.0.0.1:5501", "main/p/7", "p"])
async def test_an_id_without_a_row_is_missing_whatever_it_looks_like(
    autojump_clock: object, bench: Bench, name: str
) -> None:
    before = await bench.cluster.image()
    assert await bench.resolver.resolve(spot(name)) == Missing()
    assert bench.reads() == [b"authority\0spot\0" + name.encode()]
    assert await bench.cluster.image() == before


async def test_an_id_that_cannot_be_one_is_refused_before_any_read(autojump_clock: object, bench: Bench) -> None:
    with pytest.raises(InvalidOperationError):
        await bench.resolver.resolve(actor("a\0b"))
    assert bench.gate.calls == []


@pytest.mark.contract("LO-247", "LO-213", "LO-343", "LO-115")
@pytest.mark.parametrize("gone", ["missing", "expired", "other generation"])
@pytest.mark.parametrize("kind", ["actor", "cart"])
@pytest.mark.parametrize("state", list(ObjectState))
async def test_an_owner_without_its_lease_makes_the_object_unavailable_and_changes_nothing(
    autojump_clock: object, bench: Bench, gone: str, kind: str, state: ObjectState
) -> None:
    key, payload = (actor(), actor_payload(state)) if kind == "actor" else (spot("cart"), cart_payload(state))
    record = await bench.cluster.create(key, P, payload=payload, **({} if kind == "actor" else {"kind": "cart"}))
    if gone == "missing":
        await bench.cluster.lapse("p")
    elif gone == "expired":
        await put(bench.cluster.store, P.lease_key, bench.cluster.leases["p"].row.encode(), 1_000)
        await trio.sleep(1.0)
    else:
        await bench.cluster.renew("p", generation=2)
    before = await bench.cluster.image()
    bench.gate.calls.clear()
    result = await bench.resolver.resolve(key)
    assert isinstance(result, Unavailable)
    assert result.why is Lacking.LEASE
    assert result.route.version == record.version
    assert bench.reads() == [key.encode(), P.lease_key]
    assert await bench.cluster.image() == before


@pytest.mark.contract("LO-248", "LO-343", "LO-340")
@pytest.mark.parametrize("state", [READY, CLOSING])
async def test_an_owner_that_is_not_connected_makes_it_unavailable_until_it_is(
    autojump_clock: object, bench: Bench, state: ObjectState
) -> None:
    await bench.cluster.create(actor(), P, payload=actor_payload(state))
    before = await bench.cluster.image()
    expected = Ready if state is READY else Closing
    assert isinstance(await bench.resolver.resolve(actor()), expected)
    for evidence in (set(), {("p", 8)}, {("q", 7)}):  # another lifecycle is another process
        bench.links.ready = evidence
        for _ in range(2):
            result = await bench.resolver.resolve(actor())
            assert isinstance(result, Unavailable)
            assert result.why is Lacking.LINK
    bench.links.ready = {("p", 7)}
    assert isinstance(await bench.resolver.resolve(actor()), expected)
    assert await bench.cluster.image() == before
    assert not [call for call in bench.gate.calls if call.operation == "write"]


@pytest.mark.contract("LO-255")
async def test_an_owner_in_a_mesh_this_process_is_not_part_of_is_unavailable(
    autojump_clock: object, bench: Bench
) -> None:
    await bench.cluster.create(actor(), P)
    bench.nodes.clear()
    result = await bench.resolver.resolve(actor())
    assert isinstance(result, Unavailable)
    assert result.why is Lacking.MESH
    bench.nodes["main"] = ("me", 7)
    assert isinstance(await bench.resolver.resolve(actor()), Ready)


@pytest.mark.contract("LO-249")
async def test_a_reservation_is_creating_and_a_closing_object_is_closing(autojump_clock: object, bench: Bench) -> None:
    reserved = await bench.cluster["p"].reserve(order(actor(), P, reservation="r7"), FAR)
    assert isinstance(reserved, Reserved)
    result = await bench.resolver.resolve(actor())
    assert isinstance(result, Creating)
    assert result.reservation_id == "r7"
    assert result.attempt.owner == P
    assert result.attempt.version == reserved.record.version
    assert result.attempt.object_generation == reserved.record.row.object_generation
    closing = await bench.cluster.create(spot("cart"), P, kind="cart", payload=cart_payload(CLOSING))
    assert await bench.resolver.resolve(spot("cart")) == Closing(resolution.route_of(closing))
    born = await bench.cluster["p"].reincarnate(closing, cart_payload(), FAR)
    assert isinstance(born, Written)
    again = await bench.resolver.resolve(spot("cart"))
    assert again == Creating(resolution.route_of(born.record), None)


@pytest.mark.contract("LO-234", "LO-246")
async def test_a_reservation_that_nobody_will_finish_is_released_and_then_missing(
    autojump_clock: object, bench: Bench
) -> None:
    await bench.cluster["p"].reserve(order(actor(), P), FAR)
    await bench.cluster.lapse("p")
    assert await bench.resolver.resolve(actor()) == Missing()
    assert await bench.cluster.raw(actor().encode()) is None
    assert await bench.cluster.capacity(P) == CapacityRow()


@pytest.mark.contract("LO-234")
async def test_a_host_that_may_not_write_does_not_call_a_leftover_missing(autojump_clock: object, bench: Bench) -> None:
    await bench.cluster["p"].reserve(order(actor(), P), FAR)
    await bench.cluster.lapse("p")
    bench.cluster.leases["me"].valid = False
    result = await bench.resolver.resolve(actor())
    assert isinstance(result, Unavailable)
    assert await bench.cluster.raw(actor().encode()) is not None


@pytest.mark.contract("LO-250", "LO-194", "LO-258")
@pytest.mark.parametrize("what", ["refuse", "cut", "hang"])
@pytest.mark.parametrize("which", [b"authority", b"owner-lease"])
async def test_a_read_that_fails_is_not_missing_and_is_remembered_nowhere(
    autojump_clock: object, bench: Bench, what: str, which: bytes
) -> None:
    await bench.cluster.create(actor(), P)
    bench.gate.rule = lambda call: what if call.key.startswith(which) else "pass"
    began = trio.current_time()
    result = await bench.resolver.resolve(actor())
    assert isinstance(result, StoreFailure)
    assert trio.current_time() - began == (3.0 if what == "hang" else 0.0)
    bench.gate.rule = every("pass")
    assert isinstance(await bench.resolver.resolve(actor()), Ready)


@pytest.mark.contract("LO-155", "LO-080")
@pytest.mark.parametrize("spoilt", ["authority", "lease", "lease without expiry"])
async def test_rows_that_cannot_be_understood_give_no_result(autojump_clock: object, bench: Bench, spoilt: str) -> None:
    await bench.cluster.create(actor(), P)
    key = actor().encode() if spoilt == "authority" else P.lease_key
    raw = bench.cluster.leases["p"].row.encode() if spoilt == "lease without expiry" else b"{}"
    await put(bench.cluster.store, key, raw, 60_000 if spoilt == "lease" else None)
    for _ in range(2):
        with pytest.raises(StoreCorruption):
            await bench.resolver.resolve(actor())


@pytest.mark.contract("LO-251")
@pytest.mark.parametrize("phase", [RelocationPhase.COMMITTED, RelocationPhase.ACTIVATING, RelocationPhase.ACTIVATED])
async def test_a_moved_object_is_moving_until_the_target_is_open(
    autojump_clock: object, bench: Bench, phase: RelocationPhase
) -> None:
    record = await bench.moved(await bench.cluster.create(actor(), P), phase=phase)
    opening = phase is not RelocationPhase.ACTIVATED
    expected = (Moving if opening else Ready)(resolution.route_of(record))
    assert record.row.owner == Q
    for reads in (2, 4 if opening else 2):
        assert await bench.resolver.resolve(actor()) == expected
        assert len(bench.reads()) == reads
    opened = await bench.cluster["q"].preserve(record, evolve(record.row.payload, relocation=None), FAR)
    assert isinstance(opened, Written)
    bench.cache.observed(actor(), opened.record.version)
    assert await bench.resolver.resolve(actor()) == Ready(resolution.route_of(opened.record))


@pytest.mark.contract("LO-252")
@pytest.mark.parametrize("mode", list(ExecutionMode))
async def test_the_owner_of_a_member_is_that_of_a_spot_wide_spot_and_its_own_otherwise(
    autojump_clock: object, bench: Bench, mode: ExecutionMode
) -> None:
    room = await bench.cluster.create(spot(), P, mode=mode, payload=room_payload(READY, mode))
    ann = await bench.cluster.join(await bench.cluster.create(actor(), P), room)
    alone = await bench.cluster.create(actor("alone"), P)

    async def where(key: ObjectKey) -> Any:
        bench.cache.clear()
        return await bench.resolver.resolve(key)

    assert (await where(actor())).route.owner == P
    moved = await bench.moved(await bench.cluster.read(spot()), phase=RelocationPhase.COMMITTED)
    wide = mode is ExecutionMode.SPOT_WIDE
    result = await where(actor())
    assert isinstance(result, Moving if wide else Ready)
    assert result.route.owner == (Q if wide else P)
    assert result.route.owner_generation == (moved.row if wide else ann.row).owner_generation
    assert (await where(actor("alone"))).route == resolution.route_of(alone)
    opened = await bench.cluster["q"].preserve(moved, evolve(moved.row.payload, relocation=None), FAR)
    assert isinstance(opened, Written)
    assert isinstance(await where(actor()), Ready)
    if wide:
        left = await bench.cluster["q"].change_membership(ann, ENTRY, FAR)
        assert isinstance(left, Written)
        assert (await where(actor())).route.owner == Q
        # A dead source says nothing about who lives at the target.
        await bench.cluster.lapse("p")
        assert isinstance(await where(actor()), Ready)


@pytest.mark.contract("LO-252")
async def test_a_member_that_leaves_between_two_reads_is_never_found_where_it_was_not(
    autojump_clock: object, bench: Bench
) -> None:
    room = await bench.cluster.create(spot(), P)
    ann = await bench.cluster.join(await bench.cluster.create(actor(), P), room)
    once = True

    async def before(call: Any) -> None:
        nonlocal once
        if call.key == spot().encode() and once:
            once = False
            left = await bench.cluster["p"].change_membership(ann, ENTRY, FAR)
            assert isinstance(left, Written)
            await bench.moved(await bench.cluster.read(spot()))

    bench.gate.before = before
    result = await bench.resolver.resolve(actor())
    assert isinstance(result, Ready)
    assert result.route.owner == P


@pytest.mark.contract("LO-252", "LO-080")
async def test_a_member_of_a_spot_that_is_not_there_is_corruption(autojump_clock: object, bench: Bench) -> None:
    room = await bench.cluster.create(spot(), P)
    await bench.cluster.join(await bench.cluster.create(actor(), P), room)
    await bench.cluster.store.write([], [Delete(spot().encode())])
    with pytest.raises(StoreCorruption):
        await bench.resolver.resolve(actor())


@pytest.mark.contract("LO-253", "LO-291", "LO-246")
async def test_missing_is_given_only_after_the_row_is_gone(autojump_clock: object, bench: Bench) -> None:
    ready = await bench.cluster.create(spot("cart"), P, kind="cart")
    closing = await bench.cluster["p"].preserve(ready, cart_payload(CLOSING), FAR)
    assert isinstance(closing, Written)
    bench.cache.clear()
    for _ in range(3):
        assert isinstance(await bench.resolver.resolve(spot("cart")), Closing)
        await trio.sleep(1)
    await bench.cluster.renew("p")
    assert await bench.cluster["p"].release(closing.record, ReleaseCause.IDLE_EVICTED, FAR) == Released()
    assert await bench.resolver.resolve(spot("cart")) == Missing()
