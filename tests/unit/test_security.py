"""Keys, key files and allow-lists without a socket."""

from __future__ import annotations

import copy
import os
import pickle
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from tests.keys import Keyring, write_list
from zlinkpy.errors import ConfigurationError
from zlinkpy.security import (
    RELOAD_SECONDS,
    AllowList,
    HostKeys,
    KeyPair,
    KeyRefusedError,
    Secret,
    is_key,
    read_allow_list,
    read_key_file,
    write_key_file,
)
from zlinkpy.transport import generate_key_pair


def test_a_secret_shows_itself_to_nobody_but_who_asks() -> None:
    secret = Secret("open sesame")
    pair = KeyPair("public", secret)
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret!r}", repr(pair), repr([pair]), str([secret])):
        assert "sesame" not in shown
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="pickled or copied"):
            leak(secret)
    assert secret.reveal() == "open sesame"
    assert secret == Secret("open sesame")
    assert secret != Secret("open sesamE")
    assert secret != "open sesame"


@given(st.binary(min_size=32, max_size=32))
def test_what_encodes_32_bytes_is_a_key(raw: bytes) -> None:
    assert is_key(z85.encode(raw).decode())


@pytest.mark.parametrize(
    "text",
    ["", "k" * 39, "k" * 41, "k" * 39 + '"', "k" * 39 + "\n", "#" * 40, "k" * 39 + "é", 7, None, ["k" * 40]],
    ids=repr,
)
def test_what_does_not_is_none(text: object) -> None:
    assert not is_key(text)


# -- key files


def test_a_key_file_is_readable_by_its_owner_only_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    pair = generate_key_pair()
    old = os.umask(0)
    try:
        write_key_file(path, pair)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key_file(path) == pair


def test_a_key_file_is_replaced_on_demand_only(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    first, second = generate_key_pair(), generate_key_pair()
    write_key_file(path, first)
    with pytest.raises(ConfigurationError, match="exists; .*--force"):
        write_key_file(path, second)
    assert read_key_file(path) == first
    path.chmod(0o644)
    write_key_file(path, second, replace=True)
    assert read_key_file(path) == second
    assert [each.name for each in tmp_path.iterdir()] == ["node.key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666])
def test_a_key_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "node.key"
    write_key_file(path, generate_key_pair())
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"mode {mode:04o}.*chmod 600 {path}"):
        read_key_file(path)


def test_an_absent_key_file_names_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file.*zlink keygen --out"):
        read_key_file(tmp_path / "node.key")
    with pytest.raises(ConfigurationError, match=r"No such file"):
        write_key_file(tmp_path / "no" / "node.key", generate_key_pair())


SPOILT = {
    "no toml": 'secret_key = "{secret}',
    "no public key": 'secret_key = "{secret}"',
    "no secret key": 'public_key = "{public}"\nsecret = "{secret}"',
    "short": 'public_key = "{public}"\nsecret_key = "{secret}x"',
    "a number": 'public_key = "{public}"\nsecret_key = 7 # {secret}',
    "no text": 'secret_key = "{secret}"\n\0',
    "another document": '[security]\nsecret_key = "{secret}"',
}


@pytest.mark.parametrize("spoilt", SPOILT.values(), ids=SPOILT.keys())
def test_a_spoilt_key_file_is_refused_and_not_quoted(tmp_path: Path, spoilt: str) -> None:
    path = tmp_path / "node.key"
    pair = generate_key_pair()
    path.write_bytes(
        b"\xff" if spoilt is None else spoilt.format(public=pair.public, secret=pair.secret.reveal()).encode()
    )
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=f"key file {path}: it does not hold") as caught:
        read_key_file(path)
    assert pair.secret.reveal() not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is caught.value.__context__ is None


# -- allow-lists


def test_an_allow_list_gives_keys_to_names(tmp_path: Path) -> None:
    ring = Keyring(tmp_path, "a", "b c")
    listed = AllowList(str(ring.path))
    assert len(listed) == 2
    assert listed.key_of("b c") == ring.public("b c")
    assert listed.key_of("d") is None
    assert listed.admits(ring.public("a"))
    assert not listed.admits(ring.public("d"))


BAD_LISTS = {
    "empty": ("", "it is empty"),
    "no toml": ("a = ", "not TOML"),
    "a table": ("[a]\nkey = 1", 'a has no public key; write a = "KEY"'),
    "no key": ('a = "short"', "a has no public key"),
    "no text": ("\xff", "not UTF-8"),
}


@pytest.mark.parametrize(("text", "problem"), BAD_LISTS.values(), ids=BAD_LISTS.keys())
def test_a_bad_allow_list_is_refused_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "allow.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=f"allow-list {path}: {problem}"):
        read_allow_list(path)


def test_a_secret_key_on_the_list_by_mistake_is_not_quoted(tmp_path: Path) -> None:
    secret = generate_key_pair().secret.reveal() + "x"
    path = tmp_path / "allow.toml"
    path.write_text(f'a = "{secret}"')
    with pytest.raises(ConfigurationError) as caught:
        read_allow_list(path)
    assert secret not in caught.value.message


def test_a_changed_list_is_read_at_most_once_a_second_and_says_who_went(tmp_path: Path) -> None:
    ring = Keyring(tmp_path, "a", "b")
    listed = AllowList(str(ring.path))
    assert listed.refresh(10.0) is None
    ring.allow("b", "c")
    assert listed.refresh(10.0 + RELOAD_SECONDS / 2) is None
    assert listed.admits(ring.public("a"))
    assert listed.refresh(10.0 + RELOAD_SECONDS) == {ring.public("a")}
    assert not listed.admits(ring.public("a"))
    assert listed.admits(ring.public("c"))
    ring.allow("b", "c", "d")
    assert listed.refresh(20.0) == frozenset()
    assert listed.refresh(30.0) is None


@pytest.mark.parametrize("spoilt", ["", "a = ", None])
def test_a_list_that_became_unusable_changes_nothing_and_is_reported_once(
    tmp_path: Path, spoilt: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    ring = Keyring(tmp_path, "a")
    listed = AllowList(str(ring.path))
    if spoilt is None:
        ring.path.unlink()
    else:
        ring.path.write_text(spoilt)
    for now in (1.0, 3.0, 5.0):
        assert listed.refresh(now) is None
    assert listed.admits(ring.public("a"))
    [record] = caplog.records
    assert "the list read before stays in force" in record.getMessage()
    ring.allow("b")
    assert listed.refresh(9.0) == {ring.public("a")}


# -- host keys


def test_keys_need_a_list_or_a_word_that_any_key_will_do(tmp_path: Path) -> None:
    ring = Keyring(tmp_path, "a")
    pair = ring.pair("a")
    with pytest.raises(ConfigurationError, match=r"set allow_list .* or write allow_any = true"):
        HostKeys(pair=pair)
    anybody = HostKeys(pair=pair, allow_list=AllowList(str(ring.path)), allow_any=True)
    assert anybody.admits(ring.public("b"))
    assert anybody.key_of("a") == ring.public("a")
    write_list(ring.path, {"b": ring.public("b")})
    assert anybody.refresh(5.0) == frozenset()
    assert HostKeys(pair=pair, allow_any=True).key_of("a") is None


def test_a_dial_needs_a_listed_key(tmp_path: Path) -> None:
    ring = Keyring(tmp_path, "a", "b")
    keys = ring.host("a")
    keys.check_dial("tcp://h:1", ring.public("b"))
    with pytest.raises(KeyRefusedError, match="NAME@tcp://h:1"):
        keys.check_dial("tcp://h:1", None)
    with pytest.raises(KeyRefusedError, match="not on the allow-list"):
        keys.check_dial("tcp://h:1", ring.public("c"))
