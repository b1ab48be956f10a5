"""pytest plugin of the mutant runner: prove that the broken copy is what runs, and that it still imports.

The working tree may be installed in the environment (an editable install), and a run against it would find every test
green. A module that no longer imports would turn every test red; neither says anything about the tests. For the same
reason the failed tests are written down: pytest's exit status does not tell them from a file that cannot be collected.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

ROOT_VARIABLE = "ZLINKPY_MUTANT_ROOT"
MODULE_VARIABLE = "ZLINKPY_MUTANT_MODULE"
FAILED = Path("build") / "mutant-failed.json"

_failed: list[str] = []


def pytest_configure() -> None:
    root = Path(os.environ[ROOT_VARIABLE])
    for name in ("zlinkpy", "tests"):
        found = Path(_imported(name).__path__[0])
        if found != root / name:
            raise pytest.UsageError(f"mutants: {name} comes from {found}, not from the copy in {root}")
    module = os.environ.get(MODULE_VARIABLE)
    if module:
        _imported(module)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise pytest.UsageError(f"mutants: {name} does not import: {error!r}") from error


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.rootpath / FAILED
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_failed), encoding="utf-8")
