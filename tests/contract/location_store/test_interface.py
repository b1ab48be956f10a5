"""The store SPI, section 2 of the contract: every test runs against the memory and the Redis provider."""

from __future__ import annotations

import inspect

import pytest
import trio

from tests.contract.location_store.conftest import Bench, numbered
from zlinkpy.location import store as interface
from zlinkpy.location.arguments import BATCH_BYTES, ENTRY_OVERHEAD, VALUE_BYTES
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.store import (
    Applied,
    Conflict,
    Delete,
    Expired,
    Found,
    IfMissing,
    IfValue,
    IfVersion,
    Item,
    LocationStore,
    Missing,
    Page,
    Put,
)

MIB = 1 << 20


async def put(store: LocationStore, key: bytes, value: bytes = b"v", retention: int | None = None) -> str:
    answer = await store.write([], [Put(key, value, retention)])
    assert isinstance(answer, Applied)
    return answer.versions[key]


async def found(store: LocationStore, key: bytes) -> Found:
    answer = await store.read(key)
    assert isinstance(answer, Found)
    return answer


async def scan_all(store: LocationStore, prefix: bytes = b"", limit: int = 1000) -> list[Item]:
    items: list[Item] = []
    cursor = None
    while True:
        page = await store.scan(prefix, cursor=cursor, limit=limit)
        assert isinstance(page, Page)
        items += page.items
        cursor = page.cursor
        if cursor is None:
            return items


def test_the_interface_has_four_calls_and_knows_no_domain() -> None:
    calls = {name for name, member in vars(LocationStore).items() if inspect.isfunction(member) and name[0] != "_"}
    assert calls == {"read", "write", "scan", "aclose"}
    source = inspect.getsource(interface)
    imported = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert not [line for line in imported if "zlinkpy" in line and "zlinkpy.errors" not in line]
    names = " ".join(name.lower() for name in vars(interface))
    for word in ("lease", "descriptor", "authority", "reserv", "capacity", "script", "layout"):
        assert word not in names


@pytest.mark.contract("LO-020")
async def test_one_read_is_one_observation_and_a_missing_key_creates_nothing(bench: Bench) -> None:
    before = bench.image()
    assert isinstance(await bench.store.read(b"absent"), Missing)
    assert bench.image() == before
    written = await bench.store.write([], [Put(b"a", b"one", 60_000), Put(b"b", b"two")])
    assert isinstance(written, Applied)
    a, b = await found(bench.store, b"a"), await found(bench.store, b"b")
    assert (a.value, a.version, a.expires_at) == (b"one", written.versions[b"a"], written.store_now + 60_000)
    assert (b.value, b.version, b.expires_at) == (b"two", written.versions[b"b"], None)
    assert written.store_now <= a.store_now <= b.store_now


@pytest.mark.contract("LO-021")
async def test_a_row_is_missing_from_its_expiry_on(bench: Bench) -> None:
    await bench.store.write([], [Put(b"brief", b"v", 40), Put(b"lasting", b"v")])
    expires_at = (await found(bench.store, b"brief")).expires_at
    assert expires_at is not None
    seen_missing = False
    while not seen_missing:
        answer = await bench.store.read(b"brief")
        seen_missing = isinstance(answer, Missing)
        assert seen_missing == (answer.store_now >= expires_at)
        await bench.pass_ms(1)
    assert isinstance(await bench.store.read(b"lasting"), Found)


@pytest.mark.contract("LO-021")
async def test_a_row_without_retention_outlives_any_time(memory_bench: Bench) -> None:
    await put(memory_bench.store, b"lasting")
    await memory_bench.pass_ms(10**12)
    assert isinstance(await memory_bench.store.read(b"lasting"), Found)


@pytest.mark.contract("LO-022")
async def test_a_result_that_is_held_does_not_change(bench: Bench) -> None:
    await put(bench.store, b"a", b"first")
    held = await found(bench.store, b"a")
    page = await bench.store.scan(b"a")
    await put(bench.store, b"a", b"other")
    await bench.store.write([], [Delete(b"a")])
    async with trio.open_nursery() as nursery:
        for key in numbered(1000):
            nursery.start_soon(bench.store.read, key)
    assert held.value == b"first"
    assert isinstance(held.value, bytes)
    assert isinstance(page, Page)
    assert page.items[0].value == b"first"


@pytest.mark.contract("LO-023")
async def test_keys_have_1_to_1024_bytes_of_utf8_and_are_compared_as_bytes(bench: Bench) -> None:
    for key in (b"k", b"k" * 1024):
        await put(bench.store, key)
        assert isinstance(await bench.store.read(key), Found)
    calls = bench.calls()
    for key in (b"", b"k" * 1025, b"\xff\xfe"):
        with pytest.raises(ValueError):
            await bench.store.read(key)
        with pytest.raises(ValueError):
            await bench.store.write([], [Put(key, b"")])
        with pytest.raises(ValueError):
            await bench.store.write([IfMissing(key)], [])
    assert bench.calls() == calls
    names = ["A", "a", "é", "e\u0301"]
    for name in names:
        await put(bench.store, name.encode(), name.encode())
    for name in names:
        assert (await found(bench.store, name.encode())).value == name.encode()


@pytest.mark.contract("LO-024")
async def test_values_have_at_most_a_mebibyte(bench: Bench) -> None:
    for size in (0, VALUE_BYTES):
        value = b"x" * size
        await put(bench.store, b"a", value)
        assert (await found(bench.store, b"a")).value == value
    calls = bench.calls()
    with pytest.raises(ValueError):
        await put(bench.store, b"a", b"x" * (VALUE_BYTES + 1))
    assert bench.calls() == calls
    assert VALUE_BYTES == 1_048_576


@pytest.mark.contract("LO-025")
async def test_a_batch_whose_conditions_hold_applies_as_a_whole(bench: Bench) -> None:
    version = await put(bench.store, b"b", b"old")
    await put(bench.store, b"c", b"bytes")
    await put(bench.store, b"gone")
    answer = await bench.store.write(
        [IfMissing(b"a"), IfVersion(b"b", version), IfValue(b"c", b"bytes")],
        [Put(b"x", b"1"), Put(b"y", b"2", 60_000), Delete(b"gone")],
    )
    assert isinstance(answer, Applied)
    assert set(answer.versions) == {b"x", b"y"}
    assert len(set(answer.versions.values())) == 2
    x, y = await found(bench.store, b"x"), await found(bench.store, b"y")
    assert (x.value, x.version) == (b"1", answer.versions[b"x"])
    assert (y.value, y.version, y.expires_at) == (b"2", answer.versions[b"y"], answer.store_now + 60_000)
    assert isinstance(await bench.store.read(b"gone"), Missing)


@pytest.mark.contract("LO-025")
async def test_no_reader_sees_a_part_of_a_batch(bench: Bench) -> None:
    reader = bench.second
    keys = numbered(8)
    await bench.store.write([], [Put(key, b"0") for key in keys])

    async def write(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            number = 0
            while True:
                number += 1
                await bench.store.write([], [Put(key, b"%d" % number) for key in keys])

    seen = set()
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(write)
        while len(seen) < 20:
            page = await reader.scan(b"k")
            assert isinstance(page, Page)
            values = {item.value for item in page.items}
            assert len(page.items) == len(keys)
            assert len(values) == 1
            seen |= values
        scope.cancel()


@pytest.mark.contract("LO-026")
@pytest.mark.parametrize("false_one", range(5))
async def test_one_false_condition_leaves_everything_as_it_was(bench: Bench, false_one: int) -> None:
    version = await put(bench.store, b"b", b"old")
    await put(bench.store, b"c", b"bytes", 60_000)
    await put(bench.store, b"d", b"present")
    right = [IfMissing(b"a"), IfVersion(b"b", version), IfValue(b"c", b"bytes"), IfMissing(b"e"), IfMissing(b"f")]
    wrong = [IfMissing(b"d"), IfVersion(b"b", "0"), IfValue(b"c", b"Bytes"), IfVersion(b"e", "1"), IfValue(b"f", b"")]
    conditions = [wrong[at] if at == false_one else right[at] for at in range(5)]
    before = bench.image()
    answer = await bench.store.write(conditions, [Put(b"b", b"new"), Put(b"n", b""), Delete(b"c")])
    assert isinstance(answer, Conflict)
    assert {name for name in dir(answer) if name[0] != "_"} == {"store_now"}
    assert bench.image() == before
    assert isinstance(await bench.store.write(right, [Put(b"b", b"new"), Put(b"n", b"")]), Applied)


@pytest.mark.contract("LO-027")
async def test_an_expired_row_counts_as_missing_for_every_condition(bench: Bench) -> None:
    version = await put(bench.store, b"a", b"v", 1)
    await bench.pass_ms(2)
    assert isinstance(await bench.store.write([IfVersion(b"a", version)], [Put(b"n", b"")]), Conflict)
    assert isinstance(await bench.store.write([IfValue(b"a", b"v")], [Put(b"n", b"")]), Conflict)
    assert isinstance(await bench.store.write([IfMissing(b"a")], [Put(b"a", b"new")]), Applied)
    assert (await found(bench.store, b"a")).value == b"new"


@pytest.mark.contract("LO-028")
async def test_a_value_condition_survives_a_put_of_equal_bytes(bench: Bench) -> None:
    first = await put(bench.store, b"lease", b"same", 60_000)
    await put(bench.second, b"lease", b"same", 60_000)
    assert isinstance(await bench.store.write([IfValue(b"lease", b"same")], [Put(b"n", b"")]), Applied)
    assert isinstance(await bench.store.write([IfVersion(b"lease", first)], [Put(b"n", b"")]), Conflict)


@pytest.mark.contract("LO-029")
async def test_a_key_appears_once_among_conditions_and_once_among_mutations(bench: Bench) -> None:
    calls = bench.calls()
    with pytest.raises(ValueError):
        await bench.store.write([IfMissing(b"a"), IfValue(b"a", b"")], [])
    with pytest.raises(ValueError):
        await bench.store.write([], [Put(b"a", b""), Delete(b"a")])
    assert bench.calls() == calls
    assert isinstance(await bench.store.write([IfMissing(b"a")], [Put(b"a", b"")]), Applied)


@pytest.mark.contract("LO-030")
async def test_a_batch_names_at_most_2048_keys(bench: Bench) -> None:
    keys = numbered(2049)
    conditions = [IfMissing(key) for key in keys[:1100]]
    with pytest.raises(ValueError):
        await bench.store.write(conditions, [Put(key, b"v") for key in keys[1000:2049]])
    answer = await bench.store.write(conditions, [Put(key, b"v") for key in keys[1000:2048]])
    assert isinstance(answer, Applied)
    assert len(answer.versions) == 1048
    assert len(await scan_all(bench.store)) == 1048
    answer = await bench.store.write([], [Put(key, b"w") for key in keys[:2048]])
    assert isinstance(answer, Applied)
    assert len(set(answer.versions.values())) == 2048


@pytest.mark.contract("LO-031")
async def test_a_batch_has_at_most_four_mebibytes(bench: Bench) -> None:
    assert BATCH_BYTES == 4 * MIB
    keys = numbered(5)
    overhead = sum(len(key) + ENTRY_OVERHEAD for key in keys)
    sizes = [MIB - 1000] * 4
    sizes.append(BATCH_BYTES - overhead - sum(sizes))
    with pytest.raises(ValueError):
        await bench.store.write(
            [], [Put(key, b"x" * (size + (at == 4))) for at, (key, size) in enumerate(zip(keys, sizes))]
        )
    assert await scan_all(bench.store) == []
    assert isinstance(await bench.store.write([], [Put(key, b"x" * size) for key, size in zip(keys, sizes)]), Applied)
    assert [len(item.value) for item in await scan_all(bench.store)] == sizes


@pytest.mark.contract("LO-032")
async def test_a_retention_is_a_positive_whole_number_or_none(bench: Bench) -> None:
    for retention in (0, -1, 1.5, "5", True):
        with pytest.raises(ValueError):
            await put(bench.store, b"a", b"", retention)  # type: ignore[arg-type]
    await put(bench.store, b"a", b"", 20)
    await put(bench.store, b"a", b"")
    assert (await found(bench.store, b"a")).expires_at is None
    await bench.pass_ms(30)
    assert isinstance(await bench.store.read(b"a"), Found)


@pytest.mark.contract("LO-033")
async def test_no_version_of_a_key_ever_comes_back(bench: Bench) -> None:
    versions = []
    for _ in range(3):
        for _ in range(3):
            versions.append(await put(bench.store, b"a", b"equal"))
            versions.append(await put(bench.store, b"a", b"equal"))
            await bench.store.write([], [Delete(b"a")])
        bench.flush()
    assert len(set(versions)) == len(versions)
    assert all(1 <= len(version.encode()) <= 4096 for version in versions)


@pytest.mark.contract("LO-034")
async def test_deleting_what_is_missing_applies(bench: Bench) -> None:
    answer = await bench.store.write([], [Delete(b"a")])
    assert isinstance(answer, Applied)
    assert answer.versions == {}
    assert await scan_all(bench.store) == []


@pytest.mark.contract("LO-035")
@pytest.mark.parametrize(("writers", "additions"), [(8, 20), pytest.param(32, 100, marks=pytest.mark.slow)])
async def test_concurrent_increments_under_a_version_lose_nothing(bench: Bench, writers: int, additions: int) -> None:
    await put(bench.store, b"counter", b"0")

    async def increment() -> None:
        for _ in range(additions):
            while True:
                row = await found(bench.store, b"counter")
                answer = await bench.store.write(
                    [IfVersion(b"counter", row.version)], [Put(b"counter", b"%d" % (int(row.value) + 1))]
                )
                if isinstance(answer, Applied):
                    break

    async with trio.open_nursery() as nursery:
        for _ in range(writers):
            nursery.start_soon(increment)
    assert (await found(bench.store, b"counter")).value == b"%d" % (writers * additions)


@pytest.mark.contract("LO-036")
async def test_a_scan_pages_through_a_prefix_in_byte_order(bench: Bench) -> None:
    keys = numbered(2500, b"p\x00")
    for at in range(0, 2500, 500):
        await bench.store.write([], [Put(key, key) for key in keys[at : at + 500]])
    await bench.store.write([], [Put(b"o", b""), Put(b"p", b""), Put(b"q", b"")])
    pages = []
    cursor = None
    while not pages or cursor is not None:
        page = await bench.store.scan(b"p\x00", cursor=cursor, limit=1000)
        assert isinstance(page, Page)
        pages.append(page)
        cursor = page.cursor
    assert [len(page.items) for page in pages] == [1000, 1000, 500]
    assert [item.key for page in pages for item in page.items] == keys
    assert all(item.value == item.key for page in pages for item in page.items)
    assert len({page.store_now for page in pages}) == 1


@pytest.mark.contract("LO-037")
async def test_later_pages_show_the_rows_as_the_first_page_found_them(bench: Bench) -> None:
    keys = numbered(6)
    expected = {key: await put(bench.store, key, b"old", 60 if at == 5 else None) for at, key in enumerate(keys)}
    page = await bench.store.scan(b"k", limit=2)
    assert isinstance(page, Page)
    items = list(page.items)
    await bench.store.write(
        [],
        [
            Put(b"k000001z", b"new"),
            Put(keys[2], b"changed"),
            Put(keys[2] + b"+", b"new"),
            Delete(keys[3]),
            Put(keys[4], b"1"),
        ],
    )
    await put(bench.store, keys[4], b"2")
    await bench.pass_ms(70)
    assert isinstance(await bench.store.read(keys[5]), Missing)
    while page.cursor is not None:
        following = await bench.store.scan(b"k", cursor=page.cursor, limit=2)
        assert isinstance(following, Page)
        assert following.store_now == page.store_now
        page = following
        items += page.items
    assert {item.key: item.version for item in items} == expected
    assert {item.value for item in items} == {b"old"}
    assert {item.key for item in await scan_all(bench.store)} == {
        keys[0], keys[1], b"k000001z", keys[2], keys[2] + b"+", keys[4]
    }  # fmt: skip


@pytest.mark.contract("LO-038")
async def test_scan_arguments_have_limits(bench: Bench) -> None:
    await put(bench.store, b"a")
    await put(bench.store, b"\xc3\xa9")
    calls = bench.calls()
    for limit in (0, 1001, True, 1.0):
        with pytest.raises(ValueError):
            await bench.store.scan(b"", limit=limit)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        await bench.store.scan(b"p" * 1025)
    for cursor in ("", "c" * 4097):
        with pytest.raises(ValueError):
            await bench.store.scan(b"", cursor=cursor)
    assert bench.calls() == calls
    assert [item.key for item in await scan_all(bench.store)] == [b"a", b"\xc3\xa9"]
    assert [item.key for item in await scan_all(bench.store, b"\xc3")] == [b"\xc3\xa9"]
    assert isinstance(await bench.store.scan(b"p" * 1024), Page)


@pytest.mark.contract("LO-039")
async def test_a_page_has_at_most_four_mebibytes_and_at_least_one_row(bench: Bench) -> None:
    keys = numbered(7)
    for key in keys:
        await put(bench.store, key, key + b"x" * (MIB - len(key)))
    sizes, seen, cursor = [], [], None
    while not sizes or cursor is not None:
        page = await bench.store.scan(b"k", cursor=cursor)
        assert isinstance(page, Page)
        sizes.append(sum(len(item.key) + len(item.value) for item in page.items))
        seen += [item.key for item in page.items]
        cursor = page.cursor
    assert seen == keys
    assert all(MIB <= size <= 4 * MIB for size in sizes)
    assert len(sizes) == 3


@pytest.mark.contract("LO-040")
async def test_a_cursor_without_its_snapshot_is_expired(bench: Bench) -> None:
    await bench.store.write([], [Put(key, b"v") for key in (*numbered(5), *numbered(5, b"other"))])

    async def first_cursor() -> str:
        page = await bench.store.scan(b"k", limit=2)
        assert isinstance(page, Page)
        assert page.cursor is not None
        return page.cursor

    cursor = await first_cursor()
    name, _, place = cursor.partition(".")
    made_up = [
        "x",
        "ü",
        "0" * 16 + "." + place,
        name[:-1] + ("0" if name[-1] != "0" else "1") + "." + place,
        name,
        f"{name}.",
        f"{name}.zz",
    ]
    for text in made_up:
        assert await bench.store.scan(b"k", cursor=text, limit=2) == Expired()
    assert await bench.store.scan(b"other", cursor=cursor, limit=2) == Expired()
    assert isinstance(await bench.store.scan(b"k", cursor=cursor, limit=2), Page)
    bench.flush()
    assert await bench.store.scan(b"k", cursor=cursor, limit=2) == Expired()


@pytest.mark.contract("LO-040")
async def test_a_snapshot_lives_for_sixty_seconds(bench: Bench) -> None:
    await bench.store.write([], [Put(key, b"v") for key in numbered(9)])
    page = await bench.store.scan(b"k", limit=2)
    assert isinstance(page, Page)
    bench.age_snapshots(59_000)
    page = await bench.store.scan(b"k", cursor=page.cursor, limit=2)
    assert isinstance(page, Page)
    bench.age_snapshots(1_001)
    assert await bench.store.scan(b"k", cursor=page.cursor, limit=2) == Expired()


@pytest.mark.contract("LO-043")
async def test_a_call_in_a_cancelled_scope_reaches_nothing(bench: Bench) -> None:
    await put(bench.store, b"a", b"old")
    calls = bench.calls()
    for call in (
        lambda: bench.store.read(b"a"),
        lambda: bench.store.write([], [Put(b"a", b"new")]),
        lambda: bench.store.scan(b""),
    ):
        with trio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught
    assert bench.calls() == calls
    assert (await found(bench.store, b"a")).value == b"old"


@pytest.mark.contract("LO-045")
async def test_what_is_stored_is_what_the_buffers_held_at_the_call(bench: Bench) -> None:
    key, value, expected = bytearray(b"key"), bytearray(b"value"), bytearray(b"before")
    await put(bench.store, b"c", b"before")
    started = trio.Event()

    async def write() -> None:
        started.set()
        await bench.store.write([IfValue(b"c", expected)], [Put(key, value)])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await started.wait()  # the writer has gone on to its first checkpoint, which is inside the call
        key[:], value[:], expected[:] = b"XXX", b"XXXXX", b"XXXXXX"
    assert (await found(bench.store, b"key")).value == b"value"
    assert isinstance(await bench.store.read(b"XXX"), Missing)
    value = bytearray(b"again")
    await put(bench.store, b"d", value)
    value[:] = b"XXXXX"
    assert (await found(bench.store, b"d")).value == b"again"


async def test_calls_on_a_closed_store_fail_without_effect(bench: Bench) -> None:
    other = bench.second
    await bench.store.aclose()
    await bench.store.aclose()
    for call in (
        lambda: bench.store.read(b"a"),
        lambda: bench.store.write([], [Put(b"a", b"")]),
        lambda: bench.store.scan(b""),
    ):
        with pytest.raises(interface.StoreFailure) as caught:
            await call()
        assert caught.value.applied == "no"
    if isinstance(other, MemoryStore):
        other.reopen()
    assert isinstance(await other.read(b"a"), Missing)


async def test_a_dedicated_handle_works_from_a_plain_thread(bench: Bench) -> None:
    assert isinstance(bench.store, interface.DedicatedProvider)
    handle = bench.store.dedicated()
    answer = await trio.to_thread.run_sync(handle.write_blocking, [IfMissing(b"a")], [Put(b"a", b"v", 60_000)])
    assert isinstance(answer, Applied)
    assert isinstance(await trio.to_thread.run_sync(handle.write_blocking, [IfMissing(b"a")], []), Conflict)
    row = await trio.to_thread.run_sync(handle.read_blocking, b"a")
    assert isinstance(row, Found)
    assert row.version == answer.versions[b"a"] == (await found(bench.second, b"a")).version
    with pytest.raises(ValueError):
        handle.read_blocking(b"")
    handle.close()
    handle.close()
