"""Every test here runs in every world, each with the clock that fits it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from trio.testing import MockClock

from tests.contract.transport.worlds import REAL_RATE, DealerTransport, MemoryWorld, World, ZmqWorld
from zlinkpy.transport import ZmqTransport


@pytest.fixture(params=["zmq", "dealer", "memory"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock(kind: str) -> MockClock:
    return MockClock(autojump_threshold=0) if kind == "memory" else MockClock(rate=REAL_RATE)


@pytest.fixture
def world(kind: str) -> Iterator[World]:
    """A world that proves at the end that nothing is left of it: no connection, no socket, no descriptor.

    That the ZeroMQ context terminates in time is proved by leaving the transport, which raises otherwise.
    """
    gc.collect()
    before = _descriptors()
    made: World = MemoryWorld() if kind == "memory" else ZmqWorld(DealerTransport if kind == "dealer" else ZmqTransport)
    yield made
    made.assert_nothing_left()
    gc.collect()
    assert _descriptors() <= before


def _descriptors() -> int:
    return len(os.listdir("/dev/fd"))
