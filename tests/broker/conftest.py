"""Brokers on real storage in a directory of the test's own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from peer import Peer

from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "reference"))


@pytest.fixture(autouse=True)
async def _end_peers() -> AsyncIterator[None]:
    yield
    await Peer.end_all()


@pytest.fixture
def start_broker(tmp_path: Path) -> Callable[..., Any]:
    """An async context manager: a started broker on the test's directory; again and again, for restarts."""

    @contextlib.asynccontextmanager
    async def start(**config: Any) -> AsyncIterator[Broker]:
        broker = Broker(tmp_path / "data", config=BrokerConfig(**config))
        await broker.start()
        try:
            yield broker
        finally:
            await broker.close()

    return start


@pytest.fixture
async def broker(start_broker) -> AsyncIterator[Broker]:
    async with start_broker() as broker:
        yield broker


@pytest.fixture
async def http(broker: Broker) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the broker's admin API."""
    host, port = await broker.serve_admin("127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
        yield session


@pytest.fixture(params=["memory", "tcp"])
async def connect(broker: Broker, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`await connect()` gives a peer with its handshake done, over each kind of stream in turn."""
    url = None
    if request.param == "tcp":
        host, port = await broker.serve("127.0.0.1", 0)
        url = f"engine://{host}:{port}"

    async def make(**options: Any) -> Peer:
        return await Peer.connect(broker, url, **options)

    return make
