"""A socket that libzmq does not give back in time is an error that is told, never a shutdown that hangs."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder
from tests.integration.transport.conftest import Host
from zlinkpy.errors import InternalFailureError
from zlinkpy.transport import zmq_transport
from zlinkpy.transport.zmq_dialled import DialledConnection


async def test_a_dialled_connection_that_stays_is_named(
    host: Host, fast_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if libzmq never said that the socket is gone.
    monkeypatch.setattr(DialledConnection, "_bury", lambda self: None)
    monkeypatch.setattr(zmq_transport, "CLOSE_SECONDS", 0.1)
    with trio.fail_after(60):
        async with host() as far:
            listener = await far.listen("tcp://127.0.0.1:0", Reception().accept)
            with pytest.raises(InternalFailureError, match="still waited for <DialledConnection"):  # noqa: PT012
                async with host() as late:
                    late.dial(listener.endpoint, sink := Recorder())
                    await sink.until_opened()
    assert late.statistics().sockets == 0


async def test_threads_of_the_application_do_not_hold_up_a_close(host: Host, fast_clock: MockClock) -> None:
    occupied = threading.Event()
    try:
        async with trio.open_nursery() as nursery:
            limiter = trio.to_thread.current_default_thread_limiter()
            for _ in range(int(limiter.total_tokens)):
                nursery.start_soon(trio.to_thread.run_sync, occupied.wait)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(60):
                async with host() as far, host() as near:
                    listener = await far.listen("tcp://127.0.0.1:0", Reception().accept)
                    near.dial(listener.endpoint, sink := Recorder())
                    await sink.until_opened()
            occupied.set()
    finally:
        occupied.set()
