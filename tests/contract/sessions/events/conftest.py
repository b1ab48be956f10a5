from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.contract.sessions.events.nodes import Sides, sides
from tests.location_server import valkey, valkey_session  # noqa: F401


@pytest.fixture
async def world() -> AsyncIterator[Sides]:
    """Name autojump_clock in the test."""
    async with sides() as made:
        yield made
