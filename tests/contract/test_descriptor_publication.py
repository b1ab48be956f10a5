"""LO section 8: descriptors are published completely, in order, and removed by their owner only."""

from __future__ import annotations

import re

import pytest
import trio
import trio.testing
from attrs import evolve

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
from tests.location_kinds import CHANNEL, NODE, PUBLISHER, SERVER, Subject, channel_kinds, every_kind
from zlinkpy.entropy import SeededEntropy, SystemEntropy
from zlinkpy.errors import ConfigurationError, InvalidOperationError
from zlinkpy.location import (
    DescriptorPublisher,
    GenerationExhausted,
    LeaseDriver,
    LocationOptions,
    OwnerLease,
    StoreOperation,
    keys,
)
from zlinkpy.location.descriptors import encode_mesh_node
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.rows import EntryClaimRow, LeaseRow
from zlinkpy.location.store import Delete, Found, IfMissing, IfValue, IfVersion, Missing, StoreCorruption
from zlinkpy.mesh.identity import automatic_rid, check_prefix
from zlinkpy.wire import ObjectRole, RuntimeState

NODES = keys.mesh_node_prefix(MESH)
A = keys.mesh_node(MESH, "a")
LOSSES = ["swallow", "mute", "cut", "hang"]


async def hold(store: MemoryStore, owner_id: str, generation: int, ttl_ms: int | None = 15_000) -> None:
    """A lease row of somebody else."""
    await put(store, keys.owner_lease(owner_id), LeaseRow(owner_id, generation).encode(), ttl_ms)


@pytest.mark.contract("LO-130")
@every_kind
async def test_the_first_publication_is_complete_durable_and_conditioned(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", own=subject.describe("a"), gate=gate, discover=False) as running:
        (call,) = gate.writes(subject.prefix)
        lease_key, row = keys.owner_lease(running.lease.owner_id), running.lease.row
        assert set(call.conditions) == {IfMissing(subject.key("a")), IfValue(lease_key, row or b"")}
        found = await store.read(subject.key("a"))
        assert isinstance(found, Found)
        assert found.expires_at is None
        stored = subject.kind.decode(found.value)
        assert stored == running.own.signed(1, running.lease.owner_id, running.lease.lease_generation or 0)


@pytest.mark.contract("LO-130")
@every_kind
async def test_an_endpoint_nobody_can_dial_is_refused_before_any_call(autojump_clock: object, subject: Subject) -> None:
    gate = Gate(MemoryStore())
    with pytest.raises(ConfigurationError, match="cannot be dialled"):
        async with host(gate.store, "a", gate=gate, own=subject.describe("a", endpoint="tcp://10.0.0.1:0")):
            raise AssertionError("the host must not start")
    assert gate.writes(subject.prefix) == []


@pytest.mark.contract("LO-131")
async def test_descriptor_and_entry_claim_are_one_batch(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    own = node("a", entry_spot_id="a-entry", object_role=ObjectRole.SERVER)
    async with host(store, "a", gate=gate, own=own, discover=False) as running:
        (call,) = gate.writes(NODES)
        claim = keys.entry_spot("a-entry")
        assert call.written == {A, claim}
        assert IfMissing(claim) in call.conditions
        found = await store.read(claim)
        assert isinstance(found, Found)
        assert found.value == EntryClaimRow(MESH, "a", running.lease.owner_id, 1).encode()
        running.publisher.update(evolve(own, placement_weight=3))
        assert await running.publisher.settled()
        assert gate.writes(NODES)[-1].written == {A}
    assert isinstance(await store.read(claim), Missing)


@pytest.mark.contract("LO-131")
async def test_an_entry_spot_id_of_a_live_owner_is_a_configuration_error(autojump_clock: object) -> None:
    store = MemoryStore()
    await hold(store, "other", 9)
    claim = EntryClaimRow(MESH, "other", "other", 9).encode()
    await put(store, keys.entry_spot("a-entry"), claim)
    gate = Gate(store)
    with pytest.raises(ConfigurationError, match="entry spot id a-entry"):
        async with host(store, "a", gate=gate, own=node("a", entry_spot_id="a-entry")):
            raise AssertionError("the host must not start")
    assert await stored_node(store, "a") is None
    found = await store.read(keys.entry_spot("a-entry"))
    assert isinstance(found, Found)
    assert found.value == claim
    assert len(NODE.sent(gate)) == 1


@pytest.mark.contract("LO-148", "LO-131")
async def test_a_rid_of_a_live_owner_is_a_configuration_error(autojump_clock: object) -> None:
    store = MemoryStore()
    await hold(store, "other", 9)
    taken = encode_mesh_node(node("a", lifecycle_generation=3).signed(4, "other", 9), 0)
    await put(store, A, taken)
    gate = Gate(store)
    with pytest.raises(ConfigurationError, match="routing id a of mesh main"):
        async with host(store, "a", gate=gate, own=node("a", entry_spot_id="a-entry")):
            raise AssertionError("the host must not start")
    found = await store.read(A)
    assert isinstance(found, Found)
    assert found.value == taken
    assert isinstance(await store.read(keys.entry_spot("a-entry")), Missing)
    assert len(NODE.sent(gate)) == 1


@pytest.mark.contract("LO-148")
@channel_kinds
async def test_a_rid_of_a_live_provider_is_a_configuration_error(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    await hold(store, "other", 9)
    taken = subject.kind.encode(subject.describe("a", lifecycle_generation=3).signed(4, "other", 9), 0)
    await put(store, subject.key("a"), taken)
    gate = Gate(store)
    with pytest.raises(ConfigurationError, match=f"routing id a of channel {CHANNEL}"):
        async with host(store, "a", gate=gate, own=subject.describe("a")):
            raise AssertionError("the host must not start")
    found = await store.read(subject.key("a"))
    assert isinstance(found, Found)
    assert found.value == taken
    assert len(subject.sent(gate)) == 1


@channel_kinds
async def test_a_rid_of_a_dead_provider_is_taken_over(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    await put(store, subject.key("a"), subject.kind.encode(subject.describe("a").signed(4, "other", 9), 0))
    async with host(store, "a", own=subject.describe("a")) as running:
        stored = await subject.stored(store, "a")
        assert (stored.owner_id, stored.descriptor_revision) == (running.lease.owner_id, 1)


async def test_ids_of_a_dead_owner_are_taken_over_unless_it_comes_back(autojump_clock: object) -> None:
    store = MemoryStore()
    await put(store, A, encode_mesh_node(node("a", lifecycle_generation=3).signed(4, "other", 9), 0))
    await put(store, keys.entry_spot("a-entry"), EntryClaimRow(MESH, "a", "other", 9).encode())
    gate = Gate(store)
    revived = False

    async def revive(call: Call) -> None:
        nonlocal revived
        if len(gate.writes(NODES)) == 2 and not revived:
            revived = True
            await hold(store, "other", 10)

    gate.before = revive
    async with host(store, "a", gate=gate, own=node("a", entry_spot_id="a-entry")) as running:
        stored = await stored_node(store, "a")
        assert stored is not None
        assert stored.owner_id == running.lease.owner_id
        assert revived


@pytest.mark.contract("LO-133")
@every_kind
async def test_a_change_is_published_at_once_and_only_a_change(autojump_clock: object, subject: Subject) -> None:
    options = evolve(OPTIONS, polling_interval=60.0)
    store = MemoryStore()
    gate = Gate(store)
    own = subject.describe("a")
    async with (
        host(store, "a", gate=gate, own=own, options=options) as running,
        host(store, "b", own=subject.describe("b")) as reader,
    ):
        await trio.sleep_until(10.5)
        other = subject.vary(own, 1)
        running.publisher.update(other)
        await trio.testing.wait_all_tasks_blocked()
        assert [row.descriptor_revision for row in subject.sent(gate)] == [1, 2]
        assert gate.writes(subject.prefix)[-1].at == 10.5
        await until(lambda: subject.kind.same_content(reader.snapshot.candidates[0].descriptor, other), 2)
        await trio.sleep_until(200)
        assert running.publisher.revision == 2
        assert len(subject.sent(gate)) == 2


@pytest.mark.contract("LO-134")
@every_kind
async def test_a_replay_writes_nothing_however_often(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", own=subject.describe("a"), gate=gate, discover=False) as running:
        first = running.own
        second = subject.vary(first, 1)
        running.publisher.update(second)
        assert await running.publisher.settled()
        seen = len(gate.calls)
        for _ in range(20):
            running.publisher.update(second)
            running.publisher.update(second.signed(1, "", 0))
            running.publisher.update(second.signed(2, "", 0))
            assert await running.publisher.settled()
        assert len(gate.calls) == seen
        assert running.publisher.revision == 2


@pytest.mark.contract("LO-134")
@every_kind
async def test_a_stored_revision_that_is_higher_is_kept(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    async with host(store, "a", own=subject.describe("a"), discover=False) as running:
        stored = await subject.stored(store, "a")
        assert stored is not None
        ahead = subject.kind.encode(evolve(subject.vary(stored, 9), descriptor_revision=40), 0)
        await put(store, subject.key("a"), ahead)
        running.publisher.update(subject.vary(running.own, 9))
        assert await running.publisher.settled()
        found = await store.read(subject.key("a"))
        assert isinstance(found, Found)
        assert found.value == ahead
        assert running.publisher.revision == 40
        running.publisher.update(subject.vary(running.own, 10))
        assert await running.publisher.settled()
        assert running.publisher.revision == 41


@pytest.mark.contract("LO-135")
@pytest.mark.parametrize("loss", ["mute", "hang", "swallow", "cut", "refuse"])
@every_kind
async def test_of_ten_changes_behind_a_stuck_publication_the_last_is_stored(
    autojump_clock: object, subject: Subject, loss: str
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", own=subject.describe("a"), gate=gate, discover=False) as running:
        gate.rule = only(loss, key=subject.prefix, operation="write", times=2)
        gate.delay = 0.3
        for number in range(10):
            running.publisher.update(subject.vary(running.own, number))
            await trio.sleep(0.01)
        await until(lambda: running.publisher.is_current, 8)
        stored = await subject.stored(store, "a")
        assert stored is not None
        assert subject.kind.same_content(stored, subject.vary(running.own, 9))
        rows = [(row.descriptor_revision, repr(row)) for row in subject.sent(gate)]
        assert [revision for revision, _ in rows] == sorted(revision for revision, _ in rows)
        assert len({revision for revision, _ in rows}) == len(set(rows))
        assert stored.descriptor_revision == rows[-1][0]
        assert len(set(rows)) < 10
        assert gate.most_running == 1


@pytest.mark.contract("LO-136")
@every_kind
async def test_the_last_revision_ends_publishing(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    gate = Gate(store)
    failures: list[Exception] = []
    async with host(store, "a", own=subject.describe("a"), gate=gate, discover=False) as running:
        running.publisher.on_failure(failures.append)
        stored = await subject.stored(store, "a")
        assert stored is not None
        await put(store, subject.key("a"), subject.kind.encode(evolve(stored, descriptor_revision=2**63 - 1), 0))
        running.publisher.update(subject.vary(running.own, 1))
        with pytest.raises(GenerationExhausted):
            await running.publisher.settled()
        assert [type(failure) for failure in failures] == [GenerationExhausted]
        seen = len(gate.writes(subject.prefix))
        running.publisher.update(subject.vary(running.own, 2))
        await trio.sleep(4)
        assert len(gate.writes(subject.prefix)) == seen


@pytest.mark.contract("LO-142")
@every_kind
async def test_draining_is_awaited_and_nothing_is_waited_for_afterwards(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", own=subject.describe("a"), gate=gate, discover=False) as running:
        gate.delay = 0.5
        running.publisher.update(evolve(running.own, state=RuntimeState.DRAINING))
        assert await running.publisher.settled()
        assert trio.current_time() == pytest.approx(0.5)
        stored = await subject.stored(store, "a")
        assert stored is not None
        assert stored.state is RuntimeState.DRAINING


CHANNEL_IDENTITY = {
    "endpoint": "tcp://10.0.0.1:9999",
    "rid": "b",
    "channel_name": "other",
    "lifecycle_generation": 8,
    "security_identity": "curve",
}


@pytest.mark.contract("LO-138")
@channel_kinds
@pytest.mark.parametrize("name", CHANNEL_IDENTITY)
async def test_identity_of_a_channel_provider_cannot_change_under_one_key(
    autojump_clock: object, subject: Subject, name: str
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    own = subject.describe("a")
    async with host(store, "a", gate=gate, own=own, discover=False) as running:
        with pytest.raises(InvalidOperationError, match=name):
            running.publisher.update(evolve(own, **{name: CHANNEL_IDENTITY[name]}))
        with pytest.raises(InvalidOperationError, match="kind"):
            running.publisher.update(node("a"))
        await trio.sleep(3)
        assert len(subject.sent(gate)) == 1


@pytest.mark.contract("LO-138")
@pytest.mark.parametrize(
    ("subject", "change"),
    [
        (SERVER, {"state": RuntimeState.RELOCATING}),
        (SERVER, {"weight": 0}),
        (PUBLISHER, {"state": RuntimeState.DRAINING}),
    ],
)
async def test_what_may_change_of_a_channel_provider_is_published(
    autojump_clock: object, subject: Subject, change: dict[str, object]
) -> None:
    store = MemoryStore()
    own = subject.describe("a")
    async with host(store, "a", own=own, discover=False) as running:
        running.publisher.update(evolve(own, **change))
        assert await running.publisher.settled()
        signed = evolve(own, **change).signed(2, running.lease.owner_id, running.lease.lease_generation)
        assert await subject.stored(store, "a") == signed


@pytest.mark.contract("LO-142")
@pytest.mark.parametrize(("loss", "bound"), [("refuse", 0.0), ("cut", 0.0), ("hang", 3.0)])
@every_kind
async def test_a_draining_that_cannot_be_published_is_reported(
    autojump_clock: object, subject: Subject, loss: str, bound: float
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", own=subject.describe("a"), gate=gate, discover=False) as running:
        await trio.sleep(2)
        gate.rule = every(loss)
        running.publisher.update(evolve(running.own, state=RuntimeState.DRAINING))
        assert not await running.publisher.settled()
        assert trio.current_time() - 2 <= bound
        broken = {entry.operation: entry for entry in running.health.report(trio.current_time())}
        assert broken[StoreOperation.DESCRIPTOR_WRITE].failing_since is not None
        gate.rule = every("pass")


@pytest.mark.contract("LO-144")
async def test_removal_is_conditioned_on_version_and_lease(autojump_clock: object) -> None:
    store = MemoryStore()
    gate = Gate(store)
    own = node("a", entry_spot_id="a-entry")
    async with host(store, "a", gate=gate, own=own, discover=False) as running:
        found = await store.read(A)
        assert isinstance(found, Found)
        lease_key, row = keys.owner_lease(running.lease.owner_id), running.lease.row or b""
        await running.publisher.remove()
        await running.publisher.remove()
        call = gate.writes(NODES)[-1]
        assert set(call.conditions) == {IfVersion(A, found.version), IfValue(lease_key, row)}
        assert set(call.mutations) == {Delete(A), Delete(keys.entry_spot("a-entry"))}
        assert await stored_node(store, "a") is None
        assert isinstance(await store.read(keys.entry_spot("a-entry")), Missing)
        running.publisher.update(evolve(own, placement_weight=1))
        await trio.sleep(3)
        assert len(gate.writes(NODES)) == 2
        assert not await running.publisher.settled()


@pytest.mark.contract("LO-144")
@channel_kinds
async def test_removal_of_a_provider_is_conditioned_on_version_and_lease(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", gate=gate, own=subject.describe("a"), discover=False) as running:
        found = await store.read(subject.key("a"))
        assert isinstance(found, Found)
        lease_key, row = keys.owner_lease(running.lease.owner_id), running.lease.row or b""
        await running.publisher.remove()
        call = gate.writes(subject.prefix)[-1]
        assert set(call.conditions) == {IfVersion(subject.key("a"), found.version), IfValue(lease_key, row)}
        assert call.mutations == (Delete(subject.key("a")),)
        assert await subject.stored(store, "a") is None


@pytest.mark.contract("LO-144")
@every_kind
async def test_a_row_replaced_by_another_lifecycle_is_left(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    async with host(store, "a", own=subject.describe("a"), discover=False):
        other = subject.kind.encode(subject.describe("a", lifecycle_generation=8).signed(1, "other", 9), 0)
        await put(store, subject.key("a"), other)
    found = await store.read(subject.key("a"))
    assert isinstance(found, Found)
    assert found.value == other


@pytest.mark.contract("LO-145")
@every_kind
async def test_a_killed_host_leaves_its_descriptor_and_nobody_deletes_it(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    gates = [Gate(store), Gate(store)]
    async with (
        host(store, "b", own=subject.describe("b"), gate=gates[0]) as one,
        host(store, "c", own=subject.describe("c"), gate=gates[1]),
    ):
        # A host that is killed ends without a single further call.
        dead = Gate(store)
        async with host(store, "a", own=subject.describe("a"), gate=dead) as killed:
            owner = killed.lease.owner_id
            await trio.sleep(3)
            assert one.rids == ["a", "c"]
            dead.rule = every("hang")
        assert await subject.stored(store, "a") is not None
        await trio.sleep(12)
        assert await stored_lease(store, owner) is None
        await trio.sleep(1200)
        assert await subject.stored(store, "a") is not None
        assert one.rids == ["c"]
        assert all(subject.key("a") not in call.written for gate in gates for call in gate.calls)


@pytest.mark.contract("LO-180")
@pytest.mark.parametrize("loss", LOSSES)
async def test_a_publication_with_a_lost_answer_is_applied_once(autojump_clock: object, loss: str) -> None:
    store = MemoryStore()
    gate = Gate(store)
    gate.rule = only(loss, key=NODES, operation="write", times=1)
    own = node("a", entry_spot_id="a-entry")
    async with host(store, "a", gate=gate, own=own, discover=False) as running:
        assert running.publisher.revision == 1
        assert trio.current_time() < 3
        assert len(gate.writes(NODES)) == (1 if loss in ("swallow", "mute") else 2)
        gate.rule = only(loss, key=NODES, operation="write", times=1)
        running.publisher.update(evolve(own, placement_weight=1))
        assert await running.publisher.settled()
        assert running.publisher.revision == 2
        rows = [row for row in NODE.sent(gate) if row.descriptor_revision == 2]
        assert len(rows) == (1 if loss in ("swallow", "mute") else 2)
        reads = [call.at for call in gate.reads(A)]
        assert len(reads) == 2
        gate.rule = only(loss, key=NODES, operation="write", times=1)
    assert await stored_node(store, "a") is None
    assert isinstance(await store.read(keys.entry_spot("a-entry")), Missing)


@pytest.mark.contract("LO-180")
@every_kind
async def test_after_a_lost_answer_without_time_to_read_the_next_round_reads_first(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", own=subject.describe("a"), gate=gate, discover=False) as running:
        asked = 0

        def rule(call: Call) -> str:
            nonlocal asked
            asked += 1
            return "mute" if asked == 1 else "hang" if asked == 2 else "pass"

        gate.rule = rule
        running.publisher.update(subject.vary(running.own, 1))
        assert not await running.publisher.settled()
        await until(lambda: running.publisher.is_current, 4)
        assert [row.descriptor_revision for row in subject.sent(gate)] == [1, 2]
        assert running.publisher.revision == 2


@pytest.mark.contract("LO-183")
@pytest.mark.parametrize("loss", LOSSES)
@every_kind
async def test_a_cancelled_host_knows_the_end_of_its_publication_before_it_leaves(
    autojump_clock: object, subject: Subject, loss: str
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    with trio.move_on_after(0.3) as scope:
        async with host(store, "a", own=subject.describe("a"), gate=gate, discover=False) as running:
            gate.delay = 0.2
            await trio.sleep(0.2)
            gate.rule = only(loss, key=subject.prefix, operation="write", times=1)
            running.publisher.update(subject.vary(running.own, 1))
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert await subject.stored(store, "a") is None
    assert await stored_lease(store, running.lease.owner_id) is None
    assert trio.current_time() <= 0.3 + 3 * OPTIONS.owner_lease_renew_timeout
    assert gate.running == 0


@every_kind
async def test_an_unreadable_row_under_the_own_key_ends_the_start(autojump_clock: object, subject: Subject) -> None:
    store = MemoryStore()
    await put(store, subject.key("a"), b"{}")
    with pytest.raises(StoreCorruption):
        async with host(store, "a", own=subject.describe("a")):
            raise AssertionError("the host must not start")
    found = await store.read(subject.key("a"))
    assert isinstance(found, Found)
    assert found.value == b"{}"


async def test_a_publisher_is_used_inside_its_block_and_once(autojump_clock: object) -> None:
    store = MemoryStore()
    async with OwnerLease(store, OPTIONS, SeededEntropy(1), driver=LeaseDriver.LOOP) as lease:
        publisher = DescriptorPublisher(store, lease, OPTIONS)
        for misuse in (publisher.publish(node("a")), publisher.settled()):
            with pytest.raises(InvalidOperationError):
                await misuse
        with pytest.raises(InvalidOperationError):
            publisher.update(node("a"))
        async with publisher:
            await publisher.publish(node("a"))
            with pytest.raises(InvalidOperationError):
                await publisher.publish(node("a"))
        with pytest.raises(RuntimeError, match="one block"):
            await publisher.__aenter__()


@every_kind
async def test_a_lease_that_vanished_from_the_store_does_not_make_publishing_spin(
    autojump_clock: object, subject: Subject
) -> None:
    store = MemoryStore()
    gate = Gate(store)
    async with host(store, "a", own=subject.describe("a"), gate=gate, discover=False) as running:
        await store.write([], [Delete(keys.owner_lease(running.lease.owner_id))])
        running.publisher.update(subject.vary(running.own, 1))
        await trio.sleep_until(4.9)
        assert len(gate.writes(subject.prefix)) == 6
        await trio.sleep_until(5.5)
        assert running.publisher.revision == 2


@pytest.mark.contract("LO-147")
def test_automatic_ids_are_prefix_and_a_new_uuid() -> None:
    seen = {automatic_rid(check_prefix("node.A_1-x", "prefix"), SystemEntropy()) for _ in range(100)}
    assert len(seen) == 100
    uuid4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert all(re.fullmatch(rf"node\.A_1-x-{uuid4}", rid) for rid in seen)
    assert check_prefix("x" * 64, "prefix")
    for bad in ("", "x" * 65, "é", "a b", "a/b"):
        with pytest.raises(ConfigurationError):
            check_prefix(bad, "prefix")


async def test_options_are_checked_when_a_lease_is_made(autojump_clock: object) -> None:
    with pytest.raises(ConfigurationError):
        OwnerLease(MemoryStore(), LocationOptions(owner_lease_ttl=9), SeededEntropy(1))
