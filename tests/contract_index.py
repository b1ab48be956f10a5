"""The numbered requirements of conformance/contract, and where the tests name them.

Everything here reads text and syntax trees, never runs or imports a test: that makes it fast enough for
`make check`, and the mutant runner can pick the few files it needs. The price is that a marker built at run time is
only seen when its id stands somewhere in the file as a plain string. What is seen too much costs a little
collection time; the plugin, which sees the real markers, has the last word.

usage: python -m tests.contract_index      (exit status 1 when a marker names no item)
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ITEM = re.compile(r"^- \*\*([A-Z]{2}-\d+)\*\*", re.MULTILINE)
ID = re.compile(r"[A-Z]{2}-\d+")
ROOT = Path(__file__).resolve().parent.parent


def known_items(root: Path) -> frozenset[str]:
    """The ids of all items under `root`/conformance/contract."""
    files = sorted((root / "conformance" / "contract").glob("*.md"))
    return frozenset(name for file in files for name in ITEM.findall(file.read_text(encoding="utf-8")))


def _is_contract_marker(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "contract"
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "mark"
    )


def marker_arguments(source: str) -> Iterator[tuple[int, object]]:
    """Line and value of every literal argument of a `pytest.mark.contract(...)` call."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _is_contract_marker(node):
            for argument in node.args:
                if isinstance(argument, ast.Constant):
                    yield argument.lineno, argument.value


def unknown_markers(root: Path) -> list[str]:
    """One line for each marker argument under `root`/tests that is not an item."""
    known = known_items(root)
    return [
        f"{file.relative_to(root)}:{line}: {value!r} is not an item of conformance/contract"
        for file in sorted((root / "tests").rglob("*.py"))
        for line, value in marker_arguments(file.read_text(encoding="utf-8"))
        if not isinstance(value, str) or value not in known
    ]


def files_naming(root: Path, ids: frozenset[str]) -> dict[str, set[Path]]:
    """For each id the test files (relative to `root`) that may hold its tests.

    A file that is no test module itself (a shared suite, a base class) stands for the test modules of its folder
    and below.
    """
    found: dict[str, set[Path]] = {name: set() for name in ids}
    for file in sorted((root / "tests").rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        if not ids.intersection(ID.findall(source)):
            continue
        constants = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
        if file.name.startswith("test_"):
            modules = {file.relative_to(root)}
        else:
            modules = {module.relative_to(root) for module in file.parent.rglob("test_*.py")}
        for name in ids.intersection(value for value in constants if isinstance(value, str)):
            found[name] |= modules
    return found


def main() -> int:
    problems = unknown_markers(ROOT)
    for problem in problems:
        print(problem)
    if not problems:
        print(f"contract markers: all of them name one of {len(known_items(ROOT))} items")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
