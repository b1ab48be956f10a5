"""pytest plugin: with `-n`, a test marked `alone` runs while the other workers run none.

Two tests that measure time on real sockets make each other late on a machine with two processors. Those that judge a
rate or a short delay say so with the marker; all others stand a neighbour.

Two file locks in a folder that the workers share. Every test takes `running`, shared or, marked `alone`, for itself;
whoever wants it passes the `gate` first, which a test that waits to be alone keeps closed. Without the gate a row of
short tests would never let it in.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # Only a worker has neighbours. Its folder is inside the one of the run.
    if hasattr(config, "workerinput"):
        folder = Path(config.option.basetemp).parent
        config.pluginmanager.register(Neighbours(folder), "zlinkpy-side-by-side")


class Neighbours:
    def __init__(self, folder: Path) -> None:
        self._gate = os.open(folder / "gate.lock", os.O_RDWR | os.O_CREAT)
        self._running = os.open(folder / "running.lock", os.O_RDWR | os.O_CREAT)

    # Before the watchdog: its time is the test's own, without the wait for others.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        alone = item.get_closest_marker("alone") is not None
        with held(self._gate, fcntl.LOCK_EX):
            fcntl.flock(self._running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        try:
            return (yield)
        finally:
            fcntl.flock(self._running, fcntl.LOCK_UN)

    def pytest_unconfigure(self) -> None:
        os.close(self._gate)
        os.close(self._running)


@contextmanager
def held(descriptor: int, how: int) -> Iterator[None]:
    fcntl.flock(descriptor, how)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
