"""The router on a real server and the real clock: renewals on threads, a tenth of the default durations (SR §10)."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
import trio

from tests.location_server import TestServer
from zlinkpy.sessions.backends import open_session_stores
from zlinkpy.sessions.gate_machine import Gate
from zlinkpy.sessions.handlers import SessionHandler
from zlinkpy.sessions.router import SessionRouter
from zlinkpy.sessions.spi import TurnContext
from zlinkpy.sessions.types import (
    IdempotencyStatus,
    InterruptReason,
    LeaseHolder,
    LiveSessionStatus,
    RouterConfig,
    SessionLease,
    TurnInput,
    TurnResult,
)

SCALED = RouterConfig().scaled(0.1)


class Session:
    """Does what its input says."""

    accepts_offers = False

    async def run_turn(self, ctx: TurnContext) -> TurnResult:
        if ctx.input.text.startswith("block"):
            # The event loop stands still.
            threading.Event().wait(float(ctx.input.text.split()[1]))
        ctx.state = ctx.input.text.encode()
        return TurnResult(True, ctx.input.text)

    def interrupt(self, reason: InterruptReason, turn_id: str | None = None) -> None: ...

    def offer(self, input: TurnInput) -> bool:
        return False

    def take_unconsumed(self) -> list[TurnInput]:
        return []

    def status(self) -> LiveSessionStatus:
        return LiveSessionStatus("IDLE")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Work(SessionHandler, ref="work"):
    async def open(self, session_id: str, options: Mapping[str, Any], open_attributes: Mapping[str, Any]) -> Session:
        await trio.lowlevel.checkpoint()
        return Session()


def renewal_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("zlink-session-leases")]


@pytest.mark.contract("SR-014", "SR-286")
async def test_renewals_have_threads_of_their_own(valkey: TestServer) -> None:
    async with SessionRouter(Work, store=valkey.url, node_id="n1", config=SCALED) as router:
        renewer = router._core.renewer
        assert renewer.workers == len(renewal_threads()) == max(2, os.cpu_count() or 1)
        assert len({id(shard._renewer) for shard in renewer._shards}) == renewer.workers
        found = await router.submit(str(uuid.uuid4()), "once", handler="work", key=str(uuid.uuid4()))
        with trio.fail_after(5):
            assert (await found.future.result()).answer == "once"
    assert renewal_threads() == []


class Rival:
    """A node in a loop of its own that tries to get a session, and sweeps."""

    def __init__(self, url: str, session_id: str, seconds: float) -> None:
        self.url, self.session_id, self.seconds = url, session_id, seconds
        self.won: list[SessionLease] = []
        self.refused: list[LeaseHolder] = []
        self.stale: list[str] = []
        self.thread = threading.Thread(target=lambda: trio.run(self._main), name="rival")

    async def _main(self) -> None:
        stores = open_session_stores(self.url)
        end = trio.current_time() + self.seconds
        while trio.current_time() < end:
            answer = await stores.leases.try_acquire(self.session_id, "rival", 3.0)
            if isinstance(answer, SessionLease):
                self.won.append(answer)
            else:
                self.refused.append(answer)
            stale = await stores.idempotency.find_stale_in_flight(SCALED.idempotency_secondary_ttl, 100)
            self.stale += [entry.key for entry in stale]
            await trio.sleep(0.5)
        await stores.aclose()


@pytest.mark.contract("SR-164")
async def test_a_blocked_loop_loses_nothing(valkey: TestServer) -> None:
    session_id, key = str(uuid.uuid4()), str(uuid.uuid4())
    async with SessionRouter(Work, store=valkey.url, node_id="n1", config=SCALED) as router:
        first = await router.submit(session_id, "first", handler="work")
        with trio.fail_after(5):
            await first.future.result()
        rival = Rival(valkey.url, session_id, 4.0)
        rival.thread.start()
        found = await router.submit(session_id, "block 4.5", handler="work", key=key)
        with trio.fail_after(15):
            assert (await found.future.result()).success
        await trio.to_thread.run_sync(rival.thread.join)
        assert rival.won == []
        assert len(rival.refused) >= 4
        assert {holder.holder_id for holder in rival.refused} == {"n1"}
        assert key not in rival.stale
        view = await router._core.store.load(session_id)
        assert view is not None
        assert view.state == b"block 4.5"
        entry = await router._core.idempotency.find(key)
        assert entry is not None
        assert entry.status is IdempotencyStatus.DONE


@pytest.mark.contract("SR-165")
async def test_a_thousand_leases_are_renewed_in_time(valkey: TestServer) -> None:
    config = RouterConfig(lock_lease=9.0, lock_extend_interval=3.0)
    async with SessionRouter(Work, store=valkey.url, node_id="n1", config=config) as router:
        core, prefix = router._core, str(uuid.uuid4())
        limit = trio.CapacityLimiter(20)

        async def hold(number: int) -> None:
            async with limit:
                session_id = f"{prefix}-{number}"
                sent_at = trio.current_time()
                lease = await core.store.acquire(session_id, "n1", config.lock_lease)
                assert lease is not None
                core.seat(session_id).enter(Gate.DRAIN)
                core.install(core.seat(session_id), lease, sent_at)
                core.leave(core.seat(session_id))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(1000):
                    nursery.start_soon(hold, number)
        held = [seat.lease for seat in core.seats.values() if seat.lease is not None]
        assert len(held) == 1000
        last = max(each.renewal.next_deadline() or 0.0 for each in held)
        await trio.sleep(last - trio.current_time() + 1.0)
        now = trio.current_time()
        # Renewed lately: what is renewed a second late at the most expires no earlier than this.
        earliest = now - config.lock_extend_interval - 1.0 + config.lock_lease
        assert min(each.renewal.lapses_at for each in held) >= earliest
        assert all(each.is_usable for each in held)
