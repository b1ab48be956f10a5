"""Random interleavings of nodes over the session stores, with lost requests, lost answers and passing time.

Two sentences are checked over every history: at any instant at most one fence is valid and only under it something is
written; and every message that an inbox accepted is collected exactly once.
"""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
import trio

from tests.contract.sessions.conftest import MemoryBench, RedisBench
from tests.location_server import TestServer, valkey, valkey_session  # noqa: F401
from tests.simulation.scheduling import run_seeded
from zlinkpy.entropy import SeededEntropy
from zlinkpy.sessions.backends import SessionStores, memory_session_stores
from zlinkpy.sessions.errors import SessionBackendError, SessionNotHeldError
from zlinkpy.sessions.memory_backend import MemoryBackend
from zlinkpy.sessions.memory_records import MemoryRecordStore
from zlinkpy.sessions.session_store import NodeSessionStore
from zlinkpy.sessions.types import (
    Acquired,
    CollectedBatch,
    Existing,
    HeldElsewhere,
    IdempotencyEntry,
    InboundMessage,
    Inserted,
    LeaseHolder,
    Priority,
    SessionLease,
    TurnResult,
    Write,
)

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of planned failures are nothing to read."""
    caplog.set_level(logging.ERROR, "zlinkpy.sessions")


SEEDS = range(150)
MANY_SEEDS = range(150, 1500)
LEASE = 10.0
SESSIONS = ("s1", "s2")


def trouble(dice: random.Random, backend: MemoryBackend) -> None:
    """A few faults of every kind, on whatever call comes next."""
    for _ in range(dice.randrange(3)):
        backend.plan(
            dice.choice(["before", "after", "after", None]),  # type: ignore[arg-type]
            delay=dice.choice([0.0, 0.0, 0.5, 3.0, 14.0]),
            applied=dice.choice(["no", "unknown"]),  # type: ignore[arg-type]
        )


class Ledger:
    """What was written, seen where it is written, and what the writers were told."""

    def __init__(self, stores: SessionStores, *, beside: bool) -> None:
        self.stores = stores
        self.tokens: dict[str, list[int]] = {sid: [] for sid in SESSIONS}
        self.turns: dict[str, list[str]] = {sid: [] for sid in SESSIONS}
        self.granted: dict[tuple[str, int], str] = {}
        self.told: list[tuple[str, str]] = []
        inner: Any = stores.records
        commit = inner._commit

        def watched(sid: str, state: bytes | None, attrs: bytes, fence: int, turn_id: str) -> Write:
            record = inner._records.get(sid)
            version = None if record is None else record.version
            answer: Write = commit(sid, state, attrs, fence, turn_id)
            if answer is Write.OK and inner._records[sid].version != version:
                if beside:
                    assert stores.leases.current_token(sid) == fence  # type: ignore[union-attr]
                assert fence >= max(self.tokens[sid], default=0)
                self.tokens[sid].append(fence)
                self.turns[sid].append(turn_id)
            return answer

        inner._commit = watched

    def check(self) -> None:
        inner: Any = self.stores.records
        for sid in SESSIONS:
            assert len(set(self.turns[sid])) == len(self.turns[sid])
            record = inner._records.get(sid)
            assert (record.version if record else 0) == len(self.turns[sid])
        for sid, turn_id in self.told:
            assert turn_id in self.turns[sid]


async def holder(name: str, store: NodeSessionStore, ledger: Ledger, dice: random.Random) -> None:
    """Claims, works, renews, sleeps too long, gives back or forgets to."""
    for number in range(12):
        sid = dice.choice(SESSIONS)
        try:
            result = await store.claim(sid, "h1", name, LEASE)
        except SessionBackendError:
            await trio.sleep(dice.choice([0.1, 2, LEASE]))
            continue
        if isinstance(result, HeldElsewhere):
            await trio.sleep(dice.choice([0.1, 1, LEASE]))
            continue
        assert isinstance(result, Acquired)
        lease = result.lease
        assert ledger.granted.setdefault((sid, lease.token), name) == name
        for turn in range(dice.randrange(1, 4)):
            turn_id = f"{name}-{number}-{turn}"
            await trio.sleep(dice.choice([0, 0, 0.5, 0.5, 4, LEASE - 0.01, LEASE + 1]))
            try:
                if dice.random() < 0.5:
                    await store.renew(lease, LEASE)
                for _ in range(3):
                    try:
                        answer = await store.records().commit(sid, turn_id.encode(), {}, turn_id=turn_id)
                    except SessionBackendError as error:
                        if error.applied == "unknown":
                            continue
                        break
                    assert answer is Write.OK
                    ledger.told.append((sid, turn_id))
                    break
            except SessionNotHeldError:
                break
            except SessionBackendError:
                continue
        if dice.random() < 0.8:
            await store.release(lease)


async def two_holders(seed: int, *, beside: bool) -> Ledger:
    dice = random.Random(seed)
    stores = memory_session_stores()
    if not beside:
        stores = SessionStores(
            stores.backend, stores.leases, MemoryRecordStore(MemoryBackend()), stores.inbox, stores.idempotency
        )
    ledger = Ledger(stores, beside=beside)
    backends = {id(part.backend): part.backend for part in (stores.leases, stores.records)}  # type: ignore[union-attr]

    async def bother() -> None:
        while True:
            for backend in backends.values():
                trouble(dice, backend)
            await trio.sleep(dice.uniform(0, 20))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bother)
        async with trio.open_nursery() as holders:
            for number, name in enumerate(("A", "B", "A2")):
                node = NodeSessionStore(stores.leases, stores.records, entropy=SeededEntropy(f"{seed}-{number}"))
                holders.start_soon(holder, name, node, ledger, random.Random(f"{seed}-{name}"))
        nursery.cancel_scope.cancel()
    ledger.check()
    return ledger


def run_holders(seed: int) -> Ledger:
    return run_seeded(seed, lambda: two_holders(seed, beside=bool(seed % 3)))


@pytest.mark.contract("SR-053")
def test_no_two_fences_are_ever_valid() -> None:
    written = sum(len(ledger.told) for ledger in map(run_holders, SEEDS))
    assert written > 5 * len(SEEDS)


@pytest.mark.slow
@pytest.mark.contract("SR-053")
@pytest.mark.parametrize("start", MANY_SEEDS[::150])
def test_no_two_fences_are_ever_valid_in_many_histories(start: int) -> None:
    for seed in range(start, start + 150):
        run_holders(seed)


class Mail:
    """What was accepted, refused, left in doubt, and collected."""

    def __init__(self) -> None:
        self.accepted: set[str] = set()
        self.doubtful: set[str] = set()
        self.withdrawn: set[str] = set()
        self.collected: list[str] = []

    def check(self) -> None:
        assert len(self.collected) == len(set(self.collected))
        assert self.accepted - self.withdrawn <= set(self.collected)
        assert set(self.collected) <= (self.accepted | self.doubtful) - self.withdrawn


async def sender(name: str, stores: SessionStores, mail: Mail, dice: random.Random) -> None:
    for number in range(15):
        text = f"{name}-{number}"
        message = InboundMessage(dice.choice(SESSIONS), "h1", text, Priority(dice.randrange(3)))
        inbox_id, doubt = None, False
        for _ in range(4):
            try:
                inbox_id = await stores.inbox.deliver(message, text)
            except SessionBackendError as error:
                doubt = doubt or error.applied == "unknown"
                await trio.sleep(dice.choice([0, 0.5, 20]))
                continue
            break
        if inbox_id is not None:
            mail.accepted.add(text)
        elif doubt:
            mail.doubtful.add(text)
        if inbox_id is not None and dice.random() < 0.2:
            try:
                if await stores.inbox.withdraw(message.session_id, inbox_id):
                    mail.withdrawn.add(text)
            except SessionBackendError as error:
                # Asked again: gone by our hand or by a collector's, the collectors tell.
                if error.applied == "unknown":
                    mail.accepted.discard(text)
                    mail.doubtful.add(text)
        await trio.sleep(dice.choice([0, 0.1, 1]))


async def collector(name: str, stores: SessionStores, mail: Mail, dice: random.Random, rounds: int = 30) -> None:
    for number in range(rounds):
        sid, highest = dice.choice(SESSIONS), Priority(dice.randrange(3))
        await collected(f"{name}-{number}", sid, highest, stores, mail)
        await trio.sleep(dice.choice([0, 0.1, 1]))


async def collected(batch_id: str, sid: str, highest: Priority, stores: SessionStores, mail: Mail) -> None:
    """Ask until there is an answer, as a pass does while its lease lasts."""
    while True:
        try:
            batch = await stores.inbox.collect(sid, highest, batch_id)
        except SessionBackendError:
            await trio.sleep(0.5)
            continue
        break
    mail.collected += [found.input.text for found in batch.messages]


async def busy_inbox(seed: int) -> Mail:
    dice = random.Random(seed)
    stores = memory_session_stores()
    mail = Mail()

    async def bother() -> None:
        while True:
            trouble(dice, stores.backend)  # type: ignore[arg-type]
            await trio.sleep(dice.uniform(0, 2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bother)
        async with trio.open_nursery() as busy:
            for name in ("A", "B"):
                busy.start_soon(sender, name, stores, mail, random.Random(f"{seed}-{name}"))
                busy.start_soon(collector, f"c{name}", stores, mail, random.Random(f"{seed}-c{name}"))
        nursery.cancel_scope.cancel()
    stores.backend.heal()  # type: ignore[union-attr]
    for sid in SESSIONS:
        await collected(f"last-{sid}", sid, Priority.LATER, stores, mail)
    assert (await stores.inbox.scan_pending(0, 10))[0] == []
    mail.check()
    return mail


def run_inbox(seed: int) -> Mail:
    return run_seeded(seed, lambda: busy_inbox(seed))


@pytest.mark.contract("SR-063", "SR-424", "SR-426")
def test_no_message_is_lost_or_doubled() -> None:
    mails = [run_inbox(seed) for seed in SEEDS[:50]]
    assert sum(len(mail.collected) for mail in mails) > 20 * len(mails)
    assert sum(len(mail.doubtful) for mail in mails) > 0


@pytest.mark.slow
@pytest.mark.contract("SR-063", "SR-424", "SR-426")
@pytest.mark.parametrize("start", MANY_SEEDS[::150])
def test_no_message_is_lost_or_doubled_in_many_histories(start: int) -> None:
    for seed in range(start, start + 150):
        run_inbox(seed)


# --- both providers give the same answers

# Time passes in steps of 70 s and every limit lies 20 s or more away from their sums, so that the milliseconds which a
# real server takes change nothing.
STEP = 70.0
LIVES = (105.0, 175.0, 245.0)


ACTS = (
    *("acquire", "find", "extend", "release", "provision", "commit", "commit", "delete", "load"),
    *("deliver", "deliver", "collect", "withdraw", "purge", "pending"),
    *("put", "put", "find-key", "touch", "give", "take", "discard", "reset", "done", "stale"),
    *("wait", "wait"),
)


class Pair:
    """The same history on both providers, step by step. Answers are compared without what has to differ."""

    def __init__(self, memory: MemoryBench, redis: RedisBench, dice: random.Random) -> None:
        self.benches = (memory, redis)
        self.dice = dice
        self.leases: list[tuple[Any, ...]] = []
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.session = ""
        self.messages: list[tuple[str, str, str]] = []

    async def both(self, call: Any) -> tuple[Any, ...]:
        answers = [await call(bench.stores, side) for side, bench in enumerate(self.benches)]
        shown = [self.shown(answer, side) for side, answer in enumerate(answers)]
        assert shown[0] == shown[1]
        return tuple(answers)

    def shown(self, answer: Any, side: int) -> Any:
        match answer:
            case SessionLease():
                return ("lease", answer.session_id, answer.holder_id, self.rank(answer.token, side), answer.duration)
            case LeaseHolder():
                return ("holder", answer.holder_id, self.rank(answer.token, side), round(answer.expires_in / 35))
            case Inserted() | Existing():
                return (type(answer).__name__, self.shown(answer.entry, side))
            case IdempotencyEntry():
                fields = (answer.session_id, answer.input_hash, answer.status, answer.holder_id, answer.epoch)
                return (*fields, answer.ttl, answer.stale, answer.result)
            case CollectedBatch():
                return [(found.input.text, found.priority, found.turn_id) for found in answer.messages]
            case [*parts]:
                return [self.shown(part, side) for part in parts]
            case _:
                return answer

    def rank(self, token: int, side: int) -> int:
        seen = self.tokens.setdefault((self.session, side), [])
        if token not in seen:
            seen.append(token)
        return seen.index(token)

    async def step(self) -> None:
        dice = self.dice
        sid, key, node = dice.choice(SESSIONS), dice.choice(["k1", "k2"]), dice.choice(["A", "B"])
        self.session = sid
        life, tier = dice.choice(LIVES), Priority(dice.randrange(3))
        attempt, text = dice.choice([None, "a1", "a2"]), f"m{dice.randrange(10**6)}"
        lease = dice.choice(self.leases) if self.leases else None
        sent = dice.choice(self.messages) if self.messages else None
        match dice.choice(ACTS):
            case "acquire":
                answers = await self.both(lambda st, side: st.leases.try_acquire(sid, node, life, attempt))
                if isinstance(answers[0], SessionLease):
                    self.leases.append(answers)
            case "find":
                await self.both(lambda st, side: st.leases.find_holder(sid))
            case "extend" if lease:
                await self.both(lambda st, side: st.leases.extend(lease[side], life))
            case "release" if lease:
                await self.both(lambda st, side: st.leases.release(lease[side]))
            case "provision" if lease:
                ref = dice.choice([None, "h1", "h2"])
                await self.both(lambda st, side: st.records.provision(lease[side].session_id, ref, lease[side].token))
            case "commit" if lease:
                turn, state = dice.choice(["t1", "t2", text]), dice.choice([None, text.encode()])
                await self.both(
                    lambda st, side: st.records.commit(
                        lease[side].session_id, state, {"a": text}, lease[side].token, turn
                    )
                )
            case "delete" if lease and dice.random() < 0.3:
                await self.both(lambda st, side: st.records.delete(lease[side].session_id, lease[side].token))
            case "load":
                await self.both(lambda st, side: st.records.load(sid))
            case "deliver":
                delivery = dice.choice([None, "d1", text])
                message = InboundMessage(sid, "h1", text, tier, turn_id=text, idempotency_key=attempt)
                answers = [await bench.stores.inbox.deliver(message, delivery) for bench in self.benches]
                self.messages.append((sid, *answers))
            case "collect":
                batch = dice.choice([None, "b1", "b2", text])
                await self.both(lambda st, side: st.inbox.collect(sid, tier, batch))
                await self.both(lambda st, side: st.inbox.is_empty(sid))
            case "withdraw" if sent:
                await self.both(lambda st, side: st.inbox.withdraw(sent[0], sent[1 + side]))
            case "purge" if dice.random() < 0.3:
                await self.both(lambda st, side: st.inbox.purge(sid))
            case "pending":
                for bench in self.benches:
                    await bench.pass_time(0.1)
                await self.both(lambda st, side: _sorted_pending(st))
            case "put":
                await self.both(lambda st, side: st.idempotency.put_if_absent(key, sid, "ih", node, life))
            case "find-key":
                await self.both(lambda st, side: st.idempotency.find(key))
            case "touch":
                await self.both(lambda st, side: st.idempotency.touch(key, node))
            case "give":
                await self.both(lambda st, side: st.idempotency.release_holder(key, node, life))
            case "take":
                await self.both(lambda st, side: st.idempotency.acquire_holder(key, node, life))
            case "discard":
                await self.both(lambda st, side: st.idempotency.discard_reservation(key))
            case "reset":
                await self.both(lambda st, side: st.idempotency.compare_and_reset(key, node))
            case "done":
                allow = dice.random() < 0.5
                await self.both(lambda st, side: st.idempotency.mark_done(key, TurnResult(True, text), node, allow))
            case "stale":
                await self.both(lambda st, side: _stale_set(st))
            case "wait":
                for bench in self.benches:
                    await bench.pass_time(STEP)


async def _sorted_pending(stores: SessionStores) -> list[str]:
    """Without the age: rows can be aged on a real server, the ids inside a stream cannot."""
    found, _ = await stores.inbox.scan_pending(0, 10)
    return sorted(found)


async def _stale_set(stores: SessionStores) -> list[str]:
    found = await stores.idempotency.find_stale_in_flight(100, 10)
    return sorted(entry.key for entry in found)


@pytest.mark.parametrize("seed", range(6))
async def test_both_providers_tell_the_same_story(seed: int, valkey: TestServer) -> None:  # noqa: F811
    for part in range(4):
        valkey.command("FLUSHALL")
        redis = RedisBench(valkey)
        pair = Pair(MemoryBench(), redis, random.Random(f"{seed}-{part}"))
        try:
            for _ in range(150):
                await pair.step()
        finally:
            await redis.aclose()
