"""The permits of the Application Job Queue: how much accepted work waits for its callback (SA-233).

A permit is held from the moment a record is received until just before the first instruction of its callback. All calls
are synchronous and none of them waits: who has to wait keeps its own queue (`on_available`), because only it knows what
it waits with and what must not be read meanwhile. That also keeps a permit from being lost in a cancelled wait.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from attrs import frozen

from zlinkpy.execution.options import JobQueueOptions


class Pressure(Enum):
    """Whether peers are asked to hold application records back (wire record 54)."""

    RUNNING = "running"
    PAUSED = "paused"


@frozen(kw_only=True)
class PermitStatistics:
    """A copy of the counts of one moment.

    Attributes:
        maximum: Permits of this host; `in_use` may exceed it by what local sends inside turns took over (D8).
        in_use: Reservations for records being received plus accepted jobs whose callback has not begun.
        peak: Highest `in_use` so far.
        refused: How often `try_take` found none.
        transitions: How often the pressure state changed.
        pressure: The current state.
    """

    maximum: int
    in_use: int
    peak: int
    refused: int
    transitions: int
    pressure: Pressure


class Permits:
    """The counter of one host.

    Attributes:
        maximum: Fixed at start.
        in_use: Permits taken and not returned.
        pressure: RUNNING or PAUSED, with hysteresis between the two marks (SA-232).
        on_pressure: Called with each new state, after it is in force, never twice with the same.
        on_available: Called once a permit is free again after a refusal. Whoever waits takes permits in its own order
            until it has none waiting or is refused; a refusal asks for the next call.
    """

    __slots__ = (
        "_pause_at",
        "_peak",
        "_refused",
        "_resume_at",
        "_transitions",
        "_wanted",
        "in_use",
        "maximum",
        "on_available",
        "on_pressure",
        "pressure",
    )

    def __init__(self, options: JobQueueOptions | None = None, *, processors: int | None = None) -> None:
        """Compute the maximum once (SA-229).

        Raises:
            ConfigurationError: As `JobQueueOptions.validate`.
        """
        options = options or JobQueueOptions()
        options.validate()
        self.maximum = options.maximum(processors)
        self.in_use = 0
        self.pressure = Pressure.RUNNING
        self.on_pressure: Callable[[Pressure], None] | None = None
        self.on_available: Callable[[], None] | None = None
        self._pause_at = options.pause_at(self.maximum)
        self._resume_at = options.resume_at(self.maximum)
        self._wanted = False
        self._peak = 0
        self._refused = 0
        self._transitions = 0

    def __repr__(self) -> str:
        return f"<Permits {self.in_use} of {self.maximum} in use, {self.pressure.value}>"

    def try_take(self) -> bool:
        """Take one permit if there is one. False asks for a call of `on_available` when there is."""
        if self.in_use >= self.maximum:
            self._wanted = True
            self._refused += 1
            return False
        self.take_over()
        return True

    def take_over(self) -> None:
        """Take one permit whether or not there is one: a local send inside a turn, which may not wait (D8, SA-242)."""
        in_use = self.in_use = self.in_use + 1
        if in_use > self._peak:
            self._peak = in_use
        if in_use >= self._pause_at and self.pressure is Pressure.RUNNING:
            self._change(Pressure.PAUSED)

    def release(self) -> None:
        """Return one permit.

        Raises:
            RuntimeError: None is in use: somebody returned a permit twice, and every number after this would be wrong.
        """
        if self.in_use <= 0:
            raise RuntimeError("a permit was returned twice")
        in_use = self.in_use = self.in_use - 1
        if self.pressure is Pressure.PAUSED and in_use <= self._resume_at:
            self._change(Pressure.RUNNING)
        if self._wanted and self.in_use < self.maximum and self.on_available is not None:
            self._wanted = False
            self.on_available()

    def statistics(self) -> PermitStatistics:
        """The counts of this moment."""
        return PermitStatistics(
            maximum=self.maximum,
            in_use=self.in_use,
            peak=self._peak,
            refused=self._refused,
            transitions=self._transitions,
            pressure=self.pressure,
        )

    def _change(self, pressure: Pressure) -> None:
        self.pressure = pressure
        self._transitions += 1
        if self.on_pressure is not None:
            self.on_pressure(pressure)
