"""What a store says about itself when somebody asks whether it is fit for use (`zlink doctor`).

It goes the way of a real call first (one read through `open_store`), because that is what a host needs to work:
credentials, script permission and version are all proven by it. What the server tells beyond that (INFO) is for
people; a server that forbids the question is still fit.
"""

from __future__ import annotations

from contextlib import suppress

import redis
import trio
from attrs import frozen

from zlinkpy.location.open import open_store, store_label, store_target
from zlinkpy.location.redis_store import OPERATION_TIMEOUT
from zlinkpy.location.redis_target import RedisTarget, exchange

_PROBED_KEY = b"zlink:inspection"


@frozen(kw_only=True)
class StoreInspection:
    """An answering store. Times in seconds."""

    label: str
    answered_in: float
    server: str | None
    """``valkey 9.1.0``; None where the server does not say."""
    may_evict: bool
    """True when the server throws rows away when memory is short (LO-066)."""
    eviction_policy: str | None


async def inspect_store(url: str) -> StoreInspection:
    """Ask the store behind `url`. Writes nothing; bounded by the store's operation timeout.

    Raises ConfigurationError for a URL or credentials that cannot work, StoreFailure when the store does not answer.
    """
    target = store_target(url)
    store = open_store(url)
    try:
        await store.read(_PROBED_KEY)  # also connects, so that the second is timed alone
        began = trio.current_time()
        await store.read(_PROBED_KEY)
        answered_in = trio.current_time() - began
        facts = await trio.to_thread.run_sync(_facts, target, abandon_on_cancel=True) if target is not None else {}
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()
    policy = facts.get("maxmemory_policy")
    version = facts.get("valkey_version") or facts.get("redis_version")
    return StoreInspection(
        label=store_label(url),
        answered_in=answered_in,
        server=f"{facts.get('server_name', 'redis')} {version}" if version else None,
        may_evict=facts.get("maxmemory", "0") != "0" and policy not in (None, "noeviction"),
        eviction_policy=policy,
    )


def _facts(target: RedisTarget) -> dict[str, str]:
    """INFO as a mapping, empty where it cannot be had. Blocks."""
    pools = target.open(1, OPERATION_TIMEOUT)
    try:
        with suppress(redis.RedisError, OSError):
            pool = pools.pool()
            connection = pool.get_connection()
            try:
                text = bytes(exchange(connection, "INFO")).decode("utf-8", "replace")
            finally:
                pool.release(connection)
            return dict(line.partition(":")[::2] for line in text.splitlines() if not line.startswith("#"))
    finally:
        pools.close()
    return {}
