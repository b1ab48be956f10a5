"""MODULE:HOST: what is found, and what the person who mistyped it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from zlinkpy.cli import load_host
from zlinkpy.errors import ConfigurationError

SERVER = """\
import types
import zlinkpy as zl

host = zl.Host()
host.mesh("play")
second = zl.Host()
inside = types.SimpleNamespace(host=second)
number = 3


def make():
    return host
"""


@pytest.fixture
def server(folder: Path) -> Path:
    (folder / "server.py").write_text(SERVER)
    package = folder / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "game.py").write_text(SERVER)
    (folder / "empty.py").write_text("")
    (folder / "broken.py").write_text("import os\n\nraise RuntimeError('no\\nluck')\n")
    (folder / "unparsable.py").write_text("def x(:\n")
    (folder / "needs.py").write_text("import not_there_at_all\n")
    (folder / "leaves.py").write_text("import sys\nsys.exit(7)\n")
    (folder / "misuses.py").write_text("import zlinkpy as zl\n\nhost = zl.Host()\nhost.mesh('a')\nhost.mesh('a')\n")
    return folder


@pytest.mark.parametrize("target", ["server:host", "server:inside.host", "pack.game:host"])
def test_a_host_is_found_by_module_and_name(server: Path, target: str) -> None:
    assert load_host(target).meshes in (("play",), ())


def test_the_working_directory_is_searched_first(server: Path) -> None:
    assert load_host("server:host").meshes == ("play",)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("server", "write server:host"),
        ("pack/game.py", "write pack.game:host"),
        ("pack/game.py:host", "write pack.game:host"),
        (":host", "nothing before the colon"),
        ("server:", "nothing after the colon"),
        ("", "is not a target"),
        ("sevrer:host", "there is server"),
        ("pack.gaem:host", "in package pack; there is pack.game"),
        ("nothing.like.it:host", "no module named 'nothing'"),
        ("server:hots", "its hosts: server:host"),
        ("server:inside.hots", "server.inside has no 'hots'"),
        ("server:make", "'server:make' is a function, not a Host"),
        ("server:number", "of type int, not a Host"),
        ("empty:host", "it has no Host"),
        ("broken:host", "broken.py:3) cannot be imported: RuntimeError: no"),
        ("unparsable:host", "unparsable.py:1) does not compile"),
        ("needs:host", "needs.py:1) cannot be imported: ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("leaves:host", "leaves.py:2) cannot be imported: SystemExit: 7"),
        ("misuses:host", "misuses.py:5): mesh 'a' is registered twice"),
    ],
)
def test_a_bad_target_says_what_is_wrong_and_what_to_write(server: Path, target: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_host(target)
    assert said in raised.value.message
