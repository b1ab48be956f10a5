"""A short folder with a host in it, and an embedded store beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.zlink import SERVER
from tests.location_server import valkey, valkey_session  # noqa: F401


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder to work in; its path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="zl-", ignore_cleanup_errors=True) as directory:
        folder = Path(directory)
        (folder / "server.py").write_text(SERVER)
        yield folder


@pytest.fixture
def store(place: Path) -> str:
    """The URL of an embedded store in `place`; whoever uses it starts it."""
    return f"valkey+embedded://{place}/store"
