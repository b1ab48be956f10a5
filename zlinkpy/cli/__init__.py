"""The `zlink` command. Thin: every command parses its arguments, calls public functions of the library, and prints.

`main` is the entry point; one file per command. What the commands share: `exit_codes` (the documented codes),
`failures` (one line per expected failure), `output` (tables, JSON, progress), `stopping` (Ctrl-C and SIGTERM),
`target` (MODULE:HOST).
"""

from __future__ import annotations

from zlinkpy.cli.command import main
from zlinkpy.cli.exit_codes import ExitCode
from zlinkpy.cli.target import load_host

__all__ = ["ExitCode", "load_host", "main"]
