"""Brokers whose metadata store is in another process: it dies, is stopped, is slow, and they go on."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.client.client import AsyncClient
from engine.clock import SystemClock
from engine.metadata.remote import RemoteMetadataStore
from engine.metadata.service import MetadataService
from engine.metadata.sqlite import SqliteMetadataStore
from engine.storage.disk.metadata_commits import NativeCommits
from engine.testing.cluster import SimCluster, simulate
from engine.wire import unix
from engine.wire.chunks import ChunkPool
from engine.wire.connector import SocketConnector
from engine.wire.url import parse_url
from tests.brokers.test_shared_store import NAMES, TOPIC, receive, send
from tests.brokers.test_tcp import TOKEN, free_url


@pytest.mark.parametrize("trouble", ["dies", "stops", "slow"])
@pytest.mark.parametrize("seed", [1, 2])
def test_d1_brokers_go_on_when_their_metadata_server_is_in_trouble(trouble: str, seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        server = cluster.metadata_server
        assert server is not None
        for name in NAMES:
            await cluster.start(name)
        client = cluster.client("c1")
        producer = await client.producer(str(TOPIC))
        stream = await client.stream_consumer(str(TOPIC), "s", initial_position="earliest")
        sending = asyncio.ensure_future(send(producer, range(300)))
        for turn in range(4):
            await asyncio.sleep(0.5)
            if trouble == "dies":
                await server.kill()
                await asyncio.sleep(1.0)
                server.start()
            elif trouble == "stops":
                server.suspend()
                await asyncio.sleep(2.0)
                server.resume()
            else:
                server.tune(commit_s_max=0.2, late_s_max=0.2)
            if turn == 1:
                broker = cluster.brokers["b2"].broker
                assert broker is not None
                await broker.admin.split_segment(str(TOPIC), 0)
        server.tune()
        await asyncio.wait_for(sending, 300)
        await cluster.brokers["b3"].kill()
        await send(producer, range(300, 400))
        assert await receive(stream, 400) == set(range(400))
        assert not cluster.loop.problems
        assert not cluster.stuck

    simulate(seed, scenario, served=True)


async def test_brokers_on_a_store_that_is_served_over_a_unix_socket(tmp_path: Path) -> None:
    """Real files and sockets: produce, consume, split; the connection breaks; the service comes back on its file."""
    clock, pool, path = SystemClock(), ChunkPool(), str(tmp_path / "metadata.sock")

    async def served() -> tuple[SqliteMetadataStore, MetadataService, unix.UnixListener]:
        store = await SqliteMetadataStore.open(tmp_path / "m.db", clock=clock, native=NativeCommits, served=True)
        service = MetadataService(store)
        service.start()
        return store, service, await unix.listen(path, service.accept, pool=pool)

    store, service, listener = await served()
    brokers, stores = [], []
    for i in range(2):
        url = free_url()
        stores.append(
            await RemoteMetadataStore.connect(SocketConnector(), listener.url, clock=clock, rng=random.Random(i))
        )
        config = BrokerConfig(service_url=url, auth_token=TOKEN, session_timeout=20.0, segments=4)
        brokers.append(Broker(tmp_path / "data", config=config, metadata=stores[-1], clock=clock))
        await brokers[-1].start()
        await brokers[-1].serve(*parse_url(url))
    async with AsyncClient(brokers[0].service_url, token=TOKEN) as client:
        producer = await client.producer("orders")
        stream = await client.stream_consumer("orders", "s", initial_position="earliest")
        await send(producer, range(50))
        listener.close()
        await service.close()  # every connection breaks
        await store.close()
        sending = asyncio.ensure_future(send(producer, range(50, 100)))
        store, service, listener = await served()
        await sending
        await brokers[1].admin.split_segment("orders", 0)
        await send(producer, range(100, 150))
        assert await receive(stream, 150) == set(range(150))
    for broker in brokers:
        assert broker.members.brokers.session_id is not None
        await broker.close()
    for remote in stores:
        await remote.close()
    assert await store.list_keys("/brokers/", "/brokers0") == []
    listener.close()
    await service.close()
    await store.close()
