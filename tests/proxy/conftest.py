"""Proxies in this process, in front of brokers with real sockets."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent.parent
for room in ("api", "broker", "proxy"):  # tests of the client are run once more over a proxy; the raw Peer is broker's
    sys.path.insert(0, str(TESTS / room))

from peer import Peer  # noqa: E402
from proxies import Served  # noqa: E402

import engine  # noqa: E402

Serve = Callable[..., Any]


@pytest.fixture(autouse=True)
async def no_peer_stays() -> AsyncIterator[None]:
    """A test that fails does not come to end its own."""
    yield
    await Peer.end_all()


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """`async with serve(…) as served`: a broker behind a proxy; keywords are of the proxy's configuration."""
    return lambda broker=None, **settings: Served.started(tmp_path / "data", broker or {}, settings)


@pytest.fixture
async def served(serve: Serve) -> AsyncIterator[Served]:
    """One of each, without any restriction."""
    async with serve() as made:
        yield made


@pytest.fixture
async def client(served: Served) -> AsyncIterator[engine.AsyncClient]:
    """A client that comes over the proxy: what tests of the client take."""
    async with engine.AsyncClient(served.url) as made:
        yield made
