"""A host whose owner lease is somebody else's: it says so and starts nothing more (LO-111)."""

from __future__ import annotations

import pytest
import trio

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH, Ask, Lan
from zlinkpy.location import LeaseDriver, keys
from zlinkpy.location.memory_store import MemoryStore
from zlinkpy.location.rows import LeaseRow
from zlinkpy.location.store import Put


@pytest.mark.contract("LO-111", "LV-124")
async def test_a_host_that_lost_its_lease_is_in_error_and_takes_no_calls(autojump_clock: object, lan: Lan) -> None:
    store = MemoryStore()
    host = zl.Host(
        location_store=store,
        transport=lambda _entropy: lan.network.transport("a"),
        lease_driver=LeaseDriver.LOOP,
        watchdog=False,
    )
    host.mesh(MESH, listen="tcp://127.0.0.1:0").serve_channel(CHANNEL)
    async with host.run() as rt:
        [lease] = (await store.scan(b"owner-lease")).items
        owner = lease.key.decode().rpartition("\0")[2]
        stolen = LeaseRow(owner_id=owner, lease_generation=999).encode()
        await store.write([], [Put(keys.owner_lease(owner), stolen, 60_000)])
        with trio.fail_after(30):
            async for observed in rt.observe():
                if observed.status.state is zl.HostState.ERROR:
                    break
        assert not rt.status.is_ready
        assert not rt.status.accepting_work
        with pytest.raises(zl.ShuttingDownError):
            await rt.request_to_channel(CHANNEL, Ask())
        result = await rt.shutdown()
        assert result.outcome is zl.TerminationOutcome.STOPPED
    store.reopen()
    row = await store.read(keys.owner_lease(owner))
    assert getattr(row, "value", None) == stolen, "a foreign row is left alone"
