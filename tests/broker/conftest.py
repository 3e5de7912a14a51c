"""Brokers on real storage in a directory of the test's own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from tests.kit.peer import Peer


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
def later(monkeypatch):
    """later(broker, hours): the broker's clock goes on."""

    def go(broker, hours: float) -> None:
        now_ms, now = broker.clock.time_ms() + int(hours * 3_600_000), broker.clock.monotonic() + hours * 3600
        monkeypatch.setattr(broker.clock, "time_ms", lambda: now_ms)
        monkeypatch.setattr(broker.clock, "monotonic", lambda: now)

    return go


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


@pytest.fixture
async def peer(connect: Callable[..., Any]) -> Peer:
    """One connection, over each kind of stream in turn."""
    return await connect()


@pytest.fixture
async def segment(peer: Peer) -> str:
    """The name of the only segment of the topic "orders", which the peer's lookup has made."""
    return await peer.segment("orders")


@pytest.fixture
async def producer(peer: Peer, segment: str) -> int:
    """The peer's producer on it."""
    return await peer.producer(segment)


@pytest.fixture
async def consumer(peer: Peer, segment: str) -> int:
    """The peer's exclusive consumer of subscription "s" on it, from its beginning, with credit for everything."""
    return await peer.consumer(segment, "stream")
