"""pytest plugin: which numbered requirement was proved by which test in this run.

`@pytest.mark.contract("LV-40", ...)` ties a test to items of conformance/contract. The plugin

- refuses to run when a marker names no item, so that a typo cannot look like coverage;
- writes build/contract-report.json: item -> {test id: "passed" | "failed" | "error" | "skipped"};
- selects with `--contract LV-40,LV-41` (or a whole area, `--contract LV`) the tests of these items only.

With `-n` the tests run in worker processes: a worker sends along what its test proves, and the one process that hears
all of them writes the report.

Invariants: the report holds what ran in *this* run and nothing else. Merging with an earlier report was rejected: a
test that was renamed or deleted would go on passing there for ever. Only outcomes count that a test really had; an
expected failure is written as "skipped", because it proves nothing, and the worst phase of a test wins, so an error
in the teardown is seen.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.contract_index import known_items

REPORT = Path("build") / "contract-report.json"
CARRIED = "contract_ids"
"""The attribute of a test's report that says what it proves; it goes from a worker to the main process with it."""
SEVERITY = ("passed", "skipped", "failed", "error")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("contract")
    group.addoption("--contract", metavar="IDS", help="run only the tests of these items or areas: LV-40,LV-41 or LV")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ContractReport(config), "zlinkpy-contract-report")


def ids_of(item: pytest.Item) -> list[str]:
    """What all contract markers of a test name, unchecked."""
    return [name for marker in item.iter_markers("contract") for name in marker.args]


def outcome_of(report: pytest.TestReport) -> str:
    """What one phase of a test says about the requirement."""
    if hasattr(report, "wasxfail"):
        return "skipped"
    if report.failed and report.when != "call":
        return "error"
    return report.outcome


class ContractReport:
    """State of one run: outcomes per item and test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._path = config.rootpath / REPORT
        self._known = known_items(config.rootpath)
        self._outcomes: dict[str, dict[str, str]] = {}

    # First, so that a marker is checked even where -m, -k or --contract would leave its test out.
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        problems = [
            f"{item.nodeid}: {name!r} is not an item of conformance/contract"
            for item in items
            for name in ids_of(item)
            if not isinstance(name, str) or name not in self._known
        ]
        problems += [
            f"{item.nodeid}: a contract marker without an id"
            for item in items
            if any(not marker.args for marker in item.iter_markers("contract"))
        ]
        if problems:
            raise pytest.UsageError("\n".join(dict.fromkeys(problems)))
        selection = config.getoption("--contract")
        if selection is not None:
            self._select(selection, items)

    def _select(self, selection: str, items: list[pytest.Item]) -> None:
        names = [name.strip() for name in selection.split(",") if name.strip()]
        wanted: set[str] = set()
        for name in names:
            matching = {known for known in self._known if name in (known, known.partition("-")[0])}
            if not matching:
                raise pytest.UsageError(f"--contract: {name!r} is neither an item nor an area of conformance/contract")
            wanted |= matching
        kept = [item for item in items if wanted.intersection(ids_of(item))]
        dropped = [item for item in items if not wanted.intersection(ids_of(item))]
        if dropped:
            self._config.hook.pytest_deselected(items=dropped)
            items[:] = kept

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        setattr(report, CARRIED, ids_of(item))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = outcome_of(report)
        if outcome == "passed" and report.when != "call":
            return  # set up or torn down: says nothing about the requirement yet
        for name in getattr(report, CARRIED, ()):  # a worker that died reports without
            tests = self._outcomes.setdefault(name, {})
            tests[report.nodeid] = max(tests.get(report.nodeid, "passed"), outcome, key=SEVERITY.index)

    def pytest_sessionfinish(self) -> None:
        if self._config.option.collectonly or hasattr(self._config, "workerinput"):
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self._outcomes, indent=1, sort_keys=True, ensure_ascii=False)
        self._path.write_text(text + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._outcomes:
            return
        worst = {name: max(tests.values(), key=SEVERITY.index) for name, tests in self._outcomes.items()}
        counts = Counter(worst.values())
        summary = ", ".join(f"{counts[outcome]} {outcome}" for outcome in SEVERITY if counts[outcome])
        terminalreporter.write_line(f"contract items: {summary} ({REPORT})")
        for name in sorted(name for name, outcome in worst.items() if outcome != "passed"):
            bad = sorted(test for test, outcome in self._outcomes[name].items() if outcome != "passed")
            terminalreporter.write_line(f"  {name} {worst[name]}: {', '.join(bad)}")
