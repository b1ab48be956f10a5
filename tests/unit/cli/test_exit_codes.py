"""The documented codes: what leads to each, and that the documents say so."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from zlinkpy import errors
from zlinkpy.cli import ExitCode, main
from zlinkpy.cli.exit_codes import MEANINGS, code_for
from zlinkpy.cli.failures import ForcedStop, Interrupted, ReportingCommand
from zlinkpy.location import StoreFailure

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigurationError("x"), 3),
        (errors.UnavailableError("x"), 4),
        (errors.DeadlineExceededError("x"), 4),
        (StoreFailure("x", applied="no", operation="read"), 4),
        (errors.NotFoundError("x"), 1),
        (errors.InvalidOperationError("x"), 1),
        (errors.ProtocolError("x"), 1),
        (errors.InternalFailureError("x"), 1),
        (Interrupted(2), 130),
        (Interrupted(15), 143),
        (ForcedStop("x"), 5),
    ],
)
def test_a_failure_ends_in_one_line_and_its_code(error: Exception, code: int) -> None:
    def fail() -> None:
        # A nursery around the failure must not change what is said about it.
        raise BaseExceptionGroup("nursery", [error])

    result = CliRunner().invoke(ReportingCommand("fail", callback=fail), [])
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")
    if not isinstance(error, Interrupted | ForcedStop | errors.ConfigurationError):
        assert code_for(error) == code
        assert f"[{error.kind.name.lower()}]" in result.stderr


def test_a_defect_keeps_its_traceback() -> None:
    def fail() -> None:
        raise BaseExceptionGroup("nursery", [errors.NotFoundError("x"), ZeroDivisionError()])

    result = CliRunner().invoke(ReportingCommand("fail", callback=fail), [])
    assert isinstance(result.exception, BaseExceptionGroup)


def test_a_line_stays_one_line() -> None:
    def fail() -> None:
        raise errors.NotFoundError("first\nsecond")

    result = CliRunner().invoke(ReportingCommand("fail", callback=fail), [])
    assert result.stderr == "error: first second [not_found]\n"


def test_with_json_the_error_is_a_document() -> None:
    @click.command(cls=ReportingCommand)
    @click.option("--json", "as_json", is_flag=True)
    def fail(as_json: bool) -> None:
        raise errors.UnavailableError("gone", cause="RouteNotConnected")

    result = CliRunner().invoke(fail, ["--json"])
    assert result.exit_code == 4
    assert result.stderr == '{"error": {"kind": "unavailable", "cause": "RouteNotConnected", "message": "gone"}}\n'


def test_every_help_shows_every_code() -> None:
    for name in (None, *main.list_commands(click.Context(main))):
        result = CliRunner().invoke(main, [*([name] if name else []), "--help"], terminal_width=120)
        assert result.exit_code == 0
        for code, meaning in MEANINGS.items():
            assert f"{code.value}  {meaning}" in result.stdout


def test_the_documentation_has_the_same_table() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE))
    assert {code: meaning.replace("`", "") for code, meaning in rows.items()} == {
        str(code.value): meaning for code, meaning in MEANINGS.items()
    }
    assert set(MEANINGS) == set(ExitCode)
