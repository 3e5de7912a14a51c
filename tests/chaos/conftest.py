"""No server outlives its test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from server import Server


@pytest.fixture(autouse=True)
async def no_server_stays() -> AsyncIterator[None]:
    """A test that fails does not come to stop its own."""
    yield
    for server in list(Server.running):
        await server.kill()
