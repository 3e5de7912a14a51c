"""A broker that was used: what it has written to its metadata store."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable

from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.client.base.schema import Schema
from engine.client.client import AsyncClient
from engine.clock import SystemClock
from engine.metadata.memory import MemoryMetadataStore
from engine.wire.memory import MemoryConnector


async def some_metadata() -> list[bytes]:
    """All values that records ever had: of topics, subscriptions, members, loads, schemas, transactions, cursors."""
    clock = SystemClock()
    store = MemoryMetadataStore(clock)
    found: dict[bytes, None] = {}

    async def note() -> None:
        found.update(dict.fromkeys(record.value for record in await store.list("", "\U0010ffff")))

    with tempfile.TemporaryDirectory() as folder:
        config = BrokerConfig(service_url="engine://here:1", scalable_topic_load_report_interval=0.01)
        broker = Broker(folder, config=config, metadata=store, clock=clock)
        await broker.start()
        client = AsyncClient("engine://here:1", connector=MemoryConnector(broker.accept_local))
        try:
            await use(broker, client, note)
        finally:
            await client.close()
            await broker.close()
    await note()
    return list(found)


async def use(broker: Broker, client: AsyncClient, note: Callable[[], Awaitable[None]]) -> None:
    """A bit of everything that leaves a record."""
    admin = broker.admin
    await admin.create_topic("orders", segments=2, properties={"team": "a"})
    await admin.set_namespace_policies("public/default", {"retention_time_s": 3600})
    await admin.set_auto_scale_policy("orders", {"max_segments": 8})
    producer = await client.producer("orders", name="p")
    stream = await client.stream_consumer("orders", "s", initial_position="earliest")
    queue = await client.queue_consumer("orders", "q", initial_position="earliest")
    for i in range(20):
        await producer.send(b"x", key=f"k{i}")
    async with await client.transaction() as transaction:
        await producer.send(b"y", key="k", transaction=transaction)
        first = await queue.receive(timeout=10)
        assert first is not None
        await queue.acknowledge(first, transaction=transaction)
        await note()
    for _ in range(10):
        message = await queue.receive(timeout=10)
        assert message is not None
        await queue.acknowledge(message)
    while not any(b"msgRateIn" in value for value in await values(broker, note)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # for the first load report
    await admin.split_segment("orders", 0)
    typed = await client.producer("typed", schema=Schema.string())
    await typed.send("text")
    await asyncio.gather(stream.close(), queue.close(), producer.close(), typed.close())


async def values(broker: Broker, note: Callable[[], Awaitable[None]]) -> list[bytes]:
    await note()
    return [record.value for record in await broker.metadata.list("", "\U0010ffff")]
