"""Running application callbacks: how many are taken on, where they wait, the workers that run them, the timer."""

from zlinkpy.execution.failures import is_failure
from zlinkpy.execution.ingress import Ingress, Pausable
from zlinkpy.execution.options import MAX_JOBS, JobQueueOptions, JobQueueProfile
from zlinkpy.execution.permits import Permits, PermitStatistics, Pressure
from zlinkpy.execution.processors import effective_processors
from zlinkpy.execution.timer import SharedTimer, TimerSource
from zlinkpy.execution.workers import Job, Workers, WorkerStatistics, in_turn

__all__ = [
    "MAX_JOBS",
    "Ingress",
    "Job",
    "JobQueueOptions",
    "JobQueueProfile",
    "Pausable",
    "PermitStatistics",
    "Permits",
    "Pressure",
    "SharedTimer",
    "TimerSource",
    "WorkerStatistics",
    "Workers",
    "effective_processors",
    "in_turn",
    "is_failure",
]
