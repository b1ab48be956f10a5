"""The one small interface through which the runtime reports numbers.

Call sites name a metric of `zlinkpy.telemetry.catalogue` and its labels. A provider should not raise, and a
host fences off one that does (SA-284). It must not block: it is called from the event loop, and lease threads call it
too, so it has to be safe for threads.
"""

from __future__ import annotations

from typing import Protocol


class Telemetry(Protocol):
    """Where numbers go."""

    def counter(self, name: str, n: float = 1, /, **labels: str) -> None:
        """Add `n` (at least 0) to a counter."""
        ...

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """Set a gauge to `value`."""
        ...

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        """Record one value of a distribution, in the metric's unit."""
        ...


class NullTelemetry:
    """Records nothing; what a host uses unless it is given something else."""

    def counter(self, name: str, n: float = 1, /, **labels: str) -> None:
        pass

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        pass

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        pass
