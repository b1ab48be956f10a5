"""Nodes that die, stop or hang while they are asked: each request ends once, and the others do not notice."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from tests.integration.load import QUICK, Load, caller, free_endpoint, processes, settings_of
from tests.location_server import TestServer
from tests.puppet import until


@pytest.mark.contract("SA-208", "SA-198")
@pytest.mark.parametrize("discovered", [False, True], ids=["configured", "discovered"])
async def test_a_killed_node_is_out_at_once_and_used_again_after_its_restart(
    place: Path, valkey: TestServer, monkeypatch: pytest.MonkeyPatch, discovered: bool
) -> None:
    """Configured, it comes back as the same node at the same endpoint; discovered, as a new one."""
    endpoint, other = free_endpoint(), free_endpoint()
    store = ["--store", valkey.url, *settings_of(QUICK)] if discovered else []
    async with processes(place) as start:

        async def node(rid: str, listen: str) -> object:
            if not discovered:
                monkeypatch.setenv("NODE_RID", rid)
            return await start("--listen", listen, *store, *([] if discovered or rid == "a" else ["--peer", endpoint]))

        a = await node("a", endpoint)
        b = await node("b", other)
        peers = [] if discovered else [endpoint, other]
        async with caller(peers=peers, store=valkey.url if discovered else None) as here:
            await until(lambda: here.targets == 2)
            async with Load.on(here.rt) as load:
                await until(lambda: load.answered_by[a.pid] > 20 and load.answered_by[b.pid] > 20)
                dials_of_b = here.peer(b.rid).dials
                a.signal(signal.SIGKILL)
                began = trio.current_time()
                await until(lambda: not here.is_ready(a.rid), 2, step=0.001)
                assert trio.current_time() - began < 0.5
                assert here.targets == 1
                # Nothing more goes there; what was under way has ended by now.
                await trio.sleep(0.2)
                unavailable = load.ends["UnavailableError"]
                assert unavailable <= 8
                answered = load.answered_by[b.pid]
                await until(lambda: load.answered_by[b.pid] > answered + 50)
                assert load.ends["UnavailableError"] == unavailable
                again = await node("a", endpoint)
                await until(lambda: load.answered_by[again.pid] > 20, 10)
                assert here.is_ready(again.rid)
                assert here.targets == 2
            load.assert_each_ended_once()
            assert set(load.ends) <= {"answered", "UnavailableError"}
            assert (again.rid == a.rid) is not discovered
            # The connection with b is the one there was at the beginning.
            assert here.is_ready(b.rid)
            assert here.peer(b.rid).dials == dials_of_b
            assert (here.connects, here.disconnects) == (3, 1)
        await trio.to_thread.run_sync(b.wait_for_error, f"peer {a.rid} of mesh play is not ready any more")
        assert b.stderr.count("is not ready any more") <= 3  # a, and the caller when it left


@pytest.mark.slow
async def test_a_stopped_process_is_out_within_15_s_and_back_when_it_goes_on(place: Path) -> None:
    """SIGSTOP: no close is seen. Its requests end by their own deadline or with the route; the other node serves."""
    async with processes(place) as start:
        a, b = await start(), await start()
        async with caller(peers=[a.endpoint, b.endpoint]) as here:
            await until(lambda: here.targets == 2)
            async with Load.on(here.rt, timeout=30) as load:
                await until(lambda: load.answered_by[a.pid] > 20)
                a.signal(signal.SIGSTOP)
                began = trio.current_time()
                await until(lambda: not here.is_ready(a.rid), 20)
                assert trio.current_time() - began <= 15.5
                assert here.peer(a.rid).last_failure.reason == "peer_deadline"
                # Their callers are woken in that instant and run in the next.
                await until(lambda: load.ends["UnavailableError"] == 8, 1)
                answered = load.answered_by[b.pid]
                await until(lambda: load.answered_by[b.pid] > answered + 100)
                assert load.ends["UnavailableError"] == 8
                served = load.answered_by[a.pid]
                a.signal(signal.SIGCONT)
                await until(lambda: load.answered_by[a.pid] > served + 20, 15)
            load.assert_each_ended_once()
            assert here.peer(b.rid).dials == 1
            assert here.disconnects == 1


@pytest.mark.parametrize(
    "seconds", [4, pytest.param(60, marks=pytest.mark.slow)], ids=["longer than the leases", "a minute"]
)
async def test_traffic_goes_on_while_the_store_is_paused(place: Path, valkey: TestServer, seconds: float) -> None:
    """Not one request fails; a node that starts meanwhile is found when the store is back."""
    arguments = ["--store", valkey.url, *settings_of(QUICK)]
    async with processes(place) as start:
        a = await start(*arguments)
        async with caller(store=valkey.url) as here:
            await until(lambda: here.targets == 1)
            async with Load.on(here.rt) as load:
                await until(lambda: load.answered_by[a.pid] > 20)
                valkey.pause()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep, seconds)
                    b = await start("--start-without-store", *arguments)
                before = load.answered_by[a.pid]
                await until(lambda: load.answered_by[a.pid] > before + 50)
                assert here.rt.status.store.state in ("failing", "unavailable")
                assert here.rt.status.is_ready
                assert here.targets == 1
                valkey.resume()
                await until(lambda: load.answered_by[b.pid] > 20, 15)
                await until(lambda: here.rt.status.store.state == "available", 15)
            load.assert_each_ended_once()
            assert set(load.ends) == {"answered"}
            assert here.disconnects == 0
