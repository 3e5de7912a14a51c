"""A subscription is deleted while brokers come and go: its consumers hear of it, and none brings it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.errors import EngineError, NotFoundError
from engine.testing.cluster import SimCluster, simulate

NAMES = ("b1", "b2", "b3")
TOPIC = "topic://public/default/orders"
Body = Callable[[SimCluster], Coroutine[Any, Any, None]]


async def consumers_of(cluster: SimCluster, kind: str) -> list[Any]:
    client = cluster.client("c")
    async with await client.producer(TOPIC) as producer:
        await asyncio.gather(*(producer.send(b"%d" % i, key=f"key-{i}") for i in range(60)))
    make = client.queue_consumer if kind == "queue" else client.stream_consumer
    return [await make(TOPIC, "s", name=name, initial_position="earliest") for name in ("one", "two")]


async def ends(consumer: Any) -> None:
    with pytest.raises(NotFoundError):
        await drain(consumer)


async def drain(consumer: Any) -> None:
    async with asyncio.timeout(300):
        while True:
            await consumer.receive()


async def delete(cluster: SimCluster) -> None:
    """Until it is done, at whatever broker answers."""
    async with asyncio.timeout(300):
        while True:
            for broker in [b.broker for b in cluster.brokers.values() if b.running]:
                try:
                    await broker.admin.delete_subscription(TOPIC, "s")
                    return
                except NotFoundError:
                    return
                except EngineError:
                    await asyncio.sleep(0.5)


@pytest.mark.parametrize("kind", ["stream", "queue"])
@pytest.mark.parametrize("how", ["before", "during", "behind"])
def test_deletion_with_a_change_of_leader(kind: str, how: str) -> None:
    """The leader is killed before the deletion, in the middle of it, or right behind it."""

    async def body(cluster: SimCluster) -> None:
        for name in NAMES:
            await cluster.start(name)
        await cluster.brokers["b1"].broker.admin.create_topic(TOPIC, segments=6)
        consumers = await consumers_of(cluster, kind)
        leader = next(b for b in cluster.brokers.values() if b.broker.service.controllers.led())
        if how == "during":
            deleting = asyncio.ensure_future(leader.broker.admin.delete_subscription(TOPIC, "s"))
            while "s" in {s.name for s in await leader.broker.service.list_subscriptions(TOPIC)}:
                pass
            await leader.kill()
            deleting.cancel()
        elif how == "before":
            await leader.kill()
            await delete(cluster)
        else:
            await delete(cluster)
            await leader.kill()
        await asyncio.gather(*map(ends, consumers))
        await delete(cluster)
        await asyncio.sleep(60)  # of virtual time: for whatever might bring it back
        other = next(b.broker for b in cluster.brokers.values() if b.running)
        assert (await other.admin.get_stats(TOPIC))["subscriptions"] == {}
        assert not cluster.loop.problems

    simulate(1, body, shared=True)
