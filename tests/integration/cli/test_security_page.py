"""docs/security.md, run as it stands there."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define, field

from tests.integration.cli.zlink import COMMAND, START_SECONDS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "security.md").read_text()
STEP_SECONDS = 60.0


@define
class Step:
    """One command of the page and what it prints."""

    command: str
    output: list[str] = field(factory=list)

    @property
    def pattern(self) -> re.Pattern[str]:
        """KEY and RID stand for what differs every time."""
        text = re.escape("\n".join(self.output))
        return re.compile(text.replace("KEY", r"[^\s\"]{40}").replace("RID", r"\S+"))


def steps() -> list[Step]:
    found: list[Step] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Step(line[2:]))
            else:
                found[-1].output.append(line)
    return found


@pytest.fixture
def here() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="zl-") as directory:
        folder = Path(directory)
        script = folder / "bin" / "zlink"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
        script.chmod(0o755)
        yield folder


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_the_page_says_what_happens(here: Path) -> None:
    port = free_port()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ZLINK_")}
    environ |= {"PATH": f"{here / 'bin'}:{environ['PATH']}", "PYTHONPATH": str(ROOT)}
    exported: list[str] = []
    node: subprocess.Popen[str] | None = None
    assert len(steps()) > 8
    assert shutil.which("sh") is not None
    assert sys.executable in " ".join(COMMAND)
    try:
        for step in steps():
            command = "\n".join([*exported, step.command]).replace("5601", port)
            if step.command.startswith("export "):
                exported.append(step.command)
                continue
            if step.command.endswith("&"):
                alone = command.removesuffix("&").replace("zlink run", "exec zlink run")
                arguments = ["sh", "-c", alone]
                node = subprocess.Popen(
                    arguments, cwd=here, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
                assert node.stdout is not None
                printed = node.stdout.readline()
            else:
                done = subprocess.run(
                    ["sh", "-c", command], cwd=here, env=environ, capture_output=True, text=True, timeout=STEP_SECONDS
                )
                shown = done.stdout or done.stderr
                printed = "\n".join(line for line in shown.splitlines() if not line.startswith(("mesh ", "waiting ")))
            printed = printed.strip().replace(port, "5601")
            assert step.pattern.fullmatch(printed), f"{step.command}\nprinted\n{printed}\ninstead of\n{step.output}"
    finally:
        if node is not None:
            node.terminate()
            _, log = node.communicate(timeout=START_SECONDS)
    assert node is not None
    assert node.returncode == 0
    for said in ("refused the key", "it dialled with another public key than this node's"):
        assert said in log
    for secret in secrets_in(here):
        assert secret not in log


def secrets_in(folder: Path) -> list[str]:
    found = [re.search(r'secret_key = "(.{40})"', file.read_text()) for file in folder.glob("*.key")]
    assert len(found) == 3
    return [match[1] for match in found if match is not None]
