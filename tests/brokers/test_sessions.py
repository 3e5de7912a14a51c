"""Sessions of brokers with the metadata store that come late, or are seen to be over before they are refreshed."""

from __future__ import annotations

import asyncio

import pytest

from engine.testing.cluster import SimCluster, simulate

TIMEOUT_S = 5.0  # of a session


@pytest.mark.parametrize("seconds", [4.9, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5, 11.5, 12.5, 13.5, 14.5, 15.2])
def test_what_is_owned_after_a_partition_is_held_for_good(seconds: float):
    """The broker asks for a session while it is cut off; the later it comes, the less of it is left."""

    async def body(cluster: SimCluster) -> None:
        await cluster.start("b1")
        broker = await cluster.start("b2")
        await cluster.brokers["b1"].broker.admin.create_topic("orders", segments=8)  # type: ignore[union-attr]
        assert broker.metadata is not None
        assert broker.broker is not None
        broker.metadata.partition()
        await asyncio.sleep(seconds)
        broker.metadata.heal()
        producer = await cluster.client("c").producer("orders")
        until = cluster.loop.time() + TIMEOUT_S
        while cluster.loop.time() < until:
            await asyncio.gather(*(producer.send(b"", key=f"key{i}") for i in range(40)))
            await asyncio.sleep(0.1)
        leases = [hosted.segment.lease for hosted in broker.broker.hosting]
        assert [lease for lease in leases if not lease.held] == []

    simulate(1, body, shared=True)
