"""The contract plugin, driven in a pytest run of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CONTRACT = """\
# Contract: something (LV-)
- **LV-01** (area) Given one; then one.
- **LV-02** (area) Given two; then two.
- **LO-003** (other) Given three; then three.
Text that mentions **LV-99** and - **LV-98** is no item.
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    folder = pytester.mkdir("conformance") / "contract"
    folder.mkdir()
    (folder / "things.md").write_text(CONTRACT, encoding="utf-8")
    pytester.makeini("[pytest]\naddopts = --strict-markers\nmarkers =\n    contract(*ids): items\n    slow: slow\n")
    return pytester


def run(project: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    project.makepyfile(test_it="import pytest\n" + source)
    return project.runpytest_inprocess("-p", "tests.contract_plugin", "-p", "no:cacheprovider", *options)


def report(project: pytest.Pytester) -> dict[str, dict[str, str]]:
    return json.loads((project.path / "build" / "contract-report.json").read_text(encoding="utf-8"))


def test_the_report_names_each_item_with_its_tests_and_their_outcomes(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.mark.contract("LV-01", "LV-02")
def test_good(): pass
@pytest.mark.contract("LV-02")
def test_bad(): assert False
@pytest.mark.contract("LO-003")
class TestClass:
    @pytest.mark.parametrize("n", [1, 2])
    def test_each(self, n): pass
def test_unmarked(): pass
""",
    )
    result.assert_outcomes(passed=4, failed=1)
    assert report(project) == {
        "LV-01": {"test_it.py::test_good": "passed"},
        "LV-02": {"test_it.py::test_good": "passed", "test_it.py::test_bad": "failed"},
        "LO-003": {"test_it.py::TestClass::test_each[1]": "passed", "test_it.py::TestClass::test_each[2]": "passed"},
    }
    result.stdout.fnmatch_lines(["contract items: 2 passed, 1 failed*", "*LV-02 failed: test_it.py::test_bad"])


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("@pytest.fixture\ndef broken(): raise OSError\n{mark}\ndef test_it(broken): pass", "error"),
        ("@pytest.fixture\ndef broken():\n    yield\n    raise OSError\n{mark}\ndef test_it(broken): pass", "error"),
        ("{mark}\ndef test_it(): pytest.skip('not here')", "skipped"),
        ("{mark}\n@pytest.mark.skip\ndef test_it(): pass", "skipped"),
        ("{mark}\n@pytest.mark.xfail\ndef test_it(): assert False", "skipped"),
        ("{mark}\n@pytest.mark.xfail\ndef test_it(): pass", "skipped"),
        ("{mark}\n@pytest.mark.xfail(strict=True)\ndef test_it(): pass", "failed"),
        ("{mark}\ndef test_it(subtests):\n    with subtests.test('one'):\n        assert False", "failed"),
    ],
    ids=["setup", "teardown", "skip-inside", "skip-mark", "xfail", "xpass", "xpass-strict", "subtest"],
)
def test_only_a_real_pass_is_written_as_passed(project: pytest.Pytester, source: str, outcome: str) -> None:
    run(project, source.format(mark='@pytest.mark.contract("LV-01")'))
    assert report(project) == {"LV-01": {"test_it.py::test_it": outcome}}


def test_a_test_that_was_set_up_but_interrupted_is_not_in_the_report(project: pytest.Pytester) -> None:
    project.makepyfile(test_it='import pytest\n@pytest.mark.contract("LV-01")\ndef test_it(): raise KeyboardInterrupt')
    project.runpytest_inprocess("-p", "tests.contract_plugin", no_reraise_ctrlc=True)
    assert report(project) == {}


@pytest.mark.parametrize(
    ("marker", "complaint"),
    [
        ('"LV-99"', "*test_it.py::test_it: 'LV-99' is not an item of conformance/contract"),
        ('"LV-1"', "*'LV-1' is not an item*"),
        ('"LO-3"', "*'LO-3' is not an item*"),
        ('["LV-01"]', "*['LV-01'] is not an item*"),
        ("", "*test_it.py::test_it: a contract marker without an id"),
    ],
)
def test_a_marker_that_names_no_item_stops_the_run(project: pytest.Pytester, marker: str, complaint: str) -> None:
    result = run(project, f"@pytest.mark.slow\n@pytest.mark.contract({marker})\ndef test_it(): pass", "-m", "not slow")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*" + complaint.replace("[", "[[]")])


def test_a_run_replaces_the_report_of_the_run_before(project: pytest.Pytester) -> None:
    run(project, '@pytest.mark.contract("LV-01")\ndef test_old(): pass')
    run(project, '@pytest.mark.contract("LV-02")\ndef test_new(): pass')
    assert report(project) == {"LV-02": {"test_it.py::test_new": "passed"}}


def test_collecting_only_leaves_the_report_alone(project: pytest.Pytester) -> None:
    run(project, '@pytest.mark.contract("LV-01")\ndef test_old(): pass')
    run(project, "def test_new(): pass", "--collect-only")
    assert report(project) == {"LV-01": {"test_it.py::test_old": "passed"}}


SELECTABLE = """
@pytest.mark.contract("LV-01")
def test_one(): pass
@pytest.mark.contract("LV-02")
def test_two(): pass
@pytest.mark.contract("LO-003", "LV-02")
def test_three(): pass
def test_none(): pass
"""


@pytest.mark.parametrize(
    ("selection", "selected"),
    [
        ("LV-01", {"test_one"}),
        ("LV-01, LO-003", {"test_one", "test_three"}),
        ("LV", {"test_one", "test_two", "test_three"}),
        ("LO", {"test_three"}),
    ],
)
def test_contract_option_runs_the_tests_of_these_items_only(
    project: pytest.Pytester, selection: str, selected: set[str]
) -> None:
    result = run(project, SELECTABLE, "--contract", selection)
    result.assert_outcomes(passed=len(selected), deselected=4 - len(selected))
    assert {test.rpartition("::")[2] for tests in report(project).values() for test in tests} == selected


def test_contract_option_refuses_what_is_no_item(project: pytest.Pytester) -> None:
    result = run(project, SELECTABLE, "--contract", "LV-01,LV-7")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'LV-7' is neither an item nor an area*"])


def test_no_selected_test_is_told_apart_from_success(project: pytest.Pytester) -> None:
    result = run(project, '@pytest.mark.contract("LV-01")\ndef test_one(): pass', "--contract", "LV-02")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_the_project_itself_runs_under_the_plugin(request: pytest.FixtureRequest) -> None:
    plugin = request.config.pluginmanager.get_plugin("tests.contract_plugin")
    assert plugin is not None
    assert Path(plugin.__file__).is_relative_to(request.config.rootpath)
