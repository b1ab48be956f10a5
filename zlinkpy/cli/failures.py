"""Turning exceptions into one line and an exit code.

Expected failures (the exception tree, interrupts) never show a traceback: the line names what was wrong, where, and
the fix, because whoever raised it put that in. Anything else is a defect and keeps its traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import click

from zlinkpy.cli.exit_codes import EPILOG, ExitCode, code_for
from zlinkpy.cli.output import dump_json
from zlinkpy.errors import ConfigurationError, ZlinkError
from zlinkpy.location import StoreFailure


class Interrupted(Exception):
    """A command was ended by a signal before it was done."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = ExitCode.TERMINATED if number == signal.SIGTERM else ExitCode.INTERRUPTED


class ForcedStop(Exception):
    """A host's shutdown deadline passed; the text says what was left."""


class ReportingCommand(click.Command):
    """A command whose failures end in one line and the documented exit code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("epilog", EPILOG)
        super().__init__(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            ctx.exit(ExitCode.INTERRUPTED)
        except BaseException as error:
            known = expected(error)
            if known is None:
                raise
            ctx.exit(report(known, as_json=bool(ctx.params.get("as_json"))))


def expected(error: BaseException) -> Exception | None:
    """The failure to report: `error`, or the first expected one in a group; None where there is a defect in it."""
    if isinstance(error, BaseExceptionGroup):
        found = [expected(inner) for inner in error.exceptions]
        return None if None in found else found[0]
    return error if isinstance(error, ZlinkError | Interrupted | ForcedStop | BrokenPipeError) else None


def report(error: Exception, *, as_json: bool) -> ExitCode:
    """Print one line on standard error and return the exit code."""
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has gone (``| head``) and wants no more, not even Python's complaint at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    if isinstance(error, Interrupted):
        _print(as_json, "interrupted", None, f"stopped by {error}")
        return error.code
    if isinstance(error, ForcedStop):
        _print(as_json, "forced_stop", None, str(error))
        return ExitCode.FORCED_STOP
    assert isinstance(error, ZlinkError)
    kind = "configuration" if isinstance(error, ConfigurationError) else error.kind.name.lower()
    fix = "; check that it runs and that its URL is right (zlink doctor)" if isinstance(error, StoreFailure) else ""
    _print(as_json, kind, error.cause, error.message + fix)
    return code_for(error)


def _print(as_json: bool, kind: str, cause: str | None, message: str) -> None:
    if as_json:
        click.echo(dump_json({"error": {"kind": kind, "cause": cause, "message": message}}), err=True)
    else:
        line = " ".join(message.split())
        click.echo(f"error: {line} [{kind}]", err=True)
