"""Operations on authority rows when something else happens between their look and their write, and when the store fails
for long (LO section 13 and 17).
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from attrs import evolve

from tests.authority_hosts import (
    FAR,
    RELOCATION_ID,
    P,
    Q,
    Stage,
    actor,
    actor_payload,
    committed_move,
    moved,
    order,
    reserved,
)
from tests.location_hosts import every, plant, refusing
from zlinkpy.location import StoreFailure
from zlinkpy.location.authority import (
    ACTOR_SLOTS,
    CapacityRow,
    Count,
    ObjectState,
    Refused,
    Released,
    SpaceReserved,
    TargetUnfit,
    Unfit,
    Why,
    Written,
)
from zlinkpy.location.store import Delete
from zlinkpy.wire import RuntimeState

READY, CLOSING = ObjectState.READY, ObjectState.CLOSING


@pytest.mark.contract("LO-220")
@pytest.mark.parametrize("what", list(Unfit))
async def test_a_target_that_goes_while_it_is_reserved_at_takes_nothing(autojump_clock: object, what: Unfit) -> None:
    stage = await Stage().open()
    store = stage.cluster.store

    async def before(call: Any) -> None:
        if call.operation != "write":
            return
        if what is Unfit.LEASE:
            await stage.cluster.lapse("p")
        elif what is Unfit.DESCRIPTOR:
            await store.write([], [Delete(P.descriptor_key)])
        else:
            await plant(store, evolve(stage.cluster.descriptors["p"], state=RuntimeState.DRAINING), ttl_ms=60_000)  # type: ignore[arg-type]

    stage.gates["q"].before = before
    result = await stage.q.reserve(order(actor(), P), trio.current_time() + 1)
    assert result == TargetUnfit(what)
    assert await stage.cluster.raw(actor().encode()) is None
    assert await stage.cluster.capacity(P) == CapacityRow()


@pytest.mark.contract("LO-236")
@pytest.mark.parametrize("first", ["commit", "release"])
async def test_whoever_is_second_of_a_commit_and_a_release_gets_a_conflict(autojump_clock: object, first: str) -> None:
    stage = await Stage().open()
    record = await reserved(stage.cluster)
    descriptor = stage.cluster.descriptors["p"]
    once = True

    async def before(call: Any) -> None:
        nonlocal once
        if call.operation != "write" or not once:
            return
        once = False
        if first == "commit":
            # The target is back before the one that saw it gone has written.
            await plant(stage.cluster.store, descriptor, ttl_ms=60_000)  # type: ignore[arg-type]
            assert isinstance(await stage.p.commit(record, actor_payload(READY), FAR), Written)
        else:
            await stage.cluster.store.write([], [Delete(P.descriptor_key)])
            assert await stage.q.release_orphan(record, FAR) == Released()

    deadline = trio.current_time() + 1
    if first == "commit":
        await stage.cluster.store.write([], [Delete(P.descriptor_key)])
        stage.gates["q"].before = before
        assert await stage.q.release_orphan(record, deadline) == Refused(Why.CHANGED, await stage.cluster.read(actor()))
        assert await stage.cluster.capacity(P) == CapacityRow(actors=Count(1, 0))
    else:
        stage.gates["p"].before = before
        assert await stage.p.commit(record, actor_payload(READY), deadline) == Refused(Why.GONE)
        assert await stage.cluster.raw(actor().encode()) is None
        assert await stage.cluster.capacity(P) == CapacityRow()


@pytest.mark.contract("LO-303")
async def test_beyond_its_deadline_an_owner_change_stops_and_nothing_revives_it(autojump_clock: object) -> None:
    stage = await Stage().open()
    record = await stage.cluster.create(actor(), P)
    limits = stage.cluster.descriptors["q"]
    assert await stage.q.reserve_space(Q, RELOCATION_ID, ACTOR_SLOTS, limits, FAR) == SpaceReserved()
    before = await stage.cluster.image()
    stage.gates["q"].rule = every("refuse")
    began = trio.current_time()
    with pytest.raises(StoreFailure) as failure:
        await stage.q.change_owner(committed_move(record, Q), began + 2)
    assert failure.value.applied == "no"
    assert trio.current_time() - began == pytest.approx(2, abs=1.1)
    stage.gates["q"].rule = every("pass")
    await trio.sleep(60)
    assert await stage.cluster.image() == before
    # Whether to try again is for whoever asked.
    assert isinstance(await moved(stage.cluster, record), Written)


@pytest.mark.contract("LO-303")
async def test_the_pauses_of_an_outage_grow_to_a_second_whatever_the_number_of_rows(autojump_clock: object) -> None:
    stage = await Stage().open()
    gate = stage.gates["p"]
    began = trio.current_time()
    async with refusing(gate, 1200):
        await stage.p.reserve(order(actor(), P), began + 3600)
    assert trio.current_time() - began < 1202
    looks = list(dict.fromkeys(call.at for call in gate.calls if call.operation == "read"))
    pauses = [round(later - earlier, 3) for earlier, later in zip(looks, looks[1:], strict=False)]
    assert pauses[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert set(pauses[6:]) == {1.0}
