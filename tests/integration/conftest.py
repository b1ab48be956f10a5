"""Whole nodes in real processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.location_server import valkey, valkey_session  # noqa: F401


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder to work in; its path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="zl-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)
