"""The Location Store on Redis or Valkey: the async shell around `redis_session`.

The synchronous client on worker threads answers in half the time of an asynchronous one, and keeps a stuck server
away from the event loop. Writes and scans are one thread hop each, on a limiter of this store. Reads that start in
one scheduler turn, and those that arrive while earlier ones are on their way, share one round trip (LO-063). A
dedicated handle has a connection of its own and needs no event loop (LO-059). `redis_calls` bounds every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import redis
import trio
from attrs import define, field
from redis.cluster import RedisCluster

from zlinkpy.entropy import Entropy, SystemEntropy
from zlinkpy.location.arguments import (
    Batch,
    checked_batch,
    checked_key,
    checked_limit,
    checked_prefix,
    checked_token,
)
from zlinkpy.location.redis_calls import StoreCalls
from zlinkpy.location.redis_errors import timed_out
from zlinkpy.location.redis_rows import (
    READ_BYTES,
    Cursor,
    Layout,
    page_arguments,
    page_items,
    read_answer,
    walk_arguments,
    walk_length,
    write_answer,
    write_arguments,
)
from zlinkpy.location.redis_scripts import PAGE, READ, WALK, WRITE
from zlinkpy.location.redis_session import RedisSession, StoreIdentity, Ticket
from zlinkpy.location.redis_target import RedisTarget, target_of_client
from zlinkpy.location.store import (
    Applied,
    BlockingStore,
    Condition,
    Conflict,
    Expired,
    Found,
    Missing,
    Mutation,
    Page,
    StoreCorruption,
    StoreFailure,
)

DEFAULT_PREFIX = "zlink"
OPERATION_TIMEOUT = 3.0
CALL_THREADS = 8
READ_THREADS = 2
_READ_KEYS = 512


@define(eq=False)
class _Reader:
    """One `read` that waits for its share of a batch."""

    key: bytes
    done: trio.Event = field(factory=trio.Event)
    answer: Missing | Found | Exception | None = None


class RedisStore:
    """See the module.

    Args:
        target: where the server is; a `redis.Redis` or `RedisCluster` client is taken as a description of it.
        prefix: what all physical keys begin with; processes with one prefix share one domain (LO-013).
        operation_timeout: seconds, bounds every call.
        entropy: names versions and scans.
    """

    def __init__(
        self,
        target: RedisTarget | redis.Redis | RedisCluster,
        *,
        prefix: str = DEFAULT_PREFIX,
        operation_timeout: float = OPERATION_TIMEOUT,
        entropy: Entropy | None = None,
    ) -> None:
        if not operation_timeout > 0:
            raise ValueError(f"operation_timeout is a positive number of seconds, not {operation_timeout!r}")
        self._target = target_of_client(target) if isinstance(target, (redis.Redis, RedisCluster)) else target
        self._layout = Layout(prefix)
        self._timeout = operation_timeout
        self._entropy = entropy or SystemEntropy()
        self._identity = StoreIdentity(self._target.label)
        size = CALL_THREADS + READ_THREADS
        self._session = RedisSession(self._target, self._identity, size=size, timeout=operation_timeout)
        self._running = StoreCalls(self._identity, timeout=operation_timeout, threads=CALL_THREADS)
        self._reads: list[_Reader] = []
        self._read_batches = 0

    @property
    def label(self) -> str:
        """The server's address for people, without credentials."""
        return self._identity.label

    async def read(self, key: bytes) -> Missing | Found:
        """One row; shares its round trip with the reads around it. A failed read is always ``applied="no"``."""
        reader = _Reader(checked_key(key))
        await trio.lowlevel.checkpoint_if_cancelled()
        with self._running.counted("read"):
            self._reads.append(reader)
            trio.lowlevel.current_trio_token().run_sync_soon(self._send_reads, idempotent=True)
            try:
                with trio.move_on_after(self._timeout):
                    await reader.done.wait()
            finally:
                if reader in self._reads:
                    self._reads.remove(reader)
        match reader.answer:
            case None:
                raise timed_out("read", self.label, self._timeout, sent=True)
            case StoreFailure() as failure:  # a copy: one exception object must not be raised in several tasks
                raise StoreFailure(failure.message, applied=failure.applied, operation="read")
            case Exception() as error:
                raise error
            case answer:
                return answer

    async def write(self, conditions: Sequence[Condition], mutations: Sequence[Mutation]) -> Applied | Conflict:
        """One script call. After ``applied="unknown"`` read the rows; nothing here repeats a write (LO-054)."""
        batch = checked_batch(conditions, mutations)
        return await self._running.in_thread(
            "write", lambda ticket: write_rows(self._session, self._layout, self._entropy, batch, ticket)
        )

    async def scan(self, prefix: bytes, *, cursor: str | None = None, limit: int = 1000) -> Page | Expired:
        """One page, two script calls. A failed scan is always ``applied="no"``."""
        prefix, limit = checked_prefix(prefix), checked_limit(limit)
        place: Cursor | None = None
        if cursor is not None:
            place = Cursor.parse(checked_token(cursor, "cursor"))
            if place is None:
                await trio.lowlevel.checkpoint()
                return Expired()
        return await self._running.in_thread("scan", lambda ticket: self._page(prefix, place, limit, ticket))

    async def aclose(self) -> None:
        """Refuse new calls, let the running ones end (each within the operation timeout), drop the connections."""
        await self._running.close_after(self._session.close)

    def dedicated(self, *, timeout: float | None = None) -> BlockingStore:
        """A handle with one connection, for a plain thread; `timeout` seconds bound each of its socket operations."""
        session = RedisSession(self._target, self._identity, size=1, timeout=timeout or self._timeout)
        return RedisHandle(session, self._layout, self._entropy)

    def _page(self, prefix: bytes, place: Cursor | None, limit: int, ticket: Ticket) -> Page | Expired:
        name = self._entropy.token(8).hex() if place is None else place.name
        last = None if place is None else place.last
        found, *keys = self._session.run(
            "scan", WALK, self._layout.shared, walk_arguments(self._layout, name, prefix, last, limit), ticket
        )
        if not found:
            return Expired()
        records = [self._layout.record(key) for key in keys]
        at_end = len(keys) < walk_length(limit)
        answer = self._session.run(
            "scan",
            PAGE,
            (self._layout.snapshots, self._layout.ends, *records),
            page_arguments(name, prefix, limit, at_end=at_end),
            ticket,
        )
        if not answer[0]:
            return Expired()
        _, taken, more, used, *members = answer
        cursor = str(Cursor(name, keys[used - 1])) if more else None
        return Page(page_items(members, keys), cursor, taken)

    # Reads: a queue on the trio thread, at most READ_THREADS batches in worker threads.

    def _send_reads(self) -> None:
        token = trio.lowlevel.current_trio_token()
        while self._reads and self._read_batches < READ_THREADS:
            batch, self._reads = self._reads[:_READ_KEYS], self._reads[_READ_KEYS:]
            self._read_batches += 1
            work = partial(read_rows, self._session, self._layout, [reader.key for reader in batch])
            trio.lowlevel.start_thread_soon(work, partial(self._deliver, token, batch))

    def _deliver(self, token: trio.lowlevel.TrioToken, batch: list[_Reader], result: Any) -> None:
        """In the worker thread: `read_rows` reports failures per key and raises nothing."""
        try:
            token.run_sync_soon(self._take_answers, batch, result.unwrap())
        except trio.RunFinishedError:  # the loop has ended; nobody waits
            self._read_batches -= 1

    def _take_answers(self, batch: list[_Reader], answers: dict[bytes, Missing | Found | Exception]) -> None:
        self._read_batches -= 1
        for reader in batch:
            reader.answer = answers[reader.key]
            reader.done.set()
        self._send_reads()


class RedisHandle:
    """One connection for one plain thread; what lease renewal writes through (LO-059)."""

    def __init__(self, session: RedisSession, layout: Layout, entropy: Entropy) -> None:
        self._session = session
        self._layout = layout
        self._entropy = entropy

    def read_blocking(self, key: bytes) -> Missing | Found:
        key = checked_key(key)
        answer = read_rows(self._session, self._layout, [key])[key]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def write_blocking(self, conditions: Sequence[Condition], mutations: Sequence[Mutation]) -> Applied | Conflict:
        batch = checked_batch(conditions, mutations)
        return write_rows(self._session, self._layout, self._entropy, batch, Ticket())

    def close(self) -> None:
        """Cut the connection; a call that is running fails. From any thread, idempotent."""
        self._session.close()


def read_rows(session: RedisSession, layout: Layout, keys: Sequence[bytes]) -> dict[bytes, Missing | Found | Exception]:
    """Read many keys in as few round trips as their size allows; one unreadable row does not spoil the others."""
    answers: dict[bytes, Missing | Found | Exception] = {}
    rest = list(dict.fromkeys(keys))
    while rest:
        try:
            now, *members = session.run("read", READ, [layout.record(key) for key in rest], [READ_BYTES])
        except Exception as error:  # noqa: BLE001 - handed to every reader of the batch, who raises it
            return answers | dict.fromkeys(rest, error)
        for key, member in zip(rest, members, strict=False):
            try:
                answers[key] = read_answer(member, key, now)
            except StoreCorruption as error:
                answers[key] = error
        rest = rest[len(members) :]
    return answers


def write_rows(
    session: RedisSession, layout: Layout, entropy: Entropy, batch: Batch, ticket: Ticket
) -> Applied | Conflict:
    """One script call. The nonce makes versions differ even where a flush restarted the sequence (LO-033)."""
    keys = (*layout.shared, *(layout.record(key) for key in batch.keys))
    arguments = write_arguments(layout, batch, entropy.token(4))
    return write_answer(session.run("write", WRITE, keys, arguments, ticket), batch)
