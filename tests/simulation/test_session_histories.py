"""A thousand histories of three session routers, and everything they have to reach (SR-461)."""

from __future__ import annotations

import pytest

from tests.simulation.test_session_simulation import simulate

STORE_CALLS = (
    "acquire_holder",
    "collect",
    "commit",
    "compare_and_reset",
    "delete",
    "deliver",
    "find",
    "find_holder",
    "find_stale_in_flight",
    "is_empty",
    "load",
    "mark_done",
    "provision",
    "purge",
    "put_if_absent",
    "release",
    "release_holder",
    "scan_pending",
    "try_acquire",
)
SEEN = (
    *(f"before {name}" for name in STORE_CALLS),
    *(f"after {name}" for name in STORE_CALLS),
    *("before extend", "after extend", "before touch", "after touch", "before withdraw", "slow"),
    *("EVENT", "EVICT", "INTERRUPT", "MESSAGE_ENQUEUED", "TURN_RESULT", "YIELD"),
    *("lost signal", "late signal", "doubled signal"),
    *("kill", "killed in a turn", "cut", "close", "closed True", "closed False", "release", "delete", "interrupt"),
    *("executed_locally", "forwarded", "attached", "submit cancelled", "offered", "withdrawn"),
    *("future ok", "future TurnFailedError", "future LeaseLostError", "future HolderLostError"),
    *("future SessionEvictedError", "future ForwardTimeoutError", "future NotHolderError"),
    *("future RouterClosedError", "future ReservationLostError"),
    *("interrupt LEASE_LOST", "interrupt SESSION_RELEASED", "interrupt SYSTEM_SHUTDOWN", "interrupt USER"),
    *("interrupt ignored", "beside a lost lease", "own reset", "stale reset", "commit ok"),
    *("ran again: died", "ran again: failed", "ran again: freed"),
)
"""What a thousand histories have to reach; a zero is a hole in the simulation."""


@pytest.mark.slow
@pytest.mark.contract("SR-461")
def test_a_thousand_histories() -> None:
    reached = simulate(range(1000))
    print(dict(sorted(reached.items())))
    assert not [name for name in SEEN if not reached[name]]
