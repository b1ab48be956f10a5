"""``zlink keygen``, and what ``zlink doctor`` says about keys."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.keys import Keyring
from tests.unit.cli.conftest import Zlink
from zlinkpy.security import is_key, read_key_file, write_key_file
from zlinkpy.transport.context import batch_is_allowed


@pytest.fixture(autouse=True)
def no_security_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ZLINK_SECURITY_"):
            monkeypatch.delenv(name)


def test_the_public_key_is_printed_and_both_are_written(zlink: Zlink, folder: Path) -> None:
    made = zlink("keygen")
    assert made.exit_code == 0
    pair = read_key_file("zlink.key")
    assert made.stdout == f"{pair.public}\n"
    assert is_key(pair.public)
    assert (folder / "zlink.key").stat().st_mode & 0o777 == 0o600


def test_an_existing_file_stays_unless_forced(zlink: Zlink, folder: Path) -> None:
    first = json.loads(zlink("keygen", "--out", "n.key", "--json").stdout)
    assert first == {"key_file": "n.key", "public_key": read_key_file("n.key").public}
    again = zlink("keygen", "--out", "n.key")
    assert again.exit_code == 3
    assert "key file n.key exists" in again.stderr
    assert read_key_file("n.key").public == first["public_key"]
    forced = zlink("keygen", "--out", "n.key", "--force")
    assert forced.exit_code == 0
    assert forced.stdout.strip() == read_key_file("n.key").public != first["public_key"]


def keys_line(zlink: Zlink, *arguments: str) -> tuple[int, dict[str, str]]:
    result = zlink("doctor", "--json", *arguments)
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert "curve yes" in checks["libzmq"]["found"]
    assert f"batch threads {'yes' if batch_is_allowed() else 'no'}" in checks["libzmq"]["found"]
    return result.exit_code, checks["keys"]


def test_the_doctor_says_whether_keys_can_be_read(zlink: Zlink, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, check = keys_line(zlink)
    assert (code, check["verdict"], check["found"]) == (0, "note", "none")
    assert "loopback" in check["fix"]
    ring = Keyring(folder, "a", "b")
    write_key_file("a.key", ring.pair("a"))
    code, check = keys_line(zlink, "--key-file", "a.key", "--allow-list", str(ring.path))
    assert (code, check["verdict"]) == (0, "ok")
    assert check["found"] == f"{ring.public('a')}; lets in: {ring.path}, 2 nodes"
    monkeypatch.setenv("ZLINK_SECURITY_ALLOW_ANY", "true")
    code, check = keys_line(zlink, "--key-file", "a.key")
    assert check["found"] == f"{ring.public('a')}; lets in: any key"
    Path("a.key").chmod(0o640)
    code, check = keys_line(zlink, "--key-file", "a.key")
    assert (code, check["verdict"]) == (3, "problem")
    assert "chmod 600 a.key" in check["found"]
