"""A broker and a proxy in front of it, with all their ports, as the hostile tests find them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.proxy.config import ProxyConfig
from engine.proxy.server import Proxy
from engine.pulsar.recognising import recogniser
from engine.wire.url import format_url
from tests.kit.peer import Peer


@dataclass
class Ports:
    """`url`, `admin_url`: of the broker itself; `over_url`, `over_admin_url`: of the proxy."""

    broker: Broker
    url: str
    admin_url: str
    over_url: str
    over_admin_url: str


@contextlib.asynccontextmanager
async def opened(folder: Path, config: BrokerConfig) -> AsyncIterator[Ports]:
    """Apache Pulsar's protocol is served as well. Raw connections end before the broker."""
    async with contextlib.AsyncExitStack() as stack:
        broker = Broker(folder / "data", config=config, recognise=recogniser())
        await broker.start()
        stack.push_async_callback(broker.close)
        stack.push_async_callback(Peer.end_all)
        url = format_url(*await broker.serve("127.0.0.1", 0))
        await broker.serve_admin("127.0.0.1", 0)
        assert broker.admin_url is not None
        proxy = Proxy(ProxyConfig(brokers=(url,), broker_admin=broker.admin_url))
        stack.push_async_callback(proxy.close)
        over_admin = format_url(*await proxy.serve_admin("127.0.0.1", 0), "http")
        over = format_url(*await proxy.serve("127.0.0.1", 0))
        yield Ports(broker, url, broker.admin_url, over, over_admin)
