"""LO section 6: the owner lease, in virtual time against the memory store."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.location_hosts import (
    MESH,
    OPTIONS,
    Call,
    Gate,
    every,
    host,
    node,
    only,
    put,
    stored_lease,
    stored_node,
    until,
)
from zlinkpy.entropy import SeededEntropy, SystemEntropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.location import (
    GenerationExhausted,
    LeaseDriver,
    LeaseEventKind,
    LeaseState,
    LocationOptions,
    OwnerLease,
    keys,
)
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Found, IfMissing, IfValue, Missing, Put, StoreCorruption
from zlinkpy.wire import RuntimeState

LEASES = b"owner-lease\0"
NODES = keys.mesh_node_prefix(MESH)


def lease_on(way: Gate | MemoryStore, seed: str = "a", options: LocationOptions = OPTIONS) -> OwnerLease:
    return OwnerLease(way, options, SeededEntropy(seed), driver=LeaseDriver.LOOP)


async def counter(store: MemoryStore) -> bytes | None:
    found = await store.read(keys.OWNER_COUNTER)
    return found.value if isinstance(found, Found) else None


@pytest.mark.contract("LO-100")
async def test_a_claim_is_one_batch_with_its_number(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with lease_on(gate) as lease:
        stored = await stored_lease(store, lease.owner_id)
        assert stored is not None
        row, found = stored
        assert (row.owner_id, row.lease_generation) == (lease.owner_id, lease.lease_generation) == (lease.owner_id, 1)
        assert found.expires_at is not None
        assert found.expires_at - found.store_now == 15_000
        assert await counter(store) == b"2"
        (claim,) = gate.writes(LEASES)
        assert claim.written == {keys.owner_lease(lease.owner_id), keys.OWNER_COUNTER}
        assert set(claim.conditions) == {IfMissing(keys.owner_lease(lease.owner_id)), IfMissing(keys.OWNER_COUNTER)}
        assert Put(keys.owner_lease(lease.owner_id), row.encode(), 15_000) in claim.mutations


@pytest.mark.contract("LO-101")
async def test_two_starts_differ_in_owner_and_generation(autojump_clock: object) -> None:
    store = MemoryStore()
    seen = []
    for _ in range(2):
        async with OwnerLease(store, OPTIONS, SystemEntropy(), driver=LeaseDriver.LOOP) as lease:
            seen.append((lease.owner_id, lease.lease_generation))
    (first, one), (second, two) = seen
    assert first != second
    assert one is not None
    assert two is not None
    assert two > one


@pytest.mark.contract("LO-102")
async def test_a_counter_that_moves_is_read_again(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    bumps = 3

    async def bump(call: Call) -> None:
        nonlocal bumps
        if call.operation == "write" and bumps:
            bumps -= 1
            await put(store, keys.OWNER_COUNTER, str(100 - bumps).encode())

    gate.before = bump
    async with lease_on(gate) as lease:
        assert lease.state is LeaseState.HELD
        assert lease.lease_generation == 100
        assert await counter(store) == b"101"
        assert trio.current_time() < 3


@pytest.mark.contract("LO-103")
async def test_a_live_row_of_another_run_under_the_owner_id_ends_the_start(autojump_clock: object) -> None:
    store = MemoryStore()
    async with lease_on(store, "same") as first:
        before = await stored_lease(store, first.owner_id)
        with pytest.raises(ConfigurationError, match=first.owner_id):
            async with lease_on(store, "same"):
                raise AssertionError("a second run must not start")
        after = await stored_lease(store, first.owner_id)
        assert before is not None
        assert after is not None
        assert after[1].value == before[1].value
        assert first.state is LeaseState.HELD


@pytest.mark.contract("LO-103", "LO-093")
async def test_an_exhausted_counter_ends_the_start(autojump_clock: object) -> None:
    store = MemoryStore()
    await put(store, keys.OWNER_COUNTER, b"9223372036854775807")
    with pytest.raises(GenerationExhausted):
        async with host(store, "a"):
            raise AssertionError("the host must not start")
    assert await stored_node(store, "a") is None
    assert await counter(store) == b"9223372036854775807"


@pytest.mark.contract("LO-095")
async def test_an_unreadable_counter_ends_the_start_and_stays(autojump_clock: object) -> None:
    store = MemoryStore()
    await put(store, keys.OWNER_COUNTER, b"007")
    with pytest.raises(StoreCorruption):
        async with lease_on(store):
            raise AssertionError("the host must not start")
    assert await counter(store) == b"007"


@pytest.mark.contract("LO-104")
async def test_a_silent_store_blocks_the_host_and_not_its_start(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    gate.rule = every("hang")
    async with host(store, "a", gate=gate) as running:
        assert trio.current_time() <= 3.5
        assert running.lease.state is LeaseState.UNCLAIMED
        assert not running.lease.is_valid(trio.current_time())
        await trio.sleep_until(17)
        attempts = [call.at for call in gate.calls]
        assert attempts == [0, 5, 10, 15]
        assert gate.writes(NODES) == []
        assert not running.snapshot.complete
        gate.rule = every("pass")
        with trio.fail_after(4):
            await running.lease.wait_held()
        assert trio.current_time() == 20
        assert running.lease.own_deadline == 30
        await trio.sleep(0.1)
        assert (await stored_node(store, "a")) is not None
        await trio.sleep(1)
        assert running.snapshot.complete


@pytest.mark.contract("LO-105", "LO-180")
@pytest.mark.parametrize("loss", ["swallow", "mute"])
async def test_a_claim_whose_answer_was_lost_is_found_and_adopted(autojump_clock: object, loss: str) -> None:
    store = MemoryStore()
    gate = Gate(store)
    gate.rule = only(loss, operation="write", times=1)
    async with lease_on(gate) as lease:
        assert lease.state is LeaseState.HELD
        assert lease.lease_generation == 1
        assert trio.current_time() < 3
        assert await counter(store) == b"2"
        assert len(gate.writes(LEASES)) == 1
        assert lease.own_deadline is not None
        # What is left counts from before the read that found the row, at most to the expiry the claim gave it.
        assert lease.own_deadline == pytest.approx(10, abs=0.01)


@pytest.mark.contract("LO-180")
@pytest.mark.parametrize("loss", ["cut", "hang"])
async def test_a_claim_that_never_arrived_is_repeated_after_reading(autojump_clock: object, loss: str) -> None:
    store = MemoryStore()
    gate = Gate(store)
    gate.rule = only(loss, operation="write", times=1)
    async with lease_on(gate) as lease:
        assert lease.state is LeaseState.HELD
        assert await counter(store) == b"2"
        assert [call.operation for call in gate.calls] == ["read", "write", "read", "read", "write"]
        assert gate.calls[2].key == keys.owner_lease(lease.owner_id)


async def test_a_claim_that_arrives_after_it_was_looked_for_is_still_ours(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    late: list[Call] = []

    async def hold_first_write_back(call: Call) -> None:
        if call.operation == "write" and not late:
            late.append(call)
        elif call.operation == "write":
            first = late[0]
            await store.write(first.conditions, first.mutations)

    gate.before = hold_first_write_back
    gate.rule = lambda call: "cut" if late and call is late[0] else "pass"
    async with lease_on(gate) as lease:
        assert lease.state is LeaseState.HELD
        assert lease.lease_generation == 1
        assert await counter(store) == b"2"


@pytest.mark.contract("LO-106", "LO-183")
@pytest.mark.parametrize("loss", ["swallow", "mute", "hang", "cut"])
@pytest.mark.parametrize("operation", ["read", "write"])
async def test_a_start_cancelled_during_the_claim_leaves_nothing(
    autojump_clock: object, loss: str, operation: str
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    gate.rule = only(loss, operation=operation, times=1)
    gate.delay = 0.2
    lease = lease_on(gate)
    with trio.move_on_after(0.3) as scope:
        async with lease:
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() <= 0.3 + 2 * OPTIONS.owner_lease_renew_timeout
    assert lease.state is LeaseState.RELEASED
    assert await stored_lease(store, lease.owner_id) is None
    assert gate.running == 0
    seen = len(gate.calls)
    await trio.sleep(60)
    assert len(gate.calls) == seen


@pytest.mark.contract("LO-183")
async def test_a_start_cancelled_before_the_first_call_makes_none(autojump_clock: object) -> None:
    gate = Gate(MemoryStore())
    with trio.CancelScope() as scope:
        scope.cancel()
        async with lease_on(gate):
            raise AssertionError("cancelled before")
    assert gate.writes(LEASES) == []


@pytest.mark.contract("LO-107")
async def test_renewals_start_every_interval(autojump_clock: object) -> None:
    gate = Gate(MemoryStore())
    gate.delay = 0.7
    async with lease_on(gate):
        await trio.sleep_until(62)
    claim, *renewals = [call.at for call in gate.writes(LEASES)][:-1]
    assert claim == pytest.approx(0.7)
    assert renewals == pytest.approx([5.0 * n for n in range(1, 13)], rel=0.02)
    assert gate.most_running == 1


@pytest.mark.contract("LO-107")
async def test_a_renewal_slower_than_the_interval_is_followed_at_once(autojump_clock: object) -> None:
    options = LocationOptions(owner_lease_renew_interval=1, owner_lease_ttl=15).validate()
    gate = Gate(MemoryStore())
    async with lease_on(gate, options=options):
        gate.delay = 2.5
        await trio.sleep_until(12)
        starts = [call.at for call in gate.writes(LEASES)][1:]
        assert starts == pytest.approx([1, 3.5, 6, 8.5, 11])
        assert gate.most_running == 1


@pytest.mark.contract("LO-108")
async def test_a_renewal_is_one_round_trip_that_changes_version_and_expiry_only(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with lease_on(gate) as lease:
        before = await stored_lease(store, lease.owner_id)
        seen = len(gate.calls)
        await trio.sleep_until(5.5)
        after = await stored_lease(store, lease.owner_id)
        assert before is not None
        assert after is not None
        assert after[1].value == before[1].value
        assert after[1].version != before[1].version
        assert after[1].expires_at == after[1].store_now - 500 + 15_000
        (renewal,) = gate.calls[seen:]
        assert renewal.operation == "write"
        assert renewal.conditions == (IfValue(keys.owner_lease(lease.owner_id), before[1].value),)


@pytest.mark.contract("LO-109", "LO-125")
@pytest.mark.parametrize("loss", ["refuse", "hang"])
async def test_one_failed_renewal_changes_nothing_until_the_own_deadline(autojump_clock: object, loss: str) -> None:
    store = MemoryStore()
    gate = Gate(store)
    options = LocationOptions(owner_lease_renew_interval=4).validate()
    async with host(store, "a", gate=gate, discover=False, options=options) as running:
        gate.rule = only(loss, key=LEASES)
        for _ in range(78):
            await trio.sleep(0.1)
            assert running.lease.is_valid(trio.current_time())
        assert running.kinds()[-1] is LeaseEventKind.FAILED
        gate.rule = every("pass")
        await trio.sleep_until(8.5)
        assert running.lease.is_valid(trio.current_time())
        assert running.lease.own_deadline == 18
        assert running.lease.epoch == 0
        assert running.kinds() == [LeaseEventKind.CLAIMED, LeaseEventKind.FAILED, LeaseEventKind.RENEWED]
        starts = [call.at for call in gate.writes(LEASES)]
        assert starts == [0, 4, 8]
        assert running.publisher.revision == 1


@pytest.mark.contract("LO-110")
@pytest.mark.parametrize("how", ["outage", "flush"])
async def test_a_row_that_is_gone_is_put_back_with_the_same_combination(autojump_clock: object, how: str) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", gate=gate) as running:
        owner, generation = running.lease.owner_id, running.lease.lease_generation
        await trio.sleep_until(6)
        if how == "flush":
            store.flush()
        else:
            gate.rule = every("refuse")
            await trio.sleep_until(26)
            assert not running.lease.is_valid(trio.current_time())
            assert await stored_lease(store, owner) is None
            gate.rule = every("pass")
        await until(lambda: running.lease.epoch > 0, 5.5)
        stored = await stored_lease(store, owner)
        assert stored is not None
        assert stored[0] == LeaseRow(owner, generation or 0)
        assert running.lease.is_valid(trio.current_time())
        assert running.lease.epoch == 1
        kinds = running.kinds()
        assert kinds.index(LeaseEventKind.LAPSED) < kinds.index(LeaseEventKind.RESTORED)
        back = gate.writes(LEASES)[-1]
        assert back.conditions == (IfMissing(keys.owner_lease(owner)),)
        await trio.sleep(0.2)
        assert await stored_node(store, "a") is not None


@pytest.mark.contract("LO-110")
async def test_a_lapsed_lease_is_not_valid_although_its_deadline_has_not_passed(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with lease_on(gate) as lease:
        await trio.sleep_until(4.9)
        store.flush()
        gate.rule = lambda call: "refuse" if call.conditions[:1] == (IfMissing(call.key),) else "pass"
        await trio.sleep_until(5.5)
        assert lease.state is LeaseState.LAPSED
        assert not lease.is_valid(trio.current_time())


@pytest.mark.contract("LO-111")
async def test_a_row_with_other_bytes_ends_every_write(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    foreign = b'{"recordVersion":1,"ownerId":"x","leaseGeneration":"9"}'
    async with host(store, "a", gate=gate, discover=False) as running:
        key = keys.owner_lease(running.lease.owner_id)
        await put(store, key, foreign, 15_000)
        await trio.sleep_until(6)
        assert running.lease.state is LeaseState.LOST
        assert running.lease.failure is not None
        assert running.kinds()[-1] is LeaseEventKind.LOST
        assert not running.lease.is_valid(trio.current_time())
        seen = len(gate.calls)
        running.publisher.update(node("a", placement_weight=5))
        await trio.sleep(60)
        await put(store, key, foreign)
    assert len(gate.calls) == seen
    found = await store.read(key)
    assert isinstance(found, Found)
    assert found.value == foreign


@pytest.mark.contract("LO-112")
async def test_a_process_that_slept_sees_its_deadline_passed_before_anything_else(
    mock_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()
    async with lease_on(store) as lease:
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(30)
        assert not lease.is_valid(trio.current_time())
        assert lease.state is LeaseState.HELD
        await trio.testing.wait_all_tasks_blocked()
        assert lease.epoch == 1
        assert lease.is_valid(trio.current_time())
        assert lease.own_deadline == 40


@pytest.mark.contract("LO-113")
async def test_a_normal_stop_deletes_descriptors_and_then_the_lease(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", gate=gate) as running:
        owner, row = running.lease.owner_id, running.lease.row
        await trio.sleep(2)
    assert await stored_lease(store, owner) is None
    assert await stored_node(store, "a") is None
    descriptor, lease = [call for call in gate.calls if call.operation == "write"][-2:]
    assert descriptor.written == {keys.mesh_node(MESH, "a")}
    assert lease.written == {keys.owner_lease(owner)}
    assert lease.conditions == (IfValue(keys.owner_lease(owner), row or b""),)


@pytest.mark.contract("LO-113")
async def test_a_row_of_another_combination_is_left_at_release(autojump_clock: object) -> None:
    store = MemoryStore()
    async with lease_on(store) as lease:
        other = LeaseRow(lease.owner_id, 99)
        await put(store, keys.owner_lease(lease.owner_id), other.encode(), 15_000)
    stored = await stored_lease(store, lease.owner_id)
    assert stored is not None
    assert stored[0] == other
    assert lease.state is LeaseState.RELEASED


@pytest.mark.contract("LO-180")
@pytest.mark.parametrize("loss", ["swallow", "mute", "cut", "hang"])
async def test_a_release_whose_answer_was_lost_ends_released(autojump_clock: object, loss: str) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with lease_on(gate) as lease:
        gate.rule = only(loss, operation="write", times=1)
    assert await stored_lease(store, lease.owner_id) is None
    assert trio.current_time() <= OPTIONS.owner_lease_renew_timeout


async def test_a_release_from_a_dead_store_is_bounded(autojump_clock: object) -> None:
    gate = Gate(MemoryStore())
    async with lease_on(gate) as lease:
        gate.rule = every("hang")
    assert trio.current_time() <= OPTIONS.owner_lease_renew_timeout
    assert lease.state is LeaseState.RELEASED


@pytest.mark.contract("LO-114")
async def test_upkeep_goes_on_while_a_draining_host_finishes_its_work(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", gate=gate) as running:
        running.publisher.update(node("a", state=RuntimeState.DRAINING))
        assert await running.publisher.settled()
        for _ in range(40):
            await trio.sleep(1)
            assert running.lease.is_valid(trio.current_time())
        store.flush()
        await trio.sleep(6)
        back = await stored_node(store, "a")
        assert back is not None
        assert back.state is RuntimeState.DRAINING
        owner = running.lease.owner_id
    seen = len(gate.calls)
    await trio.sleep(30)
    assert len(gate.calls) == seen
    assert await stored_lease(store, owner) is None


@pytest.mark.contract("LO-115")
async def test_owners_are_judged_by_their_own_row_only(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", gate=gate) as one, host(store, "b") as two, host(store, "c") as three:
        await trio.sleep(10)
        assert one.rids == ["b", "c"]
        assert {call.key for call in gate.reads(LEASES)} == {
            keys.owner_lease(two.lease.owner_id),
            keys.owner_lease(three.lease.owner_id),
        }
        assert {call.key for call in gate.calls if call.operation == "scan"} == {NODES}


async def test_an_exception_of_the_block_comes_out_as_it_is(autojump_clock: object) -> None:
    store = MemoryStore()
    with pytest.raises(KeyError, match="mine"):
        async with lease_on(store):
            raise KeyError("mine")
    assert isinstance(await store.read(keys.OWNER_COUNTER), Found)
    assert isinstance(await store.read(b"owner-lease\0x"), Missing)
