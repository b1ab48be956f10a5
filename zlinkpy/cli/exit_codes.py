"""What the exit code of `zlink` says, decided in one place; `docs/cli.md` and every ``--help`` show this table.

Codes are for programs, so they are few and never change meaning. The finer reason (the error kind) is in the error
line. Rejected: the numbers of sysexits.h. 2 for usage is what click and most tools use, and a supervisor has to know
five numbers, not fifteen.
"""

from __future__ import annotations

from enum import IntEnum

from zlinkpy.errors import ConfigurationError, ErrorKind, ZlinkError


class ExitCode(IntEnum):
    """Exit codes of every `zlink` command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIGURATION = 3
    UNAVAILABLE = 4
    FORCED_STOP = 5
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done; for run and store also: stopped in order after Ctrl-C or SIGTERM",
    ExitCode.FAILED: "the operation failed; the error line names the error kind",
    ExitCode.USAGE: "unknown command, option or argument",
    ExitCode.CONFIGURATION: "settings, host or store configuration that cannot work",
    ExitCode.UNAVAILABLE: "store unreachable, no ready target, or no answer in time",
    ExitCode.FORCED_STOP: "the shutdown deadline passed before everything had ended",
    ExitCode.INTERRUPTED: "ended by Ctrl-C before it was done; for run and store: by the second one",
    ExitCode.TERMINATED: "ended by SIGTERM before it was done (never run and store)",
}

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())
"""The table as click prints it under a help text."""


def code_for(error: BaseException) -> ExitCode:
    """The exit code of a command that ended with `error`."""
    if isinstance(error, ConfigurationError):
        return ExitCode.CONFIGURATION
    if isinstance(error, ZlinkError) and error.kind in (ErrorKind.UNAVAILABLE, ErrorKind.DEADLINE_EXCEEDED):
        return ExitCode.UNAVAILABLE
    return ExitCode.FAILED
