"""What every test of the project shares: the contract report and the settings of hypothesis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from zlinkpy.telemetry.fence import failed_logs

pytest_plugins = ["pytester", "tests.contract_plugin", "tests.watchdog", "tests.side_by_side"]

# The default run is the same on every machine and every time: a red build must be about the change. Deadlines and the
# "too slow" check judge the machine, not the code. `pytest --hypothesis-profile=explore` looks for new examples.
settings.register_profile("project", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "explore", deadline=None, max_examples=1000, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")


@pytest.fixture(autouse=True)
def every_record_was_logged() -> Iterator[None]:
    """The library's loggers never raise, so a record with a wrong format is found here."""
    failed_logs.clear()
    yield
    assert not failed_logs, "a record could not be logged; see the captured standard error"
