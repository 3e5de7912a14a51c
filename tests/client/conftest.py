"""A scripted broker for each test, and its module on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_broker import FakeBroker


@pytest.fixture
def broker() -> FakeBroker:
    """One segment, one bucket."""
    return FakeBroker()
