"""Raw peers, the reference encoder of entries, and a log in which no broker may leave a traceback."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
for room in ("broker", "reference", "fuzz"):
    sys.path.insert(0, str(TESTS / room))

from peer import Peer  # noqa: E402


@pytest.fixture(autouse=True)
async def no_peer_stays() -> AsyncIterator[None]:
    """A test that fails does not come to end its own."""
    yield
    await Peer.end_all()
