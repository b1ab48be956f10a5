"""The catalogue and the in-memory double."""

from __future__ import annotations

import re
from typing import Any

import pytest

from zlinkpy.link import FailureReason
from zlinkpy.telemetry import CATALOGUE, InMemoryTelemetry, Metric, NullTelemetry, Telemetry, catalogue

IDENTITIES = [
    "tcp://10.0.0.5:7001",
    "node-6f1e9a52-93c5-4b7e-a0a4-0d5b1a4c7e11",
    "10.0.0.5",
    "9f86d081884c7d65",
    "",
    "x" * 256,
]


def good_labels(metric: Metric) -> dict[str, str]:
    return {key: min(values) if isinstance(values, frozenset) else "play" for key, values in metric.labels.items()}


@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=lambda metric: metric.name)
def test_every_metric_is_well_formed(metric: Metric) -> None:
    assert re.fullmatch(r"zlink(\.[a-z_]+){2,}", metric.name)
    assert metric.unit == "s" or re.fullmatch(r"\{[a-z]+\}", metric.unit)
    metric.check(good_labels(metric))


@pytest.mark.contract("LV-167")
@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=lambda metric: metric.name)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_no_label_of_any_metric_can_be_an_identity(metric: Metric, identity: str) -> None:
    for key in metric.labels:
        with pytest.raises(ValueError, match=f"the label {key} is"):
            metric.check(good_labels(metric) | {key: identity})
    forbidden = {"endpoint", "rid", "routing_id", "connection", "connection_id", "peer", "address", "pair_id"}
    assert not forbidden & metric.labels.keys()


def test_disconnect_reasons_are_the_failure_reasons() -> None:
    assert {reason.value for reason in FailureReason} == catalogue.DISCONNECT_REASONS


def test_configured_names_are_accepted_as_they_come() -> None:
    for name in ("play", "tic-tac-toe.v2", "spiel_ä", "n" * 255, "api 7"):
        assert name in catalogue.CONFIGURED


def test_the_double_adds_sets_and_collects() -> None:
    telemetry = InMemoryTelemetry()
    telemetry.counter(catalogue.LOOP_BLOCKED)
    telemetry.counter(catalogue.LOOP_BLOCKED, 2)
    assert telemetry.total(catalogue.LOOP_BLOCKED) == 3
    for surface, value in (("node", 1), ("node", 4), ("channel", 2)):
        telemetry.gauge(catalogue.REQUESTS_INFLIGHT, value, mesh_name="play", surface=surface)
    assert telemetry.total(catalogue.REQUESTS_INFLIGHT) == 6
    assert telemetry.total(catalogue.REQUESTS_INFLIGHT, surface="node") == 4
    for outcome, seconds in (("failed", 0.5), ("succeeded", 0.25), ("failed", 0.75)):
        telemetry.histogram(catalogue.REQUEST_DURATION, seconds, mesh_name="play", surface="node", outcome=outcome)
    assert telemetry.values(catalogue.REQUEST_DURATION, outcome="failed") == [0.5, 0.75]
    assert sorted(telemetry.values(catalogue.REQUEST_DURATION)) == [0.25, 0.5, 0.75]
    assert telemetry.total(catalogue.REQUEST_TIMEOUTS) == 0
    assert (catalogue.LOOP_BLOCKED, {}) in telemetry.series()
    assert len(telemetry.series()) == 5


@pytest.mark.parametrize(
    ("method", "name", "labels", "text"),
    [
        ("counter", "zlink.no.such_thing", {}, "not in the catalogue"),
        ("gauge", catalogue.LOOP_BLOCKED, {}, "is a counter, not a gauge"),
        ("counter", catalogue.LOOP_BLOCKED, {"rid": "x"}, r"takes the labels \[\], not \['rid'\]"),
        ("counter", catalogue.PRESSURE_TRANSITIONS, {}, r"takes the labels \['state'\], not \[\]"),
        (
            "counter",
            catalogue.PRESSURE_TRANSITIONS,
            {"state": "tired"},
            "the label state is paused, running, not 'tired'",
        ),
    ],
)
def test_the_double_refuses_what_the_catalogue_does_not_have(
    method: str, name: str, labels: dict[str, str], text: str
) -> None:
    telemetry: Any = InMemoryTelemetry()
    with pytest.raises(ValueError, match=text):
        getattr(telemetry, method)(name, 1, **labels)
    assert telemetry.series() == []


def test_a_counter_does_not_go_down() -> None:
    with pytest.raises(ValueError, match="cannot go down"):
        InMemoryTelemetry().counter(catalogue.LOOP_BLOCKED, -1)


def test_an_enum_member_is_a_label_value() -> None:
    telemetry = InMemoryTelemetry()
    telemetry.counter(
        catalogue.PEER_DISCONNECTS, scope_kind="mesh", scope_name="play", reason=FailureReason.PEER_DEADLINE
    )
    assert telemetry.total(catalogue.PEER_DISCONNECTS, reason="peer_deadline") == 1


def test_the_null_telemetry_takes_anything_and_keeps_nothing() -> None:
    telemetry: Telemetry = NullTelemetry()
    telemetry.counter("x", 3, a="b")
    telemetry.gauge("x", 1)
    telemetry.histogram("x", 1)
    assert vars(telemetry) == {}
