"""Numbers the runtime keeps, behind one small interface (`Telemetry`), with a closed catalogue of names and labels."""

from zlinkpy.telemetry import catalogue
from zlinkpy.telemetry.catalogue import CATALOGUE, Metric
from zlinkpy.telemetry.fence import FencedTelemetry, fenced, get_logger
from zlinkpy.telemetry.interface import NullTelemetry, Telemetry
from zlinkpy.telemetry.memory import InMemoryTelemetry

__all__ = [
    "CATALOGUE",
    "FencedTelemetry",
    "InMemoryTelemetry",
    "Metric",
    "NullTelemetry",
    "Telemetry",
    "catalogue",
    "fenced",
    "get_logger",
]
