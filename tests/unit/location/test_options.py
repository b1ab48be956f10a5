"""Settings of the location runtime."""

from __future__ import annotations

import math

import pytest
from attrs import fields

from zlinkpy.errors import ConfigurationError
from zlinkpy.location import LocationOptions


def lease(interval: float, ttl: float, timeout: float, margin: float) -> LocationOptions:
    return LocationOptions(
        owner_lease_renew_interval=interval,
        owner_lease_ttl=ttl,
        owner_lease_renew_timeout=timeout,
        owner_lease_fencing_margin=margin,
    )


@pytest.mark.contract("LO-004")
@pytest.mark.parametrize("numbers", [(5, 15, 3, 5), (1, 15, 3, 5), (5, 13.1, 3, 5)])
def test_lease_numbers_that_survive_one_failed_renewal(numbers: tuple[float, ...]) -> None:
    options = lease(*numbers)
    assert options.validate() is options


@pytest.mark.contract("LO-004")
@pytest.mark.parametrize("numbers", [(5, 13, 3, 5), (1, 11, 3, 5), (3, 9, 3, 3)])
def test_lease_numbers_that_do_not(numbers: tuple[float, ...]) -> None:
    with pytest.raises(ConfigurationError, match="must be below owner_lease_ttl"):
        lease(*numbers).validate()


@pytest.mark.contract("LO-005")
@pytest.mark.parametrize("value", [0, -1, -0.001])
@pytest.mark.parametrize(
    "name",
    [
        "owner_lease_renew_interval",
        "owner_lease_ttl",
        "owner_lease_renew_timeout",
        "owner_lease_fencing_margin",
        "polling_interval",
        "store_failure_grace",
    ],
)
def test_a_time_of_zero_or_less_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=name):
        LocationOptions(**{name: value}).validate()


@pytest.mark.contract("LO-006")
@pytest.mark.parametrize(("age", "follow"), [(25, 30), (0, 30), (15, 0), (0, 0)])
def test_route_cache_ages_that_fit_the_follow_duration(age: float, follow: float) -> None:
    LocationOptions(route_cache_max_age=age, message_follow_duration=follow).validate()


@pytest.mark.contract("LO-006")
@pytest.mark.parametrize(("age", "follow"), [(25.001, 30), (-1, 30)])
def test_route_cache_ages_that_do_not(age: float, follow: float) -> None:
    with pytest.raises(ConfigurationError, match="route_cache_max_age"):
        LocationOptions(route_cache_max_age=age, message_follow_duration=follow).validate()


@pytest.mark.parametrize("value", [math.nan, math.inf, "5", True, None])
def test_what_is_not_a_finite_number_is_refused(value: object) -> None:
    for attribute in fields(LocationOptions):
        with pytest.raises(ConfigurationError, match=attribute.name):
            LocationOptions(**{attribute.name: value}).validate()


def test_a_ttl_the_store_cannot_count_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="0.001"):
        lease(0.00005, 0.0004, 0.00005, 0.0001).validate()
