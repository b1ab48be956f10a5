"""A holder that is stopped past its lease, and stores that came back empty: what the fence is for."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import trio

from tests.contract.sessions.conftest import Bench, MemoryBench, RedisBench
from zlinkpy.sessions.backends import SessionStores
from zlinkpy.sessions.session_store import NodeSessionStore
from zlinkpy.sessions.types import Acquired, InboundMessage, Priority, Write

HOLDER = """
import sys, trio
from zlinkpy.sessions.backends import open_session_stores
from zlinkpy.sessions.errors import SessionNotHeldError
from zlinkpy.sessions.session_store import NodeSessionStore

async def main():
    stores = open_session_stores(sys.argv[1], prefix="t")
    node = NodeSessionStore(stores.leases, stores.records)
    result = await node.claim("s", "h1", "N1", 0.5)
    print("claimed", result.lease.token, flush=True)
    await trio.to_thread.run_sync(sys.stdin.readline)
    try:
        print(await node.records().commit("s", b"N1", {}, turn_id="t1"), flush=True)
    except SessionNotHeldError:
        print("not held", flush=True)
    # Past every check of its own: only the record store is left to refuse.
    print(await stores.records.commit("s", b"N1", {}, result.lease.token, "t1"), flush=True)
    await stores.aclose()

trio.run(main)
"""


def started(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.contract("SR-052", "SR-053")
async def test_a_holder_stopped_past_its_lease_changes_nothing(redis_bench: RedisBench) -> None:
    process = started(redis_bench.server.url)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with trio.fail_after(30):
            claimed = await trio.to_thread.run_sync(process.stdout.readline)
            assert claimed.startswith("claimed")
            process.send_signal(signal.SIGSTOP)
            node = NodeSessionStore(redis_bench.stores.leases, redis_bench.stores.records)
            while not isinstance(result := await node.claim("s", "h1", "N2", 30), Acquired):
                pass
            assert result.lease.token > int(claimed.split()[1])
            assert await node.records().commit("s", b"N2", {}, turn_id="t2") is Write.OK
            process.send_signal(signal.SIGCONT)
            answers, _ = await trio.to_thread.run_sync(process.communicate, "go\n")
    finally:
        process.kill()
        process.wait()
    assert answers.split("\n")[:2] == ["not held", "Write.FENCED"]
    record = await node.load("s")
    assert record is not None
    assert (record.state, record.version) == (b"N2", 1)


def wipe(bench: Bench, stores: SessionStores) -> None:
    """Lose everything but the records, as where they lie on a server of their own."""
    if isinstance(bench, MemoryBench):
        for part in (stores.leases, stores.inbox, stores.idempotency):
            part.wipe()  # type: ignore[union-attr]
    elif isinstance(bench, RedisBench):
        for key in bench.command("KEYS", "*"):
            if not key.endswith(b":rec"):
                bench.command("DEL", key)


async def test_a_session_goes_on_after_everything_but_its_record_was_lost(bench: Bench) -> None:
    """The stores' half of SR-381: the old holder is out, the next one sees the old history."""
    stores = bench.stores
    old, new = NodeSessionStore(stores.leases, stores.records), NodeSessionStore(stores.leases, stores.records)
    for _ in range(5):
        first = await old.claim("s", "h1", "N1", 30)
        assert isinstance(first, Acquired)
        await old.release(first.lease)
    first = await old.claim("s", "h1", "N1", 30)
    assert isinstance(first, Acquired)
    assert await old.records().commit("s", b"history", {}, turn_id="t1") is Write.OK
    await stores.inbox.deliver(InboundMessage("s", "h1", "lost"))
    await stores.idempotency.put_if_absent("k", "s", "ih", "N1/a/1", 30)
    wipe(bench, stores)
    assert await old.renew(first.lease, 30) is False
    second = await new.claim("s", "h1", "N2", 30)
    assert isinstance(second, Acquired)
    assert second.lease.token > first.lease.token
    assert second.record.state == b"history"
    assert await stores.records.commit("s", b"late", {}, first.lease.token, "t2") is Write.FENCED
    assert await new.records().commit("s", b"new", {}, turn_id="t3") is Write.OK
    assert (await stores.inbox.collect("s", Priority.LATER)).is_empty
    assert await stores.idempotency.find("k") is None
    assert await stores.inbox.scan_pending(0, 10) == ([], None)
    assert await stores.idempotency.find_stale_in_flight(0, 10) == []
