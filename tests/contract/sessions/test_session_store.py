"""Claims, fencing and records (SR section 3, SR-430, SR-431)."""

from __future__ import annotations

import ast
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs.exceptions import FrozenInstanceError

from tests.contract.sessions.conftest import Bench, MemoryBench, RedisBench
from tests.house.source import ROOT
from zlinkpy.entropy import SeededEntropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.sessions.errors import SessionLeaseError, SessionNotHeldError, SessionRecordError
from zlinkpy.sessions.memory_backend import MemoryBackend
from zlinkpy.sessions.memory_leases import MemoryLeaseStore
from zlinkpy.sessions.memory_records import MemoryRecordStore
from zlinkpy.sessions.session_store import NodeSessionStore
from zlinkpy.sessions.types import (
    Acquired,
    HandlerConflict,
    HeldElsewhere,
    SessionLease,
    SessionRecordView,
    Write,
)


class Recorder:
    """A store behind a log of its calls; a hook may get between a call and the store."""

    def __init__(self, inner: Any, log: list[tuple[Any, ...]]) -> None:
        self._inner = inner
        self._log = log
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}
        self.after: dict[str, Callable[[], Awaitable[None]]] = {}

    def hooks(self, moment: str) -> dict[str, Callable[[], Awaitable[None]]]:
        return self.before if moment == "before" else self.after

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._inner, name)

        async def call(*arguments: Any) -> Any:
            self._log.append((name, *arguments))
            if name in self.before:
                await self.before.pop(name)()
            answer = await target(*arguments)
            if name in self.after:
                await self.after.pop(name)()
            return answer

        return call


class Node:
    """One node's session store over recorded back ends."""

    def __init__(self, leases: Any, records: Any, seed: int = 1) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.leases = Recorder(leases, self.log)
        self.records = Recorder(records, self.log)
        self.store = NodeSessionStore(self.leases, self.records, entropy=SeededEntropy(seed))

    @property
    def calls(self) -> list[str]:
        return [entry[0] for entry in self.log]

    async def claimed(self, ref: str = "h1", node: str = "N1", duration: float = 30) -> Acquired:
        result = await self.store.claim("s", ref, node, duration)
        assert isinstance(result, Acquired)
        return result


def node_of(bench: Bench, peer: bool = False) -> Node:
    stores = bench.peer if peer else bench.stores
    return Node(stores.leases, stores.records, seed=1 + peer)


async def refused(call: Awaitable[Any]) -> None:
    with pytest.raises(SessionNotHeldError):
        await call


@pytest.mark.contract("SR-042")
async def test_a_claim_elects_and_then_provisions(bench: Bench) -> None:
    node = node_of(bench)
    result = await node.claimed()
    assert node.calls == ["try_acquire", "provision"]
    assert node.log[0][1:4] == ("s", "N1", 30)
    assert node.log[1] == ("provision", "s", "h1", result.lease.token)
    assert result.record == SessionRecordView("s", "h1")
    assert (result.lease.session_id, result.lease.holder_id) == ("s", "N1")
    assert node.store.held("s") == result.lease


@pytest.mark.contract("SR-043")
async def test_whoever_loses_touches_no_record(bench: Bench) -> None:
    holder, loser = node_of(bench, peer=True), node_of(bench)
    held = await holder.claimed(node="N2")
    result = await loser.store.claim("s", "h1", "N1", 30)
    assert isinstance(result, HeldElsewhere)
    assert result.holder is not None
    assert (result.holder.holder_id, result.holder.token) == ("N2", held.lease.token)
    assert loser.calls == ["try_acquire"]
    assert loser.store.held("s") is None


@pytest.mark.contract("SR-044")
async def test_another_handler_gives_the_lease_back(bench: Bench) -> None:
    node = node_of(bench)
    first = await node.claimed()
    await node.store.release(first.lease)
    before = await node.store.load("s")
    assert await node.store.claim("s", "h2", "N1", 30) == HandlerConflict("h1", "h2")
    assert await bench.peer.leases.find_holder("s") is None
    assert await node.store.load("s") == before
    assert node.store.held("s") is None


@pytest.mark.contract("SR-045")
async def test_a_claim_that_cannot_provision_gives_the_lease_back(memory_bench: MemoryBench) -> None:
    node = node_of(memory_bench)
    backend = memory_bench.stores.backend
    backend.plan("before", operation="provision", times=None)  # type: ignore[union-attr]
    for call in (node.store.claim("s", "h1", "N1", 30), node.store.acquire("s", "N1", 30)):
        with pytest.raises(SessionRecordError):
            await call
        assert await memory_bench.stores.leases.find_holder("s") is None
        assert node.store.held("s") is None
    # An answer that was lost is asked for once more, a refusal is not.
    assert node.calls.count("provision") == 4
    backend.heal()  # type: ignore[union-attr]
    backend.plan("before", operation="provision", times=None, applied="no")  # type: ignore[union-attr]
    node.log.clear()
    with pytest.raises(SessionRecordError):
        await node.store.claim("s", "h1", "N1", 30)
    assert node.calls == ["try_acquire", "provision", "release"]


@pytest.mark.contract("SR-046")
async def test_a_claim_between_the_election_and_the_binding_of_another_one_loses(bench: Bench) -> None:
    winner, loser = node_of(bench), node_of(bench, peer=True)
    lost: list[Any] = []

    async def claim() -> None:
        lost.append(await loser.store.claim("s", "h2", "N2", 30))

    winner.records.before["provision"] = claim
    assert (await winner.claimed()).record.handler_ref == "h1"
    assert [type(result) for result in lost] == [HeldElsewhere]
    assert await loser.store.load("s") == SessionRecordView("s", "h1")


@pytest.mark.contract("SR-046")
async def test_of_two_claims_one_wins_and_binds(bench: Bench) -> None:
    for number in range(10):
        nodes = {"h1": node_of(bench), "h2": node_of(bench, peer=True)}
        results: dict[str, Any] = {}

        async def claim(ref: str, node: Node, sid: str = f"s{number}", results: dict[str, Any] = results) -> None:
            results[ref] = await node.store.claim(sid, ref, f"node of {ref}", 30)

        async with trio.open_nursery() as nursery:
            for ref, node in nodes.items():
                nursery.start_soon(claim, ref, node)
        won = [ref for ref, result in results.items() if isinstance(result, Acquired)]
        assert len(won) == 1
        assert [type(result) for ref, result in results.items() if ref not in won] == [HeldElsewhere]
        record = await bench.stores.records.load(f"s{number}")
        assert record is not None
        assert record.handler_ref == won[0]


@pytest.mark.contract("SR-047")
async def test_an_acquire_leaves_a_new_record_unbound(bench: Bench) -> None:
    node = node_of(bench)
    lease = await node.store.acquire("s", "N1", 30)
    assert isinstance(lease, SessionLease)
    assert await node.store.load("s") == SessionRecordView("s")
    assert node.calls[:2] == ["try_acquire", "provision"]
    other = node_of(bench, peer=True)
    assert await other.store.acquire("s", "N2", 30) is None
    assert other.calls == ["try_acquire"]
    assert await node.store.settle_binding(lease, "h7") == "h7"
    assert await node.store.settle_binding(lease, "h8") == "h7"
    record = await node.store.load("s")
    assert record is not None
    assert record.handler_ref == "h7"


@pytest.mark.contract("SR-049")
async def test_a_loaded_record_is_for_reading(bench: Bench) -> None:
    assert await bench.stores.records.load("s") is None
    node = node_of(bench)
    await node.claimed()
    await node.store.records().commit("s", b"state", {"a": {"b": [1]}}, turn_id="t1")
    view = await node_of(bench, peer=True).store.load("s")
    assert view == SessionRecordView("s", "h1", b"state", 1, {"a": {"b": [1]}})
    with pytest.raises(FrozenInstanceError):
        view.state = b"other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        view.attrs["a"] = 1  # type: ignore[index]
    view.attrs["a"]["b"].append(2)
    assert (await bench.stores.records.load("s")) == SessionRecordView("s", "h1", b"state", 1, {"a": {"b": [1]}})


@pytest.mark.contract("SR-050")
def test_the_session_store_is_the_only_writer_of_bindings() -> None:
    """Nothing else provisions, and the record that can change is known to its own store only."""
    provisioning, mutable = set(), set()
    for path in sorted((ROOT / "zlinkpy").rglob("*.py")):
        name = str(path.relative_to(ROOT / "zlinkpy"))
        for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute) and found.func.attr == "provision":
                provisioning.add(name)
            if isinstance(found, ast.ImportFrom) and any(alias.name == "_SessionRecord" for alias in found.names):
                mutable.add(name)
            if isinstance(found, ast.Name | ast.Attribute) and getattr(found, "id", "") == "_SessionRecord":
                mutable.add(name)
    assert provisioning == {"sessions/session_store.py"}
    assert mutable == {"sessions/memory_records.py"}
    assert "HSETNX" in Path(ROOT / "zlinkpy/sessions/lua/record_provision.lua").read_text(encoding="utf-8")
    writers = [
        path.name
        for path in (ROOT / "zlinkpy/sessions/lua").glob("*.lua")
        if "'ref'," in path.read_text() and "HSET" in path.read_text()
    ]
    assert writers == ["record_provision.lua"]


@pytest.mark.contract("SR-051")
async def test_without_a_lease_nothing_is_written(bench: Bench) -> None:
    node, other = node_of(bench), node_of(bench, peer=True)
    await other.claimed(node="N2")
    await refused(node.store.records().commit("s", b"x", {}, turn_id="t"))
    await refused(node.store.records().delete("s"))
    with pytest.raises(SessionNotHeldError):
        await node.store.settle_binding(SessionLease("s", "N1", 1, 0, 30), "h1")
    assert node.calls == []
    assert await other.store.load("s") == SessionRecordView("s", "h1")


@pytest.mark.contract("SR-052")
@pytest.mark.parametrize("is_taken", [True, False])
async def test_an_expired_lease_writes_nothing(bench: Bench, is_taken: bool) -> None:
    node, other = node_of(bench), node_of(bench, peer=True)
    await node.claimed(duration=5)
    await bench.pass_time(6)
    if is_taken:
        await other.claimed(node="N2")
    before = await node.store.load("s")
    await refused(node.store.records().commit("s", b"old", {}, turn_id="t"))
    assert await bench.peer.records.load("s") == before
    node.log.clear()
    await refused(node.store.records().commit("s", b"old", {}, turn_id="t"))
    await refused(node.store.records().delete("s"))
    assert node.calls == []


@pytest.mark.contract("SR-052")
@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_record_elsewhere_is_not_written_under_an_expired_lease(
    is_taken: bool, memory_bench: MemoryBench
) -> None:
    """The record store knows nothing of leases, and the next holder has not raised its fence yet."""
    leases = MemoryLeaseStore(MemoryBackend(clock=lambda: memory_bench.now))
    node = Node(leases, MemoryRecordStore(MemoryBackend(clock=lambda: memory_bench.now)))
    await node.claimed(duration=5)
    await memory_bench.pass_time(6)
    if is_taken:
        assert isinstance(await leases.try_acquire("s", "N2", 30), SessionLease)
    await refused(node.store.records().commit("s", b"old", {}, turn_id="t"))
    assert node.calls[-1] == "find_holder"
    assert await node.store.load("s") == SessionRecordView("s", "h1")


@pytest.mark.contract("SR-053")
@pytest.mark.parametrize("step", ["commit", "delete"])
async def test_a_write_that_comes_late_is_refused_by_its_token(bench: Bench, step: str) -> None:
    node, other = node_of(bench), node_of(bench, peer=True)
    await node.claimed(duration=5)

    async def overtake() -> None:
        await bench.pass_time(6)
        await other.claimed(node="N2")
        assert await other.store.records().commit("s", b"N2", {}, turn_id="t2") is Write.OK

    node.records.before[step] = overtake
    write = (
        node.store.records().delete("s")
        if step == "delete"
        else node.store.records().commit("s", b"N1", {}, turn_id="t1")
    )
    await refused(write)
    assert node.calls[-2:] == ["find_holder", step]
    record = await node.store.load("s")
    assert record is not None
    assert (record.state, record.version) == (b"N2", 1)
    assert node.store.held("s") is None


@pytest.mark.contract("SR-053")
async def test_a_lease_that_lapsed_between_check_and_write_is_refused(bench: Bench) -> None:
    """Nobody has taken over yet; where leases lie beside the records, the lease itself says that it is over."""
    node = node_of(bench)
    await node.claimed(duration=5)

    async def lapse() -> None:
        await bench.pass_time(6)

    node.records.before["commit"] = lapse
    await refused(node.store.records().commit("s", b"N1", {}, turn_id="t1"))
    assert await node.store.load("s") == SessionRecordView("s", "h1")


@pytest.mark.contract("SR-053", "SR-431")
async def test_between_acquire_and_provision_of_the_next_holder_the_lease_decides(bench: Bench) -> None:
    node, other = node_of(bench), node_of(bench, peer=True)
    await node.claimed(duration=5)
    lease = node.store.held("s")
    assert lease is not None
    await bench.pass_time(6)
    assert isinstance(await other.leases.try_acquire("s", "N2", 30), SessionLease)
    assert await bench.stores.records.commit("s", b"N1", {}, lease.token, "t1") is Write.FENCED
    assert await bench.stores.records.provision("s", "h9", lease.token) is Write.FENCED
    assert await bench.stores.records.delete("s", lease.token) is Write.FENCED


@pytest.mark.contract("SR-054")
async def test_a_refused_renewal_ends_writing_here(bench: Bench) -> None:
    node = node_of(bench)
    result = await node.claimed(duration=5)
    assert await node.store.renew(result.lease, 30) is True
    await bench.pass_time(31)
    assert await node.store.renew(result.lease, 30) is False
    node.log.clear()
    await refused(node.store.records().commit("s", b"x", {}, turn_id="t"))
    await refused(node.store.records().delete("s"))
    assert node.calls == []


@pytest.mark.contract("SR-054")
async def test_a_renewal_thread_forgets_what_it_lost(redis_bench: RedisBench) -> None:
    stores = redis_bench.stores
    store = NodeSessionStore(stores.leases, stores.records)
    kept = await store.claim("kept", "h1", "N1", 30)
    lost = await store.claim("lost", "h1", "N1", 5)
    assert isinstance(kept, Acquired)
    assert isinstance(lost, Acquired)
    await redis_bench.pass_time(6)
    renewer = store.renewer(timeout=2)
    assert renewer is not None
    answers = await trio.to_thread.run_sync(renewer.renew_all, [kept.lease, lost.lease], 30)
    assert answers == [True, False]
    assert store.held("kept") == kept.lease
    assert store.held("lost") is None
    redis_bench.gate.refuse()
    answers = await trio.to_thread.run_sync(renewer.renew_all, [kept.lease], 30)
    assert [type(answer) for answer in answers] == [SessionLeaseError]
    assert store.held("kept") == kept.lease
    renewer.close()


def test_leases_in_memory_have_no_renewal_threads() -> None:
    store = NodeSessionStore(MemoryLeaseStore(), MemoryRecordStore())
    assert store.renewer(timeout=2) is None


@pytest.mark.contract("SR-055")
async def test_a_release_forgets_before_it_asks(bench: Bench) -> None:
    node = node_of(bench)
    result = await node.claimed()
    bench.go_down()
    await node.store.release(result.lease)
    node.log.clear()
    await refused(node.store.records().commit("s", b"x", {}, turn_id="t"))
    assert node.calls == []


@pytest.mark.contract("SR-055")
async def test_a_write_begun_before_a_release_does_not_pass_it(bench: Bench) -> None:
    node = node_of(bench)
    result = await node.claimed()
    node.leases.before["find_holder"] = lambda: _forgotten(node, result.lease)
    await refused(node.store.records().commit("s", b"x", {}, turn_id="t"))
    assert node.calls[-1] == "find_holder"


async def _forgotten(node: Node, lease: SessionLease) -> None:
    node.store.forget(lease)


@pytest.mark.contract("SR-056")
async def test_a_lease_belongs_to_the_store_that_won_it(bench: Bench) -> None:
    first, second = node_of(bench), node_of(bench)
    await first.claimed()
    await refused(second.store.records().commit("s", b"x", {}, turn_id="t"))
    assert second.calls == []
    assert await first.store.records().commit("s", b"x", {}, turn_id="t") is Write.OK


@pytest.mark.contract("SR-057")
async def test_releasing_an_old_lease_leaves_the_new_one(bench: Bench) -> None:
    node = node_of(bench)
    old = await node.claimed(duration=5)
    await bench.pass_time(6)
    new = await node.claimed()
    await node.store.release(old.lease)
    assert await node.store.renew(old.lease, 30) is False
    assert node.store.held("s") == new.lease
    assert await node.store.records().commit("s", b"x", {}, turn_id="t") is Write.OK


@pytest.mark.contract("SR-058")
async def test_a_deleted_record_stays_deleted(bench: Bench) -> None:
    node = node_of(bench)
    await node.claimed()
    records = node.store.records()
    assert await records.commit("s", b"x", {}, turn_id="t1") is Write.OK
    assert await records.delete("s") is Write.OK
    assert await records.commit("s", b"y", {}, turn_id="t2") is Write.ABSENT
    assert await records.commit("s", b"x", {}, turn_id="t1") is Write.ABSENT
    assert await records.delete("s") is Write.ABSENT
    assert await node.store.load("s") is None


@pytest.mark.contract("SR-059")
@pytest.mark.parametrize("provider", ["memory", "redis"])
async def test_losing_an_election_needs_no_record_store(
    provider: str, request: pytest.FixtureRequest, memory_bench: MemoryBench
) -> None:
    down = MemoryBackend(clock=lambda: memory_bench.now)
    down.plan("before", times=None, applied="no")
    if provider == "memory":
        leases: Any = MemoryLeaseStore(MemoryBackend(clock=lambda: memory_bench.now))
        node = Node(leases, MemoryRecordStore(down))
        assert isinstance(await leases.try_acquire("s", "N2", 30), SessionLease)
        result = await node.store.claim("s", "h1", "N1", 30)
    else:
        bench = RedisBench(request.getfixturevalue("valkey"))
        node = Node(bench.stores.leases, MemoryRecordStore(down))
        assert isinstance(await bench.peer.leases.try_acquire("s", "N2", 30), SessionLease)
        keys = sorted(bench.command("KEYS", "*"))
        result = await node.store.claim("s", "h1", "N1", 30)
        assert sorted(bench.command("KEYS", "*")) == keys
        await bench.aclose()
    assert isinstance(result, HeldElsewhere)
    assert node.calls == ["try_acquire"]


@pytest.mark.contract("SR-430")
async def test_a_commit_repeated_by_its_turn_changes_nothing(bench: Bench) -> None:
    node, other = node_of(bench), node_of(bench, peer=True)
    old = await node.claimed(duration=5)
    await bench.pass_time(6)
    new = await node.claimed()
    records = bench.stores.records
    bench.lose_answer()
    with pytest.raises(SessionRecordError) as caught:
        await records.commit("s", b"one", {"a": 1}, new.lease.token, "t1")
    assert caught.value.applied == "unknown"
    assert await records.commit("s", b"other", {"a": 2}, new.lease.token, "t1") is Write.OK
    assert await other.store.load("s") == SessionRecordView("s", "h1", b"one", 1, {"a": 1})
    assert await records.commit("s", b"old", {}, old.lease.token, "t1") is Write.FENCED
    assert await records.commit("s", b"two", {}, new.lease.token, "t2") is Write.OK
    assert await other.store.load("s") == SessionRecordView("s", "h1", b"two", 2, {})
    assert await records.commit("s", None, {}, new.lease.token, "t3") is Write.OK
    assert await other.store.load("s") == SessionRecordView("s", "h1", None, 3, {})


@pytest.mark.contract("SR-431")
@pytest.mark.parametrize("provider", ["memory", "redis"])
async def test_a_claim_shuts_older_holders_out_of_a_record_elsewhere(
    provider: str, request: pytest.FixtureRequest, memory_bench: MemoryBench
) -> None:
    """Leases and records on different systems; N2 has claimed and not written yet."""
    leases = MemoryLeaseStore(MemoryBackend(clock=lambda: memory_bench.now))
    redis = None
    if provider == "memory":
        records: Any = MemoryRecordStore(MemoryBackend(clock=lambda: memory_bench.now))
    else:
        from zlinkpy.sessions.redis_records import RedisRecordStore

        redis = RedisBench(request.getfixturevalue("valkey"))
        records = RedisRecordStore(redis.stores.backend)  # type: ignore[arg-type]
    old, new = Node(leases, records), Node(leases, records, seed=2)
    first = await old.claimed(duration=5)
    assert await old.store.records().commit("s", b"first", {}, turn_id="t0") is Write.OK
    await memory_bench.pass_time(6)
    second = await new.claimed(node="N2")
    assert await records.commit("s", b"late", {}, first.lease.token, "t1") is Write.FENCED
    assert await records.delete("s", first.lease.token) is Write.FENCED
    assert await records.provision("s", "h2", first.lease.token) is Write.FENCED
    record = await new.store.load("s")
    assert record is not None
    assert record.state == b"first"
    assert await records.commit("s", b"second", {}, second.lease.token, "t2") is Write.OK
    if redis is not None:
        await redis.aclose()


async def test_a_claim_overtaken_before_it_provisioned_is_lost(bench: Bench) -> None:
    node, other = node_of(bench), node_of(bench, peer=True)

    async def overtake() -> None:
        await bench.pass_time(6)
        await other.claimed(node="N2")

    for call in (lambda: node.store.claim("s", "h1", "N1", 5), lambda: node.store.acquire("s", "N1", 5)):
        node.records.before["provision"] = overtake
        result: Any = await call()
        assert result is None or result.holder.holder_id == "N2"
        assert node.store.held("s") is None
        held = other.store.held("s")
        assert held is not None
        await other.store.release(held)


async def test_tokens_behind_the_records_fence_are_an_error_that_says_so() -> None:
    records = MemoryRecordStore()
    await records.provision("s", "h1", 2**52)
    store = NodeSessionStore(MemoryLeaseStore(), records)
    with pytest.raises(SessionRecordError, match="fence is ahead"):
        await store.claim("s", "h1", "N1", 30)
    assert await store.find_holder("s") is None


@pytest.mark.contract("SR-422")
async def test_a_lost_election_answer_is_asked_for_once_more(bench: Bench) -> None:
    node = node_of(bench)
    bench.lose_answer()
    result = await node.claimed()
    assert node.calls == ["try_acquire", "try_acquire", "provision"]
    assert node.log[0] == node.log[1]
    assert await node.store.records().commit("s", b"x", {}, turn_id="t") is Write.OK
    holder = await bench.peer.leases.find_holder("s")
    assert holder is not None
    assert holder.token == result.lease.token


async def test_a_refused_election_is_not_repeated(bench: Bench) -> None:
    node = node_of(bench)
    bench.go_down()
    with pytest.raises(SessionLeaseError):
        await node.store.claim("s", "h1", "N1", 30)
    assert node.calls == ["try_acquire"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", ["try_acquire", "provision", "release"])
async def test_a_cancelled_claim_holds_nothing(step: str, moment: str) -> None:
    """Cancelled at each back-end call; the answer of a call that was applied is not lost to cancellation."""
    leases = MemoryLeaseStore()
    records = MemoryRecordStore(leases=leases)
    if step == "release":  # reached with a conflict
        await records.provision("s", "h9")
    node = Node(leases, records)
    result = None

    async def cancel() -> None:
        scope.cancel()

    getattr(node, "records" if step == "provision" else "leases").hooks(moment)[step] = cancel
    with trio.CancelScope() as scope:
        result = await node.store.claim("s", "h1", "N1", 30)
    if step == "provision" and moment == "after":
        assert isinstance(result, Acquired)
        await node.store.release(result.lease)
    elif step == "release":
        assert result == HandlerConflict("h9", "h1")
    else:
        assert scope.cancelled_caught
    assert node.store.held("s") is None
    assert await leases.find_holder("s") is None


@pytest.mark.contract("SR-011")
def test_a_session_store_serves_one_router() -> None:
    store = NodeSessionStore(MemoryLeaseStore(), MemoryRecordStore())
    store.attach()
    with pytest.raises(ConfigurationError, match="one store per router"):
        store.attach()
