"""Acknowledgements that nothing waits for: saved at a bounded rate where the metadata store is another process's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.broker.server import Broker
from engine.testing.cluster import SimCluster, simulate
from engine.wire.commands import FEATURES, LAZY_ACKS

TOPIC = "topic://public/default/orders"
COUNT = 400
INTERVAL_S = 0.05  # the default of `cursor_save_interval_ms`
Body = Callable[[SimCluster], Coroutine[Any, Any, None]]


def run(body: Body) -> None:
    """One broker whose metadata store is served by another process."""

    async def scenario(cluster: SimCluster) -> None:
        await cluster.start("b1")
        await broker_of(cluster).admin.create_topic(TOPIC, segments=2)
        async with await cluster.client("p").producer(TOPIC) as producer:
            for i in range(COUNT):
                await producer.send(b"%d" % i, key=f"k{i}")
        await body(cluster)
        assert not cluster.loop.problems

    simulate(1, scenario, served=True)


def broker_of(cluster: SimCluster) -> Broker:
    broker = cluster.brokers["b1"].broker
    assert broker is not None
    return broker


class Saves:
    """Counts the saves of cursors while it is open."""

    def __init__(self, cluster: SimCluster) -> None:
        self.count = 0
        self._watch = cluster.metadata.watch("/topics/", cluster.metadata.version)

    async def __aenter__(self) -> Saves:
        self._task = asyncio.create_task(self._follow())
        return self

    async def _follow(self) -> None:
        async for event in self._watch:
            self.count += "/cursors/" in event.key

    async def __aexit__(self, *_: object) -> None:
        self._watch.close()
        await self._task


@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_unawaited_acks_are_saved_at_the_rate_and_awaited_ones_at_once(kind: str) -> None:
    async def body(cluster: SimCluster) -> None:
        client = cluster.client("c")
        consumer: Any
        if kind == "stream":
            consumer = await client.stream_consumer(TOPIC, "s", initial_position="earliest")
            acknowledge = consumer.acknowledge_cumulative_nowait
        else:
            consumer = await client.queue_consumer(TOPIC, "s", initial_position="earliest")
            acknowledge = consumer.acknowledge_nowait
        loop = asyncio.get_running_loop()
        async with Saves(cluster) as saves:
            began = loop.time()
            for _ in range(COUNT):
                acknowledge(await consumer.receive(timeout=30))
                await asyncio.sleep(0.005)
            rounds = (loop.time() - began) / INTERVAL_S
            await consumer.flush()
            assert 2 <= saves.count <= 2 * (rounds + 3), (saves.count, rounds)
            assert rounds > 20, "they came over many intervals"
        assert await backlog(cluster) == 0, "flush() waits until they are durable"
        await consumer.close()

    run(body)


async def backlog(cluster: SimCluster) -> int:
    """By the records of the cursors."""
    broker = broker_of(cluster)
    left = 0
    for hosted in list(broker.segments):
        positions = await broker.store.cursors.list(hosted.name)
        left += sum(hosted.segment.durable_offset - position for _, position in positions)
    return left


def test_awaited_acks_do_not_wait_for_the_interval() -> None:
    async def body(cluster: SimCluster) -> None:
        consumer = await cluster.client("c").stream_consumer(TOPIC, "s", initial_position="earliest")
        loop = asyncio.get_running_loop()
        took = []
        for _ in range(40):
            message = await consumer.receive(timeout=30)
            assert message is not None
            began = loop.time()
            await consumer.acknowledge_cumulative(message)
            took.append(loop.time() - began)
        assert sorted(took)[20] < INTERVAL_S / 2, took  # virtual seconds
        message = await consumer.receive(timeout=30)
        assert message is not None
        consumer.acknowledge_cumulative_nowait(message)
        began = loop.time()
        await consumer.flush()
        assert loop.time() - began < INTERVAL_S / 2, "flush() hurries what is deferred"
        await consumer.close()

    run(body)


def test_a_broker_of_an_earlier_build_is_not_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(cluster: SimCluster) -> None:
        monkeypatch.setattr("engine.client.net.connection.FEATURES", tuple(f for f in FEATURES if f != LAZY_ACKS))
        consumer = await cluster.client("old").queue_consumer(TOPIC, "s", initial_position="earliest")
        message = await consumer.receive(timeout=30)
        assert message is not None
        consumer.acknowledge_nowait(message)
        await consumer.flush()
        assert await backlog(cluster) == COUNT - 1
        await consumer.close()

    run(body)
