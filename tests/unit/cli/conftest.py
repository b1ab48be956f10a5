"""A way to run `zlink` in this process, and a folder to import hosts from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from zlinkpy.cli import main
from zlinkpy.cli.options import STORE_VARIABLE

Zlink = Callable[..., Result]


@pytest.fixture
def zlink(monkeypatch: pytest.MonkeyPatch) -> Zlink:
    """``zlink("nodes", "--json")`` -> exit code, stdout, stderr."""
    monkeypatch.delenv(STORE_VARIABLE, raising=False)

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, arguments, input=stdin, catch_exceptions=False)

    return invoke


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory; modules imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
