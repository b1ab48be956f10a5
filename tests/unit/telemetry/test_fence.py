"""The fence around providers of logs and metrics that fail."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from zlinkpy.telemetry import FencedTelemetry, InMemoryTelemetry, NullTelemetry, catalogue, fenced, get_logger
from zlinkpy.telemetry.fence import failed_logs


class Broken:
    """A provider that raises what it is told to."""

    error: BaseException = OSError("the collector is gone")

    def counter(self, name: str, n: float = 1, /, **labels: str) -> None:
        raise self.error

    gauge = histogram = counter


class BrokenHandler(logging.Handler):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self.error


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The plain logger behind ``get_logger("zlinkpy.test")``; the test leaves no failure behind."""
    plain = logging.getLogger("zlinkpy.test")
    plain.propagate = False
    yield plain
    plain.propagate = True
    plain.handlers.clear()
    plain.filters.clear()
    failed_logs.clear()


@pytest.mark.contract("SA-284")
def test_a_provider_that_fails_is_told_once_for_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken()
    telemetry = FencedTelemetry(broken)
    for _ in range(3):
        telemetry.counter(catalogue.LOOP_BLOCKED)
        telemetry.gauge(catalogue.REQUESTS_INFLIGHT, 1, mesh_name="m", surface="node")
        telemetry.histogram(catalogue.REQUEST_DURATION, 0.1, mesh_name="m")
    broken.error = ValueError("another kind")
    for _ in range(2):
        telemetry.counter(catalogue.LOOP_BLOCKED, 5)
    assert telemetry.failures == {
        ("counter", OSError): 3,
        ("gauge", OSError): 3,
        ("histogram", OSError): 3,
        ("counter", ValueError): 2,
    }
    assert len(caplog.records) == 4
    first = caplog.records[0]
    assert (first.name, first.levelno) == ("zlinkpy.telemetry", logging.ERROR)
    assert "Broken failed at the counter zlink.host.loop_blocked" in first.getMessage()
    assert first.exc_info is not None
    assert isinstance(first.exc_info[1], OSError)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_the_process_passes(error: BaseException, logger: logging.Logger) -> None:
    broken = Broken()
    broken.error = error
    with pytest.raises(type(error)):
        FencedTelemetry(broken).counter(catalogue.LOOP_BLOCKED)
    logger.addHandler(BrokenHandler(error))
    with pytest.raises(type(error)):
        get_logger("zlinkpy.test").error("something")


def test_values_reach_a_provider_that_works() -> None:
    inner = InMemoryTelemetry()
    telemetry = fenced(inner)
    telemetry.counter(catalogue.LOOP_BLOCKED)
    telemetry.counter(catalogue.LOOP_BLOCKED, 4)
    telemetry.gauge(catalogue.REQUESTS_INFLIGHT, 7, mesh_name="m", surface="node")
    telemetry.histogram(catalogue.LEASE_RENEW_LATENESS, 0.5, scope_kind="mesh", scope_name="m")
    assert inner.total(catalogue.LOOP_BLOCKED) == 5
    assert inner.total(catalogue.REQUESTS_INFLIGHT, mesh_name="m") == 7
    assert inner.values(catalogue.LEASE_RENEW_LATENESS) == [0.5]
    assert inner.refused == []
    telemetry.counter("zlink.unheard.of")
    assert inner.refused == ["'zlink.unheard.of' is not in the catalogue"]
    assert isinstance(fenced(None), NullTelemetry)


@pytest.mark.contract("SA-284")
@pytest.mark.parametrize("where", ["handler", "filter", "format"])
def test_a_log_that_fails_is_told_once_on_standard_error(
    logger: logging.Logger, where: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_filter(record: logging.LogRecord) -> bool:
        raise OSError("the disk is full")

    if where == "handler":
        logger.addHandler(BrokenHandler(OSError("the disk is full")))
    elif where == "filter":
        logger.addFilter(broken_filter)
    else:

        class Formatting(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                record.getMessage()

        logger.addHandler(Formatting())
    log = get_logger("zlinkpy.test")
    for call in (log.error, log.exception, log.critical):
        call("two %s %s", "only one") if where == "format" else call("a record")
    (kind,) = failed_logs
    assert kind == ("zlinkpy.test", TypeError if where == "format" else OSError)
    assert failed_logs[kind] == 3
    told = capsys.readouterr().err
    assert told.count("records of the logger zlinkpy.test get lost") == 1
    assert ("the disk is full" in told) is (where != "format")
    # A process without standard error is no reason to raise either.
    failed_logs.clear()
    monkeypatch.setattr(sys, "stderr", None)
    log.error("a record %s") if where != "format" else log.error("two %s %s", "only one")
    assert sum(failed_logs.values()) == 1


def test_a_record_names_its_caller_and_carries_what_it_was_given(logger: logging.Logger) -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger.addHandler(Keep())
    logger.setLevel(logging.INFO)
    log = get_logger("zlinkpy.test")
    log.debug("below the level")
    log.info("%d of %s", 3, "them", extra={"mesh": "play"})
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("failed")
    log.log(logging.WARNING, "directly")
    assert [record.getMessage() for record in records] == ["3 of them", "failed", "directly"]
    assert {record.funcName for record in records} == {"test_a_record_names_its_caller_and_carries_what_it_was_given"}
    details: Any = records[0]
    assert details.mesh == "play"
    assert records[1].exc_info is not None
    assert not log.isEnabledFor(logging.DEBUG)
