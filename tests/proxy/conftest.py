"""Proxies in this process, in front of brokers with real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.proxy.config import ProxyConfig
from engine.proxy.server import Proxy
from engine.wire.url import format_url
from tests.kit.peer import Peer
from tests.proxy.proxies import Served

Serve = Callable[..., Any]


@pytest.fixture(autouse=True)
async def no_peer_stays() -> AsyncIterator[None]:
    """A test that fails does not come to end its own."""
    yield
    await Peer.end_all()


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """`async with serve(…) as front`: a broker behind a proxy; keywords are of the proxy's configuration."""
    return lambda broker=None, **settings: Served.started(tmp_path / "data", broker or {}, settings)


@pytest.fixture
async def front(serve: Serve) -> AsyncIterator[Served]:
    """One of each, without any restriction."""
    async with serve() as made:
        yield made


@pytest.fixture
async def client(front: Served) -> AsyncIterator[engine.AsyncClient]:
    """A client that comes over the proxy: what tests of the client take."""
    async with engine.AsyncClient(front.url) as made:
        yield made


class OverProxy:
    """An engine whose `service_url` is that of a proxy in front of it."""

    def __init__(self, opened: engine.AsyncEngine, url: str) -> None:
        self.service_url = url
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[OverProxy]:
    """What tests of the client make several clients of."""
    async with engine.open_async(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0", shared=False) as opened:
        proxy = Proxy(ProxyConfig(brokers=(opened.service_url,)))
        yield OverProxy(opened, format_url(*await proxy.serve("127.0.0.1", 0)))
        await proxy.close()


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[engine.Client]:
    """The same for tests of the blocking client."""
    with (
        engine.open(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0") as opened,
        proxy_in_a_thread(opened.service_url) as url,
        engine.Client(url) as made,
    ):
        yield made


@contextmanager
def proxy_in_a_thread(broker: str) -> Iterator[str]:
    """Its URL. It has a loop of its own, as the test has none."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[Proxy, str]:
        proxy = Proxy(ProxyConfig(brokers=(broker,)))
        return proxy, format_url(*await proxy.serve("127.0.0.1", 0))

    proxy, url = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield url
    finally:
        asyncio.run_coroutine_threadsafe(proxy.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
