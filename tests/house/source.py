"""What the house rules look at: the files of the project, and names resolved through their imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LEFT_OUT = {"build", "dist", "__pycache__"}


def text_files(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Every text file that belongs to the project, with its text. Works in a copy or an archive, where git does not."""
    for path in sorted(root.iterdir()):
        if (
            path.name in LEFT_OUT
            or path.name.endswith(".egg-info")
            or (path.name.startswith(".") and path.name != ".ci")
        ):
            continue
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and not LEFT_OUT.intersection(file.relative_to(root).parts):
                content = file.read_bytes()
                if b"\0" not in content:
                    yield file, content.decode("utf-8")


def python_files(*folders: str, root: Path = ROOT) -> Iterator[tuple[str, ast.Module]]:
    """Path (relative, with /) and syntax tree of every Python file below `folders`."""
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            yield file.relative_to(root).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


class Names:
    """Dotted names as the interpreter would see them: aliases of imports replaced by what they stand for."""

    def __init__(self, tree: ast.Module) -> None:
        self._aliases: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    first = name.name.partition(".")[0]
                    self._aliases[name.asname or first] = name.name if name.asname else first
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for name in node.names:
                    self._aliases[name.asname or name.name] = f"{node.module}.{name.name}"

    def resolve(self, node: ast.expr) -> str | None:
        """`dt.now` -> "datetime.datetime.now" after `from datetime import datetime as dt`; None for what is no name."""
        if isinstance(node, ast.Name):
            return self._aliases.get(node.id)
        if isinstance(node, ast.Attribute):
            head = self.resolve(node.value)
            return f"{head}.{node.attr}" if head else None
        return None


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every module that is imported, also by `importlib.import_module("name")`."""
    names = Names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            dynamic = isinstance(node.func, ast.Name) and node.func.id == "__import__"
            if dynamic or names.resolve(node.func) == "importlib.import_module":
                yield node.lineno, str(node.args[0].value)
