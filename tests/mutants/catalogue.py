"""The list of deliberate breaks: tests/mutants/AREA.toml, read and checked.

```toml
[[mutant]]
name = "probe-grid-moves"             # unique over all files
file = "zlinkpy/link/liveness.py"     # relative to the project
old = "text that occurs exactly once"
new = "what breaks it"
fails = ["LV-40"]                     # for every id at least one of its tests must fail
tests = ["tests/unit/link/test_x.py"] # for breaks without an id: at least one test of these files must fail
```

Everything wrong in the files is reported at once. An area is the part of the file name before the first underscore:
`LO_discovery.toml` belongs to LO.
"""

from __future__ import annotations

import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

from attrs import frozen

from tests.contract_index import known_items

FIELDS = {"name": str, "file": str, "old": str, "new": str, "fails": list, "tests": list}
REQUIRED = {"name", "file", "old", "new"}


class CatalogueError(Exception):
    """The mutant files cannot be used; one problem per line."""


@frozen(kw_only=True)
class Mutant:
    """One break and what has to notice it."""

    area: str
    name: str
    file: str
    old: str
    new: str
    fails: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()

    @property
    def module(self) -> str | None:
        """The dotted name of the broken module, None where the file is not importable library code."""
        path = PurePosixPath(self.file)
        if path.suffix != ".py" or path.parts[0] != "zlinkpy" or path.stem == "__main__":
            return None
        return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _problems(entry: dict[str, Any], root: Path, known: frozenset[str]) -> list[str]:
    found = [f"unknown key {key!r}" for key in entry if key not in FIELDS]
    found += [f"{key} is missing" for key in sorted(REQUIRED - set(entry))]
    found += [
        f"{key} is not a {kind.__name__}"
        for key, kind in FIELDS.items()
        if not isinstance(entry.get(key, kind()), kind)
    ]
    if found:
        return found
    if not entry.get("fails") and not entry.get("tests"):
        found.append("names neither an item in `fails` nor a file in `tests`")
    found += [
        f"{name!r} is not an item of conformance/contract" for name in entry.get("fails", []) if name not in known
    ]
    found += [f"there is no {file}" for file in entry.get("tests", []) if not (root / file).is_file()]
    if entry["old"] == entry["new"]:
        found.append("old and new are the same")
    target = root / entry["file"]
    if not target.is_file():
        return [*found, f"there is no {entry['file']}"]
    count = target.read_text(encoding="utf-8").count(entry["old"]) if entry["old"] else 0
    if count != 1:
        found.append(f"the old text occurs {count} times in {entry['file']}, not once: {entry['old'].strip()[:60]!r}")
    return found


def load(root: Path, *, area: str | None = None, name: str | None = None) -> list[Mutant]:
    """The mutants of `area` (all without one), or the one called `name`. Raises CatalogueError."""
    known = known_items(root)
    mutants: list[Mutant] = []
    problems: list[str] = []
    seen: dict[str, str] = {}
    for file in sorted((root / "tests" / "mutants").glob("*.toml")):
        this_area = file.stem.partition("_")[0]
        if area and this_area.lower() != area.lower():
            continue
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            problems.append(f"{file.name}: {error}")
            continue
        problems += [f"{file.name}: unknown table {key!r}" for key in content if key != "mutant"]
        for number, entry in enumerate(content.get("mutant", []), 1):
            label = str(entry.get("name", f"number {number}"))
            if label in seen:
                problems.append(f"{file.name}: {label}: the name is taken by one in {seen[label]}")
            seen[label] = file.name
            if name and label != name:
                continue
            wrong = _problems(entry, root, known)
            problems += [f"{file.name}: {label}: {problem}" for problem in wrong]
            if not wrong:
                lists = {key: tuple(entry.get(key, ())) for key in ("fails", "tests")}
                mutants.append(Mutant(area=this_area, **{**entry, **lists}))
    if problems:
        raise CatalogueError("\n".join(problems))
    if not mutants:
        wanted = f"named {name}" if name else f"of area {area}" if area else "in tests/mutants"
        raise CatalogueError(f"there is no mutant {wanted}")
    return mutants
