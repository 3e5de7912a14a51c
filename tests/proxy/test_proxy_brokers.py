"""Several brokers behind one proxy: a client dials the proxy alone, and goes on when a broker does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import engine
from engine.client.client import AsyncClient
from engine.errors import ConnectError
from engine.model.positions import Checkpoint
from engine.proxy.config import ProxyConfig
from engine.proxy.routes import Routes
from engine.proxy.server import Proxy
from engine.wire.commands import Command
from engine.wire.connector import SocketConnector
from engine.wire.stream import FrameHandler, FrameStream
from tests.kit.peer import Peer
from tests.proxy.proxies import Noting, cluster, free_url, until


async def test_everything_goes_over_the_proxy(tmp_path: Path) -> None:
    noting = Noting()
    async with cluster(tmp_path) as (brokers, proxy, url), AsyncClient(url, connector=noting) as client:
        producer = await client.producer("orders")
        stream = await client.stream_consumer("orders", "s", initial_position="earliest")
        queue = await client.queue_consumer("orders", "q", initial_position="earliest")
        for i in range(100):
            await producer.send(b"%d" % i, key=f"key-{i}")
        assert sum(1 for broker in brokers if len(broker.segments)) >= 2
        await brokers[2].admin.split_segment("orders", 0)
        for i in range(100, 200):
            await producer.send(b"%d" % i, key=f"key-{i}")
        for consumer in (stream, queue):
            got: set[int] = set()
            while len(got) < 200:
                batch = await consumer.receive_batch(timeout=20)
                assert len(batch)
                got.update(int(m.value) for m in batch)
                if consumer is stream:
                    await stream.acknowledge_cumulative(batch)
        reader = await client.checkpoint_consumer("orders", start=Checkpoint.earliest())
        again = [await reader.receive(timeout=20) for _ in range(200)]
        assert {int(m.value) for m in again if m is not None} == set(range(200))
        assert noting.dialled == {url}
        assert 2 <= proxy.statistics().sessions <= 4
        told = [c.stream.peer for broker in brokers for c in broker.connections if "over the proxy" in c.stream.peer]
        assert len(told) == proxy.statistics().sessions, "each broker knows whom it serves"


async def test_a_broker_that_ends_is_replaced(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (brokers, _, url), AsyncClient(url) as client:
        producer = await client.producer("orders")
        stream = await client.stream_consumer("orders", "s", initial_position="earliest")
        await producer.send(b"0", key="a")
        await brokers[1].close()
        for i in range(1, 60):
            await producer.send(b"%d" % i, key=f"key-{i}")
        got: set[int] = set()
        while len(got) < 60:
            message = await stream.receive(timeout=20)
            assert message is not None
            got.add(int(message.value))


async def test_a_client_that_comes_back_to_another_proxy(tmp_path: Path) -> None:
    """That one has not heard of the brokers yet which the client asks for; it does when the client looks again."""
    async with cluster(tmp_path) as (_, proxy, url), AsyncClient(url) as client:
        producer = await client.producer("orders")
        for i in range(20):
            await producer.send(b"%d" % i, key=f"key-{i}")
        port = int(url.rpartition(":")[2])
        await proxy.close()
        other = Proxy(proxy.config)
        await other.serve("127.0.0.1", port)
        try:
            for i in range(20):
                await producer.send(b"%d" % i, key=f"key-{i}")
        finally:
            await other.close()


async def test_only_brokers_are_dialled(tmp_path: Path) -> None:
    """A proxy is no way to reach whatever else is behind it."""
    allowed, other = free_url(), free_url()
    async with cluster(tmp_path, 1, allow=(allowed,)) as (brokers, _, url):
        peer = await Peer.connect(brokers[0], url, hello=False)
        with pytest.raises(ConnectError, match="unknown broker"):
            await peer.hello(target=other)
        peer = await Peer.connect(brokers[0], url, hello=False)
        with pytest.raises(ConnectError, match="connection refused"):
            await peer.hello(target=allowed)
        peer = await Peer.connect(brokers[0], url, hello=False)
        answer = await peer.hello(target=brokers[0].service_url)
        assert answer["proxied"] is True
        assert answer["broker"] == brokers[0].service_url


@pytest.mark.parametrize(
    ("pattern", "url", "fits"),
    [
        ("engine://b-*.example:6650", "engine://b-7.example:6650", True),
        ("engine://b-*.example:6650", "engine://b-7.example:6651", False),
        ("engine://b-*:*", "engine://b-7.example:6651", True),
        ("10.0.*:6650", "engine://10.0.3.4:6650", True),
        ("10.0.*:6650", "engine://10.1.3.4:6650", False),
        ("engine://b*:6650", "engine://b:1/x:6650", False),
        ("engine://b.example:6650", "engine://bxexample:6650", False),
    ],
)
def test_patterns_of_brokers(pattern: str, url: str, fits: bool) -> None:
    routes = Routes(ProxyConfig(brokers=("engine://first",), allow=(pattern,)))
    if fits:
        assert routes.candidates(url, 0.0) == [url]
    else:
        with pytest.raises(engine.EngineError):
            routes.candidates(url, 0.0)


async def test_of_several_brokers_the_next_one_that_answers(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as (brokers, _, _):
        dead = free_url()
        proxy = Proxy(ProxyConfig(brokers=(dead, brokers[0].service_url, brokers[1].service_url)))
        host, port = await proxy.serve("127.0.0.1", 0)
        try:
            greeted = set()
            for _ in range(6):
                peer = await Peer.connect(brokers[0], f"engine://{host}:{port}", hello=False)
                greeted.add((await peer.hello())["broker"])
            assert greeted == {broker.service_url for broker in brokers}
            for broker in brokers:
                await broker.close()
            peer = await Peer.connect(brokers[0], f"engine://{host}:{port}", hello=False)
            with pytest.raises(ConnectError):
                await peer.hello()
        finally:
            await proxy.close()
        await until(lambda: proxy.statistics().sessions == 0)


async def test_a_call_between_brokers_does_not_pass(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as (brokers, _, url):
        peer = await Peer.connect(brokers[0], url)
        peer.send(Command.BROKER_CALL, {"request_id": 1, "target": "admin", "method": "delete_topic"}, b"\x80")
        _, header, _ = await peer.take(Command.ERROR)
        assert header["code"] == engine.AuthorizationError.code
        await peer.lost
        await until(lambda: not brokers[0].connections)


class Inside:
    """A Connector of a machine from which only some of the addresses are reached."""

    def __init__(self, *reached: str) -> None:
        self.reached = set(reached)
        self.dialled: list[str] = []
        self._tcp = SocketConnector()

    async def connect(self, url: str, handler: Callable[[FrameStream], FrameHandler]) -> FrameStream:
        self.dialled.append(url)
        if url not in self.reached:
            raise ConnectError(f"no connection to {url}: not reached from here")
        return await self._tcp.connect(url, handler)


async def test_proxies_and_brokers_in_one_url(tmp_path: Path) -> None:
    """What is not reached directly is reached through the proxy, whichever of the addresses answered first."""
    async with cluster(tmp_path) as (brokers, proxy, url):
        direct = brokers[1].service_url
        given = f"{direct},{url.removeprefix('engine://')}"
        for seed in range(4):
            inside = Inside(url, direct)
            async with AsyncClient(given, connector=inside, rng=random.Random(seed)) as client:
                producer = await client.producer(f"orders-{seed}")
                for i in range(60):
                    await producer.send(b"%d" % i, key=f"key-{i}")
                assert inside.dialled.count(url) >= 2, "the other two brokers, through the proxy"
        await proxy.close()
        inside = Inside(*(broker.service_url for broker in brokers))
        async with AsyncClient(given, connector=inside) as client:  # without the proxy: all directly
            producer = await client.producer("orders-0")
            for i in range(60):
                await producer.send(b"%d" % i, key=f"key-{i}")


async def test_a_client_of_a_proxy_and_a_broker_goes_on_when_either_ends(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (brokers, proxy, url):
        inside = Inside(url, *(broker.service_url for broker in brokers))
        given = f"{brokers[1].service_url},{url.removeprefix('engine://')}"
        async with AsyncClient(given, connector=inside) as client:
            producer = await client.producer("orders")
            await producer.send(b"0", key="a")
            await proxy.close()
            for i in range(30):
                await producer.send(b"%d" % i, key=f"key-{i}")
            assert await client.list_topics() == ["topic://public/default/orders"]
