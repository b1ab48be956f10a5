"""What the source itself has to show: times defined once, one ready predicate, a judge without a store."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.source import ROOT, imported_modules, python_files
from zlinkpy import link

from .harness import ROLES, Node

CONSTANTS = "zlinkpy/link/constants.py"
MACHINE = "zlinkpy/link/machine.py"
# The one place where lanes and handlers are asked whether that is established.
STATES = (MACHINE, "zlinkpy/link/handshake.py")
# Where connections are judged by time, or will be: a package that does not exist yet is held to the rule when it does.
JUDGING = ("zlinkpy/link", "zlinkpy/mesh", "zlinkpy/fanout")
PREDICATES = {"ready", "is_ready", "selectable"}


def assigned_times(tree: ast.AST) -> Iterator[str]:
    """Names that are given a value, wherever they stand; a string is a label and no time."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            targets = [node.target]
        if targets and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id
            elif isinstance(target, ast.Attribute):
                yield target.attr


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.contract("LV-01")
def test_the_two_times_are_defined_once_and_written_nowhere_else() -> None:
    assert (link.CHECK_INTERVAL, link.PEER_DEADLINE) == (5.0, 15.0)
    trees = dict(python_files("zlinkpy"))
    for name in ("CHECK_INTERVAL", "PEER_DEADLINE"):
        assert [path for path, tree in trees.items() for each in assigned_times(tree) if each == name] == [CONSTANTS]
    literals = [
        f"{path}:{node.lineno}"
        for folder in JUDGING
        for path, tree in python_files(folder)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value in (5, 15)
        if path != CONSTANTS
    ]
    assert not literals, "refer to zlinkpy.link.constants"
    # Pairs of both topologies are judged by liveness.py; probes and beacons share one grid.
    uses = {
        "liveness.py": {"PEER_DEADLINE", "grid_after"},
        "publisher_link.py": {"PEER_DEADLINE"},
        "beacon.py": {"grid_after"},
        "grid.py": {"CHECK_INTERVAL"},
    }
    for module, wanted in uses.items():
        tree = trees[f"zlinkpy/link/{module}"]
        assert wanted <= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}, module
    assert {type(Node(role).pair.liveness) for role in ROLES} == {link.ProbeLiveness}


@pytest.mark.contract("LV-25")
def test_ready_is_computed_by_one_predicate_that_everyone_else_reads() -> None:
    stored, computed, bypassed = [], [], []
    for path, tree in python_files("zlinkpy"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in PREDICATES:
                stored.append(f"{path}:{node.lineno}")
            if isinstance(node, ast.Attribute) and path not in STATES and node.attr == "all_admitted":
                bypassed.append(f"{path}:{node.lineno}")
            if isinstance(node, ast.Attribute) and path != MACHINE and ast.unparse(node) == "PairPhase.READY":
                bypassed.append(f"{path}:{node.lineno}")
        for function in functions(tree):
            returns = function.returns is not None and ast.unparse(function.returns)
            if function.name not in PREDICATES or returns != "bool":
                continue
            declares = all(isinstance(each, ast.Expr) for each in function.body)  # a Protocol's stub
            reads = any(isinstance(node, ast.Attribute) and node.attr in PREDICATES for node in ast.walk(function))
            if not declares and not reads:
                computed.append(f"{path}:{function.name}")
    assert stored == [], "a stored copy of ready can disagree with it"
    assert bypassed == [], "read the ready property of the link"
    assert computed == [f"{MACHINE}:ready"]


@pytest.mark.contract("LV-160")
def test_the_judge_of_peers_can_reach_no_store() -> None:
    allowed = ("zlinkpy.link", "zlinkpy.wire", "zlinkpy.errors", "zlinkpy.entropy")
    standard = {"__future__", "collections", "enum", "heapq", "ipaddress", "operator", "typing", "attrs"}
    for path, tree in python_files("zlinkpy/link"):
        for line, name in imported_modules(tree):
            inside = name.startswith(allowed)
            assert inside or name.partition(".")[0] in standard, f"{path}:{line} imports {name}"
        calls = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not calls & {"open", "__import__", "exec", "eval"}, path
    public = {name for name in vars(link.LivenessOwner) if not name.startswith("_")}
    assert public == {"register", "forget", "next_deadline", "tick", "is_ready", "evidence"}


@pytest.mark.contract("LV-07")
def test_the_machines_cannot_read_a_clock() -> None:
    for path, tree in python_files("zlinkpy/link"):
        modules = {name.partition(".")[0] for _, name in imported_modules(tree)}
        assert not modules & {"time", "datetime", "trio", "asyncio", "threading", "os"}, path


def test_the_reference_shows_every_state_event_and_action() -> None:
    text = (ROOT / "docs" / "link.md").read_text(encoding="utf-8")
    kinds = (link.Pair, link.ServicePair, link.PublisherLink, link.BeaconSchedule)
    public = {name for kind in kinds for name in dir(kind) if not name.startswith("_")}
    public |= {kind.__name__ for kind in kinds}
    actions = [kind.__name__ for kind in link.Action.__args__]
    reasons = [reason.value for reason in link.FailureReason]
    phases = [phase.name for phase in link.PairPhase]
    missing = [name for name in (*public, *actions, *reasons, *phases) if f"`{name}" not in text]
    assert missing == []
