"""A final reading ends where the topic ends, however slow the server is."""

from __future__ import annotations

import asyncio

from engine.testing.cluster import SimCluster, simulate
from engine.testing.workload import Sender, read_all

TOPIC = "orders"


async def filled(cluster: SimCluster) -> None:
    broker = await cluster.start()
    await broker.broker.admin.create_topic(TOPIC, segments=3)
    await Sender(cluster.history, cluster.client("c-p"), "p", TOPIC, cluster.rng("p")).run(50)
    await broker.close()  # so that what is read comes from the disk
    await broker.start()


def count(cluster: SimCluster) -> int:
    return sum(e.get("phase") == "ok" for e in cluster.history.events if e["what"] == "send")


def test_a_slow_server_does_not_end_it() -> None:
    async def body(cluster: SimCluster) -> None:
        await filled(cluster)
        reading = asyncio.ensure_future(read_all(cluster.history, cluster.client("c-r"), TOPIC, 1, 1.0))
        while not any(e["what"] == "final" for e in cluster.history.events):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.0001)
        cluster.brokers["b1"].suspend()
        await asyncio.sleep(4)
        cluster.brokers["b1"].resume()
        assert await reading == count(cluster)
        assert "fault" not in {e["what"] for e in cluster.history.events}

    simulate(1, body)


def test_it_ends_when_everything_is_read_and_not_later() -> None:
    async def body(cluster: SimCluster) -> None:
        await filled(cluster)
        begun = cluster.loop.time()
        assert await read_all(cluster.history, cluster.client("c-r"), TOPIC, 1, 100.0) == count(cluster)
        assert cluster.loop.time() - begun < 50

    simulate(1, body)
