"""Write the vectors, or check that the committed ones are what would be written.

    python -m conformance.make_vectors           # writes conformance/vectors/*.json
    python -m conformance.make_vectors --check   # exit status 1 when a file differs

The files are for every language; their form is described in conformance/vectors/README.md. Valid frames come from the
codec, so a change of the wire shows up as a change of committed files; invalid ones are built and judged by
`conformance.breakage` and `conformance.rules` without it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from conformance import command_vectors, frame_vectors
from conformance.vector import json_text
from zlinkpy.wire import COMMANDS

FOLDER = Path(__file__).parent / "vectors"


def files() -> dict[str, str]:
    """File name -> text of every vector file."""
    made: dict[str, list[dict[str, Any]]] = {}
    seen: set[Any] = set()
    for spec in COMMANDS.values():
        made[f"{spec.id:02}-{spec.name}"] = list(command_vectors.vectors(spec, seen))
    made["prefix"] = list(frame_vectors.prefixes())
    made["metadata"] = list(frame_vectors.metadata())
    made["fanout"] = list(frame_vectors.fanout())
    made["tails"] = list(frame_vectors.tails())
    made["error-kinds"] = list(frame_vectors.error_kinds())
    return {f"{name}.json": json_text(vectors) for name, vectors in made.items()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.make_vectors")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is not current")
    options = parser.parse_args(arguments)
    wanted = files()
    present = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    stale = sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))
    for name in stale:
        print(f"{'stale' if options.check else 'write'} conformance/vectors/{name}")
        if options.check:
            continue
        if name in wanted:
            (FOLDER / name).write_text(wanted[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
