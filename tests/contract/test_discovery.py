"""LO sections 9 and 10 for discovery: who is listed, and when."""

from __future__ import annotations

import time
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve

from tests.location_hosts import (
    MESH,
    Call,
    Gate,
    discovery,
    every,
    host,
    node,
    plant,
    put,
    rids,
    until,
)
from tests.location_kinds import Subject, every_kind
from zlinkpy.errors import UnavailableError
from zlinkpy.location import (
    Snapshot,
    StoreOperation,
    keys,
)
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Delete, Expired, Page, Put, StoreCorruption
from zlinkpy.wire import ObjectRole, RuntimeState

NODES = keys.mesh_node_prefix(MESH)
LEASES = b"owner-lease\0"


@pytest.mark.contract("LO-150")
@pytest.mark.parametrize("why", ["missing", "owner", "generation", "expired"])
@every_kind
async def test_a_descriptor_without_its_live_lease_is_not_listed(
    autojump_clock: trio.testing.MockClock, subject: Subject, nursery: trio.Nursery, why: str
) -> None:
    store = MemoryStore()
    await plant(store, subject.describe("good"))
    bad = await plant(store, subject.describe("bad"), generation=3, lease=why == "expired", ttl_ms=1000)
    if why == "generation":
        await put(store, keys.owner_lease("bad"), LeaseRow("bad", 4).encode(), 15_000)
    if why == "owner":
        await put(store, subject.key("bad"), subject.kind.encode(evolve(bad, owner_id="good"), 0))
    await trio.sleep(1)
    snapshot = await nursery.start(discovery(store, subject.describe("me")).run)
    assert rids(snapshot) == ["good"]


@pytest.mark.contract("LO-151", "LO-150")
@pytest.mark.parametrize(("left", "listed"), [(1, ["x"]), (0, [])])
@every_kind
async def test_one_millisecond_left_is_live_and_none_is_not(
    autojump_clock: object, subject: Subject, nursery: trio.Nursery, left: int, listed: list[str]
) -> None:
    now = 1_000_000
    store = MemoryStore(clock=lambda: now)
    await plant(store, subject.describe("x"), ttl_ms=5000)
    now += 5000 - left
    assert rids(await nursery.start(discovery(store, subject.describe("me")).run)) == listed


@pytest.mark.contract("LO-152")
@every_kind
async def test_the_lease_is_judged_by_its_own_read_not_by_the_page(
    autojump_clock: object, subject: Subject, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    await plant(store, subject.describe("x"), ttl_ms=2000)
    await plant(store, subject.describe("y"), ttl_ms=2000)

    async def slow_pages(call: Call) -> None:
        # The page says a time at which both leases were live; by the time they are read one is gone, one renewed.
        if call.operation == "read":
            with trio.CancelScope(shield=True):
                await trio.sleep_until(2.5)
            await put(store, keys.owner_lease("y"), LeaseRow("y", 1).encode(), 15_000)

    gate.before = slow_pages
    assert rids(await nursery.start(discovery(gate, subject.describe("me")).run)) == ["y"]


@pytest.mark.contract("LO-153", "LO-189")
@every_kind
async def test_a_candidate_is_selectable_until_its_local_deadline_without_a_read(
    autojump_clock: object, subject: Subject, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    gate.delay = 0.5
    await plant(store, subject.describe("x"))
    finder = discovery(gate, subject.describe("me"))
    await nursery.start(finder.run)
    gate.rule = every("refuse")
    (candidate,) = finder.snapshot.candidates
    # Scan 0.5 s, then the read is sent at 0.5 and answered at 1.0: 0.5 + 14.5 - 5, not 1.0 + 14.5 - 5.
    assert candidate.usable_until == pytest.approx(10, abs=0.002)
    seen = len(gate.reads(LEASES))
    assert candidate.is_selectable(9.99)
    assert not candidate.is_selectable(10.01)
    assert len(gate.reads(LEASES)) == seen == 1
    await trio.sleep_until(40)
    assert rids(finder.snapshot) == ["x"]
    assert not finder.snapshot.candidates[0].is_selectable(trio.current_time())


@pytest.mark.contract("LO-141")
@pytest.mark.parametrize("state", list(RuntimeState))
@every_kind
async def test_only_a_serving_node_is_selectable(
    autojump_clock: object, subject: Subject, nursery: trio.Nursery, state: RuntimeState
) -> None:
    store = MemoryStore()
    await plant(store, subject.describe("x", state=state))
    snapshot = await nursery.start(discovery(store, subject.describe("me")).run)
    assert rids(snapshot) == ["x"]
    assert snapshot.candidates[0].is_selectable(trio.current_time()) is (state is RuntimeState.SERVING)


@pytest.mark.contract("LO-154")
@every_kind
async def test_of_two_runs_on_one_endpoint_only_the_new_one_is_listed(
    autojump_clock: object, subject: Subject, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    await plant(store, subject.describe("z-old", port=7001), generation=4)
    await plant(store, subject.describe("a-new", port=7001), generation=5, ttl_ms=60_000)
    await plant(store, subject.describe("b-older", port=7001), generation=3)
    finder = discovery(store, subject.describe("me"))
    assert rids(await nursery.start(finder.run)) == ["a-new"]
    await trio.sleep(20)
    assert rids(finder.snapshot) == ["a-new"]


@pytest.mark.contract("LO-156")
@every_kind
async def test_a_lease_without_expiry_freezes_the_snapshot(
    autojump_clock: object, subject: Subject, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    await plant(store, subject.describe("x"), ttl_ms=600_000)
    finder = discovery(store, subject.describe("me"))
    await nursery.start(finder.run)
    await plant(store, subject.describe("bad"), ttl_ms=None)
    await plant(store, subject.describe("new"), ttl_ms=600_000)
    await store.write([], [Delete(subject.key("x"))])
    await trio.sleep(5)
    assert rids(finder.snapshot) == ["x"]
    assert not finder.snapshot.store_ok
    assert finder.snapshot.operation is StoreOperation.LEASE_READ
    with pytest.raises(StoreCorruption):
        await finder.refresh()
    await put(store, keys.owner_lease("bad"), LeaseRow("bad", 1).encode(), 600_000)
    await trio.sleep(2)
    assert rids(finder.snapshot) == ["bad", "new", "x"]
    assert finder.snapshot.store_ok


@pytest.mark.contract("LO-156")
@pytest.mark.parametrize("row", [b"{}", b"\xff"])
@every_kind
async def test_an_unreadable_descriptor_freezes_the_snapshot(
    autojump_clock: object, subject: Subject, nursery: trio.Nursery, row: bytes
) -> None:
    store = MemoryStore()
    await plant(store, subject.describe("x"), ttl_ms=600_000)
    finder = discovery(store, subject.describe("me"))
    await nursery.start(finder.run)
    await put(store, subject.key("bad"), row)
    await plant(store, subject.describe("new"), ttl_ms=600_000)
    await trio.sleep(3)
    assert rids(finder.snapshot) == ["x"]
    assert finder.snapshot.operation is StoreOperation.DESCRIPTOR_READ


@pytest.mark.contract("LO-157")
async def test_corruption_outside_the_candidates_changes_nothing(autojump_clock: object, nursery: trio.Nursery) -> None:
    store = MemoryStore()
    own = node("me", object_role=ObjectRole.CLIENT)
    await plant(store, node("x"))
    await plant(store, node("client", object_role=ObjectRole.CLIENT), ttl_ms=None)
    await plant(store, node("other", mesh_name="main2"), ttl_ms=None)
    await put(store, keys.mesh_node("main2", "broken"), b"{}")
    snapshot = await nursery.start(discovery(store, own).run)
    assert rids(snapshot) == ["x"]
    assert snapshot.store_ok


@every_kind
async def test_a_row_under_another_nodes_key_is_corruption(
    autojump_clock: object, subject: Subject, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    await put(store, subject.key("x"), subject.kind.encode(subject.describe("y").signed(1, "y", 1), 0))
    snapshot = await nursery.start(discovery(store, subject.describe("me")).run)
    assert snapshot.operation is StoreOperation.DESCRIPTOR_READ


@pytest.mark.contract("LO-159")
@every_kind
async def test_a_descriptor_for_a_manual_endpoint_brings_its_whole_identity(
    autojump_clock: object, subject: Subject, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    await plant(store, subject.describe("x", port=7001, security_identity="curve:k", lifecycle_generation=99))
    snapshot = await nursery.start(discovery(store, subject.describe("me")).run)
    found = snapshot.at_endpoint("tcp://10.0.0.1:7001")
    assert found is not None
    identity = (found.rid, found.descriptor.security_identity, found.descriptor.lifecycle_generation)
    assert identity == ("x", "curve:k", 99)
    assert snapshot.at_endpoint("tcp://10.0.0.1:7002") is None
    assert snapshot.find("x") is found
    assert snapshot.find("y") is None


@pytest.mark.contract("LO-165")
@every_kind
async def test_descriptors_are_read_every_second_and_news_is_told_within_two(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", own=subject.describe("a"), gate=gate) as running:
        await trio.sleep_until(10.5)
        scans = [call.at for call in gate.calls if call.operation == "scan"]
        assert scans == pytest.approx([float(n) for n in range(11)])
        async with host(store, "b", own=subject.describe("b")):
            await until(lambda: running.rids == ["b"], 2)
            at, snapshot = running.snapshots[-1]
            assert at <= 12.5
            assert rids(snapshot) == ["b"]


@pytest.mark.contract("LO-165")
async def test_a_slow_poll_is_followed_at_once_and_never_overlapped(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    gate = Gate(MemoryStore())
    gate.delay = 1.4
    await nursery.start(discovery(gate).run)
    await trio.sleep_until(6)
    scans = [call.at for call in gate.calls if call.operation == "scan"]
    assert scans == pytest.approx([0, 1.4, 2.8, 4.2, 5.6])
    assert gate.most_running == 1


@pytest.mark.contract("LO-166")
@every_kind
async def test_a_change_between_two_pages_is_in_the_list_wholly_or_not_at_all(
    autojump_clock: object, subject: Subject, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    rows = [subject.describe(f"n{n:04}", port=10_000 + n) for n in range(1500)]
    for descriptor in rows:
        await plant(store, descriptor, ttl_ms=600_000)
    moved = False

    class Moving(Gate):
        async def scan(self, prefix: bytes, *, cursor: str | None = None, limit: int = 1000) -> Page | Expired:
            nonlocal moved
            if cursor is not None and not moved:
                moved = True
                # One node of each page changes its state in one batch.
                changed = [evolve(row, state=RuntimeState.DRAINING) for row in (rows[0], rows[1400])]
                puts = [Put(subject.key(row.rid), subject.kind.encode(row.signed(2, row.rid, 1), 0)) for row in changed]
                await store.write([], puts)
            return await super().scan(prefix, cursor=cursor, limit=limit)

    finder = discovery(Moving(store), subject.describe("me"))
    first = await nursery.start(finder.run)
    assert moved

    def states(snapshot: Snapshot[Any]) -> set[RuntimeState]:
        found = [snapshot.find("n0000"), snapshot.find("n1400")]
        return {candidate.descriptor.state for candidate in found if candidate is not None}

    assert len(first.candidates) == 1500
    assert states(first) == {RuntimeState.SERVING}
    assert states(await finder.refresh()) == {RuntimeState.DRAINING}


@pytest.mark.contract("LO-041")
async def test_a_snapshot_that_expires_is_read_from_the_beginning(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    for n in range(1500):
        await plant(store, node(f"n{n:04}", port=10_000 + n), ttl_ms=600_000)

    class Forgetful(Gate):
        expired = 0
        limit = 1

        async def scan(self, prefix: bytes, *, cursor: str | None = None, limit: int = 1000) -> Page | Expired:
            if cursor is not None and self.expired < self.limit:
                self.expired += 1
                await store.write([], [Delete(keys.mesh_node(MESH, f"n{self.expired:04}"))])
                return Expired()
            return await super().scan(prefix, cursor=cursor, limit=limit)

    way = Forgetful(store)
    finder = discovery(way)
    snapshot = await nursery.start(finder.run)
    assert len(snapshot.candidates) == 1499
    assert snapshot.find("n0001") is None
    way.limit = 10**9
    with pytest.raises(UnavailableError, match="snapshot"):
        await finder.refresh()
    assert len(finder.snapshot.candidates) == 1499


@pytest.mark.contract("LO-167")
@every_kind
async def test_polls_alone_reach_every_state(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    async with host(store, "a", own=subject.describe("a")) as running:
        await plant(store, subject.describe("x"), ttl_ms=60_000)
        await trio.sleep(1.1)
        assert running.rids == ["x"]
        await store.write([], [Delete(subject.key("x"))])
        await trio.sleep(1.1)
        assert running.rids == []


CLIENT, SERVER, NONE = ObjectRole.CLIENT, ObjectRole.SERVER, ObjectRole.NONE


@pytest.mark.contract("LO-168")
@pytest.mark.parametrize(
    ("own", "other", "listed"),
    [
        ((CLIENT, {}), (CLIENT, {}), False),
        ((CLIENT, {"c": 0}), (CLIENT, {}), True),
        ((CLIENT, {}), (CLIENT, {"c": 0}), True),
        ((CLIENT, {"c": 5}), (CLIENT, {"d": 5}), True),
        ((CLIENT, {}), (SERVER, {}), True),
        ((SERVER, {}), (CLIENT, {}), True),
        ((NONE, {}), (CLIENT, {}), True),
        ((CLIENT, {}), (NONE, {}), True),
    ],
)
async def test_two_clients_without_server_channels_do_not_connect(
    autojump_clock: object,
    nursery: trio.Nursery,
    own: tuple[ObjectRole, dict[str, int]],
    other: tuple[ObjectRole, dict[str, int]],
    listed: bool,
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    await plant(store, node("x", object_role=other[0], channel_weights=other[1]))
    me = node("me", object_role=own[0], channel_weights=own[1])
    snapshot = await nursery.start(discovery(gate, me).run)
    assert rids(snapshot) == (["x"] if listed else [])
    assert [descriptor.rid for descriptor in snapshot.not_required] == ([] if listed else ["x"])
    assert len(gate.reads(LEASES)) == 1


async def test_a_dead_client_is_not_shown_as_not_required(autojump_clock: object, nursery: trio.Nursery) -> None:
    store = MemoryStore()
    await plant(store, node("dead", object_role=CLIENT), lease=False)
    await plant(store, node("live", object_role=CLIENT))
    snapshot = await nursery.start(discovery(store, node("me", object_role=CLIENT)).run)
    assert [descriptor.rid for descriptor in snapshot.not_required] == ["live"]


@pytest.mark.contract("LO-170")
@pytest.mark.parametrize("lifecycle", [1, 2**63 - 1])
@every_kind
async def test_another_lifecycle_replaces_the_candidate_whichever_is_larger(
    autojump_clock: object, subject: Subject, nursery: trio.Nursery, lifecycle: int
) -> None:
    store = MemoryStore()
    await plant(store, subject.describe("x", lifecycle_generation=500), ttl_ms=60_000)
    finder = discovery(store, subject.describe("me"))
    await nursery.start(finder.run)
    await plant(store, subject.describe("x", lifecycle_generation=lifecycle), generation=2, ttl_ms=60_000)
    await trio.sleep(1.1)
    (candidate,) = finder.snapshot.candidates
    assert candidate.descriptor.lifecycle_generation == lifecycle


@pytest.mark.contract("LO-173")
async def test_nobody_only_me_or_only_draining_is_no_error(autojump_clock: object) -> None:
    store = MemoryStore()
    async with host(store, "me", publish=False) as running:
        assert running.snapshot.complete
        assert running.rids == []
        await running.publisher.publish(running.own)
        await trio.sleep(1.1)
        assert running.rids == []
        await plant(store, node("x", state=RuntimeState.DRAINING), ttl_ms=60_000)
        snapshot = await running.discovery.refresh()
        assert [candidate.is_selectable(trio.current_time()) for candidate in snapshot.candidates] == [False]
        assert snapshot.store_ok


@pytest.mark.contract("LO-174")
async def test_a_poll_of_200_hosts_is_two_round_trips_and_little_work(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    for n in range(200):
        await plant(store, node(f"n{n:03}", port=10_000 + n), ttl_ms=600_000)
    finder = discovery(gate)
    await nursery.start(finder.run)
    assert gate.most_running == 200, "lease reads go out together, so that the provider can share their round trip"
    assert [call.operation for call in gate.calls].count("scan") == 1
    seen = len(gate.calls)
    await trio.sleep_until(2.2)
    assert [call.operation for call in gate.calls[seen:]] == ["scan", "scan"], "young lease reads are used again"
    await trio.sleep_until(2.6)
    best = 1.0
    for _ in range(5):
        started = time.process_time()
        await finder.refresh()
        best = min(best, time.process_time() - started)
        await trio.sleep(2.6)
    assert best < 0.05


@every_kind
async def test_a_dead_lease_is_read_again_at_every_poll(
    autojump_clock: object, subject: Subject, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    await plant(store, subject.describe("x"), lease=False)
    finder = discovery(store, subject.describe("me"))
    await nursery.start(finder.run)
    await put(store, keys.owner_lease("x"), LeaseRow("x", 1).encode(), 15_000)
    await trio.sleep(1.1)
    assert rids(finder.snapshot) == ["x"]
