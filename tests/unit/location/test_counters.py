"""Store-wide number sequences."""

from __future__ import annotations

import pytest

from zlinkpy.errors import ErrorKind
from zlinkpy.location import GenerationExhausted, keys
from zlinkpy.location.counters import next_value, take
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.store import Applied, Conflict, Found, IfMissing, Missing, Put, StoreCorruption

COUNTERS = [keys.OWNER_COUNTER, keys.OBJECT_COUNTER, keys.AUTHORITY_OWNER_COUNTER]


async def value_of(store: MemoryStore, key: bytes) -> bytes | None:
    found = await store.read(key)
    return found.value if isinstance(found, Found) else None


@pytest.mark.contract("LO-090")
async def test_the_first_number_of_each_sequence_is_1(autojump_clock: object) -> None:
    store = MemoryStore()
    for key in COUNTERS:
        block = take(key, await store.read(key))
        assert block.first == 1
        assert isinstance(await store.write([block.condition], [block.put]), Applied)
    assert [await value_of(store, key) for key in COUNTERS] == [b"2", b"2", b"2"]
    assert [key.decode() for key in COUNTERS] == [
        "zlink:v11:owner-counter",
        "zlink:v11:object-counter",
        "zlink:v11:authority-owner-counter",
    ]


@pytest.mark.contract("LO-091")
async def test_a_block_issues_consecutive_numbers(autojump_clock: object) -> None:
    store = MemoryStore()
    await store.write([], [Put(keys.OBJECT_COUNTER, b"6")])
    block = take(keys.OBJECT_COUNTER, await store.read(keys.OBJECT_COUNTER), 3)
    assert [block.first + n for n in range(block.count)] == [6, 7, 8]
    await store.write([block.condition], [block.put])
    assert await value_of(store, keys.OBJECT_COUNTER) == b"9"


@pytest.mark.contract("LO-092")
async def test_counter_and_record_change_together_or_not_at_all(autojump_clock: object) -> None:
    store = MemoryStore()
    await store.write([], [Put(b"taken", b"x"), Put(keys.OBJECT_COUNTER, b"6")])
    for record, outcome, counter in ((b"taken", Conflict, b"6"), (b"free", Applied, b"7")):
        block = take(keys.OBJECT_COUNTER, await store.read(keys.OBJECT_COUNTER))
        answer = await store.write([IfMissing(record), block.condition], [Put(record, b"6"), block.put])
        assert isinstance(answer, outcome)
        assert await value_of(store, keys.OBJECT_COUNTER) == counter


async def test_a_number_is_issued_once_when_two_take_at_once(autojump_clock: object) -> None:
    store = MemoryStore()
    for start in (Missing, Found):
        read = await store.read(keys.OBJECT_COUNTER)
        assert isinstance(read, start)
        one, two = take(keys.OBJECT_COUNTER, read), take(keys.OBJECT_COUNTER, read)
        assert isinstance(await store.write([one.condition], [one.put]), Applied)
        assert isinstance(await store.write([two.condition], [two.put]), Conflict)


@pytest.mark.contract("LO-093")
async def test_the_last_number_is_issued_and_then_nothing(autojump_clock: object) -> None:
    store = MemoryStore()
    key = keys.OWNER_COUNTER
    await store.write([], [Put(key, b"9223372036854775806")])
    block = take(key, await store.read(key))
    assert block.first == 9223372036854775806
    await store.write([block.condition], [block.put])
    assert await value_of(store, key) == b"9223372036854775807"
    version = await store.read(key)
    for _ in range(2):
        with pytest.raises(GenerationExhausted) as caught:
            take(key, await store.read(key))
        assert caught.value.kind is ErrorKind.INTERNAL_FAILURE
    assert (await store.read(key)) == version


def test_a_block_larger_than_what_is_left_takes_nothing() -> None:
    read = Found(b"9223372036854775805", "1", None, 0)
    assert take(b"c", read, 2).put.value == b"9223372036854775807"
    with pytest.raises(GenerationExhausted):
        take(b"c", read, 3)
    with pytest.raises(ValueError, match="at least 1"):
        take(b"c", read, 0)


@pytest.mark.contract("LO-095")
@pytest.mark.parametrize("text", [b"0", b"007", b"+1", b"", b"x", b"-1", b" 1", b"1.0", b"9223372036854775808", b"1\n"])
def test_an_unreadable_counter_is_corruption(text: bytes) -> None:
    read = Found(text, "1", None, 0)
    with pytest.raises(StoreCorruption):
        next_value(read)
    with pytest.raises(StoreCorruption):
        take(b"c", read)
