"""What keeps a failing log or metrics provider away from the calls of an application (SA-284).

Loggers and metrics are called in the middle of everything: in the receive stage, while a request is completed, on the
lease's thread. An exception there would close a connection or end a call that has nothing to do with it. So whoever
logs takes its logger from `get_logger`, and a host puts its provider behind a `FencedTelemetry`; a failure ends there
and is told once for each kind.

A kind is the operation and the type of the exception: neither a remote peer nor time makes more of them.

Rejected: a fence around each handler instead of the logger. Handlers are the application's, come and go while the host
runs, and a filter can raise as well.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any

from zlinkpy.telemetry.interface import NullTelemetry, Telemetry

Kind = tuple[str, type[BaseException]]

failed_logs: dict[Kind, int] = {}
"""How many records could not be logged, by kind."""


class FencedLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that never raises. The record names the caller as if there were nothing in between."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """The record as it is."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log, or tell once on standard error why that cannot be done."""
        try:
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            self.logger.log(level, msg, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever a handler or filter raises
            kind = (self.logger.name, type(error))
            failed_logs[kind] = failed_logs.get(kind, 0) + 1
            if failed_logs[kind] == 1:
                _tell(f"zlinkpy: records of the logger {self.logger.name} get lost, because logging fails:")


def get_logger(name: str) -> FencedLogger:
    """The logger of this name behind a fence."""
    return FencedLogger(logging.getLogger(name), {})


def _tell(text: str) -> None:
    # There is no log to say it in. A service may have no standard error either.
    try:
        sys.stderr.write(f"{text}\n{traceback.format_exc()}")
    except Exception:  # noqa: BLE001 - the last place there is
        return


log = get_logger("zlinkpy.telemetry")


class FencedTelemetry:
    """A provider whose failures end here.

    Attributes:
        failures: How many values it did not take, by kind.
    """

    def __init__(self, provider: Telemetry) -> None:
        self.failures: dict[Kind, int] = {}
        self._provider = provider

    def counter(self, name: str, n: float = 1, /, **labels: str) -> None:
        """See `Telemetry.counter`."""
        try:
            self._provider.counter(name, n, **labels)
        except Exception as error:  # noqa: BLE001 - the fence
            self._failed("counter", name, error)

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """See `Telemetry.gauge`."""
        try:
            self._provider.gauge(name, value, **labels)
        except Exception as error:  # noqa: BLE001 - the fence
            self._failed("gauge", name, error)

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        """See `Telemetry.histogram`."""
        try:
            self._provider.histogram(name, value, **labels)
        except Exception as error:  # noqa: BLE001 - the fence
            self._failed("histogram", name, error)

    def _failed(self, operation: str, name: str, error: Exception) -> None:
        kind = (operation, type(error))
        self.failures[kind] = self.failures.get(kind, 0) + 1
        if self.failures[kind] == 1:
            log.error(
                "the telemetry provider %s failed at the %s %s; its values get lost, calls go on. "
                "This is said once for each kind of failure.",
                type(self._provider).__name__,
                operation,
                name,
                exc_info=error,
            )


def fenced(provider: Telemetry | None) -> Telemetry:
    """The provider behind a fence; without one nothing is recorded."""
    return FencedTelemetry(provider) if provider is not None else NullTelemetry()
