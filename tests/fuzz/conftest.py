"""Raw peers, the reference encoder of entries, and a log in which no broker may leave a traceback."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.kit.peer import Peer


@pytest.fixture(autouse=True)
async def no_peer_stays() -> AsyncIterator[None]:
    """A test that fails does not come to end its own."""
    yield
    await Peer.end_all()
