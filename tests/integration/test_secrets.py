"""A secret key and a store password appear nowhere: all logs at DEBUG, every error is raised, all of it is searched."""

from __future__ import annotations

import logging
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import zlinkpy as zl
from tests.keys import Keyring
from tests.puppet import until
from zlinkpy.cli import main
from zlinkpy.errors import ZlinkError
from zlinkpy.location import open_store
from zlinkpy.location.open import store_target
from zlinkpy.security import write_key_file
from zlinkpy.telemetry.memory import InMemoryTelemetry

PASSWORD = "swordfish-4711"

Shown = list[str]


def refusing_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def url() -> str:
    """A store that does not answer."""
    return f"redis://keeper:{PASSWORD}@127.0.0.1:{refusing_port()}/3"


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    ring = Keyring(tmp_path, "a", "b")
    for name in ("a", "b", "mallory"):
        write_key_file(tmp_path / f"{name}.key", ring.pair(name))
    return ring


def security(ring: Keyring, name: str) -> zl.SecurityOptions:
    return zl.SecurityOptions(key_file=str(ring.path.parent / f"{name}.key"), allow_list=str(ring.path))


def host_of(ring: Keyring, name: str, telemetry: InMemoryTelemetry, **more: object) -> zl.Host:
    return zl.Host(security=security(ring, name), telemetry=telemetry, **more)  # type: ignore[arg-type]


def assert_silent(shown: Shown, ring: Keyring) -> None:
    everything = "\n".join(shown)
    assert len(everything) > 500, "nothing was collected"
    for secret in (PASSWORD, *(pair.secret.reveal() for pair in ring.pairs.values())):
        assert secret not in everything
        assert secret.encode().hex() not in everything


def raised(act: Callable[[], object]) -> str:
    """The traceback of the error that `act` has to raise, with everything that hangs on it."""
    try:
        act()
    except ZlinkError as error:
        return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
    raise AssertionError("no error")


async def test_neither_logs_nor_status_nor_metrics_show_a_secret(
    ring: Keyring, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    telemetry = InMemoryTelemetry()
    shown: Shown = []
    stored = host_of(ring, "b", telemetry, location_store=url)
    stored.mesh("play")
    async with stored.run() as rt:
        shown += [repr(rt.status), repr(vars(rt))]
    server = host_of(ring, "b", telemetry)
    server.mesh("play").serve_channel("work")
    async with server.run() as rt:
        endpoint = rt.endpoint("play")
        for name, peer in (("a", "b"), ("mallory", "b"), ("a", "a")):
            client = host_of(ring, name, telemetry)
            client.mesh("play", peers=[f"{peer}@{endpoint}"]).use_channel("work")
            async with client.run() as visitor:

                def decided(visitor: zl.Runtime = visitor) -> bool:
                    [state] = visitor.mesh_snapshot("play").peers
                    return state.phase.value == "ready" or state.last_failure is not None

                await until(decided)
                for each in (rt, visitor):
                    shown += [repr(each.status), repr(each.mesh_snapshot("play")), repr(each.mesh_status("play"))]
                    shown.append(repr(vars(each)))
        shown += [repr(telemetry.series()), repr(rt.status.store)]
    other = host_of(ring, "b", telemetry, location_store=url)
    other.mesh("play")
    with pytest.raises(zl.UnavailableError) as caught:
        async with other.run(require_store=True):
            raise AssertionError("it runs")
    shown.append("".join(traceback.format_exception(caught.value)))
    shown.append(caplog.text)
    assert "refused the key" in caplog.text
    assert_silent(shown, ring)


def test_no_error_shows_a_secret(ring: Keyring, url: str, tmp_path: Path) -> None:
    secret = ring.pair("a").secret.reveal()
    broken = tmp_path / "broken.key"
    broken.write_text((tmp_path / "a.key").read_text().replace("secret_key", "secret_keys"))
    broken.chmod(0o600)
    exposed = tmp_path / "exposed.key"
    write_key_file(exposed, ring.pair("a"))
    exposed.chmod(0o644)
    listed = tmp_path / "mistaken.toml"
    listed.write_text(f'a = "{secret} "\n')
    load = zl.Settings.load
    acts: list[Callable[[], object]] = [
        lambda: zl.SecurityOptions(key_file=str(broken), allow_any=True).load(),
        lambda: zl.SecurityOptions(key_file=str(exposed), allow_any=True).load(),
        lambda: zl.SecurityOptions(key_file=str(tmp_path / "a.key")).load(),
        lambda: zl.SecurityOptions(key_file=str(tmp_path / "a.key"), secret_key=secret).load(),  # type: ignore[arg-type]
        lambda: zl.SecurityOptions(secret_key=secret + "x", allow_any=True).load(),  # type: ignore[arg-type]
        lambda: zl.SecurityOptions(key_file=str(tmp_path / "a.key"), allow_list=str(listed)).load(),
        lambda: load(environ={}, overrides={"security.secret_key": secret}),
        lambda: load(environ={"ZLINK_SECRET_KEY": secret}),
        lambda: load(environ={"ZLINK_LOCATION_STOER": url}),
        lambda: open_store(url.replace("redis:", "radis:")),
        lambda: open_store(url + "?pasword=" + PASSWORD),
        lambda: open_store(url.replace(PASSWORD, PASSWORD + "/")),
    ]
    shown = [raised(act) for act in acts]
    shown += [repr(store_target(url)), repr(load(environ={"ZLINK_LOCATION_STORE": url}))]
    shown.append(repr(load(environ={"ZLINK_SECURITY_SECRET_KEY": secret}).security))
    assert_silent(shown, ring)


def test_no_command_shows_a_secret(ring: Keyring, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZLINK_LOCATION_STORE", url)
    monkeypatch.setenv("ZLINK_SECURITY_SECRET_KEY", ring.pair("a").secret.reveal())
    monkeypatch.setenv("ZLINK_SECURITY_ALLOW_LIST", str(ring.path))
    new = tmp_path / "new.key"
    commands = [
        ["doctor"],
        ["doctor", "--json"],
        ["doctor", "--key-file", str(tmp_path / "b.key")],
        ["nodes"],
        ["store", "clean"],
        ["request", "c", "P", "--mesh", "play", "--timeout", "0.5"],
        ["request", "c", "P", "--mesh", "play", "--peer", "tcp://127.0.0.1:9"],
        ["request", "c", "P", "--mesh", "play", "--peer", "b@tcp://127.0.0.1:9", "--timeout", "0.5"],
        ["keygen", "--out", str(new)],
        ["keygen", "--out", str(new)],
        ["keygen", "--out", str(new), "--force", "--json"],
    ]
    shown = []
    for command in commands:
        result = CliRunner().invoke(main, command)
        assert result.output, command
        shown += [result.output, result.stderr, repr(result.exception)]
    for line in new.read_text().splitlines():
        if line.startswith("secret_key"):
            assert line.split('"')[1] not in "\n".join(shown)
    assert_silent(shown, ring)
