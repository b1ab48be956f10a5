"""A host whose task is cancelled at any step of its start ends, whatever it had begun (LV-158).

A start that does not end cannot be waited for inside trio: it runs on a thread, and the thread is given up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import trio

import zlinkpy as zl
from tests.contract.host.test_cancellation import CutAt
from zlinkpy.entropy import Entropy
from zlinkpy.transport import MemoryNetwork, Transport, ZmqTransport

SECONDS = 20.0


def in_memory(entropy: Entropy) -> Transport:
    return MemoryNetwork(seed=1).transport("n")


def on_sockets(entropy: Entropy) -> Transport:
    return ZmqTransport(entropy=entropy)


@pytest.mark.contract("LV-158")
@pytest.mark.parametrize("watchdog", [False, True])
@pytest.mark.parametrize("transport", [in_memory, on_sockets])
def test_a_start_cut_at_any_step_ends(transport: Callable[[Entropy], Transport], watchdog: bool) -> None:
    ends: list[tuple[int, bool]] = []

    async def main(step: int) -> bool:
        host = zl.Host(transport=transport, watchdog=watchdog)
        host.mesh("m", rid="n")
        with trio.CancelScope() as scope:
            cut = CutAt(trio.lowlevel.current_task(), scope, step)
            trio.lowlevel.add_instrument(cut)
            async with host.run():
                trio.lowlevel.remove_instrument(cut)
        return cut.fired

    def every_step() -> None:
        step, fired = 0, True
        while fired:
            fired = trio.run(main, step)
            ends.append((step, fired))
            step += 1

    thread = threading.Thread(target=every_step, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), f"a start cut at step {len(ends)} does not end"
    assert len(ends) > 3
