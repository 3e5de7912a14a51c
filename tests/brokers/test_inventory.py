"""Of several brokers exactly one shows each segment, with its numbers, also of those that none has open."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from engine.broker.metrics.catalogue import metrics_text
from engine.broker.server import Broker
from engine.testing.cluster import DEFAULT_CONFIG, SimCluster, simulate
from tests.kit.prometheus import samples_of

NAMES = ("b1", "b2", "b3")
TOPICS = [f"topic://public/default/t{i}" for i in range(8)]
CONFIG = replace(DEFAULT_CONFIG, segment_idle_time=20.0, scalable_topic_auto_scale_enabled=False)


def running(cluster: SimCluster) -> list[Broker]:
    return [one.broker for one in cluster.brokers.values() if one.broker is not None]


async def settled(cluster: SimCluster) -> None:
    """Until all brokers know of each other's ends, and have measured what they answer for."""
    async with asyncio.timeout(300):
        while True:
            await asyncio.sleep(5)
            views = {tuple(sorted(broker.members.brokers.live)) for broker in running(cluster)}
            measured = not any(broker.stocktaking.waiting for broker in running(cluster))
            if measured and views == {tuple(sorted(b.service_url for b in running(cluster)))}:
                return


async def check(cluster: SimCluster, sent: int) -> None:
    await settled(cluster)
    times, shown = Counter[tuple[str, ...]](), Counter[str]()
    for broker in running(cluster):
        text = metrics_text(broker)
        times.update((topic, segment) for topic, segment, _ in samples_of(text, "engine_segment_owner"))
        for (topic, _, subscription), count in samples_of(text, "engine_subscription_back_log").items():
            assert subscription == "s"
            shown[topic] += int(count)
    assert times == dict.fromkeys(((topic, segment) for topic in TOPICS for segment in "01"), 1)
    assert shown == dict.fromkeys(TOPICS, sent)


async def send(cluster: SimCluster, count: int) -> None:
    client = cluster.client("c")
    for topic in TOPICS:
        async with await client.producer(topic) as producer:
            await asyncio.gather(*(producer.send(b"%d" % i, key=f"key-{i}") for i in range(count)))


async def all_closed(cluster: SimCluster) -> None:
    async with asyncio.timeout(300):
        while any(len(broker.segments) for broker in running(cluster)):  # noqa: ASYNC110
            await asyncio.sleep(1)


def test_each_segment_is_shown_by_one_broker_while_brokers_come_and_go() -> None:
    async def scenario(cluster: SimCluster) -> None:
        for name in NAMES[:2]:
            await cluster.start(name)
        admin = cluster.brokers["b1"].broker.admin
        for topic in TOPICS:
            await admin.create_topic(topic, segments=2)
            await admin.create_subscription(topic, "s", initial_position="earliest")
        await check(cluster, 0)
        await send(cluster, 20)
        await all_closed(cluster)
        await check(cluster, 20)
        await cluster.start("b3")  # placement names it for a third of the segments that no broker has open
        await check(cluster, 20)
        await send(cluster, 10)
        await cluster.brokers["b1"].kill()
        await check(cluster, 30)
        await all_closed(cluster)
        await cluster.brokers["b2"].close()
        await check(cluster, 30)

    simulate(1, scenario, config=CONFIG, shared=True)
