"""The inbox of both providers, and its envelope (SR section 4)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import trio

from tests.contract.sessions.conftest import Bench, MemoryBench, RedisBench
from zlinkpy.sessions import memory_inbox
from zlinkpy.sessions.backends import SessionStores
from zlinkpy.sessions.errors import SessionInboxError
from zlinkpy.sessions.payloads import encode_envelope
from zlinkpy.sessions.types import (
    COLLECT_LIMIT,
    InboundMessage,
    Priority,
)

NOW, NEXT, LATER = Priority.NOW, Priority.NEXT, Priority.LATER


def message(text: str = "hi", priority: Priority = NEXT, session: str = "s", **more: Any) -> InboundMessage:
    return InboundMessage(session, "h1", text, priority, **more)


async def texts(stores: SessionStores, highest: Priority = LATER, session: str = "s") -> list[str]:
    batch = await stores.inbox.collect(session, highest)
    assert not batch.unreadable
    return [found.input.text for found in batch.messages]


@pytest.mark.contract("SR-060")
async def test_the_inbox_names_its_messages(stores: SessionStores) -> None:
    ids = [await stores.inbox.deliver(message(f"m{number}", id="mine")) for number in range(20)]
    assert len(set(ids)) == 20
    assert "mine" not in ids
    batch = await stores.inbox.collect("s", LATER)
    assert [found.id for found in batch.messages] == ids


@pytest.mark.contract("SR-060")
async def test_an_id_is_not_given_out_again_after_the_inbox_was_emptied(stores: SessionStores) -> None:
    """Many times within one millisecond: an emptied inbox must remember where it was."""
    ids = []
    for number in range(200):
        ids.append(await stores.inbox.deliver(message(f"m{number}")))
        match number % 3:
            case 0:
                await stores.inbox.collect("s", LATER)
            case 1:
                await stores.inbox.purge("s")
            case _:
                assert await stores.inbox.withdraw("s", ids[-1])
    assert len(set(ids)) == 200


async def test_an_emptied_inbox_is_forgotten_and_a_filled_one_is_not(redis_bench: RedisBench) -> None:
    inbox = redis_bench.stores.inbox
    await inbox.deliver(message())
    assert redis_bench.command("PTTL", "t:{s}:in:1") == -1
    await inbox.collect("s", LATER)
    assert 0 < redis_bench.command("PTTL", "t:{s}:in:1") <= 60_000
    await inbox.deliver(message())
    assert redis_bench.command("PTTL", "t:{s}:in:1") == -1


@pytest.mark.contract("SR-061")
async def test_priority_first_then_order_of_arrival(stores: SessionStores) -> None:
    for number, priority in enumerate([LATER, NOW, NEXT, NOW, LATER, NEXT, NEXT]):
        await stores.inbox.deliver(message(f"{priority.name}{number}", priority))
    batch = await stores.inbox.collect("s", LATER)
    found = [(entry.input.text, entry.priority) for entry in batch.messages]
    assert [text for text, _ in found] == ["NOW1", "NOW3", "NEXT2", "NEXT5", "NEXT6", "LATER0", "LATER4"]
    assert all(text.startswith(priority.name) for text, priority in found)
    assert await stores.inbox.is_empty("s")
    assert (await stores.inbox.collect("s", LATER)).is_empty


@pytest.mark.contract("SR-062")
async def test_a_collect_stops_at_its_priority(stores: SessionStores) -> None:
    for priority in (LATER, NEXT, NOW):
        await stores.inbox.deliver(message(priority.name, priority))
    assert await texts(stores, NOW) == ["NOW"]
    assert await texts(stores, NOW) == []
    assert await texts(stores, NEXT) == ["NEXT"]
    assert not await stores.inbox.is_empty("s")
    assert await texts(stores) == ["LATER"]


@pytest.mark.contract("SR-063")
async def test_every_message_is_collected_once(bench: Bench) -> None:
    sent = [f"m{number}" for number in range(1000)]
    got: list[str] = []

    async def deliver(part: list[str]) -> None:
        for text in part:
            await bench.stores.inbox.deliver(message(text, Priority(len(text) % 3)))

    async def collect(stores: SessionStores) -> None:
        while len(got) < 1000:
            got.extend(await texts(stores))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(collect, (bench.stores, bench.peer)[number % 2])
        for number in range(4):
            nursery.start_soon(deliver, sent[number::4])
    assert sorted(got) == sorted(sent)


@pytest.mark.contract("SR-064")
async def test_a_message_is_in_the_batch_or_in_the_inbox(bench: Bench) -> None:
    got: list[str] = []

    async def collect() -> None:
        got.extend(await texts(bench.peer))

    for number in range(50):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.stores.inbox.deliver, message(f"m{number}", NOW))
            nursery.start_soon(collect)
        got.extend(await texts(bench.peer))
        assert got == [f"m{at}" for at in range(number + 1)]


@pytest.mark.contract("SR-065")
async def test_equal_messages_are_all_kept(stores: SessionStores) -> None:
    await stores.inbox.deliver(message("same", idempotency_key="k", turn_id="t"))
    await stores.inbox.deliver(message("same", idempotency_key="k", turn_id="t"))
    assert await texts(stores) == ["same", "same"]


@pytest.mark.contract("SR-069")
async def test_looking_removes_nothing_and_purging_everything(stores: SessionStores) -> None:
    inbox = stores.inbox
    assert await inbox.is_empty("s")
    for number, priority in enumerate([NEXT, NOW, LATER, NOW]):
        await inbox.deliver(message("x", priority, idempotency_key=None if number == 1 else f"k{number % 2}"))
    await inbox.deliver(message("other", session="s2"))
    assert not await inbox.is_empty("s")
    assert not await inbox.is_empty("s")
    assert sorted(await inbox.purge("s")) == ["k0", "k1"]
    assert await inbox.is_empty("s")
    assert await inbox.purge("s") == []
    assert await texts(stores) == []
    assert await texts(stores, session="s2") == ["other"]


@pytest.mark.contract("SR-076")
async def test_an_unreachable_inbox_is_an_error(bench: Bench) -> None:
    bench.go_down()
    inbox = bench.stores.inbox
    for call in (
        lambda: inbox.deliver(message()),
        lambda: inbox.collect("s", LATER),
        lambda: inbox.is_empty("s"),
        lambda: inbox.purge("s"),
        lambda: inbox.withdraw("s", "1:1-0"),
        lambda: inbox.scan_pending(1, 10),
    ):
        with pytest.raises(SessionInboxError) as caught:
            await call()  # type: ignore[no-untyped-call]
        assert caught.value.applied == "no"


@pytest.mark.contract("SR-077")
async def test_messages_outlive_the_process_that_sent_them(redis_bench: RedisBench) -> None:
    program = """
import sys, trio
from zlinkpy.sessions.backends import open_session_stores
from zlinkpy.sessions.types import InboundMessage
async def main():
    stores = open_session_stores(sys.argv[1], prefix="t")
    await stores.inbox.deliver(InboundMessage("s", "h1", "from the other side"))
    await stores.aclose()
trio.run(main)
"""
    await trio.run_process([sys.executable, "-c", program, redis_bench.server.url], stderr=subprocess.DEVNULL)
    assert await texts(redis_bench.stores) == ["from the other side"]


@pytest.mark.contract("SR-078")
async def test_a_batch_has_a_limit_and_the_rest_stays_in_order(bench: Bench) -> None:
    sent = [f"m{number}" for number in range(1500)]

    async def fill(tier: Priority, part: list[str]) -> None:
        for text in part:
            await bench.stores.inbox.deliver(message(text, tier))

    async with trio.open_nursery() as nursery:
        for tier, part in ((NOW, sent[:300]), (NEXT, sent[300:1100]), (LATER, sent[1100:])):
            nursery.start_soon(fill, tier, part)
    assert COLLECT_LIMIT == 1024
    first = await texts(bench.stores)
    assert first == sent[:1024]
    assert not await bench.stores.inbox.is_empty("s")
    assert await texts(bench.stores) == sent[1024:]
    assert await bench.stores.inbox.is_empty("s")


@pytest.mark.contract("SR-078")
async def test_a_batch_ends_where_it_gets_too_large(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from zlinkpy.sessions import redis_inbox

    for module in (memory_inbox, redis_inbox):
        monkeypatch.setattr(module, "COLLECT_BYTES", 25_000)
    for number in range(5):
        await bench.stores.inbox.deliver(message(f"{number}" * 10_000))
    assert [text[0] for text in await texts(bench.stores)] == ["0", "1", "2"]
    assert [text[0] for text in await texts(bench.stores)] == ["3", "4"]


async def test_a_message_is_withdrawn_or_collected(bench: Bench) -> None:
    inbox = bench.stores.inbox
    ids = [await inbox.deliver(message(f"m{number}", Priority(number % 3))) for number in range(6)]
    assert await bench.peer.inbox.withdraw("s", ids[4]) is True
    assert await inbox.withdraw("s", ids[4]) is False
    assert await texts(bench.stores) == ["m0", "m3", "m1", "m2", "m5"]
    assert await inbox.withdraw("s", ids[0]) is False
    assert await inbox.is_empty("s")
    for strange in ("idem-k", "3:1-0", "1:x-0", "1:1", ":", "1:" + "9" * 40 + "-0", "1:1-\u0663"):
        assert await inbox.withdraw("s", strange) is False


async def withdraw_all(stores: SessionStores, ids: list[str], won: list[str]) -> None:
    won.extend([inbox_id for inbox_id in ids if await stores.inbox.withdraw("s", inbox_id)])


async def test_withdraw_and_collect_share_the_messages(bench: Bench) -> None:
    for _ in range(10):
        ids = [await bench.stores.inbox.deliver(message(f"m{number}")) for number in range(6)]
        won: list[str] = []
        got: list[str] = []

        async def collect(got: list[str] = got) -> None:
            got.extend(found.id for found in (await bench.peer.inbox.collect("s", LATER)).messages)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(withdraw_all, bench.stores, ids, won)
            nursery.start_soon(collect)
        assert sorted(won + got) == sorted(ids)


@pytest.mark.contract("SR-406")
async def test_sessions_with_old_messages_are_listed_oldest_first(bench: Bench) -> None:
    inbox = bench.stores.inbox
    for name in ("old3", "old1", "old2"):
        await inbox.deliver(message(session=name))
        await bench.pass_time(1)
    await bench.pass_time(60)
    for number in range(200 if isinstance(bench, RedisBench) else 997):
        await inbox.deliver(message(session=f"fresh{number}"))
    await inbox.deliver(message(session="old2"))
    before = len(bench.gate.commands) if isinstance(bench, RedisBench) else 0
    assert await inbox.scan_pending(45, 1000) == (["old3", "old1", "old2"], None)
    if isinstance(bench, RedisBench):
        assert [command[0] for command in bench.gate.commands[before:]].count(b"EVALSHA") == 1
        assert "cmdstat_scan" not in bench.command("INFO", "commandstats")
    await inbox.collect("old1", LATER)
    assert await inbox.scan_pending(45, 1000) == (["old3", "old2"], None)
    await inbox.purge("old3")
    assert await inbox.scan_pending(45, 1000) == (["old2"], None)
    assert await inbox.scan_pending(3600, 1000) == ([], None)


@pytest.mark.contract("SR-406")
async def test_a_listing_goes_on_where_it_stopped(bench: Bench) -> None:
    names = [f"s{number:03}" for number in range(57)]
    for name in names:
        await bench.stores.inbox.deliver(message(session=name))
    if isinstance(bench, RedisBench):  # many of one millisecond, named to tempt a text comparison
        at = bench.server_ms()
        for name in names:
            bench.command("ZADD", "t:in:idx", at, name)
    await bench.pass_time(60)
    for size in (1, 10, 57, 100):
        found: list[str] = []
        cursor = None
        while True:
            page, cursor = await bench.peer.inbox.scan_pending(45, size, cursor)
            assert len(page) <= size
            found += page
            if cursor is None:
                break
        assert found == names
    with pytest.raises(ValueError, match="cursor"):
        await bench.stores.inbox.scan_pending(45, 10, "nonsense")


async def test_a_stranger_in_the_index_stops_nothing(redis_bench: RedisBench) -> None:
    at = redis_bench.server_ms() - 60_000
    for number, member in enumerate((b"s1", b"\xff\xfe", b"s2")):
        redis_bench.command("ZADD", "t:in:idx", at + number + 0.5, member)
    found, cursor = await redis_bench.stores.inbox.scan_pending(45, 2)
    assert found == ["s1"]
    assert await redis_bench.stores.inbox.scan_pending(45, 2, cursor) == (["s2"], None)
    # A session without messages leaves the index with its next collect.
    assert (await redis_bench.stores.inbox.collect("s1", LATER)).is_empty
    assert (await redis_bench.stores.inbox.scan_pending(45, 10))[0] == ["s2"]


async def test_the_index_follows_the_oldest_message(bench: Bench) -> None:
    inbox = bench.stores.inbox
    first = await inbox.deliver(message("old", LATER))
    await bench.pass_time(60)
    await inbox.deliver(message("new", NOW))
    assert (await inbox.scan_pending(45, 10))[0] == ["s"]
    if isinstance(bench, MemoryBench):
        # Ageing rows cannot move the ids inside a stream; the Redis half is the index test with real ids below.
        await inbox.collect("s", NEXT)
        assert (await inbox.scan_pending(45, 10))[0] == ["s"]
    assert await inbox.withdraw("s", first)
    assert (await inbox.scan_pending(45, 10))[0] == []


async def test_the_index_holds_the_arrival_of_the_oldest(redis_bench: RedisBench) -> None:
    inbox = redis_bench.stores.inbox
    redis_bench.command("XADD", "t:{s}:in:2", "1000-0", "p", encode_envelope(message("a", LATER)))
    redis_bench.command("XADD", "t:{s}:in:1", "2000-0", "p", encode_envelope(message("b", NEXT)))
    await inbox.deliver(message("c", NOW))
    assert await texts(redis_bench.stores, NOW) == ["c"]
    assert redis_bench.command("ZSCORE", "t:in:idx", "s") in (b"1000", 1000.0)
    assert await inbox.withdraw("s", "2:1000-0")
    assert redis_bench.command("ZSCORE", "t:in:idx", "s") in (b"2000", 2000.0)
    await inbox.deliver(message("d", NOW))
    assert redis_bench.command("ZSCORE", "t:in:idx", "s") in (b"2000", 2000.0)
    await inbox.collect("s", LATER)
    assert redis_bench.command("ZSCORE", "t:in:idx", "s") is None


@pytest.mark.contract("SR-424")
async def test_a_delivery_repeated_before_and_after_a_collect_is_one(bench: Bench) -> None:
    inbox = bench.stores.inbox
    bench.lose_answer()
    with pytest.raises(SessionInboxError) as caught:
        await inbox.deliver(message("x"), "d1")
    assert caught.value.applied == "unknown"
    first = await inbox.deliver(message("x"), "d1")
    assert await bench.peer.inbox.deliver(message("x"), "d1") == first
    assert await inbox.deliver(message("x"), "d2") != first
    batch = await inbox.collect("s", LATER)
    assert len(batch.messages) == 2
    assert batch.messages[0].id == first
    assert await inbox.deliver(message("x"), "d1") == first
    assert await inbox.is_empty("s")
    assert await inbox.deliver(message("x", session="s2"), "d1")
    assert await texts(bench.stores, session="s2") == ["x"]
    await bench.pass_time(599)
    assert await inbox.deliver(message("x"), "d1") == first
    await bench.pass_time(2)
    assert await inbox.deliver(message("x"), "d1") != first


@pytest.mark.contract("SR-426")
async def test_a_batch_is_repeated_for_its_own_id_only(bench: Bench) -> None:
    inbox = bench.stores.inbox
    for number in range(3):
        await inbox.deliver(message(f"m{number}", Priority(number)))
    bench.insert_raw("s", NEXT, b"\xc1")
    bench.lose_answer()
    with pytest.raises(SessionInboxError) as caught:
        await inbox.collect("s", NEXT, "b1")
    assert caught.value.applied == "unknown"
    batch = await inbox.collect("s", NEXT, "b1")
    assert [found.input.text for found in batch.messages] == ["m0", "m1"]
    assert len(batch.unreadable) == 1
    assert await bench.peer.inbox.collect("s", LATER, "b1") == batch
    rest = await inbox.collect("s", LATER, "b2")
    assert [found.input.text for found in rest.messages] == ["m2"]
    assert await inbox.collect("s", NEXT, "b1") == batch
    await bench.pass_time(301)
    assert (await inbox.collect("s", NEXT, "b1")).is_empty


async def test_an_empty_batch_is_not_remembered(bench: Bench) -> None:
    """A repeated collect that found nothing may find what came since: nothing was promised to anybody."""
    inbox = bench.stores.inbox
    assert (await inbox.collect("s", LATER, "b1")).is_empty
    await inbox.deliver(message("x"))
    assert [found.input.text for found in (await inbox.collect("s", LATER, "b1")).messages] == ["x"]


@pytest.mark.parametrize(
    "spoil",
    [
        ("SET", "t:{s}:in:0", "x"),
        ("SET", "t:{s}:in:1", "x"),
        ("SET", "t:{s}:in:2", "x"),
        ("SET", "t:in:idx", "x"),
        ("RPUSH", "t:{s}:d:d1", "x"),
        ("RPUSH", "t:{s}:cb:b1", "x"),
    ],
)
async def test_a_key_of_a_wrong_type_stops_a_step_before_its_first_change(
    redis_bench: RedisBench, spoil: tuple[str, ...]
) -> None:
    inbox = redis_bench.stores.inbox
    for priority in Priority:
        await inbox.deliver(message("m", priority, session="other"))
        if not spoil[1].endswith(f"in:{int(priority)}"):
            redis_bench.insert_raw("s", priority, encode_envelope(message("m", priority)))
    redis_bench.command("DEL", spoil[1])
    redis_bench.command(*spoil)
    before = image(redis_bench)
    calls = [
        lambda: inbox.collect("s", LATER, "b1"),
        lambda: inbox.purge("s"),
        lambda: inbox.deliver(message("n", NEXT), "d1"),
    ]
    failed = 0
    for call in calls:
        state = image(redis_bench)
        try:
            await call()  # type: ignore[no-untyped-call]
        except SessionInboxError as problem:
            error = problem
        else:
            continue
        assert error.applied == "no"
        assert image(redis_bench) == state
        failed += 1
    assert failed >= 1
    if failed == len(calls):
        assert image(redis_bench) == before


def image(bench: RedisBench) -> dict[Any, Any]:
    return {key: bench.command("DUMP", key) for key in bench.command("KEYS", "*")}


async def test_session_ids_do_not_run_into_each_other(bench: Bench) -> None:
    names = ["a", "a}:in:1", "{a}", "a%7D", "%7Ba%7D", "é\0"]
    for number, name in enumerate(names):
        await bench.stores.inbox.deliver(message(f"m{number}", session=name), "d1")
    await bench.pass_time(60)
    found, _ = await bench.stores.inbox.scan_pending(45, 100)
    assert set(found) == set(names)
    for number, name in enumerate(names):
        assert await texts(bench.stores, session=name) == [f"m{number}"]
