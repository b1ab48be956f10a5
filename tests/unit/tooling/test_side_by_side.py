"""Several test processes at once: one report, and tests that want to be alone."""

from __future__ import annotations

import json

import pytest

CONTRACT = (
    "# Contract: something (LV-)\n- **LV-01** (area) Given one; then one.\n- **LV-02** (area) Given two; then two.\n"
)
MARKERS = "[pytest]\nmarkers =\n    contract(*ids): items\n    alone: alone\n    slow: slow\n"
PLUGINS = ("-p", "tests.contract_plugin", "-p", "tests.watchdog", "-p", "tests.side_by_side", "-p", "no:cacheprovider")

# Each test says when it ran; six short ones on each side, and two that want nobody beside them.
TIMED = """
import time, pytest, pathlib
HERE = pathlib.Path(__file__).parent / "times"
HERE.mkdir(exist_ok=True)
def run(name, seconds):
    began = time.monotonic()
    time.sleep(seconds)
    (HERE / name).write_text(f"{began} {time.monotonic()}")
@pytest.mark.parametrize("number", range(12))
def test_short(number): run(f"short{number}", 0.05)
@pytest.mark.alone
@pytest.mark.parametrize("number", range(2))
def test_alone(number): run(f"alone{number}", 0.1)
@pytest.mark.parametrize("number", range(12, 24))
def test_more(number): run(f"short{number}", 0.05)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    folder = pytester.mkdir("conformance") / "contract"
    folder.mkdir()
    (folder / "things.md").write_text(CONTRACT, encoding="utf-8")
    pytester.makeini(MARKERS)
    return pytester


def run(project: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    project.makepyfile(test_it=source)
    return project.runpytest_subprocess(*PLUGINS, *options)


def test_one_report_holds_what_every_process_proved(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
import pytest
@pytest.mark.contract("LV-01")
@pytest.mark.parametrize("number", range(4))
def test_good(number): pass
@pytest.mark.contract("LV-02")
@pytest.mark.parametrize("number", range(4))
def test_bad(number): assert number != 3
""",
        "-n2",
    )
    result.assert_outcomes(passed=7, failed=1)
    report = json.loads((project.path / "build" / "contract-report.json").read_text(encoding="utf-8"))
    assert report == {
        "LV-01": {f"test_it.py::test_good[{number}]": "passed" for number in range(4)},
        "LV-02": {f"test_it.py::test_bad[{number}]": "failed" if number == 3 else "passed" for number in range(4)},
    }


def test_a_test_that_wants_to_be_alone_is(project: pytest.Pytester) -> None:
    run(project, TIMED, "-n2", "--dist=worksteal").assert_outcomes(passed=26)
    spans = {each.name: tuple(map(float, each.read_text().split())) for each in (project.path / "times").iterdir()}
    assert len(spans) == 26

    def beside(name: str) -> list[str]:
        began, ended = spans[name]
        return [other for other, (b, e) in spans.items() if other != name and b < ended and e > began]

    assert not beside("alone0")
    assert not beside("alone1")
    # The others did run two at a time.
    assert any(beside(name) for name in spans)


def test_a_test_that_hangs_ends_its_process_and_shows_where(project: pytest.Pytester) -> None:
    source = """
import trio
async def wait_in_vain():
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()
def test_hung(): trio.run(wait_in_vain)
"""
    result = run(project, source, "--hung-after=0.5")
    assert result.ret == 70
    told = (project.path / "build" / "hung-test.txt").read_text(encoding="utf-8")
    for text in (told, result.stderr.str()):
        assert "test_it.py::test_hung did not end within 0.5 s" in text
        assert "in wait_in_vain" in text
        assert "Current thread" in text or "Thread 0x" in text


def test_a_hung_test_fails_and_the_others_go_on(project: pytest.Pytester) -> None:
    source = """
import time, pytest
def test_hung(): time.sleep(60)
@pytest.mark.parametrize("number", range(10))
def test_other(number): pass
"""
    result = run(project, source, "--hung-after=1", "-n2")
    result.assert_outcomes(passed=10, failed=1)
    result.stdout.fnmatch_lines(["*crashed while running*test_hung*"])
