"""A socket that libzmq does not give back in time is an error that is told, never a shutdown that hangs."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.contract.transport.worlds import Reception, Recorder
from tests.integration.transport.conftest import Host
from zlinkpy.errors import InternalFailureError
from zlinkpy.transport import zmq_transport


async def test_a_dialled_connection_that_stays_is_named(
    host: Host, fast_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No time at all stands for a libzmq that takes longer than there is.
    monkeypatch.setattr(zmq_transport, "CLOSE_SECONDS", 0.0)
    with trio.fail_after(60):
        async with host() as far:
            listener = await far.listen("tcp://127.0.0.1:0", Reception().accept)
            with pytest.raises(InternalFailureError, match="still waited for <DialledConnection"):  # noqa: PT012
                async with host() as late:
                    late.dial(listener.endpoint, sink := Recorder())
                    await sink.until_opened()
            # Far is not late: it has nothing left when it goes.
            monkeypatch.undo()
    assert late.statistics().sockets == 0
