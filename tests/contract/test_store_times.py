"""LO-007 and LO-371: which numbers may meet, read from the sources."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import fields

import zlinkpy
from zlinkpy.link import ProbeLiveness
from zlinkpy.location import LocationOptions

ROOT = Path(zlinkpy.__file__).parent
STORE_TIMES = {"expires_at", "store_now"}
# Providers make these answers from their own clock; everybody else only reads them.
PROVIDERS = {"memory_store.py", "redis_rows.py", "redis_store.py", "redis_session.py"}


def bad_uses(tree: ast.Module) -> Iterator[int]:
    """Lines where a store time meets anything but the other store time of the same answer."""
    for found in ast.walk(tree):
        if isinstance(found, ast.BinOp):
            operands = [found.left, found.right]
        elif isinstance(found, ast.Compare):
            if all(isinstance(operator, ast.Is | ast.IsNot) for operator in found.ops):
                continue
            operands = [found.left, *found.comparators]
        elif isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and found.func.id in ("min", "max"):
            operands = list(found.args)
        else:
            continue
        times = [one for one in operands if isinstance(one, ast.Attribute) and one.attr in STORE_TIMES]
        if not times:
            continue
        answers = {ast.dump(one.value) for one in times}
        pair = len(operands) == 2 and {one.attr for one in times} == STORE_TIMES and len(answers) == 1
        if not pair:
            yield found.lineno


@pytest.mark.contract("LO-371")
def test_store_times_meet_within_one_answer_only() -> None:
    found, uses = [], 0
    for path in ROOT.rglob("*.py"):
        if path.name in PROVIDERS:
            continue
        text = path.read_text()
        uses += text.count("expires_at - ")
        found += [f"{path.name}:{line}" for line in bad_uses(ast.parse(text))]
    assert not found
    assert uses, "the check looks at nothing"


@pytest.mark.contract("LO-371")
@pytest.mark.parametrize(
    ("source", "bad"),
    [
        ("left = a.expires_at - a.store_now", False),
        ("live = a.expires_at > a.store_now", False),
        ("known = a.expires_at is not None", False),
        ("left = a.expires_at - b.store_now", True),
        ("late = b.store_now > a.store_now", True),
        ("left = a.expires_at - now", True),
        ("live = now * 1000 < a.expires_at", True),
        ("end = max(a.expires_at, b.expires_at)", True),
        ("age = a.store_now - started", True),
    ],
)
def test_the_check_knows_good_from_bad(source: str, bad: bool) -> None:
    assert bool(list(bad_uses(ast.parse(source)))) is bad


@pytest.mark.contract("LO-007")
def test_lease_settings_and_probe_times_are_strangers() -> None:
    names = {attribute.name for attribute in fields(LocationOptions)}
    assert "owner_lease_renew_interval" in names
    assert not [name for name in names if "probe" in name or "liveness" in name or "beacon" in name]
    modules = [module for path in (ROOT / "link").glob("*.py") for module in _imports(ast.parse(path.read_text()))]
    assert modules
    assert not [module for module in modules if module.startswith("zlinkpy.location")]
    for interval in (1.0, 5.0):
        LocationOptions(owner_lease_renew_interval=interval).validate()
        liveness = ProbeLiveness(itertools.count(1).__next__)
        liveness.start(100.0)
        assert liveness.next_deadline() == 105.0


def _imports(tree: ast.Module) -> Iterator[str]:
    for found in ast.walk(tree):
        if isinstance(found, ast.ImportFrom):
            yield found.module or ""
        elif isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)
