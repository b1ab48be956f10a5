"""What only a server can show: atomicity, scripts, history, clean-up, round trips (LO section 3), bytes (section 4)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgpack
import pytest
import trio

from tests.contract.location_store.conftest import PREFIX, RedisBench, numbered
from tests.contract.location_store.test_interface import found, put, scan_all
from tests.gate import Gate, is_script_call
from tests.location_server import TestServer
from zlinkpy.location.redis_rows import Layout, Row, pack_member, unpack_member
from zlinkpy.location.redis_scripts import WRITE
from zlinkpy.location.redis_store import CALL_THREADS, RedisStore
from zlinkpy.location.store import (
    Applied,
    Conflict,
    Delete,
    Found,
    IfMissing,
    IfValue,
    IfVersion,
    Missing,
    Page,
    Put,
    StoreCorruption,
    StoreFailure,
)

NUL = b"\x00"
DIGESTS = {
    b"mesh-node\x00main\x0001020304": "aac806d675ecd83db362198ca6460d35232ef282da1058bf60dc4bf30999fd56",
    b"owner-lease\x00owner-a": "2103785f1d2cf83bf4dcf0cca11bd6bdf72ae24838410fd9fbc72d1767a6545e",
    b"client-server\x00chat-channel\x0001020304": "848378eee73ea88c7fd035ab6891bdfdc2438d59c0c940c4ce5a17266587bc39",
    b"fanout-publisher\x00chat-channel\x0001020304": "07279af82edf18ad56bd98fa926d25c1b3dde9f32d179906d1dd520d5a7030e5",
    b"authority\x00actor\x00user:42": "644fc59a0a9bebe3ccd4de43ad6c17d06a3b5df1b5585471f014d6a6091ec750",
    b"authority\x00spot\x00room:1": "85883711be9358294d4b878df17330df09f34e5706b926a4b56b6ba5db23c51a",
    b"creation-terminal\x0001020304\x007\x00000000000000002a0000000000000001": (
        "8cf62444954aeae82a91bb2939e437a39acafa8ee2e66b5a9fe833d048c8fa91"
    ),
}
LEASE_JSON = b'{"recordVersion":1,"ownerId":"owner-a","leaseGeneration":"5"}'
LEASE_MEMBER = (
    bytes.fromhex("0195b36f776e65722d6c65617365006f776e65722d61d93d")
    + LEASE_JSON
    + bytes.fromhex("a23434cf0000018bcfe56800c2")
)
TOMBSTONE_MEMBER = bytes.fromhex("0195b36f776e65722d6c65617365006f776e65722d61a0a2343300c3")


class Monitored:
    """What the server says it executed, by MONITOR: (source, command); a script's own calls have the source lua."""

    def __init__(self, server: TestServer) -> None:
        self._client = server.client()
        self._client.ping()  # the marker's connection exists before the observation, so it adds no handshake
        self._monitor = self._client.monitor().__enter__()

    def until_now(self) -> list[tuple[str, str]]:
        self._client.echo("end-of-observation")
        seen: list[tuple[str, str]] = []
        while True:
            entry = self._monitor.next_command()
            if entry["command"] == "ECHO end-of-observation":
                return seen
            seen.append((entry["client_type"], entry["command"]))

    def close(self) -> None:
        self._monitor.__exit__(None, None, None)
        self._client.close()


@pytest.fixture
def monitored(valkey: TestServer) -> Iterator[Monitored]:
    monitored = Monitored(valkey)
    yield monitored
    monitored.close()


@pytest.mark.contract("LO-050")
async def test_one_write_is_one_script_call(redis_bench: RedisBench, monitored: Monitored) -> None:
    version = await put(redis_bench.store, b"b")
    monitored.until_now()
    await redis_bench.store.write(
        [IfMissing(b"a"), IfVersion(b"b", version)], [Put(b"a", b"1", 60_000), Put(b"c", b"2"), Delete(b"b")]
    )
    seen = monitored.until_now()
    own = [command for source, command in seen if source != "lua"]
    assert len(own) == 1
    assert own[0].startswith("EVALSHA ")
    assert not [command for _, command in seen if command.split()[0].upper() in ("MULTI", "EXEC", "WATCH")]


@pytest.mark.contract("LO-052")
@pytest.mark.parametrize(
    "member",
    [
        b"\x02" + LEASE_MEMBER[1:],
        b"",
        b"\x01",
        b"\x01\xc1",
        LEASE_MEMBER[:-1],
        LEASE_MEMBER + b"\x00",
        b"\x01" + msgpack.packb(["bad", "v", "1", 0]),
        b"\x01" + msgpack.packb(["bad", "v", "1", "0", False]),
        b"\x01" + msgpack.packb(["other key", "v", "1", 0, False]),
    ],
)
async def test_a_foreign_member_fails_the_write_before_anything_changes(redis_bench: RedisBench, member: bytes) -> None:
    await put(redis_bench.store, b"good")
    redis_bench.server.command("ZADD", redis_bench.layout.record(b"bad"), 7, member)
    before = redis_bench.image()
    for conditions, mutations in (
        ([IfMissing(b"bad")], [Put(b"good", b"new")]),
        ([], [Put(b"good", b"new"), Put(b"bad", b"new")]),
        ([IfMissing(b"n")], [Delete(b"bad"), Put(b"n", b"")]),
    ):
        with pytest.raises(StoreCorruption):
            await redis_bench.store.write(conditions, mutations)
        assert redis_bench.image() == before


@pytest.mark.contract("LO-052")
async def test_auxiliary_keys_of_another_type_fail_before_anything_changes(redis_bench: RedisBench) -> None:
    layout = redis_bench.layout
    for key in layout.shared:
        redis_bench.flush()
        await redis_bench.store.write([], [Put(b"a", b"old", 60_000)])
        redis_bench.server.command("DEL", key)
        redis_bench.server.command("RPUSH", key, "foreign")
        before = redis_bench.image()
        with pytest.raises(StoreCorruption):
            await redis_bench.store.write([], [Put(b"a", b"new", 60_000), Put(b"b", b"")])
        assert redis_bench.image() == before
    redis_bench.flush()
    redis_bench.server.command("SET", layout.sequence, "many")
    with pytest.raises(StoreCorruption):
        await put(redis_bench.store, b"a")


@pytest.mark.contract("LO-053")
async def test_a_flushed_script_is_sent_again_once(redis_bench: RedisBench, gate: Gate) -> None:
    store = redis_bench.open(gate.url)
    await put(store, b"a", b"1")
    gate.commands.clear()
    redis_bench.server.command("SCRIPT", "FLUSH", "SYNC")
    answer = await store.write([IfValue(b"a", b"1")], [Put(b"a", b"2")])
    assert isinstance(answer, Applied)
    assert [command[0] for command in gate.commands] == [b"EVALSHA", b"EVAL"]
    gate.commands.clear()
    await put(store, b"a")
    assert [command[0] for command in gate.commands] == [b"EVALSHA"]
    redis_bench.server.command("SCRIPT", "FLUSH", "SYNC")
    assert isinstance(await store.read(b"a"), Found)
    assert len(await scan_all(store)) == 1


@pytest.mark.contract("LO-056", "LO-075")
@pytest.mark.parametrize("foreign", ["string", "list", "format", "tail"])
async def test_a_foreign_value_is_corruption_and_never_missing(redis_bench: RedisBench, foreign: str) -> None:
    await put(redis_bench.store, b"bad")
    await put(redis_bench.store, b"good")
    record = redis_bench.layout.record(b"bad")
    redis_bench.server.command("DEL", record)
    plant: dict[str, tuple[Any, ...]] = {
        "string": ("SET", record, "x"),
        "list": ("RPUSH", record, "x"),
        "format": ("ZADD", record, 1, b"\x02" + pack_member(Row(b"bad", b"v", "1", None, tombstone=False))[1:]),
        "tail": ("ZADD", record, 1, b"\x01\xff\xff"),
    }
    redis_bench.server.command(*plant[foreign])
    with pytest.raises(StoreCorruption):
        await redis_bench.store.read(b"bad")
    with pytest.raises(StoreCorruption):
        await redis_bench.store.write([IfMissing(b"bad")], [])
    with pytest.raises(StoreCorruption):
        await redis_bench.store.write([], [Put(b"bad", b"")])
    with pytest.raises(StoreCorruption):
        await redis_bench.store.scan(b"")
    handle = redis_bench.store.dedicated()
    with pytest.raises(StoreCorruption):
        await trio.to_thread.run_sync(handle.read_blocking, b"bad")
    handle.close()
    # A read that shared its round trip with the bad one is not affected.
    async with trio.open_nursery() as nursery:

        async def corrupt() -> None:
            with pytest.raises(StoreCorruption):
                await redis_bench.store.read(b"bad")

        async def fine() -> None:
            assert isinstance(await redis_bench.store.read(b"good"), Found)

        nursery.start_soon(corrupt)
        nursery.start_soon(fine)


@pytest.mark.contract("LO-058")
@pytest.mark.parametrize("shift", [-3600, 3600])
async def test_the_clients_wall_clock_plays_no_part(
    redis_bench: RedisBench, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    real, real_ns = time.time, time.time_ns
    before = redis_bench.server_ms()
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + shift * 10**9)
    written = await redis_bench.store.write([], [Put(b"a", b"v", 40), Put(b"b", b"v", 60_000)])
    assert isinstance(written, Applied)
    row = await found(redis_bench.store, b"b")
    assert before <= written.store_now <= row.store_now <= redis_bench.server_ms()
    assert row.expires_at == written.store_now + 60_000
    await redis_bench.pass_ms(50)
    assert isinstance(await redis_bench.store.read(b"a"), Missing)
    assert [item.key for item in await scan_all(redis_bench.store)] == [b"b"]


@pytest.mark.contract("LO-059")
async def test_stuck_calls_do_not_delay_the_dedicated_handle(redis_bench: RedisBench, gate: Gate) -> None:
    store = redis_bench.open(gate.url)
    await put(store, b"lease", b"mine", 60_000)
    handle = store.dedicated()
    gate.hold(lambda command: is_script_call(command) and any(word.startswith(b"stuck") for word in command))
    async with trio.open_nursery() as nursery:
        for number in range(3 * CALL_THREADS):
            nursery.start_soon(store.write, [], [Put(b"stuck%d" % number, b"")])
        await trio.to_thread.run_sync(gate.holding.wait)
        renew = partial(handle.write_blocking, [IfValue(b"lease", b"mine")], [Put(b"lease", b"mine", 60_000)])
        for _ in range(5):
            started = trio.current_time()
            assert isinstance(await trio.to_thread.run_sync(renew), Applied)
            assert trio.current_time() - started < 0.3
        gate.release()
    handle.close()
    assert len(await scan_all(store, b"stuck")) == 3 * CALL_THREADS


@pytest.mark.contract("LO-060")
async def test_a_page_of_a_large_store_is_quick_and_never_iterates_the_keyspace(redis_bench: RedisBench) -> None:
    keys = numbered(100_000)
    for at in range(0, len(keys), 2000):
        await redis_bench.store.write([], [Put(key, b"x" * 20) for key in keys[at : at + 2000]])
    server = redis_bench.server
    server.command("CONFIG", "RESETSTAT")
    server.command("SLOWLOG", "RESET")
    server.command("CONFIG", "SET", "slowlog-log-slower-than", 50_000)
    page = await redis_bench.store.scan(b"k")
    slow = server.command("SLOWLOG", "LEN")
    server.command("CONFIG", "SET", "slowlog-log-slower-than", 10_000)
    assert slow == 0
    assert isinstance(page, Page)
    assert [item.key for item in page.items] == keys[:1000]
    used = {name.removeprefix("cmdstat_") for name in server.command("INFO", "commandstats")}
    assert used & {"keys", "scan", "zscan"} == set()


@pytest.mark.contract("LO-061")
async def test_overwrites_leave_no_history_behind(redis_bench: RedisBench) -> None:
    handle = redis_bench.store.dedicated()

    def overwrite() -> None:
        for number in range(10_000):
            handle.write_blocking([], [Put(b"a", b"%d" % number)])

    await trio.to_thread.run_sync(overwrite)
    handle.close()
    assert redis_bench.server.command("ZCARD", redis_bench.layout.record(b"a")) <= 2
    assert (await found(redis_bench.store, b"a")).value == b"9999"


@pytest.mark.contract("LO-061")
@pytest.mark.parametrize("ends_by", ["finishing", "age"])
async def test_an_open_scan_keeps_what_it_may_need_and_no_more(redis_bench: RedisBench, ends_by: str) -> None:
    store, server = redis_bench.store, redis_bench.server
    keys = numbered(4)
    await store.write([], [Put(key, b"old") for key in keys])
    page = await store.scan(b"k", limit=1)
    assert isinstance(page, Page)
    for number in range(20):
        await put(store, keys[3], b"%d" % number)
    record = redis_bench.layout.record(keys[3])
    assert server.command("ZCARD", record) == 2
    second = await store.scan(b"k", limit=1)
    assert isinstance(second, Page)
    for number in range(20, 40):
        await put(store, keys[3], b"%d" % number)
    assert server.command("ZCARD", record) == 3
    if ends_by == "finishing":
        for cursor, value in ((page.cursor, b"old"), (second.cursor, b"19")):
            rest = await store.scan(b"k", cursor=cursor)
            assert isinstance(rest, Page)
            assert rest.cursor is None
            assert rest.items[-1].value == value
    else:
        redis_bench.age_snapshots(60_001)
    redis_bench.age_due(2000)  # the two seconds it may take
    await put(store, b"other traffic")
    assert server.command("ZCARD", record) == 1
    assert (await found(store, keys[3])).value == b"39"
    assert server.command("EXISTS", redis_bench.layout.snapshots, redis_bench.layout.ends) == 0


@pytest.mark.contract("LO-062")
async def test_expired_and_deleted_rows_leave_nothing_behind(redis_bench: RedisBench) -> None:
    store, server, layout = redis_bench.store, redis_bench.server, redis_bench.layout
    expired, deleted = numbered(1000, b"e"), numbered(1000, b"d")
    await store.write([], [Put(key, b"v", 1) for key in expired])
    await store.write([], [Put(key, b"v") for key in deleted])
    await store.write([], [Delete(key) for key in deleted])
    await redis_bench.pass_ms(2)
    await put(store, b"traffic")
    assert server.command("ZCARD", layout.index) == 2001
    # Two minutes later: what was due then is due now, and the rows expired a minute ago.
    redis_bench.age_due(60_000)
    client = server.client()
    with client.pipeline(transaction=False) as pipe:
        for key in expired:
            ((member, score),) = client.zrange(layout.record(key), 0, -1, withscores=True)
            row = unpack_member(member, key)
            assert row.expires_at is not None
            older = Row(row.key, row.value, row.version, row.expires_at - 60_000, tombstone=False)
            pipe.zrem(layout.record(key), member).zadd(layout.record(key), {pack_member(older): score})
        pipe.execute()
    client.close()
    for _ in range(40):
        await put(store, b"traffic")
    assert set(server.command("KEYS", "*")) == {layout.record(b"traffic"), layout.index, layout.sequence}
    assert server.command("ZRANGE", layout.index, 0, -1) == [b"traffic"]


async def test_clean_up_spares_rows_that_came_back(redis_bench: RedisBench) -> None:
    store = redis_bench.store
    await store.write([], [Put(b"kept", b"v", 1), Put(b"again", b"v"), Put(b"longer", b"v", 1)])
    await store.write([], [Delete(b"again")])
    await redis_bench.pass_ms(2)
    await store.write([], [Put(b"kept", b"w"), Put(b"again", b"w"), Put(b"longer", b"w", 3_600_000)])
    redis_bench.age_due(120_000)
    for _ in range(3):
        await put(store, b"traffic")
    assert {item.key: item.value for item in await scan_all(store)} == {
        b"kept": b"w", b"again": b"w", b"longer": b"w", b"traffic": b"v"
    }  # fmt: skip


async def test_a_foreign_value_under_a_due_record_fails_no_other_call(redis_bench: RedisBench) -> None:
    await put(redis_bench.store, b"a", b"v", 1)
    record = redis_bench.layout.record(b"a")
    redis_bench.server.command("DEL", record)
    redis_bench.server.command("SET", record, "foreign")
    redis_bench.age_due(120_000)
    await put(redis_bench.store, b"traffic")
    assert redis_bench.server.command("GET", record) == b"foreign"


@pytest.mark.contract("LO-063")
async def test_reads_of_one_turn_share_their_round_trips(redis_bench: RedisBench, gate: Gate) -> None:
    store = redis_bench.open(gate.url)
    keys = numbered(100)
    await store.write([], [Put(key, key) for key in keys])
    gate.commands.clear()
    values: dict[bytes, bytes] = {}

    async def read(key: bytes) -> None:
        values[key] = (await found(store, key)).value

    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(read, key)
    assert values == {key: key for key in keys}
    assert 1 <= len([command for command in gate.commands if is_script_call(command)]) <= 2


async def test_large_rows_are_read_in_bounded_answers(redis_bench: RedisBench, gate: Gate) -> None:
    store = redis_bench.open(gate.url)
    keys = numbered(9)
    for key in keys:
        await put(store, key, key * 100_000)
    gate.commands.clear()
    async with trio.open_nursery() as nursery:

        async def read(key: bytes) -> None:
            assert (await found(store, key)).value == key * 100_000

        for key in keys:
            nursery.start_soon(read, key)
    assert len([command for command in gate.commands if is_script_call(command)]) == 2


@pytest.mark.contract("LO-066")
@pytest.mark.parametrize(
    ("memory", "policy", "warnings"),
    [("200mb", "allkeys-lru", 1), ("200mb", "noeviction", 0), ("0", "allkeys-lru", 0)],
)
async def test_a_server_that_may_evict_is_warned_about_once(
    redis_bench: RedisBench, caplog: pytest.LogCaptureFixture, memory: str, policy: str, warnings: int
) -> None:
    server = redis_bench.server
    server.command("CONFIG", "SET", "maxmemory", memory, "maxmemory-policy", policy)
    try:
        with caplog.at_level(logging.WARNING, "zlinkpy.location"):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(put, redis_bench.store, b"a")
            await redis_bench.store.read(b"a")
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(texts) == warnings
    assert all("maxmemory-policy" in text and policy in text for text in texts)


@pytest.mark.contract("LO-070")
@pytest.mark.parametrize(("key", "digest"), DIGESTS.items())
async def test_physical_keys_are_the_published_ones(redis_bench: RedisBench, key: bytes, digest: str) -> None:
    assert Layout("app1").record(key) == f"app1:{{zlink-location-v3}}:opaque:{digest}".encode()
    await put(redis_bench.store, key)
    physical = f"{PREFIX}:{{zlink-location-v3}}:opaque:{digest}"
    assert redis_bench.server.command("EXISTS", physical) == 1


@pytest.mark.contract("LO-074")
async def test_members_have_the_published_bytes(redis_bench: RedisBench) -> None:
    key = b"owner-lease\x00owner-a"
    lease = Row(key, LEASE_JSON, "44", 1_700_000_000_000, tombstone=False)
    tombstone = Row(key, b"", "43", None, tombstone=True)
    packer = WRITE.text.split("-- One conditional batch.")[0]
    for row, member in ((lease, LEASE_MEMBER), (tombstone, TOMBSTONE_MEMBER)):
        # The scripts' own packing, on the server; ours; and both ways back.
        call = "return encode(ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1')"
        arguments = (row.key, row.value, row.version, row.expires_at or 0, int(row.tombstone))
        assert redis_bench.server.command("EVAL", packer + call, 0, *arguments) == member
        assert pack_member(row) == member
        assert unpack_member(member, key) == row


@pytest.mark.contract("LO-074")
async def test_the_highest_scored_member_is_the_row(redis_bench: RedisBench) -> None:
    store, server = redis_bench.store, redis_bench.server
    for value in (b"", b"x" * 31, b"x" * 32, b"x" * 255, b"x" * 256, b"x" * 65536, bytes(range(256))):
        written = await store.write([], [Put(b"a", value, 60_000)])
        assert isinstance(written, Applied)
        row = Row(b"a", value, written.versions[b"a"], written.store_now + 60_000, tombstone=False)
        assert server.command("ZREVRANGE", redis_bench.layout.record(b"a"), 0, 0) == [pack_member(row)]
    await store.write([], [Delete(b"a")])
    (member,) = server.command("ZREVRANGE", redis_bench.layout.record(b"a"), 0, 0)
    assert unpack_member(member, b"a").tombstone
    assert pack_member(unpack_member(member, b"a")) == member


@pytest.mark.contract("LO-074")
async def test_rows_of_another_writer_are_read(redis_bench: RedisBench) -> None:
    key = b"owner-lease\x00owner-a"
    later = redis_bench.server_ms() + 60_000
    row = Row(key, LEASE_JSON, "44", later, tombstone=False)
    redis_bench.server.command("ZADD", redis_bench.layout.record(key), 44, pack_member(row))
    redis_bench.server.command("ZADD", redis_bench.layout.index, 0, key)
    redis_bench.server.command("SET", redis_bench.layout.sequence, 44)
    answer = await found(redis_bench.store, key)
    assert (answer.value, answer.version, answer.expires_at) == (LEASE_JSON, "44", later)
    assert [item.key for item in await scan_all(redis_bench.store)] == [key]
    assert isinstance(await redis_bench.store.write([IfVersion(key, "44")], [Put(key, LEASE_JSON)]), Applied)
    redis_bench.server.command("ZADD", redis_bench.layout.record(key), 100, TOMBSTONE_MEMBER)
    assert isinstance(await redis_bench.store.read(key), Missing)
    assert isinstance(await redis_bench.store.write([IfMissing(key)], []), Applied)


@pytest.mark.contract("LO-033")
async def test_a_lost_sequence_repeats_no_version(redis_bench: RedisBench) -> None:
    first = await put(redis_bench.store, b"a", b"same")
    redis_bench.flush()
    second = await put(redis_bench.store, b"a", b"same")
    assert first.split(".")[0] == second.split(".")[0]
    assert isinstance(await redis_bench.store.write([IfVersion(b"a", first)], []), Conflict)


async def test_two_prefixes_share_nothing(redis_bench: RedisBench) -> None:
    await put(redis_bench.store, b"a")
    other = RedisStore(redis_bench.store._target, prefix="another")
    assert isinstance(await other.read(b"a"), Missing)
    assert await scan_all(other) == []
    await other.aclose()


async def test_a_read_in_an_outage_fails_and_recovers(redis_bench: RedisBench, gate: Gate) -> None:
    store = redis_bench.open(gate.url)
    await put(store, b"a")
    gate.refuse()
    with pytest.raises(StoreFailure) as caught:
        await store.read(b"a")
    assert caught.value.applied == "no"
    gate.heal()
    assert isinstance(await store.read(b"a"), Found)
