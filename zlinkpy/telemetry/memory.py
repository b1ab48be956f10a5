"""Telemetry that keeps everything and refuses what the catalogue does not allow; for tests and small tools."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from zlinkpy.telemetry.catalogue import CATALOGUE, Kind

Series = tuple[str, frozenset[tuple[str, str]]]


class InMemoryTelemetry:
    """Every value recorded so far.

    Each call raises `ValueError` for a name the catalogue does not have, for a metric of another kind, and for labels
    that are not its own, such as an endpoint or routing id (LV-167). A host survives that as it survives any provider
    that fails (SA-284), so a test of a host looks at `refused`.

    Attributes:
        refused: What was wrong with each call that raised.
    """

    def __init__(self) -> None:
        self.refused: list[str] = []
        self._lock = threading.Lock()
        self._sums: dict[Series, float] = {}
        self._values: dict[Series, list[float]] = {}

    def counter(self, name: str, n: float = 1, /, **labels: str) -> None:
        series = self._series(name, "counter", labels)
        if n < 0:
            raise self._refuse(f"{name} is a counter and cannot go down by {-n}")
        with self._lock:
            self._sums[series] = self._sums.get(series, 0) + n

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        series = self._series(name, "gauge", labels)
        with self._lock:
            self._sums[series] = value

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        series = self._series(name, "histogram", labels)
        with self._lock:
            self._values.setdefault(series, []).append(value)

    def total(self, name: str, /, **labels: str) -> float:
        """The sum over all series of a counter or gauge that carry these labels; 0 where there is none."""
        wanted = labels.items()
        with self._lock:
            return sum(value for (metric, own), value in self._sums.items() if metric == name and own >= set(wanted))

    def values(self, name: str, /, **labels: str) -> list[float]:
        """What was recorded in the series of a histogram that carry these labels."""
        wanted = set(labels.items())
        with self._lock:
            return [
                value
                for (metric, own), values in self._values.items()
                if metric == name and own >= wanted
                for value in values
            ]

    def series(self) -> list[tuple[str, Mapping[str, str]]]:
        """Name and labels of every series, in the order they appeared."""
        with self._lock:
            return [(name, dict(labels)) for name, labels in (*self._sums, *self._values)]

    def _series(self, name: str, kind: Kind, labels: Mapping[str, str]) -> Series:
        metric = CATALOGUE.get(name)
        if metric is None:
            raise self._refuse(f"{name!r} is not in the catalogue")
        if metric.kind != kind:
            raise self._refuse(f"{name} is a {metric.kind}, not a {kind}")
        try:
            metric.check(labels)
        except ValueError as error:
            raise self._refuse(str(error)) from None
        return name, frozenset((key, str(value)) for key, value in labels.items())

    def _refuse(self, problem: str) -> ValueError:
        self.refused.append(problem)
        return ValueError(problem)
