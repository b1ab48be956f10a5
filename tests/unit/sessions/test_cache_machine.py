"""Which handles go, and what is known of others' statuses; driven with numbers."""

from __future__ import annotations

import pytest

from zlinkpy.sessions.cache_machine import CacheEntry, EntryState, HandleMap
from zlinkpy.sessions.projection_machine import StatusProjection


def opened(handles: HandleMap[str], name: str, now: float = 0.0) -> CacheEntry[str]:
    entry, close, _ = handles.opened(name, f"handle of {name}", now)
    assert close == []
    return entry


def idle_map(limit: int = 10) -> HandleMap[str]:
    return HandleMap(idle_ttl=600.0, limit=limit)


@pytest.mark.contract("SR-257", "SR-258")
def test_idle_counts_from_the_last_use() -> None:
    handles = idle_map()
    entry = opened(handles, "s")
    handles.unpin(entry, 0.0)
    assert handles.sweep(599.0) == []
    assert handles.pin(entry, 300.0)
    handles.unpin(entry, 300.0)
    assert handles.sweep(899.0) == []
    assert handles.sweep(900.0) == [entry]
    assert handles.sweep(2000.0) == []
    assert handles.peek("s") is None


@pytest.mark.contract("SR-259", "SR-260")
def test_a_pinned_handle_is_never_idle_and_reads_do_not_make_it_so() -> None:
    handles = idle_map()
    entry = opened(handles, "s")
    for now in (700.0, 1400.0, 2000.0):
        assert handles.peek("s") is entry
        assert handles.sweep(now) == []
    handles.unpin(entry, 2000.0)
    assert handles.sweep(2599.0) == []
    assert handles.sweep(2600.0) == [entry]


@pytest.mark.contract("SR-261")
def test_the_limit_takes_a_pinned_handle_out_and_leaves_it_open() -> None:
    handles = idle_map(limit=2)
    first, second = opened(handles, "a"), opened(handles, "b", 1.0)
    third, close, gone = handles.opened("c", "handle", 2.0)
    assert (close, gone, len(handles)) == ([], 1, 2)
    assert (first.state, handles.peek("a")) == (EntryState.DOOMED, None)
    assert handles.unpin(first, 3.0) == [first]
    assert (second.state, third.state) == (EntryState.OPEN, EntryState.OPEN)


def test_the_least_recently_used_goes_first() -> None:
    handles = idle_map(limit=2)
    first, second = opened(handles, "a"), opened(handles, "b")
    for each in (first, second):
        handles.unpin(each, 0.0)
    handles.pin(first, 1.0)
    handles.unpin(first, 1.0)
    _, close, _ = handles.opened("c", "handle", 2.0)
    assert close == [second]


@pytest.mark.contract("SR-263")
def test_whatever_races_an_entry_is_closed_once() -> None:
    handles = idle_map()
    entry = opened(handles, "s")
    closes = [*handles.evict(entry), *handles.evict(entry), *handles.sweep(9999.0)]
    closes += handles.unpin(entry, 1.0)
    closes += handles.evict(entry)
    assert closes == [entry]


@pytest.mark.contract("SR-266")
def test_an_entry_on_its_way_out_cannot_be_pinned() -> None:
    handles = idle_map()
    entry = opened(handles, "s")
    handles.unpin(entry, 0.0)
    handles.evict(entry)
    assert not handles.pin(entry, 1.0)
    assert entry.pins == 0


def test_a_new_entry_is_not_taken_out_for_an_old_one() -> None:
    handles = idle_map()
    old = opened(handles, "s")
    handles.evict(old)
    new = opened(handles, "s")
    handles.unpin(old, 1.0)
    handles.evict(old)
    assert handles.peek("s") is new


@pytest.mark.contract("SR-363", "SR-364")
def test_snapshots_of_one_origin_by_number_and_of_another_always() -> None:
    known: StatusProjection[str] = StatusProjection(limit=2)
    assert [known.apply("s", "n1", seq, str(seq)) for seq in (5, 7, 6, 7)] == [True, True, False, False]
    assert known.apply("s", "n2", 1, "other")
    found = known.get("s")
    assert found is not None
    assert (found.origin, found.status) == ("n2", "other")
    known.apply("t", "n1", 1, "")
    known.apply("u", "n1", 1, "")
    assert known.get("s") is None
    known.forget("t")
    assert known.get("t") is None
