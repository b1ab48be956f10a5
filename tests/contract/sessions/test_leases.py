"""The lease store of both providers (SR section 2)."""

from __future__ import annotations

import logging

import pytest
import trio

from tests.contract.sessions.conftest import Bench, RedisBench
from zlinkpy.sessions.backends import SessionStores
from zlinkpy.sessions.errors import SessionLeaseError
from zlinkpy.sessions.types import LeaseHolder, SessionLease


async def taken(stores: SessionStores, holder: str = "A", duration: float = 30, session: str = "s") -> SessionLease:
    lease = await stores.leases.try_acquire(session, holder, duration)
    assert isinstance(lease, SessionLease)
    return lease


async def holder_of(stores: SessionStores, session: str = "s") -> LeaseHolder:
    holder = await stores.leases.find_holder(session)
    assert holder is not None
    return holder


@pytest.mark.contract("SR-029")
async def test_a_free_session_is_leased(stores: SessionStores) -> None:
    lease = await stores.leases.try_acquire("s", "A", 30)
    assert isinstance(lease, SessionLease)
    assert (lease.session_id, lease.holder_id, lease.duration) == ("s", "A", 30)
    assert type(lease.token) is int
    assert lease.token > 0
    assert lease.acquired_at > 1_600_000_000_000


@pytest.mark.contract("SR-030", "SR-031")
@pytest.mark.parametrize("asker", ["B", "A"])
async def test_a_held_session_is_refused_to_everybody(bench: Bench, asker: str) -> None:
    lease = await taken(bench.stores)
    for client in (bench.stores, bench.peer):
        refused = await client.leases.try_acquire("s", asker, 60)
        assert isinstance(refused, LeaseHolder)
        assert (refused.holder_id, refused.token) == ("A", lease.token)
        assert 29 < refused.expires_in <= 30
    holder = await holder_of(bench.stores)
    assert (holder.holder_id, holder.token) == ("A", lease.token)
    assert 29 < holder.expires_in <= 30


@pytest.mark.contract("SR-032")
async def test_of_fifty_one_wins(bench: Bench) -> None:
    results: list[SessionLease | LeaseHolder] = []

    async def ask(number: int) -> None:
        store = (bench.stores, bench.peer)[number % 2].leases
        results.append(await store.try_acquire("s", f"n{number}", 30))

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(ask, number)
    won = [result for result in results if isinstance(result, SessionLease)]
    assert len(results) == 50
    assert len(won) == 1
    assert {result.token for result in results} == {won[0].token}
    assert (await holder_of(bench.stores)).holder_id == won[0].holder_id


@pytest.mark.contract("SR-033")
async def test_tokens_only_rise(bench: Bench) -> None:
    tokens = []
    lease = await taken(bench.stores)
    tokens.append(lease.token)
    await bench.stores.leases.release(lease)
    lease = await taken(bench.stores, duration=5)
    tokens.append(lease.token)
    await bench.pass_time(6)
    lease = await taken(bench.peer)
    tokens.append(lease.token)
    await bench.peer.leases.release(lease)
    for _ in range(20):
        lease = await taken(bench.stores)
        tokens.append(lease.token)
        await bench.stores.leases.release(lease)
    assert tokens == sorted(set(tokens))


@pytest.mark.contract("SR-034")
async def test_a_lost_fence_does_not_lower_tokens(redis_bench: RedisBench) -> None:
    lease = await taken(redis_bench.stores)
    await redis_bench.stores.leases.release(lease)
    assert redis_bench.command("DEL", "t:{s}:fence") == 1
    assert (await taken(redis_bench.stores)).token > lease.token


async def test_a_token_passes_the_record_of_the_session_when_the_clock_was_set_back(redis_bench: RedisBench) -> None:
    ahead = (redis_bench.server_ms() + 3_600_000) * 1000
    await redis_bench.stores.records.provision("s", "h1")
    redis_bench.command("HSET", "t:{s}:rec", "fence", ahead)
    assert (await taken(redis_bench.stores)).token == ahead + 1


@pytest.mark.contract("SR-033")
async def test_a_token_passes_the_last_one_when_the_clock_was_set_back(redis_bench: RedisBench) -> None:
    ahead = (redis_bench.server_ms() + 3_600_000) * 1000
    redis_bench.command("SET", "t:{s}:fence", ahead)
    first = await taken(redis_bench.stores)
    await redis_bench.stores.leases.release(first)
    assert (first.token, (await taken(redis_bench.stores)).token) == (ahead + 1, ahead + 2)


@pytest.mark.contract("SR-035")
async def test_the_holder_is_who_holds_now(bench: Bench) -> None:
    leases = bench.stores.leases
    live = await taken(bench.stores)
    holder = await leases.find_holder("s")
    assert holder is not None
    assert (holder.holder_id, holder.token) == ("A", live.token)
    assert 29 < holder.expires_in <= 30
    await bench.pass_time(31)
    assert await leases.find_holder("s") is None
    released = await taken(bench.stores)
    await leases.release(released)
    assert await leases.find_holder("s") is None
    assert await leases.find_holder("never seen") is None


@pytest.mark.contract("SR-036")
async def test_an_extension_counts_from_now(bench: Bench) -> None:
    lease = await taken(bench.stores)
    await bench.pass_time(29)
    assert (await holder_of(bench.stores)).expires_in <= 1
    assert await bench.stores.leases.extend(lease, 30) is True
    assert 29 < (await holder_of(bench.peer)).expires_in <= 30


@pytest.mark.contract("SR-037", "SR-039")
async def test_a_superseded_lease_is_powerless(bench: Bench) -> None:
    old = await taken(bench.stores, duration=5)
    await bench.pass_time(6)
    new = await taken(bench.peer, "B")
    assert await bench.stores.leases.extend(old, 300) is False
    assert (await holder_of(bench.stores)).expires_in <= 30
    await bench.stores.leases.release(old)
    assert (await holder_of(bench.stores)).token == new.token


async def test_a_lease_of_the_same_holder_is_another_lease(bench: Bench) -> None:
    old = await taken(bench.stores)
    await bench.stores.leases.release(old)
    new = await taken(bench.stores)
    assert await bench.stores.leases.extend(old, 300) is False
    await bench.stores.leases.release(old)
    assert (await holder_of(bench.stores)).token == new.token


@pytest.mark.contract("SR-038")
async def test_a_lapsed_lease_is_not_revived(bench: Bench) -> None:
    lease = await taken(bench.stores, duration=5)
    await bench.pass_time(6)
    assert await bench.stores.leases.extend(lease, 30) is False
    assert await bench.stores.leases.find_holder("s") is None
    await taken(bench.stores, "B")


@pytest.mark.contract("SR-039")
async def test_releasing_twice_is_nothing(bench: Bench) -> None:
    lease = await taken(bench.stores)
    await bench.stores.leases.release(lease)
    await bench.stores.leases.release(lease)
    assert await bench.stores.leases.find_holder("s") is None


@pytest.mark.contract("SR-040")
async def test_an_unreachable_store_is_an_error_and_a_release_is_a_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    lease = await taken(bench.stores)
    bench.go_down()
    leases = bench.stores.leases
    for call in (
        lambda: leases.try_acquire("other", "A", 30),
        lambda: leases.extend(lease, 30),
        lambda: leases.find_holder("s"),
    ):
        with pytest.raises(SessionLeaseError) as caught:
            await call()  # type: ignore[no-untyped-call]
        assert caught.value.applied == "no"
        assert caught.value.status_hint == 503
    caplog.clear()
    caplog.set_level(logging.WARNING, "zlinkpy.sessions")
    await leases.release(lease)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'s'" in caplog.text


@pytest.mark.contract("SR-041")
async def test_only_the_servers_clock_counts(redis_bench: RedisBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients' clocks are an hour apart: nothing they send depends on them."""
    import time

    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    lease = await taken(redis_bench.stores, "A", 1)
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert abs(lease.acquired_at - redis_bench.server_ms()) < 1000
    while True:
        before = redis_bench.server_ms()
        got = await redis_bench.peer.leases.try_acquire("s", "B", 30)
        if isinstance(got, SessionLease):
            break
        assert before <= lease.acquired_at + 1000
    assert got.acquired_at - lease.acquired_at >= 1000


@pytest.mark.contract("SR-422")
async def test_the_same_attempt_gets_its_lease_again_and_another_does_not(bench: Bench) -> None:
    bench.lose_answer()
    with pytest.raises(SessionLeaseError) as caught:
        await bench.stores.leases.try_acquire("s", "A", 30, "attempt-1")
    assert caught.value.applied == "unknown"
    other = await bench.stores.leases.try_acquire("s", "A", 30, "attempt-2")
    assert isinstance(other, LeaseHolder)
    none = await bench.stores.leases.try_acquire("s", "A", 30)
    assert isinstance(none, LeaseHolder)
    stranger = await bench.stores.leases.try_acquire("s", "B", 30, "attempt-1")
    assert isinstance(stranger, LeaseHolder)
    await bench.pass_time(20)
    lease = await bench.stores.leases.try_acquire("s", "A", 30, "attempt-1")
    assert isinstance(lease, SessionLease)
    assert lease.token == other.token
    # Its holder counts from the answer it got, so the store must, too.
    assert 29 < (await holder_of(bench.stores)).expires_in <= 30
    assert await bench.stores.leases.extend(lease, 30) is True


async def test_an_attempt_is_over_with_its_lease(bench: Bench) -> None:
    first = await bench.stores.leases.try_acquire("s", "A", 5, "attempt-1")
    await bench.pass_time(6)
    second = await bench.stores.leases.try_acquire("s", "A", 5, "attempt-1")
    assert isinstance(first, SessionLease)
    assert isinstance(second, SessionLease)
    assert second.token > first.token


async def test_ids_may_hold_anything(bench: Bench) -> None:
    names = ["a", "a}", "{a}", "a%7D", "a:lease", "a}:lease{", "%", "é\0\n", "x" * 512]
    for number, name in enumerate(names):
        lease = await taken(bench.stores, f"holder {number}", session=name)
        assert (await holder_of(bench.peer, name)).holder_id == f"holder {number}"
        assert lease.session_id == name


@pytest.mark.parametrize("bad", ["", "x" * 513, "\ud800", None, 3, b"s"])
async def test_a_bad_id_is_refused_before_any_call(bench: Bench, bad: object) -> None:
    bench.go_down()
    for call in (
        lambda: bench.stores.leases.try_acquire(bad, "A", 30),  # type: ignore[arg-type]
        lambda: bench.stores.leases.find_holder(bad),  # type: ignore[arg-type]
        lambda: bench.stores.records.load(bad),  # type: ignore[arg-type]
        lambda: bench.stores.inbox.is_empty(bad),  # type: ignore[arg-type]
        lambda: bench.stores.idempotency.find(bad),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=r"bytes of UTF-8|as UTF-8|is a str"):
            await call()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), True, "30", 1e12])
async def test_a_bad_duration_is_refused_before_any_call(bench: Bench, bad: float) -> None:
    bench.go_down()
    with pytest.raises(ValueError, match="seconds"):
        await bench.stores.leases.try_acquire("s", "A", bad)


@pytest.mark.parametrize(
    "spoil",
    [
        ("SET", "t:{s}:lease", "x"),
        ("RPUSH", "t:{s}:fence", "x"),
        ("SET", "t:{s}:fence", "9007199254740993"),
        ("SET", "t:{s}:fence", "inf"),
        ("SET", "t:{s}:rec", "x"),
    ],
)
async def test_a_row_that_cannot_be_read_is_an_error_and_changes_nothing(
    redis_bench: RedisBench, spoil: tuple[str, ...]
) -> None:
    redis_bench.command(*spoil)
    before = {key: redis_bench.command("DUMP", key) for key in redis_bench.command("KEYS", "*")}
    with pytest.raises(SessionLeaseError, match="cannot be read") as caught:
        await redis_bench.stores.leases.try_acquire("s", "A", 30)
    assert caught.value.applied == "no"
    assert {key: redis_bench.command("DUMP", key) for key in redis_bench.command("KEYS", "*")} == before


async def test_a_lease_without_an_end_is_nobodys(redis_bench: RedisBench) -> None:
    redis_bench.command("HSET", "t:{s}:lease", "h", "ghost", "t", "5")
    assert await redis_bench.stores.leases.find_holder("s") is None
    assert await redis_bench.stores.leases.extend(SessionLease("s", "ghost", 5, 0, 30), 30) is False
    await taken(redis_bench.stores)


async def test_renewal_handles_extend_many_at_once(redis_bench: RedisBench) -> None:
    """What renewal threads use: one round trip, an answer for each lease, also after the server lost its scripts."""
    leases = [await taken(redis_bench.stores, session=f"s{number}") for number in range(300)]
    stranger = SessionLease("s7", "A", 1, 0, 30)
    handle = redis_bench.stores.leases.dedicated(timeout=2)  # type: ignore[union-attr]
    redis_bench.command("SCRIPT", "FLUSH")
    before = len(redis_bench.gate.commands)
    pairs = [(lease, 60.0) for lease in (*leases, stranger)]
    answers = await trio.to_thread.run_sync(handle.extend_all, pairs)
    assert answers == [True] * 300 + [False]
    assert all(holder.expires_in > 59 for holder in [await holder_of(redis_bench.peer, "s0")])
    # Refused once each for want of the script, loaded once, sent again.
    assert sum(command[0] == b"SCRIPT" for command in redis_bench.gate.commands[before:]) == 1
    redis_bench.gate.swallow(cut=True)
    answers = await trio.to_thread.run_sync(handle.extend_all, pairs[:3])
    assert {type(answer) for answer in answers} == {SessionLeaseError}
    assert [answer.applied for answer in answers] == ["unknown"] * 3
    assert await trio.to_thread.run_sync(handle.extend_all, pairs[:2]) == [True, True]
    redis_bench.gate.refuse()
    answers = await trio.to_thread.run_sync(handle.extend_all, pairs[:2])
    assert [answer.applied for answer in answers] == ["no", "no"]
    handle.close()
    answers = await trio.to_thread.run_sync(handle.extend_all, pairs[:1])
    assert "closed" in str(answers[0])
