"""How many processors this process can really use (SA-229).

The number of the machine misleads inside a container: a host with a quota of two of 64 processors would accept 32 times
the work it can do. So every bound that can be read counts, and the smallest wins; a bound that cannot be read does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def effective_processors(executor_maximum: int | None = None, *, root: Path = Path("/")) -> int:
    """The smallest of logical processors, CPU affinity, cgroup quota (rounded down, at least 1) and `executor_maximum`.

    Args:
        executor_maximum: Most threads the application allows, where it says so.
        root: Where ``/proc`` and ``/sys`` are looked for.

    Returns:
        At least 1, also where nothing is known.
    """
    bounds = [os.cpu_count(), _affinity(), _quota(root), executor_maximum]
    return max(1, min((bound for bound in bounds if bound is not None), default=1))


def _affinity() -> int | None:
    if not hasattr(os, "sched_getaffinity"):
        return None  # macOS and Windows do not say
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return None


def _quota(root: Path) -> int | None:
    """The tightest CPU quota of this process's control groups and their ancestors, in whole processors."""
    quotas = [quota for quota in _quotas(root) if quota is not None]
    return max(1, int(min(quotas))) if quotas else None


def _quotas(root: Path) -> Iterator[float | None]:
    for controllers, group in _groups(root):
        if controllers == "":  # the unified hierarchy of cgroup v2
            for directory in _upwards(root / "sys/fs/cgroup", group):
                yield _ratio(*_words(directory / "cpu.max", 2))
        elif "cpu" in controllers.split(","):
            for mount in ("cpu", "cpu,cpuacct"):
                for directory in _upwards(root / "sys/fs/cgroup" / mount, group):
                    yield _ratio(
                        *_words(directory / "cpu.cfs_quota_us", 1), *_words(directory / "cpu.cfs_period_us", 1)
                    )


def _groups(root: Path) -> Iterator[tuple[str, PurePosixPath]]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        fields = line.split(":", 2)
        if len(fields) == 3:
            yield fields[1], PurePosixPath(fields[2].lstrip("/"))


def _upwards(mount: Path, group: PurePosixPath) -> Iterator[Path]:
    """The group's directory and every one above it, up to the mount: a parent's quota binds its children."""
    if ".." in group.parts:
        group = PurePosixPath()  # outside this namespace's root: only the mount itself is visible
    yield mount / group
    for parent in group.parents:
        yield mount / parent


def _words(file: Path, count: int) -> list[str]:
    try:
        words = file.read_text().split()
    except (OSError, UnicodeDecodeError):
        words = []
    return words if len(words) == count else [""] * count


def _ratio(quota: str, period: str) -> float | None:
    if not (quota.isdecimal() and period.isdecimal()) or int(period) == 0:
        return None  # "max" and "-1" mean no limit
    return int(quota) / int(period)
