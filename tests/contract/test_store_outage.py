"""LO section 11 for discovery: what an outage changes, and what it does not."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.location_hosts import (
    MESH,
    OPTIONS,
    Gate,
    discovery,
    every,
    host,
    node,
    only,
    plant,
    rids,
    until,
)
from tests.location_kinds import Subject, every_kind
from zlinkpy.errors import ConfigurationError, UnavailableError
from zlinkpy.location import (
    LeaseEventKind,
    LocationOptions,
    StoreHealth,
    StoreOperation,
    keys,
)
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.store import Delete

NODES = keys.mesh_node_prefix(MESH)
LEASES = b"owner-lease\0"


@pytest.mark.contract("LO-186")
@every_kind
async def test_during_an_outage_the_list_stays_and_nothing_is_added(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with (
        host(store, "a", own=subject.describe("a"), gate=gate) as running,
        host(store, "b", own=subject.describe("b")),
        host(store, "c", own=subject.describe("c")),
    ):
        await trio.sleep_until(5.5)
        gate.rule = every("refuse")
        async with host(store, "d", own=subject.describe("d")):
            await trio.sleep(25)
            assert running.rids == ["b", "c"]
            assert running.snapshot.first_dials
            assert not running.snapshot.store_ok
            assert running.snapshot.failing_since == 6
            assert running.snapshot.operation is StoreOperation.DESCRIPTOR_READ
            gate.rule = every("pass")
            await trio.sleep(7)
            assert running.rids == ["b", "c", "d"]


@pytest.mark.contract("LO-187", "LO-188")
@every_kind
async def test_after_the_grace_no_first_dial_and_status_says_so(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with (
        host(store, "a", own=subject.describe("a"), gate=gate) as running,
        host(store, "b", own=subject.describe("b")),
    ):
        await trio.sleep_until(5.5)
        gate.rule = every("hang")
        await trio.sleep_until(60)
        assert running.rids == ["b"]
        assert not running.snapshot.first_dials
        closed_at = next(at for at, snapshot in running.snapshots if not snapshot.first_dials)
        assert running.snapshot.failing_since is not None
        assert closed_at == pytest.approx(running.snapshot.failing_since + 30)
        assert StoreOperation.DESCRIPTOR_READ in running.health.unavailable(trio.current_time())
        # The grace lengthened no lease: the last renewal was at 5.
        assert running.lease.own_deadline == 15
        assert [at for at, event in running.events if event.kind is LeaseEventKind.EXPIRED] == [15]
        gate.rule = every("pass")
        await trio.sleep(10)
        assert running.snapshot.first_dials
        assert running.health.unavailable(trio.current_time()) == ()


@pytest.mark.contract("LO-190")
@every_kind
async def test_after_recovery_the_lease_comes_first_and_missing_targets_stay_for_a_ttl(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", own=subject.describe("a"), gate=gate) as running:
        await plant(store, subject.describe("gone"), ttl_ms=3_600_000)
        await trio.sleep_until(5.5)
        assert running.rids == ["gone"]
        gate.rule = every("refuse")
        await trio.sleep_until(40.5)
        await store.write([], [Delete(subject.key("gone"))])
        await plant(store, subject.describe("new"), ttl_ms=3_600_000)
        gate.rule = every("pass")
        back = len(gate.calls)
        await until(lambda: "new" in running.rids, 6)
        calls = gate.calls[back:]
        put_back = next(n for n, call in enumerate(calls) if call.operation == "write" and call.key.startswith(LEASES))
        assert put_back < next(n for n, call in enumerate(calls) if call.operation == "scan")
        recovered = next(at for at, snapshot in running.snapshots if snapshot.store_ok and at > 40)
        assert recovered <= 45.1
        assert running.rids == ["gone", "new"]
        await trio.sleep_until(recovered + 14.9)
        assert running.rids == ["gone", "new"]
        await trio.sleep_until(recovered + 16.1)
        assert running.rids == ["new"]


@pytest.mark.contract("LO-191")
@every_kind
async def test_a_recovery_read_that_fails_half_way_changes_nothing(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", own=subject.describe("a"), gate=gate) as running:
        await plant(store, subject.describe("gone"), ttl_ms=3_600_000)
        await trio.sleep_until(5.5)
        gate.rule = only("refuse", key=subject.prefix, operation="scan")
        await trio.sleep_until(8.5)
        await store.write([], [Delete(subject.key("gone"))])
        await plant(store, subject.describe("new"), ttl_ms=3_600_000)
        gate.rule = only("refuse", key=LEASES, operation="read")
        await trio.sleep_until(30.5)
        assert running.rids == ["gone"]
        assert running.snapshot.failing_since == 6
        assert running.snapshot.operation is StoreOperation.LEASE_READ
        gate.rule = every("pass")
        await trio.sleep_until(45.5)
        assert running.rids == ["gone", "new"], "the time of the rule runs from the first complete list, at 31"
        await trio.sleep_until(47)
        assert running.rids == ["new"]


@pytest.mark.contract("LO-192")
@pytest.mark.parametrize("seconds", [0.0, 20.0])
@every_kind
async def test_a_store_that_comes_back_empty_is_filled_again_and_costs_no_target(
    autojump_clock: object, subject: Subject, seconds: float
) -> None:
    store = MemoryStore()
    gates = {rid: Gate(store) for rid in "abc"}
    async with (
        host(store, "a", own=subject.describe("a"), gate=gates["a"]) as one,
        host(store, "b", own=subject.describe("b"), gate=gates["b"]) as two,
        host(store, "c", own=subject.describe("c"), gate=gates["c"]) as three,
    ):
        hosts = (one, two, three)
        await trio.sleep_until(7.3)
        assert [running.rids for running in hosts] == [["b", "c"], ["a", "c"], ["a", "b"]]
        told = [len(running.snapshots) for running in hosts]
        if seconds:
            for gate in gates.values():
                gate.rule = every("refuse")
            await trio.sleep(seconds)
        store.flush()
        for gate in gates.values():
            gate.rule = every("pass")
        await trio.sleep(OPTIONS.owner_lease_renew_interval + 2)
        for rid in "abc":
            assert await subject.stored(store, rid) is not None
        await trio.sleep(30)
        for running, seen in zip(hosts, told, strict=True):
            for _, snapshot in running.snapshots[seen:]:
                assert len(snapshot.candidates) == 2, "a target was dropped, and its connection with it"
            assert running.snapshot.store_ok


@pytest.mark.contract("LO-193")
async def test_each_kind_of_operation_has_a_status_of_its_own(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", gate=gate) as running, host(store, "b"):
        gate.rule = only("refuse", key=NODES, operation="scan")
        await trio.sleep_until(40)
        now = trio.current_time()
        assert running.health.unavailable(now) == (StoreOperation.DESCRIPTOR_READ,)
        report = {entry.operation: entry for entry in running.health.report(now)}
        assert report[StoreOperation.LEASE].failing_since is None
        assert report[StoreOperation.DESCRIPTOR_READ].failing_since == 1
        assert report[StoreOperation.DESCRIPTOR_READ].unavailable
        assert report[StoreOperation.DESCRIPTOR_READ].last_error
        gate.rule = only("refuse", key=LEASES)
        await trio.sleep_until(76)
        now = trio.current_time()
        assert set(running.health.unavailable(now)) == {StoreOperation.LEASE, StoreOperation.LEASE_READ}
        gate.rule = every("pass")
        await trio.sleep_until(82)
        assert running.health.unavailable(trio.current_time()) == ()


@pytest.mark.contract("LO-194")
@every_kind
async def test_a_refresh_that_needs_a_failing_store_says_unavailable_and_the_next_works(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with (
        host(store, "a", own=subject.describe("a"), gate=gate) as running,
        host(store, "b", own=subject.describe("b")),
    ):
        for loss in ("refuse", "hang"):
            gate.rule = every(loss)
            started = trio.current_time()
            with pytest.raises(UnavailableError):
                await running.discovery.refresh()
            assert trio.current_time() - started <= 2 * OPTIONS.owner_lease_renew_timeout
            gate.rule = every("pass")
            assert rids(await running.discovery.refresh()) == ["b"]


async def test_a_refresh_waits_for_a_poll_that_began_after_it(autojump_clock: object, nursery: trio.Nursery) -> None:
    store = MemoryStore()
    gate = Gate(store)
    finder = discovery(gate)
    await nursery.start(finder.run)
    gate.delay = 0.4
    await trio.sleep_until(1.2)
    assert gate.running == 1
    await plant(store, node("x"), ttl_ms=60_000)
    assert rids(await finder.refresh()) == ["x"]


async def test_lease_reads_that_never_answer_fail_the_poll(autojump_clock: object, nursery: trio.Nursery) -> None:
    store = MemoryStore()
    gate = Gate(store)
    await plant(store, node("x"), ttl_ms=60_000)
    gate.rule = only("hang", operation="read")
    snapshot = await nursery.start(discovery(gate).run)
    assert trio.current_time() == OPTIONS.owner_lease_renew_timeout
    assert snapshot.operation is StoreOperation.LEASE_READ
    assert not snapshot.complete


async def test_polling_can_be_cancelled_anywhere(autojump_clock: object) -> None:
    store = MemoryStore()
    for n in range(3):
        await plant(store, node(f"n{n}", port=7000 + n), ttl_ms=60_000)
    for moment in range(12):
        gate = Gate(store)
        gate.delay = 0.1
        with trio.move_on_after(0.05 * moment):
            await discovery(gate, health=StoreHealth(30)).run()
        assert gate.running == 0


def test_discovery_checks_its_options() -> None:
    with pytest.raises(ConfigurationError):
        discovery(MemoryStore(), options=LocationOptions(polling_interval=0))
