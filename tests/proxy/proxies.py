"""What the tests of the proxy share: a broker or several behind a proxy, a connector that takes notes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.aio.memory_limiter import AsyncDualMemoryLimiter, LimitType, MemoryLimit
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.clock import SystemClock
from engine.metadata.memory import MemoryMetadataStore
from engine.proxy.config import ProxyConfig
from engine.proxy.server import Proxy
from engine.wire.connector import SocketConnector
from engine.wire.stream import FrameHandler, FrameStream
from engine.wire.url import format_url, parse_url

WAIT_S = 60.0


@dataclass
class Served:
    """A broker and a proxy in front of it; `url` is the proxy's."""

    broker: Broker
    proxy: Proxy
    url: str
    direct_url: str
    admin_url: str

    @classmethod
    @asynccontextmanager
    async def started(cls, data: Path, broker: dict[str, Any], proxy: dict[str, Any]) -> AsyncIterator[Served]:
        async with AsyncExitStack() as stack:
            made = Broker(data, config=BrokerConfig(**broker))
            await made.start()
            stack.push_async_callback(made.close)
            direct = format_url(*await made.serve("127.0.0.1", 0))
            await made.serve_admin("127.0.0.1", 0)
            front = Proxy(ProxyConfig(**{"brokers": (direct,), **proxy}))
            stack.push_async_callback(front.close)
            admin = format_url(*await front.serve_admin("127.0.0.1", 0), "http")
            yield cls(made, front, format_url(*await front.serve("127.0.0.1", 0)), direct, admin)

    def limit(self, *, heap: int = 2**20, direct: int = 2**20, timeout: float = 60.0, queue_max: int = 100) -> None:
        """Other limits for topic lists, below what the configuration takes. Before anybody connects."""
        limits = (MemoryLimit(size, timeout, queue_max) for size in (heap, direct))
        self.proxy.limiter = AsyncDualMemoryLimiter(*limits, "topic_list")

    def used(self) -> tuple[int, int]:
        """Heap and direct memory of topic lists."""
        found = self.proxy.limiter.statistics()
        return found[LimitType.HEAP_MEMORY].used, found[LimitType.DIRECT_MEMORY].used

    async def create(self, count: int, width: int = 0) -> None:
        """So many topics, with names so long at least."""
        for i in range(count):
            await self.broker.admin.create_topic(f"topic-{i:0{max(width, 6)}d}")


def free_url() -> str:
    """A broker says its address before it listens there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"engine://127.0.0.1:{probe.getsockname()[1]}"


@asynccontextmanager
async def cluster(path: Path, count: int = 3, **settings: Any) -> AsyncIterator[tuple[list[Broker], Proxy, str]]:
    """Brokers that share a metadata store, and a proxy that is told of the first one only; with the proxy's URL."""
    clock = SystemClock()
    root = MemoryMetadataStore(clock, leases=True)
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            url, handle = free_url(), root.client()
            broker = Broker(
                path,
                config=BrokerConfig(service_url=url, session_timeout=5.0, segments=6),
                metadata=handle,
                clock=clock,
            )
            await broker.start()
            await broker.serve(*parse_url(url))
            stack.push_async_callback(handle.close)
            stack.push_async_callback(broker.close)
            found.append(broker)
        proxy = Proxy(ProxyConfig(**{"brokers": (found[0].service_url,), **settings}))
        stack.push_async_callback(proxy.close)
        yield found, proxy, format_url(*await proxy.serve("127.0.0.1", 0))


class Noting:
    """A Connector that keeps the URLs it was asked for."""

    def __init__(self) -> None:
        self.dialled: set[str] = set()
        self._tcp = SocketConnector()

    async def connect(self, url: str, handler: Callable[[FrameStream], FrameHandler]) -> FrameStream:
        self.dialled.add(url)
        return await self._tcp.connect(url, handler)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the loop brings about without telling anybody."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
