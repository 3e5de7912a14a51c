"""A scripted broker for each test, and a client of it."""

from __future__ import annotations

import pytest

from tests.kit.fake_broker import FakeBroker


@pytest.fixture
def broker() -> FakeBroker:
    """One segment, one bucket."""
    return FakeBroker()
