"""The size of the job queue: options and effective processors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from zlinkpy.errors import ConfigurationError
from zlinkpy.execution import MAX_JOBS, JobQueueOptions, JobQueueProfile, Permits, effective_processors


@pytest.mark.contract("SA-229")
@pytest.mark.parametrize(
    ("profile", "each"), [("COMPACT", 32), ("LOW_LATENCY", 64), ("BALANCED", 128), ("THROUGHPUT", 256)]
)
def test_the_maximum_is_jobs_per_processor_times_processors(profile: str, each: int) -> None:
    options = JobQueueOptions(profile=JobQueueProfile[profile])
    assert [options.maximum(processors) for processors in (1, 2, 7)] == [each, 2 * each, 7 * each]
    permits = Permits(options, processors=3)
    assert permits.maximum == permits.statistics().maximum == 3 * each


@pytest.mark.contract("SA-229")
def test_the_default_profile_and_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert JobQueueOptions().profile is JobQueueProfile.BALANCED
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert Permits().maximum == 128


@pytest.mark.contract("SA-230")
@pytest.mark.parametrize("maximum", [0, -1, MAX_JOBS + 1, 1.0, True, "8"])
def test_a_maximum_out_of_range_is_a_configuration_error(maximum: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"max_queued_application_jobs is .*1\.\.2147483647"):
        JobQueueOptions(max_queued_application_jobs=maximum).validate()
    with pytest.raises(ConfigurationError):
        Permits(JobQueueOptions(max_queued_application_jobs=maximum))


@pytest.mark.contract("SA-230")
@pytest.mark.parametrize("maximum", [1, 2, MAX_JOBS])
def test_a_maximum_in_range_is_used_as_it_is(maximum: int) -> None:
    options = JobQueueOptions(max_queued_application_jobs=maximum)
    options.validate()
    assert options.maximum(processors=16) == maximum
    assert Permits(options).maximum == maximum


@pytest.mark.contract("SA-231")
@pytest.mark.parametrize(
    "percentages", [(0, 0), (101, 60), (80, -1), (100, 100), (80, 80), (60, 80), (1, 1), (True, 0), (80.0, 60)]
)
def test_percentages_out_of_range_or_order_are_configuration_errors(percentages: tuple[Any, Any]) -> None:
    pause, resume = percentages
    with pytest.raises(ConfigurationError, match="percent"):
        JobQueueOptions(pause_percent=pause, resume_percent=resume).validate()


@pytest.mark.contract("SA-231")
def test_percentages_at_the_bounds_and_by_default() -> None:
    for pause, resume in ((1, 0), (100, 99), (100, 0)):
        JobQueueOptions(pause_percent=pause, resume_percent=resume).validate()
    assert (JobQueueOptions().pause_percent, JobQueueOptions().resume_percent) == (80, 60)


class Machine:
    """A file system with the control group files of one process."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)), raising=False)
    return Machine(tmp_path)


@pytest.mark.contract("SA-229")
def test_the_smallest_known_bound_wins(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert effective_processors(root=machine.root) == 32
    assert effective_processors(5, root=machine.root) == 5
    assert effective_processors(100, root=machine.root) == 32
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert effective_processors(root=machine.root) == 8


@pytest.mark.contract("SA-229")
def test_one_where_nothing_is_known(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> set[int]:
        raise OSError

    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", unknown, raising=False)
    assert effective_processors(root=machine.root) == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    assert effective_processors(root=machine.root) == 1


@pytest.mark.contract("SA-229")
@pytest.mark.parametrize(
    ("quota", "processors"),
    [("250000 100000", 2), ("100000 100000", 1), ("50000 100000", 1), ("max 100000", 32), ("9900000 100000", 32)],
)
def test_the_quota_of_a_control_group_rounds_down_to_at_least_one(
    machine: Machine, quota: str, processors: int
) -> None:
    machine.write("proc/self/cgroup", "0::/app\n")
    machine.write("sys/fs/cgroup/app/cpu.max", quota + "\n")
    assert effective_processors(root=machine.root) == processors


def test_the_quota_of_a_parent_group_counts(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/pods/one/app\n")
    machine.write("sys/fs/cgroup/pods/one/app/cpu.max", "max 100000")
    machine.write("sys/fs/cgroup/pods/cpu.max", "400000 100000")
    machine.write("sys/fs/cgroup/cpu.max", "900000 100000")
    assert effective_processors(root=machine.root) == 4


def test_the_quota_of_the_first_cgroup_version(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "12:memory:/x\n5:cpu,cpuacct:/app\n1:name=systemd:/x\n0::/\n")
    machine.write("sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us", "300000")
    machine.write("sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_period_us", "100000")
    assert effective_processors(root=machine.root) == 3
    machine.write("sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us", "-1")
    assert effective_processors(root=machine.root) == 32


@pytest.mark.parametrize("text", ["", "nonsense", "1 2 3", "100000 0", "a b", "-5 100000", "\xff"])
def test_unreadable_quotas_bound_nothing(machine: Machine, text: str) -> None:
    machine.write("proc/self/cgroup", "nonsense\n0::/\n")
    machine.write("sys/fs/cgroup/cpu.max", text)
    assert effective_processors(root=machine.root) == 32


def test_a_group_outside_the_visible_root_leaves_the_mount(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/../../other\n")
    machine.write("sys/fs/cgroup/cpu.max", "200000 100000")
    assert effective_processors(root=machine.root) == 2
