"""The Location Store of one process: for tests, simulations and single-host applications that name it (``memory://``).

One dict, one sorted key list and one sequence number. Every call checks and changes without a checkpoint in between,
under a lock that is never held across a wait, and then makes exactly one checkpoint, so that interleaving and
cancellation exist as they do with a server. Nothing chooses this store silently (LO-001).

The clock is a function returning milliseconds. The default follows trio's clock from the first call on (LO-046), so
virtual time in tests moves expiry too. Rejected: the wall clock, which would expire rows when somebody sets the time.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Literal, TypeVar

import trio
from attrs import define, frozen

from zlinkpy.entropy import Entropy, SystemEntropy
from zlinkpy.location.arguments import (
    PAGE_BYTES,
    SNAPSHOT_LIFE_MS,
    Batch,
    checked_batch,
    checked_key,
    checked_limit,
    checked_prefix,
    checked_token,
    item_size,
)
from zlinkpy.location.store import (
    Applied,
    BlockingStore,
    Condition,
    Conflict,
    Delete,
    Expired,
    Found,
    IfMissing,
    IfValue,
    IfVersion,
    Item,
    Missing,
    Mutation,
    Page,
    Put,
    StoreFailure,
)

Operation = Literal["read", "write", "scan"]
Stage = Literal["before", "after"]
_T = TypeVar("_T")

EPOCH_MS = 1_700_000_000_000
"""Where the default clock starts, so that store times have the size of real ones."""
_THREAD_POLL_SECONDS = 0.002


@frozen
class _Row:
    value: bytes
    version: str
    expires_at: int | None


@frozen
class _Snapshot:
    prefix: bytes
    items: tuple[Item, ...]
    taken_at: int


@define
class Fault:
    """One planned misbehaviour: matching calls fail at `stage` (or only wait `delay` seconds when it is None).

    ``"before"`` fails with nothing changed, ``"after"`` changes the rows and then loses the answer.
    """

    stage: Stage | None
    operation: Operation | None
    key: bytes | None
    delay: float
    times: int | None

    def matches(self, operation: Operation, keys: Sequence[bytes]) -> bool:
        return (
            (self.times is None or self.times > 0)
            and self.operation in (None, operation)
            and (self.key is None or self.key in keys)
        )


class MemoryStore:
    """See the module. `clock` returns store milliseconds; `entropy` names scans, so that a seed replays."""

    def __init__(self, *, clock: Callable[[], int] | None = None, entropy: Entropy | None = None) -> None:
        self._clock = clock
        self._trio_clock: trio.abc.Clock | None = None
        self._entropy = entropy or SystemEntropy()
        self._lock = threading.Lock()
        self._rows: dict[bytes, _Row] = {}
        self._keys: list[bytes] = []
        self._sequence = 0
        self._expiries: list[tuple[int, bytes]] = []
        self._snapshots: dict[str, _Snapshot] = {}
        self._faults: list[Fault] = []
        self._closed = False
        self.calls: list[tuple[Operation, tuple[bytes, ...]]] = []
        """Every call that reached the rows, in order: what a test counts instead of commands."""

    @property
    def label(self) -> str:
        """Name for people, as with the other providers."""
        return "memory://"

    async def read(self, key: bytes) -> Missing | Found:
        key = checked_key(key)
        return await self._perform("read", (key,), lambda: self.read_row(key))

    async def write(self, conditions: Sequence[Condition], mutations: Sequence[Mutation]) -> Applied | Conflict:
        batch = checked_batch(conditions, mutations)
        return await self._perform("write", batch.keys, lambda: self.write_batch(batch))

    async def scan(self, prefix: bytes, *, cursor: str | None = None, limit: int = 1000) -> Page | Expired:
        prefix, limit = checked_prefix(prefix), checked_limit(limit)
        if cursor is not None:
            checked_token(cursor, "cursor")
        return await self._perform("scan", (prefix,), lambda: self._scan(prefix, cursor, limit))

    async def aclose(self) -> None:
        """Refuse calls from now on. The rows stay with the object: `reopen` is a test's restart."""
        self._closed = True
        await trio.lowlevel.checkpoint()

    def dedicated(self, *, timeout: float | None = None) -> BlockingStore:
        """A handle for a plain thread. On the trio thread, so that the default clock is known before the first call.

        Nothing here waits except for a planned fault, which takes as long as it was planned for: `timeout` is unused.
        """
        self._bind_clock()
        return _MemoryHandle(self)

    # What tests do to it.

    def flush(self) -> None:
        """Forget every row and snapshot. The sequence goes on: no version may come back (LO-033)."""
        with self._lock:
            self._rows.clear()
            self._keys.clear()
            self._expiries.clear()
            self._snapshots.clear()

    def reopen(self) -> None:
        """Undo `aclose`."""
        self._closed = False

    def plan(
        self,
        stage: Stage | None,
        *,
        operation: Operation | None = None,
        key: bytes | None = None,
        delay: float = 0.0,
        times: int | None = 1,
    ) -> Fault:
        """Make the next `times` matching calls (None: all of them) wait `delay` seconds and then fail at `stage`."""
        fault = Fault(stage, operation, key, delay, times)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Drop every planned fault."""
        self._faults.clear()

    # The calls themselves.

    async def _perform(self, operation: Operation, keys: tuple[bytes, ...], action: Callable[[], _T]) -> _T:
        self._bind_clock()
        await trio.lowlevel.checkpoint_if_cancelled()
        fault = self._take_fault(operation, keys)
        if fault is not None and fault.stage != "after":
            await trio.sleep(fault.delay)
        result = self._run(operation, keys, action, fault)
        if fault is not None and fault.stage == "after":
            await trio.sleep(fault.delay)
            raise _lost(operation)
        await trio.lowlevel.checkpoint()
        return result

    def perform_blocking(self, operation: Operation, keys: tuple[bytes, ...], action: Callable[[], _T]) -> _T:
        """The same for a plain thread: a delay there watches this store's clock, which may be virtual."""
        fault = self._take_fault(operation, keys)
        if fault is not None and fault.stage != "after":
            self._wait(fault.delay)
        result = self._run(operation, keys, action, fault)
        if fault is not None and fault.stage == "after":
            self._wait(fault.delay)
            raise _lost(operation)
        return result

    def _run(self, operation: Operation, keys: tuple[bytes, ...], action: Callable[[], _T], fault: Fault | None) -> _T:
        if self._closed:
            raise StoreFailure("the location store is closed", applied="no", operation=operation)
        if fault is not None and fault.stage == "before":
            raise StoreFailure(f"the location store refused a {operation}", applied="no", operation=operation)
        with self._lock:
            self.calls.append((operation, keys))
            return action()

    def _take_fault(self, operation: Operation, keys: tuple[bytes, ...]) -> Fault | None:
        for fault in self._faults:
            if fault.matches(operation, keys):
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None

    def _bind_clock(self) -> None:
        if self._clock is None and self._trio_clock is None:
            self._trio_clock = trio.lowlevel.current_clock()

    def _now(self) -> int:
        if self._clock is not None:
            return self._clock()
        assert self._trio_clock is not None
        return EPOCH_MS + int(self._trio_clock.current_time() * 1000)

    def _wait(self, seconds: float) -> None:
        if seconds <= 0:
            return
        end = self._now() + seconds * 1000
        pause = threading.Event()
        while self._now() < end:
            pause.wait(_THREAD_POLL_SECONDS)

    def _live(self, key: bytes, now: int) -> _Row | None:
        row = self._rows.get(key)
        if row is None or (row.expires_at is not None and row.expires_at <= now):
            return None
        return row

    def read_row(self, key: bytes) -> Missing | Found:
        """`read` without its checks, faults and lock, which `_run` adds."""
        now = self._now()
        row = self._live(key, now)
        return Missing(now) if row is None else Found(row.value, row.version, row.expires_at, now)

    def write_batch(self, batch: Batch) -> Applied | Conflict:
        """`write` without its checks, faults and lock, which `_run` adds."""
        now = self._now()
        if not all(_holds(condition, self._live(condition.key, now)) for condition in batch.conditions):
            return Conflict(now)
        self._remove_expired(now)
        versions: dict[bytes, str] = {}
        for mutation in batch.mutations:
            match mutation:
                case Put(key, value, retention):
                    self._sequence += 1
                    versions[key] = str(self._sequence)
                    if key not in self._rows:
                        insort(self._keys, key)
                    expires_at = None if retention is None else now + retention
                    self._rows[key] = _Row(value, versions[key], expires_at)
                    if expires_at is not None:
                        heappush(self._expiries, (expires_at, key))
                case Delete(key):
                    self._remove(key)
        return Applied(MappingProxyType(versions), now)

    def _remove(self, key: bytes) -> None:
        if self._rows.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def _remove_expired(self, now: int) -> None:
        """Free what expired a minute ago; until then a clock that is set back still finds it, as with Redis."""
        while self._expiries and self._expiries[0][0] + SNAPSHOT_LIFE_MS <= now:
            expires_at, key = heappop(self._expiries)
            row = self._rows.get(key)
            if row is not None and row.expires_at == expires_at:
                self._remove(key)

    def _scan(self, prefix: bytes, cursor: str | None, limit: int) -> Page | Expired:
        now = self._now()
        self._snapshots = {
            name: snapshot for name, snapshot in self._snapshots.items() if now <= snapshot.taken_at + SNAPSHOT_LIFE_MS
        }
        if cursor is None:
            name, start = self._entropy.token(8).hex(), 0
            snapshot = _Snapshot(prefix, self._under(prefix, now), now)
        else:
            name, _, position = cursor.partition(".")
            found = self._snapshots.get(name)
            if found is None or found.prefix != prefix or not position.isdecimal() or int(position) > len(found.items):
                return Expired()
            snapshot, start = found, int(position)
        end, size = start, 0
        while end < len(snapshot.items) and end - start < limit:
            item = snapshot.items[end]
            size += item_size(item.key, item.value, item.version)
            if size > PAGE_BYTES and end > start:
                break
            end += 1
        if end == len(snapshot.items):
            self._snapshots.pop(name, None)
            return Page(snapshot.items[start:end], None, snapshot.taken_at)
        self._snapshots[name] = snapshot
        return Page(snapshot.items[start:end], f"{name}.{end}", snapshot.taken_at)

    def _under(self, prefix: bytes, now: int) -> tuple[Item, ...]:
        items = []
        for key in self._keys[bisect_left(self._keys, prefix) :]:
            if not key.startswith(prefix):
                break
            row = self._live(key, now)
            if row is not None:
                items.append(Item(key, row.value, row.version, row.expires_at))
        return tuple(items)


class _MemoryHandle:
    """The thread-side handle: the store's lock makes it safe, so there is no connection to own."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def read_blocking(self, key: bytes) -> Missing | Found:
        key = checked_key(key)
        return self._store.perform_blocking("read", (key,), lambda: self._store.read_row(key))

    def write_blocking(self, conditions: Sequence[Condition], mutations: Sequence[Mutation]) -> Applied | Conflict:
        batch = checked_batch(conditions, mutations)
        return self._store.perform_blocking("write", batch.keys, lambda: self._store.write_batch(batch))

    def close(self) -> None:
        """Nothing to give back."""


def _holds(condition: Condition, row: _Row | None) -> bool:
    match condition:
        case IfMissing():
            return row is None
        case IfVersion(_, version):
            return row is not None and row.version == version
        case IfValue(_, value):
            return row is not None and row.value == value


def _lost(operation: Operation) -> StoreFailure:
    applied: Literal["no", "unknown"] = "unknown" if operation == "write" else "no"
    return StoreFailure(f"no answer to a {operation} of the location store", applied=applied, operation=operation)
