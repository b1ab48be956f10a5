"""Real sockets, a clock that runs fast, and a proof that nothing is left."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from trio.testing import MockClock

from zlinkpy.entropy import SeededEntropy
from zlinkpy.transport import ZmqTransport

Host = Callable[..., AbstractAsyncContextManager[ZmqTransport]]


@pytest.fixture
def fast_clock() -> MockClock:
    return MockClock(rate=5)


@pytest.fixture
def host() -> Iterator[Host]:
    """Makes transports; at the end no socket, descriptor or thread of theirs is left."""
    gc.collect()
    descriptors = len(os.listdir("/dev/fd"))
    made: list[ZmqTransport] = []

    @asynccontextmanager
    async def make(**options: Any) -> AsyncIterator[ZmqTransport]:
        keys = options.pop("keys", None)
        transport = ZmqTransport(entropy=SeededEntropy(len(made)), **options)
        if keys is not None:
            transport.secure(keys)
        made.append(transport)
        async with transport:
            yield transport

    yield make
    for transport in made:
        assert transport.statistics().sockets == 0
    gc.collect()
    assert len(os.listdir("/dev/fd")) <= descriptors
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("zmq context term")]
