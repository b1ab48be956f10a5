"""The mutant runner, on a small project made for it: it may only believe what it can tell apart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.mutants.catalogue import CatalogueError, load
from tests.mutants.run import Copy, Known, RunError, main, run_all

TESTS = Path(__file__).resolve().parent.parent.parent

CONTRACT = """
- **LV-01** (area) Given two numbers; then their sum.
- **LV-02** (area) Given two numbers; then their product.
- **LV-03** (area) Given nothing; then no test.
"""
SOURCE = """
def add(a, b):
    return a + b


def multiply(a, b):
    return a * b


def spin(rounds):
    while rounds > 0:
        rounds -= 1
"""
TEST = """
import pytest
from zlinkpy.sums import add, multiply, spin

@pytest.mark.contract("LV-01")
def test_add():
    assert add(2, 3) == 5

@pytest.mark.contract("LV-02")
def test_multiply():
    assert multiply(2, 3) == 6

@pytest.mark.contract("LV-02")
def test_spin():
    spin(3)
"""
PLAIN = """
from zlinkpy.sums import multiply

def test_zero():
    assert multiply(2, 0) == 0
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "work tree"
    (root / "conformance" / "contract").mkdir(parents=True)
    (root / "conformance" / "contract" / "liveness.md").write_text(CONTRACT, encoding="utf-8")
    (root / "zlinkpy").mkdir()
    (root / "zlinkpy" / "__init__.py").touch()
    (root / "zlinkpy" / "sums.py").write_text(SOURCE, encoding="utf-8")
    (root / "tests" / "mutants").mkdir(parents=True)
    for file in ("__init__.py", "contract_index.py", "contract_plugin.py", "mutants/__init__.py", "mutants/guard.py"):
        shutil.copy(TESTS / file, root / "tests" / file)
    (root / "tests" / "conftest.py").write_text('pytest_plugins = ["tests.contract_plugin"]\n', encoding="utf-8")
    (root / "tests" / "test_sums.py").write_text(TEST, encoding="utf-8")
    (root / "tests" / "test_plain.py").write_text(PLAIN, encoding="utf-8")
    (root / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nmarkers = ["contract(*ids): items", "slow: slow"]\n'
    )
    return root


def write(project: Path, *entries: dict[str, object], file: str = "LV.toml") -> None:
    defaults: dict[str, object] = {"file": "zlinkpy/sums.py", "old": "a + b", "new": "a - b"}
    text = ""
    for entry in entries:
        text += "[[mutant]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in (defaults | entry).items())
    (project / "tests" / "mutants" / file).write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_it_tells_killed_from_unnoticed_and_from_broken_beyond_running(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        project,
        {"name": "sum", "fails": ["LV-01"]},
        {"name": "unnoticed", "fails": ["LV-02"]},
        {"name": "one-of-two", "fails": ["LV-01", "LV-02"]},
        {
            "name": "two-of-two",
            "old": "def spin",
            "new": "add = multiply = max\n\n\ndef spin",
            "fails": ["LV-01", "LV-02"],
        },
        {"name": "no-syntax", "new": "a +", "fails": ["LV-01"]},
        {"name": "no-import", "old": "def spin", "new": "import nothing_here\n\n\ndef spin", "fails": ["LV-01"]},
        {
            "name": "no-collection",
            "old": "def spin",
            "new": "def span",
            "fails": ["LV-01"],
            "tests": ["tests/test_plain.py"],
        },
        {
            "name": "no-collection-plain",
            "old": "def multiply",
            "new": "def multiplied",
            "tests": ["tests/test_plain.py"],
        },
        {"name": "plain", "old": "a * b", "new": "1", "tests": ["tests/test_plain.py"]},
        {"name": "plain-unnoticed", "old": "a * b", "new": "0", "tests": ["tests/test_plain.py"]},
    )
    before = {file: file.read_bytes() for file in project.rglob("*") if file.is_file()}
    verdicts = {verdict.mutant.name: verdict for verdict in run_all(project, load(project), jobs=2, timeout=60)}
    assert {name for name, verdict in verdicts.items() if verdict.killed} == {"sum", "two-of-two", "plain"}
    assert verdicts["sum"].text == "killed by LV-01 (tests/test_sums.py::test_add)"
    assert "LV-02 (tests/test_sums.py::test_multiply)" in verdicts["two-of-two"].text
    assert verdicts["plain"].text == "killed by tests/test_plain.py::test_zero"
    assert verdicts["unnoticed"].text == "NOT NOTICED: the tests of LV-02 passed"
    assert verdicts["one-of-two"].text == "NOT NOTICED: the tests of LV-02 passed"
    assert verdicts["plain-unnoticed"].text == "NOT NOTICED: tests/test_plain.py passed"
    assert "does not parse" in verdicts["no-syntax"].text
    assert "zlinkpy.sums does not import" in verdicts["no-import"].text
    assert "broken beyond running" in verdicts["no-collection"].text
    assert "broken beyond running" in verdicts["no-collection-plain"].text
    assert {file: file.read_bytes() for file in project.rglob("*") if file.is_file()} == before
    assert "[10/10]" in capsys.readouterr().out


@pytest.mark.slow
def test_a_hang_is_no_kill(project: Path) -> None:
    write(project, {"name": "hang", "old": "rounds -= 1", "new": "pass", "fails": ["LV-02"]})
    (verdict,) = run_all(project, load(project), jobs=1, timeout=5)
    assert not verdict.killed
    assert verdict.text == "time is up: the tests of LV-02 did not end"


def test_the_exit_status_says_whether_all_were_killed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, {"name": "sum", "fails": ["LV-01"]})
    write(project, {"name": "unnoticed", "fails": ["LV-02"]}, file="LO_more.toml")
    assert main(["--root", str(project), "--area", "lv"]) == 0
    assert "1 of 1 mutants killed" in capsys.readouterr().out
    assert main(["--root", str(project), "--name", "unnoticed"]) == 1
    assert "  LO unnoticed: NOT NOTICED" in capsys.readouterr().out
    assert main(["--root", str(project), "--area", "SA"]) == 2
    assert "there is no mutant of area SA" in capsys.readouterr().out


def test_a_copy_is_restored_after_each_break(project: Path, tmp_path: Path) -> None:
    write(project, {"name": "sum", "fails": ["LV-01"]})
    folder = tmp_path / "copy"
    folder.mkdir()
    copy = Copy(project, folder, 30)
    (mutant,) = load(project)
    known = Known(files={"LV-01": {"tests/test_sums.py"}}, slow=set())
    assert copy.judge(mutant, known).killed
    assert (copy.root / "zlinkpy" / "sums.py").read_text(encoding="utf-8") == SOURCE
    assert copy.run(["tests/test_sums.py"]).status == 0, "a compiled file of the break was left behind"
    assert copy.judge(mutant, known).killed, "a compiled file of the original hid the same break, of the same length"


def test_tests_that_are_red_without_a_break_judge_nothing(project: Path) -> None:
    write(project, {"name": "sum", "fails": ["LV-01"]})
    source = project / "zlinkpy" / "sums.py"
    source.write_text(SOURCE.replace("a + b", "a + b + 1"), encoding="utf-8")
    write(project, {"name": "sum", "old": "a + b", "fails": ["LV-01"]})
    with pytest.raises(RunError, match="do not pass without any break"):
        run_all(project, load(project), jobs=1, timeout=30)


def test_an_item_without_a_test_is_an_error(project: Path) -> None:
    write(project, {"name": "sum", "fails": ["LV-01", "LV-03"]})
    with pytest.raises(RunError, match="no test passes for: LV-03"):
        run_all(project, load(project), jobs=1, timeout=30)


def test_slow_tests_run_for_items_that_have_no_other(project: Path) -> None:
    slow = """

@pytest.mark.slow
@pytest.mark.contract("LV-03")
def test_both():
    assert add(1, multiply(2, 3)) == 7

@pytest.mark.slow
@pytest.mark.contract("LV-02")
def test_never():
    raise AssertionError("this one has a quick fellow")
"""
    (project / "tests" / "test_sums.py").write_text(TEST + slow, encoding="utf-8")
    write(
        project,
        {"name": "sum", "fails": ["LV-01", "LV-03"]},
        {"name": "product", "old": "a * b", "new": "a * b + 1", "fails": ["LV-02"]},
    )
    verdicts = run_all(project, load(project), jobs=2, timeout=30)
    assert [(verdict.mutant.name, verdict.killed) for verdict in verdicts].count(("sum", True)) == 1
    assert all(verdict.killed for verdict in verdicts)


def test_code_that_comes_from_somewhere_else_is_refused(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    copy = Copy(project, folder, 30)
    shutil.rmtree(copy.root / "zlinkpy")  # now the installed package is found, if there is one
    outcome = copy.run(["tests/test_sums.py"])
    assert outcome.status not in (0, 1)
    assert not outcome.failed


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"old": "nowhere"}, "LV.toml: it: the old text occurs 0 times in zlinkpy/sums.py, not once: 'nowhere'"),
        ({"old": "return"}, "occurs 2 times"),
        ({"old": ""}, "occurs 0 times"),
        ({"new": "a + b"}, "old and new are the same"),
        ({"fails": ["LV-9"]}, "'LV-9' is not an item"),
        ({"fails": []}, "names neither"),
        ({"fails": "LV-01"}, "fails is not a list"),
        ({"tests": ["tests/test_nowhere.py"]}, "there is no tests/test_nowhere.py"),
        ({"file": "zlinkpy/nowhere.py"}, "there is no zlinkpy/nowhere.py"),
        ({"fail": ["LV-01"]}, "unknown key 'fail'"),
    ],
)
def test_an_entry_that_cannot_work_is_refused(project: Path, entry: dict[str, object], problem: str) -> None:
    write(project, {"name": "it", "fails": ["LV-01"]} | entry)
    with pytest.raises(CatalogueError) as caught:
        load(project)
    assert problem in str(caught.value)


def test_a_name_is_used_once(project: Path) -> None:
    write(project, {"name": "it", "fails": ["LV-01"]})
    write(project, {"name": "it", "fails": ["LV-01"]}, file="LV_more.toml")
    with pytest.raises(CatalogueError, match=r"LV_more.toml: it: the name is taken by one in LV.toml"):
        load(project)
