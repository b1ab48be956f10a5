"""The event journal on both providers, and its budget."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.location_server import TestServer
from zlinkpy.sessions.errors import SessionBackendError
from zlinkpy.sessions.journal_machine import (
    BYTES_KEPT,
    FINISHED_SECONDS,
    FRAMES_KEPT,
    RUNNING_SECONDS,
    STRUCTURAL_FACTOR,
    JournalBudget,
)
from zlinkpy.sessions.memory_journal import TURNS_KEPT, MemoryEventJournal
from zlinkpy.sessions.redis_backend import RedisBackend
from zlinkpy.sessions.redis_journal import RedisEventJournal
from zlinkpy.sessions.signal_codec import OUTPUT, STRUCTURAL, TRACE
from zlinkpy.sessions.spi import EventJournal, JournalFrame


def frames(*numbers: int, grade: int = OUTPUT, size: int = 1) -> list[JournalFrame]:
    return [JournalFrame(number, grade, bytes([number % 256]) * size) for number in numbers]


@pytest.fixture(params=["memory", "redis"])
async def journal(request: pytest.FixtureRequest) -> AsyncIterator[EventJournal]:
    if request.param == "memory":
        yield MemoryEventJournal()
        return
    server: TestServer = request.getfixturevalue("valkey")
    backend = RedisBackend(server.url)
    yield RedisEventJournal(backend)
    await backend.aclose()


async def test_frames_come_back_as_they_were_written(journal: EventJournal) -> None:
    written = [JournalFrame(1, STRUCTURAL, b"\x00\xff\r\n"), JournalFrame(2, TRACE, b""), JournalFrame(7, OUTPUT, b"x")]
    await journal.append("s{1}", "t:1", written[:2])
    await journal.append("s{1}", "t:1", written[2:])
    assert await journal.read("s{1}", "t:1", 1) == written
    assert await journal.read("s{1}", "t:1", 2) == written[1:]
    assert await journal.read("s{1}", "t:1", 8) == []
    assert await journal.read("s{1}", "t:2", 1) == []
    assert await journal.read("other", "t:1", 1) == []


async def test_it_knows_the_turn_that_runs(journal: EventJournal) -> None:
    assert await journal.current("s") is None
    await journal.append("s", "t1", frames(1))
    assert await journal.current("s") == "t1"
    await journal.append("s", "t2", frames(1))
    await journal.finish("s", "t1")
    assert await journal.current("s") == "t2"
    await journal.finish("s", "t2")
    await journal.finish("s", "t2")
    assert await journal.current("s") is None
    assert await journal.read("s", "t1", 1) == await journal.read("s", "t2", 1) == frames(1)


async def test_an_append_that_is_repeated_changes_nothing(journal: EventJournal) -> None:
    await journal.append("s", "t", frames(1, 2, 3))
    await journal.append("s", "t", frames(2, 3, 4))
    assert await journal.read("s", "t", 1) == frames(1, 2, 3, 4)


@pytest.mark.contract("SR-399")
async def test_what_is_too_much_goes_by_grade(journal: EventJournal) -> None:
    total = FRAMES_KEPT + 500
    everything = [
        JournalFrame(number, STRUCTURAL if number % 100 == 0 else TRACE if number % 10 == 0 else OUTPUT, b"x")
        for number in range(1, total + 1)
    ]
    for start in range(0, total, 256):
        await journal.append("s", "t", everything[start : start + 256])
    kept = await journal.read("s", "t", 1)
    assert len(kept) == FRAMES_KEPT
    # Of the last frames a trace may stay: it was there when there was room again.
    traces = [frame.seq for frame in everything if frame.grade == TRACE]
    gone = sorted({frame.seq for frame in everything} - {frame.seq for frame in kept})
    assert len(gone) == 500
    assert gone[: len(traces)] != []
    assert {frame.seq for frame in everything if frame.grade == STRUCTURAL} <= {frame.seq for frame in kept}
    kept_traces = [frame.seq for frame in kept if frame.grade == TRACE]
    gone_output = [number for number in gone if number % 10]
    # Output is only lost once every trace before it was: and then from the oldest on.
    output = [frame.seq for frame in everything if frame.grade == OUTPUT]
    assert gone_output == output[: len(gone_output)]
    assert all(number > gone_output[-1] for number in kept_traces)


@pytest.mark.contract("SR-399")
async def test_a_large_turn_is_bounded_in_bytes(journal: EventJournal) -> None:
    for start in range(0, 40, 4):
        await journal.append("s", "t", frames(*range(start + 1, start + 5), size=100_000))
    kept = await journal.read("s", "t", 1)
    assert [frame.seq for frame in kept] == list(range(31, 41))
    await journal.append("s", "t", frames(41, grade=STRUCTURAL, size=2 * BYTES_KEPT))
    assert [frame.seq for frame in await journal.read("s", "t", 1)] == [41]


@pytest.mark.contract("SR-399")
async def test_it_is_kept_for_ten_minutes_after_the_end(autojump_clock: object) -> None:
    assert FINISHED_SECONDS == 600
    journal = MemoryEventJournal()
    await journal.append("s", "t", frames(1))
    await trio.sleep(RUNNING_SECONDS - 1)
    assert await journal.current("s") == "t"
    await journal.append("s", "t", frames(2))
    await trio.sleep(RUNNING_SECONDS - 1)
    await journal.finish("s", "t")
    await trio.sleep(FINISHED_SECONDS - 1)
    assert len(await journal.read("s", "t", 1)) == 2
    await trio.sleep(1.1)
    assert await journal.read("s", "t", 1) == []
    await journal.append("dead", "t", frames(1))
    await trio.sleep(RUNNING_SECONDS + 1)
    assert await journal.current("dead") is None
    for number in range(TURNS_KEPT + 10):
        await journal.append("s", f"t{number}", frames(1))
    assert await journal.read("s", "t9", 1) == []
    assert len(journal._turns) == TURNS_KEPT


@pytest.mark.contract("SR-399")
async def test_the_server_is_told_how_long_to_keep_it(valkey: TestServer) -> None:
    backend = RedisBackend(valkey.url)
    journal = RedisEventJournal(backend)

    def left(key: str) -> Any:
        return valkey.command("PTTL", key)

    await journal.append("s", "t", frames(1))
    assert 3_590_000 < left("zl:{s}:ev:t") <= 3_600_000
    assert 3_590_000 < left("zl:{s}:cur") <= 3_600_000
    await journal.finish("s", "t")
    assert 590_000 < left("zl:{s}:ev:t") <= 600_000
    assert left("zl:{s}:cur") == -2
    # Another writer, and another reader.
    assert await RedisEventJournal(backend).read("s", "t", 1) == frames(1)
    valkey.command("SET", "zl:{s}:ev:broken", "x")
    with pytest.raises(SessionBackendError):
        await journal.append("s", "broken", frames(1))
    assert left("zl:{s}:cur") == -2
    valkey.kill()
    for call in (
        journal.append("s", "t", frames(2)),
        journal.read("s", "t", 1),
        journal.current("s"),
        journal.finish("s", "t"),
    ):
        with pytest.raises(SessionBackendError):
            await call
    await backend.aclose()


@pytest.mark.parametrize("wrong", ["", "x" * 513])
async def test_ids_are_checked(journal: EventJournal, wrong: str) -> None:
    for call in (
        journal.append(wrong, "t", []),
        journal.append("s", wrong, []),
        journal.read(wrong, "t", 1),
        journal.read("s", wrong, 1),
        journal.current(wrong),
    ):
        with pytest.raises(ValueError, match="512"):
            await call


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=60), st.integers(1, 8))
def test_the_budget_keeps_what_matters_most(added: list[tuple[int, int]], batch: int) -> None:
    """Never above its bounds but for structural frames; no frame goes while one of a lower grade and older stays."""
    budget = JournalBudget(frames=8, size=16)
    kept: dict[int, JournalFrame] = {}
    for start in range(0, len(added), batch):
        new = [
            JournalFrame(start + offset + 1, grade, b"x" * size)
            for offset, (grade, size) in enumerate(added[start : start + batch])
        ]
        stay, gone = budget.add(new)
        for seq in gone:
            del kept[seq]
        kept |= {frame.seq: frame for frame in stay}
        assert list(kept) == sorted(kept)
        assert len(budget) == len(kept)
        deltas = [frame for frame in kept.values() if frame.grade != STRUCTURAL]
        if len(kept) > 8 or sum(len(frame.payload) for frame in kept.values()) > 16:
            assert not deltas
        assert len(kept) <= 8 * STRUCTURAL_FACTOR
