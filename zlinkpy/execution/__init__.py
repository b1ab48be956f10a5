"""Running application callbacks: how many are taken on, and the workers that run them."""

from zlinkpy.execution.options import MAX_JOBS, JobQueueOptions, JobQueueProfile
from zlinkpy.execution.permits import Permits, PermitStatistics, Pressure
from zlinkpy.execution.processors import effective_processors
from zlinkpy.execution.workers import Job, Workers, WorkerStatistics, in_turn

__all__ = [
    "MAX_JOBS",
    "Job",
    "JobQueueOptions",
    "JobQueueProfile",
    "PermitStatistics",
    "Permits",
    "Pressure",
    "WorkerStatistics",
    "Workers",
    "effective_processors",
    "in_turn",
]
