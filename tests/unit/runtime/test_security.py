"""From security options to keys, and what a host without keys may not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.keys import Keyring
from zlinkpy.errors import ConfigurationError
from zlinkpy.mesh import plan_listener
from zlinkpy.runtime.security import HostSecurity, SecurityOptions, is_loopback
from zlinkpy.security import KeyPair, Secret, write_key_file
from zlinkpy.transport import MemoryNetwork


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "a", "b")


@pytest.fixture
def key_file(tmp_path: Path, ring: Keyring) -> str:
    path = tmp_path / "a.key"
    write_key_file(path, ring.pair("a"))
    return str(path)


def test_without_anything_there_are_no_keys() -> None:
    assert SecurityOptions().load() is None
    assert SecurityOptions(insecure=True).load() is None
    assert HostSecurity().identity == "anonymous"


def test_keys_come_from_a_file_or_from_a_secret_text(ring: Keyring, key_file: str) -> None:
    from_file = SecurityOptions(key_file=key_file, allow_list=str(ring.path)).load()
    secret = ring.pair("a").secret.reveal()
    from_text = SecurityOptions(secret_key=secret, allow_list=str(ring.path)).load()  # type: ignore[arg-type]
    assert from_file is not None
    assert from_text is not None
    assert from_file.pair == from_text.pair == ring.pair("a")
    assert HostSecurity(keys=from_file).identity == ring.public("a")


def test_contradictions_are_refused_with_the_fix(ring: Keyring, key_file: str, tmp_path: Path) -> None:
    secret = ring.pair("a").secret
    cases: list[tuple[dict[str, Any], str]] = [
        ({"key_file": key_file, "secret_key": secret}, "exclude each other"),
        ({"allow_list": str(ring.path)}, "allow_list is set and this host has no keys"),
        ({"allow_any": True}, "allow_any is set and this host has no keys"),
        ({"key_file": key_file}, "write allow_any = true"),
        ({"secret_key": Secret("short"), "allow_any": True}, "not 40 characters of z85"),
        ({"key_file": key_file, "allow_list": str(tmp_path / "none")}, "allow-list .*No such file"),
    ]
    for options, problem in cases:
        with pytest.raises(ConfigurationError, match=problem):
            SecurityOptions(**options).load()
    mixed = tmp_path / "mixed.key"
    write_key_file(mixed, KeyPair(ring.public("b"), secret))
    with pytest.raises(ConfigurationError, match="do not belong together"):
        SecurityOptions(key_file=str(mixed), allow_any=True).load()


LOOPBACK = ("127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST", "::ffff:127.0.0.1")
EXPOSED = ("0.0.0.0", "::", "*", "10.0.0.5", "192.168.1.1", "node.example", "eth0", "lo", "::ffff:10.0.0.5", "fe80::1")


def test_loopback_is_told_from_what_others_reach() -> None:
    assert all(is_loopback(host) for host in LOOPBACK)
    assert not any(is_loopback(host) for host in EXPOSED)


@pytest.mark.parametrize("host", EXPOSED)
def test_an_exposed_listener_without_keys_is_refused(ring: Keyring, host: str) -> None:
    text = f"tcp://[{host}]:0" if ":" in host else f"tcp://{host}:0"
    plan = plan_listener(text, "node.example", "mesh.play")
    with pytest.raises(ConfigurationError, match=r"mesh\.play\.listen: .*\[security\] key_file.*insecure = true"):
        HostSecurity().check_bind(plan, "mesh.play")
    assert HostSecurity(insecure=True).check_bind(plan, "mesh.play") is plan
    assert HostSecurity(keys=ring.host("a")).check_bind(plan, "mesh.play") is plan


@pytest.mark.parametrize("host", LOOPBACK)
def test_a_loopback_listener_needs_no_keys(host: str) -> None:
    text = f"tcp://[{host}]:0" if ":" in host else f"tcp://{host}:0"
    plan = plan_listener(text, None, "mesh.play")
    assert HostSecurity().check_bind(plan, "mesh.play") is plan


def test_endpoints_have_names_where_there_are_keys(ring: Keyring) -> None:
    keyed, plain = HostSecurity(keys=ring.host("a")), HostSecurity()
    assert keyed.endpoints(["b@tcp://h:1"], "p") == (("tcp://h:1",), {"tcp://h:1": "b"})
    assert plain.endpoints(["tcp://h:1"], "p") == (("tcp://h:1",), {})
    with pytest.raises(ConfigurationError, match=r"p: this host has keys .*write NAME@tcp://h:1"):
        keyed.endpoints(["tcp://h:1"], "p")
    with pytest.raises(ConfigurationError, match=f"no key is listed for 'z'; add z to {ring.path}"):
        keyed.endpoints(["z@tcp://h:1"], "p")
    with pytest.raises(ConfigurationError, match=r"set \[security\] key_file, or leave b@ out"):
        plain.endpoints(["b@tcp://h:1"], "p")
    with pytest.raises(ConfigurationError, match="not an endpoint"):
        keyed.endpoints(["b@h:1"], "p")


def registered(security: SecurityOptions | None, kind: str) -> zl.Host:
    network = MemoryNetwork(seed=1)
    host = zl.Host(security=security, transport=lambda _: network.transport("a"), watchdog=False)
    exposed = {"listen": "tcp://0.0.0.0:0", "advertise_host": "127.0.0.1"}
    if kind == "mesh":
        host.mesh("play", **exposed)
    else:
        host.serve_client_server("orders", **exposed)
    return host


@pytest.mark.parametrize("kind", ["mesh", "client_server"])
async def test_a_host_refuses_to_be_exposed_before_it_binds(autojump_clock: object, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\.listen: tcp://0\.0\.0\.0:0 can be reached from other machines"):
        async with registered(None, kind).run():
            raise AssertionError("it runs")
    async with registered(SecurityOptions(insecure=True), kind).run():
        await trio.lowlevel.checkpoint()
    settings = zl.Settings.load(environ={"ZLINK_SECURITY_INSECURE": "true"})
    async with registered(None, kind).run(settings=settings):
        await trio.lowlevel.checkpoint()


# -- settings


def test_settings_stand_over_code(tmp_path: Path) -> None:
    file = tmp_path / "zlink.toml"
    file.write_text('[security]\nkey_file = "f.key"\nallow_list = "f.toml"\nallow_any = false\ninsecure = true\n')
    settings = zl.Settings.load(file, environ={"ZLINK_SECURITY_ALLOW_LIST": "e.toml"})
    code = SecurityOptions(secret_key="s", allow_any=True)  # type: ignore[arg-type]
    assert settings.security.over(code) == SecurityOptions(key_file="f.key", allow_list="e.toml", insecure=True)
    settings = zl.Settings.load(environ={"ZLINK_SECURITY_SECRET_KEY": "t"})
    assert settings.security.over(SecurityOptions(key_file="f.key")) == SecurityOptions(secret_key=Secret("t"))
    assert zl.Settings.load(environ={}).security.over(code) == code


def test_a_secret_key_comes_from_the_environment_only_and_is_never_shown(tmp_path: Path) -> None:
    secret = "sesame" * 7
    file = tmp_path / "zlink.toml"
    file.write_text(f'[security]\nsecret_key = "{secret}"\n')
    loads: list[dict[str, Any]] = [
        {"file": file, "environ": {}},
        {"environ": {}, "overrides": {"security.secret_key": secret}},
        {"environ": {"ZLINK_SECURTY_SECRET_KEY": secret}},
        {"environ": {}, "overrides": {"security.secret": secret}},
    ]
    for load in loads:
        with pytest.raises(ConfigurationError) as caught:
            zl.Settings.load(**load)
        assert secret not in repr(caught.value)
    with pytest.raises(ConfigurationError, match="is empty"):
        zl.Settings.load(environ={"ZLINK_SECURITY_SECRET_KEY": " "})
    settings = zl.Settings.load(environ={"ZLINK_SECURITY_SECRET_KEY": secret})
    assert secret not in repr(settings)
    assert secret not in repr(settings.security.over(SecurityOptions()))
    assert settings.security.secret_key == Secret(secret)
