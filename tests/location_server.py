"""A real Valkey for tests: one server per test session, flushed before every test that asks for it.

Use it from a conftest: ``from tests.location_server import valkey, valkey_session  # noqa: F401``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from zlinkpy.location.embedded_server import EmbeddedServer


class TestServer(EmbeddedServer):
    """An `EmbeddedServer` with the raw client that tests look behind the provider with."""

    __test__ = False

    def client(self) -> redis.Redis:
        """A new plain client; the caller closes it."""
        return redis.Redis(unix_socket_path=self.socket_path, protocol=2)

    def command(self, *arguments: object) -> object:
        """Run one command on a connection of its own."""
        client = self.client()
        try:
            return client.execute_command(*arguments)
        finally:
            client.close()

    def scripts_run(self) -> int:
        """How many script calls the server executed since it started."""
        stats = self.command("INFO", "commandstats")
        return sum(int(stats[name]["calls"]) for name in ("cmdstat_eval", "cmdstat_evalsha") if name in stats)


@pytest.fixture(scope="session")
def valkey_session() -> Iterator[TestServer]:
    """The session's server. A short directory under the system's temporary one keeps socket paths short."""
    with tempfile.TemporaryDirectory(prefix="zl-") as directory:
        server = TestServer(Path(directory), arguments=("--enable-debug-command", "local"))
        server.start()
        yield server
        server.resume()
        server.stop()


@pytest.fixture
def valkey(valkey_session: TestServer) -> Iterator[TestServer]:
    """An empty, running server. The test may pause, kill and restart it; the next test gets it healthy again."""
    valkey_session.resume()
    valkey_session.start()
    valkey_session.command("FLUSHALL")
    yield valkey_session
    valkey_session.resume()
