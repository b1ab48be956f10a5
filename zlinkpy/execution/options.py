"""How many application jobs a host takes on, and when it asks its peers to hold back (SA-229..232)."""

from __future__ import annotations

import math
from enum import Enum

from attrs import frozen

from zlinkpy.errors import ConfigurationError
from zlinkpy.execution.processors import effective_processors

MAX_JOBS = 2**31 - 1
"""Largest configurable maximum; there is no unlimited value (SA-230)."""


class JobQueueProfile(Enum):
    """Jobs per effective processor: few keep queueing delay low, many absorb bursts (SA-229)."""

    COMPACT = 32
    LOW_LATENCY = 64
    BALANCED = 128
    THROUGHPUT = 256


@frozen(kw_only=True)
class JobQueueOptions:
    """Settings of the Application Job Queue; fixed at host start.

    Attributes:
        profile: Sets the maximum together with the processors, unless the maximum is given.
        max_queued_application_jobs: The maximum itself, 1..2**31 - 1; ``None`` takes the profile's.
        pause_percent: Share of the maximum, rounded up, at which the state becomes PAUSED; 1..100.
        resume_percent: Share, rounded down, at which it becomes RUNNING again; 0..99 and below `pause_percent`.
    """

    profile: JobQueueProfile = JobQueueProfile.BALANCED
    max_queued_application_jobs: int | None = None
    pause_percent: int = 80
    resume_percent: int = 60

    def validate(self) -> None:
        """Check the values, alone and together.

        Raises:
            ConfigurationError: Naming the option, its value and the range (SA-230, SA-231).
        """
        if self.max_queued_application_jobs is not None:
            _check("max_queued_application_jobs", self.max_queued_application_jobs, 1, MAX_JOBS)
        _check("pause_percent", self.pause_percent, 1, 100)
        _check("resume_percent", self.resume_percent, 0, 99)
        if self.resume_percent >= self.pause_percent:
            raise ConfigurationError(
                f"job_queue.resume_percent is {self.resume_percent} and job_queue.pause_percent {self.pause_percent}; "
                "resume must be below pause, or the state would flap"
            )

    def maximum(self, processors: int | None = None) -> int:
        """The number of permits: the configured one, else profile times `processors` (default: the effective ones)."""
        if self.max_queued_application_jobs is not None:
            return self.max_queued_application_jobs
        return self.profile.value * (effective_processors() if processors is None else processors)

    def pause_at(self, maximum: int) -> int:
        """Permits in use at which a running queue of `maximum` becomes PAUSED."""
        return math.ceil(maximum * self.pause_percent / 100)

    def resume_at(self, maximum: int) -> int:
        """Permits in use at which a paused queue of `maximum` becomes RUNNING."""
        return maximum * self.resume_percent // 100


def _check(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigurationError(f"job_queue.{name} is {value!r}; it must be a whole number in {low}..{high}")
