"""Sessions of brokers with the metadata store that come late, or are seen to be over before they are refreshed."""

from __future__ import annotations

import asyncio

import pytest

from engine.testing.cluster import SimCluster, simulate


@pytest.mark.parametrize("seconds", [4.9, 6.5, 8.5, 10.2, 10.5, 10.8, 11.1, 12.5, 15.5])
def test_what_is_owned_after_a_partition_is_held_for_good(seconds: float):
    """The broker asks for a session while it is cut off; the later that comes, the less of it is left."""

    async def body(cluster: SimCluster) -> None:
        broker = await cluster.start("b1")
        assert broker.metadata is not None
        assert broker.broker is not None
        await broker.broker.admin.create_topic("orders", segments=8)
        producer = await cluster.client("p").producer("orders")
        await asyncio.gather(*(producer.send(b"", key=f"key{i}") for i in range(80)))
        broker.metadata.partition()
        await asyncio.sleep(seconds)
        broker.metadata.heal()
        consumer = await cluster.client("c").queue_consumer("orders", "s", initial_position="earliest")
        for _ in range(80):
            message = await consumer.receive(timeout=10)
            assert message is not None
            await asyncio.sleep(0.05)
            await consumer.acknowledge(message)
        leases = [hosted.segment.lease for hosted in broker.broker.segments]
        assert len(leases) == 8
        assert all(lease.held for lease in leases)

    simulate(1, body, shared=True)
