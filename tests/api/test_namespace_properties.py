"""A consumer of those topics of a namespace that have certain properties, while the properties change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.client import AsyncClient
from engine.clock import SystemClock
from engine.metadata.memory import MemoryMetadataStore
from engine.wire.memory import MemoryConnector
from tests.api.reshaping import until

X = {"team": "x"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    started = Broker(tmp_path / "data")
    await started.start()
    yield started
    await started.close()


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[AsyncClient]:
    async with AsyncClient("engine://embedded", connector=MemoryConnector(broker.accept)) as client:
        yield client


async def send(client: AsyncClient, topic: str, value: bytes) -> None:
    async with await client.producer(topic) as producer:
        await producer.send(value)


async def test_who_begins_to_match_joins_and_who_stops_leaves(broker: Broker, client: AsyncClient):
    a, b = "topic://n/s/a", "topic://n/s/b"
    await broker.service.create_topic(a, properties=X)
    await broker.service.create_topic(b)
    async with await client.stream_consumer(None, "s", namespace="n/s", properties=X) as consumer:
        assert consumer.topics == [a]
        await send(client, b, b"b0")
        await broker.admin.set_topic_properties(b, {**X, "more": "1"})
        message = await consumer.receive(timeout=20)
        assert message is not None
        assert (message.topic, message.value) == (b, b"b0")
        await send(client, a, b"a0")
        last = await consumer.receive(timeout=20)
        assert last is not None
        await broker.admin.set_topic_properties(b, {})
        await until(lambda: consumer.topics == [a])
        await consumer.acknowledge_cumulative(last)  # in a alone: b has left
        await send(client, b, b"b1")
        assert await consumer.receive(timeout=0.1) is None
        await broker.admin.set_topic_properties(b, X)  # and comes back, where its subscription stands
        again = [await consumer.receive(timeout=20) for _ in range(2)]
        assert [m.value for m in again if m] == [b"b0", b"b1"]
        assert await consumer.receive(timeout=0.1) is None


async def test_other_properties_may_change(broker: Broker, client: AsyncClient):
    a = "topic://n/s/a"
    await broker.service.create_topic(a, properties=X)
    async with await client.queue_consumer(None, "q", namespace="n/s", properties=X) as consumer:
        attachments = dict(consumer._members[a].attachments)
        await broker.admin.set_topic_properties(a, {**X, "other": "1"})
        await send(client, a, b"1")
        assert await consumer.receive(timeout=20) is not None
        assert consumer._members[a].attachments == attachments


async def test_any_broker_tells(tmp_path: Path):
    """Two brokers on one metadata store: topics are made at one, the consumer asks the other."""
    metadata = MemoryMetadataStore(SystemClock())
    brokers = {
        url: Broker(tmp_path / "data", metadata=metadata, config=BrokerConfig(service_url=url), connector=None)
        for url in ("engine://127.0.0.1:1", "engine://127.0.0.1:2")
    }
    one, two = brokers.values()
    for each in (one, two):
        await each.start()
    try:
        async with AsyncClient("engine://127.0.0.1:2", connector=MemoryConnector(two.accept)) as client:
            watch = await client.watch_topics("n/s")
            await watch.next_change()
            await one.service.create_topic("topic://n/s/a")
            changed = await watch.next_change(timeout=20)
            assert changed is not None
            assert changed.added == ("topic://n/s/a",)
    finally:
        await one.close()
        await two.close()
        await metadata.close()
