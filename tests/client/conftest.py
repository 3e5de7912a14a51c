"""A scripted broker for each test, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.client.client import AsyncClient
from tests.kit.fake_broker import FakeBroker


@pytest.fixture
def broker() -> FakeBroker:
    """One segment, one bucket."""
    return FakeBroker()


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[AsyncClient]:
    """A client of it, closed behind the test."""
    async with broker.client() as client:
        yield client
