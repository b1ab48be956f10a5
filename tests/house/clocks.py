"""Which clock decides: no elapsed time and no deadline may come from the wall clock (architecture: one clock).

A wall-clock reading may be printed and stored for printing. It may not be added, subtracted, compared, or handed to a
parameter that is a point in time. The check follows a reading through assignments, unit conversions, attributes and
parameter defaults within one module, by name: coarse, and on the strict side. `time.monotonic` and its like are refused
as well, because elapsed time has one source, `trio.current_time()`, which tests can drive.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.source import Names

WALL_CLOCKS = frozenset(
    {
        "time.time",
        "time.time_ns",
        "time.localtime",
        "time.gmtime",
        "time.clock_gettime",
        "time.clock_gettime_ns",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.datetime.today",
        "datetime.date.today",
    }
)
OTHER_MONOTONIC = frozenset(
    {"time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "time.clock_gettime"}
)
# What a reading goes through without turning into something printable.
CONVERSIONS = frozenset({"int", "float", "round", "abs"})
CONVERTING_METHODS = frozenset({"timestamp", "replace", "astimezone", "timetuple", "date", "time"})
POINT_IN_TIME = frozenset({"now", "deadline", "until", "expires_at", "timeout"})


class _Readings:
    """Names and attributes of one module that hold a wall-clock reading, or the clock itself."""

    def __init__(self, tree: ast.Module) -> None:
        self._names = Names(tree)
        self._held: set[str] = set()
        size = -1
        while len(self._held) != size:  # until nothing new: an assignment may stand above the one it depends on
            size = len(self._held)
            for node in ast.walk(tree):
                self._follow(node)

    def _follow(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            pairs = list(zip(reversed(positional), reversed(node.defaults), strict=False))
            pairs += [(arg, default) for arg, default in zip(node.kwonlyargs, node.kw_defaults, strict=True) if default]
            self._held.update(arg.arg for arg, default in pairs if self.holds(default))

        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            returned = (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value)
            if any(self.holds(value) for value in returned):
                self._held.add(node.name)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
            for one, its_value in zip(target.elts, value.elts, strict=False):
                self._assign(one, its_value)
        elif self.holds(value):
            if isinstance(target, ast.Name):
                self._held.add(target.id)
            elif isinstance(target, ast.Attribute):
                self._held.add(target.attr)

    def holds(self, node: ast.expr) -> bool:
        """Whether the value of this expression is a wall-clock reading, or a callable that takes one."""
        if self._names.resolve(node) in WALL_CLOCKS:
            return True
        if isinstance(node, ast.Name):
            return node.id in self._held
        if isinstance(node, ast.Attribute):
            return node.attr in self._held
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in CONVERSIONS:
                return any(self.holds(argument) for argument in node.args)
            if isinstance(node.func, ast.Attribute) and node.func.attr in CONVERTING_METHODS:
                return self.holds(node.func) or self.holds(node.func.value)
            defaults = (word.value for word in node.keywords if word.arg in ("default", "factory"))  # attrs fields
            return self.holds(node.func) or any(self.holds(default) for default in defaults)
        if isinstance(node, ast.Lambda):
            return self.holds(node.body)
        if isinstance(node, ast.BinOp):
            return self.holds(node.left) or self.holds(node.right)
        if isinstance(node, ast.IfExp):
            return self.holds(node.body) or self.holds(node.orelse)
        if isinstance(node, ast.BoolOp):
            return any(self.holds(value) for value in node.values)
        return isinstance(node, ast.NamedExpr) and self.holds(node.value)


def wall_clock_decisions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and description of every place where a wall-clock reading decides something."""
    readings = _Readings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            if readings.holds(node.left) or readings.holds(node.right):
                yield node.lineno, "a wall-clock reading in an addition or subtraction"
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
            if readings.holds(node.value) or readings.holds(node.target):
                yield node.lineno, "a wall-clock reading in an addition or subtraction"
        elif isinstance(node, ast.Compare):
            if any(readings.holds(operand) for operand in [node.left, *node.comparators]) and not _is_none_test(node):
                yield node.lineno, "a wall-clock reading in a comparison"
        elif isinstance(node, ast.Call):
            compares = isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "sorted")
            if compares and any(readings.holds(argument) for argument in node.args):
                yield node.lineno, "a wall-clock reading in a comparison"
            for keyword in node.keywords:
                if keyword.arg in POINT_IN_TIME and readings.holds(keyword.value):
                    yield node.lineno, f"a wall-clock reading as {keyword.arg}="


def _is_none_test(node: ast.Compare) -> bool:
    return all(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops)


def other_clocks(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every elapsed-time clock that is not trio's."""
    names = Names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            name = names.resolve(node)
            if name in OTHER_MONOTONIC:
                yield node.lineno, name
