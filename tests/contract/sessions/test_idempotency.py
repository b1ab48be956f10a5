"""The idempotency store of both providers (SR section 6, SR-402, SR-403, SR-405)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.contract.sessions.conftest import Bench, MemoryBench, RedisBench
from zlinkpy.sessions.backends import SessionStores
from zlinkpy.sessions.errors import IdempotencyStoreError
from zlinkpy.sessions.types import (
    Existing,
    IdempotencyEntry,
    IdempotencyStatus,
    Inserted,
    MarkDone,
    TurnResult,
)

IN_FLIGHT, DONE = IdempotencyStatus.IN_FLIGHT, IdempotencyStatus.DONE
RESULT = TurnResult(True, "answer", None, "completed", True, artifacts=(object(),))
KEPT = evolve(RESULT, artifacts=())


async def put(stores: SessionStores, key: str = "k", holder: str = "n1/a/1", ttl: float = 30) -> Inserted | Existing:
    return await stores.idempotency.put_if_absent(key, "s", "hash", holder, ttl)


async def held(stores: SessionStores, key: str = "k", holder: str = "n1/a/1") -> IdempotencyEntry:
    answer = await put(stores, key, holder)
    assert isinstance(answer, Inserted)
    return answer.entry


async def reserved(stores: SessionStores, key: str = "k", ttl: float = 300) -> IdempotencyEntry:
    await held(stores, key)
    assert await stores.idempotency.release_holder(key, "n1/a/1", ttl) is True
    return await found(stores, key)


async def done(stores: SessionStores, key: str = "k") -> IdempotencyEntry:
    await held(stores, key)
    assert await stores.idempotency.mark_done(key, RESULT, "n1/a/1") is MarkDone.APPLIED
    return await found(stores, key)


async def found(stores: SessionStores, key: str = "k") -> IdempotencyEntry:
    entry = await stores.idempotency.find(key)
    assert entry is not None
    return entry


async def race(stores: list[SessionStores], count: int, call: Any) -> list[Any]:
    answers: list[Any] = []

    async def one(number: int) -> None:
        answers.append(await call(stores[number % len(stores)].idempotency, number))

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(one, number)
    return answers


@pytest.mark.contract("SR-094")
async def test_of_fifty_one_inserts(bench: Bench) -> None:
    answers = await race(
        [bench.stores, bench.peer], 50, lambda store, number: store.put_if_absent("k", "s", "hash", f"n/{number}", 30)
    )
    inserted = [answer for answer in answers if isinstance(answer, Inserted)]
    assert len(inserted) == 1
    entry = inserted[0].entry
    assert (entry.key, entry.session_id, entry.input_hash, entry.status) == ("k", "s", "hash", IN_FLIGHT)
    assert (entry.holder_id, entry.epoch, entry.ttl) == (entry.epoch, entry.holder_id, 30)
    assert (entry.result, entry.stale) == (None, False)
    assert entry.created_at == entry.touched_at > 1_600_000_000_000
    others = [answer.entry for answer in answers if isinstance(answer, Existing)]
    assert others == [entry] * 49


@pytest.mark.contract("SR-095")
async def test_only_its_holder_touches_an_entry(bench: Bench) -> None:
    store = bench.stores.idempotency
    entry = await held(bench.stores)
    await bench.pass_time(10)
    before = await found(bench.stores)
    assert await store.touch("k", "n2/a/1") is False
    assert await found(bench.stores) == before
    assert await store.touch("k", "n1/a/1") is True
    after = await found(bench.stores)
    assert after.touched_at >= before.touched_at + 10_000 - 50
    assert evolve(after, touched_at=0) == evolve(before, touched_at=0)
    assert after.epoch == entry.epoch
    assert await store.mark_done("k", RESULT, "n1/a/1") is MarkDone.APPLIED
    assert await store.touch("k", "n1/a/1") is False
    assert await store.touch("absent", "n1/a/1") is False
    await reserved(bench.stores, "waiting")
    assert await store.touch("waiting", "n1/a/1") is False


@pytest.mark.contract("SR-096")
async def test_a_holder_hands_its_key_over(bench: Bench) -> None:
    store = bench.stores.idempotency
    entry = await held(bench.stores)
    assert await store.release_holder("k", "n2/a/1", 300) is False
    assert await found(bench.stores) == entry
    assert await store.release_holder("k", "n1/a/1", 300) is True
    after = await found(bench.stores)
    assert (after.holder_id, after.status, after.ttl) == (None, IN_FLIGHT, 300)
    assert (after.created_at, after.input_hash, after.epoch) == (entry.created_at, "hash", entry.epoch)
    assert await store.release_holder("k", "n1/a/1", 300) is False
    await bench.pass_time(299)
    assert not (await found(bench.stores)).stale
    assert await store.release_holder("absent", "n1/a/1", 300) is False
    await done(bench.stores, "done")
    assert await store.release_holder("done", "n1/a/1", 300) is False


@pytest.mark.contract("SR-097")
async def test_a_reservation_is_taken_over(bench: Bench) -> None:
    entry = await reserved(bench.stores)
    await bench.pass_time(100)
    before = await found(bench.stores)
    assert await bench.peer.idempotency.acquire_holder("k", "N2/x/1", 30) is True
    after = await found(bench.stores)
    assert (after.holder_id, after.ttl, after.status) == ("N2/x/1", 30, IN_FLIGHT)
    assert (after.created_at, after.epoch) == (before.created_at, entry.epoch)
    assert after.touched_at > before.touched_at
    assert not after.stale
    await bench.pass_time(31)
    assert (await found(bench.stores)).stale


@pytest.mark.contract("SR-098")
async def test_nothing_else_is_taken_over(bench: Bench) -> None:
    store = bench.stores.idempotency
    assert await store.acquire_holder("absent", "n2/x/1", 30) is False
    await reserved(bench.stores, "expired", 20)
    await bench.pass_time(21)
    assert await store.acquire_holder("expired", "n2/x/1", 30) is False
    await done(bench.stores, "done")
    await held(bench.stores, "held")
    for key, asker in (("done", "n2/x/1"), ("held", "n2/x/1"), ("held", "n1/a/1")):
        before = await found(bench.stores, key)
        assert await store.acquire_holder(key, asker, 30) is False
        assert await found(bench.stores, key) == before
    assert await store.find("absent") is None
    assert await store.find("expired") is None


@pytest.mark.contract("SR-099")
async def test_of_twenty_one_takes_over(bench: Bench) -> None:
    await reserved(bench.stores)
    answers = await race(
        [bench.stores, bench.peer], 20, lambda store, number: store.acquire_holder("k", f"n{number}/x/1", 30)
    )
    assert sorted(answers) == [False] * 19 + [True]


@pytest.mark.contract("SR-100")
async def test_only_a_reservation_is_discarded(bench: Bench) -> None:
    store = bench.stores.idempotency
    await reserved(bench.stores, "waiting")
    assert await store.discard_reservation("waiting") is True
    assert await store.find("waiting") is None
    assert await store.discard_reservation("waiting") is False
    await held(bench.stores, "held")
    await done(bench.stores, "done")
    for key in ("held", "done"):
        before = await found(bench.stores, key)
        assert await store.discard_reservation(key) is False
        assert await found(bench.stores, key) == before


@pytest.mark.contract("SR-101")
async def test_of_twenty_one_resets(bench: Bench) -> None:
    store = bench.stores.idempotency
    entry = await held(bench.stores)
    assert await store.compare_and_reset("k", "n2/a/1") is False
    assert await found(bench.stores) == entry
    answers = await race([bench.stores, bench.peer], 20, lambda store, number: store.compare_and_reset("k", "n1/a/1"))
    assert sorted(answers) == [False] * 19 + [True]
    assert await store.find("k") is None
    assert isinstance(await put(bench.stores, "k", "n9/a/1"), Inserted)
    assert await store.compare_and_reset("k", "n1/a/1") is False
    before = await done(bench.stores, "done")
    assert await store.compare_and_reset("done", "n1/a/1") is False
    assert await found(bench.stores, "done") == before
    before = await reserved(bench.stores, "waiting")
    assert await store.compare_and_reset("waiting", "n1/a/1") is False
    assert await found(bench.stores, "waiting") == before


async def stale_keys(stores: SessionStores, older_than: float = 30, limit: int = 100) -> list[str]:
    return [entry.key for entry in await stores.idempotency.find_stale_in_flight(older_than, limit)]


@pytest.mark.contract("SR-102")
async def test_only_held_old_entries_in_flight_are_stale(bench: Bench) -> None:
    await held(bench.stores, "held-old")
    await held(bench.stores, "held-old-2")
    await reserved(bench.stores, "waiting-old")
    await done(bench.stores, "done-old")
    await bench.pass_time(31)
    await held(bench.stores, "held-fresh")
    assert await stale_keys(bench.peer) == ["held-old", "held-old-2"]
    assert await stale_keys(bench.stores, limit=1) == ["held-old"]
    (entry, _) = await bench.stores.idempotency.find_stale_in_flight(30, 2)
    assert entry == await found(bench.stores, "held-old")
    assert await bench.stores.idempotency.touch("held-old", "n1/a/1")
    assert await stale_keys(bench.stores) == ["held-old-2"]


@pytest.mark.contract("SR-102")
async def test_reservations_do_not_fill_the_limit(bench: Bench) -> None:
    async def reserve(number: int) -> None:
        await reserved(bench.stores, f"waiting-{number}")

    async with trio.open_nursery() as nursery:
        for number in range(1000):
            nursery.start_soon(reserve, number)
    await held(bench.stores, "held-old")
    await bench.pass_time(31)
    assert await stale_keys(bench.stores, limit=10) == ["held-old"]


@pytest.mark.contract("SR-103")
async def test_a_lost_entry_stays_visible_to_the_sweep(bench: Bench) -> None:
    await held(bench.stores)
    await bench.pass_time(29)
    assert not (await found(bench.stores)).stale
    assert await stale_keys(bench.stores) == []
    await bench.pass_time(2)
    entry = await found(bench.stores)
    assert (entry.stale, entry.holder_id, entry.status) == (True, "n1/a/1", IN_FLIGHT)
    answer = await put(bench.stores, holder="n2/a/1")
    assert isinstance(answer, Existing)
    assert answer.entry == entry
    assert await stale_keys(bench.stores) == ["k"]
    await bench.pass_time(58)
    assert (await found(bench.stores)).stale
    assert await stale_keys(bench.stores) == ["k"]
    await bench.pass_time(5)
    assert await bench.stores.idempotency.find("k") is None
    assert await stale_keys(bench.stores) == []


@pytest.mark.contract("SR-104")
async def test_a_reservation_past_its_time_is_absent(bench: Bench) -> None:
    await reserved(bench.stores, ttl=300)
    await bench.pass_time(301)
    assert await bench.stores.idempotency.find("k") is None
    assert isinstance(await put(bench.stores), Inserted)


@pytest.mark.contract("SR-105")
async def test_a_result_is_kept_for_the_primary_ttl(bench: Bench) -> None:
    entry = await done(bench.stores)
    assert (entry.status, entry.holder_id, entry.result, entry.ttl) == (DONE, None, KEPT, 86_400)
    assert not entry.stale
    await bench.pass_time(86_390)
    assert (await found(bench.peer)).result == KEPT
    assert isinstance(await put(bench.stores), Existing)
    await bench.pass_time(20)
    assert await bench.stores.idempotency.find("k") is None


@pytest.mark.contract("SR-106", "SR-402")
async def test_a_result_without_an_entry_makes_none(bench: Bench) -> None:
    assert await bench.stores.idempotency.mark_done("k", RESULT, "n1/a/1", allow_unheld=True) is MarkDone.ABSENT
    assert await bench.stores.idempotency.find("k") is None


@pytest.mark.contract("SR-107")
async def test_a_touched_entry_is_never_stale(bench: Bench) -> None:
    await held(bench.stores)
    for _ in range(60):
        await bench.pass_time(10)
        assert not (await found(bench.stores)).stale
        assert await stale_keys(bench.peer) == []
        assert await bench.stores.idempotency.touch("k", "n1/a/1")
    assert (await found(bench.stores)).holder_id == "n1/a/1"


@pytest.mark.contract("SR-108")
async def test_an_unreachable_store_never_says_no(bench: Bench) -> None:
    await held(bench.stores)
    bench.go_down()
    store = bench.stores.idempotency
    for call in (
        lambda: put(bench.stores),
        lambda: store.find("k"),
        lambda: store.touch("k", "n"),
        lambda: store.release_holder("k", "n", 1),
        lambda: store.acquire_holder("k", "n", 1),
        lambda: store.discard_reservation("k"),
        lambda: store.compare_and_reset("k", "n"),
        lambda: store.mark_done("k", RESULT, "n"),
        lambda: store.find_stale_in_flight(1, 1),
    ):
        with pytest.raises(IdempotencyStoreError) as caught:
            await call()  # type: ignore[no-untyped-call]
        assert caught.value.applied == "no"


@pytest.mark.contract("SR-402")
async def test_only_its_holder_finishes_an_entry(bench: Bench) -> None:
    store = bench.stores.idempotency
    entry = await held(bench.stores)
    assert await store.mark_done("k", RESULT, "n2/a/1", allow_unheld=True) is MarkDone.REFUSED
    assert await found(bench.stores) == entry
    assert await store.mark_done("k", RESULT, "n1/a/1") is MarkDone.APPLIED
    finished = await found(bench.stores)
    other = TurnResult(False, "another")
    for allow in (False, True):
        assert await store.mark_done("k", other, "n1/a/1", allow_unheld=allow) is MarkDone.REFUSED
    assert await found(bench.stores) == finished


@pytest.mark.contract("SR-403")
async def test_a_holderless_entry_is_finished_only_when_that_is_allowed(bench: Bench) -> None:
    entry = await reserved(bench.stores)
    store = bench.stores.idempotency
    assert await store.mark_done("k", RESULT, "n2/a/1") is MarkDone.REFUSED
    assert await found(bench.stores) == entry
    assert await store.mark_done("k", RESULT, "n2/a/1", allow_unheld=True) is MarkDone.APPLIED
    assert (await found(bench.stores)).result == KEPT


async def test_an_attempt_that_was_reset_cannot_finish_its_successor(bench: Bench) -> None:
    """The store's half of SR-404; that the old result is still announced is the router's."""
    store = bench.stores.idempotency
    await reserved(bench.stores)
    assert await store.acquire_holder("k", "n1/a/2", 30)
    assert await store.compare_and_reset("k", "n1/a/2")
    retry = await held(bench.stores, holder="n2/a/1")
    assert await store.mark_done("k", RESULT, "n1/a/2", allow_unheld=True) is MarkDone.REFUSED
    assert await found(bench.stores) == retry
    assert retry.epoch == "n2/a/1"


@pytest.mark.contract("SR-405")
async def test_of_twenty_writers_the_holder_writes(bench: Bench) -> None:
    await held(bench.stores, holder="n7/x/1")
    answers = await race(
        [bench.stores, bench.peer],
        20,
        lambda store, number: store.mark_done("k", TurnResult(True, f"by {number}"), f"n{number}/x/1"),
    )
    assert answers.count(MarkDone.APPLIED) == 1
    assert (await found(bench.stores)).result == TurnResult(True, "by 7")


async def test_a_reset_whose_answer_was_lost_shows_in_the_entry(bench: Bench) -> None:
    """The store's half of SR-429: what the sweep reads back."""
    await held(bench.stores)
    bench.lose_answer()
    with pytest.raises(IdempotencyStoreError) as caught:
        await bench.stores.idempotency.compare_and_reset("k", "n1/a/1")
    assert caught.value.applied == "unknown"
    assert await bench.stores.idempotency.find("k") is None


async def test_a_reservation_whose_answer_was_lost_names_its_owner(bench: Bench) -> None:
    """The store's half of SR-423: one `find` tells the submitter that the reservation is its own."""
    bench.lose_answer()
    with pytest.raises(IdempotencyStoreError) as caught:
        await put(bench.stores, holder="n1/a/9")
    assert caught.value.applied == "unknown"
    entry = await found(bench.stores)
    assert (entry.holder_id, entry.epoch) == ("n1/a/9", "n1/a/9")


async def test_a_result_whose_answer_was_lost_is_refused_the_second_time_and_kept(bench: Bench) -> None:
    """The store's half of SR-428: writing again neither harms nor is needed."""
    await held(bench.stores)
    bench.lose_answer()
    with pytest.raises(IdempotencyStoreError):
        await bench.stores.idempotency.mark_done("k", RESULT, "n1/a/1")
    assert await bench.stores.idempotency.mark_done("k", TurnResult(False), "n1/a/1") is MarkDone.REFUSED
    assert (await found(bench.stores)).result == KEPT


@pytest.mark.parametrize("key", ["live", "%6Cive", "a:b", "{x}", "%", "é\0\n", "x" * 512, "live:1", "LIVE"])
async def test_a_key_may_be_called_anything(bench: Bench, key: str) -> None:
    await held(bench.stores, "neighbour")
    await bench.pass_time(31)
    await held(bench.stores, key)
    await bench.pass_time(31)
    assert await stale_keys(bench.stores) == ["neighbour", key]
    assert await bench.stores.idempotency.touch(key, "n1/a/1")
    assert await stale_keys(bench.stores) == ["neighbour"]
    assert await bench.stores.idempotency.mark_done(key, RESULT, "n1/a/1") is MarkDone.APPLIED
    assert (await found(bench.peer, key)).key == key


async def test_rows_of_a_stranger_do_not_blind_the_sweep(redis_bench: RedisBench) -> None:
    stores = redis_bench.stores
    await held(stores, "good")
    await redis_bench.pass_time(31)
    old = redis_bench.server_ms() - 3_600_000
    for number, (kind, *fields) in enumerate(
        [
            ("SET", "x"),
            ("RPUSH", "x"),
            ("HSET", "st", "I"),
            ("HSET", "st", "I", "h", "n", "sid", "s", "ih", "x", "ep", "n", "c", "1", "t", "soon", "ttl", "1"),
            ("HSET", "st", "D", "r", "x"),
        ]
    ):
        redis_bench.command(kind, f"t:idem:bad{number}", *fields)
        redis_bench.command("ZADD", "t:idem:live", old, f"bad{number}")
    redis_bench.command("ZADD", "t:idem:live", old, "gone")
    assert await stale_keys(stores, limit=1) == ["good"]
    assert redis_bench.command("ZRANGE", "t:idem:live", 0, -1) == [b"good"]


@pytest.mark.parametrize(
    "fields",
    [
        ("st", "X", "sid", "s", "ih", "h", "ep", "e", "c", "1", "t", "1", "ttl", "1"),
        ("st", "I"),
        ("st", "D", "sid", "s", "ih", "h", "ep", "e", "c", "1", "t", "1", "ttl", "1"),
        ("st", "D", "sid", "s", "ih", "h", "ep", "e", "c", "1", "t", "1", "ttl", "1", "r", b"\xc1"),
        ("st", "D", "sid", "s", "ih", "h", "ep", "e", "c", "1", "t", "1", "ttl", "1", "r", b"\x80"),
        ("st", "I", "sid", b"\xff", "ih", "h", "ep", "e", "c", "1", "t", "1", "ttl", "1"),
    ],
)
async def test_an_entry_that_cannot_be_read_is_an_error(redis_bench: RedisBench, fields: tuple[Any, ...]) -> None:
    redis_bench.command("HSET", "t:idem:k", *fields)
    with pytest.raises(IdempotencyStoreError, match="cannot be read"):
        await redis_bench.stores.idempotency.find("k")
    with pytest.raises(IdempotencyStoreError, match="cannot be read"):
        await put(redis_bench.stores)


async def test_touching_handles_touch_many_at_once(redis_bench: RedisBench) -> None:
    for number in range(20):
        await held(redis_bench.stores, f"k{number}")
    await redis_bench.pass_time(29)
    handle = redis_bench.stores.idempotency.dedicated(timeout=2)  # type: ignore[union-attr]
    pairs = [(f"k{number}", "n1/a/1") for number in range(20)]
    answers = await trio.to_thread.run_sync(handle.touch_all, [*pairs, ("k0", "other"), ("absent", "n")])
    assert answers == [True] * 20 + [False, False]
    await redis_bench.pass_time(29)
    assert await stale_keys(redis_bench.stores) == []
    redis_bench.gate.refuse()
    answers = await trio.to_thread.run_sync(handle.touch_all, pairs[:2])
    assert [type(answer) for answer in answers] == [IdempotencyStoreError] * 2
    handle.close()


async def test_a_stale_entry_may_still_be_touched_by_its_holder(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A holder that was slow and is back: as long as nobody reset its key, it is its own."""
    caplog.set_level(logging.WARNING, "zlinkpy.sessions")
    await held(bench.stores)
    await bench.pass_time(60)
    assert await bench.stores.idempotency.touch("k", "n1/a/1") is True
    assert not (await found(bench.stores)).stale
    assert not caplog.records


async def test_memory_forgets_what_is_over(memory_bench: MemoryBench) -> None:
    stores = memory_bench.stores
    for number in range(500):
        await reserved(stores, f"k{number}", ttl=1)
        await memory_bench.pass_time(1)
    assert len(stores.idempotency._rows._values) < 10  # type: ignore[union-attr]
